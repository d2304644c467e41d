"""What a table was made on."""

import re

from fedsyn_flwr.report import machine


def test_hardware_names_processor_cores_and_gpu():
    assert re.fullmatch(r".+, \d+ cores?, .*GPU.*|.+, \d+ cores?, \d+ x .+", machine.hardware())


def test_gpus_of_a_kind_are_counted(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho NVIDIA H200\necho NVIDIA H200\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.hardware().endswith(", 2 x NVIDIA H200")
    tool.write_text("#!/bin/sh\necho no devices were found\nexit 9\n")
    assert machine.hardware().endswith(", no GPU")


def test_versions_that_differ_are_all_named():
    versions = [{"flwr": "1.42", "ray": "2.5"}, {"flwr": "1.43"}, {"flwr": "1.42"}]
    assert machine.joined_versions(versions) == {"flwr": "1.42 / 1.43", "ray": "2.5"}

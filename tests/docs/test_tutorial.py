"""The tutorial's commands, run in order as a newcomer would, in an empty folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, commands


@pytest.mark.sim
@pytest.mark.tutorial
def test_every_command_of_the_tutorial_runs(tmp_path: Path) -> None:
    lines = commands(ROOT / "docs/tutorial.md", "bash")
    assert len(lines) == 6
    assert all(line.startswith("fedsyn ") for line in lines)
    for line in lines:
        command = [sys.executable, "-m", "fedsyn_flwr", *line.split()[1:]]
        result = subprocess.run(
            command, cwd=tmp_path, env=os.environ, capture_output=True, text=True
        )
        assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
    folder = tmp_path / "results/tutorial"
    assert (folder / "first/pool.safetensors").exists()
    assert "hfmds" in (folder / "grid/summary.md").read_text()
    assert len(list(folder.glob("*.png"))) >= 2

"""The `fedsyn` command in this process, over a stand-in for Flower."""

import subprocess
import sys
from pathlib import Path

import pytest
from fake_app.writing import write_config

from fedsyn_flwr import preflight
from fedsyn_flwr.cli import app
from fedsyn_flwr.report.files import read_status
from fedsyn_flwr.simulation import runner

JOB = Path(__file__).parent / "job.py"


class FakeSuperLink:
    """Starts `job.py` where a LocalSuperLink would start `flwr run`.

    A run behaves as the first word of its name says; ``opened`` counts all links, ``submitted``
    lists all runs.
    """

    opened = 0
    submitted: list[str] = []  # noqa: RUF012 - shared, and emptied by `command`
    interrupts: set[str] = set()  # noqa: RUF012 - kinds at whose start the user presses Ctrl-C

    def __init__(self, cpus=None, wait=True) -> None:
        self.jobs: list[subprocess.Popen[bytes]] = []
        self.looks = 0
        type(self).opened += 1

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def run(self, app_dir, run_config, federation, log):
        self.folder = log.parent
        write_config(self.folder, run_config)
        name = str(run_config["run-name"])
        self.kind = name.split("-")[0]
        self.submitted.append(name)
        if self.kind in self.interrupts:
            raise KeyboardInterrupt
        arguments = [str(log.parent), self.kind, *(["resume"] if run_config["resume"] else [])]
        with log.open("ab") as out:
            self.jobs.append(subprocess.Popen([sys.executable, str(JOB), *arguments], stdout=out))
        return self.jobs[-1]

    def simulations(self):
        self.looks += 1
        gone = self.kind == "vanish" and read_status(self.folder).get("rounds") == 1
        unseen = self.kind == "blink"  # over before anyone looks
        return [] if unseen or self.looks == 1 or (self.looks > 2 and gone) else [1]

    def ahead(self):
        self.ready = len(self.submitted)

    def trouble(self):
        return "Ray ended: no port is free" if self.kind == "rayless" else ""

    def close(self):
        for job in self.jobs:
            job.kill()
            job.wait()


def command(tmp_path, monkeypatch, capsys):
    """A function that calls `fedsyn`: exit code, lines on stdout, lines on stderr."""
    FakeSuperLink.opened = 0
    FakeSuperLink.submitted.clear()
    FakeSuperLink.interrupts.clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSYN_RESULTS_DIR", raising=False)
    monkeypatch.setattr(preflight, "check", lambda config, num_clients: None)
    monkeypatch.setattr(runner, "LocalSuperLink", FakeSuperLink)
    monkeypatch.setattr("fedsyn_flwr.simulation.superlink.LocalSuperLink", FakeSuperLink)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(runner, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(runner, "GRACE_SECONDS", 0.3)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedsyn", *arguments])
        with pytest.raises(SystemExit) as exit_:
            app.main()
        out, err = capsys.readouterr()
        return exit_.value.code or 0, out.splitlines(), err.splitlines()

    return call

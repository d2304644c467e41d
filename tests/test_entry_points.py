"""Ways to start the command: each does something, none ends in silence."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedsyn_flwr.server_app import wants_colours

ROOT = Path(__file__).resolve().parents[1]
WITH_MAIN = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "fedsyn_flwr").rglob("*.py")
    if "\ndef main(" in path.read_text(encoding="utf-8") or path.name == "__main__.py"
)


def python_m(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


@pytest.mark.parametrize("module", ["fedsyn_flwr", "fedsyn_flwr.cli", "fedsyn_flwr.cli.app"])
def test_the_package_is_the_command(module: str) -> None:
    done = python_m(module, "methods")
    assert done.returncode == 0, done.stderr
    assert "hfmds" in done.stdout
    wrong = python_m(module, "run", "no-such-conf")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: conf 'no-such-conf'")


def test_every_module_with_a_main_runs_it() -> None:
    """One that is only defined would be a silent no-op."""
    assert {"fedsyn_flwr.cli.app", "fedsyn_flwr.simulation.cleanup"} <= set(WITH_MAIN)
    for module in WITH_MAIN:
        text = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
        assert 'if __name__ == "__main__":\n    main()' in text, module


class Stream:
    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (True, {"TERM": "xterm"}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colours_are_for_terminals(terminal: bool, environment: dict, coloured: bool) -> None:
    assert wants_colours(Stream(terminal), environment) == coloured  # type: ignore[arg-type]

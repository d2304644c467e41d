"""What CI makes of pip's log."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "downloads_once.py"
ONCE = """
  Downloading flwr-1.42.0-py3-none-any.whl (1.2 MB)
  Downloading flwr_datasets-0.6.1-py3-none-any.whl (93 kB)
  Using cached torch-2.14.1-cp311-cp311-manylinux_2_28_x86_64.whl (900 MB)
Processing ./wheels/numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl
  Downloading iterators-0.0.2.tar.gz (3 kB)
"""


def judged(log: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT)], input=log, capture_output=True, text=True, check=False
    )


def test_a_log_without_backtracking_passes() -> None:
    done = judged(ONCE)
    assert done.returncode == 0
    assert done.stdout.startswith(ONCE)
    assert "5 packages fetched, 0 of them more than once" in done.stdout


def test_two_versions_of_a_package_fail_by_name() -> None:
    more = "  Downloading grpcio_health_checking-1.8{}.1-py3-none-any.whl (19 kB)\n"
    done = judged(ONCE + more.format(5) + more.format(1))
    assert done.returncode == 1
    assert done.stderr == "grpcio-health-checking was downloaded in 2 versions: 1.81.1, 1.85.1\n"

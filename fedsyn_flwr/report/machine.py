"""What a table was made on: processor, GPU, versions."""

import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedsyn_flwr.compute.hardware import cpu_count


def hardware() -> str:
    """``Intel(R) Xeon(R) CPU @ 2.20GHz, 2 cores, no GPU``."""
    cores = cpu_count()
    return f"{_cpu()}, {cores} core{'' if cores == 1 else 's'}, {_gpus()}"


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"(?m)^model name\s*:\s*(.+)$", text)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _gpus() -> str:
    """Asked of the driver: PyTorch would take seconds to load."""
    if not shutil.which("nvidia-smi"):
        return "no GPU"
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "GPU unknown"
    names = [line.strip() for line in asked.stdout.splitlines() if line.strip()]
    if asked.returncode or not names:
        return "no GPU"
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def joined_versions(runs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The versions that several runs name; ``a / b`` where they were made with different ones."""
    found: dict[str, dict[str, None]] = {}
    for versions in runs:
        for name, version in versions.items():
            found.setdefault(name, {})[version] = None
    return {name: " / ".join(versions) for name, versions in found.items()}

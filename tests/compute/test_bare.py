"""The parts that compute need torch and numpy alone, so they run on a bare CUDA machine."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BARE = """
import importlib, runpy, sys
sys.path[:0] = [{root!r}, {root!r} + '/tests', {root!r} + '/tests/compute']
ABSENT = set({absent!r}.split())

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ImportError(name + " is not on this machine")

sys.meta_path.insert(0, Absent())
"""
ABSENT = (
    "flwr flwr_datasets datasets ray pydantic safetensors torchvision torchmetrics sklearn PIL "
    "pyarrow pandas filelock cryptography matplotlib rich typer"
)
MODULES = (
    "fedsyn_flwr.client.training fedsyn_flwr.models.flat_model fedsyn_flwr.compute.cuda_graphs "
    "fedsyn_flwr.compute.device fedsyn_flwr.losses fedsyn_flwr.server.distillation "
    "fedsyn_flwr.compute.cost_meter fedsyn_flwr.server.evaluation fedsyn_flwr.models "
    "fedsyn_flwr.data fedsyn_flwr.data.resident fedsyn_flwr.synthesis.inversion "
    "fedsyn_flwr.synthesis.mixing fedsyn_flwr.synthesis.generator fedsyn_flwr.synthesis.acgan "
    "fedsyn_flwr.synthesis.prototypes fedsyn_flwr.synthesis.encoding fedsyn_flwr.compute.process "
    "passes test_gpu"
)

SMALL = (
    "--device cpu --models cnn --width 0.25 --size 8 --batch 8 --steps 6 --repeats 1 "
    "--clients 2 --images 4 --inversion-steps 5 --samples 64 --epochs 1"
)


def bare(code: str) -> subprocess.CompletedProcess[str]:
    """Run code where nothing but torch and numpy can be imported."""
    whole = BARE.format(root=str(ROOT), absent=ABSENT) + code
    return subprocess.run(
        [sys.executable, "-c", whole], capture_output=True, text=True, check=False, timeout=120
    )


def test_the_block_works() -> None:
    done = bare("import flwr")
    assert done.returncode == 1
    assert "flwr is not on this machine" in done.stderr


def test_training_synthesis_distillation_models_data_and_their_gpu_tests() -> None:
    done = bare(
        f"for name in {MODULES!r}.split():\n    importlib.import_module(name)\nprint('all')"
    )
    assert done.stdout == "all\n", done.stderr


@pytest.mark.parametrize("amp", [[], ["--amp"]])
def test_the_gpu_benchmark_on_a_cpu(amp: list[str]) -> None:
    """With small settings: it says what it did and how fast, a line for each."""
    script = str(ROOT / "benchmarks" / "gpu_steps.py")
    argv = [script, *SMALL.split(), *amp]
    done = bare(f"sys.argv = {argv!r}\nrunpy.run_path({script!r}, run_name='__main__')")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rows = [line.split() for line in lines if line.startswith("cnn ")]
    assert [row[1:3] for row in rows] == [
        [step, how] for how in ("eager", "graph") for step in ("plain", "mixed")
    ]
    assert all(float(row[3]) > 0 for row in rows)
    assert sum(line.startswith("inversion of 2 x 4 images x 5 steps") for line in lines) == 2
    assert sum(line.startswith("estimate of a round") for line in lines) == 2

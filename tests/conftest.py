"""Shared by all tests: no network, private state, the harness importable."""

import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

# A shell's background job starts with SIGINT ignored, and so would children that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture
def shared_data() -> Path:
    """Folder of real data sets, where this checkout has one beside it."""
    if not SHARED.is_dir():
        pytest.skip("the data folder beside the checkout is absent")
    return SHARED


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Bits must not depend on what ran before; two cores are shared with other tests."""
    import torch

    torch.set_num_threads(1)

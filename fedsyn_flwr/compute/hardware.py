"""What this machine has; quick to ask, PyTorch is loaded only for GPUs."""

import os


def cpu_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpu_count() -> int:
    """CUDA devices PyTorch sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0

"""Copies, precision and memory on a CUDA device; on the CPU all of it is next to nothing."""

import sys
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

# Of an actor's share of a GPU, what PyTorch may allocate; the rest is for the CUDA contexts, which
# its allocator does not count.
ALLOCATED = 0.9


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """``x`` on the device, without waiting for it.

    A copy from ordinary memory would wait until the device has done all it was given before. From
    pinned memory it takes its turn; PyTorch keeps the pinned block until it has.
    """
    if device.type != "cuda" or x.device.type != "cpu":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def overwrite(x: Tensor, array: np.ndarray) -> None:
    """Put an array, which may be read-only, into a tensor of its shape, waiting for no device."""
    if x.device.type == "cpu":
        np.copyto(x.numpy(), array)
    else:
        host = torch.from_numpy(np.require(array, requirements=["W"]))
        x.copy_(to_device(host, x.device))


def to_host(tensors: Iterable[Tensor]) -> list[np.ndarray]:
    """The tensors as arrays, waiting for a device once; on the CPU they share memory with them."""
    arrays: list[np.ndarray] = []
    waiting: set[torch.device] = set()
    for tensor in tensors:
        host = tensor.detach()
        if tensor.is_cuda:
            host = torch.empty_like(host, device="cpu", pin_memory=True)
            host.copy_(tensor.detach(), non_blocking=True)
            waiting.add(tensor.device)
        arrays.append(host.numpy())
    for device in waiting:
        torch.cuda.current_stream(device).synchronize()
    return arrays


def precision(device: torch.device, mixed: bool) -> torch.autocast:
    """A forward pass's surroundings: bfloat16 where PyTorch's autocast allows it, or as it is.

    Weights, gradients, optimisers and cross-entropies stay float32. Casts are not cached: a CUDA
    graph must not depend on what was cached before it.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=mixed, cache_enabled=False)


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16; a CPU does, slowly where it has no instructions."""
    if device.type != "cuda":
        return True
    with torch.cuda.device(device):
        return torch.cuda.is_bf16_supported(including_emulation=False)


def gpu_share() -> float:
    """The share of a GPU that Ray reserved for this process; 0 outside Ray and where it has none.

    Ray is not imported: a process that it started has it already.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return 0.0
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:  # the driver has no share of its own
        return 0.0
    return float(context.get_assigned_resources().get("GPU", 0.0))


def bound_memory(device: torch.device, share: float) -> None:
    """Keep PyTorch's allocations to a share of the GPU, in (0, 1); others are no limit.

    An actor that needs more fails with PyTorch's out-of-memory error, and its neighbours go on.
    """
    if device.type == "cuda" and 0 < share < 1:
        torch.cuda.set_per_process_memory_fraction(ALLOCATED * share, device.index)

"""Random numbers derived from what they are for, never from the order in which code runs."""

import zlib

import numpy as np
import torch


def derive(seed: int, *key: int | str) -> int:
    """A 63-bit seed for one purpose, e.g. ``derive(seed, round, partition, "batches")``.

    Equal keys give equal seeds in every process; different keys give independent ones.
    """
    words = [zlib.crc32(k.encode()) if isinstance(k, str) else k for k in key]
    state = np.random.SeedSequence([seed, *words]).generate_state(1, np.uint64)[0]
    return int(state >> np.uint64(1))


def torch_generator(seed: int, *key: int | str) -> torch.Generator:
    """A CPU generator for one purpose; CPU, so that the device does not change the numbers."""
    return torch.Generator().manual_seed(derive(seed, *key))


def numpy_generator(seed: int, *key: int | str) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.default_rng(derive(seed, *key))


class Reshuffled:
    """Positions in [0, n) without replacement until they are used up, then shuffled anew.

    Parameters
    ----------
    n : int
        How many there are, at least 1.
    generator : torch.Generator
        Of the order; a CPU generator.
    """

    def __init__(self, n: int, generator: torch.Generator) -> None:
        self.n, self.generator = n, generator
        self.order = torch.empty(0, dtype=torch.int64)

    def take(self, count: int) -> torch.Tensor:
        """The next ``count`` of them, int64 (count,)."""
        while len(self.order) < count:
            fresh = torch.randperm(self.n, generator=self.generator)
            self.order = torch.cat([self.order, fresh])
        taken, self.order = self.order[:count], self.order[count:]
        return taken

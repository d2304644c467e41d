"""The local training loop, the only one: every client of every method runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from fedsyn_flwr.compute.cuda_graphs import Passes, Tensors, plainly
from fedsyn_flwr.compute.device import precision
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.rng import derive, torch_generator

if TYPE_CHECKING:
    from fedsyn_flwr.config import TrainConfig


class Batch(NamedTuple):
    """A batch as the loss sees it: images (B, C, H, W), normalised and augmented; labels (B,).

    ``shared_x`` and ``shared_y`` are as many images from a pool, with labels (B,) or shares of
    classes (B, classes), where a method draws some for each step.
    """

    x: Tensor
    y: Tensor
    shared_x: Tensor | None = None
    shared_y: Tensor | None = None


class Loss(NamedTuple):
    """What a step minimises, and the plain cross-entropy of its real images for the log.

    ``watched`` is what a method wants to see of the pass, detached.
    """

    objective: Tensor
    cross_entropy: Tensor
    watched: Tensor | None = None


@dataclass(frozen=True)
class LocalResult:
    """What a client's local training did.

    ``loss`` is the mean cross-entropy over every sample seen, nan when there was none.
    """

    loss: float
    steps: int
    examples: int


class SGD:
    """`torch.optim.SGD`, to the bit.

    PyTorch's own imports ``torch._dynamo`` when it is built: two seconds in every actor of every
    run, before its first step.

    Parameters
    ----------
    weights : list of Tensor
        What is optimised, in place.
    settings : TrainConfig
        Learning rate, momentum and weight decay.
    """

    def __init__(self, weights: list[Tensor], settings: TrainConfig) -> None:
        self.weights = weights
        self.settings = settings
        self.velocities: list[Tensor] = []

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        """v ← βv + (g + λw), v = g + λw at first; w ← w - ηv."""
        settings = self.settings
        if settings.weight_decay:
            gradients = list(
                torch._foreach_add(gradients, self.weights, alpha=settings.weight_decay)
            )
        if settings.momentum:
            if self.velocities:
                torch._foreach_mul_(self.velocities, settings.momentum)
                torch._foreach_add_(self.velocities, gradients)
            else:
                self.velocities = [gradient.clone() for gradient in gradients]
            gradients = self.velocities
        torch._foreach_add_(self.weights, gradients, alpha=-settings.learning_rate)


def batch_slices(n: int, batch_size: int) -> Iterator[slice]:
    """Slices of an epoch over n samples; a last batch of one joins the batch before it.

    BatchNorm cannot train on one sample, and one sample is no estimate of a gradient either.
    """
    starts = list(range(0, n, batch_size))
    if len(starts) > 1 and n - starts[-1] == 1:
        starts.pop()
    for i, start in enumerate(starts):
        stop = starts[i + 1] if i + 1 < len(starts) else n
        yield slice(start, stop)


def epochs(indices: Tensor, batch_size: int, count: int, g: torch.Generator) -> Iterator[Tensor]:
    """Index batches of ``count`` epochs, each in a new order drawn from ``g``."""
    for _ in range(count):
        order = indices[torch.randperm(len(indices), generator=g)]
        for piece in batch_slices(len(order), batch_size):
            yield order[piece]


class Hooks(Protocol):
    """What the loop asks of whom it trains for, in this order in each step."""

    def fetch(self, chosen: Tensor) -> Batch:
        """The batch of these samples (n,): normalised, augmented."""

    def loss(self, batch: Batch) -> Loss:
        """What the step minimises."""

    def observe(self, batch: Batch, watched: Tensor) -> None:
        """Take note of what the loss said is to be watched."""

    def after_backward(self) -> None:
        """Correct the loss's gradient in ``flat.grad``, before it is clipped: what is added
        belongs to the objective like the loss itself, and the step stays within ``clip-norm``.
        """

    def after_step(self) -> None:
        """After the optimiser's step: correct the weights."""


@dataclass(frozen=True)
class PlainHooks:
    """A batch source and a loss, and nothing else."""

    fetch: Callable[[Tensor], Batch]
    loss: Callable[[Batch], Loss]

    def observe(self, batch: Batch, watched: Tensor) -> None:
        """Nothing."""

    def after_backward(self) -> None:
        """Nothing."""

    def after_step(self) -> None:
        """Nothing."""


def unmeasured(batch: Batch) -> AbstractContextManager[None]:
    """A step's surroundings where nobody measures it."""
    return nullcontext()


def train_local(
    flat: FlatModel,
    indices: Tensor,
    hooks: Hooks,
    settings: TrainConfig,
    *,
    seed: int,
    key: tuple[int | str, ...],
    around: Callable[[Batch], AbstractContextManager[None]] = unmeasured,
    passes: Passes = plainly,
) -> LocalResult:
    """E epochs of SGD on a client's samples.

    Parameters
    ----------
    flat : FlatModel
        The model, trained in place.
    indices : Tensor
        The client's sample indices, shape (n,), int64; may be empty.
    hooks : Hooks
        Batches and loss, and corrections; the loss is the one thing that most methods change.
    settings : TrainConfig
        Epochs, batch size and the optimiser's constants.
    seed, key
        The run's seed and what identifies this training, e.g. (round, partition).
    around : callable, optional
        Batch → context in which its step is done, to measure it.
    passes : Passes, optional
        How the forward and backward passes are done: a step of every client that shares it, in a
        mode and of a shape, must do the same with its batch.

    Returns
    -------
    LocalResult
        Nothing is trained and the loss is nan when the client has no samples.
    """
    optimiser = SGD(flat.parameters, settings)
    # A lone sample has no batch statistics: it trains on the running ones.
    flat.module.train(len(indices) > 1)
    order = torch_generator(seed, *key, "batches")
    form = (id(flat), flat.module.training)
    total, seen, steps = torch.zeros((), device=flat.trainable.device), 0, 0

    def work(*batch: Tensor) -> Tensors:
        found = descend(flat, hooks.loss, Batch(*batch), settings.amp)
        if passes is not plainly:
            flat.gather()  # what is recorded leaves it in one place
        return found

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, *key, "dropout"))  # layers draw from the global generator
        for chosen in epochs(indices, settings.batch_size, settings.local_epochs, order):
            batch = hooks.fetch(chosen)
            with around(batch):
                given = (tensor for tensor in batch if tensor is not None)
                cross_entropy, *watched = passes(form, work, *given)
                if watched:
                    hooks.observe(batch, *watched)
                step(flat, optimiser, settings.clip_norm, hooks.after_backward)
            hooks.after_step()
            total += cross_entropy * len(chosen)
            seen, steps = seen + len(chosen), steps + 1
    mean = float(total) / seen if seen else float("nan")
    return LocalResult(loss=mean, steps=steps, examples=len(indices))


def descend(
    flat: FlatModel, loss_fn: Callable[[Batch], Loss], batch: Batch, mixed: bool
) -> Tensors:
    """Forward and backward: the objective's gradient, in the model.

    Returns the cross-entropy, a scalar, and what is watched.
    """
    with precision(flat.trainable.device, mixed):
        loss = loss_fn(batch)
    flat.backward(loss.objective)
    cross_entropy = loss.cross_entropy.detach()
    return (cross_entropy,) if loss.watched is None else (cross_entropy, loss.watched)


def step(
    flat: FlatModel,
    optimiser: SGD,
    clip_norm: float,
    after_backward: Callable[[], None] | None = None,
) -> None:
    """One update of the parameters, without waiting for the device."""
    if after_backward is not None:
        after_backward()
    if clip_norm:
        torch.nn.utils.clip_grad_norm_(flat.parameters, clip_norm)
    optimiser.step(flat.gradients)

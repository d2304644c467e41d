"""Recorded passes: on the CPU the recorded function stands in for the graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import Federation
from passes import distilled, inverted, trained, vgg
from torch import Tensor

from fedsyn_flwr import registry
from fedsyn_flwr.compute import cuda_graphs
from fedsyn_flwr.compute.cuda_graphs import SHAPES, WARM_UP, Graphs, is_replayable, plainly
from fedsyn_flwr.models.flat_model import digest

# ---- the mechanism


def double(x: Tensor) -> tuple[Tensor]:
    return (2 * x,)


def test_the_first_work_is_kept_and_does_it_for_all() -> None:
    """As a graph does: whoever comes later is not called."""
    passes, called = Graphs().of("kind"), []

    def work(name: str) -> cuda_graphs.Work:
        return lambda x: (called.append(name), double(x))[1]

    for number in range(WARM_UP + 3):
        (out,) = passes(0, work(str(number)), torch.tensor([float(number)]))
        assert out.item() == 2 * number
    assert called == [*map(str, range(WARM_UP)), *[str(WARM_UP)] * 3]


def test_outputs_belong_to_the_caller() -> None:
    passes = Graphs().of("kind")
    found = [passes(0, double, torch.tensor([float(i)]))[0] for i in range(WARM_UP + 4)]
    assert torch.cat(found).tolist() == [2.0 * i for i in range(WARM_UP + 4)]


def test_a_recorded_pass_reads_its_own_buffers() -> None:
    passes, addresses = Graphs().of("kind"), []
    inputs = [torch.full((2,), float(i)) for i in range(WARM_UP + 3)]
    for x in inputs:
        passes(0, lambda x: (addresses.append(x.data_ptr()), double(x))[1], x)
    assert addresses[:WARM_UP] == [x.data_ptr() for x in inputs[:WARM_UP]]
    assert len(set(addresses[WARM_UP:])) == 1
    assert addresses[-1] not in [x.data_ptr() for x in inputs]


def recorded(g: Graphs, kind: Any, key: Any, x: Tensor) -> int:
    for _ in range(WARM_UP + 1):
        g.of(kind)(key, double, x)
    return len(g.recorded)


def test_one_record_per_kind_key_and_form() -> None:
    g, x = Graphs(), torch.zeros(4, 6)
    assert recorded(g, "a", 0, x) == 1
    assert recorded(g, "a", 0, x + 1) == 1
    assert recorded(g, "b", 0, x) == 2
    assert recorded(g, "a", 1, x) == 3
    assert recorded(g, "a", 0, x[:3]) == 4  # a last batch
    assert recorded(g, "a", 0, torch.zeros(6, 4).T) == 5  # another memory format
    assert recorded(g, "a", 0, x.double()) == 6


def test_only_so_many_shapes_are_recorded() -> None:
    g = Graphs()
    for n in range(1, SHAPES + 3):
        assert recorded(g, "a", 0, torch.zeros(n)) == min(n, SHAPES)
    (out,) = g.of("a")(0, lambda x: (x + 1,), torch.zeros(SHAPES + 1))
    assert out.tolist() == [1.0] * (SHAPES + 1)  # plain: its own work
    assert recorded(g, "b", 0, torch.zeros(1)) == SHAPES + 1


# ---- what may be recorded


def test_methods_whose_steps_are_recorded() -> None:
    """FedGen draws labels and noise within its pass."""
    plain = [name for name, m in registry.METHODS.items() if not is_replayable(m.client)]
    assert plain == ["fedgen"]


@pytest.mark.parametrize("part", ["loss", "objective", "watch"])
def test_an_override_loses_the_mark(part: str) -> None:
    client = registry.method("hfmds").client
    assert is_replayable(client)
    assert not is_replayable(type("Other", (client,), {part: lambda self, given: None}))


# ---- what they come to

CASES: list[dict[str, Any]] = [
    {"strategy": "fedprox"},
    {"strategy": "scaffold", "norm": "bn"},
    {"strategy": "moon"},
    {"strategy": "fedmix"},
    {"strategy": "fedgen"},
    {"strategy": "hfmds"},
    {"strategy": "hfmds", "hfmds-joint-batch": True, "feature-level": "map"},
    {"strategy": "hfmds-mrtf", "norm": "bn", "synthesis-batch": 3},
]
QUICK: dict[str, Any] = {
    "num-server-rounds": 3,
    "limit-train": 400,
    "limit-test": 200,
    "model-width": 0.25,
    "batch-size": 16,
    "local-epochs": 2,
    "synthesis-every": 2,
    "synthesis-per-client": 8,
    "synthesis-steps": 8,
    "fedgen-iterations": 3,
    "augment": "crop-flip",
}


def outcome(f: Federation) -> list[dict[str, Any]]:
    """All that is reported but seconds and memory."""
    return [
        {k: v for k, v in row.items() if "seconds" not in k and "memory" not in k}
        for row in f.rows()
    ]


@pytest.mark.parametrize("keys", CASES, ids=lambda keys: "-".join(map(str, keys.values())))
def test_a_run_is_the_same_to_the_bit(tmp_path: Path, keys: dict[str, Any]) -> None:
    """Three clients on one worker: what one recorded the others replay; operations included."""
    plain = Federation(tmp_path / "plain", 3, **QUICK, **keys).run()
    replayed = Federation(tmp_path / "graphs", 3, **QUICK, **keys, **{"cuda-graphs": True}).run()
    assert digest(replayed.model) == digest(plain.model)
    assert outcome(replayed) == outcome(plain)
    assert not plain.worker.graphs.recorded
    kinds = {exact[0][0][0] for exact in replayed.worker.graphs.recorded}  # type: ignore[index]
    wanted = {"training"} if keys["strategy"] != "fedgen" else set()
    assert kinds == wanted | ({"synthesis"} if "hfmds" in keys["strategy"] else set())
    refiner = replayed.strategy.refiner
    assert refiner is None or refiner.passes.func.__self__.recorded  # type: ignore[attr-defined]


def test_training_statistics_and_dropout_included() -> None:
    g = Graphs()
    assert digest(trained(g.of(0)).vectors()) == digest(trained(plainly).vectors())
    assert len(g.recorded) == 2  # a full batch and the last one of six


def test_what_is_recorded_leaves_its_gradients_in_one_place() -> None:
    """A replay writes where the recorded pass wrote: the step must look there after any pass."""
    flat = trained(Graphs().of("training"), clip_norm=0.0)
    whole = flat.trainable.grad
    assert whole is not None
    homes = {p.grad.untyped_storage().data_ptr() for p in flat.module.parameters()}  # type: ignore[union-attr]
    assert homes == {whole.untyped_storage().data_ptr()}
    assert flat.digest() == trained(plainly, clip_norm=0.0).digest()


def test_a_lone_sample_has_a_mode_of_its_own() -> None:
    """Batches of one in training mode, then a client with one sample, which is in eval mode."""
    keys = {"batch_size": 1, "local_epochs": 6}
    g, flat, reference = Graphs(), vgg(), vgg()
    for n in (6, 1):
        trained(g.of(0), flat, n, **keys)
        trained(plainly, reference, n, **keys)
    assert digest(flat.vectors()) == digest(reference.vectors())
    assert len(g.recorded) == 3  # the last batch of six is one of two


def test_distillation() -> None:
    g = Graphs()
    assert digest(distilled(g.of(0)).vectors()) == digest(distilled(plainly).vectors())
    assert len(g.recorded) == 1


@pytest.mark.parametrize("name", ["cnn", "vgg8"])
def test_inversion_in_pieces(name: str) -> None:
    """Two pieces of one shape in every step, and one of another."""
    g = Graphs()
    assert torch.equal(inverted(g.of(0), name=name), inverted(plainly, name=name))
    assert len(g.recorded) == 2


def test_a_local_epoch_reads_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading one waits for the device: the mean loss at the end is the only one."""
    read: list[str] = []
    for name in ("item", "__float__", "__bool__", "__int__", "tolist"):
        original = getattr(torch.Tensor, name)

        def reading(self: Tensor, name: str = name, original: Any = original) -> Any:
            read.append(name)
            return original(self)

        monkeypatch.setattr(torch.Tensor, name, reading)
    trained(Graphs().of(0))
    assert read == ["__float__"]


# ---- the CUDA branch


class FakeCuda:
    """Streams and graphs that write down what is asked of them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.CUDAGraph = lambda: SimpleNamespace(replay=lambda: self.log.append("replay"))

    def Stream(self, device: torch.device) -> Any:  # noqa: N802
        return self.named("side")

    def current_stream(self, device: torch.device) -> Any:
        return self.named("here")

    def named(self, name: str) -> Any:
        wait = lambda other: self.log.append(f"{name} waits for {other.name}")  # noqa: E731
        return SimpleNamespace(name=name, wait_stream=wait)

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.log.append(f"on {stream.name}")
        yield

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        yield

    @contextmanager
    def graph(self, graph: Any, stream: Any) -> Iterator[None]:
        self.log.append(f"capture on {stream.name}")
        yield


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    found = FakeCuda()
    monkeypatch.setattr(cuda_graphs, "_on_cuda", lambda inputs: True)
    monkeypatch.setattr(cuda_graphs, "_STREAMS", {})
    monkeypatch.setattr(cuda_graphs.torch, "cuda", found)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    return found


def test_warm_up_aside_then_capture_then_replay(fake: FakeCuda) -> None:
    g, calls = Graphs(), []
    for _ in range(WARM_UP + 2):
        g.of(0)(0, lambda x: (calls.append(1), double(x))[1], torch.ones(2))
    aside = ["side waits for here", "on side", "here waits for side"]
    assert fake.log == [*aside * WARM_UP, "capture on side", "replay", "replay"]
    assert len(calls) == WARM_UP + 1  # the capture calls it, a replay does not


def test_a_failed_capture_names_the_key(fake: FakeCuda) -> None:
    def work(x: Tensor) -> tuple[Tensor]:
        if "capture on side" in fake.log:
            raise RuntimeError("operation not permitted when stream is capturing")
        return double(x)

    passes = Graphs().of(0)
    for _ in range(WARM_UP):
        passes(0, work, torch.ones(2))
    with pytest.raises(RuntimeError, match=r"^cuda-graphs = true: .*not permitted.* to false$"):
        passes(0, work, torch.ones(2))

"""How synthetic images are encoded, and what that does to the bytes on the wire."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.common import FitIns, FitRes
from harness import Federation, LocalProxy

from fedsyn_flwr import config
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.payload import from_parameters, to_parameters
from fedsyn_flwr.server.checkpoint import Checkpoints
from fedsyn_flwr.synthesis.encoding import decode, encode

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.3)
QUICK: dict[str, Any] = {
    "strategy": "hfmds",
    "num-server-rounds": 2,
    "limit-train": 300,
    "model-width": 0.25,
    "synthesis-every": 2,
    "synthesis-per-client": 40,
    "synthesis-steps": 2,
}


def images() -> torch.Tensor:
    """Normalised, within the pixels' range."""
    pixels = torch.rand(6, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    view = lambda v: torch.tensor(v).view(1, 3, 1, 1)  # noqa: E731
    return ((pixels - view(MEAN)) / view(STD)).contiguous(memory_format=torch.channels_last)


def test_float32_keeps_every_bit() -> None:
    x = images()
    coded = encode(x, "float32", MEAN, STD)
    assert coded.flags.c_contiguous
    assert torch.equal(decode(torch.from_numpy(coded), MEAN, STD), x)


def test_float16_errs_by_a_2048th() -> None:
    x = images()
    back = decode(torch.from_numpy(encode(x, "float16", MEAN, STD)), MEAN, STD)
    assert back.dtype == torch.float32
    assert 0 < ((back - x).abs() / x.abs()).max() <= 2**-11


def test_uint8_errs_by_half_a_pixel_step_and_clamps() -> None:
    x = images()
    coded = encode(x, "uint8", MEAN, STD)
    error = (decode(torch.from_numpy(coded), MEAN, STD) - x).abs()
    for c in range(3):
        assert 0 < error[:, c].max() <= 0.5 / 255 / STD[c] + 1e-5
    beyond = encode(torch.full((1, 3, 1, 1), 9.0), "uint8", MEAN, STD)
    below = encode(torch.full((1, 3, 1, 1), -9.0), "uint8", MEAN, STD)
    assert beyond.flatten().tolist() == [255] * 3
    assert below.flatten().tolist() == [0] * 3


def test_uint8_is_exact_on_what_it_decoded() -> None:
    """Encoding does not drift when repeated."""
    coded = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(3, axis=1)
    again = encode(decode(torch.from_numpy(coded), MEAN, STD), "uint8", MEAN, STD)
    assert np.array_equal(again, coded)


def lines(f: Federation) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]


def test_bytes_on_the_wire(tmp_path: Path) -> None:
    """Against float32: half and a quarter of the images' bytes, up and down."""
    up, down, pool = {}, {}, {}
    for dtype in ("float32", "float16", "uint8"):
        f = Federation(tmp_path / dtype, 3, **QUICK, **{"synthetic-dtype": dtype}).run()
        plain, synthesis = lines(f)
        model = plain["bytes/up"]
        up[dtype] = synthesis["bytes/up"] - model
        down[dtype] = synthesis["bytes/down"] - 2 * model
        pool[dtype] = f.strategy.pool.arrays
        assert pool[dtype]["images"].dtype == dtype
    pixels, labels = pool["float32"]["images"].size, pool["float32"]["labels"].nbytes
    for dtype, size in (("float32", 4), ("float16", 2), ("uint8", 1)):
        # three contributions up, three whole pools down; array headers come to some hundred bytes
        assert up[dtype] == pytest.approx(size * pixels + labels, abs=3 * 600)
        assert down[dtype] == pytest.approx(3 * (size * pixels + labels), abs=3 * 600)


def test_pool_max_limits_what_is_broadcast(tmp_path: Path) -> None:
    f = Federation(tmp_path, 3, **QUICK, **{"pool-max": 20}).run()
    assert lines(f)[1]["synthesis/pool_size"] == 20
    assert np.bincount(f.strategy.pool.arrays["labels"]).max() <= 3
    store = f.worker.state(f.strategy.codec.run).pool()
    assert len(store.load(2)["labels"]) == 20


def test_checkpoint_keeps_the_encoding(tmp_path: Path) -> None:
    f = Federation(tmp_path, 3, **QUICK, **{"synthetic-dtype": "uint8"}).run()
    store = Checkpoints(tmp_path / "c", f.worker.settings, "layout")
    store.save(f.strategy.checkpoint(2))
    back = store.latest()
    pool = f.strategy.pool.arrays
    f.strategy.pool.arrays = None
    f.strategy.resume(back)
    assert f.strategy.pool.arrays["images"].dtype == np.uint8
    assert all(np.array_equal(f.strategy.pool.arrays[name], pool[name]) for name in pool)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("synthetic-dtype", "int4", "'float32', 'float16' or 'uint8'"),
        ("pool-max", -1, "greater than or equal to 0"),
        ("synthesis-patience", -1, "greater than or equal to 0"),
        ("synthesis-tolerance", 1.0, "less than 1"),
        ("synthesis-batch", -1, "greater than or equal to 0"),
        ("privacy-report", "perhaps", "must be a valid boolean"),
        ("privacy-epochs", -1, "greater than or equal to 0"),
    ],
)
def test_wrong_values_are_named(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(UserError, match=f"{key} = .*{allowed}"):
        config.load(config.merged({key: value}))


class Meddling(LocalProxy):
    """Clients 0 to 2 each send something else that cannot be used; client 3 is honest."""

    def fit(self, ins: FitIns, timeout: Any, group_id: Any) -> FitRes:
        result = super().fit(ins, timeout, group_id)
        if ins.config["phase"] != "synthesis" or self.partition == 3:
            return result
        layout = self.worker.flat.layout
        groups = from_parameters(result.parameters, layout)
        if self.partition == 0:
            del groups["synthetic"]["labels"]
        elif self.partition == 1:
            groups["synthetic"]["images"] = groups["synthetic"]["images"].astype(np.float16)
        result.parameters = to_parameters(groups, layout)
        if self.partition == 2:
            result.parameters.tensors = result.parameters.tensors[:-1]
        return result


def test_bad_payloads_are_refused_by_name_and_the_rest_is_used(tmp_path: Path) -> None:
    f = Federation(tmp_path, 4, Meddling, **QUICK, **{"min-success-fraction": 0.25}).run()
    assert json.loads((f.folder / "status.json").read_text())["status"] == "completed"
    assert lines(f)[1]["clients/rejected"] == 3
    reasons = " ".join(f.strategy.record.reasons)
    assert "client 0: its synthetic images were refused: no labels" in reasons
    assert "client 1: its synthetic images were refused: images of type float16" in reasons
    assert "client 2: payload of 1 arrays, its header names 2" in reasons
    honest = min(40, len(f.worker.partitions[3]))
    assert len(f.strategy.pool.arrays["labels"]) == honest

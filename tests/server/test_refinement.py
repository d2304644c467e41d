"""MrTF and FedDF in a federation: equivalences, labels, state, the set, what is reported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Federation, LocalProxy

from fedsyn_flwr import build, config
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.models.flat_model import digest
from fedsyn_flwr.server import distillation as d

QUICK: dict[str, Any] = {
    "strategy": "mrtf",
    "num-server-rounds": 3,
    "limit-train": 200,
    "limit-test": 90,
    "model-width": 0.25,
    "norm": "bn",
    "mrtf-steps": 5,
    "mrtf-clr-start": 2,
    "synthesis-every": 2,
    "synthesis-per-client": 4,
    "synthesis-steps": 2,
}


def federation(folder: Path, **keys: Any) -> Federation:
    return Federation(folder, 4, **{**QUICK, **keys})


def final(folder: Path, **keys: Any) -> str:
    return digest(federation(folder, **keys).run().model)


def lines(f: Federation) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]


# ---- limits


def test_no_modules_is_fedavg(tmp_path: Path) -> None:
    fedavg = final(tmp_path / "a", strategy="fedavg")
    assert final(tmp_path / "b", **{"mrtf-modules": "none"}) == fedavg
    assert final(tmp_path / "c") != fedavg


def test_never_sent_is_fedavg(tmp_path: Path) -> None:
    fedavg = final(tmp_path / "a", strategy="fedavg")
    assert final(tmp_path / "b", **{"mrtf-distribute": False}) == fedavg
    assert final(tmp_path / "c", **{"mrtf-variant": "released"}) == fedavg


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_average_logits_is_feddf(tmp_path: Path, variant: str) -> None:
    keys = {"mrtf-variant": variant}
    feddf = federation(tmp_path / "a", strategy="feddf", **keys).run()
    row = federation(tmp_path / "b", **keys, **{"mrtf-modules": "avglogi"}).run()
    assert digest(feddf.strategy.refiner.refined) == digest(row.strategy.refiner.refined)


def test_the_method_is_fedavg_with_the_key(tmp_path: Path) -> None:
    mrtf = final(tmp_path / "a")
    assert final(tmp_path / "b", strategy="fedavg", refinement="mrtf") == mrtf
    both = final(tmp_path / "c", strategy="hfmds-mrtf")
    assert final(tmp_path / "d", strategy="hfmds", refinement="mrtf") == both


@pytest.mark.parametrize("strategy", ["scaffold", "fedadam", "fedprox"])
def test_it_composes(tmp_path: Path, strategy: str) -> None:
    plain = final(tmp_path / "a", strategy=strategy)
    assert final(tmp_path / "b", strategy=strategy, refinement="mrtf") != plain


def test_every_row_of_the_ablation_differs(tmp_path: Path) -> None:
    rows = ("none", "avglogi", "avgprob", "st", "st+rd", "st+rd+clr")
    digests = [final(tmp_path / row, **{"mrtf-modules": row}) for row in rows]
    assert len(set(digests)) == len(rows)


# ---- labels


def test_permuted_labels_change_no_weight_but_the_metrics(tmp_path: Path) -> None:
    honest = federation(tmp_path / "a").run()
    wrong = federation(tmp_path / "b")
    labels = wrong.strategy.evaluator.data.labels
    labels.copy_(labels.roll(1))
    wrong.run()
    assert digest(wrong.model) == digest(honest.model)
    for name in ("averaged", "ensemble", "refined", "server"):
        key = f"{name}/test_accuracy"
        assert lines(wrong)[-1][key] < lines(honest)[-1][key] - 0.1


# ---- against the pure functions


def test_target_of_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is distilled is section 2 applied to the models that were there."""
    f = federation(tmp_path, **{"num-server-rounds": 2})
    seen: list[Any] = []
    original = f.strategy.refiner.target

    def spying(before: Any, after: Any, server_round: int) -> torch.Tensor:
        refiner = f.strategy.refiner
        logits, losses = torch.stack(refiner.logits), list(refiner.losses)
        target = original(before, after, server_round)
        seen.append((logits, losses, before, after, target, refiner.images))
        return target

    monkeypatch.setattr(f.strategy.refiner, "target", spying)
    f.run()
    logits, losses, before, after, target, images = seen[-1]
    assert logits.shape == (4, 90, 10)
    f.strategy.flat.load(before)
    x = images.x(torch.arange(90))
    with torch.no_grad():
        old = f.strategy.flat.module.eval()(x)
        f.strategy.flat.load(after)
        h = f.strategy.flat.module.forward_features(x)
        new = f.strategy.flat.module(x)
    u = d.trust(sum(losses) / 4, 10, 0.25)
    mixed = d.rectified(d.stabilised(logits, 4), d.stabilised(old, 4), d.stabilised(new, 4), u)
    expected, _ = d.clustered(mixed, h, 4, True)
    if d.entropy(expected).mean() > 0.95 * np.log(10):
        expected = mixed
    torch.testing.assert_close(target, expected, atol=1e-5, rtol=1e-4)
    row = lines(f)[-1]
    assert row["refinement/u"] == pytest.approx(u)
    sizes = sorted(np.std(one.numpy(), ddof=1) for one in logits)
    assert row["refinement/logit_std_median"] == pytest.approx((sizes[1] + sizes[2]) / 2)
    assert row["refinement/logit_std_min"] == pytest.approx(sizes[0])
    assert row["refinement/logit_std_max"] == pytest.approx(sizes[3])
    assert row["ensemble/test_accuracy"] == pytest.approx(
        float((target.argmax(dim=1) == images.labels).float().mean())
    )
    assert not np.array_equal(before["trainable"], after["trainable"])


def test_released_targets_are_a_running_mean(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"mrtf-variant": "released", "mrtf-modules": "avgprob"})
    rule = f.strategy.refiner.rule
    rule.loss, rule.past_losses = 0.0, [np.log(10) / 3]  # u = 0.25 + 0.75/3 = 0.5
    first = rule.remembered(torch.tensor([[0.9, 0.1]] + [[0.0, 0.0]] * 8).T.expand(2, 9))
    assert first.shape == (2, 9)
    rule.memory = torch.full((1, 10), 0.1)
    second = rule.remembered(torch.eye(10)[:1])
    expected = torch.full((1, 10), 0.05)
    expected[0, 0] = 0.55
    torch.testing.assert_close(second, expected, atol=1e-5, rtol=0)


def test_useless_clusters_are_skipped_and_counted(tmp_path: Path) -> None:
    f = federation(tmp_path)
    rule = f.strategy.refiner.rule
    target = torch.eye(10)
    same = torch.ones(10, 4) + 1e-6 * torch.randn(10, 4)
    rule.reading = type(rule.reading)(**{**vars(rule.reading), "centre": False})
    assert rule.cluster(target, same) is target
    assert rule.metrics["refinement/clr_skipped"] == 1
    apart = rule.cluster(target, torch.eye(10))
    assert rule.metrics["refinement/clr_skipped"] == 0
    assert apart is not target


def test_clusters_start_when_they_are_told_to(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"mrtf-clr-start": 3}).run()
    assert ["refinement/clr_skipped" in row for row in lines(f)] == [False, False, True]


# ---- what is sent, kept, reported


def test_metrics_of_a_round(tmp_path: Path) -> None:
    sent, kept = (
        federation(tmp_path / str(b), **{"mrtf-distribute": b}).run() for b in (True, False)
    )
    for row in lines(sent):
        assert row["server/test_accuracy"] == row["refined/test_accuracy"]
        assert 0.25 <= row["refinement/u"] <= 1
        assert 0 < row["refinement/entropy"] < np.log(10)
        assert 0 <= row["refinement/chosen_share_min"] <= 0.25 <= row["refinement/chosen_share_max"]
        assert 1 <= row["refinement/chosen_clients"] <= 4
        assert row["seconds/refinement"] > 0
    for row in lines(kept):
        assert row["server/test_accuracy"] == pytest.approx(row["averaged/test_accuracy"])
    assert any(r["refined/test_accuracy"] != r["server/test_accuracy"] for r in lines(kept))


@pytest.mark.parametrize("keys", [{"mrtf-variant": "released"}, {"mrtf-distribute": False}])
def test_what_crosses_rounds_is_in_the_checkpoint(tmp_path: Path, keys: dict[str, Any]) -> None:
    """The refined model of a resumed run, which the global model does not show."""
    base = {**keys, "num-server-rounds": 4, "checkpoint-every": 2}
    whole = federation(tmp_path / "whole", **base).run()
    half = federation(tmp_path / "half", **base)
    half.server.fit(2, None)
    status = half.folder / "status.json"
    status.write_text(status.read_text().replace("completed", "stopped"))
    resumed = federation(tmp_path / "half", **base, resume=True).run()
    assert digest(resumed.strategy.refiner.refined) == digest(whole.strategy.refiner.refined)
    assert [r["ensemble/test_accuracy"] for r in lines(resumed)] == [
        r["ensemble/test_accuracy"] for r in lines(whole)
    ]


def test_another_attempt_forgets_the_first_ones_teachers(tmp_path: Path) -> None:
    class Flaky(LocalProxy):
        def fit(self, ins: Any, timeout: Any, group_id: Any) -> Any:
            if self.partition != 0 and not any(c["round"] == 2 for c in self.calls):
                self.calls.append(dict(ins.config))
                if ins.config["round"] == 2:
                    raise MemoryError("once")
            return super().fit(ins, timeout, group_id)

    f = Federation(tmp_path, 4, Flaky, **QUICK)
    counts: list[int] = []
    original = f.strategy.refiner.refine

    def counting(*args: Any) -> Any:
        counts.append(len(f.strategy.refiner.logits))
        return original(*args)

    f.strategy.refiner.refine = counting
    f.run()
    assert counts == [4, 4, 4]
    assert digest(f.model) == final(tmp_path / "plain")


def test_half_floats_are_kept_where_asked(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"mrtf-logits": "float16"})
    f.strategy.refiner.clear(f.strategy.evaluator.data)
    f.strategy.refiner.learn(f.model, 1.0)
    assert f.strategy.refiner.logits[0].dtype == torch.float16
    assert f.run().strategy.refiner.refined is f.model


def test_stock_server_ends_in_the_same_model(tmp_path: Path) -> None:
    from flwr.server import Server

    f = federation(tmp_path / "a")
    Server(client_manager=f.manager, strategy=f.strategy).fit(3, None)
    assert digest(f.model) == final(tmp_path / "b")


# ---- the set


def test_pool_as_the_set(tmp_path: Path) -> None:
    f = federation(tmp_path, strategy="hfmds-mrtf", **{"transductive-set": "pool"}).run()
    first, second, _ = lines(f)
    assert "refinement/u" not in first  # no pool yet
    assert 0 <= second["ensemble/pool_accuracy"] <= 1
    assert "ensemble/test_accuracy" not in second
    assert second["refined/test_accuracy"] == second["server/test_accuracy"]


def test_a_pool_that_never_comes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='transductive-set = "pool": mrtf makes no synthetic'):
        federation(tmp_path, **{"transductive-set": "pool"})
    assert not (tmp_path / "run").exists()


def test_a_method_and_a_key_that_disagree_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="refinement = 'feddf': this strategy brings 'mrtf'"):
        federation(tmp_path, refinement="feddf")


def write_images(folder: Path, shape: tuple[int, ...], mode: str) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for c in range(10):
            (folder / split / str(c)).mkdir(parents=True)
            for i in range(2):
                pixels = rng.integers(0, 256, shape, dtype=np.uint8)
                Image.fromarray(pixels, mode).save(folder / split / str(c) / f"{i}.png")


def test_another_domain_is_adapted_and_evaluated(tmp_path: Path) -> None:
    """Colour images of 32 x 32 for clients with grey ones of 8 x 8."""
    write_images(tmp_path / "mnist-m", (32, 32, 3), "RGB")
    other = {
        "transductive-dataset": "mnist-m",
        "transductive-data-dir": str(tmp_path / "mnist-m"),
        "limit-test": 0,
    }
    f = federation(tmp_path / "run", **other).run()
    assert f.strategy.evaluator.data.images.shape == (20, 1, 8, 8)
    assert lines(f)[-1]["refined/test_accuracy"] * 20 == pytest.approx(
        round(lines(f)[-1]["refined/test_accuracy"] * 20)
    )
    own = federation(tmp_path / "own", strategy="fedavg").run()
    assert final(tmp_path / "fedavg", strategy="fedavg", **other) == digest(own.model)


def test_a_domain_of_other_classes_is_refused() -> None:
    keys = {"dataset": "mnist", "transductive-dataset": "cifar100"}
    with pytest.raises(UserError, match="transductive-dataset = 'cifar100' has 100 classes"):
        build.images(config.load(config.merged(keys)), "test")


def test_a_relative_folder_of_the_domain_is_refused() -> None:
    keys = {"transductive-dataset": "mnist-m", "transductive-data-dir": "here"}
    with pytest.raises(UserError, match="transductive-data-dir = 'here' is relative"):
        build.images(config.load(config.merged(keys)), "test")

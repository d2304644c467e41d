"""Configuration: every conf parses, every key is checked, mistakes are named."""

import math
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from fedsyn_flwr import config, preflight, registry
from fedsyn_flwr.config import APP_DIR, kebab
from fedsyn_flwr.data import DATASETS
from fedsyn_flwr.data.partition import SCHEMES
from fedsyn_flwr.errors import UserError

CONFS = sorted((APP_DIR / "conf").glob("*.toml"))


@pytest.mark.parametrize("path", CONFS, ids=lambda p: p.stem)
def test_every_conf_parses_and_says_what_it_is(path: Path) -> None:
    keys = config.read_conf(path)
    settings = config.load(config.merged(keys))
    assert path.read_text().startswith("# ")
    assert settings.data.dataset in DATASETS
    assert settings.federation.num_clients >= 1
    # a conf of a dataset that is split in the name is split like that
    name = path.stem
    if "dir0" in name:
        assert f"dir{settings.data.dirichlet_alpha:g}" in name
    if "classes" in name:
        assert f"{settings.data.classes_per_client}classes" in name
        assert settings.data.partition == "classes"


def test_the_conf_files_that_are_promised_are_there() -> None:
    names = {p.stem for p in CONFS}
    assert {"digits-hfmds", "digits-fedavg"} <= names
    assert {f"digits-{m}" for m in registry.METHODS} - {"digits-fmds"} <= names
    assert {f"mnist-small-{m}" for m in ("fedavg", "fmds", "hfmds")} <= names
    for d, splits in (("cifar10", "2classes"), ("cifar100", "10classes")):
        assert {f"{d}-{s}-hfmds" for s in ("dir0.01", "dir0.05", splits)} <= names


def test_default_is_digits_hfmds() -> None:
    conf = config.read_conf(APP_DIR / "conf" / "digits-hfmds.toml")
    differing = {k: v for k, v in conf.items() if config.defaults()[k] != v}
    assert differing == {"num-clients": 10}


def test_every_key_has_a_class_and_every_field_a_key() -> None:
    concerns = (*config.CONCERNS.values(), *registry.param_classes())
    owners = {base for c in concerns for base in c.__mro__}
    declared = [kebab(name) for c in owners for name in vars(c).get("__annotations__", {})]
    assert sorted(declared) == sorted(config.defaults())
    assert set(declared) == {kebab(f.name) for c in concerns for f in fields(c)}


def test_every_partition_is_a_scheme_that_can_be_drawn() -> None:
    allowed = get_args(get_type_hints(config.DataConfig)["partition"])
    assert allowed == (*SCHEMES, "own")


def test_every_key_has_a_comment() -> None:
    """Each key of pyproject.toml is on a line of its own with a default of the right type."""
    text = (APP_DIR / "pyproject.toml").read_text()
    section = text.split("[tool.flwr.app.config]")[1].split("[tool.ruff]")[0]
    lines = [x for x in section.splitlines() if "=" in x.split("#")[0]]
    assert len(lines) == len(tomllib.loads(text)["tool"]["flwr"]["app"]["config"])
    assert [x for x in lines if "#" not in x] == []


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("learning-rate", "abc", "learning-rate = 'abc': must be a valid number"),
        ("learning-rate", math.nan, "must be a finite number"),
        ("dirichlet-alpha", -1, "dirichlet-alpha = -1: must be greater than 0"),
        ("partition", "foo", "allowed are 'iid', 'dirichlet', 'classes', 'natural', 'shards', "),
        ("fraction-fit", 1.2, "must be less than or equal to 1"),
        ("hfmds-alpha", 2, "hfmds-alpha = 2"),
        ("synthesis-loss", "mse", "allowed are 'ce', 'ce+fm' or 'ce+hfm'"),
        ("fedprox-mu", -1, "fedprox-mu = -1: must be greater than or equal to 0"),
        ("moon-temperature", 0, "moon-temperature = 0: must be greater than 0"),
        ("fedgen-decay", 0, "fedgen-decay = 0: must be greater than 0"),
        ("server-optimizer", "sgd", "allowed are 'none', 'avgm', 'adagrad', 'adam' or 'yogi'"),
        ("server-beta2", 1, "server-beta2 = 1: must be less than 1"),
        ("device", "tpu", "device = 'tpu'"),
        ("channels-last", "maybe", "channels-last = 'maybe'"),
        ("strategy", "x", "strategy = 'x': allowed are fedavg, "),
    ],
)
def test_wrong_values_are_named(key: str, value: object, complaint: str) -> None:
    with pytest.raises(UserError) as error:
        config.load(config.merged({"strategy": "fedavg"}, {key: value}))
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_numbers_are_cast() -> None:
    settings = config.load(config.merged({"learning-rate": 1, "hfmds-mu": 1}))
    assert isinstance(settings.train.learning_rate, float)
    assert isinstance(settings.params.hfmds_mu, float)


def test_settings_cannot_be_changed() -> None:
    settings = config.load(config.merged())
    with pytest.raises(AttributeError):
        settings.train.learning_rate = 3.0  # type: ignore[misc]


def test_relative_paths_are_refused_by_the_app() -> None:
    settings = config.load(config.merged({"dataset": "mnist", "data-dir": "some/folder"}))
    with pytest.raises(UserError, match="relative: give an absolute path"):
        preflight.check(settings, 10)

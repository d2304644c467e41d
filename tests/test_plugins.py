"""Methods, models and datasets that others bring: found, checked, run; broken ones are one line."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedsyn_flwr import config, plugins, registry
from fedsyn_flwr.cli import lists
from fedsyn_flwr.data import get_spec
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.models import build_model
from fedsyn_flwr.report.files import read_config, read_rows
from fedsyn_flwr.report.measures import final
from fedsyn_flwr.server.method_defaults import unused
from fedsyn_flwr.simulation.grid_arguments import of_method

MODULE = """
from pydantic.dataclasses import dataclass
from fedsyn_flwr.client.numpy_client import FedClient
from fedsyn_flwr.config import SETTINGS, Positive
from fedsyn_flwr.data import get_spec
from fedsyn_flwr.models import MODELS
from fedsyn_flwr.registry import Method

@dataclass(frozen=True, config=SETTINGS)
class Params:
    shrink_by: Positive = 0.5
    shrink_how: str = "plainly"

class Client(FedClient):
    def after_backward(self):
        self.flat.grad *= self.params.shrink_by

METHOD = Method("strategies.fedavg:FedAvg", "NAME:Client", "NAME:Params", "smaller gradients")
BARE = Method("strategies.fedavg:FedAvg", "NAME:Client", "NAME:Bare", "keys without settings")
LOST = Method("strategies.fedavg:FedAvg", "NAME:Missing", None, "no client")
MODEL, DATA = MODELS["mlp"], get_spec("digits")

class Bare:
    pass
"""


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """An installed package, as pip leaves one: its module, and what its metadata announces."""
    module = f"shrinking_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{module}.py").write_text(MODULE.replace("NAME", module))
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('two\\nlines')")
    told = tmp_path / "shrinking-1.5.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: shrinking\nVersion: 1.5\n")
    (told / "entry_points.txt").write_text(
        f"[fedsyn.methods]\nshrink = {module}:METHOD\nbroken = broken_plugin:METHOD\n"
        f"fedavg = {module}:METHOD\n"
        f"[fedsyn.models]\nmine = {module}:MODEL\n[fedsyn.datasets]\nours = {module}:DATA\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.attribute.cache_clear()
    registry._resolve.cache_clear()
    return module


def load(**keys: Any) -> config.Config:
    return config.load(config.merged({k.replace("_", "-"): v for k, v in keys.items()}))


@pytest.mark.parametrize("form", ["shrink", "{}:METHOD"])
def test_own_keys_have_defaults_types_and_ranges(name: str, form: str) -> None:
    strategy = form.format(name)
    assert load(strategy=strategy).params.shrink_by == 0.5
    given = load(strategy=strategy, shrink_by=1)
    assert given.flat()["shrink-by"] == 1
    assert isinstance(given.params.shrink_by, float)
    with pytest.raises(UserError, match="shrink-by = 0: must be greater than 0"):
        load(strategy=strategy, shrink_by=0)
    with pytest.raises(UserError, match="unknown key 'shrink-bye': did you mean shrink-by"):
        load(strategy=strategy, shrink_bye=1)


def test_flower_gets_declared_keys_only_and_nothing_is_lost(name: str) -> None:
    keys = config.merged({"strategy": "shrink", "shrink-by": 1e-7, "shrink-how": 'a "b", {c} # d'})
    sent = config.packed(keys)
    assert sent.keys() == config.defaults().keys()
    assert config.load(sent) == config.load(keys)
    assert config.load(sent).params.shrink_how == 'a "b", {c} # d'
    typed = config.load({**config.defaults(), "strategy": "shrink", "method-keys": "shrink-by = 2"})
    assert typed.params.shrink_by == 2
    with pytest.raises(UserError, match="method-keys = 'shrink-by': must be key = value"):
        load(strategy="shrink", method_keys="shrink-by")


def test_another_methods_run_makes_no_use_of_them(name: str) -> None:
    settings = load(strategy="fedavg", shrink_by=0.1)
    assert unused(settings) == ["shrink-by = 0.1 (strategy = fedavg)"]
    assert unused(load(strategy="shrink", shrink_by=0.1)) == []


def test_a_grid_tells_a_plugin_from_its_key() -> None:
    assert of_method("a.b:METHOD:shrink-by=1") == ("a.b:METHOD", "shrink-by=1")
    assert of_method("scaffold:momentum=0") == ("scaffold", "momentum=0")
    assert of_method("data-dir=a:b=c") == ("", "data-dir=a:b=c")


def test_models_and_datasets(name: str) -> None:
    built = build_model("mine", in_shape=(1, 8, 8), num_classes=10, seed=0)
    assert type(built).__name__ == "Mlp"
    assert get_spec("ours") == get_spec(f"{name}:DATA") == get_spec("digits")


def test_lists_name_the_origin_and_survive_a_broken_one(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lists.methods()
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "built in" in lines["hfmds"]
    assert "shrinking 1.5" in lines["shrink"]
    assert "smaller gradients" in lines["shrink"]
    assert lines["broken"].endswith(
        "broken: broken_plugin:METHOD cannot be loaded: RuntimeError: two lines"
    )
    assert "hidden by the built-in" in lines["fedavg"]
    lists.models()
    lists.datasets()
    assert capsys.readouterr().out.count("shrinking 1.5") == 2


@pytest.mark.parametrize(
    ("strategy", "complaint"),
    [
        ("broken", "broken_plugin:METHOD cannot be loaded: RuntimeError: two lines"),
        ("no_such_module:METHOD", "ModuleNotFoundError"),
        ("{}:OTHER", "has no attribute 'OTHER'"),
        ("{}:MODEL", "is a ModelSpec: it must be a Method"),
        ("{}:LOST", "has no attribute 'Missing'"),
        ("{}:BARE", "Bare must be a pydantic.dataclasses.dataclass"),
        ("{}:", "must be module:ATTRIBUTE"),
        ("shrnk", "did you mean shrink?"),
        ("hfmd", "did you mean hfmds?"),
    ],
)
def test_what_is_wrong_is_one_line(name: str, strategy: str, complaint: str) -> None:
    with pytest.raises(UserError) as error:
        load(strategy=strategy.format(name))
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)
    assert load(strategy="fedavg").params is None


@pytest.mark.sim
def test_a_module_beside_the_caller_runs_on_ray(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(MODULE.replace("NAME", "beside"))
    (tmp_path / "random.py").write_text("raise RuntimeError('hides the standard library')")
    words = ["-c", "strategy=beside:METHOD", "-c", "num-server-rounds=1", "--clients", "2"]
    env = {k: v for k, v in os.environ.items() if k != plugins.PATH}
    for rate, run in (("1", "whole"), ("1e-9", "none")):
        line = [*words, "-c", f"shrink-by={rate}", "--name", run, "--results-dir", "results"]
        command = [str(Path(sys.executable).with_name("fedsyn")), "run", "digits-fedavg", *line]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert read_config(tmp_path / "results/none")["shrink-by"] == 1e-9
    whole, none = (final(read_rows(tmp_path / "results" / run)) for run in ("whole", "none"))
    assert whole is not None
    assert none is not None
    assert whole > none + 0.1  # without gradients nothing is learnt

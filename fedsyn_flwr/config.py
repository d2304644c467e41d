"""The run configuration: typed, range-checked, one line per mistake.

``[tool.flwr.app.config]`` of pyproject.toml names every key with its default and a comment; the
classes here give types and allowed values, and nothing else knows either. A method with keys of
its own declares such a class beside its client and names it in the registry.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedsyn_flwr.errors import UserError

Scalar = str | int | float | bool
RunConfig = Mapping[str, Scalar]
T = TypeVar("T")

# Keys that change no result: a run and its continuation may differ in them.
FREE_KEYS = {"results-dir", "run-name", "state-dir", "resume", "checkpoint-every", "transport"}

APP_DIR = Path(__file__).resolve().parents[1]


def kebab(name: str) -> str:
    """``local_epochs`` → ``local-epochs``, the spelling in TOML."""
    return name.replace("_", "-")


def as_name(text: str) -> str:
    """Text as a run's name; letters that such a name cannot have become ``_``."""
    return re.sub(r"[^\w.+=-]", "_", text)


SETTINGS = ConfigDict(
    alias_generator=kebab, populate_by_name=True, allow_inf_nan=False, extra="ignore"
)

Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, config=SETTINGS)
class DataConfig:
    """Which images, and how they are split over the clients."""

    dataset: str
    data_dir: str
    limit_train: CountOrZero
    limit_test: CountOrZero
    image_size: CountOrZero
    image_channels: Literal[0, 1, 3]
    image_mean: str
    image_std: str
    image_column: str
    label_column: str
    test_fraction: Annotated[float, Field(gt=0, lt=1)]
    unseen_test_classes: bool
    augment: Literal["auto", "none", "crop-flip"]
    labels: str
    partition: Literal[
        "iid",
        "dirichlet",
        "classes",
        "natural",
        "shards",
        "linear",
        "square",
        "exponential",
        "dirichlet-balanced",
        "pathological",
        "csv",
        "own",
    ]
    dirichlet_alpha: Positive
    classes_per_client: Count
    shards_per_client: Count
    natural_column: str
    partition_file: str
    feature_skew: Literal["none", "noise", "rotation", "colour"]
    feature_skew_strength: Annotated[float, Field(gt=0, le=1)]
    transductive_dataset: str
    transductive_data_dir: str


@dataclass(frozen=True, config=SETTINGS)
class ModelConfig:
    """Which network."""

    model: str
    norm: Literal["gn", "bn", "none"]
    model_width: Annotated[float, Field(gt=0, le=16)]
    projection_dim: CountOrZero


@dataclass(frozen=True, config=SETTINGS)
class FederationConfig:
    """Who takes part, for how long, and what happens when someone fails."""

    strategy: str
    method_keys: str
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    num_clients: CountOrZero
    num_server_rounds: Count
    fraction_fit: Annotated[float, Field(gt=0, le=1)]
    weighting: Literal["examples", "uniform"]
    max_client_share: Annotated[float, Field(gt=0, le=1)]
    min_success_fraction: Share
    node_timeout: Positive
    round_timeout: Positive
    transport: Literal["auto", "shared", "inline"]


@dataclass(frozen=True, config=SETTINGS)
class TrainConfig:
    """Local training, the same for every method."""

    local_epochs: Count
    batch_size: Count
    learning_rate: Positive
    momentum: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: NonNegative
    clip_norm: NonNegative
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")]
    threads_per_client: CountOrZero
    channels_last: bool
    amp: bool
    cuda_graphs: bool


@dataclass(frozen=True, config=SETTINGS)
class ServerOptimizerConfig:
    """What the server does with the average; the symbols are those of `server_optimizer`.

    ``server_lr`` = 0 stands for the optimiser's own default.
    """

    server_optimizer: Literal["none", "avgm", "adagrad", "adam", "yogi"]
    server_lr: NonNegative
    server_beta1: Annotated[float, Field(ge=0, lt=1)]
    server_beta2: Annotated[float, Field(ge=0, lt=1)]
    server_tau: Positive


@dataclass(frozen=True, config=SETTINGS)
class RefinementConfig:
    """What the server distils the average to; the symbols are those of `distillation`.

    ``mrtf_modules`` = "none" regresses to the method without refinement, "avglogi" to FedDF.
    ``mrtf_u_min`` = 1 trusts the clients alone, whatever their loss.
    """

    refinement: Literal["none", "feddf", "mrtf"]
    transductive_set: Literal["test", "pool"]
    mrtf_modules: Literal["none", "avglogi", "avgprob", "st", "st+rd", "st+rd+clr"]
    mrtf_variant: Literal["paper", "released"]
    mrtf_tau: Positive
    mrtf_u_min: Share
    mrtf_clr_start: Count
    mrtf_clr_center: bool
    mrtf_distribute: bool
    mrtf_steps: CountOrZero
    mrtf_lr: Positive
    mrtf_weight_decay: NonNegative
    mrtf_batch: Count
    mrtf_bn: Literal["train", "eval"]
    mrtf_logits: Literal["float32", "float16"]
    server_threads: CountOrZero


@dataclass(frozen=True, config=SETTINGS)
class PrivacyConfig:
    """Noise on what a client sends; both 0 is off, see `dp`.

    ``dp_clip`` = 0 does not clip, as the MrTF paper's code: noise without a guarantee.
    """

    dp_clip: NonNegative
    dp_sigma: NonNegative
    dp_delta: Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True, config=SETTINGS)
class EvaluationConfig:
    """Who measures the model beside the server, and on what.

    ``client_test_fraction`` = 0 with ``server_data`` = "test" is evaluation by the server alone.
    """

    client_test_fraction: Annotated[float, Field(ge=0, lt=1)]
    fraction_evaluate: Share
    min_evaluate_clients: Count
    server_data: Literal["test", "none"]

    @property
    def federated(self) -> bool:
        """Whether clients have test images, and are asked."""
        held_out = self.client_test_fraction > 0 or self.server_data == "none"
        return held_out and self.fraction_evaluate > 0


@dataclass(frozen=True, config=SETTINGS)
class OutputConfig:
    """What is measured and where it is kept."""

    evaluate_every: Count
    eval_batch_size: Count
    checkpoint_every: CountOrZero
    resume: bool
    results_dir: str
    run_name: Annotated[str, Field(pattern=r"^[\w.+=-]*$")]
    state_dir: str


# Field of `Config` → its class.
CONCERNS: dict[str, Any] = {
    "data": DataConfig,
    "model": ModelConfig,
    "federation": FederationConfig,
    "train": TrainConfig,
    "server": ServerOptimizerConfig,
    "refinement": RefinementConfig,
    "privacy": PrivacyConfig,
    "evaluation": EvaluationConfig,
    "output": OutputConfig,
}


@dataclass(frozen=True, config=SETTINGS)
class Config:
    """A whole run: every key of every concern, checked.

    ``params`` holds the chosen method's own keys as an instance of the class it declares.
    """

    data: DataConfig
    model: ModelConfig
    federation: FederationConfig
    train: TrainConfig
    server: ServerOptimizerConfig
    refinement: RefinementConfig
    privacy: PrivacyConfig
    evaluation: EvaluationConfig
    output: OutputConfig
    params: Any
    raw: dict[str, Any]

    def flat(self) -> dict[str, Any]:
        """Every key with its resolved value, in TOML spelling, defaults included."""
        concerns = [getattr(self, name) for name in CONCERNS]
        resolved = {kebab(k): v for part in concerns for k, v in asdict(part).items()}
        return {**self.raw, **resolved}


@lru_cache
def defaults() -> dict[str, Scalar]:
    """``[tool.flwr.app.config]`` of the app's pyproject.toml."""
    path = APP_DIR / "pyproject.toml"
    if not path.is_file():
        raise UserError(
            f"{path} is missing: install the app from its folder with `pip install -e .`"
        )
    project = tomllib.loads(path.read_text(encoding="utf-8"))
    return dict(project["tool"]["flwr"]["app"]["config"])


def read_conf(path: Path) -> dict[str, Scalar]:
    """The keys of a run-config TOML file (flat, kebab-case)."""
    try:
        keys = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"conf file {path} does not exist: see conf/ for those there are") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"conf file {path} cannot be read: {error}") from None
    for key, value in keys.items():
        if not isinstance(value, Scalar):
            raise UserError(f"conf file {path}: {key} must be a single value, not {value!r}")
    return keys


def plugin_keys(strategy: str) -> dict[str, Scalar]:
    """Own keys of a method that is not built in, with the defaults of its class."""
    from fedsyn_flwr import registry

    return {kebab(name): value for name, value in registry.own_defaults(strategy).items()}


def packed(run_config: RunConfig) -> dict[str, Scalar]:
    """For Flower, which refuses keys that pyproject.toml lacks: those go into ``method-keys``."""
    declared = {key: value for key, value in run_config.items() if key in defaults()}
    own = {key: value for key, value in run_config.items() if key not in declared}
    if own:
        declared["method-keys"] = ", ".join(f"{k} = {json.dumps(v)}" for k, v in own.items())
    return declared


def unpacked(run_config: RunConfig) -> dict[str, Scalar]:
    """The inverse of `packed`; own keys that are given nowhere have their class's defaults.

    Raises
    ------
    UserError
        If ``method-keys`` is not ``key = value, …``, or the strategy is unknown.
    """
    text = str(run_config.get("method-keys", ""))
    try:
        given = tomllib.loads(f"keys = {{ {text} }}")["keys"]
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"method-keys = {text!r}: must be key = value, …: {error}") from None
    for key, value in given.items():
        if not isinstance(value, Scalar):
            raise UserError(f"method-keys: {key} must be a single value, not {value!r}")
    own = plugin_keys(str(run_config.get("strategy", defaults()["strategy"])))
    return {**own, **run_config, **given, **({"method-keys": ""} if text else {})}


def check_keys(keys: Iterable[str], own: Iterable[str] = ()) -> None:
    """Refuse keys that neither ``[tool.flwr.app.config]`` nor a plug-in has.

    ``own`` are the chosen plug-in's; those of other installed ones pass like any method's.

    Raises
    ------
    UserError
        Naming the key and the nearest known one.
    """
    from fedsyn_flwr import registry

    known = {*defaults(), *own}
    unknown = [key for key in keys if key not in known]
    if unknown:
        known |= {kebab(name) for name in registry.installed_defaults()}
    for key in unknown:
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "see [tool.flwr.app.config]"
            raise UserError(f"unknown key {key!r}: {hint}")


def parse(cls: type[T], run_config: RunConfig) -> T:
    """Build one concern's dataclass from the keys it names.

    Raises
    ------
    UserError
        Naming the key, the value and what is allowed.
    """
    wanted = [kebab(f.name) for f in fields(cls)]  # type: ignore[arg-type]
    missing = [key for key in wanted if key not in run_config]
    if missing:
        raise UserError(f"key {missing[0]!r} is missing from the run config")
    try:
        return TypeAdapter(cls).validate_python({key: run_config[key] for key in wanted})
    except ValidationError as error:
        first = error.errors()[0]
        key = kebab(str(first["loc"][0]))
        raise UserError(f"{key} = {run_config[key]!r}: {_allowed(first)}") from None


def _allowed(error: Any) -> str:
    """Pydantic's complaint in our words: what is allowed."""
    context = error.get("ctx", {})
    kind = error["type"]
    if kind == "literal_error":
        return f"allowed are {context['expected']}"
    if kind == "string_pattern_mismatch":
        return f"must match {context['pattern']}"
    return str(error["msg"]).replace("Input should be", "must be")


def load(run_config: RunConfig) -> Config:
    """Check a complete run config (defaults already merged in).

    Every registered method's keys are checked, not only the chosen one's.

    Raises
    ------
    UserError
        One line for the first mistake found.
    """
    from fedsyn_flwr import registry

    run_config = unpacked(run_config)
    strategy = parse(FederationConfig, run_config).strategy
    check_keys(run_config, plugin_keys(strategy))
    chosen = registry.method(strategy).params
    classes = [*registry.param_classes(), *([chosen] if chosen else [])]
    all_params = {cls: parse(cls, run_config) for cls in classes}
    return Config(
        **{name: parse(concern, run_config) for name, concern in CONCERNS.items()},
        params=all_params.get(chosen),
        raw=dict(run_config),
    )


def merged(*overrides: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Defaults with overrides on top, later ones win; unknown keys are refused."""
    config = dict(defaults())
    for override in overrides:
        config.update(override)
    config = unpacked(config)
    check_keys(config, plugin_keys(str(config["strategy"])))
    return config

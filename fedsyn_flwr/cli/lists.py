"""``fedsyn methods``, ``datasets`` and ``models``: what there is, by name."""

from collections.abc import Callable, Mapping

BUILT_IN = "built in"


def methods() -> None:
    """List the methods, for the key `strategy`."""
    from fedsyn_flwr.registry import GROUP, METHODS, method, own_defaults

    def loaded(name: str) -> str:
        own_defaults(name)
        return method(name).summary

    _list({name: known.summary for name, known in METHODS.items()}, GROUP, loaded)


def datasets() -> None:
    """List the datasets, for the key `dataset`."""
    from fedsyn_flwr.data import get_spec
    from fedsyn_flwr.data.sources import GROUP
    from fedsyn_flwr.data.specs import DATASETS

    own = {
        "folder": "your own images in data-dir: folders by class, parquet, or a CSV of files",
        "hf:owner/name": "any image set of the Hugging Face Hub",
    }
    known = {name: spec.summary for name, spec in DATASETS.items()} | own
    _list(known, GROUP, lambda name: get_spec(name).summary)


def models() -> None:
    """List the models, for the key `model`."""
    from fedsyn_flwr import plugins
    from fedsyn_flwr.models import MODELS, ModelSpec
    from fedsyn_flwr.models.registry import GROUP

    known = {name: spec.summary for name, spec in MODELS.items()}
    _list(known, GROUP, lambda name: str(plugins.load(GROUP, name, ModelSpec).summary))


def _list(ours: Mapping[str, str], group: str, loaded: Callable[[str], str]) -> None:
    """Names, origins and summaries, aligned; of a broken plug-in, what is wrong with it."""
    from fedsyn_flwr.errors import UserError
    from fedsyn_flwr.plugins import installed, origin

    rows = [(name, BUILT_IN, summary) for name, summary in ours.items()]
    for name, point in installed(group).items():
        if name in ours:
            rows.append((name, origin(point), "hidden by the built-in one of that name"))
            continue
        try:
            rows.append((name, origin(point), loaded(name)))
        except UserError as error:
            rows.append((name, origin(point), f"broken: {error}"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, source, summary in rows:
        print(f"{name:<{widths[0]}}  {source:<{widths[1]}}  {summary}")

"""``fedsyn methods``, ``datasets`` and ``models``: what there is, by name."""


def methods() -> None:
    """List the methods, for the key `strategy`."""
    from fedsyn_flwr.registry import METHODS

    _list({name: method.summary for name, method in METHODS.items()})


def datasets() -> None:
    """List the datasets, for the key `dataset`."""
    from fedsyn_flwr.data.specs import DATASETS

    own = {
        "folder": "your own images in data-dir: folders by class, parquet, or a CSV of files",
        "hf:owner/name": "any image set of the Hugging Face Hub",
    }
    _list({name: spec.summary for name, spec in DATASETS.items()} | own)


def models() -> None:
    """List the models, for the key `model`."""
    from fedsyn_flwr.models import MODELS

    _list({name: spec.summary for name, spec in MODELS.items()})


def _list(entries: dict[str, str]) -> None:
    """Names and summaries, aligned."""
    width = max(map(len, entries))
    for name, summary in entries.items():
        print(f"{name:<{width}}  {summary}")

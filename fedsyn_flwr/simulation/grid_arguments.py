"""What the arguments of ``fedsyn compare`` say: methods, seeds, values, and whose key it is."""

from collections.abc import Sequence

from fedsyn_flwr.config import Scalar
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.registry import METHODS
from fedsyn_flwr.simulation.resolve import parse_override


def of_method(override: str) -> tuple[str, str]:
    """``scaffold:momentum=0`` → (scaffold, momentum=0); no method, an empty name."""
    head, equals, value = override.partition("=")
    method, colon, key = head.rpartition(":")  # a plug-in's name has a colon of its own
    return (method.strip(), f"{key}{equals}{value}") if colon else ("", override)


def own_overrides(overrides: Sequence[str], method: str) -> list[str]:
    """The ``key=value`` of those given for this method."""
    return [text for name, text in map(of_method, overrides) if name == method]


def names(text: str | None, known: Sequence[str] = tuple(METHODS)) -> list[str]:
    """``a,b`` → names, each once; ``all`` → all that are known."""
    wanted = [part.strip() for part in (text or "").split(",") if part.strip()]
    return list(known) if wanted == ["all"] else list(dict.fromkeys(wanted))


def seeds(text: str) -> list[int]:
    """``0,1,2`` → numbers, each once."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds {text!r}: must be whole numbers, e.g. 0,1,2") from None
    return list(dict.fromkeys(found))


def value_lists(texts: Sequence[str]) -> dict[str, list[Scalar]]:
    """``key=a,b`` of each --set → key and its values."""
    lists: dict[str, list[Scalar]] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not key or not equals or "" in [value.strip() for value in values.split(",")]:
            raise UserError(f"--set {text!r}: must be key=a,b,…, e.g. learning-rate=0.1,0.01")
        if key in lists:
            raise UserError(f"--set {key} is given twice: list all its values in one")
        parsed = [parse_override(f"{key}={value}")[1] for value in values.split(",")]
        lists[key] = list(dict.fromkeys(parsed))
    return lists

"""Find out from Flower's log why a run ended early."""

import re
from pathlib import Path

from fedsyn_flwr.files import ANSI

EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt|Exit)): *(.*)$")
BOX = re.compile(r"^[│|] ?(.*?) *[│|]$")
LOGGED = re.compile(r"^ERROR\s*:\s*(.*)$")
EMPTY_PHRASES = ("Simulation raised an exception", "ServerApp raised an exception", "Exit Code:")


def error_lines(text: str, limit: int = 3) -> list[str]:
    """The last distinct errors of a log, oldest first.

    Parameters
    ----------
    text : str
        Of flwr.log: tracebacks, ``ERROR :`` lines and the framed messages of ``flwr run``.
    limit : int
        How many at most.
    """
    found: dict[str, None] = {}
    for error in _errors(ANSI.sub("", text).splitlines()):
        found.pop(error, None)
        found[error] = None
    return list(found)[-limit:]


def _errors(lines: list[str]) -> list[str]:
    errors: list[str] = []
    box: list[str] = []
    for line in lines:
        if match := BOX.match(line):
            box.append(match[1].strip())
        elif box:
            errors.append(" ".join(box))
            box = []
        if match := EXCEPTION.match(line):
            errors.append(match[2] if match[1] == "UserError" else f"{match[1]}: {match[2]}")
        elif (match := LOGGED.match(line)) and match[1] and not match[1].startswith(EMPTY_PHRASES):
            errors.append(match[1].removeprefix("error: "))
    return [*errors, " ".join(box)] if box else errors


def read_errors(log: Path, start: int = 0) -> list[str]:
    """``error_lines`` of a file that may not be there, from byte ``start`` on."""
    if not log.is_file():
        return []
    return error_lines(log.read_bytes()[start:].decode("utf-8", errors="replace"))

"""A partition of one's own: a CSV file that says which client has which row."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsyn_flwr.errors import UserError


def read_clients(path: Path, num_rows: int, num_clients: int) -> NDArray[np.int64]:
    """The client of every training row.

    Parameters
    ----------
    path : Path
        CSV, UTF-8, with a header. Column ``client`` in the order of the rows, or beside it ``row``
        in any order; both count from 0. Other columns are passed over.
    num_rows : int
        N; each row must be there once.
    num_clients : int
        K; clients are 0..K-1. One that is never named has no rows.

    Returns
    -------
    int64 (N,)
        In [0, K).

    Raises
    ------
    UserError
        For the first line that is wrong, with its number, and for a row that is missing.
    """
    owner = np.full(num_rows, -1, dtype=np.int64)
    for line, row, client in _lines(path):
        where = f"partition-file {path}, line {line}"
        if not 0 <= row < num_rows:
            raise UserError(f"{where}: row {row} is not there; rows are 0 to {num_rows - 1}")
        if not 0 <= client < num_clients:
            raise UserError(
                f"{where}: client {client} is not there; clients are 0 to {num_clients - 1}"
            )
        if owner[row] >= 0:
            raise UserError(f"{where}: row {row} was given to client {owner[row]} already")
        owner[row] = client
    missing = np.flatnonzero(owner < 0)
    if len(missing):
        raise UserError(
            f"partition-file {path} gives {len(missing)} of {num_rows} rows to nobody, "
            f"the first is row {missing[0]}"
        )
    return owner


def _lines(path: Path) -> Iterator[tuple[int, int, int]]:
    """(line of the file, row, client), one after another."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            columns = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = columns
            if "client" not in columns:
                raise UserError(
                    f"partition-file {path} has the columns {', '.join(columns) or '(none)'}; "
                    "the first line must name client, or row and client"
                )
            for count, values in enumerate(reader):
                where = f"partition-file {path}, line {reader.line_num}"
                row = _number(values["row"], "row", where) if "row" in columns else count
                yield reader.line_num, row, _number(values["client"], "client", where)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"partition-file {path} cannot be read: {reason}") from None


def _number(text: str | None, column: str, where: str) -> int:
    try:
        return int(text or "")
    except ValueError:
        raise UserError(f"{where}: {column} = {text or ''!r} must be a whole number") from None

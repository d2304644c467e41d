"""A grid's results as tables: Markdown and terminal for people, CSV and JSON for programs."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fedsyn_flwr.report import measures
from fedsyn_flwr.report.aggregate import GroupRow, Record, Stat, group_rows
from fedsyn_flwr.report.progress import human_bytes

if TYPE_CHECKING:
    from rich.table import Table

NONE = "—"
UNITS = {f"privacy/psnr_{which}": "dB" for which in ("mean", "p95", "max")}


@dataclass(frozen=True)
class Origin:
    """How a table came about.

    ``versions`` are those of the packages that computed the runs.
    """

    command: str
    date: str
    hardware: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Summary:
    """All that is known of a grid.

    ``target`` is the test accuracy, in [0, 1], that is looked for in each run.
    """

    records: Sequence[Record]
    target: float
    origin: Origin

    @property
    def rows(self) -> list[GroupRow]:
        """A row per conf, method and setting."""
        return group_rows(self.records, self.target)


def cells(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of text, for whoever draws the table."""
    rows = summary.rows
    keys = list(dict.fromkeys(key for row in rows for key in row.measured))
    headers = ["conf", "method", *_setting_keys(summary.records), "n", "final accuracy"]
    headers += ["best accuracy", f"rounds to {summary.target:g}", "down", "up"]
    headers += ["s/round", "relative", "seconds"]
    headers += [f"{key} ({UNITS[key]})" if key in UNITS else key for key in keys]
    return headers, [_line(row, keys) for row in rows]


def _line(row: GroupRow, measured: Sequence[str]) -> list[str]:
    done = str(row.n) if row.n == row.seeds else f"{row.n} of {row.seeds}"
    values = [scalar(value) for _, value in row.setting]
    line = [row.conf, row.method, *values, done, plus_minus(row.final, ".4f")]
    line += [plus_minus(row.best, ".4f"), _target(row), _bytes(row.down), _bytes(row.up)]
    line += [plus_minus(row.seconds_per_round, ".2f"), _relative(row)]
    line += [plus_minus(row.seconds, ".1f")]
    return line + [_measured(row.measured.get(key)) for key in measured]


def _measured(stat: Stat | None) -> str:
    """Three significant digits of the mean, and as many decimals of the deviation."""
    size = math.floor(math.log10(abs(stat.mean))) if stat and stat.mean else 0
    return plus_minus(stat, f".{min(max(2 - size, 0), 6)}f")


def plus_minus(stat: Stat | None, form: str) -> str:
    """``0.9123 ± 0.0045``; a dash for what there is none of."""
    if stat is None:
        return NONE
    std = NONE if stat.std is None else format(stat.std, form)
    return f"{stat.mean:{form}} ± {std}"


def _target(row: GroupRow) -> str:
    if row.n == 0:
        return NONE
    mean = plus_minus(row.target, ".1f") if row.reached else NONE
    return f"{mean} ({row.reached}/{row.n})"


def _bytes(stat: Stat | None) -> str:
    return NONE if stat is None else human_bytes(stat.mean)


def _relative(row: GroupRow) -> str:
    return NONE if row.relative is None else f"×{row.relative:.2f}"


def scalar(value: Any) -> str:
    """A value as in TOML, a string without quotes: ``true``, ``0.1``, ``3``."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _setting_keys(records: Sequence[Record]) -> list[str]:
    return [key for key, _ in records[0].setting] if records else []


def markdown(summary: Summary) -> str:
    """The table, what its columns mean, what is missing from it, and how it was made."""
    headers, rows = cells(summary)
    left = 2 + len(_setting_keys(summary.records))
    rule = [":--" if i < left else "--:" for i in range(len(headers))]
    table = ["| " + " | ".join(line) + " |" for line in (headers, rule, *rows)]
    return "\n".join([*table, "", *notes(summary), "", *_made(summary.origin)]) + "\n"


def notes(summary: Summary) -> list[str]:
    """How to read the columns, and which runs are not in them."""
    lines = [
        f"Mean ± sample standard deviation over n seeds ({NONE} for one). Accuracy is the global "
        "model's on the test set.",
        f"Rounds to {summary.target:g}: over the seeds that reached that accuracy "
        "(reached / n). Bytes are totals of a run over all clients.",
        "Seconds are spent in rounds, starting the simulation not counted; `relative` is s/round "
        f"over that of {_base(summary)}.",
    ]
    missing = [record for record in summary.records if not record.completed]
    if missing:
        lines += ["", f"Not completed, and not in the table: {len(missing)}"]
        lines += ["", *(f"- {outcome(record)}" for record in missing)]
    return lines


def _base(summary: Summary) -> str:
    methods = list(dict.fromkeys(record.method for record in summary.records))
    return f"{methods[0]} with the same conf and keys" if len(methods) > 1 else "the first row"


def outcome(record: Record) -> str:
    """``name: failed after 3 rounds: reason``."""
    reason = f": {record.reason}" if record.reason else ""
    after = f" after {len(record.rows)} rounds" if record.status != "waiting" else ""
    return f"{record.name}: {record.status}{after}{reason}"


def _made(origin: Origin) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    return [
        f"- made by: `{origin.command}`",
        f"- date: {origin.date}",
        f"- machine: {origin.hardware}",
        f"- versions: {versions or NONE}",
    ]


def run_columns(record: Record, target: float) -> dict[str, Any]:
    """One run, flat; None for what it did not measure."""
    down, up = measures.traffic(record.rows)
    return {
        "run": record.name,
        "conf": record.conf,
        "method": record.method,
        **dict(record.setting),
        "seed": record.seed,
        "status": record.status,
        "reason": record.reason,
        "rounds": len(record.rows),
        "final_accuracy": measures.final(record.rows),
        "best_accuracy": measures.best(record.rows),
        "rounds_to_target": measures.rounds_to(record.rows, target),
        "bytes_down": down,
        "bytes_up": up,
        "seconds": measures.seconds(record.rows),
        "seconds_per_round": record.seconds_per_round,
        **measures.measured(record.rows),
        "folder": str(record.folder),
    }


def csv_text(summary: Summary) -> str:
    """A line per run."""
    lines = [run_columns(record, summary.target) for record in summary.records]
    columns = dict.fromkeys(key for line in lines for key in line if key != "folder")
    out = io.StringIO()
    writer = csv.DictWriter(out, [*columns, "folder"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def json_text(summary: Summary) -> str:
    """Groups and runs, with the target and the origin."""
    content = {
        **asdict(summary.origin),
        "target": summary.target,
        "groups": [{**asdict(row), "setting": dict(row.setting)} for row in summary.rows],
        "runs": [run_columns(record, summary.target) for record in summary.records],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def terminal_tables(summary: Summary, width: int) -> "list[Table]":
    """The same for rich: as many tables below each other as the terminal's width needs.

    Each begins with the columns that name the row; a single conf is not repeated in all rows.
    """
    headers, rows = cells(summary)
    one_conf = len({row[0] for row in rows}) == 1
    names = range(1 if one_conf else 0, 2 + len(_setting_keys(summary.records)))
    widths = [max(map(len, column)) + 3 for column in zip(headers, *rows, strict=True)]
    parts: list[list[int]] = [[]]
    room = width - sum(widths[i] for i in names)
    for i in range(names.stop, len(headers)):
        if parts[-1] and sum(widths[j] for j in (*parts[-1], i)) > room:
            parts.append([])
        parts[-1].append(i)
    return [_drawn(headers, rows, [*names, *part], names.stop) for part in parts]


def _drawn(
    headers: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[int], left: int
) -> "Table":
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i in kept:
        shown.add_column(headers[i], justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*(row[i] for i in kept))
    return shown

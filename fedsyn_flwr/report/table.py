"""A grid's results as tables: Markdown and terminal for people, CSV and JSON for programs."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from fedsyn_flwr.report import measures
from fedsyn_flwr.report.aggregate import GroupRow, Record, Stat, group_rows
from fedsyn_flwr.report.columns import Cells, csv_table, markdown_lines, terminal_parts
from fedsyn_flwr.report.measures import RECENT
from fedsyn_flwr.report.progress import human_bytes

if TYPE_CHECKING:
    from rich.table import Table

NONE = "—"
UNITS = {f"privacy/psnr_{which}": "dB" for which in ("mean", "p95", "max")}
SHOWN = {
    "privacy/psnr_mean": ("PSNR (dB)", 1.0),
    "privacy/reid_pixel": ("re-id (%)", 100.0),
    "dp/epsilon": ("ε", 1.0),
}
"""The few of the measured values that a terminal shows: what it calls them, and times what."""
REID = (
    "`re-id` is privacy/reid_pixel: the share of synthetic images of whose client's real ones none "
    "is nearer than the one they were made from."
)


@dataclass(frozen=True)
class Origin:
    """How a table came about.

    ``versions`` are those of the packages that computed the runs; ``hardware`` may be unknown: ''.
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


def cells(summary: Summary) -> Cells:
    """Headers and rows of text, for whoever draws the table."""
    rows = summary.rows
    keys = list(dict.fromkeys(key for row in rows for key in row.measured))
    headers = ["conf", "method", *_setting_keys(summary.records), "n", "final accuracy"]
    headers += [f"last {RECENT}", "best accuracy", f"rounds to {summary.target:g}", "down", "up"]
    headers += ["s/round", "ratio", "seconds"]
    headers += [f"{key} ({UNITS[key]})" if key in UNITS else key for key in keys]
    return headers, [_line(row, keys) for row in rows]


def _line(row: GroupRow, measured: Sequence[str]) -> list[str]:
    done = str(row.n) if row.n == row.seeds else f"{row.n} of {row.seeds}"
    values = [scalar(value) for _, value in row.setting]
    line = [row.conf, row.method, *values, done, plus_minus(row.final, ".4f")]
    line += [plus_minus(row.recent, ".4f"), plus_minus(row.best, ".4f"), _target(row)]
    line += [_bytes(row.down), _bytes(row.up)]
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


def _scaled(stat: Stat | None, factor: float) -> Stat | None:
    if stat is None:
        return None
    return replace(stat, mean=factor * stat.mean, std=stat.std and factor * stat.std)


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
    table = markdown_lines(cells(summary), 2 + len(_setting_keys(summary.records)))
    return "\n".join([*table, "", *notes(summary), "", *made(summary.origin)]) + "\n"


def notes(summary: Summary) -> list[str]:
    """How to read the columns, and which runs are not in them."""
    lines = [
        f"Mean ± sample standard deviation over n seeds ({NONE} for one). Accuracy is the global "
        f"model's on the test set; `last {RECENT}`, and accuracies of other models, are means over "
        f"a run's last {RECENT} evaluations.",
        f"Rounds to {summary.target:g}: over the seeds that reached that accuracy "
        "(reached / n). Bytes are totals of a run over all clients.",
        "Seconds are spent in rounds, starting the simulation not counted; `ratio` is s/round over "
        f"that of {_base(summary)}.",
    ]
    if any("privacy/reid_pixel" in row.measured for row in summary.rows):
        lines.append(REID)
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


def made(origin: Origin) -> list[str]:
    """What a table was made by, when, where and with what."""
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    return [
        f"- made by: `{origin.command}`",
        f"- date: {origin.date}",
        *([f"- machine: {origin.hardware}"] if origin.hardware else []),
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
        f"last_{RECENT}_accuracy": measures.recent(record.rows),
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
    return csv_table(lines)


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
    """The essential columns for rich: below each other where the terminal is narrow.

    What all rows have in common, a single conf or a single method of a sweep, is not repeated.
    """
    one_conf = len({row.conf for row in summary.rows}) == 1
    keys = len(_setting_keys(summary.records))
    one_method = one_conf and keys and len({row.method for row in summary.rows}) == 1
    start = 2 if one_method else 1 if one_conf else 0
    return terminal_parts(terminal_cells(summary), range(start, 2 + keys), width)


def terminal_cells(summary: Summary) -> Cells:
    """`cells` for 120 characters: no deviation of rounds and seconds, few measured values."""
    rows = summary.rows
    keys = [key for key in SHOWN if any(key in row.measured for row in rows)]
    headers = ["conf", "method", *_setting_keys(summary.records), "n", "final accuracy"]
    headers += [f"rounds to {summary.target:g}", "down", "up", "s/round", "ratio"]
    return [*headers, *(SHOWN[key][0] for key in keys)], [_short_line(row, keys) for row in rows]


def _short_line(row: GroupRow, measured: Sequence[str]) -> list[str]:
    line = _line(row, [])
    names, final = line[: 3 + len(row.setting)], line[3 + len(row.setting)]
    rounds = f"{row.target.mean:.1f} " if row.target else ""
    pace = NONE if row.seconds_per_round is None else f"{row.seconds_per_round.mean:.2f}"
    short = [f"{rounds}({row.reached}/{row.n})", _bytes(row.down), _bytes(row.up)]
    short += [pace, _relative(row)]
    scaled = (_scaled(row.measured.get(key), SHOWN[key][1]) for key in measured)
    return [*names, final, *short, *map(_measured, scaled)]

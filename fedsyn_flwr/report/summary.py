"""The last lines of a run, for a person."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedsyn_flwr.report import measures
from fedsyn_flwr.report.failure import read_errors
from fedsyn_flwr.report.progress import human_bytes, number

if TYPE_CHECKING:
    from fedsyn_flwr.report.run_result import RunResult


def final_lines(result: "RunResult") -> list[str]:
    """Accuracy, cost and place of a completed run."""
    down, up = (human_bytes(count) for count in measures.traffic(result.rows))
    return [
        f"completed: {_accuracy(result)}",
        f"{result.rounds} rounds in {measures.seconds(result.rows):.1f} s, {down} down, {up} up; "
        f"{result.seconds:.1f} s in all",
        f"results in {result.folder}",
    ]


def _accuracy(result: "RunResult") -> str:
    accuracies = measures.accuracies(result.rows)
    if not accuracies:
        return "no round was evaluated"
    best = max(accuracies, key=lambda pair: pair[1])
    return f"final accuracy {accuracies[-1][1]:.4f}, best {best[1]:.4f} (round {best[0]})"


def failure_lines(result: "RunResult") -> list[str]:
    """Why a run failed, what else its log complains of, and where that is."""
    log = result.folder / "flwr.log"
    others = [line for line in read_errors(log, result.log_start) if line not in result.reason]
    return [
        f"{result.status} after {result.rounds} rounds: {result.reason}",
        *(f"  also logged: {line}" for line in others),
        f"log in {log}",
    ]


def comparison(results: Mapping[str, "RunResult"]) -> list[str]:
    """A small table, one line per method."""
    lines = ["method     final accuracy    best   seconds        down          up"]
    for name, result in results.items():
        down, up = (human_bytes(count) for count in measures.traffic(result.rows))
        final, best = measures.final(result.rows), measures.best(result.rows)
        lines.append(
            f"{name:<10} {number(final, 4):>14}  {number(best, 4):>6}  {result.seconds:>8.1f}"
            f"  {down:>10}  {up:>10}"
        )
    return lines

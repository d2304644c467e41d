"""How a run ended."""

from dataclasses import dataclass, field
from pathlib import Path

from fedsyn_flwr.report.progress import Row


@dataclass(frozen=True)
class RunResult:
    """How a run ended, from its results folder.

    ``rows`` are its rounds, those of earlier attempts included; ``seconds`` is the wall time of
    this attempt; ``log_start`` is where its lines in flwr.log begin.
    """

    folder: Path
    status: str
    rounds: int
    reason: str
    seconds: float
    rows: list[Row] = field(default_factory=list)
    log_start: int = 0

    @property
    def completed(self) -> bool:
        """Whether all rounds were run."""
        return self.status == "completed"

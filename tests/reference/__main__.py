"""``python -m tests.reference``: method, max |difference| of the final weights."""

import logging
import os
import sys
from pathlib import Path


def main() -> None:
    """The table, a line as soon as it is known."""
    from .app import app_weights, cases, difference, simulated

    print("| method | max difference of a weight | largest change of a weight by training |")
    print("|---|---|---|", flush=True)
    for case in cases():
        theirs = simulated(case)
        gap, moved = difference(app_weights(case.name), theirs), difference(theirs, case.initial())
        print(f"| {case.name} | {gap:.1e} | {moved:.2g} |", flush=True)


if __name__ == "__main__":
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as pytest does, for the harness
    logging.disable(logging.CRITICAL)  # the rounds' own lines
    main()

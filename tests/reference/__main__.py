"""``python -m tests.reference``: method, max |difference| of the final weights."""

import logging
import os
import sys
from pathlib import Path


def main() -> None:
    """The table, a line as soon as it is known."""
    from .app import app_weights, cases, difference, largest, simulated

    print("| method | in float64 | in float32, as it runs | training moves a weight by up to |")
    print("|---|---|---|---|", flush=True)
    for case in cases():
        exact, usual = (
            difference(app_weights(case.name, double), simulated(case, double))
            for double in (True, False)
        )
        moved = largest(app_weights(case.name, False), case.initial())
        print(f"| {case.name} | {exact:.1e} | {usual:.1e} | {moved:.2g} |", flush=True)


if __name__ == "__main__":
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as pytest does, for the harness
    logging.disable(logging.CRITICAL)  # the rounds' own lines
    main()

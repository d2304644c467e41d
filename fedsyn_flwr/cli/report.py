"""``fedsyn report``: one page of finished, failed and running runs."""

from pathlib import Path
from typing import Annotated

import typer

from fedsyn_flwr.cli.results import Results


def report(
    results: Results,
    out: Annotated[
        Path | None,
        typer.Option("--out", "--output", help="The page. [default: report.html in RESULTS]"),
    ] = None,
    pictures: Annotated[
        bool,
        typer.Option(
            "--pictures/--no-pictures",
            help="Label distribution, synthetic images, per-class accuracy and features; they need "
            "the runs' data and models.",
        ),
    ] = True,
) -> None:
    """Write one HTML page about runs, to be opened in a browser.

    RESULTS are folders of runs, or folders that hold some. The page needs no network and no other
    file. It holds outcomes, a table with tests over seeds, curves, costs, what the shared images
    give away, configurations and what differs between them, warnings and failures.
    """
    from fedsyn_flwr.report.page.render import write

    page = write(results, out or Path(results[0]) / "report.html", pictures)
    print(page)

"""``fedsyn cost``: what methods cost."""

import sys

from fedsyn_flwr.cli.results import Output, Results, find_runs, origin, output_folder


def cost(results: Results, output: Output = None) -> None:
    """Tabulate what methods cost: operations, seconds, bytes, memory.

    RESULTS are folders of runs, or folders that hold some. Runs that differ in nothing but the
    seed are one row; operations and seconds are a client's in one round, split into training,
    synthesis and the privacy report, with the ratio to the first row. Saves cost.md, cost.csv and
    cost.json.
    """
    from rich.console import Console

    from fedsyn_flwr.files import write_whole
    from fedsyn_flwr.report import costs
    from fedsyn_flwr.report.columns import terminal_parts

    groups = find_runs(results)
    made = origin(run.folder for group in groups for run in group)
    rows, folder = costs.cost_rows(groups), output_folder(output, results)
    files = {
        "cost.md": costs.markdown(rows, made),
        "cost.csv": costs.csv_text(groups),
        "cost.json": costs.json_text(rows, made),
    }
    console = Console() if sys.stdout.isatty() else Console(width=250)
    for part in terminal_parts(costs.cells(rows), range(1), console.width):
        console.print(part, highlight=False)
    console.print("\n".join(costs.NOTES), highlight=False, markup=False, soft_wrap=True)
    for name, text in files.items():
        write_whole(folder / name, text)
        print(folder / name)

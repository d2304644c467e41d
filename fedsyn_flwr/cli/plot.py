"""``fedsyn plot``: accuracy against rounds, seconds and bytes."""

from fedsyn_flwr.cli.figure import figure
from fedsyn_flwr.cli.results import ALL_AXES, Axes, Output, Results


def plot(results: Results, x: Axes = ALL_AXES, output: Output = None) -> None:
    """Draw accuracy against rounds, seconds and bytes, with a band over seeds.

    RESULTS are folders of runs, or folders that hold some. Runs that differ in nothing but the
    seed are one curve: their mean, and the range between the lowest and the highest. Saves
    accuracy-rounds.png, accuracy-rounds.svg and so on.
    """
    figure("curves", results, x=x, output=output)

"""``fedsyn figure``: pictures of finished runs."""

from typing import Annotated

import typer

from fedsyn_flwr.cli.results import (
    ALL_AXES,
    Axes,
    Output,
    Results,
    axes,
    find_runs,
    output_folder,
)


def figure(
    kind: Annotated[str, typer.Argument(metavar="KIND", show_default=False)],
    results: Results,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Sweep: the key. [default: the one that differs]"),
    ] = None,
    embedding: Annotated[str, typer.Option(help="Features: tsne or pca.")] = "tsne",
    x: Axes = ALL_AXES,
    output: Output = None,
) -> None:
    """Draw finished runs: images, pools, tsne, curves, sweep, privacy, drift, logits, divergence.

    images: synthetic images beside the nearest real ones, a picture per run. pools: what several
    methods share, side by side. tsne: features of real and synthetic images under the first run's
    final model. curves: as `fedsyn plot`. sweep: final accuracy against a key. privacy: accuracy,
    PSNR and time, a bar per method. drift: variance among the clients' updates against rounds.
    logits: how large the logits of the clients' models are on the server's images, of runs with a
    refinement. divergence: distance of the final model from one trained on all clients' data,
    layer by layer; it trains that one.

    RESULTS are folders of runs, or folders that hold some; runs that differ in nothing but the
    seed belong together. Saves PNG and SVG.
    """
    from fedsyn_flwr.report import pictures

    wishes = pictures.Wishes(key, pictures.embedding(embedding), axes(x))
    draw = pictures.kind(kind)
    for path in draw(find_runs(results), output_folder(output, results), wishes):
        print(path)

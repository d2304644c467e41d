"""What all pictures share: colours, a canvas without a display, PNG and SVG."""

import io
from pathlib import Path
from typing import Any

from fedsyn_flwr.files import write_whole

# Okabe and Ito's colours, without the yellow that white paper swallows
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
# Paul Tol's "muted" and a grey: ten classes that the colour-blind tell apart
CLASS_COLOURS = (
    *("#332288", "#CC6677", "#117733", "#DDCC77", "#88CCEE"),
    *("#882255", "#44AA99", "#999933", "#AA4499", "#777777"),
)
MARKERS = ("^", "s", "D", "v", "P", "X", "*", "<", ">")
DPI = 160


def canvas(width: float, height: float) -> Any:
    """An empty matplotlib figure, inches; it needs no display and no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, stem: Path) -> list[Path]:
    """Write ``<stem>.png`` and ``<stem>.svg``, each whole at every moment; their paths."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for path in paths:
        out = io.BytesIO()
        figure.savefig(out, format=path.suffix[1:], dpi=DPI, bbox_inches="tight")
        write_whole(path, out.getvalue())
    return paths

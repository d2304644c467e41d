"""From what a page says to HTML in one file."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined
from markupsafe import Markup

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.files import write_whole
from fedsyn_flwr.report.aggregate import Stat
from fedsyn_flwr.report.page import content
from fedsyn_flwr.report.page.charts import Chart, look
from fedsyn_flwr.report.page.content import Page
from fedsyn_flwr.report.progress import human_bytes, human_count
from fedsyn_flwr.report.table import NONE, plus_minus

ASSETS = files("fedsyn_flwr.report.page") / "assets"


def write(paths: Sequence[str], out: Path, pictures: bool = True) -> Path:
    """Write the page of runs to a file; returns its absolute path.

    Parameters
    ----------
    paths : sequence of str
        Folders that are runs or hold some.
    out : Path
        The page; replaced whole.
    pictures : bool
        Whether to load the runs' data and models for what needs them.

    Raises
    ------
    UserError
        If there are no runs, or the page cannot be written.
    """
    page = content.read(paths)
    if pictures:
        from fedsyn_flwr.report.page import samples_shown  # loads PyTorch

        page = samples_shown.added(page, paths)
    out = out.expanduser().absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, html(page))
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
    return out


def html(page: Page, refresh: int = 0) -> str:
    """The page; with ``refresh`` it loads itself again after so many seconds."""
    return _template().render(
        page=replace(page, refresh=refresh),
        css=Markup(_asset("report.css")),
        js=Markup(_asset("report.js")),
        plotly=Markup(_asset("plotly-basic.min.js")),
        swatches=[look(i) for i in range(len(page.names))],
    )


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    """All that is not written in the template itself is escaped."""
    environment = Environment(
        loader=BaseLoader(),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "plus_minus": plus_minus,
        "mean": lambda s: "" if s is None else s.mean,
        "bytes": lambda s: _of(s, human_bytes),
        "count": lambda s: _of(s, human_count),
        "p": _p,
        "figure": _figure,
    }
    return environment.from_string(_asset("report.html.j2"))


def _of(value: Stat | None, form: Any) -> str:
    return NONE if value is None else form(value.mean)


def _p(value: float | None) -> str:
    """A p-value; a dash for a test that has nothing to say."""
    return NONE if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _figure(chart: Chart) -> Markup:
    """A figure as JSON that cannot end the script element it stands in."""
    text = json.dumps({"data": chart.data, "layout": chart.layout}, separators=(",", ":"))
    safe = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return Markup(safe)

"""Plotly's figures as plain data: traces, and the little of a layout that is not the theme's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from fedsyn_flwr.report import costs, measures
from fedsyn_flwr.report.aggregate import stat
from fedsyn_flwr.report.curves import Curve, Run, X, curve, labels, points

# told apart by the colour-blind; 3:1 or more against white and against the dark page
COLOURS = ("#2f7fc1", "#cf5a13", "#0d9268", "#b3679f", "#8a7a18", "#7a6fd0", "#7d7d7d")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
DIGITS = 6
AXES: dict[str, str] = {
    "rounds": "communication rounds",
    "bytes": "bytes sent, all clients, both ways",
    "seconds": "seconds spent in rounds",
    "flops": "FLOPs of one client",
}
PRIVACY = {
    "privacy/psnr_mean": "PSNR to the real image (dB), lower gives away less",
    "privacy/ssim_mean": "SSIM to the real image, lower gives away less",
    "privacy/reid_pixel": "re-identified by pixels (share), lower gives away less",
    "dp/epsilon": "ε of differential privacy, lower is stricter",
}


@dataclass(frozen=True)
class Chart:
    """A figure: its name in the page, what it shows in words, traces and layout."""

    name: str
    caption: str
    alt: str
    data: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)


def look(i: int) -> dict[str, Any]:
    """Colour and dash of the i-th group."""
    return {"color": COLOURS[i % len(COLOURS)], "dash": DASHES[i // len(COLOURS) % len(DASHES)]}


def short(values: Any) -> list[float]:
    """Six digits: more than a screen shows, and half the size."""
    return [float(f"{value:.{DIGITS}g}") for value in values]


def accuracy(groups: Sequence[Sequence[Run]]) -> list[Chart]:
    """A chart of test accuracy per axis that some group was measured on."""
    made = []
    for x in get_args(X):
        drawn = [
            (i, curve(label, [run.rows for run in group], x))
            for i, (label, group) in enumerate(zip(labels(groups), groups, strict=True))
            if all(_measured(run, x) for run in group)
        ]
        drawn = [(i, each) for i, each in drawn if len(each.x)]
        if drawn:
            made.append(_accuracy(x, drawn))
    return made


def _measured(run: Run, x: X) -> bool:
    """Whether a run moves along an axis at all: old files lack some."""
    along, _ = points(run.rows, x)
    return bool(len(along)) and bool(along[-1] > 0)


def _accuracy(x: X, drawn: Sequence[tuple[int, Curve]]) -> Chart:
    finals = "; ".join(f"{each.label} ends at {each.mean[-1]:.4f}" for _, each in drawn)
    return Chart(
        name=f"accuracy-{x}",
        caption=f"Test accuracy of the global model against {AXES[x]}. "
        "Lines are means over seeds, bands reach from the lowest to the highest seed.",
        alt=f"Line chart of test accuracy against {AXES[x]}: {finals}.",
        data=[trace for i, each in drawn for trace in _band(i, each)],
        layout={
            "xaxis": {"title": {"text": AXES[x]}, "exponentformat": "SI"},
            "yaxis": {"title": {"text": "test accuracy"}},
            "hovermode": "closest",
        },
    )


def _band(i: int, each: Curve) -> list[dict[str, Any]]:
    """The mean, and the range over seeds where there are several."""
    x, group = short(each.x), f"g{i}"
    name = escaped(each.label)
    line = {
        **{"x": x, "y": short(each.mean), "name": name, "mode": "lines+markers"},
        **{"line": {**look(i), "width": 2}, "marker": {"size": 4 if len(x) < 60 else 1}},
        **{"legendgroup": group, "meta": i, "customdata": _ranges(each)},
        "hovertemplate": f"{name}<br>%{{x:.4~s}}: %{{y:.4f}}%{{customdata}}<extra></extra>",
    }
    if each.runs < 2:
        return [line]
    edge: dict[str, Any] = {"x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    edge |= {"showlegend": False, "legendgroup": group, "meta": i}
    fill = {"fill": "tonexty", "fillcolor": faint(look(i)["color"])}
    return [{**edge, "y": short(each.low)}, {**edge, "y": short(each.high), **fill}, line]


def _ranges(each: Curve) -> list[str]:
    if each.runs < 2:
        return [""] * len(each.x)
    pairs = zip(each.low, each.high, strict=True)
    return [f" ({low:.4f} to {high:.4f}, {each.runs} seeds)" for low, high in pairs]


def faint(colour: str) -> str:
    """A colour for a band."""
    r, g, b = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({r},{g},{b},0.18)"


def escaped(text: str) -> str:
    """For Plotly, which reads a few tags in names and labels."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def privacy(groups: Sequence[Sequence[Run]]) -> list[Chart]:
    """A bar chart per privacy measure that some run has."""
    made = []
    for key, name in PRIVACY.items():
        found = [stat(measures.measured(run.rows).get(key) for run in group) for group in groups]
        pairs = [(label, s) for label, s in zip(labels(groups), found, strict=True) if s]
        if pairs:
            values = "; ".join(f"{label} {s.mean:.3g}" for label, s in pairs)
            error = {"type": "data", "array": short(s.std or 0 for _, s in pairs)}
            means = short(s.mean for _, s in pairs)
            bar = _bar([label for label, _ in pairs], means, "") | {"error_x": error}
            caption = f"{name[0].upper()}{name[1:]}. Means over seeds, whiskers one deviation."
            made.append(Chart(_slug(key), caption, f"Bar chart: {values}.", [bar], _bars(name)))
    return made


def cost(groups: Sequence[Sequence[Run]]) -> list[Chart]:
    """Where FLOPs, seconds and bytes go: stacked bars, one per group."""
    rows, kinds = costs.cost_rows(groups), {"flops": "FLOPs of one client in a round"}
    kinds |= {"client_seconds": "seconds of one client in a round"}
    kinds |= {"bytes": "bytes in a round, all clients together"}
    made = []
    for kind, name in kinds.items():
        names = dict.fromkeys(key for row in rows for key in row.costs)
        parts = costs.phases(names, kind)
        data = [
            _bar([r.label for r in rows], [_mean(r, f"{kind}/{part}") for r in rows], part)
            | {"marker": {"color": COLOURS[i % len(COLOURS)]}}
            for i, part in enumerate(parts)
        ]
        if data:
            alt = "; ".join(
                f"{r.label} {sum(_mean(r, f'{kind}/{p}') for p in parts):.4g}" for r in rows
            )
            caption = f"{name[0].upper()}{name[1:]}, by what they were spent on. Means over seeds."
            made.append(Chart(f"cost-{kind}", caption, f"Stacked bars: {alt}.", data, _bars(name)))
    return made


def _mean(row: costs.CostRow, key: str) -> float:
    return short([row.costs[key].mean])[0] if key in row.costs else 0.0


def _bar(names: Sequence[str], values: Sequence[float], name: str) -> dict[str, Any]:
    """A trace of horizontal bars, the first on top."""
    return {
        **{"type": "bar", "orientation": "h", "x": list(values), "name": escaped(name)},
        **{"y": [escaped(each) for each in names], "marker": {"color": COLOURS[0]}},
        "showlegend": bool(name),
    }


def _bars(name: str) -> dict[str, Any]:
    return {
        **{"barmode": "stack", "xaxis": {"title": {"text": name}, "rangemode": "tozero"}},
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
    }


def labels_held(table: Any, names: Sequence[str], title: str) -> Chart:
    """Who holds what: a bar per client, int (K, C), stacked by class."""
    clients = [str(k) for k in range(len(table))]
    data: list[dict[str, Any]] = [
        {
            **{"type": "bar", "x": clients, "y": [int(n) for n in table[:, c]]},
            **{"name": escaped(str(name)), "marker": {"color": COLOURS[c % len(COLOURS)]}},
            "hovertemplate": f"client %{{x}}: %{{y}} of class {escaped(str(name))}<extra></extra>",
        }
        for c, name in enumerate(names)
    ]
    for i, trace in enumerate(data):  # seven colours: the second seven are hatched
        trace["marker"]["pattern"] = {"shape": ("", "/", "x", "-", "+")[i // len(COLOURS) % 5]}
    sizes, held = table.sum(1), (table > 0).sum(1)
    alt = (
        f"Stacked bars of {len(clients)} clients: {sizes.min()} to {sizes.max()} images each, of "
        f"{held.min()} to {held.max()} of {len(names)} classes."
    )
    layout = {"barmode": "stack", "xaxis": {"title": {"text": "client"}, "type": "category"}}
    layout |= {"yaxis": {"title": {"text": "training images"}}}
    return Chart("labels", f"Training images of each client by class: {title}.", alt, data, layout)


def scatter(name: str, caption: str, alt: str, clouds: Sequence[tuple[str, Any, Any]]) -> Chart:
    """Points in the plane: clouds of (name, (n, 2) places, class names (n,)), by class colour."""
    classes = sorted({str(c) for _, _, held in clouds for c in held})
    data = []
    for i, (origin, places, held) in enumerate(clouds):
        for j, c in enumerate(classes):
            at = [k for k, each in enumerate(held) if str(each) == c]
            data.append(
                {
                    **{"mode": "markers", "name": escaped(f"{origin}, {c}"), "legendgroup": c},
                    **{"x": short(places[at, 0]), "y": short(places[at, 1])},
                    "marker": {
                        "color": COLOURS[j % len(COLOURS)],
                        "symbol": "circle" if i == 0 else "triangle-up",
                        **{"size": 5 if i == 0 else 9, "opacity": 0.45 if i == 0 else 1.0},
                    },
                }
            )
    hidden = {"showticklabels": False, "zeroline": False}
    return Chart(name, caption, alt, data, {"xaxis": dict(hidden), "yaxis": dict(hidden)})


def _slug(key: str) -> str:
    return key.replace("/", "-").replace("_", "-")

"""Score against trained parameters: the figure of a comparison, and the page to hover over."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from adaptree.reports.plots import (
    DPI,
    FAINT,
    GREEN,
    INK,
    LINE,
    RED,
    covered,
    name_points,
    panels,
    save,
    short_number,
    style,
)

LINES = {"full": (RED, "--"), "tfidf": ("#8a6d00", ":"), "majority": ("#9aa3ad", ":")}
"""Colour and dashes of each line, by its name."""
WIDTH, HEIGHT = 9.5, 5.0
Points = Sequence[Mapping[str, Any]]
Pair = tuple[float, float]


@dataclass(frozen=True)
class Plot:
    """What both the picture and the page show."""

    title: str
    metric: str
    points: Points
    families: list[list[Pair]]
    """Each method's points, from its smallest size to its largest."""
    steps: list[Pair]
    """The corners of the front's staircase."""
    lines: Points
    beyond: Points
    """The lines that lie below the scale."""
    x: Pair
    y: Pair


@style()
def tradeoff(
    points: Points, lines: Points, folder: Path, *, metric: str, title: str, base: int, page: bool = True
) -> None:
    """Draw score against trained parameters: figure.png, figure.svg and, with `page`, figure.html, which works offline.

    A point has label, family, trained, mean, spread (None for one seed), front, hover; a line has name, label, mean.
    """
    points = sorted(points, key=lambda point: not point["front"])  # the front is named first
    names = dict.fromkeys(point["family"] for point in points)
    x = _decades([point["trained"] for point in points])
    y, shown, beyond = _range(points, lines)
    plot = Plot(
        title,
        metric,
        points,
        [sorted((p["trained"], p["mean"]) for p in points if p["family"] == name) for name in names],
        _steps(points, x[1]),
        shown,
        beyond,
        x,
        y,
    )
    figure, (axis,) = panels(WIDTH, HEIGHT)
    axis.set(xscale="log", xlim=x, ylim=y, xlabel="trained parameters (log scale)", ylabel=metric)
    _scales(axis, base)
    _marks(axis, plot)
    taken = _obstacles(axis, plot)
    ends = _name_lines(axis, plot, taken)
    fonts = [{"color": _ink(point), "fontweight": "bold" if point["front"] else "normal"} for point in points]
    offsets = name_points(axis, [(p["trained"], p["mean"], p["label"]) for p in points], fonts, taken)
    axis.text(0, 1.15, title, transform=axis.transAxes, fontsize=12.5, fontweight="bold")
    axis.text(0, 1.09, _caption(points), transform=axis.transAxes, color=FAINT)
    save(figure, folder / "figure.png", folder / "figure.svg")
    if page:
        _page(plot, ends, offsets, folder / "figure.html")


def _scales(axis: Any, base: int) -> None:
    """Show counts below and per cent of the base above."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.xaxis.set(major_locator=LogLocator(subs=(1.0, 3.0)), minor_formatter=NullFormatter())
    axis.xaxis.set_major_formatter(lambda value, _: short_number(value))
    share = axis.secondary_xaxis("top", functions=(lambda x: x * 100 / base, lambda x: x * base / 100))
    share.xaxis.set(major_locator=LogLocator(), minor_formatter=NullFormatter())
    share.xaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    share.tick_params(which="both", length=2)
    share.spines["top"].set_visible(False)
    share.set_xlabel("per cent of the base", loc="right", fontsize=8)


def _marks(axis: Any, plot: Plot) -> None:
    """Draw the lines, join the sizes of each method, then the front's staircase and the points on top."""
    for line in plot.lines:
        colour, dashes = LINES[line["name"]]
        axis.axhline(line["mean"], color=colour, ls=dashes, lw=1.3, zorder=1)
    for sizes in plot.families:
        axis.plot(*zip(*sizes, strict=True), color=LINE, lw=1.2, zorder=2)
    if plot.steps:
        axis.plot(*zip(*plot.steps, strict=True), color=GREEN, lw=1.6, alpha=0.55, zorder=3)
    for point in plot.points:
        colour = GREEN if point["front"] else FAINT
        axis.errorbar(
            point["trained"], point["mean"], yerr=point["spread"], fmt="o", ms=7 if point["front"] else 5.5, zorder=5,
            color=colour, mfc=colour if point["front"] else "white", mew=1.4, elinewidth=1.1, capsize=2.5,
        )  # fmt: skip


def _obstacles(axis: Any, plot: Plot) -> list[Any]:
    """Return the boxes, in pixels, that no name should cover: error bars, lines and the front's staircase."""
    from matplotlib.transforms import Bbox

    bars = [(p["trained"], p["mean"], p["spread"] or 0) for p in plot.points]
    pieces = [((x, y - spread), (x, y + spread)) for x, y, spread in bars]
    pieces += [((plot.x[0], line["mean"]), (plot.x[1], line["mean"])) for line in plot.lines]
    pieces += itertools.pairwise(plot.steps)
    return [Bbox(axis.transData.transform(ends)).padded(1) for ends in pieces]


def _name_lines(axis: Any, plot: Plot, taken: list[Any]) -> list[tuple[str, str]]:
    """Name each line at one of its ends, above or below it, where there is room; add the names' boxes to `taken`."""
    for i, line in enumerate(plot.beyond):
        name = axis.annotate(_far_below(line), (0, 0), (6, 6 + 13 * i), "axes fraction", "offset points")
        name.set_color(LINES[line["name"]][0])
        taken.append(name.get_window_extent())
    places = list(itertools.product(("left", "right"), ("bottom", "top")))
    ends = []
    for line in plot.lines:
        names = {}
        for side, level in places:
            offset = (6 if side == "left" else -6, 3 if level == "bottom" else -3)
            names[side, level] = axis.annotate(
                f"{line['label']} {line['mean']:.3f}", (float(side == "right"), line["mean"]), offset,
                axis.get_yaxis_transform(), "offset points", ha=side, va=level, color=LINES[line["name"]][0],
            )  # fmt: skip
        cost = {end: covered(name.get_window_extent(), taken, axis.bbox) for end, name in names.items()}
        best = min(places, key=cost.__getitem__)
        taken.append(names.pop(best).get_window_extent())
        ends.append(best)
        for name in names.values():
            name.remove()
    return ends


def _page(plot: Plot, ends: Sequence[tuple[str, str]], offsets: Sequence[Pair], path: Path) -> None:
    """Write the same figure to hover over, its JavaScript inside; names stand where the picture has them."""
    plotly = import_module("plotly.graph_objects")
    figure = plotly.Figure()
    for sizes in plot.families:
        x, y = zip(*sizes, strict=True)
        look = {"color": LINE, "width": 1.5}
        figure.add_scatter(x=x, y=y, mode="lines", line=look, hoverinfo="skip", showlegend=False)
    if plot.steps:
        x, y = zip(*plot.steps, strict=True)
        look = {"color": GREEN, "width": 2}
        figure.add_scatter(x=x, y=y, mode="lines", line=look, opacity=0.55, hoverinfo="skip", name="Pareto front")
    for front, name in ((True, "on the Pareto front"), (False, "not on it")):
        some = [point for point in plot.points if point["front"] is front]
        colour = GREEN if front else FAINT
        if some:
            figure.add_scatter(
                x=[p["trained"] for p in some],
                y=[p["mean"] for p in some],
                error_y={
                    "type": "data",
                    "array": [p["spread"] or 0 for p in some],
                    "color": colour,
                    "thickness": 1.2,
                    "width": 3,
                },
                mode="markers",
                name=name,
                marker={"size": 10, "color": colour if front else "white", "line": {"color": colour, "width": 2}},
                customdata=[_hover(p) for p in some],
                hovertemplate="%{customdata}<extra></extra>",
            )
    for line, (side, level) in zip(plot.lines, ends, strict=True):
        colour, dashes = LINES[line["name"]]
        figure.add_hline(
            y=line["mean"], line={"color": colour, "dash": "dash" if dashes == "--" else "dot", "width": 1.5}
        )
        figure.add_annotation(
            xref="paper", x=float(side == "right"), y=line["mean"], showarrow=False,
            text=f"{line['label']} {line['mean']:.3f}", xanchor=side, yanchor=level, font={"color": colour, "size": 12},
        )  # fmt: skip
    for i, line in enumerate(plot.beyond):
        figure.add_annotation(
            xref="paper", yref="paper", x=0.005, y=0.005 + 0.04 * i, showarrow=False, text=_far_below(line),
            font={"color": LINES[line["name"]][0], "size": 12},
        )  # fmt: skip
    for point, (across, up) in zip(plot.points, offsets, strict=True):
        figure.add_annotation(
            x=math.log10(point["trained"]), y=point["mean"], ax=across * DPI / 72, ay=-up * DPI / 72,
            text=html.escape(point["label"]), font={"color": _ink(point), "size": 13},
            arrowwidth=0.7, arrowcolor="#9aa3ad", arrowhead=0, standoff=7, bgcolor="rgba(255,255,255,0.6)",
        )  # fmt: skip
    figure.update_layout(
        template="plotly_white", hoverlabel={"align": "left"}, margin={"l": 80, "r": 30, "t": 100, "b": 60},
        width=WIDTH * DPI + 110, height=HEIGHT * DPI + 160,  # inside of the margins as large as the picture
        title={"text": f"<b>{html.escape(plot.title)}</b>"}, legend={"orientation": "h", "y": 1.06, "x": 0},
        xaxis={"type": "log", "title": {"text": "trained parameters (log scale)"},
               "range": [math.log10(end) for end in plot.x], "tickformat": "~s"},
        yaxis={"title": {"text": plot.metric}, "range": plot.y},
    )  # fmt: skip
    figure.write_html(str(path), include_plotlyjs=True, full_html=True, config={"displaylogo": False})


def _hover(point: Mapping[str, Any]) -> str:
    rows = (f"{html.escape(str(key))}: {html.escape(str(value))}" for key, value in point["hover"].items())
    return f"<b>{html.escape(point['label'])}</b><br>" + "<br>".join(rows)


def _ink(point: Mapping[str, Any]) -> str:
    return GREEN if point["front"] else INK


def _range(points: Points, lines: Points) -> tuple[Pair, Points, Points]:
    """Return the ends of the y axis, the lines on it, and those so far below that they would squeeze the points."""
    low = min(point["mean"] - (point["spread"] or 0) for point in points)
    high = max(point["mean"] + (point["spread"] or 0) for point in points)
    room = max(1.2 * (high - low), 0.03)
    shown = [line for line in lines if line["name"] == "full" or line["mean"] >= low - room]
    beyond = [line for line in lines if line not in shown]
    low, high = min(low, *(s["mean"] for s in shown), low), max(high, *(s["mean"] for s in shown), high)
    margin = max(0.1 * (high - low), 0.01)
    return (low - margin, high + margin), shown, beyond


def _decades(counts: Sequence[int]) -> Pair:
    """Return the ends of the x axis, with some room and at least one power of ten apart."""
    left, right = math.log10(min(counts)), math.log10(max(counts))
    room = max(0.08 * (right - left), (1.0 - (right - left)) / 2, 0.15)
    return 10 ** (left - room), 10 ** (right + room)


def _steps(points: Points, right: float) -> list[Pair]:
    """Return the front as a staircase: the best score that can be had for as many parameters."""
    steps: list[Pair] = []
    for x, y in sorted((p["trained"], p["mean"]) for p in points if p["front"]):
        steps += [(x, steps[-1][1])] if steps else []
        steps.append((x, y))
    return [*steps, (right, steps[-1][1])] if steps else []


def _far_below(line: Mapping[str, Any]) -> str:
    return f"▼ {line['label']} {line['mean']:.3f}, below this scale"


def _caption(points: Points) -> str:
    bars = "   I  ± one standard deviation over seeds" if any(point["spread"] for point in points) else ""
    return f"● Pareto front: nothing that trains as few parameters scores better   ○ others{bars}"

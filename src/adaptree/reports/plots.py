"""Figures. matplotlib is imported when one is drawn."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

COLOURS = ("#0b6e4f", "#c8553d", "#2f4b7c", "#a05195", "#ffa600")


def curves(tasks: Mapping[str, Sequence[Mapping[str, Any]]], metric: str, best: Mapping[str, int], path: Path) -> None:
    """Loss and score by epoch of one or more tasks, from their histories; the best epoch of each is marked."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    loss, score = figure.subplots(1, 2)
    for colour, (name, history) in zip(COLOURS * len(tasks), tasks.items(), strict=False):
        epochs = [h["epoch"] for h in history]
        scores = [h[metric] for h in history]
        loss.plot(epochs, [h["train_loss"] for h in history], color=colour, label=f"{name}, training")
        loss.plot(epochs, [h["validation_loss"] for h in history], color=colour, ls="--", label=f"{name}, validation")
        score.plot(epochs, scores, color=colour, label=name)
        score.plot(best[name], scores[best[name] - 1], "o", color=colour)
    loss.set(title="Loss", xlabel="epoch", yscale="log")
    score.set(title="Validation score (● best epoch, the one kept)", xlabel="epoch", ylabel=metric)
    for axis in (loss, score):
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=120)


INK, FRONT, FULL, FLOOR = "#5b6675", "#0b6e4f", "#c8553d", "#8a6d00"
FORMS = {"full": (FULL, "--"), "tfidf": (FLOOR, ":"), "majority": ("#9aa3ad", ":")}
WIDTH, HEIGHT, DPI = 10.0, 6.2, 120
Box = tuple[float, float, float, float]
Points = Sequence[Mapping[str, Any]]


def tradeoff(
    points: Points,
    lines: Points,
    folder: Path,
    *,
    metric: str,
    title: str,
    base: int,
    page: bool = True,
) -> None:
    """Score against trained parameters, as figure.png, figure.svg and, with `page`, figure.html that needs no network.

    A point has label, family, trained, mean, spread (None for one seed), front, hover; a line has name, label, mean.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    low, high, shown, beyond = _range(points, lines)
    left, right = _decades([point["trained"] for point in points])
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI)
    FigureCanvasAgg(figure)
    axis: Any = figure.add_axes((0.075, 0.105, 0.9, 0.72))
    axis.set(xscale="log", xlim=(left, right), ylim=(low, high))
    axis.set(xlabel="trained parameters (log scale)", ylabel=metric)
    _scales(axis, base)
    steps = _steps(points, right)
    _marks(axis, points, shown, steps)
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    bars = [_bar(axis, point) for point in points]
    ends, taken = _name_lines(axis, renderer, shown, beyond, bars)
    offsets = _name_points(axis, renderer, points, shown, steps, bars, taken)
    figure.text(0.075, 0.955, title, fontsize=12.5, fontweight="bold", va="center")
    figure.text(0.075, 0.912, _caption(points), fontsize=9, color=INK, va="center")
    figure.text(0.975, 0.86, "per cent of the base", fontsize=8, color=INK, va="bottom", ha="right")
    figure.savefig(folder / "figure.png", dpi=DPI)
    figure.savefig(folder / "figure.svg", metadata={"Date": None})
    if page:
        limits = left, right, low, high
        _page(points, shown, beyond, steps, ends, offsets, folder / "figure.html", metric, title, limits)


def _scales(axis: Any, base: int) -> None:
    """Counts below, per cent of the base above."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    count = FuncFormatter(lambda value, _: _short(value))
    axis.xaxis.set(major_locator=LogLocator(subs=(1.0, 3.0)), major_formatter=count, minor_formatter=NullFormatter())
    share = axis.secondary_xaxis("top", functions=(_times(100 / base), _times(base / 100)))
    per_cent = FuncFormatter(lambda value, _: f"{value:g} %")
    share.xaxis.set(major_locator=LogLocator(), major_formatter=per_cent, minor_formatter=NullFormatter())
    share.tick_params(labelsize=8, colors=INK, which="both", length=2)
    share.spines["top"].set_visible(False)
    axis.grid(alpha=0.25, lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def _marks(axis: Any, points: Points, shown: Points, steps: Sequence[tuple[float, float]]) -> None:
    """Lines, sizes of one method joined, the front's staircase, and the points on top."""
    for line in shown:
        colour, style = FORMS[line["name"]]
        axis.axhline(line["mean"], color=colour, ls=style, lw=1.3, zorder=1)
    for family in dict.fromkeys(point["family"] for point in points):
        sizes = sorted((p["trained"], p["mean"]) for p in points if p["family"] == family)
        axis.plot(*zip(*sizes, strict=True), color="#c3cad2", lw=1.2, zorder=2)
    if steps:
        axis.plot(*zip(*steps, strict=True), color=FRONT, lw=1.6, alpha=0.55, zorder=3)
    for point in points:
        colour = FRONT if point["front"] else INK
        axis.errorbar(
            point["trained"], point["mean"], yerr=point["spread"], fmt="o", ms=7 if point["front"] else 5.5, zorder=5,
            color=colour, mfc=colour if point["front"] else "white", mew=1.4, elinewidth=1.1, capsize=2.5,
        )  # fmt: skip


def _name_lines(
    axis: Any, renderer: Any, shown: Points, beyond: Points, bars: Sequence[Box]
) -> tuple[list[tuple[str, str]], list[Box]]:
    """Name each line at an end of it, above or below, wherever most room is; those names' boxes."""
    ends: list[tuple[str, str]] = []
    taken: list[Box] = []
    heights = [float(axis.transData.transform((1.0, line["mean"]))[1]) for line in shown]
    for at, line in enumerate(shown):
        tries = []
        others = [height for i, height in enumerate(heights) if i != at]
        for k, (side, level) in enumerate(itertools.product(("left", "right"), ("bottom", "top"))):
            words = axis.annotate(
                f"{line['label']} {line['mean']:.3f}", (float(side == "right"), line["mean"]),
                xycoords=axis.get_yaxis_transform(), textcoords="offset points", ha=side, va=level, fontsize=8.5,
                xytext=(6 if side == "left" else -6, 3 if level == "bottom" else -3), color=FORMS[line["name"]][0],
            )  # fmt: skip
            box = _box(words, renderer)
            crossed = sum(box[1] < height < box[3] for height in others) * _shared(box, box)
            covered = sum(_shared(box, other) for other in (*taken, *bars))
            tries.append((covered + crossed, k, words, (side, level), box))
        best, *rest = sorted(tries, key=lambda found: found[:2])
        for other in rest:
            other[2].remove()
        ends.append(best[3])
        taken.append(best[4])
    for i, line in enumerate(beyond):
        words = axis.annotate(
            _far_below(line), (0, 0), xycoords="axes fraction", xytext=(6, 6 + 13 * i), textcoords="offset points",
            va="bottom", fontsize=8.5, color=FORMS[line["name"]][0],
        )  # fmt: skip
        taken.append(_box(words, renderer))
    return ends, taken


def _name_points(
    axis: Any,
    renderer: Any,
    points: Points,
    shown: Points,
    steps: Sequence[tuple[float, float]],
    bars: Sequence[Box],
    taken: Sequence[Box],
) -> list[tuple[float, float]]:
    """Write each point's name near it, with a thin line where it is not very near; the ways from points to names."""
    names = [
        axis.text(
            0, 0, point["label"], fontsize=9, ha="center", va="center", zorder=6,
            color=FRONT if point["front"] else "#38414c", fontweight="bold" if point["front"] else "normal",
        )
        for point in points
    ]  # fmt: skip
    boxes = [_box(name, renderer) for name in names]
    anchors = [_pixel(axis, point["trained"], point["mean"]) for point in points]
    x0, y0, x1, y1 = _box(axis, renderer)
    rules: list[Box] = [(x0, y - 1, x1, y + 1) for y in (_pixel(axis, 1, line["mean"])[1] for line in shown)]
    for a, b in itertools.pairwise([_pixel(axis, *corner) for corner in steps]):
        rules.append((min(a[0], b[0]) - 1, min(a[1], b[1]) - 1, max(a[0], b[0]) + 1, max(a[1], b[1]) + 1))
    sizes = [(box[2] - box[0], box[3] - box[1]) for box in boxes]
    places = _place(anchors, sizes, taken, bars, rules, (x0 + 2, y0 + 2, x1 + 20, y1 - 2))
    back = axis.transData.inverted().transform
    for name, anchor, place in zip(names, anchors, places, strict=True):
        name.set_position(tuple(back(place)))
        far = _nearest(_box(name, renderer), anchor)
        if math.dist(far, anchor) > 16:
            axis.plot(*zip(back(anchor), back(far), strict=True), color="#9aa3ad", lw=0.7, zorder=4)
    return [(x - a, y - b) for (x, y), (a, b) in zip(places, anchors, strict=True)]


def _page(
    points: Points,
    shown: Points,
    beyond: Points,
    steps: Sequence[tuple[float, float]],
    ends: Sequence[tuple[str, str]],
    offsets: Sequence[tuple[float, float]],
    path: Path,
    metric: str,
    title: str,
    limits: tuple[float, float, float, float],
) -> None:
    """The same figure to hover over, its JavaScript inside; labels stand where the picture has them."""
    plotly = import_module("plotly.graph_objects")
    left, right, low, high = limits
    figure = plotly.Figure()
    for family in dict.fromkeys(point["family"] for point in points):
        sizes = sorted((p["trained"], p["mean"]) for p in points if p["family"] == family)
        x, y = zip(*sizes, strict=True)
        figure.add_scatter(
            x=x, y=y, mode="lines", line={"color": "#c3cad2", "width": 1.5}, hoverinfo="skip", showlegend=False
        )
    if steps:
        x, y = zip(*steps, strict=True)
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines",
            line={"color": FRONT, "width": 2},
            opacity=0.55,
            hoverinfo="skip",
            name="Pareto front",
        )
    for front, name in ((True, "on the Pareto front"), (False, "not on it")):
        some = [point for point in points if point["front"] is front]
        colour = FRONT if front else INK
        if some:
            figure.add_scatter(
                x=[p["trained"] for p in some],
                y=[p["mean"] for p in some],
                error_y={"type": "data", "array": [p["spread"] or 0 for p in some], "thickness": 1.2, "width": 3},
                mode="markers",
                name=name,
                marker={"size": 10, "color": colour if front else "white", "line": {"color": colour, "width": 2}},
                customdata=[_hover(p) for p in some],
                hovertemplate="%{customdata}<extra></extra>",
            )
    for line, (side, level) in zip(shown, ends, strict=True):
        colour, style = FORMS[line["name"]]
        figure.add_hline(
            y=line["mean"], line={"color": colour, "dash": "dash" if style == "--" else "dot", "width": 1.5}
        )
        figure.add_annotation(
            xref="paper", x=float(side == "right"), y=line["mean"], showarrow=False,
            text=f"{line['label']} {line['mean']:.3f}", xanchor=side, yanchor=level, font={"color": colour, "size": 12},
        )  # fmt: skip
    for i, line in enumerate(beyond):
        figure.add_annotation(
            xref="paper", yref="paper", x=0.005, y=0.005 + 0.04 * i, showarrow=False, text=_far_below(line),
            font={"color": FORMS[line["name"]][0], "size": 12},
        )  # fmt: skip
    for point, (dx, dy) in zip(points, offsets, strict=True):
        figure.add_annotation(
            x=math.log10(point["trained"]), y=point["mean"], ax=dx, ay=-dy, text=html.escape(point["label"]),
            arrowwidth=0.7, arrowcolor="#9aa3ad", arrowhead=0, standoff=7, bgcolor="rgba(255,255,255,0.6)",
            font={"color": FRONT if point["front"] else "#38414c", "size": 13},
        )  # fmt: skip
    figure.update_layout(
        template="plotly_white", width=WIDTH * DPI, height=HEIGHT * DPI, hoverlabel={"align": "left"},
        title={"text": f"<b>{html.escape(title)}</b>"}, legend={"orientation": "h", "y": 1.06, "x": 0},
        xaxis={"type": "log", "title": {"text": "trained parameters (log scale)"},
               "range": [math.log10(left), math.log10(right)], "tickformat": "~s"},
        yaxis={"title": {"text": metric}, "range": [low, high]},
    )  # fmt: skip
    figure.write_html(str(path), include_plotlyjs=True, full_html=True, config={"displaylogo": False})


def _hover(point: Mapping[str, Any]) -> str:
    rows = (f"{html.escape(str(key))}: {html.escape(str(value))}" for key, value in point["hover"].items())
    return f"<b>{html.escape(point['label'])}</b><br>" + "<br>".join(rows)


def _range(points: Points, lines: Points) -> tuple[float, float, list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The y axis: all points with their bars and the lines, but for a floor so far below that it would squeeze them."""
    low = min(point["mean"] - (point["spread"] or 0) for point in points)
    high = max(point["mean"] + (point["spread"] or 0) for point in points)
    room = max(1.2 * (high - low), 0.03)
    shown = [line for line in lines if line["name"] == "full" or line["mean"] >= low - room]
    beyond = [line for line in lines if line not in shown]
    low, high = min(low, *(s["mean"] for s in shown), low), max(high, *(s["mean"] for s in shown), high)
    margin = max(0.1 * (high - low), 0.01)
    return low - margin, high + margin, shown, beyond


def _decades(counts: Sequence[int]) -> tuple[float, float]:
    """The x axis, with some room at both ends, and at least one power of ten wide."""
    left, right = math.log10(min(counts)), math.log10(max(counts))
    room = max(0.08 * (right - left), (1.0 - (right - left)) / 2, 0.15)
    return 10 ** (left - room), 10 ** (right + room)


def _steps(points: Points, right: float) -> list[tuple[float, float]]:
    """The front as a staircase: the best score that can be had for as many parameters."""
    steps: list[tuple[float, float]] = []
    for x, y in sorted((p["trained"], p["mean"]) for p in points if p["front"]):
        steps += [(x, steps[-1][1])] if steps else []
        steps.append((x, y))
    return [*steps, (right, steps[-1][1])] if steps else []


def _far_below(line: Mapping[str, Any]) -> str:
    return f"▼ {line['label']} {line['mean']:.3f}, below this scale"


def _pixel(axis: Any, x: float, y: float) -> tuple[float, float]:
    across, up = axis.transData.transform((x, y))
    return float(across), float(up)


def _box(thing: Any, renderer: Any) -> Box:
    box = thing.get_window_extent(renderer)
    return float(box.x0), float(box.y0), float(box.x1), float(box.y1)


def _bar(axis: Any, point: Mapping[str, Any]) -> Box:
    """A point with its error bar."""
    spread = point["spread"] or 0
    x, low = _pixel(axis, point["trained"], point["mean"] - spread)
    high = _pixel(axis, point["trained"], point["mean"] + spread)[1]
    return x - 7, low - 7, x + 7, high + 7


def _place(
    anchors: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    taken: Sequence[Box],
    bars: Sequence[Box],
    rules: Sequence[Box],
    edges: Box,
) -> list[tuple[float, float]]:
    """A centre for each label: near its point, away from other labels, points and lines; with second thoughts."""
    places: list[tuple[float, float] | None] = [None] * len(anchors)

    def box(i: int, at: tuple[float, float]) -> Box:
        w, h = sizes[i]
        return at[0] - w / 2 - 1, at[1] - h / 2, at[0] + w / 2 + 1, at[1] + h / 2

    def cost(i: int, at: tuple[float, float], away: float) -> float:
        mine = box(i, at)
        others = [box(j, place) for j, place in enumerate(places) if place is not None and j != i]
        bad = (
            sum(_shared(mine, other) for other in (*others, *taken)) * 20 + sum(_shared(mine, bar) for bar in bars) * 10
        )
        bad += sum(_shared(mine, rule) for rule in rules) * 3
        outside = max(edges[0] - mine[0], mine[2] - edges[2], 0) + max(edges[1] - mine[1], mine[3] - edges[3], 0)
        strangers = (_apart(mine, anchor) for j, anchor in enumerate(anchors) if j != i)
        unclear = max(0.0, _apart(mine, anchors[i]) + 6 - min(strangers, default=math.inf))  # reads as another's name
        return bad + 1000 * outside + 2 * away + 8 * unclear

    for _ in range(3):
        for i, (x, y) in enumerate(anchors):
            w, h = sizes[i]
            tries = []
            for away in (10, 16, 26, 40, 60, 90):
                for k in range(16):
                    across, up = math.cos(k * math.pi / 8), math.sin(k * math.pi / 8)
                    at = x + across * (away + w / 2), y + up * (away + h / 2)
                    tries.append((cost(i, at, away), k, at))
            places[i] = min(tries)[2]
    return [place for place in places if place is not None]


def _shared(a: Box, b: Box) -> float:
    """The area that two boxes have in common."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _nearest(box: Box, at: tuple[float, float]) -> tuple[float, float]:
    """The point of a box that is nearest to another point."""
    return min(max(at[0], box[0]), box[2]), min(max(at[1], box[1]), box[3])


def _apart(box: Box, at: tuple[float, float]) -> float:
    return math.dist(_nearest(box, at), at)


def _caption(points: Points) -> str:
    bars = "   I  ± one standard deviation over seeds" if any(point["spread"] for point in points) else ""
    return f"● Pareto front: nothing that trains as few parameters scores better   ○ others{bars}"


def _times(factor: float) -> Callable[[Any], Any]:
    return lambda value: value * factor


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"

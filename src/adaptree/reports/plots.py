"""What all figures share: one style, one way to save, panels, heatmaps and learning curves.

matplotlib is imported when a figure is drawn. The same data give the same bytes.
"""

from __future__ import annotations

import io
import itertools
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

from adaptree.reports.text import short
from adaptree.reports.text import width as width_of

GREEN, RED, BLUE, *_ = COLOURS = ("#0b6e4f", "#c8553d", "#2f4b7c", "#a05195", "#ffa600")
INK, FAINT, LINE, PAPER = "#1f2733", "#5b6675", "#c3cad2", "#f4f6f8"
DPI = 120
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Segoe UI", "Helvetica", "Arial"],
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a label may hold dollars
    "text.usetex": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": FAINT,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e7ec",
    "grid.linewidth": 0.7,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.dpi": DPI,
    "savefig.bbox": "tight",  # so that no text is cut, wherever it stands
    "savefig.pad_inches": 0.12,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "adaptree",
}


@contextmanager
def style() -> Iterator[None]:
    """Draw and save in our style; also a decorator: `@style()`.

    Messages of matplotlib on its font cache, and on characters that its font lacks, are silenced.
    """
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        from matplotlib import rc_context

        with rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from")
            yield
    finally:
        logger.setLevel(level)


def panels(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, list[Any]]:
    """Return a figure and its axes, row by row, each of this size in inches with room for its labels."""
    from matplotlib.figure import Figure

    across, down = 0.75, 0.75
    figure = Figure(figsize=(columns * width + (columns - 1) * across, rows * height + (rows - 1) * down))
    space = {"wspace": across / width, "hspace": down / height}
    axes = figure.subplots(
        rows, columns, squeeze=False, gridspec_kw={"left": 0, "right": 1, "bottom": 0, "top": 1, **space}
    )
    return figure, list(axes.flat)


def svg(figure: Any, title: str) -> str:
    """Return a figure as an <svg> element, to be written into a file or a page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Title": title, "Date": None, "Creator": None})
    return file.getvalue().partition("<!DOCTYPE")[2].partition(">\n")[2]


def save(figure: Any, *paths: Path) -> None:
    """Write a figure; the end of a path's name says as what."""
    for path in paths:
        figure.savefig(path, dpi=DPI, metadata={"Date": None} if path.suffix == ".svg" else None)


def log_scale(axis: Any) -> None:
    """Make the x axis logarithmic, with a plain number at each power of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set(major_locator=LogLocator(), minor_formatter=NullFormatter())
    axis.xaxis.set_major_formatter(lambda value, _: short_number(value))


def short_number(value: float) -> str:
    """Return a number of any size in a few letters: 1e-05, 30, 1 k, 2.5 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


def heatmap(
    axis: Any,
    values: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    texts: Sequence[Sequence[str]] = (),
    most: float | None = None,
) -> None:
    """Colour a matrix, with names left and above: above zero green, below red, darkest at `most`; NaN stays blank."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    values = np.asarray(values, dtype=float)
    most = most or float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    colours = LinearSegmentedColormap.from_list("adaptree", [RED, PAPER, GREEN])
    axis.imshow(values, cmap=colours, vmin=-most, vmax=most, interpolation="none", aspect="auto")
    down, across = values.shape
    wide, tall = 72 / axis.figure.dpi * axis.bbox.width / across, 72 / axis.figure.dpi * axis.bbox.height / down
    size = min(9.0, 0.62 * wide, 0.62 * tall)
    slanted = max((0.6 * size * width_of(name) for name in columns), default=0.0) > wide - 4
    slant = {"rotation": 50, "ha": "left", "rotation_mode": "anchor"} if slanted else {}
    axis.set_xticks(range(across), columns or [""] * across, fontsize=size, color=INK, **slant)
    axis.set_yticks(range(down), rows or [""] * down, fontsize=size, color=INK)
    axis.set_xticks([i - 0.5 for i in range(1, across)], minor=True)
    axis.set_yticks([i - 0.5 for i in range(1, down)], minor=True)
    axis.grid(False)
    axis.grid(which="minor", color="white", linewidth=1.0)
    axis.tick_params(which="both", length=0, labeltop=True, labelbottom=False)
    axis.spines[:].set_visible(False)
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            if text:
                ink = "white" if abs(values[i, j]) > 0.55 * most else INK
                fits = min(size, 1.5 * wide / width_of(text))
                axis.text(j, i, text, ha="center", va="center_baseline", fontsize=fits, color=ink)


def matrix(values: Any, rows: Sequence[str], columns: Sequence[str], *, cell: tuple[float, float], **more: Any) -> Any:
    """Return the figure and axis of one heatmap whose cells have this width and height in inches."""
    down, across = len(rows), len(columns)
    figure, (axis,) = panels(cell[0] * across, cell[1] * down)
    heatmap(axis, values, rows, columns, **more)
    return figure, axis


GAPS = (6, 12, 20, 28, 38, 50)
"""Distances from a point to its name, in points."""
SIDES = ((1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
"""Where a name may stand, the best first: right, above, below, left, then the corners."""
History = Sequence[Mapping[str, Any]]


def curves(tasks: Mapping[str, History], metric: str, best: Mapping[str, int]) -> Any:
    """Return a figure of loss and score by epoch, with a ring around the epoch of each task that was kept.

    Where a training has stages, a dotted line separates them, and `best` counts within the last one.
    """
    from matplotlib.ticker import MaxNLocator

    figure, (loss, score) = panels(3.5, 2.4, 1, 2)
    for colour, (name, history) in zip(itertools.cycle(COLOURS), tasks.items(), strict=False):
        task = f"{short(name)}, " if len(tasks) > 1 else ""
        loss.plot(*series(history, "train_loss"), "o-", ms=3, color=colour, label=f"{task}training")
        loss.plot(*series(history, "validation_loss"), "o--", ms=3, color=colour, label=f"{task}validation")
        epochs, scores = series(history, metric)
        score.plot(epochs, scores, "o-", ms=3, color=colour)
        starts = [i + 1 for i in range(1, len(history)) if history[i].get("stage", 0) != history[i - 1].get("stage", 0)]
        for axis, start in itertools.product((loss, score), starts):
            axis.axvline(start - 0.5, color=FAINT, ls=":", lw=1)
        kept = best[name] + (starts[-1] - 1 if starts else 0)
        ring = {"ls": "", "marker": "o", "ms": 9, "mfc": "none", "mew": 1.6, "color": colour}
        shown = [(x, y) for x, y in zip(epochs, scores, strict=True) if x == kept]
        for x, y in shown:
            score.plot(x, y, **ring, label=f"{task}epoch {kept}, which was kept")
    loss.set_title("Loss")
    score.set_title(f"Validation {short(metric)}")
    for axis in (loss, score):
        axis.set_xlabel("epoch")
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    return figure


def series(history: History, name: str) -> tuple[list[int], list[float]]:
    """Return the epochs, counted from 1, that have such a number, and the numbers."""
    found = [(i, entry.get(name)) for i, entry in enumerate(history, 1)]
    return [i for i, y in found if drawable(y)], [y for _, y in found if drawable(y)]


def drawable(value: float | None) -> TypeGuard[float]:
    """Return whether a number can be drawn: matplotlib's scales overflow beyond 1e100."""
    return value is not None and math.isfinite(value) and abs(value) < 1e100


def name_points(
    axis: Any, points: Sequence[tuple[float, float, str]], fonts: Sequence[Mapping[str, Any]], taken: Sequence[Any] = ()
) -> list[tuple[float, float]]:
    """Write each point's name beside it, or farther away with a thin line to it; return the names' offsets in points.

    A name takes the first place, going outwards, that covers least of other points, earlier names and `taken`.
    """
    from matplotlib.transforms import Bbox

    axis.set(xlim=axis.get_xlim(), ylim=axis.get_ylim())  # fixed now: they say where the points are
    unit = axis.figure.dpi / 72
    spots = axis.transData.transform([(x, y) for x, y, _ in points])
    marks = [Bbox([spot, spot]).padded(3.5 * unit) for spot in spots]
    names: list[Any] = []
    found = []
    places = [(across, up, gap) for gap in GAPS for across, up in SIDES]
    for i, ((x, y, name), font) in enumerate(zip(points, fonts, strict=True)):
        label = axis.annotate(name, (x, y), (0, 0), textcoords="offset points", ha="center", va="center", **font)
        origin = label.get_window_extent()
        w, h = origin.size / unit
        offsets = [(across * (gap + w / 2), up * (gap + h / 2)) for across, up, gap in places]
        tries = [origin.padded(2 * unit, 0).translated(dx * unit, dy * unit) for dx, dy in offsets]
        others = [*taken, *names, *marks[:i], *marks[i + 1 :]]
        costs = [covered(box, others, axis.bbox) for box in tries]
        for k, box in enumerate(tries[: len(SIDES)]):  # without a line a name seems to be that of the nearest point
            costs[k] += 50 * sum(away(box, spot) < away(box, spots[i]) for spot in spots)
        best = costs.index(min(costs))
        names.append(tries[best])
        found.append(offsets[best])
        label.xyann = offsets[best]
        across, up, gap = places[best]
        if gap > GAPS[0]:
            line = {"arrowstyle": "-", "color": FAINT, "lw": 0.6, "shrinkA": 0, "shrinkB": 3}
            axis.annotate("", (x, y), (across * gap, up * gap), textcoords="offset points", arrowprops=line)
    return found


def covered(box: Any, taken: Sequence[Any], inside: Any) -> float:
    """Return the area that a box shares with others; what lies outside of `inside` counts five times."""
    from matplotlib.transforms import Bbox

    def shared(other: Any) -> float:
        both = Bbox.intersection(box, other)
        return float(both.width * both.height) if both else 0.0

    return sum(map(shared, taken)) + 5 * (float(box.width * box.height) - shared(inside))


def away(box: Any, spot: Any) -> float:
    """Return the distance from a box to a point."""
    return math.dist(spot, (min(max(spot[0], box.x0), box.x1), min(max(spot[1], box.y0), box.y1)))

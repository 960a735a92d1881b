"""Small figures as SVG, written by hand: no library is loaded for them, and the same data give the same bytes.

A figure brings its own ground, light or dark as the reader's system asks, and nothing in it comes from outside.
"""

from __future__ import annotations

import html
import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeGuard

RIGHT, WRONG, SECOND = "#23906a", "#d1603d", "#3d7cc9"
"""Colours that are seen on white and on black."""
SIGN = 0.58
"""How wide a letter is, in parts of its height."""
MOST_SIGNS = 22
"""Of a label."""
STYLE = (
    ".adaptree-figure{font-family:system-ui,-apple-system,'Segoe UI',sans-serif}"
    ".adaptree-figure .ground{fill:#ffffff}.adaptree-figure text{fill:#1f2733}"
    ".adaptree-figure .faint{fill:#5b6675}.adaptree-figure .bright{fill:#ffffff}"
    ".adaptree-figure .grid{stroke:#dde2e8}.adaptree-figure .axis{stroke:#8a94a1}"
    "@media (prefers-color-scheme:dark){"
    ".adaptree-figure .ground{fill:#14191f}.adaptree-figure text{fill:#e3e8ee}"
    ".adaptree-figure .faint{fill:#9aa5b1}.adaptree-figure .bright{fill:#ffffff}"
    ".adaptree-figure .grid{stroke:#2b333d}.adaptree-figure .axis{stroke:#6b7683}}"
)

TINY, HUGE = 1e-280, 1e280
"""Beyond them a scale cannot be computed."""

Points = Sequence[tuple[float, float]]


def confusion(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """How often each label (down) was taken for each (across); what is darker is more of the label's own rows."""
    n = len(labels)
    cell = max(18.0, min(52.0, 620 / n))
    size = max(7.0, min(13.0, 0.36 * cell))
    names = distinct(labels)
    name_size = max(8.5, min(13.0, 0.62 * cell))
    wide = max((width_of(name, name_size) for name in names), default=0.0)
    slanted = wide > cell - 6
    left = max(50.0, wide + 36)
    top = 52 + (wide * 0.8 + 10 if slanted else 18)
    right = max(16.0, wide * 0.6 - cell / 2 + 20) if slanted else 16.0
    parts = [
        text(14, 22, "Gold label down, predicted label across", 13.5, weight="600"),
        text(14, 39, "Coloured by the share of a gold label's rows.", 11, kind="faint"),
    ]
    for j, name in enumerate(names):
        x = left + (j + 0.5) * cell
        if slanted:
            parts.append(text(x + 3, top - 6, name, name_size, turn=-53))
        else:
            parts.append(text(x, top - 7, name, name_size, anchor="middle"))
    for i, row in enumerate(counts):
        y = top + i * cell
        parts.append(text(left - 8, y + cell / 2 + 0.35 * name_size, names[i], name_size, anchor="end"))
        total = max(sum(row), 1)
        for j, count in enumerate(row):
            share = count / total
            colour = RIGHT if i == j else WRONG
            opacity = 0.05 if not count else 0.15 + 0.85 * share
            ground = f'fill="{colour}" fill-opacity="{opacity:.2f}"' if count else 'fill="#8a94a1" fill-opacity="0.08"'
            x = left + j * cell
            parts.append(f'<rect x="{_n(x + 0.5)}" y="{_n(y + 0.5)}" width="{_n(cell - 1)}" '
                         f'height="{_n(cell - 1)}" {ground}/>')  # fmt: skip
            if count:
                kind = "bright" if opacity > 0.6 else ""
                at = y + cell / 2 + 0.35 * size
                parts.append(text(x + cell / 2, at, amount(count), size, anchor="middle", kind=kind))
    width = max(left + n * cell + right, 330)
    return svg(width, top + n * cell + 14, parts, "Confusion matrix")


def calibration(bins: Sequence[Mapping[str, Any]], error: float | None) -> str:
    """How often answers are right (up) by how sure the task is of them (across), with the diagonal where both agree."""
    frame = Frame(56, 56, 300, 240, (0.0, 1.0), (0.0, 1.0))
    said = "" if error is None else f"Expected calibration error {error:.3f}. "
    parts = [
        text(14, 22, "How often it is right, by how sure it is", 13.5, weight="600"),
        text(14, 39, f"{said}Bars: rows in a bin.", 11, kind="faint"),
        *frame.ground([0, 0.2, 0.4, 0.6, 0.8, 1.0], [0, 0.2, 0.4, 0.6, 0.8, 1.0], "probability", "right"),
    ]
    most = max((each["count"] for each in bins), default=0)
    each_wide = frame.width / max(len(bins), 1)
    base = frame.top + frame.height
    for number, each in enumerate(bins):
        if each["count"]:
            tall = max(0.25 * frame.height * each["count"] / most, 1.0)
            x = frame.left + number * each_wide
            parts.append(f'<rect x="{_n(x + 2)}" y="{_n(base - tall)}" width="{_n(each_wide - 4)}" '
                         f'height="{_n(tall)}" fill="#8a94a1" fill-opacity="0.35"/>')  # fmt: skip
            counted = amount(each["count"])
            parts.append(text(x + each_wide / 2, base - tall - 3, counted, 9, anchor="middle", kind="faint"))
    parts.append(_line([frame.at(0, 0), frame.at(1, 1)], "#8a94a1", dashed=True))
    points = [frame.at(each["confidence"], each["accuracy"]) for each in bins if each["count"]]
    parts.append(_line(points, RIGHT))
    parts += [_dot(point, 3.5, RIGHT) for point in points]
    return svg(376, 346, parts, "Calibration")


def scatter(targets: Sequence[Mapping[str, Any]]) -> str:
    """Predicted (up) against gold (across), a panel for each target; on the diagonal both are the same."""
    across = min(len(targets), 3)
    parts = [text(14, 22, "Predicted against gold", 13.5, weight="600")]
    for number, target in enumerate(targets):
        left, top = 64 + 300 * (number % 3), 52 + 300 * (number // 3)
        pairs = zip(target["gold"], target["predicted"], strict=True)
        points = [(x, y) for x, y in pairs if _drawable(x) and _drawable(y)]
        ticks = nice([value for point in points for value in point], 5)
        ends = ticks[0], ticks[-1]
        frame = Frame(left, top, 220, 220, ends, ends)
        if target["name"]:
            parts.append(text(left, top - 8, short(target["name"], 34), 12, weight="600"))
        parts += frame.ground(ticks, ticks, "gold", "predicted")
        parts.append(_line([frame.at(ends[0], ends[0]), frame.at(ends[1], ends[1])], "#8a94a1", dashed=True))
        parts += [_dot(frame.at(x, y), 2.5, SECOND, opacity=0.55) for x, y in points]
    return svg(300 * across + 10, 300 * math.ceil(len(targets) / 3) + 32, parts, "Predicted against gold")


def course(history: Sequence[Mapping[str, Any]], metric: str, best: int) -> str:
    """Loss and score by epoch, with a ring around the epoch that was kept; a dashed line where a stage ends."""
    n = len(history)
    step = max(1, math.ceil(n / 8))
    ticks = list(range(1, n + 1, step))
    losses = {"training": _series(history, "train_loss"), "validation": _series(history, "validation_loss")}
    scores = {metric: _series(history, metric)}
    starts = [i + 1 for i in range(1, n) if history[i].get("stage", 0) != history[i - 1].get("stage", 0)]
    kept = best + (starts[-1] - 1 if starts else 0)  # epochs are counted anew in each stage
    parts: list[str] = []
    for number, (title, series) in enumerate((("Loss", losses), (f"Validation {short(metric)}", scores))):
        marks = nice([y for points in series.values() for _, y in points], 4)
        frame = Frame(58 + 330 * number, 62, 250, 180, (1.0, float(max(n, 2))), (marks[0], marks[-1]))
        parts.append(text(frame.left - 44, 24, title, 13.5, weight="600"))
        parts += frame.ground(ticks, marks, "epoch", "")
        for start in starts:
            x = frame.at(start - 0.5, marks[0])[0]
            parts.append(_line([(x, frame.top), (x, frame.top + frame.height)], "#8a94a1", dashed=True))
        x = frame.left - 44
        for colour, (name, points) in zip((SECOND, WRONG) if number == 0 else (RIGHT,), series.items(), strict=True):
            parts.append(_line([frame.at(*point) for point in points], colour))
            parts += [_dot(frame.at(*point), 2.5, colour) for point in points]
            if number == 0:
                parts.append(f'<rect x="{_n(x)}" y="37" width="14" height="4" fill="{colour}"/>')
                parts.append(text(x + 19, 43, name, 11, kind="faint"))
                x += 100
            else:
                parts += [_ring(frame.at(*point), colour) for point in points if point[0] == kept]
                parts.append(text(x, 43, f"○ epoch {kept}, which was kept" if kept else "", 11, kind="faint"))
    return svg(660, 290, parts, "Loss and score by epoch")


class Frame:
    """A rectangle of a figure with its two scales."""

    def __init__(
        self, left: float, top: float, width: float, height: float, x: tuple[float, float], y: tuple[float, float]
    ) -> None:
        self.left, self.top, self.width, self.height = left, top, width, height
        self._x, self._y = x, y

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is in the figure."""
        (low, high), (bottom, top) = self._x, self._y
        return (
            self.left + self.width * (x - low) / (high - low),
            self.top + self.height * (1 - (y - bottom) / (top - bottom)),
        )

    def ground(self, xs: Sequence[float], ys: Sequence[float], across: str, up: str) -> list[str]:
        """The grid with its numbers, and what the axes are."""
        parts = []
        base, end = self.top + self.height, self.left + self.width
        for x, spelled in zip(xs, _spelled(xs), strict=True):
            at = self.at(x, self._y[0])[0]
            parts.append(_stroke(at, self.top, at, base, "grid"))
            parts.append(text(at, base + 15, spelled, 10, anchor="middle", kind="faint"))
        for y, spelled in zip(ys, _spelled(ys), strict=True):
            at = self.at(self._x[0], y)[1]
            parts.append(_stroke(self.left, at, end, at, "grid"))
            parts.append(text(self.left - 6, at + 3.5, spelled, 10, anchor="end", kind="faint"))
        parts.append(_stroke(self.left, base, end, base, "axis"))
        parts.append(text(self.left + self.width / 2, base + 32, across, 11, anchor="middle", kind="faint"))
        if up:
            parts.append(
                text(self.left - 48, self.top + self.height / 2, up, 11, anchor="middle", kind="faint", turn=-90)
            )
        return parts


def svg(width: float, height: float, parts: Sequence[str], title: str) -> str:
    """The whole figure."""
    w, h = _n(math.ceil(width)), _n(math.ceil(height))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="adaptree-figure" role="img" viewBox="0 0 {w} {h}" '
        f'width="{w}" height="{h}"><title>{clean(title)}</title><style>{STYLE}</style>'
        f'<rect class="ground" width="{w}" height="{h}" rx="6"/>{"".join(parts)}</svg>\n'
    )


def text(
    x: float, y: float, said: str, size: float, *, anchor: str = "", kind: str = "", weight: str = "", turn: int = 0
) -> str:
    more = f' text-anchor="{anchor}"' if anchor else ""
    more += f' class="{kind}"' if kind else ""
    more += f' font-weight="{weight}"' if weight else ""
    more += f' transform="rotate({turn} {_n(x)} {_n(y)})"' if turn else ""
    return f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}"{more}>{clean(said)}</text>'


def clean(said: object) -> str:
    """Any text as XML takes it, on one line and without a meaning to it."""
    line = " ".join(str(said).split())
    line = "".join("\N{REPLACEMENT CHARACTER}" if _forbidden(c) else c for c in line)
    return html.escape(line)


def _forbidden(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cs") or c in "\ufffe\uffff"


def short(said: object, most: int = MOST_SIGNS) -> str:
    """A label that is not too wide, without its middle if need be: labels of a kind often begin alike."""
    line = " ".join(str(said)[:1000].split())
    if sum(map(_signs, line)) <= most:
        return line
    begin, end = 2 * most // 3, most - 2 * most // 3 - 1
    return f"{_fitting(line, begin).rstrip()}…{_fitting(line[::-1], end)[::-1].lstrip()}"


def distinct(labels: Sequence[str]) -> list[str]:
    """Labels made short, with their numbers where that makes two of them the same."""
    names = [short(label) for label in labels]
    twice = {name for name, count in Counter(names).items() if count > 1}
    return [f"{short(name, MOST_SIGNS - 5)} #{i}" if name in twice else name for i, name in enumerate(names, 1)]


def _fitting(line: str, most: int) -> str:
    """The beginning of a line that is so many signs wide."""
    wide = 0
    for i, c in enumerate(line):
        wide += _signs(c)
        if wide > most:
            return line[:i]
    return line


def width_of(said: str, size: float) -> float:
    return SIGN * size * sum(map(_signs, said))


def _signs(c: str) -> int:
    """Chinese signs and their like are as wide as two letters."""
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def amount(count: int) -> str:
    """A count in at most four signs: 999, 1.2k, 85k, 3.1M."""
    for size, unit in ((1_000_000, "M"), (1000, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}" if count < 9.95 * size else f"{count / size:.0f}{unit}"
    return str(count)


def nice(values: Sequence[float], most: int) -> list[float]:
    """Round numbers, evenly spaced, from below the lowest value to above the highest."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    largest = max(abs(low), abs(high))
    if high - low <= max(1e-9 * largest, TINY):
        around = largest / 2 if largest > TINY else 0.5
        low, high = low - around, high + around
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _spelled(ticks: Sequence[float]) -> list[str]:
    """Ticks with as many digits as they need to differ."""
    step = min((abs(b - a) for a, b in pairwise(ticks)), default=1.0)
    largest = max(map(abs, ticks), default=0.0)
    for size, unit, least in ((1e9, "G", 1e9), (1e6, "M", 1e6), (1e3, "k", 1e4)):
        if largest >= least:
            return [f"{tick / size:.4g}{unit}" if tick else "0" for tick in ticks]
    if 0 < step < 0.0001:
        return [f"{tick:.2g}" for tick in ticks]
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 0
    return [f"{tick + 0.0:.{digits}f}" for tick in ticks]


def _series(history: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    found = ((i + 1, entry.get(name)) for i, entry in enumerate(history))
    return [(float(x), float(y)) for x, y in found if _drawable(y)]


def _drawable(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and abs(value) < HUGE


def _line(points: Points, colour: str, *, dashed: bool = False) -> str:
    if len(points) < 2:
        return ""
    path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
    dash = ' stroke-width="1" stroke-dasharray="4 3"' if dashed else ' stroke-width="2" stroke-linejoin="round"'
    return f'<polyline points="{path}" fill="none" stroke="{colour}"{dash}/>'


def _stroke(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return f'<line x1="{_n(x)}" y1="{_n(y)}" x2="{_n(to_x)}" y2="{_n(to_y)}" class="{kind}"/>'


def _dot(point: tuple[float, float], radius: float, colour: str, opacity: float = 1.0) -> str:
    seen = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
    return f'<circle cx="{_n(point[0])}" cy="{_n(point[1])}" r="{_n(radius)}" fill="{colour}"{seen}/>'


def _ring(point: tuple[float, float], colour: str) -> str:
    return f'<circle cx="{_n(point[0])}" cy="{_n(point[1])}" r="6" fill="none" stroke="{colour}" stroke-width="2"/>'


def _n(value: float) -> str:
    """A place in the figure, to a tenth."""
    return f"{value:.1f}".removesuffix(".0").replace("-0.0", "0") if abs(value) >= 0.05 else "0"

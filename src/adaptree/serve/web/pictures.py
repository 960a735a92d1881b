"""Small pictures as SVG in a page: their colours are the stylesheet's, so that they are light or dark as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from markupsafe import Markup, escape

SIDE, LEFT, BOTTOM, TOP = 220.0, 44.0, 36.0, 10.0


def calibration_picture(found: Mapping[str, Any]) -> Markup:
    """Draw how often answers are right by how sure the task is of them; the larger a dot, the more rows."""
    bins = [each for each in (found.get("calibration") or {}).get("bins") or [] if each["count"]]
    if not bins:
        return Markup()
    most = max(each["count"] for each in bins)
    points = [(each["confidence"], each["accuracy"], each["count"]) for each in bins]
    line = " ".join(f"{_x(x):.1f},{_y(y):.1f}" for x, y, _ in points)
    dots = "".join(
        f'<circle cx="{_x(x):.1f}" cy="{_y(y):.1f}" r="{3 + 7 * (n / most) ** 0.5:.1f}">'
        f"<title>{n:,} rows: {x:.0%} sure, {y:.0%} right</title></circle>"
        for x, y, n in points
    )
    return _framed(
        f'<polyline class="curve" points="{line}"/><g class="dots">{dots}</g>',
        ("0", "1"), ("0", "1"), "how sure it is", "how often it is right", "How often it is right, by how sure it is",
    )  # fmt: skip


def scatter_picture(found: Mapping[str, Any]) -> Markup:
    """Draw predicted against gold numbers; on the diagonal both are the same."""
    return Markup("").join(_scatter(target) for target in found.get("targets") or [])


def _scatter(target: Mapping[str, Any]) -> Markup:
    pairs = [(x, y) for x, y in zip(target["gold"], target["predicted"], strict=False) if _drawable((x, y))]
    if not pairs:
        return Markup()
    low, high = min(map(min, pairs)), max(map(max, pairs))
    span = (high - low) or 1.0
    dots = "".join(
        f'<circle cx="{_x((x - low) / span):.1f}" cy="{_y((y - low) / span):.1f}" r="2.6"/>' for x, y in pairs
    )
    ends = f"{low:.3g}", f"{high:.3g}"
    return _framed(
        f'<g class="dots many">{dots}</g>', ends, ends, "gold", "predicted", f"{target['name']} predicted against gold"
    )


def _drawable(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) and isfinite(value) for value in values)


def _x(share: float) -> float:
    return LEFT + SIDE * share


def _y(share: float) -> float:
    return TOP + SIDE * (1 - share)


def _framed(inside: str, across: Sequence[str], up: Sequence[str], x: str, y: str, title: str) -> Markup:
    """Return a square picture with its diagonal and its axes' ends."""
    bottom, right = TOP + SIDE, LEFT + SIDE
    middle = TOP + SIDE / 2
    return Markup(
        f'<svg class="picture" role="img" viewBox="0 0 {right + 12:g} {bottom + BOTTOM:g}" '
        f'width="{right + 12:g}" height="{bottom + BOTTOM:g}"><title>{escape(title)}</title>'
        f'<rect class="frame" x="{LEFT:g}" y="{TOP:g}" width="{SIDE:g}" height="{SIDE:g}"/>'
        f'<line class="diagonal" x1="{LEFT:g}" y1="{bottom:g}" x2="{right:g}" y2="{TOP:g}"/>{inside}'
        f'<text x="{LEFT:g}" y="{bottom + 15:g}" text-anchor="middle">{escape(across[0])}</text>'
        f'<text x="{right:g}" y="{bottom + 15:g}" text-anchor="middle">{escape(across[1])}</text>'
        f'<text x="{LEFT + SIDE / 2:g}" y="{bottom + 28:g}" text-anchor="middle">{escape(x)}</text>'
        f'<text x="{LEFT - 6:g}" y="{bottom:g}" text-anchor="end">{escape(up[0])}</text>'
        f'<text x="{LEFT - 6:g}" y="{TOP + 8:g}" text-anchor="end">{escape(up[1])}</text>'
        f'<text transform="rotate(-90 14 {middle:g})" x="14" y="{middle:g}" text-anchor="middle">{escape(y)}</text>'
        "</svg>"
    )

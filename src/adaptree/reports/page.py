"""What a notebook shows of a task: a small table and its learning curve, with nothing from outside."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from adaptree.kinds import main_metric
from adaptree.reports.figures import course
from adaptree.reports.markdown import interval, score
from adaptree.reports.text import clean

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

MOST_SCORES = 6
CELL = "text-align:left;padding:2px 12px 2px 0"


def page(record: Record) -> str:
    """Return a task as a piece of HTML: what it is, its scores with their intervals, and its course."""
    part = "test" if record.metrics.get("test") else "validation"
    scores = record.metrics.get(part, {})
    first = main_metric(record)
    names = sorted(scores, key=lambda name: name != first)[:MOST_SCORES]
    facts = {
        "kind": f"{record.kind}, {len(record.labels)} labels" if record.labels else record.kind,
        "base": record.base.get("name", "?"),
        "method": record.method,
    }
    if "trained" in record.parameters:
        facts["trained"] = f"{record.parameters['trained']:,} weights, {record.trained_percent:.2f} % of the base"
    rows = [_row(key, fact) for key, fact in facts.items()]
    for name in names:
        span = interval(record, part, name)
        rows.append(_row(f"{name}, {part}", score(scores[name]) + (f" ({span}, 95 %)" if span else "")))
    return (
        f'<div><b>{clean(record.reference)}</b><table style="border-collapse:collapse">{"".join(rows)}</table>'
        f"{_image(course(record))}</div>"
    )


def _row(name: str, held: object) -> str:
    return f'<tr><th style="{CELL}">{clean(name)}</th><td style="{CELL}">{clean(held)}</td></tr>'


def _image(svg: str) -> str:
    """Return a figure as an image: inline, the styles and ids of an SVG would apply to the whole notebook."""
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="Loss and score by epoch" src="data:image/svg+xml;base64,{data}"/>' if svg else ""

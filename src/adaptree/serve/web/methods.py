"""Compare methods: score against trained weights, of the stored tasks and of a folder of results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from adaptree.kinds.metrics import LOWER_IS_BETTER
from adaptree.serve.web import static
from adaptree.serve.web.figures import Comparison, Point, Results, read
from adaptree.serve.web.frame import page, service_of
from adaptree.tasks.summary import Row

router = APIRouter(include_in_schema=False)

MOST_POINTS = 2000
"""Points of a picture, the best; a table has fewer."""


@router.get("/methods")
async def methods(request: Request, data: str = "") -> Response:
    service = service_of(request)
    caller = service.caller(request, "predict")
    found = Results()
    if service.results is not None and not caller.tenant:
        found = await asyncio.to_thread(read, service.results)
    rows = await service.rows(caller)
    stored = _stored(rows)
    groups = [*stored, *found.comparisons]
    chosen = next((i for i, each in enumerate(groups) if _key(each) == data), 0)
    shown = groups[chosen] if groups else None
    styles = await asyncio.to_thread(static.plotly_styles) if static.plotly() else ()
    return page(
        request, "methods.html", caller,
        groups=[(_key(each), each) for each in groups], chosen=_key(shown) if shown else "", shown=shown,
        figure=_figure(shown) if shown else "", plotly=styles, results=found, stored=len(rows),
        lower=shown is not None and shown.metric in LOWER_IS_BETTER,
    )  # fmt: skip


def _key(group: Comparison) -> str:
    return f"{group.where or 'store'}: {group.title}"


def _stored(rows: Sequence[Row]) -> list[Comparison]:
    """Return the stored tasks by metric: scores of one metric are at least in the same unit."""
    by_metric: dict[str, list[Point]] = {}
    for row in rows:
        each = row.summary
        if each.problem or each.score is None or not each.metric:
            continue
        family = each.method.partition("(")[0]
        point = Point(each.method, family, each.trained, each.score, None, each.trained_percent, 0.0, each.name)
        by_metric.setdefault(each.metric, []).append(point)
    order = sorted(by_metric.items(), key=lambda item: -len(item[1]))
    return [Comparison(f"Tasks in this store, by {metric}", metric, points) for metric, points in order]


def _figure(group: Comparison) -> str:
    """Return what the script draws."""
    best = sorted(group.points, key=lambda point: point.score, reverse=group.metric not in LOWER_IS_BETTER)
    points: list[dict[str, Any]] = [
        {"family": point.family, "trained": point.trained, "score": point.score, "name": point.name or point.method,
         "task": bool(point.name), "spread": point.spread}
        for point in best[:MOST_POINTS]
    ]  # fmt: skip
    return json.dumps({"title": group.title, "metric": group.metric, "points": points})

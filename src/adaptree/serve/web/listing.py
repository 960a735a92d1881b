"""The tasks: searched, filtered, sorted and in pages, so that five thousand are as quick as five."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from adaptree.errors import AdaptreeError
from adaptree.hub.site import LANGUAGE
from adaptree.kinds.metrics import LOWER_IS_BETTER
from adaptree.serve.counts import Used
from adaptree.serve.service import Service
from adaptree.serve.web.frame import page, service_of
from adaptree.tasks.summary import Row, Summary, fields

router = APIRouter(include_in_schema=False)

PAGE = 40
"""Tasks of a page."""
FILTERS = ("kind", "base", "method", "tag", "language")
SORTS = {
    "name": "Name",
    "score": "Best score",
    "price": "Fewest trained weights",
    "size": "Smallest on disk",
    "used": "Most used",
    "new": "Newest",
}
Text = Annotated[str, Query(max_length=200)]


@dataclass(frozen=True)
class Shown:
    """A task in the list."""

    summary: Summary
    labels: str
    used: Used
    seconds: float = 0.0


@router.get("/")
async def tasks(
    request: Request,
    q: Text = "",
    kind: Text = "",
    base: Text = "",
    method: Text = "",
    tag: Text = "",
    language: Text = "",
    label: Text = "",
    sort: Text = "",
    number: Annotated[int, Query(alias="page", ge=1, le=1_000_000)] = 1,
) -> Response:
    service = service_of(request)
    caller = service.caller(request, "predict")
    everything = await service.rows(caller)
    chosen = {"kind": kind, "base": base, "method": method, "tag": tag, "language": language}
    found = [row for row in everything if all(not want or want in values(row, key) for key, want in chosen.items())]
    if label.strip():
        found = [row for row in found if label.strip().lower() in labels_of(row).lower()]
    if q.strip():
        matches = {row.summary.name: place for place, row in enumerate(await service.search(caller, q))}
        found = sorted((row for row in found if row.summary.name in matches), key=lambda r: matches[r.summary.name])
    if sort in SORTS or not q.strip():
        found = sorted(found, key=_order(service, sort if sort in SORTS else "name"))
    last = max(1, -(-len(found) // PAGE))
    number = min(number, last)
    rows = found[PAGE * (number - 1) : PAGE * number]
    view = {"q": q, **chosen, "label": label, "sort": sort}
    return page(
        request, "tasks.html", caller,
        tasks=await asyncio.to_thread(_shown, service, rows), count=len(found), of=len(everything),
        choices=_choices(everything), view=view, sorts=SORTS, number=number, last=last, address=_address(view),
        since=service.counts.since,
    )  # fmt: skip


def values(row: Row, key: str) -> Sequence[str]:
    """Return what a task has for a filter."""
    summary = row.summary
    if key == "tag":
        return summary.tags
    if key == "language":
        return _languages(row)
    if key == "method":
        return (summary.method.partition("(")[0],)
    return (getattr(summary, key),)


def _languages(row: Row) -> Sequence[str]:
    if "lang/" not in row.text:
        return ()
    said = fields(row.text)
    names = [said.get("name", ""), *re.findall(r"[a-z0-9_/-]+", said.get("made of", ""))]
    return sorted({found[1] for name in names if (found := LANGUAGE.match(name))})


def labels_of(row: Row) -> str:
    return str(json.loads(row.text).get("labels", "")) if row.text else ""


def _choices(rows: Iterable[Row]) -> dict[str, list[tuple[str, int]]]:
    """Return for each filter what there is to choose, and how many tasks have it."""
    counts: dict[str, Counter[str]] = {key: Counter() for key in FILTERS}
    for row in rows:
        for key in FILTERS:
            counts[key].update(each for each in values(row, key) if each)
    return {key: sorted(found.items()) for key, found in counts.items()}


def _order(service: Service, sort: str) -> Callable[[Row], tuple[Any, ...]]:
    requests = service.counts.most_used() if sort == "used" else {}

    def key(row: Row) -> tuple[Any, ...]:
        summary = row.summary
        parts = [(not part.isdigit(), int(part) if part.isdigit() else part)
                 for part in re.findall(r"\d{1,15}|\D+", summary.name)]  # fmt: skip
        if sort == "score":
            return (*_rank(summary), parts)
        if sort in ("price", "size"):
            return (bool(summary.problem), summary.trained if sort == "price" else summary.bytes, parts)
        if sort == "used":
            return (-requests.get(summary.name, 0), parts)
        if sort == "new":
            return ([-ord(c) for c in summary.created[:19]] or [0], parts)
        return (parts,)

    return key


def _rank(summary: Summary) -> tuple[int, float]:
    """Scores of unlike metrics cannot be compared: where less is better they come after the others, then none."""
    if summary.score is None:
        return 2, 0.0
    return (1, summary.score) if summary.metric in LOWER_IS_BETTER else (0, -summary.score)


def _shown(service: Service, rows: Sequence[Row]) -> list[Shown]:
    found = []
    for row in rows:
        summary, record = row.summary, None
        if not summary.problem:
            with suppress(AdaptreeError):  # it was removed or damaged a moment ago
                record = service.engine.store.record(f"{summary.name}@{summary.version}")
        used = service.counts.used(summary.name)
        found.append(Shown(summary, _in_short(row), used, record.seconds if record else 0.0))
    return found


def _in_short(row: Row) -> str:
    """Return a task's labels; of tags, what they name."""
    labels = labels_of(row)
    if row.summary.kind != "tag":
        return labels
    names = (label.removeprefix("B-").removeprefix("I-") for label in labels.split(", "))
    return ", ".join(dict.fromkeys(name for name in names if name != "O"))


def _address(view: dict[str, str]) -> Callable[[int], str]:
    """Return what gives the address of a page of the same view."""

    def address(number: int) -> str:
        said = {key: value for key, value in view.items() if value} | ({"page": str(number)} if number > 1 else {})
        return f"/?{urlencode(said)}" if said else "/"

    return address

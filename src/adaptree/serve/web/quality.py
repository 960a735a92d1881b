"""How good a task is: what its record keeps of the rows that it was scored on, or what a labelled file shows now."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from markupsafe import Markup

from adaptree import kinds
from adaptree.errors import DataError, UsageError
from adaptree.kinds import Kind
from adaptree.kinds.findings import Evaluated, Figure, Table, cut, examine, without_rows
from adaptree.models.evaluate import decode, open_labelled, score, whole
from adaptree.reports import findings, html_page
from adaptree.serve import improving, receive
from adaptree.serve.jobs.checking import bad_data, holds_little
from adaptree.serve.problems import Problem
from adaptree.serve.service import Service
from adaptree.serve.web.frame import page, service_of
from adaptree.serve.web.pictures import calibration_picture, scatter_picture
from adaptree.tasks.record import Record

if TYPE_CHECKING:
    from adaptree.models.bound import Bound
    from adaptree.models.evaluate import Part

router = APIRouter(include_in_schema=False)

MOST_ROWS = 5000
"""Rows of a file that is evaluated on a page."""
MOST_BYTES = 5_000_000
"""Bytes of the data, unpacked, among which the rows that a version was scored on are looked for."""
MOST_SHOWN = 1000
ENDINGS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt", ".conll")
"""Files that are read on a page: those that are text."""
SHADES = 9
"""Steps of colour in a confusion matrix."""


@dataclass(frozen=True)
class Cell:
    """A cell of a confusion matrix."""

    count: int
    shade: int
    """0 for none to SHADES for all rows of the gold label."""
    right: bool
    gold: str
    predicted: str


@dataclass(frozen=True)
class Quality:
    """What a page shows of a task's answers for labelled rows."""

    rows: int = 0
    """How many were looked at."""
    matrix: Sequence[Sequence[Cell]] = ()
    labels: Sequence[str] = ()
    examples: Sequence[Mapping[str, Any]] = ()
    """Rows with text, pair, gold, predicted and probability, the worst first."""
    complete: bool = False
    """Whether these are all rows."""
    sections: Sequence[tuple[str, Sequence[Markup]]] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)


def of_record(record: Record, *, rows: bool = True) -> Quality:
    """Return what a task's record keeps; without the `rows` of its data for those who may not read them."""
    found = record.extra.get("insight") or {}
    if not rows:
        found = without_rows(found)
    kind = kinds.find(record.kind)
    if kind is None or not found:
        return Quality()
    known = [*(found.get("mistakes") or []), *(found.get("right") or [])] if found.get("confusion") else []
    return _shown(kind, record, found, known, complete=False)


def _shown(
    kind: type[Kind], record: Record, found: Mapping[str, Any], examples: Sequence[Mapping[str, Any]], *,
    complete: bool, **more: Any,
) -> Quality:  # fmt: skip
    confusion = found.get("confusion") or {}
    labels = confusion.get("labels", [])
    sections = []
    for title, blocks in kind.sections(found, record):
        if confusion and title in ("Where it goes wrong", "Where it is right"):
            continue  # the rows below the matrix show them
        shown = [made for block in blocks if (made := _block(block, found))]
        if shown:
            sections.append((title, shown))
    return Quality(
        found.get("rows", 0), _matrix(labels, confusion.get("counts", [])), labels, examples, complete, sections, **more
    )


def _block(block: str | Table | Figure, found: Mapping[str, Any]) -> Markup:
    if isinstance(block, Figure):
        draw = {"calibration.svg": calibration_picture, "scatter.svg": scatter_picture}.get(block.name)
        return draw(found) if draw else Markup()
    if isinstance(block, Table):
        if str(block.head[0]).startswith("gold ↓"):
            return Markup()  # the matrix itself is on the page
        return Markup(html_page.to_html(findings.table_of(block), lambda _: None))
    return Markup(f"<p>{html_page.inline(block)}</p>")


def _matrix(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> list[list[Cell]]:
    return [
        [
            Cell(count, -(-SHADES * count // max(1, sum(row))), i == j, labels[i], labels[j])
            for j, count in enumerate(row)
        ]
        for i, row in enumerate(counts)
    ]


# A labelled file


@router.post("/evaluate/{task:path}")
async def evaluate(
    request: Request, task: str, name: Annotated[str, Query(min_length=1, max_length=300)] = "rows.csv"
) -> Response:
    """Evaluate a task on the labelled file that the body is; nothing of it is kept."""
    service = service_of(request)
    caller = service.caller(request, "predict")
    reference = await service.resolve(caller, task)
    ending = Path(name).suffix.lower()
    if ending not in ENDINGS:
        what = f"'{cut(name, 60)}' is not one of the files that a page reads."
        raise Problem(422, "bad_data", what, hint=f"It ends in {', '.join(ENDINGS)}.")
    data = await receive.body(request, service.limits)
    rows = max(1, data.count(b"\n"))
    if rows > 40 * MOST_ROWS:
        raise _too_many()
    service.count_texts(request, caller, min(rows, MOST_ROWS))
    async with service.heavy:
        try:
            found = await asyncio.to_thread(_evaluated, service, reference, data, _called(name))
        except (DataError, UsageError) as error:
            raise Problem(422, "bad_data", error.what, hint=error.hint) from error
    return page(request, "evaluated.html", caller, quality=found, file=name)


def _called(name: str) -> str:
    """Return a file's name as it may stand in a temporary folder, and in errors."""
    return re.sub(r"[^\w.-]+", "-", Path(name).name, flags=re.ASCII)[-80:].lstrip(".-") or "rows"


def _too_many() -> Problem:
    return Problem(
        413, "too_large", f"the file has more than {MOST_ROWS:,} rows.",
        hint="Send fewer, or evaluate it on the command line: adaptree evaluate TASK FILE",
    )  # fmt: skip


@router.post("/held-out/{task:path}")
async def held_out(request: Request, task: str) -> Response:
    """Show all rows that a version was scored on, where the data of its job was kept."""
    service = service_of(request)
    caller = service.caller(request, "train")
    reference = await service.resolve(caller, task)
    record = await asyncio.to_thread(service.engine.store.record, reference)
    service.count_texts(request, caller, int(record.data.get("validation") or 0))
    async with service.heavy:
        try:
            found = await asyncio.to_thread(_held_out, service, record, caller.tenant)
        except (DataError, UsageError) as error:
            raise bad_data(error, service.queue.files.folder) from error
    return page(request, "evaluated.html", caller, quality=found, file="")


def _held_out(service: Service, record: Record, tenant: str) -> Quality:
    kept = improving.kept_data(service.queue, record, tenant)
    if kept is None:
        raise Problem(409, "no_data", "the data of this version is not kept.", hint="Evaluate a file of yours.")
    with ExitStack() as opened:
        paths = {part: opened.enter_context(service.queue.files.open(file)) for part, file in kept.files.items()}
        if not all(holds_little(path, MOST_BYTES) for path in paths.values()):
            raise _too_many()
        part = improving.held_out(kept, paths)
        if len(part) > MOST_ROWS:
            raise _too_many()
        return _scored(service.engine.base.bind(service.engine.store[record.reference]), part)


def _evaluated(service: Service, reference: str, data: bytes, name: str) -> Quality:
    bound = service.engine.base.bind(service.engine.store[reference])
    with tempfile.TemporaryDirectory(prefix="adaptree-evaluate-") as folder:
        file = Path(folder) / name
        file.write_bytes(data)
        dataset = open_labelled(bound, file)
        if len(dataset) > MOST_ROWS:
            raise _too_many()
        return _scored(bound, whole(dataset))


def _scored(bound: Bound, part: Part) -> Quality:
    """Return what a task's answers for labelled rows show."""
    record, dataset = bound.task.record, part.dataset
    decoded = decode(bound, part, keep=MOST_ROWS)
    scores, intervals = score(bound, part, decoded.answers)
    targets, inputs = dataset.targets(part.rows), list(dataset.inputs(part.rows))
    kind: Any = bound.kind
    more = {"scores": scores, "intervals": intervals}
    if kind.name != "classify":
        found = examine(kind, inputs, targets, decoded.out, decoded.examples, decoded.answers)
        return _shown(type(kind), record, found, [], complete=True, **more)
    known = np.flatnonzero(np.asarray(targets) < len(kind.labels))  # a label that the task has not is only in the score
    some = [inputs[i] for i in known]
    gold, answers = np.asarray(targets)[known], np.asarray(decoded.answers)[known]
    found = examine(kind, some, gold, decoded.out[known], [], answers)
    sure = kind._sure(Evaluated(some, gold, decoded.out[known], [], answers))
    return _shown(type(kind), record, found, _rows(kind.labels, some, gold, answers, sure), complete=True, **more)


def _rows(labels: Sequence[Any], inputs: Sequence[Any], gold: Any, answers: Any, sure: Any) -> list[dict[str, Any]]:
    """Return rows, the mistakes that the task was surest of first, then what it was right in."""
    order = sorted(range(len(inputs)), key=lambda i: (gold[i] == answers[i], -sure[i]))
    found = []
    for i in order[:MOST_SHOWN]:
        texts = [inputs[i]] if isinstance(inputs[i], str) else list(inputs[i])
        found.append(
            {
                "text": cut(texts[0], 400),
                **({"pair": cut(texts[1], 400)} if len(texts) > 1 else {}),
                "gold": cut(labels[gold[i]], 60),
                "predicted": cut(labels[answers[i]], 60),
                "probability": float(sure[i]),
            }
        )
    return found

"""Improve a task: label the rows that are most worth it, correct likely errors, train a candidate, and compare."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from adaptree.errors import AdaptreeError, UsageError
from adaptree.kinds.metrics import LOWER_IS_BETTER
from adaptree.serve import improving, receive
from adaptree.serve.elsewhere import elsewhere
from adaptree.serve.jobs.checking import bad_data, check_file, holds_little
from adaptree.serve.jobs.settings import check_settings
from adaptree.serve.predicting import as_json
from adaptree.serve.problems import Problem
from adaptree.serve.service import Service
from adaptree.serve.web.frame import page, service_of
from adaptree.tasks.record import Record

if TYPE_CHECKING:
    from adaptree.serve.jobs import DataFile, Jobs
    from adaptree.serve.keys import Caller

router = APIRouter(include_in_schema=False)

SMALL = 200_000
"""Bytes of a file, unpacked, that is looked at in a thread; a larger one is in a process of its own."""
Id = Annotated[str, Field(max_length=64)]
Label = str | int | float | list[str]


class Wanted(BaseModel):
    """What rows are chosen from, or scored on; it may be the training data itself, for its rows without a label."""

    model_config = ConfigDict(extra="forbid", strict=True)
    file: Id | None = None
    data: Id | None = None
    """The training data, where it was not kept."""
    rows: int = Field(20, ge=1, le=200)
    skip: list[int] = Field(default_factory=list, max_length=10_000)


class NewLabels(BaseModel):
    """Labels of rows of a file, and corrections of rows of the data, by their numbers."""

    model_config = ConfigDict(extra="forbid", strict=True)
    file: Id | None = None
    data: Id | None = None
    labels: dict[str, Label] = Field(default_factory=dict, max_length=10_000)
    corrections: dict[str, Label] = Field(default_factory=dict, max_length=10_000)


class _Asked:
    """Who asks about which task; raises a Problem if they may not, or there is none."""

    service: Service
    caller: Caller
    jobs: Jobs
    record: Record

    @classmethod
    async def of(cls, request: Request, task: str) -> _Asked:
        found = cls()
        found.service = service_of(request)
        found.caller = found.service.caller(request, "train")
        found.jobs = found.service.queue
        if "@" in task or "(" in task:
            raise Problem(404, "task_not_found", "a task is improved by its name.", hint="Leave out the version.")
        reference = await found.service.resolve(found.caller, task)
        found.record = await asyncio.to_thread(found.service.engine.store.record, reference)
        return found

    @property
    def name(self) -> str:
        return self.record.name

    def kept(self) -> improving.Kept | None:
        return improving.kept_data(self.jobs, self.record, self.caller.tenant)

    def candidate(self) -> improving.Candidate | None:
        return improving.candidate(self.service.engine.store, self.jobs, self.name, self.caller.tenant)

    def data(self, id: str | None) -> improving.Kept:
        """Return the training data: what was kept, or a file that was sent; raise a Problem if there is neither."""
        kept = self.kept()
        if kept is not None:
            return kept
        if id is None:
            raise Problem(409, "no_data", "the training data was not kept.", hint="Send the file again.")
        return improving.Kept(self.jobs.files.get(id, self.caller.tenant), improving.settings_of(self.record, None))

    async def compute(self, sizes: list[DataFile], function: Callable[..., Any], *given: Any) -> Any:
        """Return what a function returns that reads some files: in a thread, or in a process if they are large.

        Files among `given` are opened; `BASE` stands for the base, or its location.
        """
        base = self.service.engine.base

        def run() -> Any:
            with ExitStack() as opened:
                paths = [opened.enter_context(self.jobs.files.open(each)) if each in sizes else each for each in given]
                small = all(holds_little(each, SMALL) for each in paths if isinstance(each, Path))
                own = [(base if small else base.location) if each is BASE else each for each in paths]
                if small:
                    return function(*own)
                timeout = self.service.limits.check
                return elsewhere(function, *own, timeout=timeout, name=sizes[0].name)

        async with self.service.checks:
            try:
                return await asyncio.to_thread(run)
            except AdaptreeError as error:
                raise bad_data(error, self.jobs.files.folder) from error


BASE = object()


@router.post("/improve/{task:path}/choose")
async def choose(request: Request, task: str) -> Response:
    asked = await _Asked.of(request, task)
    wanted = receive.parse_as(Wanted, await receive.body(request, asked.service.limits))
    if wanted.file is None:
        raise Problem(422, "bad_input", "there is no file to choose rows from.", hint="Send one.")

    def find() -> tuple[DataFile, DataFile | None]:
        data = asked.data(wanted.data).file if wanted.data or asked.kept() else None
        return asked.jobs.files.get(str(wanted.file), asked.caller.tenant), data

    pool, data = await asyncio.to_thread(find)
    files = [pool] if data is None else [pool, data]
    where = asked.service.engine.store.location
    found = await asked.compute(
        files, improving.choose, where, asked.record.reference, BASE, pool, data, wanted.rows, wanted.skip, 0
    )
    return as_json(found)


@router.post("/improve/{task:path}/doubted")
async def doubted(request: Request, task: str) -> Response:
    asked = await _Asked.of(request, task)
    wanted = receive.parse_as(Wanted, await receive.body(request, asked.service.limits))
    kept = await asyncio.to_thread(asked.data, wanted.data)
    settings = improving.settings_of(asked.record, kept)
    return as_json({"doubted": await asked.compute([kept.file], improving.doubted, kept.file, BASE, settings)})


@router.post("/improve/{task:path}/train")
async def train(request: Request, task: str) -> Response:
    """Queue the job of a candidate."""
    asked = await _Asked.of(request, task)
    wanted = receive.parse_as(NewLabels, await receive.body(request, asked.service.limits))
    try:
        labels = {int(row): label for row, label in wanted.labels.items()}
        corrections = {int(row): label for row, label in wanted.corrections.items()}
    except ValueError:
        raise Problem(422, "bad_input", "rows have numbers.") from None
    job = await asyncio.to_thread(_queue, asked, wanted, labels, corrections)
    asked.service.metrics.jobs.inc()
    return as_json(job.to_json(), 202)


def _queue(asked: _Asked, wanted: NewLabels, labels: dict[int, Any], corrections: dict[int, Any]) -> Any:
    service, tenant, files, record = asked.service, asked.caller.tenant, asked.jobs.files, asked.record
    limits, kept = service.limits, asked.data(wanted.data)
    try:
        improving.check_free(service.engine.store, asked.jobs, asked.name, tenant)
        settings = improving.settings_of(record, kept)
        pool = None if wanted.file is None else files.get(wanted.file, tenant)
        with files.open(kept.file) as data, nullcontext() if pool is None else files.open(pool) as new:
            content, ending, options = improving.compose(
                record, data, settings, new, labels, corrections, apart="validation" in kept.more
            )
    except UsageError as error:
        raise Problem(422, "bad_input", error.what, hint=error.hint) from error
    except AdaptreeError as error:
        raise bad_data(error, files.folder) from error
    options = check_settings({**options, "name": f"{asked.name}{improving.NEXT}"})
    plain = asked.name.rpartition("/")[2]
    with files.receive() as incoming:
        incoming.write(content)
        file = files.keep(incoming, tenant, f"{plain}{improving.MARK}{ending}", most=limits.stored)
    try:
        base, encoder = service.base_info, service.engine.base.encoder
        with ExitStack() as opened:
            path = opened.enter_context(files.open(file))
            more = {part: opened.enter_context(files.open(each)) for part, each in kept.more.items()}
            found = check_file(
                path, options, base, encoder, more_files=more, most_rows=limits.job_rows, timeout=limits.check
            )
        return asked.jobs.add(
            tenant, file.id, options, True, more_files={part: each.id for part, each in kept.more.items()},
            base=base.fingerprint, rows=sum(found["parts"].values()),
            most_queued=limits.jobs_queued, most_running=limits.jobs_running, most_seconds=limits.job_seconds,
            most_rows=limits.rows_a_day,
        )  # fmt: skip
    except BaseException:
        files.delete(file.id)
        raise


@router.post("/improve/{task:path}/score")
async def score(request: Request, task: str) -> Response:
    """Score the version in use and its candidate on a labelled file."""
    asked = await _Asked.of(request, task)
    wanted = receive.parse_as(Wanted, await receive.body(request, asked.service.limits))
    found = await asyncio.to_thread(asked.candidate)
    if found is None or found.record is None or wanted.file is None:
        raise Problem(409, "wrong_state", "there is no candidate to compare with.", hint="Train one first.")
    file = await asyncio.to_thread(asked.jobs.files.get, wanted.file, asked.caller.tenant)
    both = [asked.record.reference, found.record.reference]
    where = asked.service.engine.store.location
    old, new = await asked.compute([file], improving.scores, where, both, BASE, file)
    metric = _metric(asked.record)
    return as_json({"metric": metric, "rows": old.get("rows"), "old": _score(old, metric), "new": _score(new, metric)})


def _score(result: dict[str, Any], metric: str) -> dict[str, Any]:
    return {"score": result["metrics"]["test"][metric], "interval": result["intervals"].get("test", {}).get(metric)}


@router.post("/improve/{task:path}/take")
async def take(request: Request, task: str) -> Response:
    asked = await _Asked.of(request, task)
    found = await asyncio.to_thread(_candidate, asked)
    reference = await asyncio.to_thread(improving.take, asked.service.engine.store, asked.name, found)
    await asyncio.to_thread(_forget, asked)
    return as_json({"task": reference})


@router.post("/improve/{task:path}/discard")
async def discard(request: Request, task: str) -> Response:
    asked = await _Asked.of(request, task)
    found = await asyncio.to_thread(_candidate, asked)
    await asyncio.to_thread(
        improving.discard, asked.service.engine.store, asked.jobs, found, asked.caller.tenant
    )  # fmt: skip
    await asyncio.to_thread(_forget, asked)
    return as_json({"discarded": found.job.id})


def _candidate(asked: _Asked) -> improving.Candidate:
    found = asked.candidate()
    if found is None:
        raise Problem(409, "wrong_state", "there is no candidate.", hint="Train one first.")
    return found


def _forget(asked: _Asked) -> None:
    asked.service.forget(asked.name)
    asked.service.forget(f"{asked.name}{improving.NEXT}")


@router.get("/improve/{task:path}")
async def show(request: Request, task: str) -> Response:
    asked = await _Asked.of(request, task)
    kept, found = await asyncio.gather(asyncio.to_thread(asked.kept), asyncio.to_thread(asked.candidate))
    record, metric = asked.record, _metric(asked.record)
    compared = None
    if found is not None and found.record is not None:
        compared = _compared(record, found.record, metric, same=found.same_rows)
    return page(
        request, "improve.html", asked.caller, record=record, metric=metric, part=_part(record), kept=kept,
        candidate=found, compared=compared, can_label=record.kind in improving.LABELLED,
        labels=[str(label) for label in record.labels] if record.kind in ("classify", "multilabel") else [],
        unlabelled=(record.data.get("left_out") or {}).get("without label", 0),
    )  # fmt: skip


def _metric(record: Record) -> str:
    scores = record.metrics.get(_part(record)) or {}
    return str(record.settings.get("metric") or next(iter(scores), "score"))


def _part(record: Record) -> str:
    return "test" if record.metrics.get("test") else "validation"


def _compared(old: Record, new: Record, metric: str, *, same: bool) -> dict[str, Any]:
    """Return the scores of both on the held-out rows."""

    def of(record: Record) -> dict[str, Any]:
        value = (record.metrics.get("validation") or {}).get(metric)
        return {"reference": record.reference, "score": value, "rows": record.data.get("rows"),
                "interval": (record.intervals.get("validation") or {}).get(metric)}  # fmt: skip

    both = of(old), of(new)
    gain = None if None in (both[0]["score"], both[1]["score"]) else both[1]["score"] - both[0]["score"]
    held = new.data.get("validation") or 0
    better = gain is not None and (gain < 0 if metric in LOWER_IS_BETTER else gain > 0)
    return {
        "old": both[0], "new": both[1], "gain": gain, "held": held, "same": same, "better": better,
        "sure": gain is not None and all(abs(gain) > _half(side["interval"]) for side in both),
    }  # fmt: skip


def _half(interval: Any) -> float:
    """Return how far a score can be off by chance: half of its interval."""
    low, high = interval if interval and None not in interval else (0.0, 2.0)
    return float(high - low) / 2

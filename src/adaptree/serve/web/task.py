"""The page of a task: try it, use it, how good it is, its versions, where it comes from, and its card."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from markupsafe import Markup

from adaptree import kinds
from adaptree.analysis.attribution import STEPS, explain_words
from adaptree.errors import AdaptreeError
from adaptree.hub import pages, site
from adaptree.hub.pages import Link
from adaptree.reports import card, html_page
from adaptree.serve import receive
from adaptree.serve.improving import kept_data
from adaptree.serve.keys import Caller
from adaptree.serve.predicting import as_json
from adaptree.serve.problems import Problem, problem_of
from adaptree.serve.receive import check_input, parse_as
from adaptree.serve.schemas import TaskRequest
from adaptree.serve.service import Service
from adaptree.serve.shelf import is_composition
from adaptree.serve.web import quality
from adaptree.serve.web.frame import HEADERS, may, page, service_of, task_address
from adaptree.serve.web.sign_in import form
from adaptree.serve.web.snippets import examples, fields_of, snippets
from adaptree.tasks.record import Record
from adaptree.tasks.summary import Row, Summary, fields
from adaptree.tasks.versions import rollback

router = APIRouter(include_in_schema=False)

LONGEST = 2000
"""Characters of an input whose words are scored."""
ELSEWHERE = ("Where it goes wrong", "Where it is right", "Label by label", "How sure it is", "How far off it is",
             card.LOADING)  # fmt: skip
"""Sections of a card that a page shows in its own way."""
COURSE = "course.svg"


@dataclass(frozen=True)
class About:
    """What a page says of a task."""

    record: Record
    served: bool
    history: Sequence[Summary]
    tags: Mapping[int, Sequence[str]]
    notes: Mapping[int, Sequence[str]]
    parents: Sequence[Link]
    children: Sequence[str]
    facts: Markup
    card: Markup
    purpose: str


@router.get("/task/{task:path}")
async def show(request: Request, task: str) -> Response:
    service = service_of(request)
    caller = service.caller(request, "predict")
    if is_composition(task):
        return RedirectResponse(f"/compose?{urlencode({'expression': task})}", 303, HEADERS)
    reference = await service.resolve(caller, task)
    name = reference.partition("@")[0]
    try:
        rows = await service.rows(caller)
        about = await asyncio.to_thread(_about, service, caller, reference, rows)
        all_rows = may(caller, "train") and await asyncio.to_thread(_is_kept, service, caller, about.record)
    except AdaptreeError as error:
        raise problem_of(error) from error
    record = about.record
    return page(
        request, "task.html", caller,
        about=about, record=record, name=name, reference=record.reference,
        asked=task if "@" in task else name,
        newest=about.history[-1].version if about.history else record.version,
        quality=quality.of_record(record, rows=may(caller, "train")), all_rows=all_rows, fields=fields_of(record),
        examples=examples(record) if may(caller, "train") else [],
        snippets=snippets(record, name, url_of(request), keyed=service.keys is not None),
        used=service.counts.used(name), since=service.counts.since,
        can_explain=record.kind != "mlm", can_improve=_has(request, "/improve/") and may(caller, "train"),
    )  # fmt: skip


def _is_kept(service: Service, caller: Caller, record: Record) -> bool:
    """Return whether the data that a version was trained on is here."""
    return service.has_jobs and kept_data(service.queue, record, caller.tenant) is not None


def url_of(request: Request) -> str:
    """Return the server's address as its caller sees it."""
    scheme = "https" if request.headers.get("x-forwarded-proto") == "https" else request.url.scheme
    return f"{scheme}://{request.url.netloc}"


def _has(request: Request, start: str) -> bool:
    return any(path.startswith(start) for path in request.app.state.pages)


def _about(service: Service, caller: Caller, reference: str, rows: Sequence[Row]) -> About:
    store, name = service.engine.store, reference.partition("@")[0]
    record = store.record(reference)
    history = store.history(name)
    tags: dict[int, list[str]] = {}
    for tag, version in store.tags(name).items():
        tags.setdefault(version, []).append(tag)
    theirs = f"{caller.tenant}/" if caller.tenant else ""
    return About(
        record=record,
        served=record.base.get("fingerprint") == service.engine.base.fingerprint,
        history=history,
        tags=tags,
        notes={each.version: store.notes(f"{name}@{each.version}") for each in history},
        parents=[each for each in site.parents(record) if each.name.startswith(theirs)],
        children=[row.summary.name for row in rows if name in row.text and name in _made_of(row)],
        facts=Markup(pages.facts(record, site.languages(record))),
        card=_card(service, record, with_examples=may(caller, "train")),
        purpose=(found.describe(record) if (found := kinds.find(record.kind)) else ""),
    )


def _made_of(row: Row) -> set[str]:
    """Return the names of the tasks that a task comes from."""
    said = fields(row.text).get("made of", "")
    return {each.partition("@")[0] for each in re.findall(r"[a-z0-9_/-]+@\d+", said)}


def _card(service: Service, record: Record, *, with_examples: bool) -> Markup:
    """Return the sections of a task's card that the page has nowhere else, with the picture of its training."""
    images = {COURSE: f"![Loss and score by epoch]({COURSE})"}
    drawn = pages.pictures(record, service.engine.store.path_of(record.reference))
    hidden = ELSEWHERE if with_examples else (*ELSEWHERE, "Examples")
    shown = [
        html_page.to_html(each, lambda path: drawn.get(path) if path == COURSE else None)
        for each in card.sections(record, images)[1:]
        if each.partition("\n")[0].removeprefix("## ") not in hidden
    ]
    return Markup("\n".join(shown).replace("<h2 ", "<h3 ").replace("</h2>", "</h3>"))


@router.get("/use/{task:path}")
async def use(request: Request, task: str) -> Response:
    """Show what to type to use a task: a piece of a page."""
    service = service_of(request)
    caller = service.caller(request, "predict")
    reference = await service.resolve(caller, task)
    record = await asyncio.to_thread(service.engine.store.record, reference)
    name = reference.partition("@")[0]
    found = snippets(record, name, url_of(request), keyed=service.keys is not None)
    return page(request, "use.html", caller, name=name, snippets=found)


@router.post("/rollback")
async def roll_back(request: Request) -> Response:
    """Make an earlier version of a task the newest one again."""
    service = service_of(request)
    caller = service.caller(request, "train")
    reference = await service.resolve(caller, (await form(request)).get("task", ""))
    if is_composition(reference) or "@" not in reference:
        raise Problem(422, "bad_input", "a version is needed.", hint="reviews@2")
    try:
        await asyncio.to_thread(rollback, service.engine.store, reference)
    except AdaptreeError as error:
        raise problem_of(error) from error
    name = reference.partition("@")[0]
    await asyncio.to_thread(service.forget, name)
    return RedirectResponse(f"{task_address(name)}#versions", 303, HEADERS)


@router.post("/words/{task:path}")
async def words(request: Request, task: str) -> Response:
    """Score the words of one input for what is predicted of it."""
    service = service_of(request)
    caller = service.caller(request, "predict")
    receive.content_type(request, receive.JSON)
    wanted = parse_as(TaskRequest, await receive.body(request, service.limits))
    if len(wanted.inputs) != 1:
        raise Problem(422, "bad_input", "one input at a time.", hint='{"inputs": ["a text"]}')
    given, length = check_input(wanted.inputs[0], service.limits, "input 0")
    if length > LONGEST:
        what = f"the text has {length:,} characters, and the words of {LONGEST:,} can be scored here."
        raise Problem(413, "too_large", what, hint="Cut it, or: adaptree explain TASK TEXT")
    reference = await service.resolve(caller, task)
    service.count_texts(request, caller, STEPS[0])  # so many passes it takes at least
    async with service.heavy:
        try:
            found = await asyncio.to_thread(_words, service, reference, given)
        except AdaptreeError as error:
            raise problem_of(error) from error
    return as_json({"explanations": found})


def _words(service: Service, reference: str, given: Any) -> list[dict[str, Any]]:
    base, store = service.engine.base, service.engine.store
    bound = base.bind(reference, tasks=store) if is_composition(reference) else base.bind(store[reference])
    return [each.to_dict() for each in explain_words(bound, [given])]

"""Compose: pick tasks and an operator, see what it does, try it, keep it as a task."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from markupsafe import Markup

from adaptree.compose import Expression, Fuse, Name, Parallel, Rows, parse
from adaptree.errors import AdaptreeError
from adaptree.serve.keys import Caller
from adaptree.serve.problems import Problem, problem_of
from adaptree.serve.service import Service, qualified
from adaptree.serve.web import algebra
from adaptree.serve.web.frame import HEADERS, page, service_of, task_address
from adaptree.serve.web.sign_in import form
from adaptree.serve.web.snippets import Field, fields_of, snippets
from adaptree.serve.web.task import url_of
from adaptree.tasks.record import Record
from adaptree.training import composing

router = APIRouter(include_in_schema=False)

OPERATORS = {
    "stack": "Stack: one acts on top of the other",
    "average": "Average the weights: one task at the price of one",
    "average_outputs": "Average the outputs: all run",
    "drop": "Drop layers: faster",
    "parallel": "Parallel: each answers",
    "fuse": "Fuse: learned attention (has to be trained)",
}
MOST_NAMES = 2000
"""Tasks that are offered as one types."""
Text = Annotated[str, Query(max_length=1000)]


@dataclass(frozen=True)
class Composed:
    """A composition that can be read: its picture, its price, and how it is tried."""

    text: str
    meaning: str
    picture: Markup
    parts: tuple[Record, ...]
    fields: list[Field]
    snippets: dict[str, str]
    answers: str
    """What the try-it box asks: the composition, '' where it has to be trained first; its parts where each answers."""
    several: tuple[str, ...] = ()
    keeps: bool = False
    """Whether it can be kept as a task of its own."""
    problem: str = ""
    """Why it cannot answer, though it can be read."""

    @property
    def trained(self) -> int:
        return sum(record.parameters.get("trained", 0) for record in self.parts)

    @property
    def bytes(self) -> int:
        return sum(record.file_bytes for record in self.parts)


@router.get("/compose")
async def compose(request: Request, expression: Text = "") -> Response:
    service = service_of(request)
    caller = service.caller(request, "predict")
    rows = [row.summary for row in await service.rows(caller)]
    base = service.engine.base.fingerprint
    names = [each.name for each in rows if not each.problem and each.fingerprint == base][:MOST_NAMES]
    found, problem = await _read(request, caller, expression)
    some = [each.name for each in rows if each.name in names and each.kind not in ("answer", "choose")][:2]
    return page(
        request, "compose.html", caller, expression=expression, names=names, operators=OPERATORS, composed=found,
        problem=problem or (found.problem if found else ""),
        ideas=[] if expression else await asyncio.to_thread(_ideas, service, some),
    )  # fmt: skip


def _ideas(service: Service, names: list[str]) -> list[str]:
    """Return compositions to begin with, of those that these tasks allow."""
    both = [f"{each}({', '.join(names)})" for each in ("parallel", "stack", "average")] if len(names) == 2 else []
    some = [*both, *(f"drop({name}, layers='0-2')" for name in names[:1])]
    return [each for each in some if each.startswith("parallel") or not _why_not(service, parse(each))]


def _why_not(service: Service, expression: Expression) -> str:
    """Return why a composition cannot answer; '' if it can."""
    try:
        service.engine.base.bind(expression, tasks=service.engine.store)
    except AdaptreeError as error:
        return _said(error)
    return ""


@router.post("/compose")
async def keep(request: Request) -> Response:
    """Keep a composition as a task of its own."""
    service = service_of(request)
    caller = service.caller(request, "train")
    said = await form(request)
    expression = await service.resolve(caller, said.get("expression", ""))
    name = qualified(caller.tenant, said.get("name", "").strip())
    if name is None:
        what = f"'{said.get('name', '')[:60]}' cannot be a task's name."
        raise Problem(422, "bad_input", what, hint="Try 'both': 1 to 64 of a-z, 0-9, '_' and '-'.")
    store, base = service.engine.store, service.engine.base
    try:
        await asyncio.to_thread(lambda: composing.compose(expression, name=name, store=store, base=base))
    except AdaptreeError as error:
        raise problem_of(error) from error
    await asyncio.to_thread(service.forget, name)
    return RedirectResponse(task_address(name), 303, HEADERS)


async def _read(request: Request, caller: Caller, text: str) -> tuple[Composed | None, str]:
    """Return what a composition is, and what is wrong with it."""
    service = service_of(request)
    if not text.strip():
        return None, ""
    try:
        resolved = await service.resolve(caller, text.strip())
        return await asyncio.to_thread(_composed, service, text.strip(), resolved, url_of(request)), ""
    except (Problem, AdaptreeError) as error:
        return None, _said(error)


def _said(error: Exception) -> str:
    """Return an error as a caller may see it: without paths of the server."""
    problem = problem_of(error)
    return " ".join(filter(None, [problem.message, problem.hint]))


def _composed(service: Service, said: str, resolved: str, url: str) -> Composed:
    expression = parse(resolved)
    store = service.engine.store
    records = {name: store.record(name) for name in dict.fromkeys(expression.names)}
    if not records:
        raise Problem(422, "bad_input", "there is no task in it.", hint="Try stack(a, b).")
    last = records[expression.names[-1]]
    several = isinstance(expression, Parallel | Rows)
    problem = "" if several or isinstance(expression, Fuse) else _why_not(service, expression)
    shown = snippets(last, said, url, keyed=service.keys is not None)
    if problem:
        shown = {}
    elif isinstance(expression, Fuse):
        shown = {"Train it": f"adaptree compose {shlex.quote(said)} --name NAME --train DATA"}
    elif several:
        shown = {"Command line": f"adaptree predict {shlex.quote(said)} 'a text'"}
    else:
        shown["Command line"] = f"adaptree predict {shlex.quote(said)} 'a text'"
        if not isinstance(expression, Name) and expression.block != "average_outputs":
            shown["Keep it"] = f"adaptree compose {shlex.quote(said)} --name NAME"
    return Composed(
        text=said,
        meaning=algebra.meaning(expression),
        picture=algebra.picture(expression, service.engine.base.name),
        parts=tuple(records.values()),
        fields=fields_of(last),
        snippets=shown,
        answers="" if several or problem or isinstance(expression, Fuse) else said,
        several=tuple(repr(part) for part in expression.parts) if several else (),
        keeps="Keep it" in shown,
        problem=problem,
    )

"""What all pages share: the templates, the navigation, the policy for browsers, and errors as pages.

    return page(request, "tasks.html", caller, rows=rows)

A template extends base.html. It holds no script and no style, as the policy allows neither: those are files in
static/, which `{{ static("tasks.js") }}` addresses.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from adaptree import __version__
from adaptree.reports.text import amount, printable
from adaptree.reports.times import duration
from adaptree.serve.keys import Caller
from adaptree.serve.problems import Problem
from adaptree.serve.web import static

if TYPE_CHECKING:
    from adaptree.serve.service import Service

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""What a browser may load and run for a page: our own files and no other, and nothing that is written into the page."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
    "Vary": "Cookie",
}
MACHINES = ("/v1/", "/v2/", "/metrics", "/health", "/ready", "/openapi.json", "/static/")
"""Addresses whose errors are for programs."""


class Place(NamedTuple):
    """A page of the navigation."""

    path: str
    name: str
    scope: str = "predict"
    """What a key must be for to open it."""
    below: tuple[str, ...] = ()
    """Where the addresses of pages begin that belong to it."""
    of_all: bool = False
    """Whether it is about everybody, and so not for a tenant."""


PLACES = (
    Place("/", "Tasks", below=("/task/", "/improve/")),
    Place("/new", "New task", "train"),
    Place("/jobs", "Jobs", "train", ("/jobs/",)),
    Place("/all", "All at once"),
    Place("/methods", "Methods"),
    Place("/compose", "Compose"),
    Place("/server", "Server", "admin", of_all=True),
)


def page(request: Request, template: str, caller: Caller | None, status: int = 200, **values: Any) -> Response:
    """Return a page. `caller` is who asks, for the navigation; None where that is not known."""
    found = _environment().get_template(template).render(
        request=request, caller=caller, keyed=service_of(request).keys is not None,
        places=places(request, caller), here=_here(request.url.path), **values,
    )  # fmt: skip
    return HTMLResponse(found, status, HEADERS)


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def places(request: Request, caller: Caller | None) -> list[Place]:
    """Return the pages that this server has, and this caller may open."""
    if caller is None:
        return []
    there: frozenset[str] = request.app.state.pages
    mine = [each for each in PLACES if each.path in there and may(caller, each.scope)]
    return [each for each in mine if not (each.of_all and caller.tenant)]


def may(caller: Caller, scope: str) -> bool:
    """Return whether a caller may do what needs a scope."""
    return caller.key is None or bool({scope, "admin"} & set(caller.key.scopes))


def _here(path: str) -> str:
    """Return the navigation's page that an address belongs to; '' for none."""
    found = (each.path for each in PLACES if path == each.path or path.startswith(each.below or ("//",)))
    return next(found, "")


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("adaptree.serve.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"static": static.address, "version": __version__, "task_address": task_address, "may": may}
    found.filters |= {
        "printable": printable,
        "amount": amount,
        "duration": duration,
        "bytes": size,
        "score": score,
        "count": lambda number: f"{number:,}",
    }
    return found


def task_address(name: str) -> str:
    """Return the address of a task's page; a name may have a slash and a version."""
    return f"/task/{quote(name, safe='/@')}"


def size(count: float) -> str:
    """Return bytes as text: 900 B, 1.2 MB."""
    units = ["B", "KB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.0f} {units[0]}" if units[0] == "B" else f"{count:.1f} {units[0]}"


def score(value: float | None) -> str:
    """Return a score as text: 0.934, 12.8; '–' for none."""
    if value is None:
        return "–"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


# Errors


def wants_page(request: Request) -> bool:
    """Return whether an error is for a person: a browser opens a page, and no program asks for data."""
    return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith(MACHINES)


def problem_page(request: Request, problem: Problem) -> Response:
    """Return an error as a page; who has no key, or one that is no longer valid, is led to the sign-in."""
    if problem.status == 401 and request.method == "GET":
        return to_sign_in(request)
    caller = service_of(request).known_caller(request)
    found = page(request, "problem.html", caller, problem.status, problem=problem)
    found.headers.update({key: value for key, value in problem.headers.items() if key != "WWW-Authenticate"})
    return found


def to_sign_in(request: Request) -> Response:
    back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    where = "/sign-in" if back == "/" else f"/sign-in?{urlencode({'next': back})}"
    return RedirectResponse(where, 303, HEADERS)

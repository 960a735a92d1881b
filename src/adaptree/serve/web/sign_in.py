"""Sign in and out: where the server has keys, an API key becomes a cookie that scripts cannot read.

The cookie is SameSite=Strict, so that pages of others cannot use it; and the server refuses whatever another site's
page sends (`serve/front.py`).
"""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from adaptree.serve import receive
from adaptree.serve.keys import COOKIE
from adaptree.serve.problems import Problem
from adaptree.serve.web.frame import HEADERS, page, service_of

FORM = "application/x-www-form-urlencoded"
DAYS = 30

router = APIRouter(include_in_schema=False)


async def form(request: Request) -> dict[str, str]:
    """Return the fields of a form, the first value of each; raise a Problem for a body that is none."""
    receive.content_type(request, FORM)
    data = await receive.body(request, service_of(request).limits)
    try:
        said = parse_qs(data.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=200)
    except ValueError:
        raise Problem(422, "bad_input", "the form cannot be read.", hint="Reload the page.") from None
    return {name: values[0] for name, values in said.items()}


def local(address: str) -> str:
    """Return an address of this server as it is, and '/' for any other."""
    safe = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return address if safe and len(address) <= 2000 else "/"


@router.get("/sign-in")
async def sign_in(request: Request, next: str = "/") -> Response:
    if service_of(request).keys is None:
        return RedirectResponse(local(next), 303, HEADERS)
    return page(request, "sign-in.html", None, next=local(next), problem="")


@router.post("/sign-in")
async def signed_in(request: Request) -> Response:
    keys = service_of(request).keys
    said = await form(request)
    back = local(said.get("next", "/"))
    if keys is None:
        return RedirectResponse(back, 303, HEADERS)
    key = said.get("key", "").strip()
    try:
        keys.caller(f"Bearer {key}" if key else None)
    except Problem as problem:
        return page(request, "sign-in.html", None, 401, next=back, problem=problem.message)
    done = RedirectResponse(back, 303, HEADERS)
    done.set_cookie(
        COOKIE, key, max_age=DAYS * 86_400, path="/", httponly=True, samesite="strict", secure=_is_secure(request)
    )
    return done


@router.post("/sign-out")
async def signed_out(request: Request) -> Response:
    done = RedirectResponse("/sign-in", 303, HEADERS)
    done.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict", secure=_is_secure(request))
    return done


def _is_secure(request: Request) -> bool:
    """Return whether the browser talks TLS, to us or to a proxy that says so."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "") == "https"

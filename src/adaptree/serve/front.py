"""What every request passes first and last: its id, how many are under way, its line of log, and errors of ours."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adaptree.serve.problems import Problem, problem_of

if TYPE_CHECKING:
    from adaptree.serve.service import Service
    from adaptree.serve.traces import Traces

ID = b"x-request-id"
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
SAFE = {"GET", "HEAD", "OPTIONS"}
"""Methods that change nothing."""
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_PORT = re.compile(r":\d*$")
QUIET = {"/health", "/ready", "/v2/health/live", "/v2/health/ready", "/metrics", "/static/{mark}/{name}"}
"""Routes that have no line of log: they are asked every few seconds, or many times for a page."""
GONE = 499
"""The status, in log and figures, of a request whose client went away."""


class Front:
    """Middleware around all routes."""

    def __init__(self, app: ASGIApp, service: Service, traces: Traces | None = None) -> None:
        self.app, self.service, self.traces = app, service, traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        headers = dict(scope["headers"])
        asked = headers.get(ID, b"")
        id = asked if _ID.fullmatch(asked) else secrets.token_hex(8).encode()
        state = scope.setdefault("state", {})
        state["id"] = id.decode()
        status = 0
        patience = self.service.limits.receive

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (ID, id)]
                await send(message)
            elif message.get("more_body"):  # a client that does not take its answer must not hold it for ever
                await asyncio.wait_for(send(message), patience)
            else:
                await send(message)

        self.service.in_flight += 1
        span = self.traces.begin(headers, scope["method"], state["id"]) if self.traces is not None else None
        try:
            if (problem := self._refused(scope["method"], headers)) is not None:
                await send_problem(problem, answer)
            else:
                await self.app(scope, receive, answer)
        except (ClientDisconnect, TimeoutError):
            status = GONE
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                self.service.log.failure(error, state["id"])
            if status:  # the answer has begun: it can only be cut off
                raise ConnectionError("the answer was cut off") from None
            await send_problem(problem, answer)
        finally:
            self.service.in_flight -= 1
            route = self._note(scope, status or GONE, time.perf_counter() - began)
            if span is not None:
                span.end(route, status or GONE, state)

    def _refused(self, method: str, headers: dict[bytes, bytes]) -> Problem | None:
        service = self.service
        if service.in_flight > service.limits.in_flight:
            most = f"more than {service.limits.in_flight:,} requests are under way."
            return Problem(429, "too_busy", most, hint="Try again in 1 s.")
        host = _PORT.sub("", headers.get(b"host", b"").decode("latin-1")).lower()
        if service.hosts and host and host not in service.hosts:
            what = "this server answers only to its own names, as it runs without keys."
            return Problem(403, "wrong_host", what, hint="Ask 127.0.0.1, or start it with --keys.")
        if method not in SAFE and b"authorization" not in headers and _is_of_another_site(headers):
            return Problem(403, "cross_site", "a page of another site sent this.", hint="Open this server's own page.")
        return None

    def _note(self, scope: Scope, status: int, seconds: float) -> str:
        route: str = getattr(scope.get("route"), "path_format", "other")
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        self.service.metrics.request(route, method, status, seconds)
        if route in QUIET and status < 400:
            return route
        state = scope["state"]
        self.service.log.write(
            request=state["id"],
            method=method,
            route=route,
            status=status,
            ms=round(1000 * seconds, 2),
            tenant=state.get("tenant", ""),
            tasks=state.get("tasks", 0),
            texts=state.get("texts", 0),
        )
        return route


def _is_of_another_site(headers: dict[bytes, bytes]) -> bool:
    """Return whether a browser says that another site's page sends a request; programs say nothing of it."""
    if (site := headers.get(b"sec-fetch-site")) is not None:
        return site not in (b"same-origin", b"none")
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower()


async def send_problem(problem: Problem, send: Send) -> None:
    """Send an error."""
    body = problem.to_json()
    more: dict[str, str] = {**problem.headers, **({"Connection": "close"} if problem.closes else {})}
    headers: list[Any] = [(name.lower().encode(), value.encode()) for name, value in more.items()]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

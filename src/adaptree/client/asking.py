"""What both clients send, and what they make of the answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from adaptree.errors import AdaptreeError

RETRIES = 5
BUSY = (429, 503)
"""Statuses after which a request is sent again."""
LONGEST_PAUSE = 30.0
File = str | Path
Input = str | Sequence[str] | dict[str, Any]
"""A text; a pair of texts, or words; or a dict: {"question": …, "context": …}."""


class ServerError(AdaptreeError):
    """What a server answered instead of what was asked for."""

    def __init__(self, status: int, code: str, what: str, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.status, self.code = status, code


def _httpx() -> ModuleType:
    try:
        import httpx2
    except ModuleNotFoundError as error:
        raise AdaptreeError("the client needs httpx2.", hint='pip install "adaptree[client]"') from error
    return httpx2


class Requests:
    """What both clients send, and what they make of the answers."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 60.0, retries: int = RETRIES) -> None:
        self.httpx = _httpx()
        self.url, self.retries = url.rstrip("/"), retries
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.options: dict[str, Any] = {"base_url": self.url, "headers": headers, "timeout": timeout}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def pause(self, answer: Any, tries: int) -> float | None:
        """Return how long to wait before a request is sent again; None if it is not."""
        if answer.status_code not in BUSY or tries >= self.retries:
            return None
        try:
            wanted = float(answer.headers.get("retry-after", ""))
        except ValueError:
            wanted = 0.1 * 2**tries
        if wanted > LONGEST_PAUSE:  # a quota, for one: not in this call
            return None
        return wanted * (1 + 0.1 * random.random())  # not all clients at the same moment

    def read(self, answer: Any) -> Any:
        """Return an answer's JSON; raise the error that it says."""
        try:
            said = answer.json()
        except ValueError:
            said = None
        if answer.status_code < 400 and said is not None:
            return said
        error = said.get("error") if isinstance(said, dict) else None
        if not isinstance(error, dict):
            raise ServerError(
                answer.status_code, "", f"{self.url} answered {answer.status_code}, and not as adaptree does."
            )
        raise error_of(answer.status_code, error)

    def predictions(self, said: Any, return_errors: bool) -> list[Any]:
        """Return the predictions of a mixed request; its errors in their places, or raise the first of them."""
        found = [
            error_of(200, each["error"]) if isinstance(each.get("error"), dict) else each
            for each in said["predictions"]
        ]
        if not return_errors:
            for each in found:
                if isinstance(each, ServerError):
                    raise each
        return found

    def unreachable(self, error: Exception) -> AdaptreeError:
        return ServerError(0, "unreachable", f"{self.url} does not answer ({type(error).__name__}).", "adaptree serve")


def error_of(status: int, said: dict[str, Any]) -> ServerError:
    return ServerError(status, *(str(said.get(name, "")) for name in ("code", "message", "hint")))


def path_of(task: str) -> str:
    return f"/v1/tasks/{quote(task, safe='/@')}"


def given(value: Input) -> Any:
    return value if isinstance(value, str | dict) else list(value)


def options_of(top_k: int | None, min_score: float | None, timeout: float | None) -> dict[str, Any]:
    values = {"top_k": top_k, "min_score": min_score, "timeout": timeout}
    return {name: value for name, value in values.items() if value is not None}


def item_of(task: str, given: Input) -> dict[str, Any]:
    if isinstance(given, str):
        return {"task": task, "text": given}
    if isinstance(given, dict):
        return {"task": task, **given}
    first, second = given
    return {"task": task, "text": first, "text_pair": second}


def listing(limit: int, after: str, search: str) -> dict[str, Any]:
    return {"limit": limit, **({"after": after} if after else {}), **({"search": search} if search else {})}


def files_of(file: File, validation: File | None, test: File | None, descriptions: File | None) -> dict[str, File]:
    """Return the files of a job by what they are."""
    given = {"file": file, "validation": validation, "test": test, "descriptions": descriptions}
    return {part: each for part, each in given.items() if each is not None}


def upload_of(file: File) -> tuple[str, dict[str, Any]]:
    """Return a file's path, and the options of the request that sends it."""
    path = Path(file).expanduser()
    return str(path), {"params": {"name": path.name}, "headers": {"Content-Type": "application/octet-stream"}}

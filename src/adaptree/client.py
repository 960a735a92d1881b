"""A client of `adaptree serve`.

    client = Client("http://127.0.0.1:8080", key="at_…")
    client.predict("reviews", ["great phone"])                  # [{"label": …, "score": …, "scores": {…}}]
    client.predict_mixed([("reviews", "great phone"), ("tickets", "it does not start")])

    async with AsyncClient("http://127.0.0.1:8080") as client:
        await client.predict("reviews", ["great phone"])

A server that is busy is asked again, when it says so. An error of the server is an AdaptreeError with its message and
hint, and its status and code.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Self
from urllib.parse import quote

from adaptree.errors import AdaptreeError

RETRIES = 5
BUSY = (429, 503)
"""Statuses after which a request is sent again."""
LONGEST_PAUSE = 30.0
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


class _Requests:
    """What both clients send, and what they make of the answers."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 60.0, retries: int = RETRIES) -> None:
        self._httpx = _httpx()
        self.url, self.retries = url.rstrip("/"), retries
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._options: dict[str, Any] = {"base_url": self.url, "headers": headers, "timeout": timeout}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _pause(self, answer: Any, tries: int) -> float | None:
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

    def _read(self, answer: Any) -> Any:
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
        raise ServerError(
            answer.status_code,
            str(error.get("code", "")),
            str(error.get("message", "")),
            str(error.get("hint", "")),
        )

    def _unreachable(self, error: Exception) -> AdaptreeError:
        return ServerError(0, "unreachable", f"{self.url} does not answer ({type(error).__name__}).", "adaptree serve")


def _path(task: str) -> str:
    return f"/v1/tasks/{quote(task, safe='/@')}"


def _given(value: Input) -> Any:
    return value if isinstance(value, str | dict) else list(value)


def _options(top_k: int | None, min_score: float | None, timeout: float | None) -> dict[str, Any]:
    values = {"top_k": top_k, "min_score": min_score, "timeout": timeout}
    return {name: value for name, value in values.items() if value is not None}


def _item(task: str, given: Input) -> dict[str, Any]:
    if isinstance(given, str):
        return {"task": task, "text": given}
    if isinstance(given, dict):
        return {"task": task, **given}
    first, second = given
    return {"task": task, "text": first, "text_pair": second}


def _listing(limit: int, after: str, search: str) -> dict[str, Any]:
    return {"limit": limit, **({"after": after} if after else {}), **({"search": search} if search else {})}


class Client(_Requests):
    """Asks a server, and waits for its answer; may be used by several threads."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 60.0, retries: int = RETRIES) -> None:
        super().__init__(url, key=key, timeout=timeout, retries=retries)
        self._client = self._httpx.Client(**self._options)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        tries = 0
        while True:
            try:
                answer = self._client.request(method, path, **options)
            except self._httpx.TransportError as error:
                raise self._unreachable(error) from error
            pause = self._pause(answer, tries)
            if pause is None:
                return self._read(answer)
            tries += 1
            time.sleep(pause)

    def predict(
        self,
        task: str,
        inputs: Sequence[Input],
        *,
        top_k: int | None = None,
        min_score: float | None = None,
        timeout: float | None = None,
    ) -> list[dict[str, Any]]:
        """Return a prediction for each input, as `adaptree predict --format jsonl` prints it."""
        body = {"inputs": [_given(each) for each in inputs], **_options(top_k, min_score, timeout)}
        found: list[dict[str, Any]] = self._ask("POST", f"{_path(task)}/predict", json=body)["predictions"]
        return found

    def predict_mixed(self, items: Iterable[tuple[str, Input]], *, top_k: int | None = None) -> list[dict[str, Any]]:
        """Return a prediction for each (task, input); the server computes them together."""
        body = {"items": [_item(task, given) for task, given in items], **_options(top_k, None, None)}
        found: list[dict[str, Any]] = self._ask("POST", "/v1/predict", json=body)["predictions"]
        return found

    def tasks(self, *, search: str = "") -> list[dict[str, Any]]:
        """Return what `adaptree list` shows of each task; with words to search for, the best match first."""
        found: list[dict[str, Any]] = []
        after = ""
        while True:
            page = self._ask("GET", "/v1/tasks", params=_listing(1000, after, search))
            found += page["tasks"]
            if page["next"] is None:
                return found
            after = page["next"]

    def task(self, task: str) -> dict[str, Any]:
        """Return a task's record."""
        found: dict[str, Any] = self._ask("GET", _path(task))
        return found

    def upload(self, file: str | Path, *, name: str | None = None) -> list[dict[str, Any]]:
        """Add the tasks of a file that `adaptree export` wrote; return what became of each."""
        path = Path(file).expanduser()
        params = {} if name is None else {"name": name}
        headers = {"Content-Type": "application/octet-stream"}
        body = path.read_bytes()
        found: list[dict[str, Any]] = self._ask("POST", "/v1/tasks", params=params, headers=headers, content=body)[
            "tasks"
        ]
        return found

    def remove(self, task: str) -> int:
        """Remove a task, or one version of it; return how many versions that were."""
        return int(self._ask("DELETE", _path(task))["removed"])

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Requests):
    """The same in a coroutine."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 60.0, retries: int = RETRIES) -> None:
        super().__init__(url, key=key, timeout=timeout, retries=retries)
        self._client = self._httpx.AsyncClient(**self._options)

    async def _ask(self, method: str, path: str, **options: Any) -> Any:
        tries = 0
        while True:
            try:
                answer = await self._client.request(method, path, **options)
            except self._httpx.TransportError as error:
                raise self._unreachable(error) from error
            pause = self._pause(answer, tries)
            if pause is None:
                return self._read(answer)
            tries += 1
            await asyncio.sleep(pause)

    async def predict(
        self,
        task: str,
        inputs: Sequence[Input],
        *,
        top_k: int | None = None,
        min_score: float | None = None,
        timeout: float | None = None,
    ) -> list[dict[str, Any]]:
        """Return a prediction for each input, as `adaptree predict --format jsonl` prints it."""
        body = {"inputs": [_given(each) for each in inputs], **_options(top_k, min_score, timeout)}
        found: list[dict[str, Any]] = (await self._ask("POST", f"{_path(task)}/predict", json=body))["predictions"]
        return found

    async def predict_mixed(
        self, items: Iterable[tuple[str, Input]], *, top_k: int | None = None
    ) -> list[dict[str, Any]]:
        """Return a prediction for each (task, input); the server computes them together."""
        body = {"items": [_item(task, given) for task, given in items], **_options(top_k, None, None)}
        found: list[dict[str, Any]] = (await self._ask("POST", "/v1/predict", json=body))["predictions"]
        return found

    async def task(self, task: str) -> dict[str, Any]:
        """Return a task's record."""
        found: dict[str, Any] = await self._ask("GET", _path(task))
        return found

    async def close(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

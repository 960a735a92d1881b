"""The clients: one that waits for its answers, and one for coroutines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, overload
from urllib.parse import quote

from adaptree.client.asking import (
    RETRIES,
    File,
    Input,
    Requests,
    files_of,
    given,
    item_of,
    listing,
    options_of,
    path_of,
    upload_of,
)
from adaptree.client.jobs import AsyncJob, Job
from adaptree.client.texts import CHATS, COMPLETIONS, Completion, Pieces, completion_of


class _again:  # noqa: N801
    """Iterates over a file in pieces, from its beginning each time, as a request may be sent again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        while piece := self._file.read(1 << 18):
            yield piece


class Client(Requests):
    """Asks a server, and waits for its answer; may be used by several threads."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 60.0, retries: int = RETRIES) -> None:
        super().__init__(url, key=key, timeout=timeout, retries=retries)
        self.http = self.httpx.Client(**self.options)

    def ask(self, method: str, path: str, **options: Any) -> Any:
        tries = 0
        while True:
            try:
                answer = self.http.request(method, path, **options)
            except self.httpx.TransportError as error:
                raise self.unreachable(error) from error
            pause = self.pause(answer, tries)
            if pause is None:
                return self.read(answer)
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
        body = {"inputs": [given(each) for each in inputs], **options_of(top_k, min_score, timeout)}
        found: list[dict[str, Any]] = self.ask("POST", f"{path_of(task)}/predict", json=body)["predictions"]
        return found

    def predict_mixed(
        self, items: Iterable[tuple[str, Input]], *, top_k: int | None = None, return_errors: bool = False
    ) -> list[Any]:
        """Return a prediction for each (task, input); the server computes them together.

        Raise the first error of an item; with `return_errors`, return them as ServerErrors beside the predictions.
        """
        body = {"items": [item_of(task, each) for task, each in items], **options_of(top_k, None, None)}
        return self.predictions(self.ask("POST", "/v1/predict", json=body), return_errors)

    @overload
    def complete(self, task: str, prompt: str, *, stream: Literal[False] = False, **options: Any) -> Completion: ...
    @overload
    def complete(self, task: str, prompt: str, *, stream: Literal[True], **options: Any) -> Iterator[str]: ...
    def complete(self, task: str, prompt: str, *, stream: bool = False, **options: Any) -> Completion | Iterator[str]:
        """Return the text that a task writes for a prompt; with `stream`, iterate over its pieces as they come.

        `options` are max_tokens, temperature, top_p, stop, seed and timeout.
        """
        return self._text(COMPLETIONS, {"model": task, "prompt": prompt, **options}, stream)

    @overload
    def chat(
        self, task: str, messages: Sequence[dict[str, str]], *, stream: Literal[False] = False, **options: Any
    ) -> Completion: ...
    @overload
    def chat(
        self, task: str, messages: Sequence[dict[str, str]], *, stream: Literal[True], **options: Any
    ) -> Iterator[str]: ...
    def chat(
        self, task: str, messages: Sequence[dict[str, str]], *, stream: bool = False, **options: Any
    ) -> Completion | Iterator[str]:
        """Return what a task says after some messages, [{"role": "user", "content": "…"}]; else as `complete`."""
        return self._text(CHATS, {"model": task, "messages": list(messages), **options}, stream)

    def _text(self, path: str, body: dict[str, Any], stream: bool) -> Completion | Iterator[str]:
        return self._pieces(path, body) if stream else completion_of(self.ask("POST", path, json=body))

    def _pieces(self, path: str, body: dict[str, Any]) -> Iterator[str]:
        tries = 0
        while True:
            try:
                with self.http.stream("POST", path, json={**body, "stream": True}) as answer:
                    if answer.status_code < 400:
                        read = Pieces()
                        for line in answer.iter_lines():
                            if piece := read.line(line):
                                yield piece
                        read.check(self.url)
                        return
                    answer.read()
            except self.httpx.TransportError as error:
                raise self.unreachable(error) from error
            pause = self.pause(answer, tries)
            if pause is None:
                self.read(answer)
            tries += 1
            time.sleep(pause or 0)

    def tasks(self, *, search: str = "") -> list[dict[str, Any]]:
        """Return what `adaptree list` shows of each task; with words to search for, the best match first."""
        found: list[dict[str, Any]] = []
        after = ""
        while True:
            page = self.ask("GET", "/v1/tasks", params=listing(1000, after, search))
            found += page["tasks"]
            if page["next"] is None:
                return found
            after = page["next"]

    def task(self, task: str) -> dict[str, Any]:
        """Return a task's record."""
        found: dict[str, Any] = self.ask("GET", path_of(task))
        return found

    def upload(self, file: str | Path, *, name: str | None = None) -> list[dict[str, Any]]:
        """Add the tasks of a file that `adaptree export` wrote; return what became of each."""
        path = Path(file).expanduser()
        params = {} if name is None else {"name": name}
        headers = {"Content-Type": "application/octet-stream"}
        body = path.read_bytes()
        found: list[dict[str, Any]] = self.ask("POST", "/v1/tasks", params=params, headers=headers, content=body)[
            "tasks"
        ]
        return found

    def train(
        self,
        file: File,
        *,
        validation: File | None = None,
        test: File | None = None,
        descriptions: File | None = None,
        keep_data: bool = False,
        **settings: Any,
    ) -> Job:
        """Send data files and train a task on them; `settings` are name, method, … as of `adaptree train`.

        What is wrong with a file or the settings is an error at once. The files are deleted when the job has ended,
        unless `keep_data`.
        """
        body: dict[str, Any] = {"settings": settings, "keep_data": keep_data}
        for part, each in files_of(file, validation, test, descriptions).items():
            path, options = upload_of(each)
            with open(path, "rb") as stream:
                body[part] = self.ask("POST", "/v1/files", content=_again(stream), **options)["id"]
        return Job(self, self.ask("POST", "/v1/jobs", json=body))

    def job(self, id: str) -> Job:
        """Return a job by its id."""
        return Job(self, self.ask("GET", f"/v1/jobs/{quote(id, safe='')}"))

    def jobs(self, *, state: str = "", limit: int = 100) -> list[Job]:
        """Return the newest jobs, of one state or of all."""
        params = {"limit": limit, **({"state": state} if state else {})}
        return [Job(self, info) for info in self.ask("GET", "/v1/jobs", params=params)["jobs"]]

    def remove(self, task: str) -> int:
        """Remove a task, or one version of it; return how many versions that were."""
        return int(self.ask("DELETE", path_of(task))["removed"])

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(Requests):
    """The same in a coroutine."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 60.0, retries: int = RETRIES) -> None:
        super().__init__(url, key=key, timeout=timeout, retries=retries)
        self.http = self.httpx.AsyncClient(**self.options)

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        tries = 0
        while True:
            try:
                answer = await self.http.request(method, path, **options)
            except self.httpx.TransportError as error:
                raise self.unreachable(error) from error
            pause = self.pause(answer, tries)
            if pause is None:
                return self.read(answer)
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
        body = {"inputs": [given(each) for each in inputs], **options_of(top_k, min_score, timeout)}
        found: list[dict[str, Any]] = (await self.ask("POST", f"{path_of(task)}/predict", json=body))["predictions"]
        return found

    async def predict_mixed(
        self, items: Iterable[tuple[str, Input]], *, top_k: int | None = None, return_errors: bool = False
    ) -> list[Any]:
        """Return a prediction for each (task, input), or its error; see `Client.predict_mixed`."""
        body = {"items": [item_of(task, each) for task, each in items], **options_of(top_k, None, None)}
        return self.predictions(await self.ask("POST", "/v1/predict", json=body), return_errors)

    @overload
    async def complete(
        self, task: str, prompt: str, *, stream: Literal[False] = False, **options: Any
    ) -> Completion: ...
    @overload
    async def complete(
        self, task: str, prompt: str, *, stream: Literal[True], **options: Any
    ) -> AsyncIterator[str]: ...
    async def complete(
        self, task: str, prompt: str, *, stream: bool = False, **options: Any
    ) -> Completion | AsyncIterator[str]:
        """Return the text that a task writes for a prompt, or an iterator; see `Client.complete`."""
        return await self._text(COMPLETIONS, {"model": task, "prompt": prompt, **options}, stream)

    @overload
    async def chat(
        self, task: str, messages: Sequence[dict[str, str]], *, stream: Literal[False] = False, **options: Any
    ) -> Completion: ...
    @overload
    async def chat(
        self, task: str, messages: Sequence[dict[str, str]], *, stream: Literal[True], **options: Any
    ) -> AsyncIterator[str]: ...
    async def chat(
        self, task: str, messages: Sequence[dict[str, str]], *, stream: bool = False, **options: Any
    ) -> Completion | AsyncIterator[str]:
        """Return what a task says after some messages, or an iterator; see `Client.chat`."""
        return await self._text(CHATS, {"model": task, "messages": list(messages), **options}, stream)

    async def _text(self, path: str, body: dict[str, Any], stream: bool) -> Completion | AsyncIterator[str]:
        return self._pieces(path, body) if stream else completion_of(await self.ask("POST", path, json=body))

    async def _pieces(self, path: str, body: dict[str, Any]) -> AsyncIterator[str]:
        tries = 0
        while True:
            try:
                async with self.http.stream("POST", path, json={**body, "stream": True}) as answer:
                    if answer.status_code < 400:
                        read = Pieces()
                        async for line in answer.aiter_lines():
                            if piece := read.line(line):
                                yield piece
                        read.check(self.url)
                        return
                    await answer.aread()
            except self.httpx.TransportError as error:
                raise self.unreachable(error) from error
            pause = self.pause(answer, tries)
            if pause is None:
                self.read(answer)
            tries += 1
            await asyncio.sleep(pause or 0)

    async def task(self, task: str) -> dict[str, Any]:
        """Return a task's record."""
        found: dict[str, Any] = await self.ask("GET", path_of(task))
        return found

    async def train(
        self,
        file: File,
        *,
        validation: File | None = None,
        test: File | None = None,
        descriptions: File | None = None,
        keep_data: bool = False,
        **settings: Any,
    ) -> AsyncJob:
        """Send data files and train a task on them; see `Client.train`."""
        body: dict[str, Any] = {"settings": settings, "keep_data": keep_data}
        for part, each in files_of(file, validation, test, descriptions).items():
            path, options = upload_of(each)
            data = await asyncio.to_thread(Path(path).read_bytes)
            body[part] = (await self.ask("POST", "/v1/files", content=data, **options))["id"]
        return AsyncJob(self, await self.ask("POST", "/v1/jobs", json=body))

    async def job(self, id: str) -> AsyncJob:
        """Return a job by its id."""
        return AsyncJob(self, await self.ask("GET", f"/v1/jobs/{quote(id, safe='')}"))

    async def close(self) -> None:
        await self.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

"""An empty store over a tiny base, and what tests of jobs do with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from adaptree.models.base import Base
from adaptree.serve.engine import Engine
from adaptree.serve.jobs import DataFile, Job, Jobs
from adaptree.serve.jobs.worker import Worker
from adaptree.serve.keys import Keys, new_key
from adaptree.serve.server import BackgroundServer
from adaptree.tasks.store import Store
from tests.bases import words_csv
from tests.serve.serving import Answer, Asker

QUICK: dict[str, Any] = {"method": "pfeiffer:4", "epochs": 2, "baselines": False}
"""Settings of a training that takes a moment."""


@dataclass
class Site:
    folder: Path
    base: Base
    url: str | None = None
    place: str = ""
    """The URL of the store; a folder if there is none."""
    _opened: list[Jobs] = field(default_factory=list)

    @cached_property
    def store(self) -> Store:
        if self.place:
            return Store(self.place, index=self.url)
        path = self.folder / "store"
        path.mkdir(exist_ok=True)
        return Store(path, index=self.url)

    @cached_property
    def jobs(self) -> Jobs:
        return self.more_jobs()

    def more_jobs(self) -> Jobs:
        """The same queue, as another process has it."""
        found = Jobs(Store(self.place, index=self.url) if self.place else Store(self.store.path, index=self.url))
        self._opened.append(found)
        return found

    def close(self) -> None:
        for jobs in self._opened:
            jobs.database.dispose()

    def worker(self, jobs: Jobs | None = None, **options: Any) -> Worker:
        return Worker(self.store, jobs or self.more_jobs(), self.base, **options)

    @cached_property
    def csv(self) -> bytes:
        return words_csv(self.folder / "words.csv").read_bytes()

    def upload(self, tenant: str = "", data: bytes | None = None, name: str = "words.csv") -> DataFile:
        with self.jobs.files.receive() as incoming:
            incoming.write(self.csv if data is None else data)
            return self.jobs.files.keep(incoming, tenant, name)

    def add(self, name: str = "words", tenant: str = "", *, keep_data: bool = False, **settings: Any) -> Job:
        """Queue a job of its own file."""
        given = {**QUICK, **settings, "name": name}
        limits = {key: given.pop(key) for key in ("most_running", "most_queued", "most_seconds") if key in given}
        return self.jobs.add(tenant, self.upload(tenant).id, given, keep_data, rows=90, **limits)

    @contextmanager
    def serving(self, **options: Any) -> Iterator[Asker]:
        with Engine(self.base, self.store) as engine, BackgroundServer(engine, jobs=self.more_jobs(), **options) as on:
            yield Asker(on.url)

    @contextmanager
    def tenants(self, *names: str, **options: Any) -> Iterator[list[Asker]]:
        """A server with keys, and a client of each tenant."""
        file = self.folder / "keys.json"
        texts = [new_key(file, tenant=name, scopes=("predict", "train"))[1] for name in names]
        with self.serving(keys=Keys(file), **options) as ask:
            yield [Asker(f"http://{ask.host}:{ask.port}", text) for text in texts]

    def left(self) -> list[str]:
        """The files that jobs have on disk, without the database."""
        folder = self.store.path / "jobs"
        found = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
        return sorted(str(path) for path in found if not path.name.startswith("jobs.sqlite") and path.name != "id")


def send(ask: Asker, data: bytes, name: str = "words.csv", **headers: str) -> Answer:
    """Send a file."""
    from urllib.parse import quote

    more = {"Content-Type": "application/octet-stream", **headers}
    return ask("POST", f"/v1/files?name={quote(name)}", data, headers=more)


def form(
    file: bytes,
    name: str = "words.csv",
    settings: Any = None,
    more: dict[str, tuple[str, bytes]] | None = None,
    **parts: str,
) -> tuple[bytes, dict[str, str]]:
    """A multipart form, and its header; `more` are names and bytes of other files."""
    mark = b"----adaptree-test"
    given = {**({} if settings is None else {"settings": json.dumps(settings)}), **parts}
    body = b""
    for key, value in given.items():
        body += b"--" + mark + f'\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
    for part, (called, data) in {**(more or {}), "file": (name, file)}.items():
        said = f'form-data; name="{part}"; filename="{called}"'.encode("utf-8", "surrogateescape")
        head = b"\r\nContent-Disposition: " + said + b"\r\nContent-Type: text/csv\r\n\r\n"
        body += b"--" + mark + head + data + b"\r\n"
    body += b"--" + mark + b"--\r\n"
    return body, {"Content-Type": f"multipart/form-data; boundary={mark.decode()}"}


def read_events(answer: Answer) -> list[tuple[int, str, dict[str, Any]]]:
    """The events of a stream: number, kind, data."""
    found = []
    for block in answer.body.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith((":", "retry")))
        if lines:
            found.append((int(lines["id"]), lines["event"], json.loads(lines["data"])))
    return found

"""A real server over a tiny base, and small real tasks of several kinds, for all tests of HTTP."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch

import adaptree as at
from adaptree.models.base import Base
from adaptree.models.loading import load_base
from adaptree.serve.engine import Engine
from adaptree.serve.server import BackgroundServer
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from tests.bases import FILLER, WORDS, tiny_base


def texts(count: int, seed: int = 0, most: int = 14) -> list[str]:
    rng = np.random.default_rng(seed)
    words = [*FILLER, *" ".join(WORDS.values()).split()]
    return [" ".join(rng.choice(words, rng.integers(1, most))) for _ in range(count)]


def trained(base: Base, rows: list[dict[str, Any]], name: str, **options: Any) -> Task:
    return at.train(rows, base=base, name=name, epochs=1, baselines=False, **{"method": "pfeiffer:4", **options}).task


def renamed(task: Task, name: str, seed: int = 0) -> Task:
    """The same task under another name, with a head of its own."""
    generator = torch.Generator().manual_seed(seed)
    weights = {
        key: torch.randn(value.shape, generator=generator) if key.startswith("head.") else value
        for key, value in task.weights.items()
    }
    return Task(replace(task.record, name=name, version=0), weights)


@dataclass
class World:
    """A base, a store with tasks, and the folder that they are in."""

    folder: Path
    base: Base
    store: Store

    def engine(self, **options: Any) -> Engine:
        return Engine(self.base, self.store, **options)


def make_world(folder: Path) -> World:
    base = load_base(tiny_base(folder / "tiny", layers=2, mask=True))
    store = Store(folder / "store")
    some = texts(24, seed=1)
    labelled = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(some)]
    words = trained(base, labelled, "words")
    for name, seed in (
        ("words", 1),
        ("acme/reviews", 2),
        ("acme/tickets", 3),
        ("other/reviews", 4),
        ("other/secret", 5),
    ):
        store.add(renamed(words, name, seed))
    store.add(trained(base, [{"text": text, "label": i / 3} for i, text in enumerate(some)], "number"))
    tokens = [{"tokens": text.split(), "tags": ["B-X"] + ["O"] * text.count(" ")} for text in some]
    store.add(trained(base, tokens, "tags"))
    pairs = [{"text": text, "text_pair": text, "label": "ab"[i % 2]} for i, text in enumerate(some)]
    store.add(trained(base, pairs, "pairs", text_pair="text_pair"))
    choices = [{"text": text, "choices": ["lion wolf", "saw drill"], "label": i % 2} for i, text in enumerate(some)]
    store.add(trained(base, choices, "choose", kind="choose"))
    store.add(trained(base, labelled, "tfidf", method="tfidf"))
    return World(folder, base, store)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, str]:
        found: dict[str, str] = self.json["error"]
        assert found.keys() == {"code", "message", "hint"}
        return found


class Asker:
    """A plain client of the standard library: it sends what it is told, right or wrong."""

    def __init__(self, url: str, key: str = "") -> None:
        parts = urlsplit(url)
        self.host, self.port, self.key = str(parts.hostname), int(parts.port or 80), key

    def __call__(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None, timeout: float = 30
    ) -> Answer:
        send = dict(headers or {})
        if self.key:
            send.setdefault("Authorization", f"Bearer {self.key}")
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            send.setdefault("Content-Type", "application/json")
        connection = HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, body, send)
            got = connection.getresponse()
            return Answer(got.status, {key.lower(): value for key, value in got.getheaders()}, got.read())
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Answer:
        return self("GET", path, **options)

    def post(self, path: str, body: Any, **options: Any) -> Answer:
        return self("POST", path, body, **options)

    def raw(self, data: bytes, *, timeout: float = 10, end: bool = False) -> bytes:
        """Send bytes as they are, and return all that comes back until the connection is closed."""
        with socket.create_connection((self.host, self.port), timeout) as connection:
            try:
                connection.sendall(data)
                if end:
                    connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            found = b""
            try:
                while piece := connection.recv(65536):
                    found += piece
            except OSError:
                pass
            return found


@contextmanager
def served(world: World, *, engine: dict[str, Any] | None = None, **options: Any) -> Iterator[tuple[Asker, Engine]]:
    """A server of its own, with an engine of its own."""
    with world.engine(**(engine or {})) as found, BackgroundServer(found, **options) as server:
        yield Asker(server.url), found

"""A server under load for a while: many clients, thousands of tasks, room for a few of them, tasks that change.

    python -m benchmarks.soak --seconds 60 --clients 200 --tasks 2000 --fit 200

Every answer is compared with what the task, in one of its versions, gives alone. At the end it says how many answers
there were, which were wrong, the status codes, the latencies, and the server's memory every ten seconds, with its slope
after the first quarter of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import adaptree as at
from adaptree.methods import parse
from adaptree.tasks import task as task_module
from adaptree.tasks.task import Task
from benchmarks.subjects.http_client import ask

TEXTS = [
    "the delivery came two days late and the box was open", "great phone, does what it says",
    "i was charged twice this month, please check", "how do i change my password", "not worth the money at all",
    "the staff was friendly and quick to answer", "screen cracked after a week of normal use",
    "can you send me the invoice again",
]  # fmt: skip
METHODS = ("houlsby:8", "pfeiffer:8", "lora:4", "houlsby:6")
CLOSE = 1e-4
STARTS = 300
"""Seconds in which the server must be there, on a machine however busy."""
EVERY = 10
"""Seconds from one look at the server's memory to the next."""
FULL = 0.97
"""The part of its memory for tasks with which a server is full: the next one may find no room."""
WARM_UP = 0.25
"""The part of the time after which memory should be flat."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--fit", type=int, default=200, help="how many tasks the server's memory has room for")
    parser.add_argument("--steady", action="store_true", help="no task changes meanwhile")
    parser.add_argument("--flood", action="store_true", help="one more customer asks as much as it can")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(Soak(options, Path(folder)).run())


class Soak:
    """The tasks with their right answers, the server, and those who ask it."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        torch.set_num_threads(1)  # the cores are the server's
        self.base = at.load_base()
        self.store = at.Store(folder / "store")
        self.right: dict[str, list[dict[str, float]]] = {}
        self.rng = random.Random(0)
        self.codes: Counter[int] = Counter()
        self.wrong: list[Any] = []
        self.latencies: list[float] = []
        task_module.shown = lambda record: {}  # the cards of thousands of tasks would take minutes to draw

    def name(self, i: int) -> str:
        return f"t{i}"

    def text(self, name: str) -> str:
        return TEXTS[int(name[1:]) % len(TEXTS)]

    def add(self, i: int, seed: int, like: Task) -> None:
        """Add a version with weights at random, whose right answer is known first."""
        name, method = self.name(i), parse(METHODS[i % len(METHODS)])
        generator = torch.Generator().manual_seed(seed)
        v = method.init(self.base.hooked.sites, self.base.hooked.backbone, generator)
        v = {key: t + 0.02 * torch.randn(t.shape, generator=generator) for key, t in v.items()}
        head = {key: torch.randn(t.shape, generator=generator) for key, t in like.weights.items() if "head" in key}
        made = Task(replace(like.record, name=name, method=str(method), digest="", file_bytes=0), {**v, **head})
        answer = self.base.bind(made).predict([self.text(name)])[0]
        self.right.setdefault(name, []).append(answer.scores)
        self.store.add(made)

    async def run(self) -> int:
        data = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(TEXTS * 3)]
        like = at.train(data, base=self.base, name="like", method="head", epochs=1, baselines=False).task
        for i in range(self.options.tasks + 1):  # nobody but the one who floods asks for the last
            self.add(i, i, like)
        size = max(self.store.record(self.name(i)).file_bytes for i in range(len(METHODS)))
        memory = self.options.fit * size
        print(f"{self.options.tasks:,} tasks; the server has room for some {self.options.fit}", flush=True)
        server, port = await self.start(memory)
        try:
            await self.fill(port, memory)
            began = time.monotonic()
            ends = began + self.options.seconds
            held: list[tuple[float, int]] = []
            asking = [asyncio.create_task(self.client(port, ends, seed)) for seed in range(self.options.clients)]
            if self.options.flood:
                asking.append(asyncio.create_task(self.flood(port, ends)))
            seed = 10_000
            while time.monotonic() < ends:
                await asyncio.sleep(0.25)
                for each in asking:
                    if each.done() and time.monotonic() < ends:
                        each.result()  # one that has ended before its time has failed
                if (after := time.monotonic() - began) >= EVERY * (len(held) + 1):
                    held.append((after, resident(server.pid)))
                    tasks = await task_memory(port)
                    print(f"{after:4.0f} s  {held[-1][1] / 1e6:.1f} MB, tasks {tasks / 1e6:.1f} MB", file=sys.stderr)
                if self.options.steady:
                    continue
                i, seed = self.rng.randrange(self.options.tasks), seed + 1
                if self.rng.random() < 0.2:
                    with contextlib.suppress(at.AdaptreeError):
                        self.store.remove(self.name(i))
                self.add(i, seed, like)
            await asyncio.gather(*asking)
        finally:
            server.terminate()
            code = server.wait(60)
        return self.report(held, memory, code)

    async def start(self, memory: int) -> tuple[subprocess.Popen[str], int]:
        words = [
            sys.executable, "-m", "adaptree", "serve", "--store", str(self.folder / "store"), "--port", "0",
            "--memory", str(memory),
        ]  # fmt: skip
        log = (self.folder / "log").open("w")
        server = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, text=True, env=os.environ)
        until = time.monotonic() + STARTS
        while time.monotonic() < until:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", (self.folder / "log").read_text()):
                return server, int(found[1])
            if server.poll() is not None:
                break
            await asyncio.sleep(0.1)
        server.kill()
        raise SystemExit((self.folder / "log").read_text() or "the server did not start")

    async def fill(self, port: int, memory: int) -> None:
        """Ask for one task after the other until the server has room for no more: from then on, its memory is flat."""

        async def some(first: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for i in range(first, self.options.tasks, 8):
                if i % 5 == 0 and await task_memory(port) > FULL * memory:
                    break
                name = self.name((i * 7919) % self.options.tasks)
                await ask(reader, writer, f"/v1/tasks/{name}/predict", {"inputs": [self.text(name)]})
            writer.close()

        await asyncio.gather(*map(some, range(8)))

    async def client(self, port: int, ends: float, seed: int) -> None:
        """Ask for one task after the other, popular ones more often (Zipf), over one connection."""
        rng = random.Random(seed)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < ends:
            i = min(int(rng.paretovariate(1.0)) - 1, self.options.tasks - 1)
            name = self.name((i * 7919) % self.options.tasks)
            began = time.perf_counter()
            code, found = await ask(reader, writer, f"/v1/tasks/{name}/predict", {"inputs": [self.text(name)]})
            self.codes[code] += 1
            if code == 200:
                self.latencies.append(time.perf_counter() - began)
                scores = found["predictions"][0]["scores"]
                if not any(all(abs(scores[k] - right[k]) < CLOSE for k in right) for right in self.right[name]):
                    self.wrong.append((name, scores))
            elif code == 429:
                await asyncio.sleep(rng.random())
            elif code not in (404,):
                self.wrong.append((name, code, found))
        writer.close()

    async def flood(self, port: int, ends: float) -> None:
        """One customer who asks with 64 connections, without a pause."""
        name = self.name(self.options.tasks)

        async def one() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while time.monotonic() < ends:
                await ask(reader, writer, f"/v1/tasks/{name}/predict", {"inputs": [self.text(name)] * 8})
            writer.close()

        await asyncio.gather(*(one() for _ in range(64)))

    def report(self, held: list[tuple[float, int]], memory: int, code: int) -> int:
        latencies = sorted(self.latencies)
        shown = {
            "answers": self.codes[200], "codes": dict(self.codes), "wrong": len(self.wrong),
            "answers_per_second": round(self.codes[200] / self.options.seconds, 1),
            "p50_ms": round(1e3 * latencies[len(latencies) // 2], 1) if latencies else None,
            "p95_ms": round(1e3 * latencies[int(0.95 * len(latencies))], 1) if latencies else None,
            "memory_budget_mb": round(memory / 1e6, 1),
            "server_mb": [round(each / 1e6, 1) for _, each in held],
            "server_mb_per_minute": slope([each for each in held if each[0] >= WARM_UP * self.options.seconds]),
            "exit": code,
        }  # fmt: skip
        print(json.dumps(shown, indent=1))
        for each in self.wrong[:5]:
            print(each)
        bad = [status for status in self.codes if status >= 500]
        return 1 if self.wrong or bad or code else 0


async def task_memory(port: int) -> float:
    """Return the bytes that the server's tasks take, as it says itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return float(re.findall(r"^adaptree_task_memory_bytes (\S+)$", text, re.MULTILINE)[0])


def slope(held: list[tuple[float, int]]) -> float | None:
    """Return by how many MB a minute memory rises, in the line that fits best."""
    if len(held) < 2:
        return None
    seconds, sizes = zip(*held, strict=True)
    return round(60 * statistics.linear_regression(seconds, sizes).slope / 1e6, 2)


def resident(pid: int) -> int:
    """Return a process's memory in bytes, without the pages of files that it shares with others."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


if __name__ == "__main__":
    sys.exit(main())

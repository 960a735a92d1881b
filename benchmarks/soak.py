"""A server under load for a while: many clients, thousands of tasks, room for a few of them, tasks that change.

    python -m benchmarks.soak --seconds 60 --clients 200 --tasks 2000 --fit 200

Every answer is compared with what the task, in one of its versions, gives alone. At the end it says how many answers
there were, which were wrong, the status codes, the latencies, and the server's memory in each eighth of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
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
EIGHTHS = 8


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
            ends = time.monotonic() + self.options.seconds
            held: list[int] = []
            asking = [asyncio.create_task(self.client(port, ends, seed)) for seed in range(self.options.clients)]
            if self.options.flood:
                asking.append(asyncio.create_task(self.flood(port, ends)))
            seed = 10_000
            while time.monotonic() < ends:
                await asyncio.sleep(0.25)
                if ends - time.monotonic() <= self.options.seconds * (1 - (len(held) + 1) / EIGHTHS):
                    held.append(resident(server.pid))
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
        for _ in range(600):
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", (self.folder / "log").read_text()):
                return server, int(found[1])
            if server.poll() is not None:
                break
            await asyncio.sleep(0.1)
        raise SystemExit((self.folder / "log").read_text())

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

    def report(self, held: list[int], memory: int, code: int) -> int:
        latencies = sorted(self.latencies)
        shown = {
            "answers": self.codes[200], "codes": dict(self.codes), "wrong": len(self.wrong),
            "answers_per_second": round(self.codes[200] / self.options.seconds, 1),
            "p50_ms": round(1e3 * latencies[len(latencies) // 2], 1) if latencies else None,
            "p95_ms": round(1e3 * latencies[int(0.95 * len(latencies))], 1) if latencies else None,
            "memory_budget_mb": round(memory / 1e6, 1),
            "server_mb": [round(each / 1e6, 1) for each in held],
            "exit": code,
        }  # fmt: skip
        print(json.dumps(shown, indent=1))
        for each in self.wrong[:5]:
            print(each)
        bad = [status for status in self.codes if status >= 500]
        return 1 if self.wrong or bad or code else 0


def resident(pid: int) -> int:
    """Return a process's memory in bytes, without the pages of files that it shares with others."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


if __name__ == "__main__":
    sys.exit(main())

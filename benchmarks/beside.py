"""Predictions beside a training job: how much slower they are while a worker trains on the same machine.

    python -m benchmarks.beside --rounds 6 --seconds 8

`adaptree serve` on minilm answers clients over HTTP while its worker trains a job that was sent to it. The worker is
paused and continued in turns (SIGSTOP, SIGCONT), so that quiet and busy spells alternate and share whatever else the
machine does. For each number of clients it prints the latencies of both, and their ratio; the aim is a p95 that at most
doubles.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import adaptree as at
from benchmarks.soak import TEXTS
from benchmarks.subjects.http_client import ask

WORDS = sorted({word.strip(",") for text in TEXTS for word in text.split()})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6, help="how often a quiet and a busy spell alternate")
    parser.add_argument("--seconds", type=float, default=8, help="how long a spell is")
    parser.add_argument("--clients", type=int, action="append", help="clients at once (default: 1 and 8)")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds that a client waits between two requests")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(options, Path(folder)))


async def run(options: argparse.Namespace, folder: Path) -> int:
    store = at.Store(folder / "store")
    rows = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(TEXTS * 3)]
    store.add(at.train(rows, name="reviews", method="pfeiffer:8", epochs=1, baselines=False).task)
    log = (folder / "log").open("w")
    words = [sys.executable, "-m", "adaptree", "serve", "--store", str(store.path), "--port", "0", "--log", "none"]
    server = subprocess.Popen(words, stderr=log, stdin=subprocess.DEVNULL, env=os.environ)
    worker = 0
    try:
        port = await _port(server, folder / "log")
        with at.Client(f"http://127.0.0.1:{port}") as client:
            job = await asyncio.to_thread(client.train, _data(folder), name="long", epochs=1000, patience=1000)
            while not (job.refresh().info["progress"] or {}).get("step"):
                await asyncio.sleep(0.2)
            (worker,) = _children(server.pid)
            found = []
            for clients in options.clients or [1, 8]:
                found.append(await _measure(options, port, clients, worker))
                print(json.dumps(found[-1]), flush=True)
            steps = job.refresh().info["progress"]
            job.cancel()
        print(json.dumps({"job": {"step": steps["step"], "epoch": steps["epoch"]}}))
    finally:
        if worker:
            os.kill(worker, signal.SIGCONT)
        server.terminate()
        server.wait(60)
    return 0 if all(row["p95_ratio"] <= 2 for row in found) else 1


async def _measure(options: argparse.Namespace, port: int, clients: int, worker: int) -> dict[str, Any]:
    """Return the latencies of quiet and of busy spells, in turns."""
    spells: dict[str, list[float]] = {"quiet": [], "training": []}
    for _ in range(options.rounds):
        for name, word in (("quiet", signal.SIGSTOP), ("training", signal.SIGCONT)):
            os.kill(worker, word)
            await asyncio.sleep(0.3)
            ends = time.monotonic() + options.seconds
            taken = await asyncio.gather(*(_client(port, ends, options.pause, i) for i in range(clients)))
            spells[name] += [each for some in taken for each in some]
    row: dict[str, Any] = {"clients": clients}
    for name, found in spells.items():
        found.sort()
        row[name] = {
            "answers": len(found),
            "p50_ms": round(1e3 * found[len(found) // 2], 1),
            "p95_ms": round(1e3 * found[int(0.95 * len(found))], 1),
            "p99_ms": round(1e3 * found[int(0.99 * len(found))], 1),
        }
    for name in ("p50", "p95", "p99"):
        row[f"{name}_ratio"] = round(row["training"][f"{name}_ms"] / row["quiet"][f"{name}_ms"], 2)
    return row


async def _client(port: int, ends: float, pause: float, seed: int) -> list[float]:
    rng, taken = random.Random(seed), []
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < ends:
        began = time.perf_counter()
        code, _ = await ask(reader, writer, "/v1/tasks/reviews/predict", {"inputs": [rng.choice(TEXTS)]})
        assert code == 200, code
        taken.append(time.perf_counter() - began)
        await asyncio.sleep(2 * pause * rng.random())
    writer.close()
    return taken


def _data(folder: Path) -> Path:
    """Write rows for a job that goes on for as long as it is measured."""
    rng, file = random.Random(0), folder / "long.csv"
    lines = [f"{' '.join(rng.choices(WORDS, k=rng.randrange(5, 40)))},{'abc'[i % 3]}" for i in range(3000)]
    file.write_text("text,label\n" + "\n".join(lines) + "\n")
    return file


async def _port(server: subprocess.Popen[bytes], log: Path) -> int:
    for _ in range(1200):
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text()):
            return int(found[1])
        if server.poll() is not None:
            break
        await asyncio.sleep(0.1)
    raise SystemExit(log.read_text())


def _children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
            found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main())

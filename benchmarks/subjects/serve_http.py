"""Answers a second of `adaptree serve` and of its engine alone, on --counts tasks; and of a pipeline behind FastAPI.

--pipeline serves one model of --models, each on its own, as a plain service would: FastAPI with transformers' pipeline.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from http_client import at, load
from measured import Measured, arguments

TEXT = "the delivery came two days late and the box was open, so i want my money back please"
CONNECTIONS, SECONDS, SIZE = 64, 8.0, 48
SERVICE = """
import sys, torch, uvicorn
from fastapi import Body, FastAPI
from transformers import pipeline
models = [pipeline("text-classification", sys.argv[2], trust_remote_code=True) for _ in range(int(sys.argv[3]))]
app = FastAPI()
@app.post("/predict/{number}")
def predict(number: int, inputs: list[str] = Body(embed=True)):
    with torch.inference_mode():
        return models[number % len(models)](inputs, top_k=None)
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
"""


def tasks_in(store: Any, base: Any, like: Any, count: int) -> list[str]:
    """Add tasks with weights at random; return their names."""
    from adaptree.methods import parse
    from adaptree.tasks import task as task_module

    task_module.shown = lambda record: {}  # their cards are not drawn
    method = parse(f"houlsby:{SIZE}")
    head = {key: t for key, t in like.weights.items() if "head" in key}
    for i in range(count):
        v = method.init(base.hooked.sites, base.hooked.backbone, torch.Generator().manual_seed(i))
        record = replace(like.record, name=f"t{i}", method=str(method), digest="", file_bytes=0)
        store.add(task_module.Task(record, {**v, **head}))
    return [f"t{i}" for i in range(count)]


def of_engine(base: Any, store: Any, names: list[str]) -> dict[str, float]:
    """Ask the engine from threads that each wait for their answer; return answers a second, and one forward's time."""
    from adaptree.serve.engine import Engine

    with Engine(base, store) as engine:
        for name in names:
            engine.predict(name, [TEXT])
        single = base.bind(store[names[0]])
        alone = []
        for _ in range(30):
            began = time.perf_counter()
            single.predict([TEXT])
            alone.append(time.perf_counter() - began)
        done, ends = [0] * CONNECTIONS, time.perf_counter() + SECONDS

        def ask(number: int) -> None:
            i = number
            while time.perf_counter() < ends:
                engine.predict(names[i % len(names)], [TEXT])
                done[number] += 1
                i += CONNECTIONS

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"engine": sum(done) / SECONDS, "forward": statistics.median(alone)}


def started(words: list[str], log: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start a server; return it and its port when it says that it listens."""
    server = subprocess.Popen(words, stdout=log.open("wb"), stderr=subprocess.STDOUT, env=os.environ)
    for _ in range(1200):
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text()):
            return server, int(found[1])
        if server.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(log.read_text())


def of_server(port: int, names: list[str]) -> dict[str, float]:
    def request(i: int) -> tuple[str, Any]:
        return f"/v1/tasks/{names[i % len(names)]}/predict", {"inputs": [TEXT]}

    load(port, request, connections=8, seconds=2.0)
    lonely = load(port, request, connections=1, seconds=5.0)
    busy = load(port, request, connections=CONNECTIONS, seconds=SECONDS)
    return {"http": len(busy) / SECONDS, "light_p50": at(lonely, 0.5), "light_p99": at(lonely, 0.99)}


def of_pipeline(folder: str, models: int, out: Path) -> float:
    """Return answers a second of a plain service of several models."""
    port = 18_000 + os.getpid() % 2000
    server = subprocess.Popen([sys.executable, "-c", SERVICE, str(port), folder, str(models)])
    try:
        for _ in range(600):
            time.sleep(0.2)
            try:
                load(port, lambda i: (f"/predict/{i}", {"inputs": [TEXT]}), connections=1, seconds=1.0)
                break
            except OSError:
                continue
        busy = load(port, lambda i: (f"/predict/{i}", {"inputs": [TEXT]}), connections=CONNECTIONS, seconds=SECONDS)
        return len(busy) / SECONDS
    finally:
        server.kill()


def main() -> None:
    options = arguments(("task", ""), ("counts", "64"), ("models", "1,16"))
    measured = Measured()
    import adaptree
    from adaptree.api import export_model

    base = adaptree.load_base(options.base)
    out = Path(options.out)
    out.mkdir(parents=True)
    store = adaptree.Store(out / "store")
    like = adaptree.Store(options.task)["task"]
    names = tasks_in(store, base, like, int(options.counts))
    found = of_engine(base, store, names)
    words = [sys.executable, "-m", "adaptree", "serve", "--store", str(out / "store"), "--base", options.base,
             "--port", "0", "--log", "none"]  # fmt: skip
    server, port = started(words, out / "log")
    try:
        found |= of_server(port, names)
    finally:
        server.terminate()
        server.wait(60)
    export_model(base.bind(store[names[0]]), out / "model", to="transformers")
    for models in map(int, options.models.split(",")):
        found[f"pipeline_{models}"] = of_pipeline(str(out / "model"), models, out)
    measured.say(**found)


if __name__ == "__main__":
    main()

"""Measure what the simulation is made of, and two real replicas that it is checked against.

    taskset -c 0,1 python -m benchmarks.scale.measure services
    python -m benchmarks.scale.measure replicas --routing affinity --rate 40 --rate 80 …

The services are measured each alone, on one core: nothing of them is fitted to the run with two replicas. Weights of
tasks are random. What was measured is merged into results/scale/measured.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.scale.client import send
from benchmarks.scale.load import Arrival, Load, Router, quantile

OUT = Path(__file__).parents[2] / "results" / "scale" / "measured.json"
TASKS, FIT = 400, 100
"""Tasks of the store, and how many of them a replica has room for."""
FILLED = 16
"""Tasks that a server has while its HTTP is measured."""
METHODS = ("houlsby:48", "houlsby:8")
"""Of the issue's figures, and a small one."""
TEXTS, SHORTEST, LONGEST = 64, 12, 28
CLIENTS = 64
"""Clients that ask as fast as they are answered, at saturation."""
SECONDS = 10.0
QUIET = 1.0
"""The most of a core that other processes may take, for a run of replicas to be kept."""
ROUNDS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("tasks", "services", "s3", "replicas", "missing", "burn"))
    parser.add_argument("--store", type=Path, required=True, help="a folder for the tasks, made if it is not there")
    parser.add_argument("--routing", choices=("affinity", "random"), default="affinity")
    parser.add_argument("--rate", type=float, action="append", help="requests a second; 0: 64 clients that wait")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    make_tasks(options.store)
    if options.what == "services":
        keep(options.out, services=services(options.store))
    elif options.what == "missing":
        import adaptree as at

        sentences, store = texts(at.load_base()), store_of(options.store, METHODS[0])
        said = json.loads(options.out.read_text())["services"]
        said["http_missing"] = missing(options.store, sentences)
        said["http"] = http(store, sentences, connections=1)
        said["http_busy"] = http(store, sentences, connections=16)
        print(json.dumps({name: said[name] for name in ("http_missing", "http", "http_busy")}))
        keep(options.out, services=said)
    elif options.what == "burn":
        burn(options.store)
    elif options.what == "s3":
        keep(options.out, s3=s3(options.store))
    elif options.what == "replicas":
        for run in replicas(options.store, options.routing, options.rate or [40.0], options.seconds):
            print(json.dumps(run), flush=True)
            if run["others_busy"] <= QUIET:
                keep(options.out, replicas=run)
            else:
                print("not kept: other processes were busy", file=sys.stderr, flush=True)


def keep(out: Path, **found: Any) -> None:
    """Merge what was measured into the file; a run of replicas takes the place of one of the same routing and rate."""
    said = json.loads(out.read_text()) if out.exists() else {"replicas": []}
    said["machine"] = {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()}
    if (run := found.pop("replicas", None)) is not None:
        others = [each for each in said["replicas"] if (each["routing"], each["rate"]) != (run["routing"], run["rate"])]
        said["replicas"] = sorted([*others, run], key=lambda each: (each["routing"], each["rate"]))
    said |= found
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(said, indent=1) + "\n")


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


# Tasks and texts


def make_tasks(folder: Path) -> None:
    """Fill a store for each method with tasks of random weights, unless they are there."""
    import torch

    import adaptree as at
    from adaptree.methods import parse
    from adaptree.tasks import task as task_module

    if folder.exists():
        return
    task_module.shown = lambda record: {}  # their cards are not drawn
    base = at.load_base()
    rows = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts(base) * 2)]
    like = at.train(rows, base=base, name="like", method="head", epochs=1, baselines=False).task
    head = {key: t for key, t in like.weights.items() if "head" in key}
    for spelled, count in zip(METHODS, (TASKS, FIT), strict=True):
        store, method = at.Store(folder / spelled.replace(":", "-")), parse(spelled)
        for i in range(count):
            generator = torch.Generator().manual_seed(i)
            v = method.init(base.hooked.sites, base.hooked.backbone, generator)
            v = {key: t + 0.02 * torch.randn(t.shape, generator=generator) for key, t in v.items()}
            record = replace(like.record, name=f"t{i}", method=str(method), digest="", file_bytes=0)
            store.add(task_module.Task(record, {**v, **head}))


def store_of(folder: Path, method: str) -> Path:
    return folder / method.replace(":", "-")


def texts(base: Any) -> list[str]:
    """Return texts of words at random, of 12 to 28 tokens."""
    from benchmarks.beside import WORDS

    rng, found = random.Random(0), []
    for _ in range(TEXTS):
        wanted, words = rng.randint(SHORTEST, LONGEST), [rng.choice(WORDS)]
        while len(base.encoder.encode([" ".join(words)], 128)[0].ids) < wanted:
            words.append(rng.choice(WORDS))
        found.append(" ".join(words))
    return found


def lengths(base: Any) -> list[int]:
    """Return at what length each of the texts is computed."""
    from adaptree.data.batch import canonical

    return [canonical(len(each.ids)) for each in base.encoder.encode(texts(base), 128)]


# Services, each alone


def services(folder: Path) -> dict[str, Any]:
    """Return seconds of batches, of a request's way through HTTP, of loading and looking up a task; and bytes.

    Batches and loading are measured on one core while the other one computes, as in a node that is busy.
    """
    import torch

    import adaptree as at
    from adaptree.serve.heap import share_heap

    share_heap()  # as a server does
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {0})
    base = at.load_base()
    found: dict[str, Any] = {"lengths": lengths(base), "batches": {}, "loading": {}}
    speeds = [speed(base)]
    words = [sys.executable, "-m", "benchmarks.scale.measure", "burn", "--store", str(folder)]
    busy = subprocess.Popen(["taskset", "-c", "1", *words], stdout=subprocess.PIPE)
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        for method in METHODS:
            store = at.Store(store_of(folder, method))
            found["batches"][method] = batches(base, store)
            found["loading"][method] = loading(base, store)
    finally:
        busy.kill()
        busy.wait()
    os.sched_setaffinity(0, {0, 1})
    speeds.append(speed(base))
    found["http"] = http(store_of(folder, METHODS[0]), texts(base), connections=1)
    found["http_busy"] = http(store_of(folder, METHODS[0]), texts(base), connections=16)
    found["http_missing"] = missing(folder, texts(base))
    speeds.append(speed(base))
    found["speed"] = statistics.mean(speeds)
    found["base_bytes"] = sum(p.nbytes for p in base.hooked.backbone.state_dict().values())
    return found


def speed(base: Any) -> float:
    """Return the median seconds of a fixed piece of work on each core in turn: how fast the machine is just now.

    That of a virtual machine changes from minute to minute. A run of replicas has its own, and in the simulation of it
    all work takes as much longer, or less long, than when the services were measured.
    """
    some, cores, taken = texts(base)[:8], os.sched_getaffinity(0), []
    for core in range(os.cpu_count() or 1):
        os.sched_setaffinity(0, {core})
        for _ in range(10):
            began = time.perf_counter()
            base.features(some)
            taken.append(time.perf_counter() - began)
    os.sched_setaffinity(0, cores)
    return statistics.median(taken)


def missing(folder: Path, sentences: Sequence[str]) -> dict[str, float]:
    """Return what a server takes for requests each of whose tasks it has to load."""
    import adaptree as at

    store = store_of(folder, METHODS[0])
    memory = FIT * at.Store(store).record("t0").file_bytes
    return http(store, sentences, connections=1, tasks=3 * FIT, memory=memory)


def burn(folder: Path) -> None:
    """Compute without end, as another replica does that is never idle."""
    import torch

    import adaptree as at

    torch.set_num_threads(1)
    base = at.load_base()
    bound, sentences = base.bind(at.Store(store_of(folder, METHODS[0]))["t0"]), texts(base)
    print("ready", flush=True)
    while True:
        bound.predict(sentences)


def batches(base: Any, store: Any) -> list[dict[str, Any]]:
    """Return the median seconds of batches of so many rows of one length, of one task or each of another."""
    from adaptree.data.batch import canonical
    from adaptree.serve.engine import Engine

    by_length: dict[int, str] = {}
    for text in texts(base):
        by_length.setdefault(canonical(len(base.encoder.encode([text], 128)[0].ids)), text)
    cells = [
        (length, rows, tasks)
        for length in sorted(by_length)
        for rows in (1, 2, 4, 8, 16, 32)
        if (rows - 1) * length < 512
        for tasks in sorted({1, rows})
    ]
    taken: dict[tuple[int, int, int], list[float]] = {cell: [] for cell in cells}
    rng = random.Random(0)
    seconds: list[float] = []
    with Engine(base, store, on_batch=lambda batch: seconds.append(batch.seconds)) as engine:
        for i in range(64):
            engine.predict(f"t{i}", [by_length[24]])
        engine.batcher.max_wait = 5.0  # a batch goes when it is full
        for _ in range(ROUNDS):
            for length, rows, tasks in cells:
                engine.batcher.max_tokens = rows * length
                names = rng.sample(range(64), tasks)
                seconds.clear()
                futures = [engine.submit(f"t{names[i % tasks]}", [by_length[length]]) for i in range(rows)]
                for future in futures:
                    future.result()
                assert len(seconds) == 1, seconds
                taken[length, rows, tasks].append(seconds[0])
    return [
        {"length": length, "rows": rows, "tasks": tasks, "seconds": statistics.median(those)}
        for (length, rows, tasks), those in taken.items()
    ]


def loading(base: Any, store: Any, count: int = 60) -> dict[str, float]:
    """Return the seconds of loading a task into memory that is full, and of looking up what a name stands for.

    `processor` is the part of it that this process computed; the rest it waited for the store.
    """
    from adaptree.serve.shelf import Served, Shelf

    size = store.record("t0").file_bytes
    shelf = Shelf(base, store, memory=10 * size + 1000)

    def load(i: int) -> None:
        found = shelf.get(f"t{i}")
        (found if isinstance(found, Served) else found.result()).release()

    loads = timed([lambda i=i: load(i) for i in range(count)])  # type: ignore[misc]
    finds = timed([lambda i=i: store.reference(f"t{i}") for i in range(count)])  # type: ignore[misc]
    place = next(iter(shelf._here.values()))
    shelf.close()
    return {"load": loads[0], "load_processor": loads[1], "look_up": finds[0], "look_up_processor": finds[1],
            "bytes": place.bytes, "file_bytes": size}  # fmt: skip


def timed(calls: Sequence[Callable[[], object]]) -> tuple[float, float]:
    """Return the median seconds of some calls, and their mean processor time."""
    taken, before = [], time.process_time()
    for call in calls:
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken), (time.process_time() - before) / len(calls)


def s3(folder: Path, count: int = 40) -> dict[str, Any]:
    """Return what loading and looking up takes from a store on S3 (a server on this machine), and what it asks it for.

    The server is not Amazon's: how long it takes to answer says nothing of S3, what we compute and ask for does.
    """
    import torch
    from tests.s3 import BUCKET, running, settings

    import adaptree as at

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache, running() as endpoint:
        os.environ |= {**settings(endpoint), "ADAPTREE_CACHE": cache}
        local, store = at.Store(store_of(folder, METHODS[0])), at.Store(f"s3://{BUCKET}/tasks")
        for i in range(count):
            store.add(local[f"t{i}"])
        base, found = at.load_base(), {}
        for name in ("from_server", "from_copy"):  # the second time, copies are on this disk
            asked = counted(store)
            found[name] = loading(base, store, count)
            before = dict(asked)
            store.reference("t0")
            each = asked["listing"] - before["listing"]
            listings = before["listing"] / count - each
            found[name] |= {"look_up_listings": each, "load_listings": listings, "load_reads": before["read"] / count}
        return found


def counted(store: Any) -> dict[str, int]:
    """Return counts, which go on, of what a store behind a URL asks its server for."""
    asked = {"listing": 0, "read": 0}
    objects = store._objects
    for name in asked:
        real = getattr(type(objects), name)

        def call(*given: Any, _name: str = name, _real: Any = real, **options: Any) -> Any:
            asked[_name] += 1
            return _real(objects, *given, **options)

        setattr(objects, name, call)
    return asked


def http(
    store: Path, sentences: Sequence[str], *, connections: int, tasks: int = FILLED, memory: int = 1 << 30
) -> dict[str, float]:
    """Return what a server on one core takes for a request of clients that each wait for their answer.

    They ask for one task after the other: if there is not memory for all of them, each has to be loaded.
    """
    with server(store, core=0, memory=memory) as (process, port):
        ask = Requests([f"t{i}" for i in range(tasks)], sentences)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        closed(port, ask, connections, 2.0)
        before, threads = figures(port), thread_seconds(process.pid)
        began = time.perf_counter()
        latencies = closed(port, ask, connections, 8.0)
        wall = time.perf_counter() - began
        after, ended = figures(port), thread_seconds(process.pid)
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        spent = {thread: ended[thread] - threads.get(thread, 0.0) for thread in ended}
        loop = spent.pop(process.pid)
        compute = max(spent.values())
        count, batches = len(latencies), after["batches"] - before["batches"]
        return {
            "connections": connections, "requests": count, "rate": count / wall, "rows_per_batch": count / batches,
            "p50": quantile(latencies, 0.5), "p99": quantile(latencies, 0.99),
            "loads": (after["loads"] - before["loads"]) / count,
            "cpu": (loop + sum(spent.values())) / count,
            "loop": loop / count, "compute": compute / batches, "rest": (sum(spent.values()) - compute) / count,
            "batch_seconds": (after["batch_seconds"] - before["batch_seconds"]) / batches,
            "resident": resident(process.pid), "bytes": statistics.mean(ask.bytes),
        }  # fmt: skip


def closed(port: int, ask: Requests, connections: int, seconds: float) -> list[float]:
    """Ask over some connections, each without a pause; return the latencies, sorted."""

    async def client(number: int, ends: float, into: list[float]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        i = number
        while (began := time.perf_counter()) < ends:
            request = ask(Arrival(0.0, i % len(ask.names), i % len(ask.sentences)))
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head[9:12] == b"200", head
            body = await reader.readexactly(int(re.search(rb"content-length: (\d+)", head.lower())[1]))  # type: ignore[index]
            into.append(time.perf_counter() - began)
            ask.bytes.append(len(request) + len(head) + len(body))
            i += connections
        writer.close()

    async def all_of_them() -> list[float]:
        taken: list[float] = []
        ends = time.perf_counter() + seconds
        await asyncio.gather(*(client(i, ends, taken) for i in range(connections)))
        return sorted(taken)

    return asyncio.run(all_of_them())


class Requests:
    """The bytes of requests, prepared."""

    def __init__(self, names: Sequence[str], sentences: Sequence[str]) -> None:
        self.names, self.sentences = names, sentences
        self.bytes: list[int] = []
        """Of requests with their answers, where somebody counts them."""
        self._bodies = []
        for sentence in sentences:
            data = json.dumps({"inputs": [sentence]}).encode()
            self._bodies.append(b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))
        self._heads = [f"POST /v1/tasks/{name}/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode() for name in names]

    def __call__(self, arrival: Arrival) -> bytes:
        return self._heads[arrival.task] + self._bodies[arrival.text]


# Servers


@contextmanager
def server(store: Path, *, core: int, memory: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run `adaptree serve` with one thread on one core; yield its process and its port."""
    words = [
        "taskset", "-c", str(core), sys.executable, "-m", "adaptree", "serve", "--store", str(store), "--port", "0",
        "--threads", "1", "--memory", str(memory), "--log", "none", "--no-jobs",
    ]  # fmt: skip
    with tempfile.NamedTemporaryFile("w+") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        try:
            for _ in range(1200):
                if found := re.search(r"http://127\.0\.0\.1:(\d+)", Path(log.name).read_text()):
                    yield process, int(found[1])
                    return
                if process.poll() is not None:
                    break
                time.sleep(0.1)
            raise SystemExit(Path(log.name).read_text() or "the server did not start")
        finally:
            process.terminate()
            process.wait(60)


def figures(port: int) -> dict[str, float]:
    """Return what a server has counted so far."""
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        text = page.read().decode()
    names = {
        "hits": "adaptree_task_hits_total", "loads": "adaptree_task_loads_total", "batches": "adaptree_batches_total",
        "rows": "adaptree_batch_rows_sum", "batch_seconds": "adaptree_batch_seconds_sum",
    }  # fmt: skip
    return {key: float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1]) for key, name in names.items()}  # type: ignore[index]


def thread_seconds(pid: int) -> dict[int, float]:
    """Return the processor time of each thread of a process."""
    return {
        int(path.name): int((path / "schedstat").read_text().split()[0]) / 1e9
        for path in Path(f"/proc/{pid}/task").iterdir()
    }


def machine_seconds() -> float:
    """Return the processor time of all processes of the machine."""
    fields = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # without idle and waiting for disks


def resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


# Two replicas


def replicas(folder: Path, routing: str, rates: Sequence[float], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield what two replicas did, one on each core, at each rate; it begins with the most popular tasks in memory."""
    import torch

    import adaptree as at

    torch.set_num_threads(1)
    base = at.load_base()
    store = store_of(folder, METHODS[0])
    memory = FIT * (at.Store(store).record("t0").file_bytes + 4096)
    ask = Requests([f"t{i}" for i in range(TASKS)], texts(base))
    with server(store, core=0, memory=memory) as (one, first), server(store, core=1, memory=memory) as (two, second):
        ports, pids = (first, second), (one.pid, two.pid)
        for rate in rates:
            load = Load(rate, seconds, TASKS, texts=TEXTS, clients=0 if rate else CLIENTS)
            router = Router(2, routing)
            for port, names in zip(ports, router.in_memory(FIT, TASKS), strict=True):
                fill(port, ask, names)
            before = speed(base)
            run = loaded(ports, pids, ask, load, router)
            now = statistics.mean((before, speed(base)))
            yield {"routing": routing, "rate": rate, "load": asdict(load), "fit": FIT, "speed": now} | run


def fill(port: int, ask: Requests, names: Sequence[int]) -> None:
    """Ask for tasks one after the other, so that they are in memory, the last one most recently used."""

    async def run() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for name in names:
            writer.write(ask(Arrival(0.0, name, 0)))
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(re.search(rb"content-length: (\d+)", head.lower())[1]))  # type: ignore[index]
        writer.close()

    asyncio.run(run())


def loaded(ports: Sequence[int], pids: Sequence[int], ask: Requests, load: Load, router: Router) -> dict[str, Any]:
    """Send a load to replicas; return what they did."""
    import uvloop

    before = [figures(port) for port in ports]
    threads, machine = [thread_seconds(pid) for pid in pids], machine_seconds()
    sent = uvloop.run(send(ports, ask, load, router))
    after = [figures(port) for port in ports]
    ended, others = [thread_seconds(pid) for pid in pids], machine_seconds() - machine - sent.cpu
    total = {key: sum(a[key] - b[key] for a, b in zip(after, before, strict=True)) for key in after[0]}
    cpu = [sum(e[t] - b.get(t, 0.0) for t in e) for e, b in zip(ended, threads, strict=True)]
    loops = [e[pid] - b[pid] for e, b, pid in zip(ended, threads, pids, strict=True)]
    answered = len(sent.latencies)
    return {
        "statuses": dict(sent.statuses),
        "throughput": sent.within / load.seconds,
        "p50": quantile(sent.latencies, 0.5), "p95": quantile(sent.latencies, 0.95),
        "p99": quantile(sent.latencies, 0.99),
        "rows_per_batch": total["rows"] / total["batches"],
        "hit_rate": 1 - total["loads"] / answered, "loads": total["loads"],
        "busy": sum(cpu) / sent.seconds / len(ports),
        "cpu_per_request": sum(cpu) / answered, "loop_per_request": sum(loops) / answered,
        "client_busy": sent.cpu / sent.seconds,
        "others_busy": (others - sum(cpu)) / sent.seconds,
        "resident": max(map(resident, pids)),
    }  # fmt: skip


if __name__ == "__main__":
    main()

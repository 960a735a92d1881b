"""Run the application: in this process, in several that share a port, or in a thread beside other work.

with BackgroundServer(engine) as server:
    server.url                          # 'http://127.0.0.1:54321'
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from adaptree.errors import AdaptreeError, StoreError, UsageError
from adaptree.serve.batcher import MAX_QUEUE
from adaptree.serve.counts import Counts
from adaptree.serve.engine import MEMORY, Engine
from adaptree.serve.heap import set_aside, share_heap
from adaptree.serve.http import create_app
from adaptree.serve.jobs.processes import WorkerProcesses
from adaptree.serve.jobs.queue import Jobs
from adaptree.serve.keys import Keys, place
from adaptree.serve.limits import Limits
from adaptree.serve.observe import Metrics, RequestLog
from adaptree.serve.protocol import Connection
from adaptree.serve.traces import start_traces
from adaptree.tasks.runs import bases_of
from adaptree.tasks.store import QUOTAS, Store

if TYPE_CHECKING:
    from fastapi import FastAPI

    from adaptree.serve.service import AnyEngine

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""What a client on this machine calls a server on it."""
SETTINGS = "ADAPTREE_SERVE"
"""The variable by which worker processes get their settings."""
DEFAULT_BASE = "minilm"
GRACE = 30
"""Seconds that requests under way have, when the server is told to stop."""
BACKLOG = 2048
"""Connections that wait to be accepted."""


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """What `adaptree serve` is told."""

    store: str | None = None
    index: str | None = None
    base: str | None = None
    device: str = "auto"
    threads: int | None = None
    memory: int = MEMORY
    max_queue: int = MAX_QUEUE
    host: str = LOOPBACK[0]
    port: int = 8080
    workers: int = 1
    cluster: str | None = None
    """The Ray cluster whose replicas compute; None for this process."""
    replicas: str = "1"
    """How many there are of them: '2', or '1-4' as the load wants it."""
    keys: str | None = None
    """The file of API keys, or a database's URL; None for none."""
    log: str = "json"
    open_metrics: bool = False
    traces: bool = False
    jobs: bool = True
    """Whether training jobs are accepted, where the store can have them."""
    train_workers: int = 1
    """Processes that this server starts to train them."""
    results: str | None = None
    """A folder of comparisons that the pages show."""
    counts: str | None = None
    """The file in which several processes count together."""
    limits: Limits = field(default_factory=Limits)

    def check(self, *, open_to_all: bool = False) -> Store:
        """Return the store; raise an error for what cannot work, before anything is loaded.

        `open_to_all` allows an address that other machines reach without keys.
        """
        if self.workers < 1:
            raise UsageError(f"workers must be at least 1, not {self.workers}.")
        if self.cluster is not None and self.workers > 1:
            raise UsageError(
                "with --cluster the replicas compute, and one process answers HTTP.",
                hint="Leave out --workers; start more servers beside it if one is not enough.",
            )
        if self.cluster is None and self.replicas != ServeSettings.replicas:
            raise UsageError("replicas are of a cluster.", hint="--cluster ray, or --workers for processes here")
        if self.cluster is not None:
            from adaptree.serve.cluster import Replicas

            Replicas.parse(self.replicas)
        if self.max_queue < 1:
            raise UsageError(f"max-queue must be at least 1, not {self.max_queue}.")
        if self.keys is None and not open_to_all and self.host not in LOOPBACK:
            raise UsageError(
                f"without API keys anybody who reaches {self.host} may use and change all tasks.",
                hint="adaptree keys api new, or say that you want this: --no-keys",
            )
        return self.open_store()

    def open_store(self) -> Store:
        store = Store(self.store, index=self.index)
        if "://" not in store.location and not store.path.is_dir():
            raise StoreError(
                f"there is no store at {store.location}.",
                hint="adaptree train DATA --name NAME, or name another: --store",
            )
        return store

    def engine(self, store: Store, metrics: Metrics, say: Callable[[str], None] = lambda text: None) -> AnyEngine:
        """Load the base and start an engine, or its replicas on a cluster; `say` gets what is worth a line."""
        from adaptree.models.opening import base_of

        own: dict[str, Any] = {"memory": self.memory, "max_queue": self.max_queue, "on_batch": metrics.batch}
        if self.cluster is None:
            return Engine(base_of(self.base or base_for(store), self.device, self.threads), store, **own)
        from adaptree.serve.cluster import ClusterEngine, Replicas

        least, most = Replicas.parse(self.replicas)
        base = base_of(self.base or base_for(store), "cpu", self.threads)
        own |= {"threads": self.threads or 1, "device": self.device}
        return ClusterEngine(base, store, cluster=self.cluster, least=least, most=most, say=say, **own)


def base_for(store: Store) -> str:
    """Return the base that most of a store's tasks were trained on: its folder or its name."""
    found = Counter((row.summary.fingerprint, row.summary.base) for row in store.rows() if row.summary.fingerprint)
    if not found:
        return DEFAULT_BASE
    (mark, name), _ = found.most_common(1)[0]
    return str(bases_of(store).get(mark, name))


class Server(uvicorn.Server):
    """uvicorn's server, which says that it is about to stop as soon as it knows."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.drain()
        super().handle_exit(sig, frame)

    def drain(self) -> None:
        service = getattr(getattr(self.config.app, "state", None), "service", None)
        if service is not None:
            service.draining = True


def config(app: FastAPI | str, limits: Limits, *, workers: int = 1, factory: bool = False) -> uvicorn.Config:
    """Return uvicorn's settings for an application."""
    found = uvicorn.Config(
        app,
        factory=factory,
        workers=workers,
        http=Connection,
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="error",
        log_config=None,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=GRACE,
        timeout_worker_healthcheck=30,  # a worker that is killed just while it is asked is missed as late as that
    )
    found.limits = limits  # type: ignore[attr-defined]
    return found


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address; raise an error of one line if that cannot be."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, port))
        except OSError:
            found.close()
            raise
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise AdaptreeError(f"cannot listen on {host}:{port}: {why}.", hint="Choose another port: --port") from error
    found.set_inheritable(True)
    return found


def url_of(host: str, found: socket.socket) -> str:
    """Return the address at which a client finds a socket."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{found.getsockname()[1]}"


def application(settings: ServeSettings, engine: AnyEngine, metrics: Metrics) -> FastAPI:
    """Return the application with the keys, limits and log of some settings."""
    store = engine.store
    kept = settings.keys is not None and "://" not in store.location and os.access(store.path, os.W_OK)
    quotas = store.path / QUOTAS if kept else None
    counts = Counts(None if settings.counts is None else Path(settings.counts), quotas)
    keys = None if settings.keys is None else Keys(place(settings.keys), counts)
    return create_app(
        engine,
        keys=keys,
        limits=settings.limits,
        metrics=metrics,
        log=RequestLog(settings.log),
        hosts=HOSTS if keys is None and settings.host in LOOPBACK else (),
        open_metrics=settings.open_metrics,
        traces=start_traces() if settings.traces else None,
        jobs=settings.jobs,
        results=None if settings.results is None else Path(settings.results),
        counts=counts,
    )


def training(
    settings: ServeSettings, store: Store, base: str, say: Callable[[str], None]
) -> AbstractContextManager[Any]:
    """Return what starts workers while there are jobs to train, or Ray tasks on a cluster; nothing if there are none
    to be accepted."""
    try:
        jobs = Jobs(store) if settings.jobs and settings.train_workers else None
    except UsageError:
        jobs = None
    if jobs is None:
        return nullcontext()
    if settings.cluster is not None:
        from adaptree.serve.jobs.on_cluster import ClusterWorkers, JobPlace

        place = JobPlace.of(store, base, device=settings.device, threads=settings.threads or 1, log=settings.log)
        return ClusterWorkers(store, jobs, place, settings.cluster, settings.train_workers, say)
    jobs.on_end = RequestLog(settings.log).bill
    options = ["--base", base, "--device", settings.device, "--log", settings.log or "none", "--quiet"]
    options += ["--threads", str(settings.threads)] if settings.threads else []
    places = {"ADAPTREE_STORE": settings.store, "ADAPTREE_INDEX": settings.index}  # not for all to see, as options are
    return WorkerProcesses(
        jobs, settings.train_workers, options, {name: place for name, place in places.items() if place}
    )


def run(
    settings: ServeSettings,
    store: Store,
    listening: socket.socket,
    announce: Callable[[], None],
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Serve until a signal says stop: then accept no more, answer what waits, and return."""
    if settings.workers > 1:
        _run_workers(settings, store, listening, announce, say)
        return
    share_heap()
    metrics = Metrics()
    with (
        settings.engine(store, metrics, say) as engine,
        _signals_are_caught(),
        training(settings, store, engine.base.location, say),
    ):
        server = Server(config(application(settings, engine, metrics), settings.limits))
        set_aside()
        listening.listen(BACKLOG)  # who asks as soon as it is announced waits, and is not refused
        announce()
        server.run([listening])


class _signals_are_caught:  # noqa: N801
    """uvicorn raises the signal that stopped it once more at its end: here that does nothing."""

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self.before = {each: signal.signal(each, _ignore) for each in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for each, handler in getattr(self, "before", {}).items():
            signal.signal(each, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _run_workers(
    settings: ServeSettings,
    store: Store,
    listening: socket.socket,
    announce: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    """Let several processes accept from one socket, each with an engine of its own; one that dies is started again."""
    from uvicorn.supervisors import Multiprocess

    from adaptree.models.opening import encoder_of

    base = settings.base or base_for(store)
    encoder_of(base)  # a base that is not there is said here, once, and not by each worker
    app = "adaptree.serve.server:worker_application"
    workers = Multiprocess(config(app, settings.limits, workers=settings.workers, factory=True), [listening])
    with tempfile.TemporaryDirectory(prefix="adaptree-serve-", ignore_cleanup_errors=True) as folder:
        counts = Path(folder) / "counts.sqlite"
        Counts(counts).close()  # it is there before the workers are, which all open it
        os.environ[SETTINGS] = json.dumps(asdict(replace(settings, base=base, counts=str(counts))))
        listening.listen(BACKLOG)
        announce()
        with training(settings, store, base, say):
            workers.run()
    if any(each.exitcode == STARTUP_FAILURE for each in workers.processes):
        raise AdaptreeError("the workers could not start.", hint="Start one alone, without --workers.")


def worker_application() -> FastAPI:
    """Return the application of a worker process, whose settings are in the environment."""
    said = json.loads(os.environ[SETTINGS])
    settings = ServeSettings(**{**said, "limits": Limits(**said["limits"])})
    metrics = Metrics()
    signal.signal(signal.SIGINT, _ignore)
    share_heap()
    try:
        found = application(settings, settings.engine(settings.open_store(), metrics), metrics)
    except AdaptreeError as error:
        print(f"✘ {error}", file=sys.stderr)
        sys.exit(STARTUP_FAILURE)
    set_aside()
    return found


class BackgroundServer:
    """A server in a thread of this process, for tests, notebooks and programs that do other things, too.

    The options are those of `create_app`. The engine stays the caller's, who closes it.
    """

    def __init__(self, engine: AnyEngine, *, host: str = LOOPBACK[0], port: int = 0, **options: Any) -> None:
        self.app = create_app(engine, **options)
        self._listening = bind(host, port)
        self.url = url_of(host, self._listening)
        self._server = Server(config(self.app, self.app.state.service.limits))
        self._thread = threading.Thread(
            target=self._server.run, args=([self._listening],), name="adaptree-http", daemon=True
        )

    def start(self) -> BackgroundServer:
        """Start, and return when requests are accepted."""
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.005)
        return self

    def stop(self) -> None:
        """Accept no more requests, answer those that are under way, and return."""
        self._server.drain()
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> BackgroundServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

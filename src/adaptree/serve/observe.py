"""What the server tells its owner: figures for Prometheus, and a line of log for each request.

Neither has texts, keys or tasks' names in it.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from adaptree.serve.engine import Batch, Engine

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """Counters of one server; `batch` is what an `Engine` takes as `on_batch`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter(
            "adaptree_http_requests", "Requests by route, method and status.", ["route", "method", "status"], **own
        )
        self.seconds = Histogram(
            "adaptree_http_request_seconds", "Time to answer, by route.", ["route"], buckets=SECONDS, **own
        )
        self.texts = Counter("adaptree_texts", "Inputs that were asked for.", **own)
        self.rows = Histogram("adaptree_batch_rows", "Rows of a batch.", buckets=POWERS, **own)
        self.tasks = Histogram("adaptree_batch_tasks", "Tasks in a batch.", buckets=POWERS, **own)
        self.tokens = Histogram("adaptree_batch_tokens", "Tokens of a batch.", buckets=(*POWERS, 1024, 2048), **own)
        self.batch_seconds = Histogram("adaptree_batch_seconds", "Time of a batch.", buckets=SECONDS, **own)

    def batch(self, batch: Batch) -> None:
        """Count what was computed at once."""
        self.rows.observe(batch.rows)
        self.tasks.observe(batch.tasks)
        self.tokens.observe(batch.tokens)
        self.batch_seconds.observe(batch.seconds)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        self.requests.labels(route, method, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def watch(self, engine: Engine) -> None:
        """Show an engine's own figures, too."""
        self.registry.register(_Figures(engine))


class _Figures(Collector):
    """An engine's figures, at the moment when they are asked for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        stats = self.engine.stats()
        gauges = {
            "waiting": ("adaptree_queue_rows", "Rows that wait."),
            "tasks": ("adaptree_tasks_in_memory", "Versions of tasks in memory."),
            "bytes": ("adaptree_task_memory_bytes", "Memory of the tasks."),
            "memory": ("adaptree_task_memory_limit_bytes", "Memory that tasks may take."),
        }
        counters = {
            "hits": ("adaptree_task_hits", "Requests whose task was in memory."),
            "loads": ("adaptree_task_loads", "Tasks that were read from the store."),
            "evictions": ("adaptree_task_evictions", "Tasks that made room for others."),
            "answered": ("adaptree_answered", "Requests of the engine that were answered."),
            "failures": ("adaptree_failures", "Requests of the engine that failed."),
            "expired": ("adaptree_expired", "Requests of the engine that came too late."),
            "batches": ("adaptree_batches", "Batches that were computed."),
        }
        for key, (name, text) in gauges.items():
            yield GaugeMetricFamily(name, text, value=stats[key])
        for key, (name, text) in counters.items():
            yield CounterMetricFamily(name, text, value=stats[key])


class RequestLog:
    """Writes a line for each request: JSON, or text to read on a terminal."""

    def __init__(self, form: str = "json", to: TextIO | None = None) -> None:
        self.form, self._to, self._lock = form, to, threading.Lock()

    def write(self, **fields: Any) -> None:
        """Write one line; `form` '' writes none."""
        if not self.form:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        if self.form == "json":
            line = json.dumps({"time": now, **fields})
        else:
            line = " ".join([now, *(f"{key}={value}" for key, value in fields.items())])
        with self._lock:
            print(line, file=self._to or sys.stderr, flush=True)

    def failure(self, error: BaseException, request: str) -> None:
        """Write where an error came from that is our fault. Its message is left out: it may quote a text."""
        frames = traceback.extract_tb(error.__traceback__)[-6:]
        where = [f"{frame.filename.rpartition('adaptree/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
        self.write(level="error", request=request, error=type(error).__name__, where=where)

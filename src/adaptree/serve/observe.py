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

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from adaptree.errors import AdaptreeError
from adaptree.serve.jobs.job import STATES

if TYPE_CHECKING:
    from adaptree.serve.engine import Batch
    from adaptree.serve.jobs.job import Job
    from adaptree.serve.jobs.queue import Jobs
    from adaptree.serve.service import AnyEngine

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


GAUGES = {
    "waiting": ("adaptree_queue_rows", "Rows that wait."),
    "writing": ("adaptree_texts_under_way", "Texts that are written just now."),
    "tasks": ("adaptree_tasks_in_memory", "Versions of tasks in memory."),
    "bytes": ("adaptree_task_memory_bytes", "Memory of the tasks."),
    "memory": ("adaptree_task_memory_limit_bytes", "Memory that tasks may take."),
    "replicas": ("adaptree_replicas", "Engines that compute: one in each process, or the replicas of a cluster."),
}
COUNTERS = {
    "hits": ("adaptree_task_hits", "Requests whose task was in memory."),
    "loads": ("adaptree_task_loads", "Tasks that were read from the store."),
    "evictions": ("adaptree_task_evictions", "Tasks that made room for others."),
    "answered": ("adaptree_answered", "Requests of the engine that were answered."),
    "refused": ("adaptree_refused", "Requests whose inputs or options do not fit the task."),
    "failures": ("adaptree_failures", "Requests of the engine that failed."),
    "expired": ("adaptree_expired", "Requests of the engine that came too late."),
    "batches": ("adaptree_batches", "Batches that were computed."),
    "prompt_tokens": ("adaptree_prompt_tokens", "Tokens of prompts that texts were written for."),
    "written_tokens": ("adaptree_written_tokens", "Tokens that were written."),
}
"""Figures of `Engine.stats`, as Prometheus calls them."""
Samples = dict[str, dict[str, float]]
"""Values by the name of their family, and then by their own name and labels as JSON."""


class Metrics:
    """Counters of one process; `batch` is what an `Engine` takes as `on_batch`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.common = CollectorRegistry()
        """What every process of a server would say alike."""
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
        self.jobs = Counter("adaptree_jobs_queued", "Training jobs that were accepted.", **own)
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

    def watch(self, engine: AnyEngine) -> None:
        """Show an engine's own figures, too."""
        self.registry.register(_Figures(engine))

    def watch_jobs(self, jobs: Jobs) -> None:
        """Show how many jobs there are, too."""
        self.common.register(_JobFigures(jobs))

    def samples(self) -> tuple[Samples, Samples]:
        """Return what this process has counted since it started, and what there is now."""
        total: Samples = {}
        now: Samples = {}
        for family in self.registry.collect():
            (now if family.type == "gauge" else total)[family.name] = {
                json.dumps([sample.name, sample.labels]): sample.value
                for sample in family.samples
                if not sample.name.endswith("_created")
            }
        return total, now

    def exposition(self, samples: Samples) -> bytes:
        """Return samples, which may be the sums of several processes, as Prometheus reads them."""
        return generate_latest(_Families(self, samples))


class _Families(CollectorRegistry):
    """The families of a process, with other samples."""

    def __init__(self, metrics: Metrics, samples: Samples) -> None:
        super().__init__()
        self.metrics, self.samples = metrics, samples

    def collect(self) -> Iterable[Metric]:
        for family in self.metrics.registry.collect():
            found = ((json.loads(spelled), value) for spelled, value in self.samples.get(family.name, {}).items())
            family.samples = [Sample(name, labels, value) for (name, labels), value in found]
            yield family
        yield from self.metrics.common.collect()


class _Figures(Collector):
    """An engine's figures, at the moment when they are asked for."""

    def __init__(self, engine: AnyEngine) -> None:
        self.engine = engine

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        stats = self.engine.stats()
        for key, (name, text) in GAUGES.items():
            yield GaugeMetricFamily(name, text, value=stats[key])
        for key, (name, text) in COUNTERS.items():
            yield CounterMetricFamily(name, text, value=stats[key])


class _JobFigures(Collector):
    """How many jobs are in each state, in the database that all servers share."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        found = GaugeMetricFamily("adaptree_jobs", "Training jobs by state.", labels=["state"])
        try:
            counts = self.jobs.counts()
        except AdaptreeError:
            return
        for state in STATES:
            found.add_metric([state], counts.get(state, 0))
        yield found


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

    def bill(self, job: Job) -> None:
        """Write what a job that has ended cost."""
        self.write(job=job.id, tenant=job.tenant, state=job.state, attempts=job.attempts, **job.bill)

    def failure(self, error: BaseException, request: str) -> None:
        """Write where an error came from that is our fault. Its message is left out: it may quote a text."""
        frames = traceback.extract_tb(error.__traceback__)[-6:]
        where = [f"{frame.filename.rpartition('adaptree/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
        self.write(level="error", request=request, error=type(error).__name__, where=where)

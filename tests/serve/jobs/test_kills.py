"""kill -9 of servers, workers and database connections at random moments: no job is lost, none is published twice."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from adaptree.hub.verify import verify
from adaptree.serve.jobs.job import DONE, RUNNING
from adaptree.tasks.record import STREAM
from adaptree.tasks.store import Store
from tests.serve.jobs.site import QUICK, Site, form
from tests.serve.serving import Asker

PATIENCE = 400


@dataclass
class Town:
    """A server that starts workers, and one worker beside it, which are started again when they are killed."""

    site: Site
    log: Path
    beside: bool = True
    """Whether there is a worker that the server did not start."""
    nice: str = "0"
    ask: Asker | None = None
    server: subprocess.Popen[bytes] | None = None
    worker: subprocess.Popen[bytes] | None = None
    kills: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        fast = {"ADAPTREE_JOB_LEASE": "3", "ADAPTREE_JOB_NICE": self.nice, "OMP_NUM_THREADS": "1"}
        where = {"ADAPTREE_STORE": str(self.site.store.path), "XDG_CONFIG_HOME": str(self.site.folder / "config")}
        return {**os.environ, **fast, **where, **({"ADAPTREE_INDEX": self.site.url} if self.site.url else {})}

    def _run(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "adaptree", *words, "--base", self.site.base.location, "--log", "none"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, stderr=log, stdout=log, env=self.environment, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def start(self) -> None:
        """Start what is not running; wait until the server answers."""
        if self.beside and (self.worker is None or self.worker.poll() is not None):
            self.worker = self._run("worker")
        if self.server is not None and self.server.poll() is None:
            return
        begun = self.log.stat().st_size if self.log.exists() else 0
        self.server = self._run("serve", "--port", "0")
        until = time.monotonic() + 120
        while not (found := re.search(rb"at (http://\S+)", self.log.read_bytes()[begun:])):
            assert self.server.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.05)
        self.ask = Asker(found[1].decode())

    def at_work(self) -> list[int]:
        """Wait until a job runs; return the processes of the workers that have one."""
        until = time.monotonic() + PATIENCE
        while not (running := self.site.jobs.list(state=RUNNING)):
            assert time.monotonic() < until, self.log.read_text()
            self.start()
            time.sleep(0.05)
        return [int(job.worker.split("/")[1]) for job in running]

    def kill(self, rng: random.Random) -> None:
        """Kill somebody, at some moment while a job is trained, or soon after."""
        workers = self.at_work()
        time.sleep(rng.random() ** 2 * 4)
        victims = {"a worker": 5, "server": 2, "both": 1, **({"connections": 4} if self.site.url else {})}
        victim = rng.choices(list(victims), list(victims.values()))[0]
        self.kills.append(victim)
        if victim in ("a worker", "both"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGKILL)
        if victim in ("server", "both"):
            assert self.server is not None
            self.server.kill()
            self.server.wait()
        if victim == "connections":
            import psycopg

            with psycopg.connect(str(self.site.url)) as db:
                db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    def submit(self, name: str, epochs: int = 40) -> str:
        """Send a job until the server says that it has it; return its id."""
        body, header = form(self.site.csv, settings={**QUICK, "name": name, "epochs": epochs, "patience": epochs})
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            self.start()
            assert self.ask is not None
            with contextlib.suppress(OSError, ValueError):
                answer = self.ask("POST", "/v1/jobs", body, headers=header)
                if answer.status == 202:
                    return str(answer.json["id"])
            time.sleep(0.2)
        raise AssertionError(self.log.read_text())

    def close(self) -> None:
        for process in (self.server, self.worker):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in (self.server, self.worker):
            if process is not None:
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@contextlib.contextmanager
def town(site: Site, *, worker: bool = True, nice: str = "0") -> Iterator[Town]:
    found = Town(site, site.folder / "log.txt", worker, nice)
    try:
        found.start()
        yield found
    finally:
        found.close()


def survives(site: Site, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    with town(site) as running:
        accepted: list[str] = []
        for _ in range(kills):
            while len(accepted) < 4 or sum(not job.ended for job in site.jobs.list()) < 3:
                accepted.append(running.submit(f"t{len(accepted) % 4}"))
            running.kill(rng)
            running.start()
        until = time.monotonic() + PATIENCE
        while True:
            jobs = site.jobs.list(limit=1000)
            if all(job.ended for job in jobs):
                break
            assert time.monotonic() < until, [(job.id, job.state, job.attempts) for job in jobs]
            running.start()
            time.sleep(0.2)
        attempts = sum(job.attempts for job in jobs)
        print(f"{len(running.kills)} kills ({Counter(running.kills)}), {len(jobs)} jobs in {attempts} attempts")
        log = running.log.read_text()
    agree(site, jobs, accepted, log)


def agree(site: Site, jobs: list[Any], accepted: list[str], log: str) -> None:
    """The queue, the store and the disk tell one story."""
    assert {*accepted} <= {job.id for job in jobs}, "no job that was accepted is lost"
    assert [(job.state, job.error) for job in jobs] == [(DONE, None)] * len(jobs), log
    store = Store(site.store.path)
    published: dict[str, list[str]] = {}
    for name in store.names():
        for version in store.versions(name):
            task = store[f"{name}@{version}"]  # its files are whole, or this raises
            published.setdefault(str(task.record.extra[STREAM]), []).append(f"{name}@{version}")
    assert published == {job.key: [job.task] for job in jobs}, "each is published once, as the queue says"
    for job in jobs:
        states = [event.data["state"] for event in site.jobs.events(job.id) if event.event == "state"]
        assert states.count(DONE) == 1
        assert states[-1] == DONE
    checked = verify(store)
    assert not [row for row in checked.rows if row.damaged or row.unknown]
    site.more_jobs().sweep()
    assert site.left() == []


@pytest.mark.slow
def test_five_kills_lose_nothing_and_publish_nothing_twice(site: Site) -> None:
    survives(site, 5, seed=1)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [0])
def test_fifty_kills_lose_nothing_and_publish_nothing_twice(either: Site, seed: int) -> None:
    survives(either, 50, seed)

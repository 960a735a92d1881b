"""Training jobs on a Ray cluster: done once, given back, cancelled and resumed as by any other worker."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from adaptree.models.loading import load_base
from adaptree.serve.jobs.job import CANCELLED, DONE, QUEUED, RUNNING
from adaptree.serve.jobs.on_cluster import ClusterWorkers, JobPlace
from adaptree.tasks.record import STREAM
from tests import postgres, s3
from tests.bases import tiny_base
from tests.serve.jobs.site import Site

pytestmark = pytest.mark.slow
PATIENCE = 300
LONG = 20_000
"""Epochs of a job that is still under way when something is done to it."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path, load_base(tiny_base(tmp_path / "base")))
    yield found
    found.close()


def workers(site: Site, count: int = 1) -> ClusterWorkers:
    place = JobPlace.of(site.store, site.base.location, lease=5.0)
    return ClusterWorkers(site.store, site.more_jobs(), place, "ray", count, lambda text: None)


def until(what: Callable[[], Any]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)


@contextmanager
def at_work(site: Site, job: str) -> Iterator[ClusterWorkers]:
    """Workers, once the job has done an epoch."""
    with workers(site) as found:
        until(lambda: site.jobs.get(job).state == RUNNING and site.jobs.get(job).progress.get("epoch"))
        yield found


@pytest.mark.usefixtures("ray_cluster")
def test_jobs_are_trained_to_the_same_bits_and_their_progress_is_told(site: Site) -> None:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        site.add("alone")
        site.worker().run(drain=True)
    finally:
        torch.set_num_threads(threads)
    jobs = [site.add("words"), site.add("more")]
    assert workers(site, 2).run(drain=True) == 2
    for job in map(site.jobs.get, (each.id for each in jobs)):
        assert (job.state, job.task, job.attempts) == (DONE, f"{job.name}@1", 1)
        assert any(event.event == "epoch" for event in site.jobs.events(job.id))
    first, second = site.store["alone"].tensors, site.store["words"].tensors
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.usefixtures("ray_cluster")
def test_a_job_is_cancelled_and_another_given_back(site: Site) -> None:
    job = site.add("words", epochs=LONG, patience=10**6)
    with at_work(site, job.id):
        site.jobs.cancel(job.id)
        until(lambda: site.jobs.get(job.id).state == CANCELLED)
    left = site.add("left", epochs=LONG, patience=10**6)
    with at_work(site, left.id):
        pass
    found = site.jobs.get(left.id)
    assert (found.state, found.deaths) == (QUEUED, 0)
    assert site.store.names() == []


def test_a_job_whose_machine_is_lost_is_done_once(ray_cluster: Any, site: Site) -> None:
    busy = threading.Event()
    node = ray_cluster.add_node(num_cpus=2)  # the only one with two cores
    ray_cluster.wait_for_nodes()
    job = site.add("words", epochs=60, patience=10**6)
    place = JobPlace.of(site.store, site.base.location, lease=5.0, threads=2)
    with ClusterWorkers(site.store, site.more_jobs(), place, "ray", 1, lambda text: busy.set()):
        until(lambda: site.jobs.get(job.id).progress.get("epoch"))
        before = site.jobs.get(job.id)
        assert before.state == RUNNING
        ray_cluster.remove_node(node, allow_graceful=False)
        ray_cluster.add_node(num_cpus=2)
        until(lambda: site.jobs.get(job.id).ended)
    found = site.jobs.get(job.id)
    assert (found.state, found.task, found.attempts) == (DONE, "words@1", 2)
    assert site.store.versions("words") == [1]
    assert site.store.record("words").extra[STREAM] == found.key
    assert busy.is_set(), "what a worker says is heard"


@pytest.mark.skipif(bool(postgres.why_not()), reason=postgres.why_not())
def test_jobs_in_postgresql_are_trained_on_ray_into_a_store_behind_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'adaptree[cluster]'")
    pytest.importorskip("moto.server", reason="needs moto: pip install 'adaptree[dev]'")
    with postgres.server() as url, s3.running() as endpoint:
        s3.use(endpoint, monkeypatch)
        place = f"s3://{s3.BUCKET}/on-ray"
        site = Site(tmp_path, load_base(tiny_base(tmp_path / "base")), url, place)
        try:
            jobs = [site.add(name) for name in ("words", "more")]
            where = ["--store", place, "--index", url, "--base", str(site.base.location), "--log", "none"]
            subprocess.run(
                [sys.executable, "-m", "adaptree", "worker", "--cluster", "ray", "--jobs", "2", "--drain", *where],
                env={**os.environ, "RAY_ADDRESS": "local"},  # a cluster of its own, whose workers know the S3 server
                check=True,
                timeout=PATIENCE,
            )
            for job in map(site.jobs.get, (each.id for each in jobs)):
                assert (job.state, job.task, job.attempts) == (DONE, f"{job.name}@1", 1)
            assert site.store.names() == ["more", "words"]
        finally:
            site.close()

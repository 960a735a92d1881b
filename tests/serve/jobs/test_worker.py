"""Workers: a job is resumed to the same bits, published once, stopped as it was asked, and given back."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptree.data.events import Event, Listener
from adaptree.errors import DataError, StoreError, TrainingError
from adaptree.models.base import Base
from adaptree.serve.jobs import worker as module
from adaptree.serve.jobs.job import BEST, CANCELLED, DONE, FAILED, QUEUED, RUNNING
from adaptree.serve.jobs.worker import Worker
from adaptree.tasks.record import STREAM
from adaptree.tasks.task import Task
from adaptree.training import loop
from tests.serve.jobs.site import Site


class Killed(BaseException):
    """As if the process were gone: nothing is said to anybody."""


def dies_at(worker: Worker, monkeypatch: pytest.MonkeyPatch, epoch: int) -> None:
    """Let a worker be gone when an epoch ends, and its job be taken back as its supervisor does."""
    original = module.train

    def train(run: Any, listener: Listener) -> Any:
        def listen(event: Event) -> None:
            listener(event)
            if event["event"] == "epoch" and event["epoch"] >= epoch:
                raise Killed

        return original(run, listen)

    monkeypatch.setattr(module, "train", train)
    with pytest.raises(Killed):
        worker.run(once=True)
    monkeypatch.setattr(module, "train", original)
    worker.jobs.take_back(worker.name)


def weights(site: Site, reference: str) -> dict[str, torch.Tensor]:
    return site.store[reference].tensors


def test_a_job_that_is_resumed_has_the_same_bits_as_one_that_was_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    site.add("whole", epochs=4)
    cut = site.add("cut", epochs=4)
    assert site.worker().run(once=True) == 1
    monkeypatch.setattr(loop.Trainer, "keep", lambda self: None)  # a dead process saves nothing more
    dies_at(site.worker(), monkeypatch, 2)
    assert (site.jobs.files.checkpoints(cut.id) / "checkpoint.safetensors").is_file()
    assert site.jobs.get(cut.id).state == QUEUED
    steps = []
    monkeypatch.setattr(loop.Trainer, "_step", _counting(loop.Trainer._step, steps))
    assert site.worker().run(drain=True) == 1
    job = site.jobs.get(cut.id)
    assert (job.state, job.task, job.attempts) == (DONE, "cut@1", 2)
    assert len(steps) < 4 * 12, "it did not begin anew"
    whole, resumed = weights(site, "whole@1"), weights(site, "cut@1")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert site.left() == []


def _counting(step: Any, steps: list[int]) -> Any:
    def counted(self: Any, *values: Any) -> None:
        steps.append(1)
        step(self, *values)

    return counted


def test_a_task_that_was_published_before_its_worker_died_is_not_trained_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.add()
    first = site.worker()
    monkeypatch.setattr(first.jobs, "finish", _killed)
    with pytest.raises(Killed):
        first.run(once=True)
    assert site.store.versions("words") == [1]
    first.jobs.take_back(first.name)
    monkeypatch.setattr(module, "train", _killed)  # it is not called
    assert site.worker().run(drain=True) == 1
    found = site.jobs.get(job.id)
    assert (found.state, found.task, found.attempts) == (DONE, "words@1", 2)
    assert found.metrics, "its scores are those of the record"
    assert site.store.versions("words") == [1]


def _killed(*_: Any, **__: Any) -> None:
    raise Killed


@pytest.mark.parametrize("wakes", ["before the second publishes", "after it"])
def test_a_worker_that_was_paused_before_it_published_does_not_publish_twice(
    either: Site, monkeypatch: pytest.MonkeyPatch, wakes: str
) -> None:
    """It is stopped between the reservation and the publication, for longer than its lease."""
    job = either.add()
    paused, go = threading.Event(), threading.Event()
    first = either.worker(lease=0.5)
    add, beat = first.store.add, first.jobs.beat

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(either.store, name)

        def add(self, task: Task, **options: Any) -> Task:
            paused.set()
            go.wait(30)
            return add(task, **options)

    monkeypatch.setattr(first, "store", Slow())

    def silent(*given: Any, **options: Any) -> str:
        if paused.is_set():
            go.wait(30)
            return ""
        return beat(*given, **options)

    monkeypatch.setattr(first.jobs, "beat", silent)
    thread = threading.Thread(target=lambda: first.run(once=True))
    thread.start()
    assert paused.wait(30)
    time.sleep(0.8)
    second = either.worker()
    if wakes == "after it":
        assert second.run(once=True) == 1
        go.set()
        thread.join()
    else:
        claim = second.jobs.claim(second.name)
        assert claim is not None
        go.set()
        thread.join()
        assert either.jobs.get(job.id).state == RUNNING, "the first may publish, but not say so"
        second.train(claim)
    found = either.jobs.get(job.id)
    assert (found.state, found.task, found.attempts) == (DONE, "words@1", 2)
    assert either.store.versions("words") == [1]


def test_a_number_that_somebody_else_took_is_not_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("words")
    site.worker().run(once=True)
    job = site.add("words")
    worker = site.worker()
    reserve, stored = worker.jobs.reserve, site.store["words@1"]

    def meanwhile(*given: Any) -> int:
        number = reserve(*given)
        if number == 2:
            site.store.add(stored)  # `adaptree train`, say
        return number

    monkeypatch.setattr(worker.jobs, "reserve", meanwhile)
    worker.run(once=True)
    assert site.jobs.get(job.id).task == "words@3"
    assert site.store.versions("words") == [1, 2, 3]


def test_a_worker_that_is_stopped_gives_its_job_back_with_its_checkpoint(site: Site) -> None:
    job = site.add(epochs=300)
    worker = site.worker()
    threading.Timer(1.0, worker.stop).start()
    worker.run()
    found = site.jobs.get(job.id)
    assert (found.state, found.attempts, found.deaths) == (QUEUED, 1, 0)
    assert (site.jobs.files.checkpoints(job.id) / "checkpoint.safetensors").is_file()
    assert found.seconds > 0


@pytest.mark.parametrize("keep", ["nothing", BEST])
def test_a_job_that_is_cancelled_keeps_what_it_was_asked_to(site: Site, keep: str) -> None:
    job = site.add(epochs=300)
    worker = site.worker(lease=0.6)
    thread = threading.Thread(target=lambda: worker.run(drain=True))
    thread.start()
    while not site.jobs.get(job.id).progress.get("score"):
        time.sleep(0.02)
    site.jobs.cancel(job.id, keep)
    thread.join(30)
    found = site.jobs.get(job.id)
    if keep == BEST:
        assert (found.state, found.task) == (DONE, "words@1")
        assert site.store.record("words").settings["finished"] is False
    else:
        assert (found.state, found.task) == (CANCELLED, "")
        assert site.store.versions("words") == []
    assert site.left() == []


def test_a_job_has_only_so_many_seconds_and_keeps_its_best(site: Site) -> None:
    job = site.add(epochs=900, most_seconds=2)
    site.worker(lease=0.6).run(drain=True)
    found = site.jobs.get(job.id)
    assert found.state == DONE
    assert 2 <= found.seconds < 30


def test_a_job_that_cannot_be_trained_says_why_and_can_be_tried_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.add()

    def refuse(*_: Any) -> None:
        raise DataError("row 7 of 'words.csv' is odd.", hint="Correct it.")

    monkeypatch.setattr(module, "train", refuse)
    site.worker().run(drain=True)
    found = site.jobs.get(job.id)
    assert found.state == FAILED
    assert found.error == {"code": "bad_data", "message": "row 7 of 'words.csv' is odd.", "hint": "Correct it."}
    monkeypatch.undo()
    site.jobs.retry(job.id)
    site.worker().run(drain=True)
    assert site.jobs.get(job.id).task == "words@1"


def test_an_error_of_ours_shows_no_text_or_path(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = site.add()

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("/secret/path and a text")

    monkeypatch.setattr(module, "train", fail)
    site.worker().run(drain=True)
    error = site.jobs.get(job.id).error
    assert error is not None
    assert error["code"] == "internal_error"
    assert "secret" not in str(error)


def test_ten_jobs_of_three_tenants_are_fair_apart_and_billed(site: Site) -> None:
    """They arrive at once, most of one tenant; two workers train them."""
    tenants = ["big"] * 6 + ["mid"] * 3 + ["one"]
    jobs = [site.add(f"{tenant}/t{i}", tenant, most_running=1) for i, tenant in enumerate(tenants)]
    bills: list[tuple[str, dict[str, Any]]] = []
    workers = [site.worker(site.more_jobs()) for _ in range(2)]
    for worker in workers:
        worker.jobs.on_end = lambda job: bills.append((job.tenant, job.bill))
    # Trainings share this process's random numbers and threads, so that one runs at a time; the queue does not know.
    lock = threading.Lock()
    for worker in workers:
        train = worker.train
        worker.train = lambda claim, train=train: _locked(lock, train, claim)  # type: ignore[method-assign, misc]
    threads = [threading.Thread(target=lambda worker=worker: worker.run(drain=True)) for worker in workers]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [site.jobs.get(job.id) for job in jobs]
    assert [job.state for job in found] == [DONE] * 10
    order = [job.tenant for job in sorted(found, key=lambda job: job.begun or 0)]
    assert order[:3] == ["big", "mid", "one"], "each has one running before anybody has a second"
    assert max(i for i, tenant in enumerate(order) if tenant == "mid") <= 6, "mid does not wait for all of big"
    running = 0
    big = [job for job in found if job.tenant == "big"]
    for _, change in sorted([*((job.begun or 0, 1) for job in big), *((job.finished or 0, -1) for job in big)]):
        running += change
        assert running <= 1, "no tenant has more than it may"
    for job in found:
        assert site.store.record(job.task).name == job.name
        assert job.name.startswith(f"{job.tenant}/")
        assert job.bill["rows"] == 90
        assert job.bill["bytes"] == len(site.csv)
        took = (job.finished or 0) - (job.begun or 0)
        assert 0 < job.bill["seconds"] <= took + 0.05
    assert sorted(tenant for tenant, _ in bills) == sorted(tenants)
    assert sum(bill["seconds"] for _, bill in bills) == pytest.approx(sum(job.seconds for job in found), abs=0.02)
    assert site.left() == []


def _locked(lock: threading.Lock, train: Any, claim: Any) -> None:
    with lock:
        train(claim)


def test_a_store_behind_a_url_lets_another_machine_go_on(
    tiny: Base, server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What two machines share is the objects and the database; each has a cache folder of its own."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    url = f"memory://jobs-{tmp_path.name}"

    def machine(name: str) -> Site:
        monkeypatch.setenv("ADAPTREE_CACHE", str(tmp_path / name))
        return Site(tmp_path / name, tiny, server_url, url)

    first = machine("first")
    (tmp_path / "first").mkdir()
    job = first.add(epochs=300)
    worker = first.worker()
    threading.Timer(1.5, worker.stop).start()
    worker.run()
    assert first.jobs.get(job.id).state == QUEUED
    second = machine("second")
    steps: list[int] = []
    monkeypatch.setattr(loop.Trainer, "_step", _counting(loop.Trainer._step, steps))
    other = second.worker(lease=0.6)
    assert second.store.path != first.store.path
    notes: list[str] = []
    monkeypatch.setattr(loop.Trainer, "restore", _noting(loop.Trainer.restore, notes))
    second.jobs.cancel(job.id, BEST)
    other.run(drain=True)
    assert notes == ["restored"]
    assert len(steps) <= 12
    assert second.jobs.get(job.id).task == "words@1"
    assert second.store["words@1"].record.extra[STREAM] == job.key
    assert list(second.store.objects.listing("jobs")) == []  # type: ignore[attr-defined]
    first.close()
    second.close()


def _noting(restore: Any, notes: list[str]) -> Any:
    def noted(self: Any) -> None:
        notes.append("restored")
        restore(self)

    return noted


def test_a_failure_shows_no_folder_of_the_server(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("a", "b", "c")
    jobs = [site.add(name) for name in names]
    place = site.store.path / "jobs" / "files" / jobs[0].file / "words.csv"
    errors = iter([
        DataError(f"cannot read '{place}': Permission denied."),
        StoreError(f"cannot write {site.store.path}: No space left on device."),
        TrainingError("stopped before the first epoch was done."),
    ])  # fmt: skip

    def fail(*_: Any) -> None:
        raise next(errors)

    monkeypatch.setattr(module, "train", fail)
    site.worker().run(drain=True)
    found = [site.jobs.get(job.id).error or {} for job in jobs]
    assert [error["code"] for error in found] == ["bad_data", "store_error", "training_failed"]
    assert found[0]["message"] == "cannot read 'words.csv': Permission denied."
    assert not any(str(site.folder) in str(error) for error in found)

"""The laws of the queue, in SQLite and in PostgreSQL."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from adaptree.errors import StoreError, UsageError
from adaptree.serve.jobs import JobConflict, JobNotFound, Jobs, OverQuota
from adaptree.serve.jobs.claims import KEPT, MOST_DEATHS
from adaptree.serve.jobs.job import BEST, CANCELLED, DONE, FAILED, QUEUED, RUNNING, FileNotHere, LeaseLost
from adaptree.tasks.store import Store
from tests.serve.jobs.site import Site


def test_a_job_is_claimed_once_by_however_many_workers(either: Site) -> None:
    ids = {either.add(f"task{i}").id for i in range(12)}
    queues = [either.more_jobs() for _ in range(4)]

    def take(jobs: Jobs) -> list[str]:
        found = []
        while (claim := jobs.claim("w")) is not None:
            found.append(claim.job.id)
        jobs.database.dispose()
        return found

    with ThreadPoolExecutor(4) as pool:
        taken = [id for found in pool.map(take, queues) for id in found]
    assert len(taken) == 12
    assert set(taken) == ids


def test_tenants_take_turns_however_many_jobs_one_has(either: Site) -> None:
    for i in range(4):
        either.add(f"many/{i}x", "many")
    either.add("few/a", "few")
    either.add("one/a", "one")
    order = []
    while (claim := either.jobs.claim("w")) is not None:
        order.append(claim.job.tenant)
        either.jobs.finish(claim, DONE, seconds=1)
    assert order == ["many", "few", "one", "many", "many", "many"]


def test_the_tenant_with_the_fewest_running_goes_first_and_none_has_more_than_it_may(either: Site) -> None:
    for tenant in ("a", "a", "a", "b", "b"):
        either.add(f"{tenant}/x{time.monotonic_ns()}", tenant, most_running=2)
    order = [claim.job.tenant if (claim := either.jobs.claim("w")) else "" for _ in range(6)]
    assert order == ["a", "b", "a", "b", "", ""]


def test_two_jobs_of_one_task_do_not_run_at_once(either: Site) -> None:
    first, second = either.add("same"), either.add("same")
    claim = either.jobs.claim("w")
    assert claim is not None
    assert claim.job.id == first.id
    assert either.jobs.claim("v") is None
    either.jobs.finish(claim, DONE, seconds=1)
    again = either.jobs.claim("v")
    assert again is not None
    assert again.job.id == second.id


def test_a_position_counts_those_whose_turn_comes_first(either: Site) -> None:
    mine = [either.add(f"a/{i}x", "a") for i in range(3)]
    theirs = either.add("b/x", "b")
    assert [either.jobs.get(job.id).position for job in mine] == [1, 3, 4]
    assert either.jobs.get(theirs.id).position == 2


def test_a_job_whose_worker_is_silent_is_taken_again_and_the_first_one_can_write_nothing(either: Site) -> None:
    either.add()
    first = either.jobs.claim("first", lease=0.2)
    assert first is not None
    assert either.jobs.claim("second") is None
    either.jobs.beat(first, 0.1, lease=0.2)
    time.sleep(0.3)
    second = either.jobs.claim("second")
    assert second is not None
    assert second.job.id == first.job.id
    assert second.job.attempts == 2
    for write in (
        lambda: either.jobs.beat(first, 1),
        lambda: either.jobs.note(first, "note", {"text": "x"}),
        lambda: either.jobs.reserve(first, 1, 0),
        lambda: either.jobs.finish(first, DONE, seconds=1, task="words@1"),
        lambda: either.jobs.give_back(first, 1),
    ):
        with pytest.raises(LeaseLost):
            write()
    assert either.jobs.finish(second, DONE, seconds=1, task="words@1").state == DONE
    with pytest.raises(LeaseLost):
        either.jobs.finish(first, FAILED, seconds=1)
    assert either.jobs.get(first.job.id).state == DONE


def test_to_finish_twice_is_to_finish_once(either: Site) -> None:
    """A connection may be lost after the database has done it: then it is asked again."""
    either.add()
    claim = either.jobs.claim("w")
    assert claim is not None
    done = either.jobs.finish(claim, DONE, seconds=2, task="words@1")
    assert either.jobs.finish(claim, DONE, seconds=2, task="words@1") == done


def test_a_job_that_kills_its_workers_fails_in_the_end_but_not_one_that_gets_on(either: Site) -> None:
    job = either.add()
    for i in range(MOST_DEATHS - 1):
        claim = either.jobs.claim(f"host/{i}/x")
        assert claim is not None
        either.jobs.take_back(f"host/{i}/")
    claim = either.jobs.claim("host/9/x")
    assert claim is not None
    either.jobs.note(claim, "progress", {}, {"share": 0.5})
    either.jobs.take_back("host/9/")
    for i in range(MOST_DEATHS - 1):
        claim = either.jobs.claim(f"host/{i}/x")
        assert claim is not None, i
        either.jobs.note(claim, "progress", {}, {"share": 0.4})  # what it had reached before is no progress
        either.jobs.take_back(f"host/{i}/")
    found = either.jobs.get(job.id)
    assert found.state == FAILED
    assert found.error is not None
    assert found.error["code"] == "worker_died"


def test_only_a_worker_with_the_jobs_base_takes_it(either: Site) -> None:
    file = either.upload()
    either.jobs.add("", file.id, {"name": "x"}, base="aaa")
    assert either.jobs.claim("w", "bbb") is None
    assert either.jobs.claim("w", "aaa") is not None


def test_events_have_growing_numbers_and_can_be_read_on_from_any_of_them(either: Site) -> None:
    job = either.add()
    claim = either.jobs.claim("w")
    assert claim is not None
    threads = [
        threading.Thread(target=lambda i=i: either.jobs.note(claim, "note", {"text": str(i)}), daemon=True)
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    either.jobs.finish(claim, DONE, seconds=1)
    events = either.jobs.events(job.id)
    assert [event.number for event in events] == list(range(1, 12))
    assert [event.data.get("state") for event in events if event.event == "state"] == [QUEUED, RUNNING, DONE]
    assert either.jobs.events(job.id, after=9) == events[9:]


def test_cancel_ends_what_waits_at_once_and_asks_what_runs(either: Site) -> None:
    waits, runs = either.add("a"), either.add("b")
    assert either.jobs.cancel(waits.id).state == CANCELLED
    claim = either.jobs.claim("w")
    assert claim is not None
    assert claim.job.id == runs.id
    assert either.jobs.cancel(runs.id, BEST).state == RUNNING
    assert either.jobs.beat(claim, 1) == BEST
    either.jobs.cancel(runs.id)
    either.jobs.take_back("w")  # its worker died before it heard
    assert either.jobs.get(runs.id).state == CANCELLED
    with pytest.raises(JobConflict, match="the job is cancelled"):
        either.jobs.cancel(runs.id)


def test_retry_is_for_what_failed_and_needs_its_data(either: Site) -> None:
    job, gone, kept = either.add("a"), either.add("b"), either.add("c", keep_data=True)
    claim = either.jobs.claim("w")
    assert claim is not None
    assert claim.job.id == job.id
    with pytest.raises(JobConflict, match="the job is running"):
        either.jobs.retry(job.id)
    either.jobs.finish(claim, FAILED, seconds=1, error={"code": "x", "message": "y", "hint": ""})
    again = either.jobs.retry(job.id)
    assert again.state == QUEUED
    assert again.error is None
    for each in (gone, kept):
        either.jobs.cancel(each.id)
    with pytest.raises(JobConflict, match="data was deleted"):
        either.jobs.retry(gone.id)
    assert either.jobs.retry(kept.id).state == QUEUED


def test_the_data_of_a_job_goes_when_it_ends_unless_it_is_kept_or_another_needs_it(either: Site) -> None:
    file = either.upload()
    first, second = (either.jobs.add("", file.id, {"name": name}) for name in ("a", "b"))
    kept = either.add("c", keep_data=True)
    either.jobs.cancel(first.id)
    assert either.jobs.files.get(file.id).expires is None
    either.jobs.cancel(second.id)
    either.jobs.cancel(kept.id)
    with pytest.raises(FileNotHere):
        either.jobs.files.get(file.id)
    assert either.left() == [f"files/{kept.file}/words.csv"]
    with pytest.raises(FileNotHere):
        either.jobs.add("", file.id, {"name": "a"})


def test_quotas_count_what_waits_and_the_rows_of_a_day(either: Site) -> None:
    file = either.upload("a")

    def add(**limits: int) -> str:
        return either.jobs.add("a", file.id, {"name": "a/x"}, rows=60, **limits).id

    add(most_queued=2, most_rows=200)
    add(most_queued=2, most_rows=200)
    with pytest.raises(OverQuota, match="2 jobs are queued"):
        add(most_queued=2)
    with pytest.raises(OverQuota, match="60 rows and the 120 of the last day are more than 150"):
        add(most_rows=150)
    other = either.upload("b")
    either.jobs.add("b", other.id, {"name": "b/x"}, rows=60, most_queued=1, most_rows=100)


def test_another_tenants_job_is_not_there(either: Site) -> None:
    job = either.add("a/x", "a")
    assert either.jobs.get(job.id, "a").id == job.id
    for wrong in (job.id, "0" * 16, ""):
        with pytest.raises(JobNotFound):
            either.jobs.get(wrong, "b")
    assert [each.id for each in either.jobs.list(tenant="a")] == [job.id]
    assert either.jobs.list(tenant="b") == []
    with pytest.raises(FileNotHere):
        either.jobs.files.get(job.file, "b")


def test_lists_come_in_pages_the_newest_first(either: Site) -> None:
    ids = [either.add(f"t{i}").id for i in range(5)]
    first = either.jobs.list(limit=3)
    rest = either.jobs.list(limit=3, after=first[-1].number)
    assert [job.id for job in (*first, *rest)] == ids[::-1]
    assert [job.id for job in either.jobs.list(name="t3", state=QUEUED)] == [ids[3]]


def test_reading_makes_no_database(site: Site) -> None:
    assert site.jobs.list() == []
    assert not site.jobs.waiting()
    site.jobs.sweep()
    assert not (site.store.path / "jobs").exists()


def test_two_stores_share_a_server_and_a_store_may_move(
    server_url: str, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site.url = server_url
    other = Site(tmp_path_factory.mktemp("other"), site.base, server_url)
    job = site.add()
    assert other.jobs.list() == []
    assert other.jobs.claim("w") is None
    moved = site.store.path.rename(site.folder / "moved")
    jobs = Jobs(Store(moved, index=server_url))
    assert [each.id for each in jobs.list()] == [job.id]
    for each in (site.jobs, other.jobs, jobs):
        each.database.dispose()


def test_old_jobs_are_forgotten_unless_their_data_is_kept(either: Site) -> None:
    jobs = either.jobs
    plain, kept = either.add("a"), either.add("b", keep_data=True)
    for job in (plain, kept):
        jobs.cancel(job.id)
    table = jobs.database.tables["jobs"]
    jobs.database.write(lambda db, now: db.execute(table.update().values(finished=now - KEPT - 1)) and None)
    jobs.sweep()
    assert [job.id for job in jobs.list()] == [kept.id]
    jobs.files.delete(kept.file)
    jobs.sweep()
    assert jobs.list() == []


def test_jobs_of_another_schema_are_an_error_and_stay(site: Site) -> None:
    import sqlite3

    from adaptree.serve.jobs.database import SCHEMA

    job = site.add()
    site.jobs.database.dispose()
    file = site.store.path / "jobs" / "jobs.sqlite"
    with sqlite3.connect(file) as db:
        db.execute("UPDATE adaptree_jobs_schema SET schema = 99")
    db.close()
    with pytest.raises(StoreError, match=r"of schema 99, and this adaptree knows 2 to \d+\.  Use a newer"):
        site.more_jobs().list()
    with sqlite3.connect(file) as db:
        db.execute(f"UPDATE adaptree_jobs_schema SET schema = {SCHEMA}")
    db.close()
    assert site.more_jobs().get(job.id).id == job.id


def test_a_damaged_database_is_an_error_and_stays(site: Site) -> None:
    site.add()
    site.jobs.database.dispose()
    file = site.store.path / "jobs" / "jobs.sqlite"
    file.write_bytes(b"not a database, for sure" * 100)
    with pytest.raises(StoreError, match=r"cannot be used: file is not a database"):
        site.more_jobs().list()
    assert file.read_bytes().startswith(b"not a database")


def test_a_store_behind_a_url_needs_a_server() -> None:
    with pytest.raises(UsageError, match="need PostgreSQL"):
        Jobs(Store("memory://jobs"))

"""The clients train, follow and cancel jobs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import adaptree as at
from adaptree.client import JobFailed, ServerError
from tests.bases import words_csv
from tests.serve.jobs.site import QUICK, Site


@pytest.fixture
def file(site: Site) -> Path:
    return words_csv(site.folder / "words.csv")


def working(site: Site, after: float = 0.5) -> threading.Timer:
    timer = threading.Timer(after, lambda: site.worker().run(drain=True))
    timer.start()
    return timer


def test_a_client_trains_and_predicts(site: Site, file: Path) -> None:
    with site.serving() as ask, at.Client(f"http://{ask.host}:{ask.port}") as client:
        job = client.train(file, name="words", **QUICK)
        assert job.state == "queued"
        timer = working(site)
        events = list(job.events())
        timer.join()
        assert [event["id"] for event in events] == list(range(1, len(events) + 1))
        assert events[-1]["event"] == "state"
        assert job.state == "done"
        assert job.wait().task == "words@1"
        assert job.metrics is not None
        assert job.bill["rows"] == 90
        assert client.predict(str(job.task), ["hammer saw"])[0]["label"]
        assert client.job(job.id).task == "words@1"
        assert [each.id for each in client.jobs(state="done")] == [job.id]
        assert list(job.events(after=events[-1]["id"])) == []


def test_what_is_wrong_is_an_error_at_once(site: Site, file: Path) -> None:
    file.write_bytes(b"text,label\na,x\nb\n")
    with site.serving() as ask, at.Client(f"http://{ask.host}:{ask.port}") as client:
        with pytest.raises(ServerError, match=r"row 3 of 'words.csv'") as said:
            client.train(file, name="words")
        assert (said.value.status, said.value.code) == (422, "bad_data")
        with pytest.raises(ServerError, match="no job"):
            client.job("nothing")


def test_a_job_that_ends_without_a_task_is_an_error_of_wait(site: Site, file: Path) -> None:
    with site.serving() as ask, at.Client(f"http://{ask.host}:{ask.port}") as client:
        job = client.train(file, name="words", keep_data=True)
        with pytest.raises(TimeoutError):
            job.wait(timeout=0.1)
        assert job.cancel().state == "cancelled"
        with pytest.raises(JobFailed, match="was cancelled") as said:
            job.wait()
        assert said.value.state == "cancelled"
        assert job.retry().state == "queued"


def test_the_same_in_a_coroutine(site: Site, file: Path) -> None:
    async def use(url: str) -> None:
        async with at.AsyncClient(url) as client:
            job = await client.train(file, name="words", **QUICK)
            timer = working(site)
            events = [event async for event in job.events()]
            timer.join()
            assert events[-1]["state"] == "done"
            assert (await job.wait()).task == "words@1"
            assert (await (await client.job(job.id)).refresh()).task == "words@1"

    with site.serving() as ask:
        asyncio.run(use(f"http://{ask.host}:{ask.port}"))

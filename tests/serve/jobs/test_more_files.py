"""A job has more files than the one that it is trained on: rows to validate and to test on, descriptions of labels."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlencode

import pytest

import adaptree as at
from adaptree.serve.jobs.job import DONE, FAILED, QUEUED
from adaptree.tasks.store import Store
from tests.bases import WORDS, words_csv
from tests.serve.jobs.site import QUICK, Site, form, send
from tests.serve.serving import Asker

FEW = b"text,label\nlion wolf,beast\nsaw drill,tool\nplum pear,fruit\ndrill,tool\n"


def sent(ask: Asker, data: bytes, name: str) -> str:
    return str(send(ask, data, name).json["id"])


def test_the_tasks_scores_are_of_the_files_that_were_sent_for_them(site: Site) -> None:
    rows = 90
    with site.serving() as ask:
        ids = {"validation": sent(ask, FEW, "held.csv"), "test": sent(ask, FEW + FEW[11:], "last.csv")}
        file = sent(ask, site.csv, "words.csv")
        found = ask.get(f"/v1/files/{file}/check?{urlencode({'settings': json.dumps(QUICK), **ids})}").json
        assert found["parts"] == {"train": rows, "validation": 4, "test": 8}
        assert "--validation held.csv --test last.csv" in found["command"]
        job = ask.post("/v1/jobs", {"file": file, **ids, "settings": {**QUICK, "name": "words"}})
        assert job.status == 202, job.body
        assert job.json["more_files"] == ids
        assert ask("DELETE", f"/v1/files/{ids['test']}").status == 409
        assert site.worker().run(drain=True) == 1
        done = ask.get(f"/v1/jobs/{job.json['id']}").json
    assert done["state"] == DONE, done
    assert {"validation", "test"} <= done["metrics"].keys()
    assert done["bill"]["bytes"] == len(site.csv) + len(FEW) + len(FEW + FEW[11:])
    assert done["bill"]["rows"] == rows + 12
    record = Store(site.store.path).record("words")
    assert record.data["validation"] == 4, record.data
    assert site.left() == [], "all files are deleted with the job"


def test_a_form_has_them_as_parts_and_refused_ones_leave_nothing(site: Site) -> None:
    more = {"validation": ("held.csv", FEW), "test": ("last.csv", FEW)}
    settings = {**QUICK, "name": "words"}
    with site.serving() as ask:
        body, header = form(site.csv, settings=settings, more=more)
        job = ask.post("/v1/jobs", body, headers=header)
        assert job.status == 202, job.body
        assert job.json["more_files"].keys() == more.keys()
        site.jobs.cancel(job.json["id"])
        assert site.left() == []
        for part, name, data, what in (
            ("test", "last.csv", b"text,label\na,tool\nb\n", "row 3 of 'last.csv'"),
            ("validation", "held.csv", b"text,label\na,house\n", "house"),
            ("validation", "held.exe", FEW, "held.exe"),
            ("test", "empty.csv", b"", "'empty.csv' is empty"),
            ("descriptions", "labels.txt", b"house: a place\ntool: a thing\n", "label 'house'"),
            ("weights", "held.csv", FEW, "a part 'weights'"),
        ):
            body, header = form(
                site.csv, settings={"name": "words", "objective": "contrastive"}, more={**more, part: (name, data)}
            )
            refused = ask.post("/v1/jobs", body, headers=header)
            assert refused.status == 422, (part, refused.body)
            assert what in refused.json["error"]["message"]
            assert str(site.folder) not in refused.body.decode()
            assert site.left() == []
        assert ask.get("/v1/jobs").json["jobs"][1:] == []


def test_another_tenants_file_is_none(site: Site) -> None:
    with site.tenants("acme", "other") as (acme, other):
        theirs = sent(other, FEW, "held.csv")
        own = sent(acme, site.csv, "words.csv")
        for part in ("validation", "test", "descriptions"):
            got = acme.post("/v1/jobs", {"file": own, part: theirs, "settings": QUICK})
            assert (got.status, got.error["code"]) == (404, "file_not_found")
            assert acme.get(f"/v1/files/{own}/check?{part}={theirs}").status == 404


def test_a_retry_needs_all_of_them(site: Site) -> None:
    ids = [site.upload(data=data, name=name).id for name, data in (("words.csv", site.csv), ("last.csv", FEW))]
    settings = {**QUICK, "name": "words", "label": "nothing"}  # the check would refuse it
    job = site.jobs.add("", ids[0], settings, more_files={"test": ids[1]}, rows=1)
    site.worker().run(drain=True)
    assert site.jobs.get(job.id).state == FAILED
    assert site.jobs.retry(job.id).state == QUEUED
    site.worker().run(drain=True)
    site.jobs.files.delete(ids[1])
    with pytest.raises(at.AdaptreeError, match="data was deleted"):
        site.jobs.retry(job.id)


def test_clients_send_them(site: Site) -> None:
    folder = site.folder
    file, held = words_csv(folder / "words.csv"), words_csv(folder / "held.csv", seed=1)
    labels = folder / "labels.txt"
    labels.write_text("".join(f"{label}: {words}\n" for label, words in WORDS.items()))
    few = {**QUICK, "objective": "contrastive", "method": "houlsby:4", "max_steps": 2}
    few.pop("epochs")

    async def same(url: str) -> dict[str, str]:
        async with at.AsyncClient(url) as client:
            job = await client.train(file, test=held, name="other", **QUICK)
            return dict(job.info["more_files"])

    with site.serving() as ask, at.Client(f"http://{ask.host}:{ask.port}") as client:
        job = client.train(file, validation=held, descriptions=labels, name="words", **few)
        assert asyncio.run(same(client.url)).keys() == {"test"}
        site.worker().run(drain=True)
        assert job.wait().task == "words@1"
        notes = " ".join(event.get("text", "") for event in job.events())
    assert f"{len(WORDS)} descriptions of labels are learned from" in notes

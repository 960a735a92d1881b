"""Jobs over HTTP: from a file to a served task, and what is refused."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from adaptree import api
from adaptree.errors import DataError
from adaptree.serve.jobs import streams
from adaptree.serve.jobs.job import BEST
from adaptree.serve.keys import Keys, new_key
from adaptree.serve.limits import Limits
from tests.serve.jobs.site import QUICK, Site, form, read_events, send
from tests.serve.serving import Asker

JOB = {
    "id", "tenant", "name", "state", "settings", "created", "started", "finished", "position", "progress", "attempts",
    "error", "task", "metrics", "bill",
}  # fmt: skip


def queued(ask: Asker, site: Site, name: str = "words", **settings: Any) -> dict[str, Any]:
    file = send(ask, site.csv).json["id"]
    answer = ask.post("/v1/jobs", {"file": file, "settings": {**QUICK, **settings, "name": name}})
    assert answer.status == 202, answer.body
    found: dict[str, Any] = answer.json
    return found


def test_a_file_becomes_a_served_task(site: Site) -> None:
    with site.serving() as ask:
        file = send(ask, site.csv)
        assert file.status == 201
        assert file.json.keys() == {"id", "name", "bytes", "expires"}
        assert file.json["bytes"] == len(site.csv)
        answer = ask.post("/v1/jobs", {"file": file.json["id"], "settings": {**QUICK, "name": "words"}})
        assert answer.status == 202
        assert answer.headers["location"] == f"/v1/jobs/{answer.json['id']}"
        assert answer.json.keys() >= JOB
        assert answer.json["state"] == "queued"
        assert answer.json["position"] == 1
        site.worker().run(drain=True)
        job = ask.get(answer.headers["location"]).json
        assert job["state"] == "done"
        assert job["task"] == "words@1"
        assert job["position"] is None
        assert job["metrics"]["validation"].keys() >= {"accuracy"}
        assert job["progress"]["epoch"] == 2
        assert job["progress"]["share"] == 1.0
        assert job["bill"]["rows"] == 90
        assert job["bill"]["bytes"] == len(site.csv)
        assert job["bill"]["seconds"] > 0
        assert ask.post("/v1/tasks/words/predict", {"inputs": ["hammer saw"]}).json["predictions"][0]["label"]
        assert site.left() == []


def test_a_form_is_a_file_and_a_job_in_one(site: Site) -> None:
    with site.serving() as ask:
        body, header = form(site.csv, settings={**QUICK, "name": "words"}, keep_data="true")
        answer = ask("POST", "/v1/jobs", body, headers=header)
        assert answer.status == 202, answer.body
        assert answer.json["keep_data"] is True
        assert answer.json["file_name"] == "words.csv"
        body, header = form(site.csv)
        answer = ask("POST", "/v1/jobs", body, headers=header)
        assert answer.status == 202
        assert answer.json["name"] == "words"
        body, header = form(b"text\nonly one column\n")
        refused = ask("POST", "/v1/jobs", body, headers=header)
        assert refused.status == 422
        assert len(site.left()) == 2, "the refused file is gone"
        body, header = form(site.csv)
        foreign = ask("POST", "/v1/jobs", body, headers={**header, "Origin": "http://elsewhere.example"})
        assert foreign.status == 403
        assert foreign.json["error"]["code"] == "cross_site"


@pytest.mark.slow
def test_a_new_version_is_served_within_the_documented_time(site: Site) -> None:
    with site.serving() as ask, site.serving() as other:
        queued(ask, site)
        site.worker().run(drain=True)
        for each in (ask, other):
            assert each.post("/v1/tasks/words/predict", {"inputs": ["hammer saw"]}).status == 200
        before = other.post("/v1/tasks/words/predict", {"inputs": ["hammer saw"]}).json
        queued(ask, site, seed=7)
        site.worker().run(drain=True)
        time.sleep(2.5)
        other.post("/v1/tasks/words/predict", {"inputs": ["hammer saw"]})
        after = other.post("/v1/tasks/words/predict", {"inputs": ["hammer saw"]}).json
        assert (
            other.post("/v1/tasks/words@2/predict", {"inputs": ["hammer saw"]}).json["predictions"]
            == after["predictions"]
        )
        assert after != before


def test_the_check_says_what_the_command_says_and_what_would_be_trained(site: Site) -> None:
    with site.serving() as ask:
        file = send(ask, site.csv).json["id"]
        wanted = quote(json.dumps({"name": "mine", "epochs": 3, "method": "lora:4"}))
        said = ask.get(f"/v1/files/{file}/check?settings={wanted}").json
        report = api.check(site.folder / "words.csv", base=site.base).to_dict()
        for key in report.keys() - {"why", "columns"}:
            assert said[key] == json.loads(json.dumps(report[key])), key
        assert said["columns"] == ["text", "label"]
        assert said["roles"]["label"] == "label"
        assert len(said["preview"]) == 10
        assert said["preview"][0].keys() == {"text", "label"}
        assert said["settings"]["epochs"] == 3
        assert "epochs" not in said["why"]
        assert said["why"]["lr"]
        assert said["regime"] == {"objective": "cross-entropy", "why": said["regime"]["why"]}
        assert said["command"] == "adaptree train words.csv --name mine --epochs 3 --method lora:4"
        assert said["estimate_seconds"] > 0
        few = ask.get(f"/v1/files/{file}/check").json
        assert few["regime"]["objective"] == "contrastive"
        assert "30 rows a label are few" in few["regime"]["why"]


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"text,label\na,x\nb\nc,y\n", "words.csv"),
        (b"text,label\n" + b"hello,x\n" * 20, "words.csv"),
        (b'{"text": "a", "label": "x"}\nnot json\n', "words.jsonl"),
        (b"text,label\ncaf\xe9,x\n", "words.csv"),
        (b"just some words", "words.csv"),
        (b"\x1f\x8b\x08\x00broken", "words.csv.gz"),
        (b"PK\x03\x04 not a workbook", "words.xlsx"),
    ],
)
def test_a_bad_file_is_refused_at_once_in_the_words_of_the_command(site: Site, data: bytes, name: str) -> None:
    path = site.folder / name
    path.write_bytes(data)
    with pytest.raises(DataError) as said:
        api.train(path, base=site.base, name="words")
    with site.serving() as ask:
        answer = ask.post("/v1/jobs", {"file": send(ask, data, name).json["id"], "settings": {"name": "words"}})
        assert answer.status == 422
        error = answer.json["error"]
        assert error["code"] == "bad_data"
        assert error["message"] == said.value.what
        assert error["hint"] == said.value.hint
        assert all(str(row) in error["message"] for row in error["rows"])
        assert error["rows"] or "row " not in error["message"]


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ({"base": "minilm"}, "bad_input", "trained on the base that is served"),
        ({"on": "other"}, "bad_input", "does not build on other tasks"),
        ({"method": "fuse(a, b)"}, "bad_input", "cannot be a composition"),
        ({"validation": "/etc/passwd"}, "bad_input", "beside its settings"),
        ({"test": "x.csv"}, "bad_input", "beside its settings"),
        ({"descriptions": "/etc/passwd"}, "bad_input", "beside its settings"),
        ({"store": "/tmp"}, "bad_input", "'store'"),
        ({"start": "other"}, "bad_input", "'start'"),
        ({"checkpoints": "/tmp"}, "bad_input", "'checkpoints'"),
        ({"trust_remote_code": True}, "bad_input", "'trust_remote_code'"),
        ({"threads": 64}, "bad_input", "'threads'"),
        ({"stream": "x"}, "bad_input", "'stream'"),
        ({"epochs": "many"}, "bad_input", "'epochs' in settings is not a whole number"),
        ({"epochs": 10**9}, "bad_input", "at most 1,000"),
        ({"batch_size": 10**9}, "bad_input", "at most 512"),
        ({"epoch": 3}, "bad_input", "no option of a run"),
        ({"method": "houlsbi"}, "bad_input", "houlsbi"),
        ({"metric": "beauty"}, "bad_input", "beauty"),
        ({"name": "../evil"}, "bad_input", "cannot be called"),
        ({"name": "NUL\0"}, "bad_input", "cannot be called"),
        ({"label": "nope"}, "bad_data", "nope"),
        ({"lr": float("inf")}, "bad_input", "lr must be a number above 0"),
        ([], "bad_input", ""),
    ],
)
def test_settings_that_are_wrong_or_not_the_clients_are_refused(
    site: Site, settings: Any, code: str, says: str
) -> None:
    with site.serving() as ask:
        file = send(ask, site.csv).json["id"]
        answer = ask.post("/v1/jobs", {"file": file, "settings": settings})
        assert answer.status == 422
        assert answer.json["error"]["code"] == code
        assert says in answer.json["error"]["message"]
        assert ask.get("/v1/jobs").json["jobs"] == []


def test_events_come_as_they_happen_can_be_resumed_and_end(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "QUIET", 0.05)
    with site.serving() as ask:
        job = queued(ask, site)
        work = threading.Timer(1.0, lambda: site.worker().run(drain=True))
        work.start()
        answer = ask.get(f"/v1/jobs/{job['id']}/events")
        work.join()
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert b": still here" in answer.body
        events = read_events(answer)
        assert [number for number, _, _ in events] == list(range(1, len(events) + 1))
        assert {kind for _, kind, _ in events} >= {"note", "epoch", "state"}
        assert events[-1][1:] == ("state", {"state": "done", "task": "words@1", "time": events[-1][2]["time"]})
        half = len(events) // 2
        rest = read_events(ask.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": str(half)}))
        assert rest == events[half:]
        assert read_events(ask.get(f"/v1/jobs/{job['id']}/events?after={half}")) == rest
        over = ask.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": str(len(events))})
        assert over.status == 204
        assert over.body == b""


def test_a_stream_does_not_hold_up_a_server_that_stops(site: Site) -> None:
    with site.serving() as ask:
        job = queued(ask, site)
        heard: list[Any] = []
        listener = threading.Thread(target=lambda: heard.append(ask.get(f"/v1/jobs/{job['id']}/events")))
        listener.start()
        time.sleep(0.5)
        began = time.monotonic()
    listener.join()
    assert time.monotonic() - began < 5
    assert [event[2]["state"] for event in read_events(heard[0])] == ["queued"]


def test_cancel_and_retry(site: Site) -> None:
    with site.serving() as ask:
        job = queued(ask, site)
        assert ask.post(f"/v1/jobs/{job['id']}/retry", None).status == 409
        assert ask.post(f"/v1/jobs/{job['id']}/cancel?keep=some", None).status == 422
        gone = ask.post(f"/v1/jobs/{job['id']}/cancel", None)
        assert gone.json["state"] == "cancelled"
        assert ask.post(f"/v1/jobs/{job['id']}/cancel", None).json["error"]["code"] == "wrong_state"
        again = ask.post(f"/v1/jobs/{job['id']}/retry", None)
        assert again.status == 409
        assert "data was deleted" in again.json["error"]["message"]
        assert site.left() == []


def test_a_file_can_be_deleted_unless_a_job_needs_it(site: Site) -> None:
    with site.serving() as ask:
        file = send(ask, site.csv).json["id"]
        job = ask.post("/v1/jobs", {"file": file, "settings": {**QUICK, "name": "words"}}).json
        assert ask("DELETE", f"/v1/files/{file}").json["error"]["code"] == "wrong_state"
        other = send(ask, site.csv).json["id"]
        assert ask("DELETE", f"/v1/files/{other}").json == {"removed": other}
        assert ask("DELETE", f"/v1/files/{other}").json["error"]["code"] == "file_not_found"
        ask.post(f"/v1/jobs/{job['id']}/cancel", None)
        assert site.left() == []


def test_tenants_do_not_see_each_other(site: Site) -> None:
    with site.tenants("acme", "other") as (acme, other):
        job = queued(acme, site)
        assert job["tenant"] == "acme"
        assert job["name"] == "acme/words"
        unknown = {**job, "id": "0" * 16, "file": "0" * 16}
        for method, path in (
            ("GET", "/v1/jobs/{id}"), ("GET", "/v1/jobs/{id}/events"), ("POST", "/v1/jobs/{id}/cancel"),
            ("POST", "/v1/jobs/{id}/retry"), ("GET", "/v1/files/{file}/check"), ("DELETE", "/v1/files/{file}"),
        ):  # fmt: skip
            theirs, none = other(method, path.format(**job)), other(method, path.format(**unknown))
            assert theirs.status == none.status == 404
            assert theirs.body.replace(job["id"].encode(), b"").replace(job["file"].encode(), b"") == none.body.replace(
                b"0" * 16, b""
            )
        assert other.get("/v1/jobs").json == {"jobs": [], "next": None}
        stolen = other.post("/v1/jobs", {"file": job["file"], "settings": {"name": "mine"}})
        assert stolen.status == 404
        file = send(other, site.csv).json["id"]
        over = other.post("/v1/jobs", {"file": file, "settings": {**QUICK, "name": "acme/words"}})
        assert over.status == 422
        assert [each["id"] for each in acme.get("/v1/jobs").json["jobs"]] == [job["id"]]


def test_jobs_need_the_scope_train(site: Site) -> None:
    file = site.folder / "keys.json"
    _, text = new_key(file, tenant="acme", scopes=("predict",))
    with site.serving(keys=Keys(file)) as ask:
        assert ask.get("/v1/jobs").status == 401
        ask.key = text
        for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("POST", "/v1/files?name=a.csv")):
            assert ask(method, path, b"{}").status == 403


def test_quotas_are_answered_with_429(site: Site) -> None:
    limits = Limits(jobs_queued=1, stored=3 * len(site.csv), job_rows=50)
    with site.tenants("acme", "other", limits=limits) as (acme, other):
        file = send(acme, site.csv).json["id"]
        many = acme.post("/v1/jobs", {"file": file, "settings": {**QUICK, "name": "words"}})
        assert many.status == 413
        assert "90 rows, and 50 are the most" in many.json["error"]["message"]
    with site.tenants("acme", "other", limits=Limits(jobs_queued=1, stored=3 * len(site.csv))) as (acme, other):
        queued(acme, site)
        file = send(acme, site.csv).json["id"]
        more = acme.post("/v1/jobs", {"file": file, "settings": {**QUICK, "name": "more"}})
        assert more.status == 429
        assert more.json["error"]["code"] == "quota_exceeded"
        assert more.headers["retry-after"]
        full = send(acme, site.csv)
        assert full.status == 429
        assert "bytes" in full.json["error"]["message"]
        queued(other, site)
    assert len(site.left()) == 4


def test_a_server_without_jobs_says_so(site: Site) -> None:
    from adaptree.serve.engine import Engine
    from adaptree.serve.server import BackgroundServer

    with Engine(site.base, site.store) as engine, BackgroundServer(engine, jobs=False) as on:
        answer = Asker(on.url).get("/v1/jobs")
        assert answer.status == 404
        assert answer.error["code"] == "no_jobs"


def test_metrics_count_jobs(site: Site) -> None:
    with site.serving() as ask:
        job = queued(ask, site)
        queued(ask, site)
        ask.post(f"/v1/jobs/{job['id']}/cancel", None)
        text = ask.get("/metrics").body.decode()
        assert 'adaptree_jobs{state="queued"} 1.0' in text
        assert 'adaptree_jobs{state="cancelled"} 1.0' in text
        assert "adaptree_jobs_queued_total 2.0" in text


def test_the_bill_of_a_job_is_in_the_log(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    from adaptree.serve.observe import RequestLog

    with site.serving(log=RequestLog("json")) as ask:
        job = queued(ask, site)
        site.worker(log=RequestLog("json")).run(drain=True)
        other = queued(ask, site)
        ask.post(f"/v1/jobs/{other['id']}/cancel", None)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if '"job"' in line]
    assert [(line["job"], line["state"], line["rows"], line["bytes"]) for line in lines] == [
        (job["id"], "done", 90, len(site.csv)),
        (other["id"], "cancelled", 90, len(site.csv)),
    ]
    assert lines[0]["seconds"] > 0 == lines[1]["seconds"]


def test_what_is_kept_of_a_cancelled_job(site: Site, tmp_path: Path) -> None:
    with site.serving() as ask:
        job = queued(ask, site, epochs=200)
        worker = site.worker(lease=0.6)
        work = threading.Thread(target=lambda: worker.run(drain=True))
        work.start()
        while not (ask.get(f"/v1/jobs/{job['id']}").json["progress"] or {}).get("score"):
            time.sleep(0.05)
        assert ask.post(f"/v1/jobs/{job['id']}/cancel?keep={BEST}", None).json["state"] == "running"
        work.join()
        found = ask.get(f"/v1/jobs/{job['id']}").json
        assert found["state"] == "done"
        assert found["task"] == "words@1"
        record = site.store.record("words@1")
        assert record.settings["finished"] is False
        assert record.settings["best_epoch"] >= 1
        assert site.left() == []


def test_a_file_that_one_job_keeps_is_not_deleted_by_another(site: Site) -> None:
    with site.serving() as ask:
        file = send(ask, site.csv).json["id"]
        for name, keep in (("kept", True), ("other", False)):
            body = {"file": file, "settings": {**QUICK, "name": name}, "keep_data": keep}
            assert ask.post("/v1/jobs", body).status == 202
            site.worker().run(drain=True)
        assert ask.get(f"/v1/files/{file}/check").status == 200
        assert ask("DELETE", f"/v1/files/{file}").status == 200, "its owner may"
        assert site.left() == []


def test_the_documents_describe_every_route_of_jobs_with_examples(site: Site) -> None:
    from adaptree.serve.jobs.routes import router

    with site.serving() as ask:
        document = ask.get("/openapi.json").json
        page = ask.get("/docs").body.decode()
    for route in router.routes:
        for method in route.methods:  # type: ignore[attr-defined]
            said = document["paths"][route.path][method.lower()]  # type: ignore[attr-defined]
            good = next(status for status in said["responses"] if status.startswith("2"))
            assert said["responses"][good]["content"]
            assert "429" in said["responses"]
            assert route.path in page  # type: ignore[attr-defined]
    assert document["components"]["schemas"]["JobRequest"]["examples"]
    assert document["components"]["schemas"]["JobInfo"]["examples"]
    assert document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"].keys() == {
        "application/json",
        "multipart/form-data",
    }

"""The routes beside predictions: tasks come, go and are replaced without a pause; figures, health, documentation."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from adaptree.hub.sharing import export
from adaptree.serve.engine import Engine
from adaptree.serve.limits import Limits
from adaptree.serve.observe import Metrics
from adaptree.tasks.store import Store
from tests.serve.serving import Asker, World, renamed, served

BINARY = {"Content-Type": "application/octet-stream"}


@pytest.fixture
def own(world: World, tmp_path: Path) -> Iterator[tuple[Asker, Store]]:
    """A server over a store of its own, which a test may change."""
    store = Store(tmp_path / "own")
    store.add(renamed(world.store["words"], "words", 1))
    metrics = Metrics()
    here, limits = World(tmp_path, world.base, store), Limits(upload=300_000)
    with served(here, engine={"on_batch": metrics.batch}, metrics=metrics, limits=limits) as (ask, _):
        yield ask, store


def bundle(store: Store, tmp_path: Path, *names: str) -> bytes:
    file = tmp_path / f"{len(list(tmp_path.iterdir()))}.adaptree"
    export(store, names, file)
    return file.read_bytes()


def test_tasks_are_listed_page_by_page(ask: Asker, world: World) -> None:
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = ask.get(f"/v1/tasks?limit=2&after={after}").json
        assert len(page["tasks"]) <= 2
        found += [task["name"] for task in page["tasks"]]
        after = page["next"]
    assert found == world.store.names()
    assert ask.get("/v1/tasks?after=zzz").json == {"tasks": [], "next": None}


def test_tasks_are_found_by_words(ask: Asker) -> None:
    found = [task["name"] for task in ask.get("/v1/tasks?search=reviews").json["tasks"]]
    assert sorted(found) == ["acme/reviews", "other/reviews"]
    for nonsense in ("%20", "!!!", "%00", "zzzzz"):
        assert ask.get(f"/v1/tasks?search={nonsense}").status == 200


def test_a_task_is_shown_without_the_texts_of_its_data(ask: Asker, world: World) -> None:
    got = ask.get("/v1/tasks/words@1").json
    assert (got["name"], got["version"], got["versions"], got["kind"], got["labels"]) == (
        "words", 1, [1], "classify", ["a", "b"],
    )  # fmt: skip
    assert got["served"] is True
    assert not {"examples", "probe"} & got.keys()
    assert world.store.record("words").extra["insight"]["mistakes"]
    assert '"text"' not in json.dumps(got["extra"]["insight"])
    assert got["extra"]["insight"]["confusion"]


def test_an_uploaded_task_is_served_at_once_and_a_new_version_takes_over(
    own: tuple[Asker, Store], world: World, tmp_path: Path
) -> None:
    ask, _ = own
    assert ask.post("/v1/tasks/fresh/predict", {"inputs": ["lion"]}).status == 404
    got = ask.post("/v1/tasks?name=fresh", bundle(world.store, tmp_path, "other/secret"), headers=BINARY)
    assert got.status == 201, got.body
    assert [each["task"] for each in got.json["tasks"]] == ["fresh@1"]
    first = ask.post("/v1/tasks/fresh/predict", {"inputs": ["lion wolf"]}).json["predictions"]
    got = ask.post("/v1/tasks?name=fresh", bundle(world.store, tmp_path, "other/reviews"), headers=BINARY)
    assert [each["task"] for each in got.json["tasks"]] == ["fresh@2"]
    second = ask.post("/v1/tasks/fresh/predict", {"inputs": ["lion wolf"]}).json["predictions"]
    assert first != second
    assert ask.post("/v1/tasks/fresh@1/predict", {"inputs": ["lion wolf"]}).json["predictions"] == first
    assert "fresh" in [task["name"] for task in ask.get("/v1/tasks").json["tasks"]]
    again = ask.post("/v1/tasks?name=fresh", bundle(world.store, tmp_path, "other/reviews"), headers=BINARY)
    assert again.json["tasks"][0]["here"] is True


def test_a_removed_task_is_gone_at_once(own: tuple[Asker, Store], world: World) -> None:
    ask, store = own
    store.add(renamed(world.store["words"], "gone", 1))
    store.tag("gone@1", "stable")
    assert ask.post("/v1/tasks/gone@stable/predict", {"inputs": ["lion"]}).status == 200
    assert ask.post("/v1/tasks/gone@1/predict", {"inputs": ["lion"]}).status == 200
    got = ask("DELETE", "/v1/tasks/gone")
    assert (got.status, got.error["code"]) == (409, "in_use")
    store.untag("gone", "stable")
    assert ask("DELETE", "/v1/tasks/gone").json == {"removed": 1}
    for name in ("gone", "gone@1", "gone@stable"):
        assert ask.post(f"/v1/tasks/{name}/predict", {"inputs": ["lion"]}).status == 404
    assert ask("DELETE", "/v1/tasks/gone").status == 404


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "changed", "huge", "type"])
def test_a_file_that_is_no_bundle_is_refused_and_nothing_is_added(
    own: tuple[Asker, Store], world: World, tmp_path: Path, damage: str
) -> None:
    ask, store = own
    data = bundle(world.store, tmp_path, "other/secret")
    middle = len(data) // 2
    sent = {
        "empty": b"",
        "text": b"hello",
        "cut": data[:middle],
        "changed": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "huge": data + b"\0" * 300_000,
        "type": data,
    }[damage]
    got = ask.post("/v1/tasks", sent, headers={"Content-Type": "text/csv"} if damage == "type" else BINARY)
    wanted = {"huge": (413, "too_large"), "type": (415, "wrong_content_type")}.get(damage, (422, "bad_bundle"))
    assert (got.status, got.error["code"]) == wanted, got.body
    assert str(tmp_path) not in got.body.decode()
    assert store.names() == ["words"]
    assert list((store.path / "tmp").iterdir()) == [] if (store.path / "tmp").exists() else True


def test_a_name_for_an_upload_must_be_one(own: tuple[Asker, Store], world: World, tmp_path: Path) -> None:
    ask, _ = own
    for name in ("../x", "A", "a/b/c", ""):
        got = ask.post(f"/v1/tasks?name={name}", bundle(world.store, tmp_path, "words"), headers=BINARY)
        assert (got.status, got.error["code"]) == (422, "bad_input"), got.body
    got = ask.post("/v1/tasks?name=x", bundle(world.store, tmp_path, "words", "number"), headers=BINARY)
    assert (got.status, got.error["code"]) == (422, "bad_bundle")


def test_a_task_is_replaced_while_it_is_asked(own: tuple[Asker, Store], world: World, tmp_path: Path) -> None:
    ask, _ = own
    files = [bundle(world.store, tmp_path, name) for name in ("other/secret", "other/reviews", "acme/reviews")]
    stop, statuses = threading.Event(), []

    def keep_asking() -> None:
        while not stop.is_set():
            statuses.append(ask.post("/v1/tasks/words/predict", {"inputs": ["lion wolf"]}).status)

    threads = [threading.Thread(target=keep_asking) for _ in range(4)]
    for thread in threads:
        thread.start()
    for data in files:
        assert ask.post("/v1/tasks?name=words", data, headers=BINARY).status == 201
    stop.set()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200}
    assert len(statuses) > 8


# The Open Inference Protocol


def tensor(name: str, data: list[Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": [len(data)], "datatype": "BYTES", "data": data, **more}


def test_tensors_are_answered_with_tensors(ask: Asker) -> None:
    got = ask.post("/v2/models/words/infer", {"id": "7", "inputs": [tensor("text", ["lion wolf", "saw"])]})
    assert got.status == 200, got.body
    plain = ask.post("/v1/tasks/words/predict", {"inputs": ["lion wolf", "saw"]}).json["predictions"]
    assert (got.json["model_name"], got.json["id"]) == ("words", "7")
    label, score = got.json["outputs"]
    assert (label["name"], label["datatype"], label["shape"]) == ("label", "BYTES", [2])
    assert label["data"] == [answer["label"] for answer in plain]
    assert score["data"] == pytest.approx([answer["score"] for answer in plain], abs=1e-5)
    only = ask.post(
        "/v2/models/words/versions/1/infer", {"inputs": [tensor("text", ["a"])], "outputs": [{"name": "score"}]}
    ).json
    assert [each["name"] for each in only["outputs"]] == ["score"]
    assert only["model_version"] == "1"


def test_tensors_of_pairs_and_of_other_kinds(ask: Asker) -> None:
    got = ask.post("/v2/models/pairs/infer", {"inputs": [tensor("text", ["a"]), tensor("text_pair", ["b"])]})
    assert [each["name"] for each in got.json["outputs"]] == ["label", "score"]
    assert [each["name"] for each in ask.get("/v2/models/pairs").json["inputs"]] == ["text", "text_pair"]
    value = ask.post("/v2/models/number/infer", {"inputs": [tensor("text", ["lion"])]}).json["outputs"]
    assert [(each["name"], each["datatype"]) for each in value] == [("value", "FP64")]
    tags = ask.post("/v2/models/tags/infer", {"inputs": [tensor("text", ["lion"])]}).json["outputs"]
    assert "tags" in json.loads(tags[0]["data"][0])
    for task in ("words", "number", "tags"):
        said = [each["name"] for each in ask.get(f"/v2/models/{task}").json["outputs"]]
        assert said == [each["name"] for each in ask.post(
            f"/v2/models/{task}/infer", {"inputs": [tensor("text", ["lion"])]}).json["outputs"]]  # fmt: skip


def test_tensors_may_come_in_binary_as_from_a_client_of_triton(ask: Asker) -> None:
    data = b"".join(struct.pack("<I", len(text)) + text for text in (b"lion wolf", b"saw"))
    binary = {"name": "text", "shape": [2, 1], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
    about = {"inputs": [binary], "parameters": {"binary_data_output": True}}
    head = json.dumps(about).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), **BINARY}
    got = ask.post("/v2/models/words/infer", head + data, headers=headers)
    assert got.status == 200, got.body
    plain = ask.post("/v2/models/words/infer", {"inputs": [tensor("text", ["lion wolf", "saw"])]})
    assert got.json["outputs"] == plain.json["outputs"]
    for wrong in (head + data[:-1], head + data[:5], head, head[:-2]):
        assert ask.post("/v2/models/words/infer", wrong, headers=headers).status == 422
    for length in ("-1", "x", "99999999"):
        sent = {**headers, "Inference-Header-Content-Length": length}
        assert ask.post("/v2/models/words/infer", head + data, headers=sent).status == 422


@pytest.mark.parametrize(
    "body",
    [{}, {"inputs": []}, {"inputs": [tensor("txt", ["a"])]}, {"inputs": [tensor("text", ["a"]), tensor("text", ["b"])]},
     {"inputs": [tensor("text", [1])]}, {"inputs": [{**tensor("text", ["a"]), "shape": [2]}]},
     {"inputs": [{**tensor("text", ["a"]), "shape": [-1, -1]}]},
     {"inputs": [{**tensor("text", ["a"]), "datatype": "FP32"}]},
     {"inputs": [tensor("text", ["a"]), tensor("text_pair", ["b", "c"])]}, {"inputs": [tensor("text_pair", ["a"])]},
     {"inputs": [tensor("text", ["a"])], "outputs": [{"name": "logits"}]}, {"inputs": [tensor("text", [["a", ["b"]]])]},
     {"inputs": [tensor("text", ["a"])], "id": 7}],
)  # fmt: skip
def test_tensors_that_are_wrong_are_refused(ask: Asker, body: Any) -> None:
    got = ask.post("/v2/models/words/infer", body)
    assert (got.status, got.error["code"]) == (422, "bad_input"), got.body


def test_the_server_and_its_models_describe_themselves(ask: Asker) -> None:
    assert ask.get("/v2").json["name"] == "adaptree"
    assert ask.get("/v2/health/live").status == 200
    assert ask.get("/v2/health/ready").status == 200
    assert ask.get("/v2/models/words/ready").status == 200
    assert ask.get("/v2/models/acme/reviews").json["name"] == "acme/reviews"


# The server itself


def test_figures_can_be_read_by_prometheus(own: tuple[Asker, Store]) -> None:
    ask, _ = own
    for _ in range(3):
        ask.post("/v1/tasks/words/predict", {"inputs": ["lion", "wolf"]})
    ask.get("/v1/tasks/nothing")
    ask.get("/%ff/nothing")
    got = ask.get("/metrics")
    assert got.headers["content-type"].startswith("text/plain")
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(got.body.decode())
        for sample in family.samples
    }
    route = ("route", "/v1/tasks/{task}/predict")
    assert found["adaptree_http_requests_total", ("method", "POST"), route, ("status", "200")] == 3
    assert found["adaptree_http_requests_total", ("method", "GET"), ("route", "other"), ("status", "404")] == 1
    assert found["adaptree_http_request_seconds_count", route] == 3
    assert found["adaptree_texts_total",] == 6
    assert found["adaptree_batch_rows_sum",] == 6
    assert found["adaptree_tasks_in_memory",] == 1
    assert found["adaptree_task_loads_total",] == 1
    assert found["adaptree_task_hits_total",] >= 2
    assert found["adaptree_queue_rows",] == 0
    assert 0 < found["adaptree_task_memory_bytes",] < found["adaptree_task_memory_limit_bytes",]
    for name in ("adaptree_batch_tasks_count", "adaptree_batch_tokens_count", "adaptree_task_evictions_total"):
        assert (name,) in found


def test_a_server_whose_store_has_gone_is_alive_and_not_ready(world: World, tmp_path: Path) -> None:
    store = Store(tmp_path / "own")
    store.add(renamed(world.store["words"], "words", 1))
    with served(World(tmp_path, world.base, store)) as (ask, _):
        assert ask.get("/ready").json["status"] == "ready"
        (tmp_path / "own").rename(tmp_path / "away")
        assert (ask.get("/ready").status, ask.get("/ready").error["code"]) == (503, "not_ready")
        assert ask.get("/health").json == {"status": "ok"}


def test_the_documentation_describes_every_route_with_examples(ask: Asker) -> None:
    document = ask.get("/openapi.json").json
    assert document["openapi"].startswith("3.")
    page = ask.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert b"<script" not in page.body
    for path, methods in document["paths"].items():
        assert path.encode() in page.body
        for said in methods.values():
            assert said["summary"]
            assert {"400"} <= said["responses"].keys()
    assert b"great phone" in page.body


def test_an_engine_serves_both_python_and_http(world: World) -> None:
    with served(world) as (ask, engine):
        assert isinstance(engine, Engine)
        mine = engine.predict("words", ["lion wolf"])[0].to_dict()
        theirs = ask.post("/v1/tasks/words/predict", {"inputs": ["lion wolf"]}).json["predictions"][0]
        assert mine["label"] == theirs["label"]

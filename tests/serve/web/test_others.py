"""One text through all tasks, comparing methods, composing, the server's own page, and many tasks in the list."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from adaptree.compose import parse
from adaptree.serve.keys import COOKIE, read_keys
from adaptree.serve.observe import SECONDS
from adaptree.serve.web import static
from adaptree.serve.web.algebra import picture
from adaptree.serve.web.figures import read
from adaptree.serve.web.server import quantile
from adaptree.tasks.record import Record
from adaptree.tasks.store import Store
from tests.serve.serving import Asker, World
from tests.serve.web.conftest import Open, Site, expect, serving

pytestmark = pytest.mark.slow  # a browser for every test

# All tasks


def test_a_text_goes_through_all_tasks_that_take_one(every_site: Site, open_page: Open) -> None:
    page = open_page(every_site, "/all")
    page.locator("[name=text]").fill("the lion and the saw")
    expect(page.locator("#status")).to_have_text(re.compile(r"^\d+ tasks in \d+ ms, \d+ batch"), timeout=30_000)
    rows = {
        row.locator("a").inner_text(): row.locator(".what").inner_text() for row in page.locator("#answers li").all()
    }
    assert {"words", "tags", "number", "several", "fused", "lang/xx", "methods/tfidf"} <= rows.keys()
    assert not {"pairs", "answers", "choices", "moved", "attached"} & rows.keys()
    found = Asker(every_site.url).post("/v1/tasks/words/predict", {"inputs": ["the lion and the saw"]})
    assert rows["words"] == found.json["predictions"][0]["label"]
    assert list(rows) == sorted(rows)
    page.get_by_label("Sort by").select_option("sure")
    numbers = [float(each.rstrip(" %")) for each in page.locator("#answers .number").all_inner_texts()]
    assert numbers == sorted(numbers, reverse=True)
    page.locator("[name=q]").fill("several")
    expect(page.locator("#answers li")).to_have_count(1)
    page.locator("[name=text]").fill("")
    expect(page.locator("#answers li")).to_have_count(0)


def test_all_tasks_share_batches(every_site: Site) -> None:
    ask = Asker(every_site.url)
    ask.post("/all", {"text": "lion"})  # now they are in memory
    lines = [json.loads(line) for line in ask.post("/all", {"text": "lion saw"}).body.splitlines()]
    done = lines[-1]
    assert done["done"] == sum("answer" in line for line in lines)
    assert done["batches"] < done["done"]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"text": 1}', b'{"text": "a", "more": 1}'])
def test_a_wrong_request_to_all_tasks_is_refused(every_site: Site, body: bytes) -> None:
    found = Asker(every_site.url)("POST", "/all", body, headers={"Content-Type": "application/json"})
    assert found.status == 422


# Methods


def test_methods_are_compared_in_a_picture_and_a_table(every: World, open_page: Open, tmp_path: Path) -> None:
    methods = [
        {"method": "full", "label": "full", "family": "full", "trained": 1000, "scores": {"test": {"mean": 0.9}}},
        {"method": "houlsby:8", "label": "houlsby:8", "family": "houlsby", "trained": 30,
         "scores": {"test": {"mean": 0.88, "spread": 0.01}}},
    ]  # fmt: skip
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "results.json").write_text(
        json.dumps({"title": "SST-2", "metric": "accuracy", "methods": methods})
    )
    spans = [{"first": i, "last": j, "change": -float(j - i)} for i in range(3) for j in range(i, 3)]
    (tmp_path / "ablation.json").write_text(json.dumps({"task": "a@1", "layers": [0, 1, 2], "spans": spans}))
    fusion = {"task": "fused@1", "adapters": ["a", "b"], "layers": [0, 1], "weights": [[0.9, 0.1], [0.4, 0.6]]}
    (tmp_path / "attention.json").write_text(json.dumps(fusion))
    with serving(every, results=tmp_path) as site:
        page = open_page(site, "/methods")
        assert static.plotly() is not None
        page.locator("#plot .main-svg").first.wait_for()
        assert page.locator("#plot .point").count() > 5
        page.get_by_label("Scores of").select_option(label="SST-2 (sst2)")
        expect(page.locator("main table").first.locator("td").first).to_have_text("full")
        assert page.locator(".heat").count() == 2
        heat = page.locator(".heat").first
        assert heat.locator(".cell.wrong").all_inner_texts() == ["-1.0", "-2.0", "-1.0"]
        assert page.locator(".heat").last.locator(".cell").all_inner_texts() == ["0.90", "0.10", "0.40", "0.60"]


def test_methods_have_their_table_without_plotly(every_site: Site, open_page: Open, monkeypatch: Any) -> None:
    monkeypatch.setattr(static, "plotly", lambda: None)
    page = open_page(every_site, "/methods")
    assert page.locator("main table tr").count() > 5
    assert 'pip install "adaptree[compare]"' in page.locator("main").inner_text()
    assert page.locator("script[src*=plotly]").count() == 0


def test_results_of_this_repository_are_read() -> None:
    folder = Path(__file__).parents[3] / "results"
    if not folder.is_dir():
        pytest.skip("there are no results here")
    found = read(folder)
    assert {"SICK entailment on minilm"} <= {each.title for each in found.comparisons}
    assert found.fusions


# Compose


@pytest.mark.parametrize(
    "text",
    ["a", "stack(a, b)", "average(a, b, weights=[0.25, 0.75])", "average_outputs(a, drop(b, layers='0-2'))",
     "fuse(a, b, c)", "parallel(stack(a, b), c)", "rows(a, b)", "stack(x, average(a, b), drop(c, layers='0'))"],
)  # fmt: skip
def test_a_composition_has_a_picture_with_all_its_tasks(text: str) -> None:
    from xml.etree import ElementTree

    expression = parse(text)
    found = ElementTree.fromstring(picture(expression, "minilm"))
    texts = [each.text for each in found.iter() if each.tag.endswith("text")]
    assert set(expression.names) <= set(texts)


def test_tasks_are_picked_composed_and_tried(every_site: Site, open_page: Open) -> None:
    page = open_page(every_site, "/compose")
    page.get_by_label("First task").fill("a")
    page.get_by_label("Second task").fill("b")
    expect(page.locator("#expression")).to_have_value("stack(a, b)")
    expect(page.locator("svg.algebra title")).to_have_text("stack(a@1, b@1)".replace("@1", ""))
    page.locator("#try [name=text]").fill("lion")
    found = Asker(every_site.url).post("/v1/tasks/stack(a,b)/predict", {"inputs": ["lion"]}).json["predictions"][0]
    expect(page.locator("#answer .big")).to_have_text(found["label"])
    page.get_by_label("Operator").select_option("average")
    page.locator("#weights").fill("0.25, 0.75")
    expect(page.locator("#expression")).to_have_value("average(a, b, weights=[0.25, 0.75])")
    expect(page.locator("svg.algebra")).to_contain_text("0.25, 0.75")
    expect(page.locator("#try [name=text]")).to_have_value("lion")
    page.get_by_label("Operator").select_option("parallel")
    expect(page.locator("#answer h3")).to_have_text(["a", "b"])
    page.get_by_label("Operator").select_option("fuse")
    expect(page.locator("#composed pre")).to_have_text("adaptree compose 'fuse(a, b)' --name NAME --train DATA")
    page.get_by_label("Operator").select_option("drop")
    page.get_by_label("Layers to drop").fill("0")
    expect(page.locator("#expression")).to_have_value("drop(a, layers='0')")
    expect(page.locator("#answer .big")).to_be_visible()
    page.locator("#expression").fill("stack(a, nothing)")
    expect(page.get_by_role("alert")).to_contain_text("no task 'nothing'")


def test_what_the_page_of_compositions_begins_with_can_answer(every_site: Site, open_page: Open) -> None:
    page = open_page(every_site, "/compose")
    ideas = page.locator(".chips a").all_inner_texts()
    assert ideas
    for idea in ideas:
        page.goto(f"{every_site.url}/compose")
        page.get_by_role("link", name=idea, exact=True).click()
        expect(page.locator("#try")).to_be_attached()
        assert page.get_by_role("alert").count() == 0


def test_a_composition_of_an_address_is_in_the_fields(every_site: Site, open_page: Open) -> None:
    page = open_page(every_site, "/compose?expression=average_outputs(a, b, words)")
    expect(page.get_by_label("Operator")).to_have_value("average_outputs")
    assert [each.input_value() for each in page.locator(".pick").all()] == ["a", "b", "words"]
    page.get_by_label("Second task").fill("long")
    expect(page.locator("#expression")).to_have_value("average_outputs(a, long, words)")
    page = open_page(every_site, "/compose?expression=stack(drop(a, layers='0'), b)")  # more than the fields can say
    assert [each.input_value() for each in page.locator(".pick").all()] == ["", ""]


def test_a_composition_that_cannot_be_says_why_and_keeps_its_picture(every_site: Site, open_page: Open) -> None:
    page = open_page(every_site, "/compose?expression=average(a, number)")
    expect(page.get_by_role("alert")).to_contain_text("no mean")
    assert page.locator("svg.algebra").count() == 1
    assert page.locator("#try").count() == 0


def test_a_task_that_is_a_composition_leads_to_its_page(every_site: Site) -> None:
    found = Asker(every_site.url).get("/task/stack(a,b)", headers={"Accept": "text/html"})
    assert found.status == 303
    assert found.headers["location"].endswith("/compose?expression=stack%28a%2Cb%29")


# The server


def test_the_servers_figures_are_live(every: World, open_page: Open) -> None:
    with serving(every) as site:
        page = open_page(site, "/server")
        assert page.locator("[data-show=texts]").inner_text() == "0"
        ask = Asker(site.url)
        items = [{"task": task, "text": "lion"} for task in ("words", "a", "b", "long")]
        for _ in range(5):
            assert ask.post("/v1/predict", {"items": items}).status == 200
        expect(page.locator("[data-show=texts]")).to_have_text("20", timeout=15_000)
        expect(page.locator("[data-show=p50]")).to_have_text(re.compile(r"ms|s"))
        expect(page.locator("[data-show=tasks]")).to_have_text("4")
        figures = ask.get("/server/figures").json
        assert figures["separate_bytes"] == 4 * figures["base_bytes"] + figures["bytes"]
        assert figures["shared_bytes"] == figures["base_bytes"] + figures["bytes"]
        assert sum(count for _, count in figures["batch_tasks"]) == figures["batches"]


def test_quantiles_lie_in_their_bucket() -> None:
    counts = [0] * (len(SECONDS) + 1)
    assert quantile(0.5, counts) is None
    counts[3] = 10
    assert quantile(0.5, counts) == pytest.approx((SECONDS[2] + SECONDS[3]) / 2)
    counts[-1] = 1000
    assert quantile(0.99, counts) == SECONDS[-1]


def test_an_admin_makes_and_revokes_keys(own_keyed_site: Site, open_page: Open) -> None:
    page = open_page(own_keyed_site, "/server", key="admin")
    file = own_keyed_site.server.app.state.service.keys.path
    page.get_by_text("New key", exact=True).click()
    page.get_by_label("Tenant").fill("acme")
    page.get_by_label("Note").fill("<b>Ann</b>")
    page.get_by_label("Requests a second").fill("5")
    page.get_by_label("train").check()
    page.get_by_role("button", name="Make a key").click()
    text = page.locator(".notice pre").inner_text()
    made = read_keys(file)[-1]
    assert text.startswith(f"at_{made.id}_")
    assert (made.tenant, made.scopes, made.rate, made.note) == ("acme", ("predict", "train"), 5.0, "<b>Ann</b>")
    time.sleep(1.1)  # a server looks at the file every second
    assert Asker(own_keyed_site.url, text).get("/v1/tasks").status == 200
    page.goto(f"{own_keyed_site.url}/server")
    assert text not in page.content()
    assert "yours" in page.locator("main table").inner_text()
    page.get_by_role("button", name=f"Revoke {made.id}").click()
    expect(page.get_by_role("button", name=f"Revoke {made.id}")).to_have_count(0)
    time.sleep(1.1)
    assert Asker(own_keyed_site.url, text).get("/v1/tasks").status == 401


def test_a_key_that_cannot_be_made_says_why_and_ones_own_stays(own_keyed_site: Site) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "text/html"}
    cookie = {"Cookie": f"{COOKIE}={own_keyed_site.keys['admin']}"}
    ask = Asker(own_keyed_site.url)
    for body, says in ((b"tenant=A%20B&predict=1", "cannot be a tenant"), (b"tenant=a", "needs a scope"),
                       (b"predict=1&rate=x", "are numbers")):  # fmt: skip
        found = ask.post("/server/keys", body, headers={**form, **cookie})
        assert says in found.body.decode()
    own = own_keyed_site.keys["admin"].split("_")[1]
    assert ask.post("/server/keys/remove", f"id={own}".encode(), headers={**form, **cookie}).status == 409
    assert ask.post("/server/keys/remove", b"id=nothing", headers={**form, **cookie}).status == 422
    assert len(read_keys(own_keyed_site.server.app.state.service.keys.path)) == 5


# Many tasks


def test_thousands_of_tasks_are_listed_and_searched_quickly(world: World, tmp_path: Path, open_page: Open) -> None:
    """Times are of the server alone, once it has read the store."""
    count = 1000
    store = Store(tmp_path / "store")
    first = store.add(world.store["words"])
    folder = store.path_of("words")
    for i in range(count):
        record = Record(**{**vars(first.record), "name": f"t{i}", "labels": ["bad", f"label{i % 50}"]})
        place = store.tasks / f"t{i}" / "1"
        place.mkdir(parents=True)
        (place / "task.safetensors").hardlink_to(folder / "task.safetensors")
        (place / "task.json").write_text(json.dumps(record.to_json()))
    with serving(World(tmp_path, world.base, store)) as site:
        ask = Asker(site.url)
        ask.get("/", headers={"Accept": "text/html"}, timeout=120)
        times = []
        for address in ("/", "/?q=label7", "/?sort=score&page=20", "/?label=label7", "/?sort=used"):
            began = time.perf_counter()
            found = ask.get(address, headers={"Accept": "text/html"})
            times.append(time.perf_counter() - began)
            assert found.status == 200
            assert len(found.body) < 300_000
        assert min(times) < 1, times
        page = open_page(site, "/?label=label7")
        expect(page.locator("#count")).to_have_text("20 of 1,001 tasks")
        page.goto(f"{site.url}/")
        page.get_by_role("link", name="Next →").click()
        expect(page.locator("#where")).to_have_text("Page 2 of 26")
        page.go_back()
        expect(page.locator("#where")).to_have_text("Page 1 of 26")

"""Script in names, labels, texts, cards, notes, keys and file names is shown, and does not run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from tests.serve.serving import World, trained
from tests.serve.web.conftest import Open, Site, expect, serving

pytestmark = pytest.mark.slow  # a browser for every test

EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\"'`--></title></textarea>"
JS = "{{7*7}}${7*7}javascript:alert(1)"


@pytest.fixture(scope="module")
def hostile(world: World, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Tasks whose labels, data, notes, warnings, examples and mistakes are all hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    store = Store(folder / "store")
    rows = [{"text": f"{EVIL} {'lion' if i % 2 else 'saw'} {i}", "label": [EVIL, f"b{JS}"][i % 2]} for i in range(40)]
    made = trained(world.base, rows, "evil")
    record = dataclasses.replace(
        made.record, version=0, data={**made.record.data, "name": EVIL},
        extra={**made.record.extra, "warnings": [EVIL]}, settings={**made.record.settings, "lr": EVIL},
    )  # fmt: skip
    store.add(Task(record, made.weights))
    store.add(Task(record, made.weights))
    store.note("evil@1", EVIL)
    tags = [{"tokens": [f"{EVIL}{i}".replace(" ", ""), "lion"], "tags": [f"B-{EVIL[:20]}", "O"]} for i in range(24)]
    store.add(trained(world.base, tags, "tags"))
    with serving(World(folder, world.base, store), results=_results(folder)) as found:
        yield found


def _results(folder: Path) -> Path:
    import json

    place = folder / "results"
    place.mkdir()
    methods = [{"method": EVIL, "label": EVIL, "family": EVIL, "trained": 5, "scores": {"test": {"mean": 0.5}}}]
    (place / "results.json").write_text(json.dumps({"title": EVIL, "metric": EVIL, "methods": methods}))
    (place / "ablation.json").write_text(
        json.dumps({"task": EVIL, "layers": [0, 1], "spans": [{"first": 0, "last": 1, "change": -1}], "sentence": EVIL})
    )
    (place / "fusion.json").write_text(
        json.dumps({"task": EVIL, "adapters": [EVIL, "b"], "layers": [0], "weights": [[0.5, 0.5]], "most": EVIL})
    )
    (place / "broken.json").write_text("{")
    (place / "other.json").write_text("[1]")
    return place


@pytest.mark.parametrize(
    "address",
    ["/", f"/?q={EVIL}", f"/?kind={EVIL}&label={EVIL}&sort={EVIL}", "/task/evil", "/task/tags", f"/task/{EVIL}",
     f"/all?text={EVIL}&q={EVIL}", f"/compose?expression={EVIL}", "/compose?expression=stack(evil,evil)", "/methods",
     f"/methods?data=.: {EVIL}", "/server", f"/sign-in?next={EVIL}", f"/{EVIL}"],
)  # fmt: skip
def test_nothing_runs_on_a_page(hostile: Site, open_page: Open, address: str) -> None:
    page = open_page(hostile, address.replace("#", ""), expected=("404", "422"))
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.hacked") is None
    assert page.locator("[onerror]").count() == 0
    assert page.locator("img[src=x]").count() == 0
    assert page.locator("main script").count() == 0
    assert "49" not in page.title()


def test_answers_and_words_are_texts(hostile: Site, open_page: Open) -> None:
    page = open_page(hostile, "/task/evil")
    page.locator("#try [name=text]").fill(f"{EVIL} lion")
    expect(page.locator("#answer .big")).to_be_visible()
    page.get_by_role("button", name="Which words?").click()
    expect(page.locator("#words .word").first).to_be_visible()
    page.locator("button.cell").first.click()
    page.goto(f"{hostile.url}/task/tags")
    page.locator("#try [name=text]").fill(EVIL)
    page.wait_for_timeout(600)
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img[src=x], main script").count() == 0


def test_a_hostile_file_is_evaluated_as_texts(hostile: Site, open_page: Open) -> None:
    import json

    rows = "".join(json.dumps({"text": f"{EVIL} {i}", "label": [EVIL, f"b{JS}"][i % 2]}) + "\n" for i in range(8))
    page = open_page(hostile, "/task/evil")
    page.get_by_text("Evaluate on a file of yours").click()
    page.get_by_label("Labelled file").set_input_files(
        {"name": "<img src=x onerror=hacked=1>.jsonl", "mimeType": "text/html", "buffer": rows.encode()}
    )
    page.get_by_role("button", name="Evaluate").click()
    expect(page.locator("#evaluated h3").first).to_contain_text("<img src=x")
    assert page.evaluate("window.hacked") is None
    assert page.locator("#evaluated img, #evaluated script").count() == 0


def test_the_list_and_all_tasks_show_hostile_labels_as_texts(hostile: Site, open_page: Open) -> None:
    page = open_page(hostile, "/")
    assert "<script>" in page.locator(".results").inner_text()
    page.locator("[name=q]").fill("<script>")
    page.wait_for_timeout(400)
    page.get_by_role("link", name="Use evil").click()
    expect(page.locator("dialog h2")).to_have_text("Use evil")
    page.goto(f"{hostile.url}/all")
    page.locator("[name=text]").fill(EVIL)
    expect(page.locator("#answers li")).to_have_count(2)
    assert page.evaluate("window.hacked") is None


def test_a_policy_would_stop_a_script_that_got_into_a_page(hostile: Site, open_page: Open) -> None:
    page = open_page(hostile, "/", expected=("Content Security Policy", "404"))
    page.evaluate("""() => {
      document.body.insertAdjacentHTML("beforeend", "<img src=nothing onerror='window.hacked = 1'>");
      const script = document.createElement("script");
      script.textContent = "window.hacked = 2";
      document.body.append(script);
    }""")
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacked") is None

"""The page of a task: it answers as one types, for every kind; its rows, words, versions and lineage."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from adaptree.serve.keys import COOKIE
from adaptree.serve.web import quality
from adaptree.tasks.store import Store
from tests.compat.forms import rows, write
from tests.serve.serving import Asker, World
from tests.serve.web.conftest import Open, Site, expect, serving

pytestmark = pytest.mark.slow  # a browser for every test

HTML = {"Accept": "text/html"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def asked(site: Site, task: str, given: Any) -> dict[str, Any]:
    answer = Asker(site.url).post(f"/v1/tasks/{task}/predict", {"inputs": [given]})
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json["predictions"][0]
    return found


# Try it


def test_a_text_is_classified_as_one_types(every_site: Site, open_page: Open) -> None:
    page = open_page(every_site, "/task/words")
    answer = page.locator("#answer")
    for text in ("the saw and the drill", "lion wolf bear"):
        page.locator("#try [name=text]").fill(text)
        found = asked(every_site, "words", text)
        expect(answer.locator(".big")).to_have_text(found["label"])
        best = max(found["scores"].values())
        expect(answer.locator(".bars li").first.locator(".number")).to_have_text(re.compile(rf"^{100 * best:.0f}"))
        assert answer.locator(".bars li").count() == 3
    expect(page.locator("#took")).to_have_text(re.compile(r"^\d+ ms$"))
    page.locator("#try [name=text]").fill("  ")
    expect(page.get_by_role("button", name="Which words?")).to_be_disabled()


@pytest.mark.parametrize(
    ("task", "fields", "given", "says"),
    [
        ("number", {"text": "lion wolf"}, "lion wolf", "value"),
        ("numbers", {"text": "lion wolf"}, "lion wolf", "values"),
        ("several", {"text": "lion and saw"}, "lion and saw", "labels"),
        ("tags", {"text": "a lion near the wolf"}, "a lion near the wolf", "entities"),
        ("pairs", {"text": "plum", "text_pair": "pear"}, {"text": "plum", "text_pair": "pear"}, "label"),
        ("answers", {"question": "the beast 1", "context": "old lion near"},
         {"question": "the beast 1", "context": "old lion near"}, "answer"),
        ("choices", {"text": "near and pear", "choices": "plum\nsaw"},
         {"text": "near and pear", "choices": ["plum", "saw"]}, "choice"),
        ("lang/xx", {"text": "old [MASK] near"}, "old [MASK] near", "fills"),
        ("methods/tfidf", {"text": "lion"}, "lion", "label"),
        ("fused", {"text": "lion"}, "lion", "label"),
    ],
)  # fmt: skip
def test_every_kind_answers_on_its_page(
    every_site: Site, open_page: Open, task: str, fields: dict[str, str], given: Any, says: str
) -> None:
    page = open_page(every_site, f"/task/{task}")
    for name, text in fields.items():
        page.locator(f"#try [name={name}]").fill(text)
    found = asked(every_site, task, given)
    answer = page.locator("#answer")
    if says == "value":
        expect(answer.locator(".big")).to_have_text(str(float(f"{found['value']:.4g}")))
    elif says == "values":
        expect(answer.locator("dt")).to_have_text(list(found["values"]))
    elif says == "labels":
        expect(answer.locator(".bars li")).to_have_count(len(found["scores"]))
        expect(answer.locator(".pill")).to_have_text(found["labels"])
    elif says == "entities":
        shown = [given[each["start"] : each["end"]] + each["label"] for each in found["entities"]]
        expect(answer.locator(".marked mark")).to_have_text(shown)
    elif says == "answer":
        expect(answer.locator(".big")).to_contain_text(found["answer"] or "No answer")
        if found["answer"]:
            expect(answer.locator(".marked mark")).to_have_text(found["answer"])
    elif says == "choice":
        expect(answer.locator(".bars .best .name")).to_have_text(found["choice"])
    elif says == "fills":
        expect(answer.locator(".bars .name").first).to_have_text(found["fills"][0][0]["word"])
    else:
        expect(answer.locator(".big")).to_have_text(str(found["label"]))


def test_an_example_of_its_data_is_answered_at_once(every_site: Site, open_page: Open) -> None:
    page = open_page(every_site, "/task/words")
    first = every_site.world.store.record("words").examples[0]["text"]
    assert page.locator("#try [name=text]").input_value() == first
    expect(page.locator("#answer .big")).to_have_text(asked(every_site, "words", first)["label"])
    chip = page.locator(".chip").nth(1)
    chip.click()
    assert page.locator("#try [name=text]").input_value().startswith(chip.inner_text().rstrip(".…")[:10])


def test_an_answer_to_an_older_text_is_dropped(every_site: Site, open_page: Open) -> None:
    """The first request is answered last, and must not be shown."""
    page = open_page(every_site, "/task/words")
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route) if "lion lion" in (route.request.post_data or "") else route.continue_()

    page.route("**/predict", hold)
    box = page.locator("#try [name=text]")
    box.fill("lion lion")
    page.wait_for_timeout(400)
    assert len(held) == 1
    box.fill("saw drill")
    expect(page.locator("#answer .big")).to_have_text(asked(every_site, "words", "saw drill")["label"])
    before = page.locator("#answer").inner_text()
    held[0].continue_()
    page.wait_for_timeout(200)
    assert page.locator("#answer").inner_text() == before


def test_offsets_count_letters_as_python_does(every_site: Site, open_page: Open) -> None:
    text = "\N{LION FACE} 🇨🇭 lion near the wolf"
    page = open_page(every_site, "/task/spans")
    page.locator("#try [name=text]").fill(text)
    found = asked(every_site, "spans", text)["entities"]
    shown = [text[each["start"] : each["end"]] + each["label"] for each in found]
    expect(page.locator("#answer .marked mark")).to_have_text(shown)


@pytest.mark.parametrize("task", ["words", "answers", "methods/tfidf"])
def test_the_words_that_an_answer_rests_on(every_site: Site, open_page: Open, task: str) -> None:
    page = open_page(every_site, f"/task/{task}")
    page.locator("#answer .big").wait_for()
    page.get_by_role("button", name="Which words?").click()
    expect(page.locator("#words .word").first).to_be_visible()
    page.locator("#try textarea").first.press_sequentially(" old")
    expect(page.locator("#words .word")).to_have_count(0)


def test_words_of_a_long_text_are_refused_in_one_line(every_site: Site) -> None:
    answer = Asker(every_site.url).post("/words/words", {"inputs": ["lion " * 1000]})
    assert (answer.status, answer.error["code"]) == (413, "too_large")
    assert Asker(every_site.url).post("/words/words", {"inputs": ["a", "b"]}).error["code"] == "bad_input"


def test_errors_are_shown_where_the_answer_would_be(every_site: Site, open_page: Open) -> None:
    page = open_page(every_site, "/task/words", expected=("413",))
    page.locator("#try [name=text]").fill("lion " * 30_000)
    expect(page.locator("#answer .problem")).to_contain_text("100,000 are the most")


# How good it is


def test_a_cell_of_the_matrix_shows_its_rows(every_site: Site, open_page: Open) -> None:
    page = open_page(every_site, "/task/a")
    shown = page.locator(".rows tbody tr:visible")
    everything = shown.count()
    insight = every_site.world.store.record("a").extra["insight"]
    assert everything == len(insight["mistakes"]) + len(insight["right"])
    cell = page.locator("button.cell").first
    cell.click()
    gold, predicted = cell.get_attribute("data-gold"), cell.get_attribute("data-predicted")
    assert {(row.get_attribute("data-gold"), row.get_attribute("data-predicted")) for row in shown.all()} <= {
        (gold, predicted)
    }
    assert shown.count() < everything
    page.get_by_role("button", name="Show all").click()
    expect(shown).to_have_count(everything)


def test_a_file_is_evaluated_and_all_its_rows_are_shown(every_site: Site, open_page: Open, tmp_path: Path) -> None:
    file = write(tmp_path / "new rows.jsonl", "single", 60, seed=9)
    page = open_page(every_site, "/task/words")
    page.get_by_text("Evaluate on a file of yours").click()
    page.get_by_label("Labelled file").set_input_files(file)
    page.get_by_role("button", name="Evaluate").click()
    result = page.locator("#evaluated")
    expect(result.locator("h3").first).to_have_text("new rows.jsonl")
    counts = result.locator("button.cell").all_inner_texts()
    assert sum(map(int, counts)) == 60
    cell = result.locator("button.cell").first
    cell.click()
    expect(result.locator(".rows tbody tr:visible")).to_have_count(int(cell.inner_text()))


@pytest.mark.parametrize(
    ("task", "form"),
    [("tags", "tag"), ("number", "regress"), ("answers", "answer"), ("several", "labels"), ("pairs", "pair")],
)
def test_files_of_other_kinds_are_evaluated_too(every_site: Site, task: str, form: str, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", form, 20, seed=5)
    found = Asker(every_site.url)(
        "POST", f"/evaluate/{task}?name=rows.jsonl", file.read_bytes(), headers={"Content-Type": "text/plain"}
    )
    assert found.status == 200, found.body
    assert '<div class="evaluated">' in found.body.decode()


@pytest.mark.parametrize(
    ("name", "data", "status", "says"),
    [
        ("rows.csv", b"text,label\nlion,planet\n", 422, "no label that the task 'words' knows"),
        ("rows.csv", b"", 422, "rows.csv"),
        ("rows.csv", b"\xff\xfe\x00\x00\xff", 422, "rows.csv"),
        ("rows.xlsx", b"PK", 422, "is not one of the files"),
        ("../../etc/passwd", b"x", 422, "is not one of the files"),
        ("rows.csv.gz", b"\x1f\x8b", 422, "is not one of the files"),
        ("<img src=x>.csv", b"a,b\n1,2\n", 422, "which column holds the text"),
    ],
)
def test_a_file_that_cannot_be_evaluated_says_why(
    every_site: Site, name: str, data: bytes, status: int, says: str
) -> None:
    from urllib.parse import quote

    found = Asker(every_site.url)(
        "POST", f"/evaluate/words?name={quote(name, safe='')}", data, headers={"Content-Type": "text/plain"}
    )
    assert found.status == status
    assert says in found.error["message"]
    assert "adaptree-evaluate" not in found.body.decode()


def test_a_file_with_too_many_rows_is_refused(every_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "MOST_ROWS", 10)
    data = "".join(json.dumps(each) + "\n" for each in rows("single", 12)).encode()
    found = Asker(every_site.url)("POST", "/evaluate/words?name=a.jsonl", data, headers={"Content-Type": "text/plain"})
    assert (found.status, found.error["code"]) == (413, "too_large")


# Versions and lineage


@pytest.fixture
def changing(every: World, tmp_path: Path) -> Any:
    shutil.copytree(every.store.path, tmp_path / "store")
    with serving(World(tmp_path, every.base, Store(tmp_path / "store"))) as found:
        yield found


def test_an_earlier_version_is_rolled_back_to_and_served(changing: Site, open_page: Open) -> None:
    page = open_page(changing, "/task/words")
    assert "words@2" in page.locator("h1").inner_text()
    old = asked(changing, "words@1", "lion and saw")["scores"]
    assert asked(changing, "words", "lion and saw")["scores"] != old
    page.get_by_role("button", name="Roll back to version 1").click()
    expect(page.locator("h1")).to_contain_text("words@3")
    assert "rolled back to version 1" in page.locator("#versions").locator("..").inner_text()
    assert asked(changing, "words", "lion and saw")["scores"] == old


@pytest.mark.parametrize("body", [b"task=words", b"task=stack(a,b)", b"", b"task=none@1", b"\xff"])
def test_a_rollback_to_nothing_is_refused(changing: Site, body: bytes) -> None:
    assert Asker(changing.url).post("/rollback", body, headers=FORM).status in (404, 422)
    assert changing.world.store.versions("words") == [1, 2]


def test_an_older_version_says_so(every_site: Site, open_page: Open) -> None:
    page = open_page(every_site, "/task/words@1")
    page.get_by_role("link", name="The newest is @2.").click()
    expect(page.locator("h1")).to_have_text("words@2")


def test_lineage_goes_both_ways(every_site: Site, open_page: Open) -> None:
    page = open_page(every_site, "/task/fused")
    page.locator("#lineage ~ dl").get_by_role("link", name="a@1").click()
    expect(page.locator("h1")).to_contain_text("a@1")
    links = page.locator("#lineage ~ dl a").all_inner_texts()
    assert {"fused", "mean", "stacked"} <= set(links)
    assert "a" not in links


def test_a_task_of_another_base_says_that_it_cannot_answer(every_site: Site, open_page: Open) -> None:
    for name in ("moved", "attached"):
        page = open_page(every_site, f"/task/{name}")
        assert "of another base" in page.locator(".notice").inner_text() or name == "attached"
        assert page.locator("#try").count() == 0


def test_a_damaged_task_is_said_to_be_damaged_without_a_path(changing: Site) -> None:
    (changing.world.store.path_of("a") / "task.json").write_text("{}")
    page = Asker(changing.url).get("/task/a", headers=HTML)
    assert page.status == 500
    assert "damaged" in page.body.decode()
    assert str(changing.world.folder) not in page.body.decode()
    composed = Asker(changing.url).get("/compose?expression=stack(a,words)", headers=HTML).body.decode()
    assert "damaged" in composed
    assert str(changing.world.folder) not in composed
    listed = Asker(changing.url).get("/", headers=HTML).body.decode()
    assert "damaged" in listed


def test_use_is_counted_and_snippets_work(changing: Site, open_page: Open) -> None:
    page = open_page(changing, "/", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("link", name="Use pairs").click()
    dialog = page.locator("dialog")
    expect(dialog.locator("h2")).to_have_text("Use pairs")
    code = dialog.locator("pre").first.inner_text()
    assert f"{changing.url}/v1/tasks/pairs/predict" in code
    given = json.loads(re.search(r"--json '(.*)'", code)[1])  # type: ignore[index]
    assert Asker(changing.url).post("/v1/tasks/pairs/predict", given).status == 200
    dialog.get_by_role("tab", name="Python").click()
    dialog.get_by_role("button", name="Copy").locator("visible=true").click()
    assert "client.predict" in page.evaluate("navigator.clipboard.readText()")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.reload()
    row = page.locator(".task", has=page.get_by_role("link", name="pairs", exact=True))
    expect(row.locator(".uses span")).to_have_text("1 use")


@pytest.mark.parametrize("task", ["choices", "answers", "lang/xx", "tags", "numbers"])
def test_the_example_in_a_snippet_is_an_input_of_the_task(every_site: Site, task: str) -> None:
    from adaptree.serve.web.snippets import example_of

    asked(every_site, task, example_of(every_site.world.store.record(task)))


def test_texts_of_the_data_are_for_those_who_may_train(keyed_site: Site) -> None:
    example = keyed_site.world.store.record("acme/reviews").examples[0]["text"]
    for key, there in (("acme", False), ("trainer", True)):
        cookie = {"Cookie": f"{COOKIE}={keyed_site.keys[key]}"}
        found = Asker(keyed_site.url).get("/task/acme/reviews", headers={**HTML, **cookie}).body.decode()
        assert ("From its data" in found or f">{example}</textarea>" in found) == there
        assert ("Roll back" in found) is False  # there is one version
        insight = keyed_site.world.store.record("acme/reviews").extra["insight"]
        quoted = [row["text"] for row in (*insight["mistakes"], *insight["right"]) if len(row["text"]) > 20]
        assert len(quoted) > 1
        assert [f">{text}<" in found for text in quoted] == [there] * len(quoted)
        assert "Confusion matrix" in found
        assert ("Choose a cell" in found) == there
        assert Asker(keyed_site.url).post("/held-out/reviews", b"", headers=cookie).status == (409 if there else 403)

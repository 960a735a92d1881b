"""New task, jobs, a job live, and improve, in a real browser: the whole way from a dropped file to a better version."""

from __future__ import annotations

import csv
import json
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptree.serve import improving
from adaptree.serve.jobs import Jobs
from adaptree.serve.jobs.worker import Worker
from tests.bases import FILLER, WORDS
from tests.serve.serving import Asker
from tests.serve.web.conftest import Open, Site, expect, faults, photograph, sideways

pytestmark = pytest.mark.slow  # a browser for every test

EVIL = "<img src=x onerror=alert(1)>"
PHONE = {"width": 390, "height": 844}
WAIT = 60_000


def sentences(count: int, seed: int, *, known: int = 4) -> list[tuple[str, str]]:
    """Texts of words of one label and others, all different."""
    rng, found = random.Random(seed), {}
    while len(found) < count:
        label = list(WORDS)[len(found) % 3]
        words = [*rng.choices(WORDS[label].split(), k=known), *rng.choices(FILLER, k=6)]
        found[" ".join(rng.sample(words, len(words)))] = label
    return list(found.items())


def table(path: Path, head: list[str], rows: list[Any]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)
    return path


@pytest.fixture
def worker(own_site: Site) -> Iterator[Worker]:
    found = Worker(own_site.world.store, Jobs(own_site.world.store), own_site.world.base)
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    yield found
    found.stop()
    thread.join(30)


def upload(site: Site, path: Path, key: str = "") -> str:
    ask = Asker(site.url, site.keys.get(key, ""))
    found = ask.post(f"/v1/files?name={path.name}", path.read_bytes(), headers={"Content-Type": "text/csv"})
    assert found.status == 201, found.body
    return str(found.json["id"])


# New task


def test_a_dropped_file_is_checked_and_its_guesses_can_be_changed(
    own_site: Site, open_page: Open, tmp_path: Path
) -> None:
    rows = [(text, label, "x", i) for i, (text, label) in enumerate(sentences(30, 1))]
    page = open_page(own_site, "/new", expected=("422",))  # between one change and the next
    page.set_input_files("#file", table(tmp_path / "Nice Words.csv", ["text", "label", EVIL, "n"], rows))
    expect(page.locator("#facts")).to_contain_text("30")
    expect(page.get_by_label("Name", exact=True)).to_have_value("nice-words")
    expect(page.locator("#facts")).to_contain_text("Contrastive")
    expect(page.locator("#text option").first).to_have_text("text (guessed)")
    expect(page.locator("#kind-why")).to_contain_text("labels are names")
    expect(page.locator("#preview th").nth(3)).to_have_text(EVIL)
    page.get_by_label("Label", exact=True).select_option("n")
    page.get_by_label("Kind", exact=True).select_option("regress")
    expect(page.locator("#facts")).to_contain_text("regress")
    page.locator("summary", has_text="command line").click()
    expect(page.locator("#command")).to_contain_text("adaptree train 'Nice Words.csv' --name nice-words")
    expect(page.locator("#command")).to_contain_text("--label n")
    assert faults(page) == []


def test_what_cannot_be_trained_on_is_said_in_the_words_of_the_command(
    own_site: Site, open_page: Open, tmp_path: Path
) -> None:
    page = open_page(own_site, "/new", expected=("422",))
    rows = [("some text", "a"), ("another", "a")]
    page.set_input_files("#file", table(tmp_path / "one.csv", ["text", "label"], rows))
    expect(page.locator("#refused")).to_contain_text(re.compile("label", re.IGNORECASE))
    expect(page.get_by_role("button", name="Train")).to_be_disabled()
    page.get_by_role("button", name="Another file").click()
    (tmp_path / "x.exe").write_bytes(b"MZ")
    page.set_input_files("#file", tmp_path / "x.exe")
    expect(page.locator("#wrong")).to_contain_text("ending does not say a known format")


def test_rows_of_a_spreadsheet_can_be_pasted(own_site: Site, open_page: Open) -> None:
    page = open_page(own_site, "/new")
    text = "\n".join(["text\tlabel", *(f"{text}\t{label}" for text, label in sentences(12, 2))])
    page.evaluate(
        """(text) => {
            const data = new DataTransfer();
            data.setData("text/plain", text);
            document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
        }""",
        text,
    )
    expect(page.locator("#file-name")).to_have_text("pasted.tsv")
    expect(page.locator("#facts")).to_contain_text("12")


# The whole way


def test_a_file_becomes_a_task_and_twenty_labels_its_next_version(
    own_site: Site, worker: Worker, open_page: Open, tmp_path: Path
) -> None:
    first, more = sentences(30, 3, known=1), sentences(120, 4, known=1)
    gold = dict(more)
    page = open_page(own_site, "/new")
    page.set_input_files("#file", table(tmp_path / "things.csv", ["text", "label"], first))
    expect(page.get_by_label(re.compile("Keep the data"))).to_be_checked()
    page.get_by_role("button", name="Train").click()
    page.wait_for_url("**/jobs/*")
    expect(page.locator("#state")).to_have_text("done", timeout=WAIT)
    expect(page.locator("#log")).to_contain_text("Training begins")
    expect(page.locator("#scores")).to_contain_text("on 6 held-out rows")
    told = page.locator("#log").inner_text()
    page.reload()
    expect(page.locator("#log li").last).to_contain_text("Done.")
    assert page.locator("#log").inner_text() == told
    assert faults(page) == []

    page.get_by_role("link", name="Improve it").click()
    pool = [*[(text,) for text, _ in more], (EVIL,), (first[0][0],)]
    page.set_input_files("#pool", table(tmp_path / "new.csv", ["text"], pool))
    expect(page.locator("#card")).to_be_visible(timeout=WAIT)
    assert page.locator("#done-rows li").count() == 20
    assert faults(page) == []
    labels = [str(each) for each in own_site.world.store.record("things").labels]
    shown, asked = [], []
    page.on("request", lambda request: asked.append(request.url))
    for number in range(20):
        text = page.locator("#words").inner_text()
        shown.append(text)
        page.keyboard.press("s" if text == EVIL else str(labels.index(gold[text]) + 1))
        if number == 2:  # one is taken back, and given again
            page.keyboard.press("u")
            assert page.locator("#words").inner_text() == text
            page.keyboard.press("s" if text == EVIL else str(labels.index(gold[text]) + 1))
        if number == 5:
            page.reload()
            expect(page.locator("#at")).to_contain_text("7 of 20")
            assert not [url for url in asked if url.endswith("/choose")], "the rows are not chosen again"
    assert len(set(shown)) == 20
    assert first[0][0] not in shown
    made = 20 - (EVIL in shown)
    expect(page.locator("#count")).to_have_text(f"{made} new labels")
    page.get_by_role("button", name="Train the next version").click()
    page.wait_for_url("**/jobs/*")
    expect(page.locator("#state")).to_have_text("done", timeout=WAIT)
    store = own_site.world.store
    assert store.versions("things") == [1]  # the one in use stays until it is replaced
    page.get_by_role("link", name="Compare it").click()
    expect(page.locator("#versus .score").first).to_have_text(
        f"{store.record('things@1').metrics['validation']['accuracy']:.3f}"
    )
    expect(page.locator("#compared")).to_contain_text("the same 6 rows")
    page.set_input_files("#own", table(tmp_path / "test.csv", ["text", "label"], sentences(60, 9)))
    expect(page.locator("#own-result .score")).to_have_count(2, timeout=WAIT)
    assert faults(page) == []
    page.get_by_role("button", name="Use the new version").click()
    page.wait_for_url("**/task/things")
    assert store.versions("things") == [1, 2]
    assert store.versions("things-next") == []
    record = store.record("things")
    assert (record.data["rows"], record.data["validation"]) == (30 + made, 6)
    page.goto(f"{own_site.url}/improve/things")  # and on, from the data of the new version
    expect(page.locator("#pool")).to_be_attached()
    assert page.locator("#improve").get_attribute("data-kept")


def test_all_rows_that_a_version_was_scored_on_are_shown_where_its_data_is_kept(
    own_site: Site, open_page: Open, tmp_path: Path
) -> None:
    store, ask = own_site.world.store, Asker(own_site.url)
    file = upload(own_site, table(tmp_path / "things.csv", ["text", "label"], sentences(150, 3, known=1)))
    held = upload(own_site, table(tmp_path / "held.csv", ["text", "label"], sentences(60, 4, known=1)))
    for name, keep in (("things", True), ("apart", True), ("gone", False)):
        settings = {"name": name, "method": "pfeiffer:4", "epochs": 1, "baselines": False, "objective": "cross-entropy"}
        body = {"file": file, **({"validation": held} if name == "apart" else {}), "settings": settings}
        assert ask.post("/v1/jobs", {**body, "keep_data": keep}).status == 202
    Worker(store, Jobs(store), own_site.world.base).run(drain=True)
    page = open_page(own_site)
    for name, rows in (("things", 30), ("apart", 60)):
        insight = store.record(name).extra["insight"]
        page.goto(f"{own_site.url}/task/{name}")
        shown = page.locator(".rows tbody tr:visible")
        assert shown.count() == len(insight["mistakes"]) + len(insight["right"]) < rows
        page.get_by_role("button", name=f"Show all {rows} rows").click()
        expect(page.locator(".rows tbody tr")).to_have_count(rows)
        assert [int(text) for text in page.locator(".matrix .cell").all_inner_texts() if text != "·"] == [
            count for line in insight["confusion"]["counts"] for count in line if count
        ]
        for cell in page.locator("button.cell").all():
            cell.click()
            expect(shown).to_have_count(int(cell.inner_text()))
    assert faults(page) == []
    page.goto(f"{own_site.url}/task/gone")
    expect(page.locator("[data-note]")).to_contain_text("The others are not kept here")
    assert page.get_by_role("button", name="Show all").count() == 0


def test_the_next_version_is_scored_on_the_validation_file_of_the_first(own_site: Site, tmp_path: Path) -> None:
    store, ask = own_site.world.store, Asker(own_site.url)
    file = upload(own_site, table(tmp_path / "things.csv", ["text", "label"], sentences(60, 3)))
    held = upload(own_site, table(tmp_path / "held.csv", ["text", "label"], sentences(30, 4)))
    settings = {"name": "things", "method": "pfeiffer:4", "epochs": 1, "baselines": False, "objective": "cross-entropy"}
    body = {"file": file, "validation": held, "settings": settings, "keep_data": True}
    assert ask.post("/v1/jobs", body).status == 202
    Worker(store, Jobs(store), own_site.world.base).run(drain=True)
    pool = upload(own_site, table(tmp_path / "new.csv", ["text"], [(text,) for text, _ in sentences(10, 5)]))
    queued = ask.post("/improve/things/train", {"file": pool, "labels": {"2": "tool", "3": "fruit"}})
    assert queued.status == 202, queued.body
    assert queued.json["more_files"] == {"validation": held}
    Worker(store, Jobs(store), own_site.world.base).run(drain=True)
    record = store.record("things-next")
    assert (record.data["rows"], record.data["validation"]) == (62, 30)
    found = improving.candidate(store, Jobs(store), "things", "")
    assert found is not None
    assert found.same_rows
    assert ask.post("/improve/things/discard", b"", headers={"Content-Type": "application/json"}).status == 200
    assert Jobs(store).files.get(held).id == held, "it is the first version's, too"


def test_files_to_validate_and_test_on_are_sent_with_a_new_task(
    own_site: Site, worker: Worker, open_page: Open, tmp_path: Path
) -> None:
    page = open_page(own_site, "/new", expected=("422",))
    page.set_input_files("#file", table(tmp_path / "things.csv", ["text", "label"], sentences(60, 3)))
    page.get_by_text("More settings").click()
    page.locator("#epochs").fill("1")
    page.set_input_files("#validation", table(tmp_path / "held.csv", ["text", "label"], sentences(12, 4)))
    expect(page.locator("#facts")).to_contain_text("60 to train, 12 in the validation file")
    page.set_input_files("#test", table(tmp_path / "last.csv", ["text", "label"], [("a", "nonsense")]))
    expect(page.locator("#refused")).to_contain_text("nonsense")
    expect(page.locator("#start")).to_be_disabled()
    last = table(tmp_path / "last.csv", ["text", "label"], sentences(9, 5))
    with page.expect_file_chooser() as choosing:
        page.get_by_label("Test file").click()
    choosing.value.set_files(last)  # the same file, mended
    expect(page.locator("#facts")).to_contain_text("9 to test")
    expect(page.locator("#command")).to_contain_text("--validation held.csv --test last.csv")
    assert faults(page) == []
    page.get_by_role("button", name="Train").click()
    page.wait_for_url("**/jobs/*")
    expect(page.locator("#state")).to_have_text("done", timeout=WAIT)
    record = own_site.world.store.record("things")
    assert record.data["validation"] == 12
    assert "test" in record.metrics


def test_a_job_that_waits_can_be_cancelled_and_tried_again(own_site: Site, open_page: Open, tmp_path: Path) -> None:
    file = table(tmp_path / "things.csv", ["text", "label"], sentences(30, 5))
    page = open_page(own_site, "/new")
    page.set_input_files("#file", file)
    page.get_by_role("button", name="Train").click()
    page.wait_for_url("**/jobs/*")
    expect(page.locator("#where")).to_have_text("It is the next one.")  # no worker is here
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#state")).to_have_text("cancelled")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#state")).to_have_text("queued")
    page.goto(f"{own_site.url}/jobs")
    expect(page.locator(".job")).to_have_count(1)
    expect(page.locator(".job .state")).to_have_text("queued")
    worker = Worker(own_site.world.store, Jobs(own_site.world.store), own_site.world.base)
    worker.run(once=True)
    expect(page.locator(".job .state")).to_have_text("done", timeout=WAIT)  # the list follows by itself
    assert faults(page) == []


def test_a_long_job_is_stopped_and_its_best_epoch_kept_and_a_files_name_is_inert(
    own_site: Site, worker: Worker, open_page: Open, tmp_path: Path
) -> None:
    page = open_page(own_site, "/new")
    page.set_input_files("#file", table(tmp_path / f"{EVIL}.csv", ["text", "label"], sentences(900, 5)))
    page.get_by_label("Name", exact=True).fill("long")
    page.locator("summary", has_text="More settings").click()
    page.get_by_label("Epochs").fill("1000")
    expect(page.locator("#facts")).to_contain_text("Cross-entropy")
    page.get_by_role("button", name="Train").click()
    page.wait_for_url("**/jobs/*")
    expect(page.locator("#log")).to_contain_text("Epoch 2 of 1000", timeout=WAIT)
    expect(page.locator("#score svg")).to_be_visible()
    expect(page.locator("#loss svg")).to_be_visible()
    expect(page.locator("#left")).to_contain_text("left")
    page.reload()  # the curves are there again, and go on
    expect(page.locator("#score svg")).to_be_visible()
    page.get_by_role("button", name="Stop and keep the best").click()
    expect(page.locator("#state")).to_have_text("done", timeout=WAIT)
    expect(page.locator("#log")).to_contain_text("the best epoch so far becomes the task")
    assert "Ctrl-C" not in page.locator("#log").inner_text()
    assert page.locator("#share").get_attribute("value") == "1"
    assert own_site.world.store.versions("long") == [1]
    assert page.locator("img[src=x]").count() == 0
    expect(page.locator(".lead")).to_contain_text(EVIL)


# Improve


def test_likely_errors_are_corrected_with_enter_and_kept_with_s(
    own_site: Site, worker: Worker, open_page: Open, tmp_path: Path
) -> None:
    rows = [list(each) for each in sentences(90, 6, known=6)]
    for i in (4, 31, 58):
        rows[i][1] = "tool" if rows[i][1] != "tool" else "beast"
    id = upload(own_site, table(tmp_path / "things.csv", ["text", "label"], rows))
    settings = {"name": "things", "method": "head"}
    job = Asker(own_site.url).post("/v1/jobs", {"file": id, "settings": settings, "keep_data": True}).json
    page = open_page(own_site, f"/jobs/{job['id']}")
    expect(page.locator("#state")).to_have_text("done", timeout=WAIT)
    page.goto(f"{own_site.url}/improve/things")
    page.get_by_role("tab", name="Likely label errors").click()
    page.get_by_role("button", name="Look for them").click()
    expect(page.locator("#card")).to_be_visible(timeout=WAIT)
    page.keyboard.press("Enter")
    if page.locator("#done-rows li").count() > 1:
        page.keyboard.press("s")
    expect(page.locator("#count")).to_have_text("1 corrected")


def test_a_task_whose_data_was_not_kept_asks_for_it_and_other_kinds_say_the_command(
    own_site: Site, open_page: Open
) -> None:
    page = open_page(own_site, "/improve/words")
    expect(page.get_by_text("It was not kept here")).to_be_visible()
    assert faults(page) == []
    page.goto(f"{own_site.url}/improve/tags")
    expect(page.locator("pre")).to_contain_text("adaptree improve tags")


def test_numbers_are_typed(own_site: Site, open_page: Open, tmp_path: Path) -> None:
    page = open_page(own_site, "/improve/number")
    page.set_input_files("#pool", table(tmp_path / "new.csv", ["text"], [(text,) for text, _ in sentences(30, 7)]))
    expect(page.locator("#number")).to_be_visible(timeout=WAIT)
    page.locator("#number").fill("2.5")
    page.keyboard.press("Enter")
    expect(page.locator("#count")).to_have_text("1 new label")
    expect(page.locator("#at")).to_contain_text("2 of 20")


def test_the_pages_fit_a_phone_and_are_accessible(own_site: Site, open_page: Open, tmp_path: Path) -> None:
    def check() -> None:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert (faults(page), sideways(page)) == ([], 0), (page.url, scheme)
            photograph(page)

    page = open_page(own_site, "/new", viewport=PHONE)
    check()
    page.set_input_files("#file", table(tmp_path / "things.csv", ["text", "label"], sentences(30, 8)))
    expect(page.locator("#facts")).to_contain_text("30")
    page.locator("summary", has_text="More settings").click()
    page.locator("summary", has_text="command line").click()
    check()
    page.get_by_role("button", name="Train").click()
    page.wait_for_url("**/jobs/*")
    expect(page.locator("#log")).to_contain_text("Queued")
    check()
    page.goto(f"{own_site.url}/jobs")
    check()
    page.goto(f"{own_site.url}/improve/words")
    check()
    page.set_input_files("#pool", table(tmp_path / "new.csv", ["text"], [(text,) for text, _ in sentences(40, 7)]))
    expect(page.locator("#card")).to_be_visible(timeout=WAIT)
    check()


# Tenants and hostile requests


def test_tenants_see_nothing_of_each_other(own_keyed_site: Site, tmp_path: Path) -> None:
    file = table(tmp_path / "things.csv", ["text", "label"], sentences(30, 5))
    acme, other = (Asker(own_keyed_site.url, own_keyed_site.keys[name]) for name in ("trainer", "acme"))
    id = upload(own_keyed_site, file, "trainer")
    assert acme.get(f"/new/{id}/rows").status == 200
    job = acme.post("/v1/jobs", {"file": id, "settings": {"name": "things"}}).json
    assert acme.get(f"/jobs/{job['id']}", headers={"Accept": "text/html"}).status == 200
    assert other.get("/new").status == 403  # it may predict, not train
    admin = Asker(own_keyed_site.url, own_keyed_site.keys["admin"])
    made = admin.post("/v1/jobs", {"file": id, "settings": {"name": "x"}})
    assert made.status in (202, 404)
    for path in ("/improve/other/reviews", "/improve/nothing"):
        assert acme.get(path).error["code"] == "task_not_found"
    assert acme.post("/improve/other/reviews/choose", {"file": id}).status == 404
    assert acme.post("/improve/reviews/choose", {"file": "0" * 16}).error["code"] == "file_not_found"
    assert b"other" not in acme.get("/jobs", headers={"Accept": "text/html"}).body.replace(b"other-", b"")


def test_labels_that_are_none_and_rows_that_are_not_there_are_refused(own_site: Site, tmp_path: Path) -> None:
    ask, rows = Asker(own_site.url), sentences(24, 1)
    data = upload(
        own_site,
        table(tmp_path / "words.csv", ["text", "label"], [(text, "ab"[i % 2]) for i, (text, _) in enumerate(rows)]),
    )
    pool = upload(own_site, table(tmp_path / "new.csv", ["text"], [(text,) for text, _ in sentences(10, 2)]))
    sent = {"file": pool, "data": data}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"2": "c"}, "no label 'c'"), ({"99": "a"}, "not in the file"), ({"2": ["a", "b"]}, "one label"),
        ({}, "no new label"), ({"x": "a"}, "numbers"),
    ]  # fmt: skip
    for labels, why in wrong:
        found = ask.post("/improve/words/train", {**sent, "labels": labels})
        assert found.status == 422, labels
        assert why in found.json["error"]["message"]
    lost = ask.post("/improve/words/train", {"data": data, "labels": {"2": "a"}})
    assert "not here any more" in lost.json["error"]["message"]  # and not taken for rows of the data
    assert ask.post("/improve/words/take", {}).status == 409
    made = ask.post("/improve/words/train", {**sent, "labels": {"2": "a"}, "corrections": {"3": "a"}})
    assert made.status == 202
    assert made.json["name"] == "words-next"
    assert "split" not in made.json["settings"]  # it is not the data that the version was trained on
    assert "already" in ask.post("/improve/words/train", {**sent, "labels": {"2": "a"}}).json["error"]["message"]
    jobs = Jobs(own_site.world.store)
    assert ask.post("/improve/words/discard", {}).status == 200
    assert jobs.get(made.json["id"]).state == "cancelled"
    assert ask.post("/improve/words/discard", {}).status == 409


def test_a_large_file_is_read_in_a_process_of_its_own_and_its_errors_come_back(
    own_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaptree.serve.web.improve.SMALL", 10)
    ask = Asker(own_site.url)
    pool = upload(own_site, table(tmp_path / "new.csv", ["text"], [(text,) for text, _ in sentences(30, 2)]))
    found = ask.post("/improve/words/choose", {"file": pool, "rows": 5}, timeout=120)
    assert (found.status, len(found.json["offered"])) == (200, 5)
    other = upload(own_site, table(tmp_path / "other.csv", ["text", "label"], [("a b", "a"), ("b c", "b")]))
    refused = ask.post("/improve/words/choose", {"file": other}, timeout=120)
    assert refused.status == 422
    assert "no row to label: 2 labelled" in refused.json["error"]["message"]


def test_a_task_that_has_a_candidates_name_is_left_alone(own_site: Site) -> None:
    store = own_site.world.store
    task = store.get("words")
    from dataclasses import replace

    from adaptree.tasks.task import Task

    store.add(Task(replace(task.record, name="words-next", version=0), task.tensors))
    assert improving.candidate(store, Jobs(store), "words", "") is None
    with pytest.raises(improving.UsageError, match="words-next"):
        improving.check_free(store, Jobs(store), "words", "")


def test_several_labels_and_lists_are_written_as_the_data_has_them(own_site: Site, tmp_path: Path) -> None:
    import adaptree as at

    rows = [
        {"text": text, "label": [label, "seen"] if i % 2 else [label]}
        for i, (text, label) in enumerate(sentences(30, 1))
    ]
    data, pool = tmp_path / "data.jsonl", tmp_path / "new.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pool.write_text(json.dumps({"text": "a new lion"}) + "\n")
    record = at.train(data, base=own_site.world.base, method="head", name="several").task.record
    content, ending, options = improving.compose(
        record, data, improving.settings_of(record, None), pool, {1: ["beast", "seen"]}, {2: ["tool"]}
    )
    made = [json.loads(line) for line in content.decode().splitlines()]
    assert ending == ".jsonl"
    assert options["split"] == improving.SPLIT
    assert made[-1] == {"text": "a new lion", "label": ["beast", "seen"], improving.SPLIT: "train"}
    assert made[1]["label"] == ["tool"]
    held = [row[improving.SPLIT] for row in made].count("validation")
    assert held == record.data["validation"]

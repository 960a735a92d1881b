"""The site of a store: everything is in it, it is whole or not there, and nothing in it can run but our own scripts.

In a real browser it works from a file, on a phone, by keyboard, light and dark.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import torch

from adaptree import api
from adaptree.cli import main
from adaptree.errors import StoreError
from adaptree.hub import pages, site
from adaptree.tasks.record import Record
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from tests import browser

OLD_STORE = Path(__file__).parent.parent / "compat" / "store-0.1" / "store"
EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\"'`--></title>"
TAGS = {
    "html", "head", "meta", "title", "link", "script", "body", "header", "main", "nav", "h1", "h2", "h3", "p", "ul",
    "ol", "li", "a", "img", "div", "span", "table", "tr", "th", "td", "code", "b", "br", "pre", "dl", "dt", "dd",
    "form", "label", "input", "select", "option", "datalist", "button", "noscript",
}  # fmt: skip


def task(name: str = "reviews", **changes: Any) -> Task:
    values: dict[str, Any] = {
        "kind": "classify", "labels": ["bad", "good"], "method": "houlsby(size=2)", "base": {"name": "minilm"},
        "metrics": {"validation": {"accuracy": 0.8}, "test": {"accuracy": 0.9, "macro_f1": 0.7}},
        "intervals": {"test": {"accuracy": [0.85, 0.95]}}, "baselines": {"majority": {"accuracy": 0.5}},
        "data": {"name": "reviews.csv", "train": 80, "test": 20}, "settings": {"metric": "accuracy", "lr": 0.001},
        "parameters": {"trained": 12, "base": 2400}, "trained_percent": 0.5, **changes,
    }  # fmt: skip
    return Task(Record(name=name, **values), {"head.bias": torch.ones(8)})


class Page(HTMLParser):
    """A page's text, links, files and ids; every element and attribute must be one that cannot run anything."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = ""
        self.files: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.pictures: list[str] = []
        self._script = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        found = {name: value or "" for name, value in attrs}
        assert not [name for name in found if name.startswith("on") or name == "style"], found
        if tag == "meta" and found.get("http-equiv"):
            assert (found["http-equiv"], found["content"]) == ("Content-Security-Policy", pages.POLICY)
        if tag == "img":
            assert found["src"].startswith("data:image/svg+xml;base64,")
            self.pictures.append(found["alt"])
        elif tag == "a":
            self.links.append(found["href"])
        elif source := found.get("src") or found.get("href"):
            self.files.append(source)
        self.ids += [found["id"]] if "id" in found else []
        self._script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        assert not self._script, "a script is a file of its own"
        self.text += data


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of a site's list, by the tasks' names."""
    text = (folder / "tasks.js").read_text(encoding="utf-8")
    found = json.loads(text.removeprefix("window.tasks = ").rstrip().removesuffix(";"))
    listed = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    return {row["name"]: row for row in listed}


def page_of(folder: Path, name: str) -> Page:
    return Page(folder / "tasks" / f"{name}.html")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of a store with tasks of every kind and method, compositions, two versions and figures."""
    place = tmp_path_factory.mktemp("every")
    shutil.copytree(OLD_STORE, place / "store")
    return api.site(Store(place / "store"), place / "site", title="Team tasks").folder


# What is in it.


def test_every_task_has_a_row_and_a_page(every_kind: Path) -> None:
    names = Store(every_kind.parent / "store").names()
    assert list(rows(every_kind)) == names
    assert {p.relative_to(every_kind / "tasks").as_posix() for p in (every_kind / "tasks").rglob("*.html")} == {
        f"{name}.html" for name in names
    }
    found = rows(every_kind)["lang/xx"]
    assert (found["kind"], found["method"], found["languages"], found["lower"]) == ("mlm", "pfeiffer", ["xx"], True)
    assert rows(every_kind)["on-language"]["languages"] == ["xx"]
    assert rows(every_kind)["words"]["versions"] == 2
    assert "Team tasks" in Page(every_kind / "index.html").text


def test_links_and_files_of_every_page_exist(every_kind: Path) -> None:
    for path in [every_kind / "index.html", *(every_kind / "tasks").rglob("*.html")]:
        page = Page(path)
        for target in [*page.files, *page.links]:
            if target.startswith("data:"):
                continue
            file, _, anchor = unquote(target).partition("#")
            found = (path.parent / file).resolve() if file else path
            assert found.is_file(), f"{path.name}: {target}"
            assert found.is_relative_to(every_kind)
            assert not anchor or anchor in Page(found).ids
        assert len(page.ids) == len(set(page.ids)), path.name


def test_a_page_has_card_figures_commands_lineage_and_versions(every_kind: Path) -> None:
    fused = page_of(every_kind, "fused")
    assert fused.pictures == ["Confusion matrix", "How often it is right, by how sure it is", "Loss and score by epoch"]
    for text in ("How good", "95 % interval", "TF-IDF, linear", "Where it goes wrong", "How it was trained", "lr: 0.02",
                 "adaptree predict fused@1", "adaptree evaluate fused@1 test.csv", 'at.Store()["fused@1"]',
                 "adaptree export fused@1 fused.adaptree"):  # fmt: skip
        assert text in fused.text, text
    assert {"a.html", "b.html"} <= {Path(link).name for link in fused.links}
    a = page_of(every_kind, "a")
    assert "What comes from it" in a.text
    assert {"fused.html", "mean.html", "stacked.html", "moved.html"} <= {Path(link).name for link in a.links}
    assert "../../tasks/stacked.html" in page_of(every_kind, "lang/xx").links
    words = page_of(every_kind, "words")
    assert re.search(r"Versions\s*version.*2houlsby.*1houlsby", words.text, re.DOTALL)


def test_scores_stand_with_interval_baselines_and_price(store: Store, tmp_path: Path) -> None:
    store.add(task())
    shown = page_of(api.site(store, tmp_path / "site").folder, "reviews").text
    for text in ("accuracy, test", "0.9000", "0.8500 to 0.9500", "majority 0.5000", "12", "0.50 % of the base"):
        assert text in shown, text


def test_tags_and_notes_are_shown(store: Store, tmp_path: Path) -> None:
    store.add(task())
    store.add(task(labels=["x", "y"]))
    store.write_beside("reviews", "stable.tag", "1")
    store.write_beside("reviews", "latest.tag", "2")
    store.append_beside("reviews", "1.notes", "2026-11-17T10:00:00+00:00 the labels were <b>checked</b>")
    folder = api.site(store, tmp_path / "site").folder
    assert rows(folder)["reviews"]["tags"] == ["latest"]
    text = page_of(folder, "reviews").text
    assert "reviews@2 latest" in text
    assert "1 stable" in text
    assert "2026-11-17 the labels were <b>checked</b>" in text


def test_commands_name_the_url_of_a_shared_store(store: Store, tmp_path: Path) -> None:
    store.add(task("lang/qu"))
    text = page_of(api.site(store, tmp_path / "site", url="s3://a b/c$(x)").folder, "lang/qu").text
    assert "adaptree pull 's3://a b/c$(x)' lang/qu@1\n" in text + "\n"
    assert "--store 's3://a b/c$(x)'" in text
    assert 'at.Store("s3://a b/c$(x)")["lang/qu@1"]' in text
    assert "adaptree export lang/qu@1 lang-qu.adaptree" in text


def test_an_empty_store_is_a_site_without_tasks(store: Store, tmp_path: Path) -> None:
    made = api.site(store, tmp_path / "site")
    assert (made.tasks, rows(made.folder)) == (0, {})
    assert not store.path.exists()


# Damage, and hostile tasks.


def test_damaged_tasks_are_listed_as_damaged_and_do_not_stop_it(store: Store, tmp_path: Path) -> None:
    for name in ("good", "torn", "cut"):
        store.add(task(name))
    (store.path_of("torn") / "task.json").write_text("{}")
    (store.path_of("cut") / "task.safetensors").write_bytes(b"")
    made = api.site(store, tmp_path / "site")
    assert [each.name for each in made.damaged] == ["cut", "torn"]
    assert "problem" not in {key for key, value in rows(made.folder)["good"].items() if value is not None}
    assert "task 'torn@1' is damaged" in rows(made.folder)["torn"]["problem"]
    assert "task 'cut@1' is damaged" in page_of(made.folder, "cut").text


@pytest.mark.parametrize(
    "changes",
    [
        {"intervals": {"test": {"accuracy": [0.1]}}},
        {"extra": {"insight": {"confusion": 3, "mistakes": "x"}}},
        {"extra": {"rebased": {"reference": 3}}},
        {"extra": {"on": "stack((", "fuses": "fuse(../../x, b)", "made_of": "nothing@@"}},
        {"examples": [{"input": 3, "gold": None}]},
        {"extra": {"joint": {"tasks": 3}}, "kind": "no-such-kind"},
    ],
)
def test_a_record_with_odd_values_does_not_stop_it(changes: dict[str, Any], store: Store, tmp_path: Path) -> None:
    store.add(task("good"))
    added = store.add(task("odd"))
    record = Record(**{**vars(added.record), **changes})
    (store.path_of("odd") / "task.json").write_text(json.dumps(record.to_json()))
    folder = api.site(store, tmp_path / "site").folder
    assert set(rows(folder)) == {"good", "odd"}
    assert "odd@1" in page_of(folder, "odd").text


def hostile(store: Store) -> Store:
    """A task whose every text is script."""
    changes: dict[str, Any] = {
        "labels": [EVIL, "javascript:alert(1)", "\u202eabc\x1b[31m"],
        "method": f"houlsby(size=2) {EVIL}",
        "base": {"name": EVIL, "fingerprint": EVIL, "architecture": EVIL},
        "metrics": {"test": {EVIL: 0.5, "accuracy": 0.5}},
        "baselines": {EVIL: {"accuracy": 0.1}},
        "data": {"name": EVIL, "train": 3, "label_counts": {EVIL: 3}},
        "settings": {"metric": "accuracy", EVIL: EVIL},
        "versions": {EVIL: EVIL},
        "created": EVIL,
        "examples": [{"text": EVIL, "label": EVIL}],
        "extra": {"warnings": [EVIL], "on": f"lang/{EVIL}", "made_of": EVIL, "rebased": {"reference": EVIL}},
    }
    store.add(task(**changes))
    store.append_beside("reviews", "1.notes", f"{EVIL} {EVIL}")
    (store.path_of("reviews") / "course.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    return store


def test_script_in_names_labels_texts_and_notes_is_text(store: Store, tmp_path: Path) -> None:
    folder = api.site(hostile(store), tmp_path / "site", title=EVIL).folder
    page, listed = page_of(folder, "reviews"), Page(folder / "index.html")  # these refuse any element that is not ours
    assert page.text.count("<script>window.hacked") >= 8
    assert EVIL in listed.text
    assert rows(folder)["reviews"]["labels"][0].startswith("<script>")
    assert not re.search("[\u202e\x1b]", (folder / "tasks.js").read_text() + page.text)


# Where it is written.


def test_a_second_run_updates_it_and_pages_of_removed_tasks_go(store: Store, tmp_path: Path) -> None:
    for name in ("one", "lang/qu", "two"):
        store.add(task(name))
    folder = tmp_path / "deep" / "site"
    api.site(store, folder)
    (folder / ".git").mkdir()
    (folder / "CNAME").write_text("mine")
    store.remove("lang/qu")
    store.remove("one")
    store.add(task("three"))
    assert api.site(store, folder, title="Other").tasks == 2
    assert set(rows(folder)) == {"two", "three"}
    assert sorted(path.name for path in (folder / "tasks").iterdir()) == ["three.html", "two.html"]
    assert "Other" in Page(folder / "index.html").text
    assert sorted(path.name for path in folder.iterdir()) == [
        ".git", "CNAME", "index.html", "list.js", "page.js", "site.css", "site.json", "tasks", "tasks.js",
    ]  # fmt: skip


def test_a_folder_with_other_files_is_refused(store: Store, tmp_path: Path) -> None:
    store.add(task())
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match=r"mine is not a site, and is not empty \(thesis.tex"):
        api.site(store, folder)
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    api.site(store, folder, force=True)
    assert (folder / "thesis.tex").read_text() == "x"
    assert (folder / "index.html").is_file()
    with pytest.raises(StoreError, match="is not a site, and has a folder 'tasks'"):
        api.site(store, store.path, force=True)
    with pytest.raises(StoreError, match="is a file"):
        api.site(store, folder / "thesis.tex")


def test_an_empty_folder_will_do(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(task())
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert api.site(store, ".").index == tmp_path / "empty" / "index.html"
    assert not (tmp_path / "empty" / ".tmp").exists()


@pytest.mark.parametrize("there", [False, True])
def test_a_run_that_fails_leaves_what_was_there(
    there: bool, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(task("one"))
    if there:
        api.site(store, tmp_path / "site")
    before = {path: path.read_bytes() for path in (tmp_path / "site").rglob("*.*")}
    store.add(task("two"))

    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pages, "list_page", stop)
    with pytest.raises(KeyboardInterrupt):
        api.site(store, tmp_path / "site")
    assert {path: path.read_bytes() for path in (tmp_path / "site").rglob("*.*")} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site", "store"][not there :]


def test_a_run_stopped_while_files_move_is_finished_by_the_next(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    store.add(task("one"))
    moved: list[object] = []

    def replace(source: Path, target: Path) -> None:
        if len(moved) == 2:
            raise OSError(28, "No space left on device")
        moved.append(source.rename(target))

    monkeypatch.setattr(site.os, "replace", replace)
    with pytest.raises(StoreError, match="No space left on device"):
        api.site(store, tmp_path / "site")
    monkeypatch.undo()
    assert api.site(store, tmp_path / "site").tasks == 1
    assert "one" in rows(tmp_path / "site")


# The command.


def test_the_command_prints_the_page_to_open(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(task("good"))
    store.add(task("torn"))
    (store.path_of("torn") / "task.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert main(["site", "pages", "--store", str(store.path), "--title", "Ours"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{tmp_path / 'pages' / 'index.html'}\n"
    assert "2 tasks" in shown.err
    assert "torn@1' is damaged" in shown.err
    assert main(["site", "pages", "--store", str(store.path), "--format", "json", "-q"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["damaged"] == ["torn"]
    assert shown.err == ""
    assert main(["site", str(tmp_path), "--store", str(store.path)]) == 1
    assert "is not a site" in capsys.readouterr().err


@pytest.mark.slow
def test_nothing_heavy_is_imported(store: Store, tmp_path: Path) -> None:
    store.add(task())
    code = (
        "import sys; from adaptree.cli import main\n"
        f"assert main(['site', {str(tmp_path / 'site')!r}, '--store', {str(store.path)!r}]) == 0\n"
        "heavy = ('torch', 'transformers', 'sklearn', 'matplotlib', 'scipy')\n"
        "assert not [name for name in heavy if name in sys.modules]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# In a browser.


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if browser.CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'adaptree[dev]'")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=browser.CHROMIUM, args=browser.FLAGS)
        yield opened
        opened.close()


Open = Callable[..., Any]


def expect(target: Any) -> Any:
    """Playwright's assertions, which wait for what a page shows a moment later."""
    from playwright.sync_api import expect as waiting

    return waiting(target)


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Open]:
    """Opens a file in a browser that is offline; whatever it logs, or asks of a network, fails the test at its end."""
    problems: list[str] = []
    contexts = []

    def open_file(path: Path, address: str = "", **options: Any) -> Any:
        context = chromium.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append("a dialog"))
        page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else problems.append(r.url))
        page.goto(path.as_uri() + address)
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert problems == []


LABELS = (["bad", "good"], ["billing", "delivery", "returns"], ["fruit", "tool"])


def many(store: Store, count: int) -> Store:
    """A store of many small tasks, which are the same tensors under records of their own."""
    first = store.add(task("t0"))
    for i in range(1, count):
        changes = {
            "name": f"t{i}",
            "labels": LABELS[i % 3],
            "kind": ("classify", "tag")[i % 2],
            "method": f"{('houlsby', 'lora', 'pfeiffer')[i % 3]}(size={i})",
            "base": {"name": ("minilm", "mpnet")[i % 2]},
            "metrics": {"test": {"accuracy": 0.5 + 0.4 * (i * 7919 % count) / count}},
            "intervals": {},
            "parameters": {"trained": 1000 + i * 31 % 997},
            "created": f"2026-{1 + i % 12:02}-{1 + i % 28:02}T10:00:00",
        }
        record = Record(**{**vars(first.record), **changes})
        folder = store.tasks / f"t{i}" / "1"
        folder.mkdir(parents=True)
        (folder / "task.safetensors").hardlink_to(store.path_of("t0@1") / "task.safetensors")
        (folder / "task.json").write_text(json.dumps(record.to_json()))
    return store


@pytest.fixture(scope="module")
def hundreds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hundreds")
    store = many(Store(place / "store"), 240)
    for name in ("lang/qu", "lang/sw"):
        store.add(task(name, kind="mlm", labels=[], settings={"metric": "perplexity"},
                       metrics={"test": {"perplexity": 7.5}}))  # fmt: skip
    store.write_beside("t7", "stable.tag", "1")
    return api.site(store, place / "site").folder


def shown(page: Any) -> list[str]:
    """The tasks on the page."""
    return [text.split("@")[0] for text in page.locator("#results h2").all_inner_texts()]


@pytest.mark.slow
def test_search_filter_sort_and_pages_in_a_browser(hundreds: Path, open_page: Open) -> None:
    page = open_page(hundreds / "index.html")
    expect(page.locator("#count")).to_have_text("242 tasks")
    assert len(shown(page)) == 50
    assert shown(page)[:4] == ["lang/qu", "lang/sw", "t0", "t1"]
    page.get_by_role("searchbox").press_sequentially("returns mpnet")
    expect(page.locator("#count")).to_have_text("40 of 242 tasks")
    expect(page).to_have_url(re.compile(re.escape("#words=returns+mpnet") + "$"))
    page.get_by_label("Method").select_option("lora")
    expect(page.locator("#count")).to_have_text("40 of 242 tasks")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#count")).to_have_text("242 tasks")
    page.get_by_label("Language").select_option("qu")
    expect(page.locator("#count")).to_have_text("1 of 242 tasks")
    assert shown(page) == ["lang/qu"]
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Label", exact=True).fill("fru")
    expect(page.locator("#count")).to_have_text("80 of 242 tasks")
    page.get_by_label("Label", exact=True).fill("")
    page.get_by_label("Kind").select_option("classify")
    page.get_by_label("Base").select_option("minilm")
    page.get_by_label("Sort by").select_option("score")
    expect(page.locator("#count")).to_have_text("120 of 242 tasks")
    listed = rows(hundreds)
    scores = [listed[name]["score"] for name in shown(page)]
    assert scores == sorted(scores, reverse=True)
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#where")).to_have_text("Page 2 of 3")
    expect(page).to_have_url(re.compile(re.escape("#sort=score&kind=classify&base=minilm&page=2") + "$"))
    second = shown(page)
    assert listed[second[0]]["score"] <= scores[-1]
    page.go_back()
    expect(page.locator("#where")).to_have_text("Page 1 of 3")
    page.get_by_role("searchbox").fill("no such thing")
    expect(page.locator("#count")).to_have_text("No task matches.")
    assert page.locator("#pager").is_hidden()


@pytest.mark.parametrize(
    ("order", "key", "reverse"),
    [("price", "trained", False), ("size", "bytes", False), ("new", "created", True), ("old", "created", False)],
)
def test_orders(order: str, key: str, reverse: bool, hundreds: Path, open_page: Open) -> None:
    page = open_page(hundreds / "index.html", f"#sort={order}&kind=tag")
    values = [rows(hundreds)[name][key] for name in shown(page)]
    assert values == sorted(values, reverse=reverse)


def test_an_address_opens_the_view_that_it_was_copied_from(hundreds: Path, open_page: Open) -> None:
    page = open_page(hundreds / "index.html", "#words=t1&sort=price&kind=tag&page=2")
    assert page.get_by_role("searchbox").input_value() == "t1"
    assert page.get_by_label("Sort by").input_value() == "price"
    expect(page.locator("#where")).to_have_text(re.compile("^Page 2"))
    before = shown(page)
    page.locator("#results a").first.click()
    expect(page.locator("h1")).to_have_text(f"{before[0]}@1")
    page.go_back()
    assert shown(page) == before
    odd = open_page(hundreds / "index.html", "#kind=nothing&sort=x&page=99999&__proto__=1")
    expect(odd.locator("#where")).to_have_text("Page 5 of 5")
    assert odd.get_by_label("Kind").input_value() == ""


def test_the_list_is_worked_by_keyboard(hundreds: Path, open_page: Open) -> None:
    page = open_page(hundreds / "index.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "lang/qu"
    page.keyboard.press("/")
    page.keyboard.type("stable")
    assert shown(page) == ["t7"]
    expect(page.locator("#results .tag")).to_have_text("stable")
    page.keyboard.press("Escape")
    expect(page.locator("#count")).to_have_text("242 tasks")


def test_the_copy_button_copies_the_command(every_kind: Path, open_page: Open) -> None:
    page = open_page(every_kind / "tasks" / "fused.html", permissions=["clipboard-read", "clipboard-write"])
    button = page.get_by_role("button", name="Copy").first
    button.click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == 'adaptree predict fused@1 "a text"'
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.get_by_role("button", name="Copy").nth(2).click()
    page.get_by_role("button", name="Copied").first.wait_for()


def test_dark_follows_the_system_and_the_switch(every_kind: Path, open_page: Open) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    dark, light = "rgb(20, 24, 29)", "rgb(255, 255, 255)"
    page = open_page(every_kind / "index.html", color_scheme="dark")
    assert page.evaluate(ground) == dark
    page.get_by_role("button", name="Light").click()
    assert page.evaluate(ground) == light
    page.goto((every_kind / "tasks" / "fused.html").as_uri())
    assert page.evaluate(ground) == light
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(ground) == dark
    assert open_page(every_kind / "index.html", color_scheme="light").evaluate(ground) == light


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_enough(scheme: Any, every_kind: Path, open_page: Open) -> None:
    """Every colour of text stands out from its ground by 4.5 to 1 (WCAG AA)."""
    for path in ("index.html", "tasks/fused.html"):
        page = open_page(every_kind / path, color_scheme=scheme)
        assert page.evaluate(CONTRAST) >= 4.5


CONTRAST = """() => {
  const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255).map(
    (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (e) => { for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor; if (!/, 0\\)$/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
  let worst = 21;
  for (const e of document.querySelectorAll('body *')) {
    const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!text || e.disabled || !e.offsetParent) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
    worst = Math.min(worst, (a + 0.05) / (b + 0.05));
  }
  return worst;
}"""


@pytest.mark.slow
def test_a_phone_scrolls_no_page_sideways(every_kind: Path, open_page: Open) -> None:
    page = open_page(every_kind / "index.html", viewport={"width": 390, "height": 844})
    for path in ("index.html", *(f"tasks/{name}.html" for name in ("answers", "fused", "lang/xx", "pairs", "spans"))):
        page.goto((every_kind / path).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_a_phone_scrolls_no_certificate_sideways(store: Store, tmp_path: Path, open_page: Open) -> None:
    store.add(task("reviews"))
    api.verify(store, certificate=tmp_path / "certificate.html")
    page = open_page(tmp_path / "certificate.html", viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_everything_has_a_name_for_those_who_listen(every_kind: Path, open_page: Open) -> None:
    page = open_page(every_kind / "index.html")
    for path in ("index.html", "tasks/fused.html", "tasks/lang/xx.html"):
        page.goto((every_kind / path).as_uri())
        assert page.locator("h1").count() == 1
        assert page.locator("main").count() == 1
        for field in page.locator("input, select").all():
            assert field.evaluate("e => e.labels.length") == 1
        assert all(text.strip() for text in page.locator("button:visible, a:visible").all_inner_texts())
        assert all(each.get_attribute("alt") for each in page.locator("img").all())
        levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((e) => Number(e.tagName[1]))")
        assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


def test_hostile_texts_are_shown_and_do_not_run(store: Store, tmp_path: Path, open_page: Open) -> None:
    folder = api.site(hostile(store), tmp_path / "site", title=EVIL).folder
    page = open_page(folder / "index.html")
    assert "<script>" in page.locator("#results").inner_text()
    page.get_by_role("searchbox").fill("<script>")
    page.get_by_label("Base").select_option(index=1)
    assert shown(page) == ["reviews"]
    assert page.evaluate("window.hacked") is None
    page.locator("#results a").click()
    expect(page.locator("h1")).to_have_text("reviews@1")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main [onerror]").count() == 0


def test_a_damaged_task_is_found_in_the_list(store: Store, tmp_path: Path, open_page: Open) -> None:
    store.add(task("good"))
    store.add(task("torn"))
    (store.path_of("torn") / "task.json").write_text("{}")
    page = open_page(api.site(store, tmp_path / "site").index, "#words=damaged&sort=score")
    assert shown(page) == ["torn"]
    assert "task 'torn@1' is damaged" in page.locator("#results").inner_text()
    page.locator("#results a").click()
    assert "task 'torn@1' is damaged" in page.get_by_role("alert").inner_text()


@pytest.mark.slow
def test_five_thousand_tasks_are_written_and_searched_quickly(tmp_path: Path, open_page: Open) -> None:
    """Times are of the processor, for this process and for the page's thread: other work does not change them."""
    store = many(Store(tmp_path / "store"), 5000)
    begin = time.process_time()
    folder = api.site(store, tmp_path / "site").folder
    took = time.process_time() - begin
    assert took < 40, f"{took:.1f} s"
    page = open_page(folder / "index.html")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def used() -> float:
        """Seconds that the page's thread has computed."""
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))

    begin = used()
    page.reload()
    expect(page.locator("#where")).to_have_text("Page 1 of 100")
    opened = used() - begin
    assert 0 < opened < 3, f"{opened:.2f} s"
    assert page.locator("#results li").count() == 50
    letters = "returns lora"
    begin = used()
    page.get_by_role("searchbox").press_sequentially(letters)
    expect(page.locator("#count")).to_have_text(re.compile("of 5,000 tasks$"))
    typed = (used() - begin) / len(letters)
    assert 0 < typed < 0.1, f"{1000 * typed:.0f} ms a letter"
    print(f"\n5,000 tasks: written in {took:.1f} s, opened in {opened:.2f} s, {1000 * typed:.1f} ms a letter")

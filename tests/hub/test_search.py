"""Tasks are found by what their records say: by words, and by meaning."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import adaptree as at
from adaptree.cli import main
from adaptree.errors import UsageError
from adaptree.hub import search as module
from adaptree.hub.search import Hit, search, tokens
from adaptree.tasks.store import Store
from tests import postgres
from tests.bases import tiny_base
from tests.store.test_local import task


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ADAPTREE_INDEX", raising=False)


def fill(store: Store) -> Store:
    """A shop's tasks, and a note and a tag."""
    tasks: dict[str, dict[str, Any]] = {
        "reviews": {"labels": ["positive", "negative"], "examples": [{"text": "great phone", "label": "positive"}]},
        "sms-spam": {"labels": ["ham", "spam"], "data": {"name": "messages.csv"}},
        "tickets": {"labels": ["billing", "delivery", "praise"], "examples": [{"text": "my parcel is late"}]},
        "lang/de": {"kind": "mlm", "labels": [], "method": "pfeiffer(size=48)"},
        "mood": {"labels": ["glücklich", "traurig", "ＷＩＤＥ"], "base": {"name": "gbert"}},
        "news": {"labels": ["体育新闻", "科技"]},
    }
    for name, values in tasks.items():
        store.add(task(name, **values))
    store.append_beside("tickets", "1.notes", "2026-01-02T03:04:05+00:00 for the support desk, made from spam reports")
    store.write_beside("reviews", "stable.tag", "1")
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return fill(Store(tmp_path / "store"))


def names(hits: list[Hit]) -> list[str]:
    return [hit.summary.name for hit in hits]


# by words


@pytest.mark.parametrize(
    ("words", "expected", "why"),
    [
        ("spam", ["sms-spam", "tickets"], "name: spam, labels: spam"),
        ("SPAM!", ["sms-spam", "tickets"], "name: spam, labels: spam"),
        ("review", ["reviews"], "name: reviews"),
        ("phone", ["reviews"], "examples: phone"),
        ("messages.csv", ["sms-spam"], "data: messages csv"),
        ("mlm", ["lang/de"], "kind: mlm"),
        ("pfeiffer", ["lang/de"], "method: pfeiffer"),
        ("gbert", ["mood"], "base: gbert"),
        ("stable", ["reviews"], "tags: stable"),
        ("desk", ["tickets"], "notes: desk"),
        ("GLÜCKLICH", ["mood"], "labels: glücklich"),
        ("wide", ["mood"], "labels: wide"),
        ("新闻", ["news"], "labels: 体育新闻"),
        ("nothing-such", [], ""),
        ("examples", [], ""),
    ],
)
def test_every_part_of_a_record_is_searched_and_the_reason_given(
    store: Store, words: str, expected: list[str], why: str
) -> None:
    found = search(words, store)
    assert names(found) == expected
    assert (found[0].why if found else "") == why


def test_rare_words_and_more_words_count_more(store: Store) -> None:
    assert names(search("parcel houlsby", store))[0] == "tickets"
    assert names(search("spam ham", store))[0] == "sms-spam"
    matches = [hit.match for hit in search("houlsby parcel spam", store)]
    assert matches == sorted(matches, reverse=True)
    assert len(search("houlsby", store, limit=3)) == 3


def test_a_whole_word_counts_more_than_a_part(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.add(task("a", labels=["phones"]))
    store.add(task("b", labels=["phone"]))
    assert names(search("phone", store)) == ["b", "a"]


def test_nothing_to_search_for_is_wrong_usage(store: Store) -> None:
    with pytest.raises(UsageError, match="adaptree search WORDS"):
        search("?!", store)
    assert search("x", Store(store.path.with_name("empty"))) == []


def test_what_is_new_changed_or_removed_is_found_so(store: Store) -> None:
    assert names(search("parcel", store)) == ["tickets"]
    store.add(task("post", labels=["parcel"]))
    store.remove("tickets")
    assert names(search("parcel", store)) == ["post"]
    store.append_beside("post", "1.notes", "2026-01-02T03:04:05+00:00 urgent")
    assert names(search("urgent", store)) == ["post"]
    (store.path_of("post") / "task.json").write_text("{")
    assert search("parcel", store) == []


def test_words_are_compared_without_case_accents_of_width_and_punctuation() -> None:
    assert tokens("Sms-Spam_2 (ｆｕｌｌ), Straße") == ["sms", "spam", "2", "full", "strasse"]


def test_word_search_imports_nothing_heavy(store: Store) -> None:
    code = (
        "import sys; from adaptree.cli import main; assert main(sys.argv[1:]) == 0; "
        "assert not {'torch', 'transformers', 'sklearn', 'pyarrow', 'matplotlib', 'scipy'} & set(sys.modules)"
    )
    for words in (["search", "spam"], ["list", "--limit", "2"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words, "--store", str(store.path)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "sms-spam@1" in done.stdout or words[0] == "list"


def test_the_same_is_found_through_postgresql(tmp_path: Path) -> None:
    if reason := postgres.why_not():
        pytest.skip(reason)
    with postgres.server() as url:
        store = fill(Store(tmp_path / "other", index=url))
        for _ in range(2):
            assert names(search("spam", store)) == ["sms-spam", "tickets"]
        base = at.load_base(tiny_base(tmp_path / "base"))
        first = search("spam", store, meaning=True, base=base)
        assert search("spam", store, meaning=True, base=base) == first
        assert len(store.index.vectors(base.fingerprint)) == 6


# by meaning


def test_vectors_are_kept_and_made_only_for_what_is_new(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = at.load_base(tiny_base(tmp_path / "base"))
    made: list[int] = []
    real = module._directions

    def spy(base: Any, texts: Any) -> Any:
        made.append(len(texts))
        return real(base, texts)

    monkeypatch.setattr(module, "_directions", spy)
    first = search("apple", store, meaning=True, base=base, limit=2)
    assert made[:2] == [1, 6]
    made.clear()
    assert search("apple", store, meaning=True, base=base, limit=2) == first
    assert made[:1] == [1]
    assert len(made) == 2, "the words, and the parts of what was found"
    made.clear()
    store.add(task("fruit", labels=["apple", "pear"]))
    store.remove("news")
    search("apple", store, meaning=True, base=base)
    assert made[:2] == [1, 1]
    assert len(store.index.vectors(base.fingerprint)) == 6
    other = at.load_base(tiny_base(tmp_path / "other", seed=5))
    search("apple", store, meaning=True, base=other)
    assert len(store.index.vectors(base.fingerprint)) == 6, "another base's do not replace them"


def test_the_text_that_says_the_same_is_nearest(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.add(task("fruit", labels=["apple", "pear"]))
    store.add(task("tools", labels=["saw", "hammer"]))
    base = at.load_base(tiny_base(tmp_path / "base"))
    for words, name in (("fruit. apple, pear", "fruit"), ("tools. saw, hammer", "tools")):
        hit = search(words, store, meaning=True, base=base)[0]
        assert hit.summary.name == name
        assert hit.match == pytest.approx(1, abs=1e-5)


@pytest.mark.real
def test_a_task_is_found_by_what_it_is_about_without_a_word_in_common(store: Store) -> None:
    assert names(search("customer feedback on smartphones", store, meaning=True))[0] == "reviews"
    late = search("complaints about late shipments", store, meaning=True)[0]
    assert (late.summary.name, late.why) == ("tickets", "examples: my parcel is late")
    assert names(search("unwanted advertising texts", store, meaning=True))[0] == "sms-spam"


# the command


def test_the_command_prints_the_match_the_reason_and_the_price(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", "spam", "reports", "--store", str(store.path)]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^ *(\S+@1) ", out, re.MULTILINE) == ["tickets@1", "sms-spam@1"]
    for expected in ("why", "notes: spam reports", "trained", "% of base", "size", "accuracy"):
        assert expected in out
    assert main(["search", "spam", "--store", str(store.path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found] == ["sms-spam", "tickets"]
    assert {"match", "why", "score", "trained", "trained_percent", "bytes"} <= set(found[0])
    assert main(["search", "zebra", "--store", str(store.path)]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "nothing found for 'zebra'.  Try --meaning, or adaptree list\n")
    assert main(["search", "--store", str(store.path)]) == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_narrow_terminal_gets_fewer_columns_and_whole_words(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["search", "spam", "reports", "--store", str(store.path)]) == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert max(map(len, shown.splitlines())) <= 80
    for expected in ("sms-spam@1", "tickets@1", "notes: spam reports", "score", "size"):
        assert expected in shown


def test_the_command_finds_by_meaning(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = tiny_base(tmp_path / "base")
    command = ["search", "ham", "spam", "--meaning", "--base", str(base), "--limit", "3", "--store", str(store.path)]
    assert main([*command, "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4

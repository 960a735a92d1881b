"""A comparison: the same rows for all, chosen on validation only, nothing run twice, a table and a figure."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptree.analysis.compare import cells, choose, compare, pareto, report
from adaptree.analysis.compare.rows import sample
from adaptree.errors import DataError, MethodError, UsageError
from adaptree.kinds.reading import open_data
from adaptree.reports.tradeoff import tradeoff
from adaptree.tasks.store import Store
from tests import browser
from tests.bases import FILLER, tiny_base, words_csv

TWO = ["houlsby:4", "pfeiffer:2"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("compared")
    tiny_base(root / "base")
    words_csv(root / "words.csv", 90)
    words_csv(root / "test.csv", 30, seed=5)
    return root


@pytest.fixture
def run(world: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def start(*methods: str, **changes: Any) -> dict[str, Any]:
        options = {"base": world / "base", "out": tmp_path / "out", "seeds": 2, "epochs": [1], **changes}
        return compare(world / "words.csv", methods=methods or TWO, **options)

    return start


def test_everything_is_written_and_nothing_runs_twice(
    run: Callable[..., dict[str, Any]], ran: list[str], world: Path, tmp_path: Path
) -> None:
    result = run(test=world / "test.csv", command="adaptree compare words.csv")
    assert len(ran) == 4
    out = tmp_path / "out"
    for name in ("choices.json", "results.json", "table.md", "figure.png", "figure.svg"):
        assert (out / name).stat().st_size > 200, name
    assert json.loads((out / "results.json").read_text()) == result
    houlsby, pfeiffer = result["methods"]
    assert pfeiffer["trained"] == 2 * (2 * 2 * 32 + 32 + 2) + 3 * 33
    assert houlsby["seeds"] == 2
    for row in (houlsby, pfeiffer):
        values = row["scores"]["test"]["values"]
        assert row["scores"]["test"]["mean"] == pytest.approx(sum(values) / 2)
        assert row["scores"]["test"]["spread"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
        assert row["bytes"] > 4 * row["trained"]
    page = (out / "table.md").read_text()
    for word in ("houlsby:4", "pfeiffer:2", "TF-IDF", "majority", "adaptree compare words.csv", "torch", "± "):
        assert word in page
    again = run(test=world / "test.csv", command="adaptree compare words.csv")
    assert len(ran) == 4
    assert again["methods"] == result["methods"]
    run("houlsby:4", "pfeiffer:2", "pfeiffer:3")
    assert ran[4:] == ["pfeiffer(size=3)"] * 2
    run(*TWO, seeds=3)
    assert len(ran) == 8
    run(*TWO, batch_size=16)
    assert len(ran) == 12


def test_other_data_is_another_comparison(
    run: Callable[..., dict[str, Any]], ran: list[str], world: Path, tmp_path: Path
) -> None:
    run("pfeiffer:2", seeds=1)
    other = words_csv(tmp_path / "other.csv", 60, seed=8)
    compare(other, methods=["pfeiffer:2"], base=world / "base", out=tmp_path / "out", seeds=1, epochs=[1])
    assert len(ran) == 2


def test_every_seed_and_method_has_the_same_rows(
    run: Callable[..., dict[str, Any]], ran: list[str], tmp_path: Path
) -> None:
    result = run()
    store = Store(tmp_path / "out" / "store")
    records = [store[name].record for name in store]
    assert len(records) == 4
    assert {record.data["digest"] for record in records} == {result["data"]["digest"]}
    assert {(record.data["train"], record.data["validation"]) for record in records} == {(72, 18)}
    assert sorted({record.seed for record in records}) == [0, 1]


def test_a_failed_method_does_not_stop_the_others(
    run: Callable[..., dict[str, Any]], ran: list[str], tmp_path: Path
) -> None:
    result = run("houlsby(size=4, layers=7-9)", "pfeiffer:2", seeds=1)
    bad, good = result["methods"]
    assert "scores" not in bad
    assert "layers" in bad["failed"][0]["error"]
    assert good["scores"]["validation"]["mean"] >= 0
    assert "failed" in (tmp_path / "out" / "table.md").read_text()
    assert any("no such layers" in line for line in report.failures(result))
    run("houlsby(size=4, layers=7-9)", "pfeiffer:2", seeds=1)
    assert len(ran) == 2
    run("houlsby(size=4, layers=7-9)", "pfeiffer:2", seeds=1, retry=True)
    assert ran[2:] == ["houlsby(size=4, layers=7-9)"]


def test_a_process_that_dies_is_a_failed_cell(
    run: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    result = run("pfeiffer:2", seeds=1)
    assert "its process ended with 1" in result["methods"][0]["failed"][0]["error"]
    assert not result["methods"][0]["pareto"]


def test_the_test_file_is_opened_only_after_the_choice_is_written(
    run: Callable[..., dict[str, Any]], ran: list[str], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="no such file"):
        run("houlsby:16", lr=[1e-7, 3e-2], epochs=[6], seeds=1, test=tmp_path / "missing.csv")
    assert len(ran) == 2
    written = json.loads((tmp_path / "out" / "choices.json").read_text())["choices"]["houlsby(size=16)"]
    assert written["setting"] == {"lr": 3e-2, "epochs": 6}
    tried = {entry["lr"]: entry["validation"] for entry in written["tried"]}
    assert written["validation"] == max(tried.values()) > min(tried.values())
    assert not (tmp_path / "out" / "results.json").exists()


def cell(method: str, lr: float, seed: int, score: float, state: str = "done", metric: str = "accuracy") -> Any:
    asked = {"method": method, "settings": {"lr": lr, "epochs": 1, "seed": seed}}
    found = {"metrics": {"validation": {metric: score}, "test": {metric: 1 - score}}}
    return {"state": state, "asked": asked, **({"found": found} if state == "done" else {"error": "no"})}


def test_the_choice_looks_at_validation_and_at_settings_that_most_seeds_finished() -> None:
    done = [cell("pfeiffer", lr, seed, score) for lr, score in ((1e-3, 0.7), (1e-2, 0.8)) for seed in (0, 1)]
    assert choose.choose(done, "accuracy")["pfeiffer"]["setting"]["lr"] == 1e-2
    done += [cell("pfeiffer", 1e-1, 0, 0.99), cell("pfeiffer", 1e-1, 1, 0, "failed")]
    assert choose.choose(done, "accuracy")["pfeiffer"]["setting"]["lr"] == 1e-2
    errors = [cell("pfeiffer", lr, 0, score, metric="mse") for lr, score in ((1e-3, 0.7), (1e-2, 0.8))]
    assert choose.choose(errors, "mse")["pfeiffer"]["setting"]["lr"] == 1e-3
    sizes = [cell("pfeiffer(size=2)", 1e-3, 0, 0.6), cell("pfeiffer(size=8)", 1e-3, 0, 0.7), cell("head", 1e-3, 0, 0.9)]
    chosen = choose.choose(sizes, "accuracy")
    assert [chosen[name]["best_size"] for name in chosen] == [False, True, True]


def test_ctrl_c_keeps_what_is_done(
    run: Callable[..., dict[str, Any]], ran: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    once = cells._run

    def stop(path: Path) -> None:
        if ran:
            raise KeyboardInterrupt
        once(path)

    monkeypatch.setattr(cells, "_run", stop)
    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.setattr(cells, "_run", once)
    run()
    assert len(ran) == 4


@pytest.mark.slow
def test_a_killed_comparison_resumes_and_memory_is_the_cell_s_own(
    run: Callable[..., dict[str, Any]], ran: list[str], world: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code = (
        "import sys\nfrom adaptree.analysis.compare import compare\nballast = bytearray(1_500_000_000)\n"
        f"compare({str(world / 'words.csv')!r}, methods={TWO!r}, base={str(world / 'base')!r}, out={str(out)!r}, "
        "seeds=2, epochs=[1])"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        until(lambda: any(state(path) == "done" for path in (out / "cells").glob("*.json")))
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    kept = {path for path in (out / "cells").glob("*.json") if state(path) == "done"}
    assert 1 <= len(kept) < 4
    found = json.loads(min(kept).read_text())["found"]
    assert found["memory"] == found["peak_memory"] - found["base_memory"] >= 0
    if sys.platform == "linux":
        assert found["peak_memory"] < 1_400_000_000  # not what its parent held
    result = run()
    assert 4 - len(kept) - 1 <= len(ran) <= 4 - len(kept)  # the cell that was on its way may have ended meanwhile
    assert [row["seeds"] for row in result["methods"]] == [2, 2]


def state(path: Path) -> str:
    return str(json.loads(path.read_text())["state"])


def until(true: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_sample_has_every_label_and_is_always_the_same(tmp_path: Path) -> None:
    rows = [{"text": f"text {i}", "label": "rare" if i == 77 else "usual"} for i in range(100)]
    table = open_data(rows)
    every = np.arange(100)
    kept = sample(table, every, 10)
    assert len(kept) == 10
    assert 77 in kept
    assert sorted(kept) == list(kept)
    assert (sample(table, every, 10) == kept).all()
    assert len(sample(table, every, 1000)) == 100
    with pytest.raises(UsageError, match="too few"):
        sample(table, every, 1)


def test_a_sample_is_stated(run: Callable[..., dict[str, Any]], ran: list[str], tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []
    result = run("pfeiffer:2", seeds=1, rows=30, on_event=said.append)
    assert (result["data"]["train"], result["data"]["of"], result["data"]["validation"]) == (30, 72, 15)
    assert any("30 of the 72" in event.get("text", "") for event in said)
    assert "30 rows to train on of 72, a sample with seed 0" in (tmp_path / "out" / "table.md").read_text()


def test_bad_input_is_refused_before_anything_runs(run: Callable[..., dict[str, Any]], ran: list[str]) -> None:
    with pytest.raises(MethodError, match="houlsbi"):
        run("houlsbi")
    with pytest.raises(UsageError, match="lr"):
        run(lr=[1e-3, -1.0])
    with pytest.raises(UsageError, match="seed"):
        run(seeds=0)
    with pytest.raises(UsageError, match="metric"):
        run(metric="pearson")
    assert ran == []


def test_pareto_front_of_hand_made_points() -> None:
    assert pareto([(1, 0.5), (2, 0.4), (3, 0.7), (4, 0.7), (9, 0.9)]) == [0, 2, 4]
    assert pareto([(5, 0.5), (5, 0.5), (5, 0.4)]) == [0, 1]
    assert pareto([(7, 0.1)]) == [0]
    assert pareto([]) == []


def test_labels_are_the_shortest_spelling() -> None:
    assert cells.short_spelling("houlsby(size=64)") == "houlsby:64"
    assert cells.short_spelling("ia3") == "ia3"
    assert cells.short_spelling("bitfit") == "bitfit"
    assert cells.short_spelling("lt_sft:0.01") == "lt_sft:0.01"
    assert cells.short_spelling("houlsby(size=64, layers=top:2)") == "houlsby(size=64, layers=top:2)"


def spot(label: str, trained: int, mean: float, spread: float | None = 0.01, front: bool = False) -> dict[str, Any]:
    hover = {"accuracy": mean, "trained": trained}
    return {"label": label, "family": label.partition(":")[0], "trained": trained, "mean": mean, "spread": spread,
            "front": front, "hover": hover}  # fmt: skip


FLOORS = [
    {"name": "tfidf", "label": "TF-IDF", "mean": 0.7},
    {"name": "majority", "label": "majority class", "mean": 0.2},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "points",
    [
        [spot("houlsby:64", 1000, 0.8, front=True)],
        [spot("houlsby:64", 1000, 0.8, None, True)],
        [spot("a", 1000, 0.8), spot("b", 1000, 0.8), spot("c", 1000, 0.9, front=True)],
        [spot(f"method_{i}:64", 1000 * (1 + i % 3), 0.8 + 0.001 * i, front=i > 17) for i in range(20)],
    ],
)
@pytest.mark.parametrize("full", [True, False])
def test_a_figure_can_be_drawn_of_any_comparison(points: list[dict[str, Any]], full: bool, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    lines = [{"name": "full", "label": "full fine-tuning", "mean": 0.85}, *FLOORS] if full else FLOORS
    tradeoff(points, lines, tmp_path, metric="accuracy", title="a & b", base=10_000)
    picture = (tmp_path / "figure.svg").read_text()
    assert picture.count("<path") > 20
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "figure.html").read_text()
    assert len(page) > 3_000_000, "the JavaScript is not inside"
    assert 'src="http' not in page
    assert all(point["label"] in page for point in points)
    assert ("full fine-tuning 0.850" in page) is full


@pytest.mark.slow
@browser.needed
def test_the_page_draws_itself_in_a_browser_without_the_network(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    points = [spot("houlsby:64", 1000, 0.8, front=True), spot("full", 9000, 0.82), spot("head", 30, 0.5)]
    tradeoff(points, FLOORS, tmp_path, metric="accuracy", title="words on tiny", base=10_000)
    page = (tmp_path / "figure.html").read_text()
    assert "main-svg" not in page.partition("<body>")[2].rpartition("<div")[2], "it is drawn by its script"
    shown = browser.dom(tmp_path / "figure.html", tmp_path / "profile")
    assert '<svg class="main-svg"' in shown
    drawn = shown[shown.index('<svg class="main-svg"') :]
    assert all(point["label"] in drawn for point in points)
    assert "words on tiny" in drawn


def test_without_plotly_there_is_a_note_and_no_page(
    run: Callable[..., dict[str, Any]], ran: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    said: list[dict[str, Any]] = []
    run("pfeiffer:2", seeds=1, on_event=said.append)
    assert any("adaptree[compare]" in event.get("text", "") for event in said)
    assert (tmp_path / "out" / "figure.png").exists()
    assert not (tmp_path / "out" / "figure.html").exists()


def test_columns_are_those_asked_for_and_a_validation_file_may_name_its_own(
    ran: list[str], world: Path, tmp_path: Path
) -> None:
    lines = (world / "words.csv").read_text().splitlines()[1:]
    (tmp_path / "odd.csv").write_text("said,note,what\n" + "".join(f"{line.replace(',', ',x,')}\n" for line in lines))
    result = compare(
        tmp_path / "odd.csv", methods=["pfeiffer:2"], base=world / "base", out=tmp_path / "out", seeds=1, epochs=[1],
        text="said", label="what", validation=world / "test.csv",
    )  # fmt: skip
    assert result["methods"][0]["failed"] == []
    assert (result["data"]["train"], result["data"]["validation"]) == (90, 30)
    store = Store(tmp_path / "out" / "store")
    assert store[store.names()[0]].record.columns == {"text": "said", "pair": None, "label": "what"}


def test_tfidf_is_run_once_and_is_the_floor(run: Callable[..., dict[str, Any]], ran: list[str], world: Path) -> None:
    result = run("tfidf", "pfeiffer:2", lr=[1e-3, 1e-2], test=world / "test.csv")
    assert ran.count("tfidf(c=10.0)") == 1
    bag, _ = result["methods"]
    assert bag["scores"]["test"]["mean"] == pytest.approx(result["floors"]["tfidf"]["test"])
    assert not bag["pareto"]
    assert [line["name"] for line in report.lines(result)] == ["tfidf", "majority"]
    assert next(row["method"].strip() for row in report.table(result)) == "tfidf"


def sentences(rows: int, seed: int) -> list[list[str]]:
    """Words of which the last one is an apple, a lion or a saw."""
    rng = random.Random(seed)
    return [[*rng.choices(FILLER, k=rng.randint(3, 6)), ("apple", "lion", "saw")[i % 3]] for i in range(rows)]


def tags(words: list[str], i: int) -> dict[str, Any]:
    return {"tokens": words, "tags": ["B-THING" if word == words[-1] else "O" for word in words]}


def answer(words: list[str], i: int) -> dict[str, Any]:
    context = " ".join(words)
    return {"id": str(i), "question": "seen today", "context": context,
            "answers": {"text": [words[-1]], "answer_start": [context.rindex(words[-1])]}}  # fmt: skip


def choice(words: list[str], i: int) -> dict[str, Any]:
    return {"question": " ".join(words[:-1]), "choices": ["apple", "lion", "saw"], "answer": i % 3}


def plain(words: list[str], i: int) -> dict[str, Any]:
    return {"text": " ".join(words), "comment": None}


def labels(words: list[str], i: int) -> dict[str, Any]:
    return {"text": " ".join(words), "labels": [words[-1], *(["old"] if "old" in words else [])]}


def number(words: list[str], i: int) -> dict[str, Any]:
    return {"text": " ".join(words), "label": 0.1 + i % 3}


@pytest.mark.parametrize(
    ("row", "kind", "metric"),
    [
        (tags, "tag", "f1"), (answer, "answer", "f1"), (choice, "choose", "accuracy"), (plain, "mlm", "perplexity"),
        (labels, "multilabel", "f1"), (number, "regress", "pearson"),
    ],
)  # fmt: skip
def test_every_kind_can_be_compared_on_a_sample_of_its_own_rows(
    row: Callable[[list[str], int], dict[str, Any]], kind: str, metric: str, ran: list[str], tmp_path: Path
) -> None:
    base = tiny_base(tmp_path / "base", mask=True)
    for name, count, seed in (("train", 60, 0), ("test", 20, 1)):
        made = [row(words, i) for i, words in enumerate(sentences(count, seed))]
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in [{}, *made]))
    options = {"methods": TWO, "base": base, "out": tmp_path / "out", "seeds": 1, "epochs": [1], "rows": 24,
               "test": tmp_path / "test.jsonl", "kind": "mlm" if kind == "mlm" else None}  # fmt: skip
    result = compare(tmp_path / "train.jsonl", **options)  # type: ignore[arg-type]
    assert (result["data"]["kind"], result["metric"]) == (kind, metric)
    assert (result["data"]["train"], result["data"]["validation"], result["data"]["test"]) == (24, 12, 20)
    for found in result["methods"]:
        assert found["failed"] == []
        assert found["scores"].keys() == {"validation", "test"}
    page = (tmp_path / "out" / "table.md").read_text()
    assert ("TF-IDF" in page) is (kind == "regress"), "baselines are for one label or one number a text"
    assert set(result["floors"]) == ({"majority", "tfidf"} if kind == "regress" else set())
    written = (tmp_path / "out" / "data").glob("train-*.jsonl")
    source = (tmp_path / "train.jsonl").read_text().splitlines()
    assert set(next(written).read_text().splitlines()) < set(source)
    assert len(ran) == 2
    compare(tmp_path / "train.jsonl", **options)  # type: ignore[arg-type]
    assert len(ran) == 2, "nothing runs twice"


def test_rows_from_an_iterator_and_with_types_that_json_lacks(ran: list[str], tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "base")
    made = ({"text": " ".join(words), "label": np.int64(i % 2), "day": date(2024, 1, 1 + i % 28)}
            for i, words in enumerate(sentences(40, 0)))  # fmt: skip
    result = compare(made, methods=["pfeiffer:2"], base=base, out=tmp_path / "out", seeds=1, epochs=[1], label="label")
    assert result["data"]["labels"] == [0, 1]
    assert result["methods"][0]["failed"] == []

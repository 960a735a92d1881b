"""An experiment: the same rows for every method, a table and a figure over all its tasks, nothing run twice."""

from __future__ import annotations

import dataclasses
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptree.analysis import experiments
from adaptree.analysis.compare.cells import full_spelling
from adaptree.analysis.experiments import (
    comparison,
    fast,
    figures,
    glue,
    improve,
    languages,
    layers,
    ledger,
    lowdata,
    noise,
    rates,
    simple,
    summary,
    sweep,
    text17,
    transfer,
)
from adaptree.analysis.experiments.corpora import TEST, Corpus, cut, one_file
from adaptree.analysis.experiments.grid import Grid
from adaptree.analysis.experiments.setup import Setup
from adaptree.cli import main
from adaptree.errors import DataError, UsageError
from tests.bases import tiny_base, words_csv


def put(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"text": f"text {i}", "label": "ab"[i % 2], "id": i} for i in range(count)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("experiments")
    tiny_base(root / "base")
    lines = words_csv(root / "words.csv", 120).read_text().splitlines()[1:]
    rows = [dict(zip(("text", "label"), line.rsplit(",", 1), strict=True)) for line in lines]
    put(root / "data" / "one" / "train.jsonl.xz", rows[:80])
    put(root / "data" / "one" / "test.jsonl.xz", rows[80:])
    random.Random(1).shuffle(rows)
    put(root / "data" / "two" / "train.jsonl.xz", rows[:80])
    put(root / "data" / "two" / "dev.jsonl.xz", rows[80:])
    return root


@pytest.fixture
def grid() -> Grid:
    return Grid(
        title="Two tasks", tasks=(Corpus("one", test="test"), Corpus("two", test="dev")), rows=40, epochs=1,
        methods=("full", "head", "tfidf", "houlsby:2", "houlsby:4"), reference="full", more_seeds={"two": 2},
        draw=lambda rows, path: summary.tradeoff(rows, path, title="Two", tasks=2),
    )  # fmt: skip


@pytest.fixture
def run(world: Path, grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setattr(comparison, "run", grid.run)

    def start(**changes: Any) -> str:
        return experiments.run("comparison", world / "data", tmp_path / "out", base=world / "base", **changes)

    return start


def test_a_file_without_a_test_part_gives_rows_to_test_on_that_nobody_trains_on(tmp_path: Path) -> None:
    put(tmp_path / "t" / "all.jsonl.xz", numbered(3500))
    train, test = cut(one_file("t"), tmp_path, tmp_path / "out")
    texts = [[json.loads(line)["text"] for line in path.read_text().splitlines()] for path in (train, test)]
    assert (len(texts[0]), len(texts[1])) == (2500, TEST)
    assert len({*texts[0], *texts[1]}) == 3500
    again = cut(one_file("t"), tmp_path, tmp_path / "again")
    assert [path.read_text() for path in again] == [train.read_text(), test.read_text()]


def test_a_small_file_gives_a_third_of_its_rows_to_test_on(tmp_path: Path) -> None:
    put(tmp_path / "t" / "all.jsonl.xz", numbered(1200))
    train, test = cut(one_file("t"), tmp_path, tmp_path / "out")
    assert [len(path.read_text().splitlines()) for path in (train, test)] == [800, 400]


def test_only_texts_and_label_are_handed_on_and_rows_without_a_label_are_left_out(tmp_path: Path) -> None:
    put(tmp_path / "t" / "train.jsonl.xz", [*numbered(3), {"text": "none", "label": None}])
    put(tmp_path / "t" / "test.jsonl.xz", numbered(TEST + 5))
    train, test = cut(Corpus("t", test="test"), tmp_path, tmp_path / "out")
    assert [set(json.loads(line)) for line in train.read_text().splitlines()] == [{"text", "label"}] * 3
    assert len(test.read_text().splitlines()) == TEST


def test_an_experiment_runs_each_cell_once_and_writes_one_table_over_its_tasks(
    run: Callable[..., str], ran: list[str], tmp_path: Path
) -> None:
    run(tasks=["one"])
    assert len(ran) == 5
    page = run()
    assert len(ran) == 5 + 2 * 4 + 1  # two seeds, and TF-IDF has none
    assert run() == page
    assert len(ran) == 14
    out = tmp_path / "out"
    assert (out / "figure.png").stat().st_size > 5000
    assert (out / "table.md").read_text() == page
    found = {cell["asked"]["task"]: cell["found"] for cell in ledger.read(out)}
    rows = {row["method"]: row for row in summary.rows([found["one"], found["two"]], "full")}
    assert set(rows) == {"full", "head", "tfidf", "houlsby:2", "houlsby:4"}
    for row in rows.values():
        assert row["mean"] == pytest.approx(sum(row["scores"].values()) / 2)
        assert row["behind"] == pytest.approx({t: rows["full"]["scores"][t] - s for t, s in row["scores"].items()})
    assert rows["full"]["time"] == 1
    one = json.loads((out / "rows" / "one" / "results.json").read_text())
    assert found["one"]["methods"] == one["methods"]
    assert f"| {rows['head']['scores']['one']:.1f} |" in page or f"| **{rows['head']['scores']['one']:.1f}** |" in page
    assert run(redraw=True) == page
    assert "two (2)" in page
    assert " ± " in page


def test_a_method_that_failed_on_one_task_is_in_no_mean() -> None:
    def result(title: str, *rows: dict[str, Any]) -> dict[str, Any]:
        return {"title": title, "metric": "accuracy", "data": {"test": 3}, "methods": list(rows)}

    def row(method: str, score: float | None, seconds: float = 1.0) -> dict[str, Any]:
        named = {"method": method, "label": method, "family": method}
        if score is None:
            return named
        scores = {"test": {"mean": score, "spread": None}}
        return {**named, "scores": scores, "outside": False, "trained": 10, "trained_percent": 1.0, "seconds": seconds,
                "parameters": {"base": 1000}}  # fmt: skip

    a = result("a", row("full", 0.8, 2.0), row("lora", 0.9), row("bad", 0.5))
    b = result("b", row("full", 0.6, 2.0), row("lora", 0.5), row("bad", None))
    full, lora = summary.rows([a, b], "full")
    assert (full["mean"], lora["mean"]) == pytest.approx((70, 70))
    assert lora["behind"] == pytest.approx({"a": -10, "b": 10})
    assert lora["time"] == pytest.approx(0.5)


def test_the_figure_of_layers_is_drawn(tmp_path: Path) -> None:
    rows = [{"scores": {"a": 1.0, "b": 2.0}, "behind": {"a": 1.0, "b": 0.0}, "time": k / 6} for k in (1, 2, 6)]
    figures.layers(rows, tmp_path / "figure.png", (1, 2, 6))
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_the_figure_of_two_ways_beside_each_other_is_drawn(tmp_path: Path) -> None:
    spreads = {"a": 0.5, "b": None}
    rows = [
        {
            "method": name,
            "scores": {"a": 1.0, "b": 2.0},
            "behind": {"a": 1.0, "b": 0.0},
            "time": 0.5,
            "spreads": spreads,
        }
        for name in ("one", "two")
    ]
    figures.beside(rows, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_the_figure_of_attention_is_drawn(tmp_path: Path) -> None:
    told = {"adapters": ["single-0/a@1", "b@2"], "layers": [0, 1], "weights": [[0.2, 0.8], [0.5, 0.5]]}
    figures.attention({"a": told, "c": {**told, "adapters": ["b@1", "d@1"]}}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_rank_correlation_is_that_of_ranks() -> None:
    def correlation(probe: list[float], gain: list[float]) -> float:
        pairs = zip(probe, gain, strict=True)
        found = {str(i): {"probe": a, "rows": a, "gain": b} for i, (a, b) in enumerate(pairs)}
        return transfer.correlations({"target": found})["suggest"][0]

    assert correlation([1, 20, 300], [0.1, 0.2, 0.3]) == pytest.approx(1)
    assert correlation([1, 2, 3], [9, 5, -4]) == pytest.approx(-1)
    assert correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833), "equal ones share their ranks"
    assert correlation([1, 1, 1], [1, 2, 3]) == 0


def test_chance_is_around_zero_and_narrows_with_targets() -> None:
    pairs = {name: {"gain": float(i)} for i, name in enumerate("abcdefgh")}
    low, high = transfer.chance({"t": pairs}, resamples=300)
    narrow = transfer.chance({str(i): pairs for i in range(16)}, resamples=300)
    assert low < narrow[0] < 0 < narrow[1] < high


def test_a_paired_difference_is_of_the_same_sentences() -> None:
    right, wrong = [1.0, 1, 1, 3, 3], [0.0, 1, 1, 2, 3]
    gain, low, high = languages.paired([[wrong] * 5], [[right] * 5])
    assert (gain, low, high) == (1.0, 1.0, 1.0)
    assert languages.paired([[right, wrong] * 20] * 2, [[right, wrong] * 20] * 2) == (0.0, 0.0, 0.0)
    seeds = languages.paired([[wrong] * 5, [right] * 5], [[right] * 5, [right] * 5])
    assert seeds == (0.5, 0.5, 0.5), "the mean over seeds"


def test_labels_are_spoiled_and_looked_for_and_nothing_is_run_twice(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "TASKS", (Corpus("one"),))
    monkeypatch.setattr(noise, "ROWS", 60)
    options: dict[str, Any] = {"base": world / "base", "seeds": 1, "command": "adaptree experiment noise"}
    page = experiments.run("noise", world / "data", tmp_path, **options)
    (cell,) = ledger.read(tmp_path)
    assert cell["found"]["labels"] == 3
    assert 0 <= cell["found"]["precision"] <= 1
    assert "| one | 3 |" in page
    monkeypatch.setattr(noise, "clean", None)
    assert experiments.run("noise", world / "data", tmp_path, **options) == page
    assert experiments.run("noise", Path("nowhere"), tmp_path, redraw=True, **options) == page


def test_every_experiment_is_listed_with_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment"]) == 0
    shown = capsys.readouterr().out
    for name in experiments.NAMES:
        assert name in shown
        assert experiments.about(name).split()[0] in shown


def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ADAPTREE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    for words, said in (
        (["experiment", "comparision", "--data", "."], "comparison"),
        (["experiment", "comparison"], "ADAPTREE_DATA"),
        (["experiment", "comparison", "--data", "."], "sick/train.jsonl.xz"),
        (["experiment", "comparison", "--data", ".", "--task", "sik"], "sick"),
        (["experiment", "comparison", "--data", ".", "--resume"], "no run was begun in 'comparison'"),
    ):
        assert main(words) != 0
        err = capsys.readouterr().err
        assert said in err
        assert "Traceback" not in err


def test_no_data_and_no_such_task_are_refused_in_python(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not there"):
        experiments.run("layers", tmp_path, tmp_path / "out")
    with pytest.raises(UsageError, match="no task 'x'"):
        experiments.run("layers", tmp_path, tmp_path / "out", tasks=["x"])


@pytest.mark.parametrize("module", [comparison, fast, layers])
def test_the_methods_of_an_experiment_are_known(module: Any) -> None:
    assert full_spelling(module.grid.reference) in {full_spelling(method) for method in module.grid.methods}


@pytest.mark.slow
def test_few_labels_are_trained_in_every_way_and_no_cell_twice(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowdata, "TASKS", (Corpus("one", test="test"), Corpus("two", test="dev")))
    monkeypatch.setattr(lowdata, "SIZES", (4, 600))
    monkeypatch.setattr(lowdata, "TEST_ROWS", 20)
    out, told = tmp_path / "out", []

    def start(**options: Any) -> str:
        told.clear()
        return experiments.run(
            "lowdata", world / "data", out, base=world / "base", seeds=1, threads=1,
            on_event=lambda event: told.append(event["text"]), **options,
        )  # fmt: skip

    planned = 2 * (len(lowdata.WAYS) + len(lowdata.WAYS) - 3)  # 600 a label are not contrasted, nor solved first
    start(dry_run=True)
    assert f"{planned} cells would be run" in told[-1]
    start(budget=0.0)
    assert f"{planned} of {planned} cells are open" in told[-1]
    assert lowdata.finished(out) == []
    page = start()
    cells = lowdata.finished(out)
    ways = {(cell["task"], cell["rows_per_label"], cell["way"]) for cell in cells}
    assert len(ways) == len(cells) == planned
    assert {cell["train_rows"] for cell in cells if cell["rows_per_label"] == 4} == {12}
    assert all(cell["test_rows"] == 20 for cell in cells)
    by = lowdata.summary(cells)
    head = sum(by[4]["head"][name][0] for name in ("one", "two")) / 2
    assert f"{head:.1f} (" in page
    assert (out / "figure.png").stat().st_size > 1000
    with (out / ledger.FILE).open("a") as file:
        file.write('{"asked": {"task": "one", "way": "setf')  # killed while it wrote
    assert start().splitlines()[:8] == page.splitlines()[:8]
    assert len(lowdata.finished(out)) == len(cells)


@pytest.mark.slow
def test_strategies_are_compared_on_the_same_first_rows_pool_and_test_rows(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(improve, "TASKS", (Corpus("one", test="test"), Corpus("two", test="dev")))
    for name, value in (("START", 2), ("ROUNDS", 2), ("ROWS", 3), ("POOL", 60), ("TEST_ROWS", 20)):
        monkeypatch.setattr(improve, name, value)
    monkeypatch.setattr(improve, "SAMPLES", {"head": 2, "contrastive": 1})
    page = experiments.run("improve", world / "data", tmp_path, base=world / "base", threads=1, tasks=("one",))
    cells = improve.finished(tmp_path)
    assert len(cells) == 2 * len(improve.STRATEGIES) + len(improve.TRAINED)
    assert all(len(cell["accuracy"]) == 3 and cell["train_rows"] == 3 * 2 + 2 * 3 for cell in cells)
    for learner in ("head", "contrastive"):
        starts = {cell["accuracy"][0] for cell in cells if (cell["learner"], cell["sample"]) == (learner, 0)}
        assert len(starts) == 1
    heads = [cell for cell in cells if cell["learner"] == "head"]
    last = {name: [cell["accuracy"][-1] for cell in heads if cell["strategy"] == name] for name in improve.STRATEGIES}
    assert f"{100 * sum(last['diverse']) / 2:.1f}" in page
    assert (tmp_path / "figure.png").stat().st_size > 1000
    (tmp_path / ledger.FILE).write_text("".join((tmp_path / ledger.FILE).read_text().splitlines(keepends=True)[:-1]))
    again = experiments.run("improve", world / "data", tmp_path, base=world / "base", redraw=True)
    assert page.count("Pairs of a task") == 2
    assert again.count("Pairs of a task") == 1  # a pair that lacks a strategy is not compared


def start_sweep(
    name: str, world: Path, out: Path, monkeypatch: pytest.MonkeyPatch, recipe: sweep.Recipe, **options: Any
) -> tuple[str, list[str]]:
    """Run a sweep of the paper's tables on two tiny tasks; return its page and its notes."""
    module, told = {"glue": glue, "text17": text17}[name], []
    tasks = (sweep.Task(Corpus("one", test="test")), sweep.Task(Corpus("two", test="dev"), "macro_f1"))
    rows = (
        sweep.Row("full", ("full",)),
        sweep.Row("adapters", ("houlsby:2", "houlsby:4")),
        sweep.Row("head", ("head",)),
        *([sweep.Row("simple models", simple.NAMES)] if name == "text17" else []),
    )
    monkeypatch.setattr(module, "SWEEP", sweep.Sweep(tasks, rows, recipe))
    if name == "text17":
        monkeypatch.setattr(module, "PUBLISHED", {"one": (1.0, 2.0, 3.0, 4.0), "two": (5.0, 6.0, 7.0, 8.0)})
    page = experiments.run(
        name, world / "data", out, base=world / "base", threads=1, on_event=lambda event: told.append(event["text"]),
        **options,
    )  # fmt: skip
    return page, told


TINY = sweep.Recipe(rows=30, validation=10, steps=4, batch_size=8, max_length=32, factors=(1.0, 3.0), seeds=2)


def test_a_sweep_chooses_on_validation_and_tests_only_the_choice_with_fresh_seeds(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, _ = start_sweep("glue", world, tmp_path, monkeypatch, TINY)
    cells = ledger.read(tmp_path)
    tries = [cell for cell in cells if "test" not in cell["asked"]["rows"]]
    finals = [cell for cell in cells if "test" in cell["asked"]["rows"]]
    assert len(tries) == 2 * (2 + 2)  # two learning rates of full and two sizes of adapters, on two tasks
    assert {cell["asked"]["seed"] for cell in tries} == {0}
    assert all("test" not in cell["found"] for cell in tries)
    assert len(finals) == 2 * (2 + 2 + 1)
    assert all("test" in cell["found"] and cell["asked"]["seed"] > 0 for cell in finals)
    for task, metric in (("one", "accuracy"), ("two", "macro_f1")):
        for names in (["full"], ["houlsby(size=2)", "houlsby(size=4)"]):
            tried = [c for c in tries if c["asked"]["task"] == task and c["asked"]["method"] in names]
            best = max(tried, key=lambda c: c["found"]["validation"][metric])["asked"]
            chosen = [c["asked"] for c in finals if c["asked"]["task"] == task and c["asked"]["method"] in names]
            assert {(c["method"], c["lr"]) for c in chosen} == {(best["method"], best["lr"])}
    full = [c["found"]["test"]["accuracy"] for c in finals if c["asked"]["method"] == "full"][:2]
    assert f"{100 * sum(full) / 2:.1f} ±" in page
    assert glue.SWEEP.read(tmp_path) == glue.SWEEP.run(Setup(world / "data", tmp_path, base=world / "base", threads=1))
    again, _ = start_sweep("glue", world, tmp_path, monkeypatch, TINY)
    assert again == page
    assert len(ledger.read(tmp_path)) == len(cells), "nothing is run twice"
    start_sweep("glue", world, tmp_path, monkeypatch, dataclasses.replace(TINY, batch_size=4), dry_run=True)
    assert len(ledger.read(tmp_path)) == len(cells)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["glue", "text17"])
def test_a_page_has_a_table_for_every_base_of_its_cells(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = dataclasses.replace(TINY, factors=(1.0,), seeds=1)
    first, _ = start_sweep(name, world, tmp_path, monkeypatch, recipe)
    assert "## base" not in first
    assert first.count("Base: base.") == 1
    lines = (tmp_path / ledger.FILE).read_text().splitlines()
    for line in lines:  # as if another base had been trained on the first task, to other scores
        cell = json.loads(line)
        if cell["asked"]["task"] == "one" and "test" in cell["found"]:
            cell["asked"] |= {"base": "other", "fingerprint": "f"}
            cell["found"]["test"]["accuracy"] = 0.123
            lines = [*lines, json.dumps(cell)]
    (tmp_path / ledger.FILE).write_text("".join(line + "\n" for line in lines))
    page, _ = start_sweep(name, world, tmp_path, monkeypatch, recipe, redraw=True)
    assert "Bases: base, other." in page
    own, other = page.split("\n## base\n")[1].split("\n## other\n")
    assert "12.3 (1)" not in own
    assert "12.3 (1)" in other


def test_a_method_in_two_rows_of_a_sweep_is_tried_at_several_rates_only_where_it_is_alone(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (sweep.Row("adapters", ("houlsby:2", "houlsby:4")), sweep.Row("adapters 4", ("houlsby:4",)))
    both = sweep.Sweep((sweep.Task(Corpus("one", test="test")),), rows, dataclasses.replace(TINY, seeds=1))
    found = both.run(Setup(world / "data", tmp_path, base=world / "base", threads=1))
    tries = [cell["asked"] for cell in ledger.read(tmp_path) if "test" not in cell["asked"]["rows"]]
    assert sorted((asked["method"], asked["lr"]) for asked in tries) == [
        ("houlsby(size=2)", 0.001), ("houlsby(size=4)", 0.001), ("houlsby(size=4)", 0.003)
    ]  # fmt: skip
    assert found["adapters"]["one"].lr == 0.001
    assert both.read(tmp_path) == found


@pytest.mark.slow
def test_the_table_of_a_sweep_has_prices_and_intervals(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, _ = start_sweep("text17", world, tmp_path, monkeypatch, dataclasses.replace(TINY, factors=(1.0,), seeds=1))
    lines = {
        line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in page.splitlines() if "|" in line
    }
    assert lines["task"][1:5] == ["full", "adapters", "head", "simple models"]
    full, adapters, head, plain = lines["total parameters"][1:5]
    assert full.startswith("1.9") or full.startswith("2.0"), "one model for each of two tasks"
    assert 1 < float(head[:-1]) < float(adapters[:-1]) < float(full[:-1])
    assert plain == "-"
    assert lines["less than full"][1] == "0.0 (0.0 to 0.0)"
    assert lines["mean of 2"][5:] == ["3.0", "4.0", "5.0", "6.0"]


def test_the_papers_own_recipe_runs_end_to_end(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "PAPER", dataclasses.replace(sweep.PAPER, epochs=(1,), lrs=(3e-4,), seeds=1))
    page, _ = start_sweep("glue", world, tmp_path, monkeypatch, TINY, paper=True)
    assert "At most all training" in page
    asked = [cell["asked"] for cell in ledger.read(tmp_path)]
    assert {cell["batch_size"] for cell in asked} == {32}
    assert {cell["lr"] for cell in asked} == {3e-4, None}


def test_an_interval_over_tasks_holds_the_mean_and_shrinks_with_the_spread() -> None:
    wide, narrow = sweep.mean_interval([60.0, 70.0, 80.0, 90.0]), sweep.mean_interval([74.0, 75.0, 75.0, 76.0])
    assert wide[0] < 75 < wide[1]
    assert wide[1] - wide[0] > narrow[1] - narrow[0] > 0
    assert sweep.mean_interval([5.0]) == (5.0, 5.0)


def test_options_that_an_experiment_does_not_have_are_refused(world: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has one recipe"):
        experiments.run("lowdata", world / "data", tmp_path, paper=True)


@pytest.mark.slow
def test_learning_rates_are_tried_until_the_best_is_not_at_an_edge(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "TASKS", (Corpus("one", test="test"), Corpus("two", test="dev")))
    tiny = {"METHODS": ("houlsby:2", "norms"), "SIZES": (20, 40), "VALIDATION": 10, "STEPS": 3}
    for name, value in tiny.items():
        monkeypatch.setattr(rates, name, value)
    page = experiments.run("rates", world / "data", tmp_path, base=world / "base", threads=1)
    found: dict[str, set[float]] = {}
    for cell in ledger.read(tmp_path):
        found.setdefault(cell["asked"]["method"], set()).add(cell["asked"]["lr"])
        assert "test" not in cell["found"]
    for method, tried in found.items():
        scores = {
            lr: sum(c["found"]["score"] for c in ledger.read(tmp_path)
                    if (c["asked"]["method"], c["asked"]["lr"]) == (method, lr)) for lr in sorted(tried)
        }  # fmt: skip
        best = max(scores, key=lambda lr: scores[lr])
        assert min(tried) < best < max(tried) or len(tried) == rates.MOST
    assert page.count("| `houlsby:2` |") == 2
    assert experiments.run("rates", world / "data", tmp_path, base=world / "base", threads=1) == page

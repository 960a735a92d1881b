"""The benchmark's arithmetic, its resuming and its page; the rows are only read here, `make bench` runs them."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks import data, report, run, runs
from benchmarks.table import Amount, Growth, Run, Spread, Table, constant, exponent, holds

from adaptree.models.cache_files import FOLDER

ROOT = Path(__file__).parent.parent
HOW = {
    "setup": {"rows": 10, "validation": 5}, "data": "sms_spam", "base": "minilm", "threads": 1, "cpus": 2,
    "processor": "some processor",
}  # fmt: skip


def speaking(value: float) -> Run:
    """A tiny real process that says what it measured."""
    return Run(("{python}", "-c", f"print('noise'); print('{{\"value\": {value}}}')"))


def value(m: Any) -> float | None:
    return m["found"].get("value")  # type: ignore[no-any-return]


def measured(**values: float) -> dict[str, Any]:
    return {key: {"run": key, "round": 1, "load": 0.5, "found": {"value": each}} for key, each in values.items()}


def named(*names: str) -> dict[str, Amount]:
    return {name: Amount((Run((name,)),), value) for name in names}


def keyed(**values: float) -> dict[str, Any]:
    return measured(**{Run((name,)).key: each for name, each in values.items()})


@pytest.fixture
def machine(tmp_path: Path) -> run.Machine:
    return run.Machine({}, {"ours": sys.executable, "peers": sys.executable}, tmp_path, 1)


@pytest.fixture
def table() -> Table:
    runs_ = {"adaptree": speaking(2), "peer": speaking(5)}
    return Table("Speed", "s", {name: Amount((each,), value) for name, each in runs_.items()}, aims={"peer": ">= 2"})


# arithmetic


def test_a_ratio_is_taken_within_its_round_and_not_across_rounds() -> None:
    table = Table("t", "s", named("adaptree", "peer"))
    rounds = {1: keyed(adaptree=1, peer=2), 2: keyed(adaptree=10, peer=30)}
    assert table.ratios("peer", rounds) == [2, 3]
    assert Spread.over(table.ratios("peer", rounds)) == Spread(2.5, 2, 3, 2)


def test_a_round_in_which_one_of_two_failed_has_no_ratio() -> None:
    table = Table("t", "s", named("adaptree", "peer"))
    assert table.ratios("peer", {1: keyed(adaptree=1), 2: keyed(adaptree=2, peer=3)}) == [1.5]
    assert Spread.over(table.ratios("peer", {1: keyed(peer=1)})) is None


def test_an_amount_of_several_runs_is_so_many_times_their_mean_and_nothing_without_one_of_them() -> None:
    amount = Amount((Run(("a",)), Run(("b",))), value, times=10)
    assert amount.of(keyed(a=1, b=3)) == 20
    assert amount.of(keyed(a=1)) is None
    assert amount.of(keyed(a=1, b=math.inf)) == math.inf
    assert constant(0.01).of({}) == 0.01


@pytest.mark.parametrize("late", ["adaptree", "peer"])
def test_what_was_not_reached_in_one_round_is_said_and_has_no_ratio(late: str, tmp_path: Path) -> None:
    table = Table("t", "s", named("adaptree", "peer"))
    rounds = {1: keyed(adaptree=1, peer=2), 2: keyed(**{"adaptree": 1, "peer": 2, late: math.inf})}
    assert table.ratios("peer", rounds) == []
    assert report.judged(">= 2", Spread.over(table.ratios("peer", rounds))) == "≥ 2"
    (tmp_path / report.PAGE).write_text(f"{report.BEGIN}{report.END}")
    report.publish([table], rounds, HOW, tmp_path)
    page = (tmp_path / report.PAGE).read_text()
    assert f"| {late} | not reached |" in page
    assert page.count("not reached") == 1
    assert ".png" not in page, "no ratio, so nothing is drawn"


def test_a_score_that_no_epoch_has_takes_for_ever() -> None:
    until = run.row("end_to_end").until
    assert until({"found": {"course": [(3.0, 0.9), (5.0, 0.98), (7.0, 0.99)]}}) == 5
    assert until({"found": {"course": [(3.0, 0.9)]}}) == math.inf


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_of_a_power_is_found(power: float) -> None:
    assert exponent([(x, 3 * x**power) for x in (1, 10, 100, 1000)]) == pytest.approx(power)


def test_the_exponent_of_noise_around_a_line_is_near_one() -> None:
    assert exponent([(500, 5.2), (1000, 9.9), (2000, 20.5), (4000, 39.0)]) == pytest.approx(1, abs=0.05)


def test_an_aim_is_a_sign_and_a_number() -> None:
    assert holds(">= 2", 2.0)
    assert not holds(">= 2", 1.99)
    assert holds("<= 0.7", 0.7)
    assert not holds("<= 0.7", 0.71)


# running


def test_every_subject_runs_once_a_round_and_rounds_are_interleaved(
    table: Table, machine: run.Machine, tmp_path: Path
) -> None:
    results = run.Results(tmp_path / "results.json", HOW)
    run.measure([table, table], [], machine, results, rounds=2)
    kept = json.loads((tmp_path / "results.json").read_text())["measurements"]
    one, two = (each.key for each in table.runs)
    assert [(m["round"], m["run"]) for m in kept] == [(1, one), (1, two), (2, one), (2, two)]
    assert all(m["seconds"] > 0 and m["cpu"] > 0 and m["load"] >= 0 for m in kept)
    assert table.ratios("peer", results.rounds()) == [2.5, 2.5]


def test_what_is_measured_is_not_run_again_unless_it_failed_or_is_asked_for(
    table: Table, machine: run.Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    run.measure([table], [], machine, run.Results(path, HOW), rounds=1)
    ran: list[str] = []

    def count(each: Run) -> dict[str, Any]:
        ran.append(each.key)
        return {"load": 0, "seconds": 1, "cpu": 1, "found": {}}

    monkeypatch.setattr(machine, "measure", count)
    again = run.Results(path, HOW)
    run.measure([table], [], machine, again, rounds=1)
    assert not ran
    again.keep({"run": table.runs[1].key, "round": 1, "failed": "why"})
    run.measure([table], [], machine, run.Results(path, HOW), rounds=1)
    assert ran == [table.runs[1].key]
    again.forget([table.runs[0].key])
    run.measure([table], [], machine, again, rounds=1)
    assert table.runs[0].key in ran


def test_measurements_of_another_machine_or_size_are_not_mixed_in(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    run.Results(path, HOW).keep({"run": "x", "round": 1})
    with pytest.raises(run.Refused, match="threads"):
        run.Results(path, {**HOW, "threads": 2})


def test_a_subject_that_fails_is_kept_with_its_last_word_and_without_places(machine: run.Machine) -> None:
    words = ("{python}", "-c", "import sys; sys.exit('no such thing in ' + sys.argv[1])", "{scratch}")
    found = machine.measure(Run(words))
    assert found["failed"] == "no such thing in …"


def test_a_subject_starts_with_an_empty_activation_cache_its_own_folder_and_its_threads(machine: run.Machine) -> None:
    states = machine.scratch / "cache" / FOLDER
    states.mkdir(parents=True)
    code = (
        "import json, os, sys, time; print(json.dumps({'threads': os.environ['OMP_NUM_THREADS'], "
        "'late': time.monotonic() - float(os.environ['BENCH_STARTED']), 'out': os.path.exists(sys.argv[1])}))"
    )
    found = machine.measure(Run(("{python}", "-c", code, "{out}")))["found"]
    assert not states.exists()
    assert found["threads"] == "1"
    assert not found["out"]
    assert 0 < found["late"] < 60
    assert [path.name for path in machine.scratch.iterdir()] == ["cache"], "what a subject wrote is removed"


def test_cpu_seconds_are_of_the_process_that_was_run(machine: run.Machine) -> None:
    busy = machine.measure(Run(("{python}", "-c", "import time\nwhile time.process_time() < 0.3: pass")))
    idle = machine.measure(Run(("{python}", "-c", "import time; time.sleep(0.3)")))
    assert busy["cpu"] > 0.3 > idle["cpu"]
    assert idle["seconds"] > 0.3


# the data


def test_without_data_one_line_says_what_to_give(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ADAPTREE_DATA", raising=False)
    assert run.main([]) == 1
    assert run.main(["--data", str(tmp_path)]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert "--data DIR or ADAPTREE_DATA" in first
    assert "No such file" in second


def test_an_unknown_row_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--rows", "speed"]) == 1
    assert "epoch" in capsys.readouterr().err


def test_training_and_validation_share_no_row_and_smaller_parts_are_in_larger_ones(tmp_path: Path) -> None:
    rows = [{"text": f"text {i}", "label": "ham"} for i in range(data.HELD + 50)]
    read = [Run(("x", f"{{data}}/{name}.jsonl")) for name in ("train-20", "train-40", "validation-60", "long-3")]
    data.write(rows, read, tmp_path)
    parts = {path.stem: path.read_text().splitlines() for path in tmp_path.glob("*.jsonl")}
    assert {name: len(lines) for name, lines in parts.items()} == {
        "train-20": 20, "train-40": 40, "validation-60": 60, "long-3": 3,
    }  # fmt: skip
    assert parts["train-40"][:20] == parts["train-20"]
    assert not set(parts["train-40"]) & set(parts["validation-60"])
    assert all(len(json.loads(line)["text"].split()) == data.LONG_WORDS for line in parts["long-3"])
    with pytest.raises(data.NoData, match="51"):
        data.cut(rows, "train", 51)


def test_a_file_that_a_stopped_run_or_other_data_left_is_written_anew(tmp_path: Path) -> None:
    read = [Run(("x", "{data}/train-2.jsonl"))]
    for word in ("one", "other"):
        rows = [{"text": f"{word} {i}", "label": word} for i in range(data.HELD + 2)]
        (tmp_path / "train-2.jsonl").write_text('{"text": "cut')
        data.write(rows, read, tmp_path)
        lines = (tmp_path / "train-2.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == rows[data.HELD :]
        assert json.loads((tmp_path / "labels.json").read_text()) == [word]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels.json", "train-2.jsonl"]


# the page


def test_only_what_lies_between_the_markers_is_replaced() -> None:
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    once = report.between(page, "new")
    assert once == f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n"
    assert report.between(once, "new") == once
    with pytest.raises(ValueError, match="needs the lines"):
        report.between("no markers", "new")


def test_the_page_has_its_markers() -> None:
    report.between((ROOT / "docs" / report.PAGE).read_text(), "")


def test_tables_and_figures_are_written_with_ratio_spread_aim_and_load(tmp_path: Path) -> None:
    table = Table("Speed", "s", named("adaptree", "peer"), aims={"peer": ">= 2"}, scores=named("adaptree"))
    lines = {"adaptree": {x: Amount((Run((str(x),)),), value) for x in (1, 10)}}
    growth = Growth("Growing", "s", "rows", lines, aims={"adaptree": "<= 1.05"})
    unmeasured = Table("Nothing", "s", named("adaptree", "other"))
    rounds = {n: keyed(adaptree=1, peer=1 + n, **{"1": 2, "10": 20}) for n in (1, 2)}
    (tmp_path / report.PAGE).write_text(f"{report.BEGIN}{report.END}")
    report.publish([table, growth, unmeasured], rounds, HOW, tmp_path)
    page = (tmp_path / report.PAGE).read_text()
    assert "| peer | 2.50 (2.00-3.00) | 2.50 (2.00-3.00) | ≥ 2 ✓ |" in page
    assert "| adaptree | 1.00 (1.00-1.00) | 1 |  | 1.000 |" in page
    assert "| adaptree | 2.00 | 20.0 | 1.00 (1.00-1.00) | ≤ 1.05 ✓ |" in page
    assert "load average before a measurement 0.5" in page
    assert "2 interleaved rounds" in page
    assert "Nothing" not in page
    for name in re.findall(r"\]\((\S+)\.png\)", page):
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
        assert (tmp_path / f"{name}.svg").stat().st_size > 1000
    assert page.count(".png") == 2


def test_an_aim_that_is_missed_is_said() -> None:
    assert report.judged(">= 2", Spread(1.9, 1.8, 2.2, 3)) == "≥ 2 ✘"
    assert report.judged(">= 2", None) == "≥ 2"
    assert report.judged(None, Spread(1, 1, 1, 1)) == ""


# the rows


@pytest.mark.parametrize("setup", [runs.QUICK, runs.FULL], ids=["quick", "full"])
@pytest.mark.parametrize("name", run.names())
def test_every_row_declares_what_is_run_and_compared(name: str, setup: runs.Setup) -> None:
    module = run.row(name)
    assert module.__doc__
    assert isinstance(module.QUICK, bool)
    tables = module.tables(setup)
    assert tables
    for table in tables:
        assert table.runs
        assert table.title
        labels = table.lines if isinstance(table, Growth) else table.amounts
        assert set(table.aims) <= set(labels)
        if isinstance(table, Table):
            assert table.reference in table.amounts
            assert set(table.scores) <= set(table.amounts)
        assert all(holds(aim, 1.0) in (True, False) for aim in table.aims.values())
    befores = module.before(setup) if hasattr(module, "before") else []
    for each in (*befores, *(each for table in tables for each in table.runs)):
        there = {place for word in each.words for place in re.findall(r"\{(\w+)\}", word)}
        assert there <= {"python", "adaptree", "base", "data", "scratch", "smollm", "subjects", "out"}
        assert not any(word.startswith("/") for word in each.words), "a place of a machine would be in results.json"
        for word in each.words:
            if word.startswith("{subjects}/"):
                assert (ROOT / "benchmarks" / "subjects" / word.partition("/")[2]).is_file()


def test_tables_have_titles_of_their_own() -> None:
    titles = [table.title for name in run.names() for table in run.row(name).tables(runs.FULL)]
    assert len(titles) == len(set(titles))


def test_memory_is_measured_in_runs_that_are_not_timed() -> None:
    tables = [table for name in run.names() for table in run.row(name).tables(runs.FULL)]
    memory = [table for table in tables if table.unit == "MB"]
    timed = {each.key for table in tables if table not in memory for each in table.runs}
    assert len(memory) == 2
    assert not timed & {each.key for table in memory for each in table.runs}
    assert all(runs.FLOOR in table.amounts for table in memory if isinstance(table, Table))


def test_the_quick_mode_has_some_of_the_rows_and_no_more_work_than_the_full_one() -> None:
    quick = [name for name in run.names() if run.row(name).QUICK]
    assert 3 <= len(quick) < len(run.names())
    assert runs.QUICK.rows * runs.QUICK.epochs * 5 < runs.FULL.rows * runs.FULL.epochs


def test_scripts_of_the_peers_do_not_import_adaptree() -> None:
    ours = {
        "generate_ours.py", "hub_ours.py", "serve_ours.py", "serve_http.py", "ours.py", "predict_ours.py",
        "tasks_ours.py", "write_ours.py",
    }  # fmt: skip
    for path in (ROOT / "benchmarks" / "subjects").glob("*.py"):
        imports = re.search(r"^\s*(import|from) adaptree", path.read_text(), re.MULTILINE)
        assert bool(imports) == (path.name in ours), path.name


def test_a_median_leaves_the_first_time_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "subjects"))
    import measured as subject

    assert subject.median_seconds(lambda i: time.sleep(0.2 if i == 0 else 0.001), 4) < 0.1


def test_a_mapped_base_that_is_read_later_is_no_memory_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "subjects"))
    import measured as subject
    import torch

    if subject.peak(start=True) is None:
        pytest.skip("this system does not tell")
    size = 32 << 20
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(2 * size)
    mapped = torch.from_file(str(tmp_path / "weights"), size=2 * size // 4).chunk(2)
    model = torch.nn.Module()
    model.register_parameter("weight", torch.nn.Parameter(mapped[0]))
    model.register_buffer("other", mapped[1])
    one = subject.Measured()
    one.base_is_loaded(model)
    for part in mapped:
        part.sum()
    one.say()
    assert json.loads(capsys.readouterr().out)["memory"] < size / 4

"""A stream trains each file alone, once, in spite of bad files, changes, kills and dying workers."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bases import tiny_base, words_csv

import adaptree as at
from adaptree.cli import main
from adaptree.data.events import Event
from adaptree.errors import AdaptreeError, DataError, UsageError
from adaptree.training import stream as streaming
from adaptree.training.entries import find_entries
from adaptree.training.stream import StreamReport, stream
from adaptree.training.work import Call, InThisProcess

SETTINGS: dict[str, Any] = {
    "epochs": 2,
    "lr": 3e-3,
    "method": "houlsby:4",
    "batch_size": 16,
    "objective": "cross-entropy",
}
FILES = ("apples", "bears", "chisels")
PATIENCE = 300


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, and a folder `in` with three files."""
    root = tmp_path_factory.mktemp("world")
    tiny_base(root / "base")
    (root / "in").mkdir()
    for seed, name in enumerate(FILES):
        words_csv(root / "in" / f"{name}.csv", 30, seed=seed)
    return root


@pytest.fixture
def folder(world: Path, tmp_path: Path) -> Path:
    """A copy of the files that a test may change."""
    shutil.copytree(world / "in", tmp_path / "in")
    return tmp_path / "in"


@pytest.fixture
def run(world: Path, tmp_path: Path) -> Callable[..., StreamReport]:
    """Stream a folder into the test's store."""

    def start(source: Path, **options: Any) -> StreamReport:
        given = {"base": world / "base", "store": tmp_path / "store", **SETTINGS, **options}
        return stream(source, baselines=False, **given)

    return start


@pytest.fixture(scope="module")
def alone(world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digest of the task that `train` makes of each file, in a store of its own."""
    found = {}
    for name in FILES:
        store = at.Store(tmp_path_factory.mktemp("alone"))
        data = world / "in" / f"{name}.csv"
        bound = at.train(data, name=name, base=world / "base", store=store, baselines=False, **SETTINGS)
        found[name] = bound.task.record.digest
    return found


def digests(store: Path) -> dict[str, str]:
    """The digest of every version in a store, read and verified."""
    kept = at.Store(store)
    references = [f"{name}@{version}" for name in kept for version in kept.versions(name)]
    return {reference: kept[reference].record.digest for reference in references}


def states(report: StreamReport) -> dict[str, str]:
    return {row.file: row.state for row in report.rows}


def first(alone: dict[str, str]) -> dict[str, str]:
    return {f"{name}@1": digest for name, digest in alone.items()}


# order, isolation, and what is done only once


def test_each_file_becomes_the_task_that_train_makes_of_it_alone(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport], alone: dict[str, str]
) -> None:
    seen: list[str] = []

    def listen(event: Event) -> None:
        if event["event"] == "file" and event["state"] == "trained":
            seen.append(event["task"])

    report = run(folder, on_event=listen)
    assert seen == [row.task for row in report.rows] == list(FILES)
    assert digests(tmp_path / "store") == first(alone)
    row = report.rows[0]
    assert (row.file, row.kind, row.rows, row.state, row.version) == ("apples.csv", "classify", 30, "trained", 1)
    assert row.score is not None
    assert row.trained_percent
    assert row.bytes
    assert (report.verified, report.changed, report.base_is_intact, report.failed) == (3, [], True, [])
    (size,) = report.sizes
    records = [at.Store(tmp_path / "store")[name].record for name in FILES]
    trained = sum(record.parameters["trained"] for record in records)
    assert size.tasks == 3
    assert size.times == pytest.approx(1 + trained / records[0].parameters["base"])


def test_what_is_done_is_not_done_again_and_a_changed_file_is_the_next_version(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport], alone: dict[str, str]
) -> None:
    run(folder)
    again = run(folder)
    assert set(states(again).values()) == {"unchanged"}
    assert (again.verified, len(again.sizes), again.rows[2].score is not None) == (0, 1, True)

    before = (folder / "bears.csv").read_bytes()
    words_csv(folder / "bears.csv", 30, seed=9)
    os.utime(folder / "apples.csv")  # the same content
    report = run(folder)
    assert states(report) == {"apples.csv": "unchanged", "bears.csv": "trained", "chisels.csv": "unchanged"}
    found = digests(tmp_path / "store")
    assert found.keys() == {"apples@1", "bears@1", "bears@2", "chisels@1"}
    assert first(alone).items() <= found.items()
    assert report.verified == 4

    (folder / "bears.csv").write_bytes(before)
    notes: list[str] = []
    report = run(folder, on_event=lambda event: notes.append(event.get("text", "")))
    assert states(report)["bears.csv"] == "unchanged"
    assert "adaptree rollback bears@1" in " ".join(notes)


def test_a_task_that_was_removed_is_trained_again(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport]
) -> None:
    run(folder)
    at.Store(tmp_path / "store").remove("bears")
    assert states(run(folder))["bears.csv"] == "trained"


def test_other_settings_are_another_version_and_spelled_out_defaults_are_not(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport]
) -> None:
    run(folder)
    assert set(states(run(folder, seed=0, threads=1, weight_decay=0.01)).values()) == {"unchanged"}
    assert set(states(run(folder, seed=1)).values()) == {"trained"}
    assert len(digests(tmp_path / "store")) == 6


def test_a_base_that_is_loaded_already_is_the_same_base(
    folder: Path, world: Path, tmp_path: Path, run: Callable[..., StreamReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder, base=at.load_base(world / "base"))
    monkeypatch.chdir(world)
    assert set(states(run(folder, base="base")).values()) == {"unchanged"}
    other = at.load_base(tiny_base(tmp_path / "other", seed=1))
    assert set(states(run(folder, base=other)).values()) == {"trained"}


def test_a_damaged_neighbour_is_noticed(folder: Path, tmp_path: Path, run: Callable[..., StreamReport]) -> None:
    run(folder)
    weights = tmp_path / "store" / "tasks" / "apples" / "1" / "task.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    words_csv(folder / "bears.csv", 30, seed=5)
    report = run(folder)
    assert (report.changed, report.verified) == (["apples@1"], 3)


# settings, parts and names


def test_a_toml_beside_a_file_has_its_settings(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport], alone: dict[str, str]
) -> None:
    (folder / "bears.toml").write_text(
        'epochs = 1\nmethod = "pfeiffer"\nsize = 3\nname = "wild"\nclass-weights = true\n'
    )
    report = run(folder)
    record = at.Store(tmp_path / "store")["wild"].record
    assert (record.method.partition("(")[0], record.settings["epochs"]) == ("pfeiffer", 1)
    assert "size=3" in record.method
    assert record.settings["class_weights"]
    found = digests(tmp_path / "store")
    assert (found["apples@1"], found["chisels@1"]) == (alone["apples"], alone["chisels"])
    assert [row.task for row in report.rows] == ["apples", "wild", "chisels"]
    (folder / "bears.toml").write_text('epochs = 2\nname = "wild"\n')
    assert states(run(folder)) == {"apples.csv": "unchanged", "bears.csv": "trained", "chisels.csv": "unchanged"}


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ("epoch = 3", "'bears.toml' has 'epoch', which is no option of a run.  Did you mean 'epochs'?"),
        ("epochs = 'many'", "'epochs' in 'bears.toml' is not a whole number."),
        ("fast = 1", "'fast' in 'bears.toml' is not true or false."),
        ("epochs: 3", "'bears.toml' is not toml".replace("'bears", "")),
        ("epochs = 0", "epochs must be a whole number of at least 1, not 0."),
        ("trust_remote_code = true", "'bears.toml' has 'trust_remote_code', which is not of one file."),
        ("joint = true", "which is not of one file."),
        ("name = 'Big Bears'", "Try 'big-bears'."),
        ("method = 'houlsbi'", "Did you mean 'houlsby'?"),
        ("size = 'a'", "'size' in 'bears.toml' is not a whole number."),
        ("epochs = 2\nbatch_size = 4\nbatch-size = 8", "says 'batch-size' twice."),
    ],
)
def test_what_is_wrong_in_a_toml_is_said_and_the_others_go_on(
    folder: Path, run: Callable[..., StreamReport], toml: str, why: str
) -> None:
    for name in ("apples", "chisels"):
        (folder / f"{name}.csv").unlink()
    (folder / "bears.toml").write_text(toml)
    (row,) = run(folder).rows
    assert (row.file, row.state) == ("bears.csv", "failed")
    assert why in row.why


def test_validation_and_test_parts_lie_beside_their_file(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport]
) -> None:
    words_csv(folder / "apples.validation.csv", 12, seed=11)
    words_csv(folder / "apples.test.csv", 9, seed=12)
    words_csv(folder / "owls.dev.csv", 9, seed=13)  # of no file
    (folder / "notes.md").write_text("not data")
    notes: list[str] = []
    report = run(folder, on_event=lambda event: notes.append(event.get("text", "")))
    assert [row.task for row in report.rows] == list(FILES)
    data = at.Store(tmp_path / "store")["apples"].record.data
    assert (data["train"], data["validation"], data["test"]) == (30, 12, 9)
    assert "not data, and not used: notes.md, owls.dev.csv." in notes
    words_csv(folder / "apples.test.csv", 9, seed=14)
    assert states(run(folder))["apples.csv"] == "trained"


@pytest.mark.parametrize(
    ("names", "tasks"),
    [
        (["Kunden Mails.csv", "b.jsonl.gz", "c.train", "c.valid", "c.test"], ["kunden-mails", "b", "c"]),
        (["d.train.csv", "d.val.tsv", ".hidden.csv", "run.toml", "e.parquet"], ["d", "e"]),
        (["x.csv#", "x.png", "y.txt", "y.TEST.TXT"], ["y"]),
    ],
)
def test_a_task_is_called_as_its_file(tmp_path: Path, names: list[str], tasks: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("text,label\na,b\n")
    entries, _ = find_entries(tmp_path)
    assert sorted(entry.task for entry in entries) == sorted(tasks)
    assert all(not entry.problem for entry in entries)
    assert {entry.task for entry in find_entries(tmp_path, "customers")[0]} == {f"customers/{task}" for task in tasks}


def test_folders_that_are_datasets_are_entries(tmp_path: Path) -> None:
    for name in ("imdb/pos/1.txt", "imdb/neg/1.txt", "other/deep/reviews.csv", "saved/dataset_info.json"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("{}")
    entries, unused = find_entries(tmp_path / "in")
    assert [entry.task for entry in entries] == ["imdb", "saved"]
    assert unused == ["other"]
    with pytest.raises(UsageError, match="is one dataset, not a folder of several"):
        find_entries(tmp_path / "in" / "imdb")


def test_two_files_of_one_name_are_both_left_and_the_rest_goes_on(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport]
) -> None:
    (folder / "Bears.tsv").write_text((folder / "bears.csv").read_text().replace(",", "\t"))
    report = run(folder)
    assert [row.file for row in report.failed] == ["Bears.tsv", "bears.csv"]
    assert "would be the task 'bears', and so would 'Bears.tsv'" in report.failed[1].why
    assert digests(tmp_path / "store").keys() == {"apples@1", "chisels@1"}
    (folder / "Bears.toml").write_text("name = 'bears2'")
    assert not run(folder).failed


def test_a_list_names_files_and_their_settings(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport], alone: dict[str, str]
) -> None:
    text = tmp_path / "list.txt"
    text.write_text("# in this order\nin/chisels.csv\n\nin/apples.csv\n")
    assert [row.task for row in run(text).rows] == ["chisels", "apples"]
    table = tmp_path / "list.csv"
    table.write_text("file,name,epochs,fast\nin/bears.csv,wild,1,\nin/apples.csv,,,no\n")
    report = run(table)
    assert states(report) == {"bears.csv": "trained", "apples.csv": "unchanged"}
    assert at.Store(tmp_path / "store")["wild"].record.settings["epochs"] == 1
    lines = tmp_path / "list.jsonl"
    lines.write_text('{"file": "in/bears.csv", "seed": 3}\n{"file": "in/none.csv"}\n')
    report = run(lines, namespace="mine")
    assert [(row.task, row.state) for row in report.rows] == [("mine/bears", "trained"), ("mine/none", "failed")]
    assert "No such file" in report.failed[0].why


# what cannot work


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("empty", "there is no data file in"),
        ("nowhere", "no such folder or list"),
        ("store", "is the store itself"),
        ("in/bears.csv", "is no list of files: line 2 has no 'file'"),
        ("list.txt", "none of the 1 files that"),
    ],
)
def test_a_source_that_is_none_is_an_error(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport], source: str, what: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "list.txt").write_text("nothing.csv")
    with pytest.raises(AdaptreeError, match=what):
        run(tmp_path / source)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"name": "x"}, "'name' is not for all files"),
        ({"epoch": 3}, "there is no option 'epoch'"),
        ({"epochs": 0}, "epochs must be"),
        ({"namespace": "Über"}, "cannot be a task's name"),
        ({"base": "no/such/base at all"}, "no base"),
        ({"method": "houlsbi"}, "no method 'houlsbi'.*Did you mean 'houlsby'"),
        ({"kind": "clasify"}, "no kind 'clasify'.*Did you mean 'classify'"),
    ],
)
def test_wrong_options_are_found_before_anything_is_trained(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport], options: dict[str, Any], what: str
) -> None:
    with pytest.raises(AdaptreeError, match=what):
        run(folder, **options)
    assert not (tmp_path / "store" / "tasks").exists()


def test_a_bad_file_is_set_aside_until_it_changes(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "bears.csv").write_bytes(b"text,label\n\xff\xfe,x\n")
    report = run(folder)
    assert states(report) == {"apples.csv": "trained", "bears.csv": "failed", "chisels.csv": "trained"}
    assert "is not utf-8" in report.failed[0].why
    trained: list[str] = []
    real = InThisProcess.submit

    def submit(self: InThisProcess, call: Call) -> None:
        trained.append(call.key)
        real(self, call)

    monkeypatch.setattr(InThisProcess, "submit", submit)
    report = run(folder)
    assert "is not utf-8" in report.failed[0].why
    assert "Set aside until it changes" in report.failed[0].why
    assert trained == []
    assert run(folder, retry=True).failed
    (folder / "bears.toml").write_text("encoding = 'latin-1'")
    assert run(folder).failed  # one row is too few, but it was tried
    words_csv(folder / "bears.csv", 30)
    assert not run(folder).failed
    assert trained == ["bears"] * 3


def test_a_failure_that_is_not_the_files_is_tried_again(
    folder: Path, run: Callable[..., StreamReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> None:
        raise ZeroDivisionError("oh")

    with monkeypatch.context() as patched:
        patched.setattr("adaptree.training.pipeline.train", broken)
        assert [row.why for row in run(folder).failed] == ["unexpected ZeroDivisionError: oh"] * 3
    assert not run(folder).failed


def test_a_file_that_changes_while_it_is_read_is_not_taken_for_what_it_was(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    from adaptree.training import pipeline

    real = pipeline.load

    def load(run: Any, on_event: Any) -> Any:
        if run.name == "bears" and not (tmp_path / "once").exists():
            (tmp_path / "once").touch()
            words_csv(folder / "bears.csv", 33, seed=8)
        return real(run, on_event)

    monkeypatch.setattr(pipeline, "load", load)
    report = run(folder)
    assert [(row.task, row.why) for row in report.failed] == [
        ("bears", "it was changed while it was read.  Run the command again.")
    ]
    assert not run(folder).failed
    assert len(digests(tmp_path / "store")) == 3


# watching


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(streaming, "LOOK", 0.3)
    return 0.3


def until(true: Callable[[], object]) -> None:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < PATIENCE, "it never came"
        time.sleep(0.02)


def meanwhile(work: Callable[[], None]) -> threading.Thread:
    """Do something in a thread while a stream watches, then press Ctrl-C."""

    def go() -> None:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=go)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_file_that_arrives_slowly_is_read_when_it_is_whole(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport], alone: dict[str, str], quick_looks: float
) -> None:
    lines = (folder / "bears.csv").read_text().splitlines(keepends=True)
    (folder / "bears.csv").unlink()
    kept = at.Store(tmp_path / "store")

    def arrive() -> None:
        until(lambda: len(kept.names()) == 2)
        with (folder / "bears.csv").open("w") as file:
            for line in lines:
                file.write(line)
                file.flush()
                time.sleep(quick_looks / 6)
        until(lambda: "bears" in kept)
        words_csv(folder / "apples.csv", 30, seed=21)
        (folder / "broken.csv").write_text("text,label\n")
        until(lambda: "apples@2" in kept)
        until(lambda: (tmp_path / "store" / "streams" / "set-aside.jsonl").exists())

    thread = meanwhile(arrive)
    report = run(folder, watch=True)
    thread.join()
    found = digests(tmp_path / "store")
    assert found.pop("apples@2")
    assert found == first(alone)
    assert [row.file for row in report.failed] == ["broken.csv"]
    assert not report.stopped
    assert report.verified == 4


def test_an_empty_folder_is_watched_and_one_that_goes_away_ends_nothing(
    tmp_path: Path, world: Path, run: Callable[..., StreamReport], quick_looks: float
) -> None:
    (tmp_path / "in").mkdir()
    notes: list[str] = []

    def listen(event: Event) -> None:
        notes.append(event.get("text", ""))

    def arrive() -> None:
        until(lambda: any("there is no data file in" in text for text in notes))
        (tmp_path / "in").rmdir()
        until(lambda: any("no such folder or list" in text for text in notes))
        shutil.copytree(world / "in", tmp_path / "in")
        until(lambda: len(at.Store(tmp_path / "store")) == 3)

    thread = meanwhile(arrive)
    assert len(run(tmp_path / "in", watch=True, on_event=listen).rows) == 3
    thread.join()


# stopping and going on


def test_ctrl_c_keeps_a_checkpoint_and_no_half_task_and_the_next_run_goes_on_bit_for_bit(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport], alone: dict[str, str]
) -> None:
    def press(event: Event) -> None:
        if event.get("task") == "bears" and event.get("progress") == "epoch 1/2":
            os.kill(os.getpid(), signal.SIGINT)

    report = run(folder, on_event=press)
    assert report.stopped
    assert states(report) == {"apples.csv": "trained", "bears.csv": "stopped", "chisels.csv": "stopped"}
    assert digests(tmp_path / "store").keys() == {"apples@1"}
    assert (tmp_path / "store" / "runs" / "bears" / "checkpoint.safetensors").exists()
    epochs: list[str] = []

    def listen(event: Event) -> None:
        if event.get("task") == "bears" and "progress" in event:
            epochs.append(event["progress"])

    report = run(folder, on_event=listen)
    assert epochs == ["epoch 2/2"]
    assert set(states(report).values()) == {"unchanged", "trained"}
    assert digests(tmp_path / "store") == first(alone)


def test_a_second_ctrl_c_ends_it_at_once(folder: Path, tmp_path: Path, run: Callable[..., StreamReport]) -> None:
    def press(event: Event) -> None:
        if event.get("progress"):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(folder, on_event=press)
    assert not digests(tmp_path / "store")
    assert not run(folder).failed


def test_a_checkpoint_of_the_file_as_it_was_is_not_gone_on_with(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport], alone: dict[str, str]
) -> None:
    def press(event: Event) -> None:
        if event.get("task") == "apples" and event.get("progress"):
            os.kill(os.getpid(), signal.SIGINT)

    before = (folder / "apples.csv").read_bytes()
    words_csv(folder / "apples.csv", 30, seed=30)
    assert run(folder, on_event=press).stopped
    (folder / "apples.csv").write_bytes(before)
    run(folder)
    assert digests(tmp_path / "store") == first(alone)


def _stream_until_killed(source: Path, base: Path, store: Path) -> None:
    """In a process of its own: stream with a checkpoint after every step."""
    import torch

    from adaptree.reports import figures
    from adaptree.training import loop

    torch.set_num_threads(1)
    loop.CHECKPOINT_SECONDS = 0.0
    figures.figures = lambda record: {}  # type: ignore[assignment]
    stream(source, base=base, store=store, baselines=False, **SETTINGS)
    (store / "done").touch()


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.campaign)])
def test_kills_at_random_moments_leave_one_version_of_each_file_with_the_same_bits(
    world: Path, tmp_path: Path, alone: dict[str, str], kills: int
) -> None:
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(
        ["tests.training.test_task_stream", "adaptree.training.package", "transformers.models.bert.modeling_bert"]
    )
    rng = random.Random(kills)

    def start(store: Path, after: float | None) -> bool:
        """Whether the stream was killed."""
        began = time.time()
        process = forks.Process(target=_stream_until_killed, args=(world / "in", world / "base", store))
        process.start()
        if after is not None:  # the moments that count begin with the first run's folder
            until(lambda: not process.is_alive() or any(p.stat().st_mtime > began for p in store.glob("runs")))
        process.join(after)
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        return process.exitcode != 0

    whole = 0.0
    for name in ("cold", "warm"):  # the first one also waits for the server that forks them
        (tmp_path / name).mkdir()
        began = time.monotonic()
        assert not start(tmp_path / name, None)
        whole = time.monotonic() - began
    done = runs = 0
    while done < kills:
        store = tmp_path / f"store-{runs}"
        store.mkdir()
        runs += 1
        while not (store / "done").exists():
            done += start(store, rng.uniform(0, 0.6 * whole) if done < kills else None)
        assert digests(store) == first(alone)


# processes


@pytest.mark.slow
def test_several_jobs_make_the_same_bits_though_a_process_is_killed(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport], alone: dict[str, str]
) -> None:
    killed: list[str] = []

    def kill(event: Event) -> None:
        if event["event"] == "file" and event["state"] == "training" and not killed:
            killed.append(event["task"])
            multiprocessing.active_children()[0].kill()

    report = run(folder, jobs=2, threads=1, on_event=kill)
    assert killed
    assert set(states(report).values()) == {"trained"}
    assert digests(tmp_path / "store") == first(alone)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_work_whose_process_is_killed_again_and_again_fails(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport]
) -> None:
    def kill(event: Event) -> None:
        if event["event"] == "file" and event["state"] == "training" and event["task"] == "bears":
            for process in multiprocessing.active_children():
                process.kill()

    (folder / "chisels.csv").unlink()
    (folder / "apples.csv").unlink()
    report = run(folder, jobs=2, on_event=kill)
    assert [row.why.partition("  ")[0] for row in report.failed] == [
        "the process that trained it was killed by signal 9, in 2 tries."
    ]
    assert not run(folder).failed  # that is not the file's fault


@pytest.mark.slow
def test_ctrl_c_stops_all_jobs_with_their_checkpoints(
    folder: Path, tmp_path: Path, run: Callable[..., StreamReport]
) -> None:
    pressed = []

    def press(event: Event) -> None:
        # Both jobs come to this epoch, and a second press would end the stream at once.
        if event.get("progress") == "epoch 1/400" and not pressed:
            pressed.append(event)
            os.kill(os.getpid(), signal.SIGINT)

    report = run(folder, jobs=2, threads=1, epochs=400, patience=400, on_event=press)
    assert report.stopped
    assert set(states(report).values()) == {"stopped"}
    assert list((tmp_path / "store" / "runs").glob("*/checkpoint.safetensors"))
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_the_processes_of_a_killed_stream_end_too_and_the_next_one_goes_on(
    world: Path, tmp_path: Path, alone: dict[str, str], folder: Path
) -> None:
    words = ["stream", folder, "--base", world / "base", "--store", tmp_path / "store", "--jobs", "2", "--threads", "1"]
    words += [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", value)]
    command = [sys.executable, "-m", "adaptree", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: (tmp_path / "store" / "runs").exists())
    children = _children(process.pid)
    assert len(children) >= 2
    process.kill()
    process.wait()
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    assert subprocess.run(command, capture_output=True).returncode == 0
    found = digests(tmp_path / "store")
    assert found == first(alone)


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# the command


@pytest.fixture
def command(world: Path, tmp_path: Path) -> Callable[..., int]:
    def start(*words: Any) -> int:
        options = ["--base", world / "base", "--store", tmp_path / "store", "--epochs", "1", "--method", "houlsby:4"]
        return main([str(word) for word in ("stream", *words, *options)])

    return start


def test_the_command_prints_a_line_for_each_file_and_what_it_all_costs(
    folder: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.csv").write_text("text,label\n")
    assert command(folder) == 1
    said = capsys.readouterr()
    assert "4 files; 4 to train on" in said.err
    assert "✔ apples.csv → apples@1: classify, 30 rows, accuracy" in said.err
    assert "✘ bad.csv: 'bad.csv' has no rows." in said.err
    assert "the base and 3 stored versions are bit for bit what they were." in said.err
    assert "✘ 1 of 4 files could not be trained on." in said.err
    assert "3 tasks: " in said.out
    assert "one full model each would be 3 times." in said.out
    (folder / "bad.csv").unlink()
    assert command(folder, "-q", "--format", "json") == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)
    assert [(row["file"], row["state"], row["version"]) for row in rows] == [
        (f"{name}.csv", "unchanged", 1) for name in FILES
    ]
    assert said.err == ""
    assert command(folder, "-q", "--format", "csv", "--namespace", "c") == 0
    assert capsys.readouterr().out.startswith("file,task,state,version,kind,rows,metric,score,trained,")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_table_that_has_room_on_it(
    folder: Path, command: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "12")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    for number in range(20):
        (folder / f"bad{number:02}.csv").write_text("text,label\n")
    (folder / "evil\x1b[31m.csv").write_text("text,label\n")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert command(folder, "--format", "jsonl") == 1
    said = terminal.getvalue()
    assert "3 stored versions are bit for bit what they were" in said
    assert "✘ bad19.csv: 'bad19.csv' has no rows." in said
    assert "\x1b[31m" not in said
    from adaptree.cli.stream import StreamProgress

    with StreamProgress() as progress:
        row = {"kind": "", "rows": None, "metric": "", "score": None, "version": None, "seconds": None, "left": None}
        row |= {"trained_percent": None, "bytes": None, "why": "", "done": 0, "files": 40, "event": "file"}
        for number in range(40):
            state = "training" if number == 35 else "unchanged" if number < 30 else "waiting"
            progress({**row, "file": f"f{number}.csv", "task": f"f{number}", "state": state})
        table = progress._table()
        progress({**row, "file": "f0.csv", "task": "f0", "state": "unchanged"})
        after = progress._table()
    assert table.row_count == 6
    assert "f35.csv" in list(table.columns[0].cells)
    assert table.caption == "0 of 40 files done"
    assert "f0.csv" not in list(table.columns[0].cells)
    assert "f0.csv" in list(after.columns[0].cells)  # what has just ended is there, though it came first


def test_a_narrow_terminal_gets_fewer_columns_and_whole_words(
    folder: Path, command: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminals = {name: Terminal() for name in ("stdout", "stderr")}
    for name, terminal in terminals.items():
        monkeypatch.setattr(sys, name, terminal)
    assert command(folder) == 0
    for terminal in terminals.values():
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
        table = [line for line in shown.splitlines() if "apples.csv" in line]
        assert table
        assert max(map(len, table)) <= 80
        assert "apples@1" in table[-1]
        assert "trained" in table[-1]


def test_the_command_reads_what_files_have_in_common_from_a_config(
    folder: Path, tmp_path: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.toml"
    config.write_text("seed = 5\nquiet = true\nnamespace = 'c'\n")
    assert command(folder, "--config", config) == 0
    assert capsys.readouterr().err == ""
    assert {at.Store(tmp_path / "store")[f"c/{name}"].record.seed for name in FILES} == {5}
    config.write_text("sed = 5")
    assert command(folder, "--config", config) == 2
    assert "Did you mean 'seed'?" in capsys.readouterr().err
    with pytest.raises(DataError, match="there is no data file"):
        stream(tmp_path / "store" / "..", store=tmp_path / "store")

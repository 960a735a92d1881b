"""What every executor promises: an outcome for each call, errors as outcomes, lost calls made again, orderly stops."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptree.data.events import Event
from adaptree.errors import UsageError
from adaptree.training.work import Call, Executor, InThisProcess, LocalProcesses, Outcome, executor_for
from adaptree.training.work.cluster import RayCluster
from tests.work import functions

EXECUTORS = ("here", "processes", "ray")
ELSEWHERE = EXECUTORS[1:]
PATIENCE = 180


Heard = list[tuple[str, Event]]
Start = Callable[[str], tuple[Executor, Heard]]


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def of(name: str) -> tuple[Executor, Heard]:
            heard: Heard = []

            def listen(key: str, event: Event) -> None:
                heard.append((key, event))

            if name == "ray":
                request.getfixturevalue("ray_cluster")
            executor = executor_for("ray" if name == "ray" else None, {"here": 1}.get(name, 2), listen)
            stack.enter_context(contextlib.closing(executor))
            return executor, heard

        yield of


def all_of(executor: Executor, calls: list[Call]) -> dict[str, Outcome]:
    for call in calls:
        executor.submit(call)
    return rest(executor, len(calls))


def rest(executor: Executor, count: int) -> dict[str, Outcome]:
    """The outcomes of so many calls."""
    found: list[Outcome] = []
    until = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < until:
        found += executor.outcomes(1.0)
    assert len(found) == count
    return {outcome.key: outcome for outcome in found}


@pytest.mark.parametrize("name", EXECUTORS)
def test_every_call_has_one_outcome_and_its_events_are_heard(name: str, start: Start) -> None:
    executor, heard = start(name)
    found = all_of(executor, [Call(f"call {n}", functions.double, (n,)) for n in range(5)])
    assert {key: outcome.value for key, outcome in found.items()} == {f"call {n}": 2 * n for n in range(5)}
    assert executor.outcomes(0.1) == []
    assert sorted((key, event["text"]) for key, event in heard) == [(f"call {n}", f"doubling {n}") for n in range(5)]


@pytest.mark.parametrize("name", EXECUTORS)
def test_all_events_of_a_call_are_heard_in_order_before_its_outcome(name: str, start: Start) -> None:
    executor, heard = start(name)
    all_of(executor, [Call("count", functions.count, (500,))])
    assert [event["text"] for _, event in heard] == [str(n) for n in range(500)]


@pytest.mark.parametrize("name", EXECUTORS)
def test_an_error_is_an_outcome_that_says_what_to_do(name: str, start: Start) -> None:
    executor, _ = start(name)
    found = all_of(executor, [Call("wrong", functions.fail), Call("broken", functions.break_down)])
    assert found["wrong"].error == "a row is wrong.  Correct it."
    assert found["wrong"].expected
    assert found["broken"].error == "unexpected ZeroDivisionError: by nothing"
    assert not found["broken"].expected
    assert "ZeroDivisionError" in found["broken"].trace


@pytest.mark.parametrize("name", EXECUTORS)
def test_files_and_folders_among_the_arguments_can_be_read_there(name: str, start: Start, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("first")
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    (tmp_path / "folder" / "inside" / "two.txt").write_text("second")
    executor, _ = start(name)
    files = {"file": tmp_path / "one.txt", "folder": tmp_path / "folder"}
    found = all_of(executor, [Call("files", functions.read, (files,))])
    assert found["files"].value == {"file": "first", "folder": [("two.txt", "second")]}


def test_a_cluster_gets_copies_of_files_as_they_are_when_a_call_is_submitted(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    executor, _ = start("ray")
    for text in ("before", "after"):
        file.write_text(text)
        executor.submit(Call(text, functions.read, ({"file": file},)))
    file.write_text("much later")
    executor.submit(Call("where", functions.where, (file,)))
    found = rest(executor, 3)
    assert [found[text].value["file"] for text in ("before", "after")] == ["before", "after"]
    assert found["where"].value != str(file)
    assert found["where"].value.endswith("/data.csv")


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_call_whose_process_is_killed_is_made_again(name: str, start: Start, tmp_path: Path) -> None:
    executor, _ = start(name)
    found = all_of(
        executor, [Call("once", functions.die_once, (str(tmp_path / "mark"),)), Call("always", functions.die)]
    )
    assert found["once"].value == "alive"
    assert "in 2 tries" in found["always"].error


@pytest.mark.parametrize("name", ELSEWHERE)
def test_stop_ends_calls_at_their_next_step_and_begins_no_more(name: str, start: Start, tmp_path: Path) -> None:
    executor, _ = start(name)
    marks = [tmp_path / f"mark-{n}" for n in range(3)]
    for mark in marks:
        executor.submit(Call(mark.name, functions.wait, (str(mark),)))
    until = time.monotonic() + PATIENCE
    while not (marks[0].exists() and marks[1].exists()) and time.monotonic() < until:
        assert executor.outcomes(0.2) == []
    executor.stop()
    found = rest(executor, 3)
    assert all(outcome.stopped or outcome.value == "ended in good order" for outcome in found.values())
    assert found["mark-2"].stopped
    assert not marks[2].exists()


def test_calls_go_on_though_the_machine_that_collects_their_events_is_lost(start: Start) -> None:
    import ray

    executor, _ = start("ray")
    assert isinstance(executor, RayCluster)
    ray.get(executor._events.take.remote())
    ray.kill(executor._events, no_restart=False)
    assert all_of(executor, [Call("call", functions.double, (2,))])["call"].value == 4


def test_a_cluster_that_cannot_be_is_said_in_one_line() -> None:
    with pytest.raises(UsageError, match="no such cluster: 'slurm'"):
        executor_for("slurm", 1, lambda key, event: None)


def test_without_ray_it_says_in_one_line_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError) as caught:
        executor_for("ray", 1, lambda key, event: None)
    assert str(caught.value) == "a cluster needs Ray.  pip install 'adaptree[cluster]'"


def test_the_number_of_jobs_chooses_the_executor() -> None:
    def listen(key: str, event: Event) -> Any: ...

    assert isinstance(executor_for(None, 1, listen), InThisProcess)
    with contextlib.closing(executor_for(None, 2, listen)) as executor:
        assert isinstance(executor, LocalProcesses)
    with pytest.raises(UsageError, match="jobs must be at least 1"):
        executor_for(None, 0, listen)

"""The trials of a search are the same, bit for bit, one after another, in processes and on a Ray cluster."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adaptree as at
from adaptree.data.events import Event
from adaptree.errors import Diverged, UsageError
from adaptree.kinds.classify import Classify
from adaptree.methods import Method, parse
from adaptree.training.result import Fit
from adaptree.training.search import ROUND, Asked, Trial, run_trial, search
from adaptree.training.settings import Settings
from tests.bases import tiny_base, words_csv

pytest.importorskip("optuna")
TRIALS = ROUND + 2
"""Two of them are chosen from the results of the first round."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a file and a store `alone` with a task whose trials were run one after another."""
    root = tmp_path_factory.mktemp("world")
    tiny_base(root / "base", layers=3)
    words_csv(root / "words.csv", 90)
    train(root, root / "alone")
    return root


def train(world: Path, store: Path, **more: Any) -> at.base.Bound:
    return at.train(
        str(world / "words.csv"), name="words", base=world / "base", store=store, search=TRIALS, epochs=4, lr=5e-3,
        method="houlsby(size=8, layers=top:1)", threads=1, baselines=False, objective="cross-entropy", **more,
    )  # fmt: skip


def found(store: Path) -> tuple[str, list[dict[str, Any]]]:
    """The digest of the task's weights, and its trials without their times."""
    record = at.Store(store)["words"].record
    return record.digest, [{k: v for k, v in t.items() if k != "seconds"} for t in record.extra["search"]]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("how", [{"jobs": 2}, {"cluster": "ray"}], ids=["processes", "ray"])
def test_trials_and_task_are_the_same_bit_for_bit(world: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    seen: list[Event] = []
    train(world, tmp_path / "store", on_event=seen.append, **how)
    assert found(tmp_path / "store") == found(world / "alone")
    assert any(trial["stopped"] for trial in found(world / "alone")[1])
    assert [event["number"] for event in seen if event["event"] == "trial"] == list(range(TRIALS))


@pytest.mark.slow
def test_the_trials_are_the_same_though_a_machine_is_lost(ray_cluster: Any, world: Path, tmp_path: Path) -> None:
    node = ray_cluster.add_node(num_cpus=2)
    ray_cluster.wait_for_nodes()
    lost: list[Event] = []

    def lose(event: Event) -> None:
        if event["event"] == "trial" and not lost:
            lost.append(event)
            ray_cluster.remove_node(node, allow_graceful=False)

    train(world, tmp_path / "store", cluster="ray", on_event=lose)
    assert lost
    assert found(tmp_path / "store") == found(world / "alone")


@pytest.mark.slow
def test_ctrl_c_ends_a_search_in_processes_and_what_was_done_is_kept(world: Path, tmp_path: Path) -> None:
    def press(event: Event) -> None:
        if event["event"] == "trial" and event["number"] == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(world, tmp_path / "store", jobs=2, on_event=press)
    kept = (tmp_path / "store" / "runs" / "words" / "search.jsonl").read_text().splitlines()[1:]
    assert {json.loads(line)["number"] for line in kept} >= {0, 1}
    train(world, tmp_path / "store", jobs=2, resume=True)
    assert found(tmp_path / "store") == found(world / "alone")


@pytest.mark.parametrize(
    ("more", "what"),
    [({"search": None}, "one training is one piece of work"), ({"search": 2, "data": iter([])}, "only once")],
)
def test_what_cannot_be_spread_is_refused_before_anything_is_read(more: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        at.train(more.pop("data", "nothing.csv"), jobs=2, **more)


class Scores:
    """Runs of trials with given scores, epoch by epoch; where these end the loss ceases to be a number."""

    def __init__(self, courses: Sequence[list[float]]) -> None:
        self.courses = courses

    def of(self, asked: Asked) -> Any:
        def run(method: Method, how: Settings, watch: Any) -> Fit:
            course = self.courses[asked.number][: how.epochs]
            for value in course:
                watch({"event": "epoch", "accuracy": value})
            if len(course) < int(how.epochs or 0):
                raise Diverged("the loss is not a number any more.")
            best = max(range(len(course)), key=course.__getitem__) + 1
            return Fit({}, Classify(("a", "b")), [{"accuracy": value} for value in course], best, 0.0, True)

        return run

    def trials(self, order: Sequence[int] | None) -> list[Trial]:
        """Trials one after another, or all of a round beside each other, ended in an order."""

        def run_all(todo: Sequence[Asked], earlier: Sequence[Trial]) -> Iterator[Trial]:
            if order is None:
                return (run_trial(asked, earlier, self.of(asked), lambda event: None) for asked in todo)
            known = list(earlier)
            ended = [run_trial(asked, known, self.of(asked), lambda event: None) for asked in todo]
            return iter(sorted(ended, key=lambda trial: order[trial.number % ROUND]))

        how = Settings(epochs=4, lr=1e-3, metric="accuracy")
        unused: Any = None
        trials = search(len(self.courses), parse("houlsby:8"), how, 32, unused, run_all=run_all)[2]
        return [Trial(**{**vars(trial), "seconds": 0.0}) for trial in trials]


SCORE = st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5])


@settings(max_examples=60, deadline=None)
@given(
    courses=st.lists(st.lists(SCORE, min_size=1, max_size=4), min_size=2, max_size=2 * ROUND + 2),
    order=st.permutations(range(ROUND)),
)
def test_trials_beside_each_other_are_those_one_after_another(courses: list[list[float]], order: list[int]) -> None:
    scores = Scores(courses)
    with contextlib.suppress(at.errors.TrainingError):  # all may diverge
        assert scores.trials(order) == scores.trials(None)


def test_a_trial_is_not_stopped_for_scores_that_may_not_be_among_the_best() -> None:
    """Two trials are before it, and one is better; with two more that are unknown, it may be in the best third."""
    from adaptree.training.search import is_weak

    earlier = [Trial(n, "houlsby", 1e-3, 9, score, [score], False, 1.0) for n, score in enumerate((0.5, 0.1, 0.1))]
    for unknown in range(4):
        certain = is_weak(0.3, 1, earlier, 1.0, unknown)
        possible = [
            is_weak(0.3, 1, [*earlier, *(Trial(9, "", 1e-3, 9, s, [s], False, 1.0) for s in more)], 1.0)
            for count in range(unknown + 1)
            for more in itertools.product((0.1, 0.9), repeat=count)
        ]
        assert certain == all(possible)

"""A temperature, which changes no answer, and thresholds by label: chosen on validation and kept in the task."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.bases import FILLER, WORDS, tiny_base

import adaptree as at
from adaptree.errors import TaskCorrupt
from adaptree.kinds import calibration
from adaptree.kinds.choose import Choose
from adaptree.kinds.classify import Classify
from adaptree.kinds.multilabel import LEAST_POSITIVE, Multilabel
from adaptree.tasks.task import Task

BEST = {name: words.split() for name, words in WORDS.items()}


def drawn(rows: int, classes: int, sharpness: float, seed: int = 0) -> tuple[Any, Any]:
    """Logits that are too sure by a factor, and labels drawn from what they should be."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(rows, classes)) * 2
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    gold = np.array([rng.choice(classes, p=row) for row in p])
    return z * sharpness, gold


def nll(z: Any, gold: Any, temperature: float) -> float:
    z = torch.from_numpy(z / temperature).log_softmax(-1).numpy()
    return float(-z[np.arange(len(z)), gold].mean())


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 3.0])
def test_the_temperature_is_the_one_with_the_highest_likelihood(sharpness: float) -> None:
    z, gold = drawn(2000, 4, sharpness)
    found = calibration.of_classes(z, gold)
    assert found == pytest.approx(sharpness, rel=0.1)
    grid = np.exp(np.linspace(-2, 2, 401))
    assert nll(z, gold, found) <= min(nll(z, gold, t) for t in grid) + 1e-7
    assert calibration.of_classes(z, gold) == found
    flags = np.eye(4, dtype=bool)[gold]
    yes = torch.from_numpy(flags * 1.0)
    loss = [float(F.binary_cross_entropy_with_logits(torch.from_numpy(z / t), yes)) for t in grid]
    assert calibration.of_flags(z, flags) == pytest.approx(grid[int(np.argmin(loss))], rel=0.02)


def test_few_rows_and_rows_without_a_mistake_choose_none() -> None:
    z, gold = drawn(calibration.LEAST_ROWS - 1, 3, 3.0)
    assert calibration.of_classes(z, gold) == 1.0
    z, _ = drawn(500, 3, 3.0)
    assert calibration.of_classes(z, z.argmax(1)) == 1.0, "the likelihood would ask for a temperature of 0"
    assert calibration.of_flags(z, z > 0) == 1.0
    z[3, 1] = np.nan
    assert calibration.of_classes(z, np.zeros(500, dtype=int)) == 1.0


def test_questions_of_other_numbers_of_choices_share_a_temperature() -> None:
    z, gold = drawn(600, 4, 3.0)
    few, at_few = drawn(600, 2, 3.0, seed=1)
    examples: Any = [[None] * 4] * 600 + [[None] * 2] * 600
    out = torch.from_numpy(np.concatenate([z.ravel(), few.ravel()])).float()[:, None]
    kind = Choose().calibrated(out, examples, [*gold, *at_few])
    assert kind.temperature == pytest.approx(3, rel=0.15)
    assert kind.decode(out, examples) == Choose().decode(out, examples)
    (sure,) = kind.predictions(out[:4], examples[:1], [{"text": "", "choices": list("abcd")}], None)
    assert sum(sure.scores) == pytest.approx(1)
    assert max(sure.scores) < max(
        Choose().predictions(out[:4], examples[:1], [{"choices": list("abcd")}], None)[0].scores
    )


def test_no_answer_changes_by_a_temperature() -> None:
    z, gold = drawn(400, 5, 4.0)
    out = torch.from_numpy(z).float()
    kind = Classify(tuple("abcde")).calibrated(out, [], gold)
    assert kind.temperature > 2
    assert (kind.decode(out, []) == Classify(tuple("abcde")).decode(out, [])).all()
    flags = np.random.default_rng(0).random(z.shape) < 1 / (1 + np.exp(-z / 4))
    several = [[label for label, yes in zip("abcde", row, strict=True) if yes] for row in flags]
    many = Multilabel(tuple("abcde")).calibrated(out, [], several)
    assert many.temperature > 2
    raw = np.array([calibration.moved(each, 1 / many.temperature) for each in many._least])
    assert (many.decode(out, []) == (out.double().sigmoid().numpy() >= raw)).all()
    (shown,) = many.predictions(out[:1], [], [""], None)
    assert shown.labels == [label for label, yes in zip("abcde", many.decode(out[:1], [])[0], strict=True) if yes]


def test_a_label_has_a_threshold_of_its_own_only_with_enough_rows() -> None:
    rng = np.random.default_rng(0)
    rows = 240
    gold = np.zeros((rows, 3), dtype=bool)
    gold[: rows // 2, 0] = gold[: rows // 4, 1] = gold[: LEAST_POSITIVE - 1, 2] = True
    shift = np.array([0.0, -3.0, -3.0])  # the second and third are never sure
    out = torch.from_numpy(np.where(gold, 2.0, -2.0) + shift + rng.normal(size=gold.shape)).float()
    targets = [[label for label, yes in zip("abc", row, strict=True) if yes] for row in gold]
    kind = Multilabel(tuple("abc")).calibrated(out, [], targets)
    assert len(kind.thresholds) == 3
    assert kind.thresholds[1] < kind.thresholds[0]
    assert kind.thresholds[2] == kind.threshold
    one = replace(kind, thresholds=())
    assert kind.score(targets, kind.decode(out, []))["f1"] > one.score(targets, one.decode(out, []))["f1"]
    few = Multilabel(tuple("abc")).calibrated(out[::3], [], targets[::3])
    assert (few.thresholds, few.temperature) == ((), 1.0), "80 rows are too few"
    assert kind.with_state({"thresholds": [0.1, 0.2, 0.3]}).thresholds == (0.1, 0.2, 0.3), "a checkpoint is JSON"


def test_what_was_not_chosen_is_not_in_the_record() -> None:
    assert Classify(("a", "b")).extra() == {}
    assert Choose().extra() == {}
    assert Multilabel(("a", "b")).extra() == {"threshold": 0.5}


def noisy(path: Path, rows: int, seed: int = 0, several: bool = False) -> Path:
    """Texts whose labels are wrong for a third of them, so that a task is too sure of them."""
    rng = random.Random(seed)
    lines = ["text,label"]
    for _ in range(rows):
        label = rng.choice(list(BEST))
        words = rng.choices(FILLER, k=4) + rng.choices(BEST[label], k=2)
        said = rng.choice(list(BEST)) if rng.random() < 1 / 3 else label
        lines.append(f"{' '.join(words)},{'|'.join(sorted({said, rng.choice(list(BEST))})) if several else said}")
    path.write_text("\n".join(lines) + "\n")
    return path


class World:
    """Two tasks of one label each and one of several, with enough noisy validation rows for a temperature."""

    def __init__(self, root: Path) -> None:
        self.base = at.load_base(tiny_base(root / "base"))
        self.store = at.Store(root / "store")
        self.test = noisy(root / "test.csv", 150, 2)
        options: dict[str, Any] = {"base": self.base, "store": self.store, "baselines": False, "lr": 1e-2, "epochs": 3}
        files = {"validation": noisy(root / "validation.csv", 150, 1)}
        for seed, name in enumerate("ab"):
            at.train(noisy(root / "train.csv", 90), name=name, method="pfeiffer:8", seed=seed, **files, **options)
        at.train(noisy(root / "train.csv", 90), name="t", method="tfidf", test=self.test, **files, **options)
        files = {"validation": noisy(root / "validations.csv", 150, 1, several=True)}
        at.train(noisy(root / "trains.csv", 90, several=True), name="m", method="pfeiffer:8", **files, **options)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("calibration"))


def without(task: Task, **extra: Any) -> Task:
    """The task with another temperature, as a record of an older version has none."""
    kept = {key: value for key, value in task.record.extra.items() if key != "temperature"} | extra
    return Task(replace(task.record, extra=kept), task.tensors, task.parts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a", "t"])
def test_a_trained_task_keeps_its_temperature(world: World, name: str) -> None:
    task = world.store[name]
    temperature = task.record.extra["temperature"]
    assert temperature > 1, "a third of the labels is wrong, and the task does not know that"
    bound, bare = world.base.bind(task), world.base.bind(without(task))
    texts = ["lion wolf the old", "plum and saw"]
    for row, sure, plain in zip(bound.logits(texts), bound.predict(texts), bare.predict(texts), strict=True):
        assert list(sure.scores.values()) == (row.double() / temperature).softmax(-1).tolist()
        assert list(plain.scores.values()) == row.double().softmax(-1).tolist()
        assert (sure.label, sure.score < plain.score) == (plain.label, True)
    ours, others = at.evaluate(bound, world.test), at.evaluate(bare, world.test)
    assert ours["metrics"] == others["metrics"]


def test_the_card_tells_the_error_before_and_after_and_on_which_rows(world: World) -> None:
    from adaptree.reports import card

    for name, where in (("a", "these very rows"), ("t", "other rows than these"), ("m", "these very rows")):
        record = world.store[name].record
        known = record.extra["insight"]["calibration"]
        assert known["error"] != known["error_before"]
        shown = card.write(record)
        assert f"Expected calibration error: {known['error']:.4f}" in shown
        assert f"{known['error_before']:.4f} without the temperature of {record.extra['temperature']:.4g}" in shown
        assert where in shown


def test_several_labels_keep_their_thresholds(world: World) -> None:
    task = world.store["m"]
    temperature = task.record.extra["temperature"]
    chosen = Multilabel(tuple(task.record.labels), 0.4, (0.2, 0.9, 0.6), temperature)
    bound = world.base.bind(without(task, **json.loads(json.dumps(chosen.extra()))))
    kind: Any = bound.kind
    assert kind == chosen
    (found,) = bound.predict(["lion wolf the old"])
    pairs = zip(kind.labels, kind.thresholds, strict=True)
    assert found.labels == [label for label, least in pairs if found.scores[label] >= least]
    (strict,) = bound.predict(["lion wolf the old"], min_score=0.0)
    assert strict.labels == list(kind.labels)


def test_a_mean_is_of_calibrated_outputs(world: World) -> None:
    """The head of the second is brought to the first one's temperature: the mean of a task with itself is the task."""
    task = world.store["a"]
    hot = without(task, temperature=2 * task.record.extra["temperature"])
    head = {name: 2 * t if name.startswith("head.") else t for name, t in hot.tensors.items()}
    same = Task(replace(hot.record, name="same"), head)  # the same probabilities, from outputs twice as large
    tasks = {"a": task, "same": same}
    texts = ["lion wolf the old", "plum and saw", "a new hammer"]
    want = world.base.bind(task).predict(texts)
    for text in ("average(a, same)", "average(same, a)", "average_outputs(a, same)"):
        for one, other in zip(want, world.base.bind(text, tasks=tasks).predict(texts), strict=True):
            assert list(one.scores.values()) == pytest.approx(list(other.scores.values()), abs=1e-6)
    before = world.base.bind("average(a, b)", tasks={"a": without(task), "b": without(world.store["b"])})
    halves = [0.5 * a + 0.5 * b for a, b in zip(*(world.store[n].weights["head.weight"] for n in "ab"), strict=True)]
    assert torch.equal(before.composition.v["head.weight"], torch.stack(halves)), "without temperatures, as ever"


def test_tasks_together_and_in_int8_are_as_sure_as_alone(world: World) -> None:
    texts = ["lion wolf the old", "plum and saw"]
    alone = {name: world.base.bind(world.store[name]).predict(texts) for name in ("a", "m")}
    together = world.base.bind("parallel(a, m)", tasks=world.store).predict(texts)
    assert [each["a"] for each in together] == alone["a"]
    assert [each["m"] for each in together] == alone["m"]
    named = world.base.bind("rows(a, m)", tasks=world.store).predict(texts, tasks=["a", "m"])
    assert named == [alone["a"][0], alone["m"][1]]
    (quick, _) = world.base.bind(world.store["a"], int8=True).predict(texts)
    assert quick.score == pytest.approx(alone["a"][0].score, abs=0.05)


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), "hot", None, True])
def test_a_temperature_that_is_none_is_refused(world: World, bad: Any) -> None:
    with pytest.raises(TaskCorrupt, match="temperature"):
        world.base.bind(without(world.store["a"], temperature=bad))
    with pytest.raises(TaskCorrupt, match="3 labels and 2 thresholds"):
        world.base.bind(without(world.store["m"], thresholds=[0.5, 0.5]))

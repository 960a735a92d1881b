"""Several tasks at once: they share what is learned, are drawn by temperature, and end as tasks like any other."""

from __future__ import annotations

import csv
import json
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from adaptree import api, kinds
from adaptree.cli import main
from adaptree.data.split import split
from adaptree.data.stem import stem
from adaptree.errors import StoreError, UsageError
from adaptree.kinds.reading import open_data
from adaptree.methods import parse
from adaptree.models.base import Base
from adaptree.models.bound import Bound
from adaptree.models.forward import infer
from adaptree.models.loading import load_base
from adaptree.models.opening import open_task
from adaptree.tasks.names import check_name
from adaptree.tasks.store import Store
from adaptree.training import loop
from adaptree.training.encoded import EncodedDataset
from adaptree.training.multitask import MultiTaskDataset, MultiTaskKind, OfTask, rows_per_epoch
from adaptree.training.run import checkpoint_folder
from adaptree.training.settings import Settings
from tests.bases import FILLER, WORDS, tiny_base, words_csv
from tests.test_reference import bert

FAST: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 1e-2, "baselines": False}


def numbers_csv(path: Path, rows: int = 40) -> Path:
    """How many lions there are in two texts."""
    rng = random.Random(1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["premise", "hypothesis", "score"])
        for _ in range(rows):
            lions = rng.randint(0, 9)
            first = " ".join(rng.choices(FILLER, k=5) + ["lion"] * lions)
            writer.writerow([first, " ".join(rng.choices(FILLER, k=4)), lions + rng.random()])
    return path


def tags_jsonl(path: Path, rows: int = 25) -> Path:
    rng = random.Random(2)
    found = []
    for _ in range(rows):
        tokens = [*rng.choices(FILLER, k=rng.randint(2, 7)), rng.choice(WORDS["beast"].split())]
        found.append({"tokens": tokens, "tags": ["O"] * (len(tokens) - 1) + ["B-BEAST"]})
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def labels_jsonl(path: Path, rows: int = 30) -> Path:
    """Any number of labels a text, for which a threshold is chosen on validation."""
    rng = random.Random(3)
    found = []
    for _ in range(rows):
        labels = rng.sample(list(WORDS), rng.randint(1, 3))
        words = rng.choices(FILLER, k=4) + [rng.choice(WORDS[label].split()) for label in labels]
        found.append({"text": " ".join(words), "labels": labels})
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("data")
    return [
        words_csv(folder / "Words of 2024.csv", 60),
        numbers_csv(folder / "lions.csv"),
        tags_jsonl(folder / "tags.jsonl"),
        labels_jsonl(folder / "labels.jsonl"),
    ]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def trained(base: Base, files: list[Path], store: Store) -> list[Bound]:
    return api.train_jointly(files, name="all", store=store, base=base, method="pfeiffer:4", temperature=2.0, **FAST)


# How rows are drawn


@given(st.lists(st.integers(1, 10_000), min_size=2, max_size=8), st.floats(1, 50))
def test_an_epoch_is_shared_out_by_size_to_the_power_of_one_over_the_temperature(
    sizes: list[int], temperature: float
) -> None:
    found = rows_per_epoch(sizes, temperature)
    total, weights = sum(sizes), [size ** (1 / temperature) for size in sizes]
    assert sum(found) == total
    assert all(abs(count - total * weight / sum(weights)) < 1 for count, weight in zip(found, weights, strict=True))
    assert min(found) >= 1


def test_the_extremes_of_the_temperature() -> None:
    assert rows_per_epoch([900, 90, 10], 1.0) == [900, 90, 10]
    assert rows_per_epoch([900, 90, 10], 2.0) == [703, 223, 74]
    nearly = rows_per_epoch([900, 90, 9], 1e6)
    assert max(nearly) - min(nearly) <= 1
    assert rows_per_epoch([900, 90, 9], float("inf")) == [333, 333, 333]


@pytest.fixture(scope="module")
def joined(base: Base, files: list[Path]) -> Any:
    """Of a temperature: the rows of the files together, with their training rows."""
    tables = [open_data(path) for path in files[:2]]
    parts = [EncodedDataset(t, kinds.for_data(t, np.arange(len(t)), base.encoder), base.encoder, 64) for t in tables]

    def make(temperature: float) -> tuple[MultiTaskDataset, np.ndarray[Any, Any]]:
        made = MultiTaskDataset(parts, temperature)
        return made, made.rows([np.arange(len(table)) for table in tables])

    return make


def test_rows_are_drawn_by_seed_and_epoch_alone_and_as_evenly_as_can_be(joined: Any) -> None:
    source, rows = joined(1e6)  # 60 and 40 rows: 50 of each
    first = source.sampled(rows, (7, 0))
    assert np.array_equal(first, source.sampled(rows, (7, 0)))
    assert not np.array_equal(np.sort(first), np.sort(source.sampled(rows, (7, 1))))
    assert not np.array_equal(np.sort(first), np.sort(source.sampled(rows, (8, 0))))
    large, small = (Counter(row for row in first.tolist() if (row >= 60) == later) for later in (False, True))
    assert large.total() == small.total() == 50
    assert set(large.values()) == {1}
    assert sorted(small.values()) == [1] * 30 + [2] * 10


def test_at_temperature_one_every_row_is_there_once(joined: Any) -> None:
    source, rows = joined(1.0)
    assert np.array_equal(source.sampled(rows, (0, 0)), rows)


# What is learned


def reference_gradients(
    base: Base, v: dict[str, Tensor], tasks: list[tuple[Any, Any]], method: str
) -> dict[str, Tensor]:
    """The sum over the tasks, each of texts and targets, of its own gradients: text by text, in plain PyTorch."""
    w = {name: tensor.double() for name, tensor in base.hooked.frozen.items()}
    total = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in v.items()}
    for number, (texts, targets) in enumerate(tasks):
        own = {name: tensor.detach().double().requires_grad_() for name, tensor in v.items()}
        loss = torch.zeros((), dtype=torch.float64)
        for text, gold in zip(texts, targets, strict=True):
            ids = torch.tensor([2, *(base.encoder._tokenizer.token_to_id(word) for word in text.split()), 3])[None]
            state = bert(
                w, own, method == "houlsby", "gelu" if method == "houlsby" else "relu", ids, torch.ones_like(ids)
            )
            out = F.linear(state[:, 0], own[f"head.{number}.weight"], own[f"head.{number}.bias"])
            loss = loss + (F.cross_entropy(out, torch.tensor([gold])) if number == 0 else ((out - gold) ** 2).sum())
        found = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
        for name, grad in zip(own, found, strict=True):
            total[name] += torch.zeros_like(own[name]) if grad is None else grad
    return total


@pytest.mark.parametrize("method", ["pfeiffer", "houlsby"])
def test_the_gradient_of_the_shared_adapters_is_the_sum_over_the_tasks(tmp_path: Path, method: str) -> None:
    base = load_base(tiny_base(tmp_path / "base", layers=3))  # as deep as the reference
    words = open_data(words_csv(tmp_path / "words.csv", 12))
    lengths = [{"text": " ".join(["lion"] * n + ["the"] * (n % 3)), "label": n / 7} for n in range(1, 10)]
    numbers = open_data(lengths, kind="regress")
    tables = [words, numbers]
    singles = [kinds.for_data(table, np.arange(len(table)), base.encoder) for table in tables]
    goal = MultiTaskKind(tuple(singles), ("words", "numbers"), ("accuracy", "pearson"))
    source = MultiTaskDataset(
        [EncodedDataset(t, k, base.encoder, 64) for t, k in zip(tables, singles, strict=True)], 1.0
    )
    rows = source.rows([np.arange(len(table)) for table in tables])
    settings = Settings(epochs=1, batch_size=32).resolved(rows=21, lr=1e-3, limit=64, metric="mean", pooling="first")
    run = loop.Trainer(
        base, parse(f"{method}:4"), goal, (source, rows), (source, rows), settings, None, (), lambda event: None
    )
    generator = torch.Generator().manual_seed(1)
    run._load({name: t + 0.1 * torch.randn(t.shape, generator=generator) for name, t in run.v.items()})
    order = np.random.default_rng(0).permutation(rows)
    value = run._backward(order, source.examples(order))
    found = {name: 32 * p.grad for name, p in run.trained.items() if p.grad is not None}

    mean, std = numbers.values.mean(), numbers.values.std()
    standardised = [float((target - mean) / std) for target in numbers.values]
    plain = {name: p.detach() for name, p in run.v.items()}
    tasks = [
        (words.texts(range(12)), words.values.tolist()),
        (numbers.texts(range(9)), standardised),
    ]
    expected = reference_gradients(base, plain, tasks, method)
    assert value > 0
    assert set(found) == set(expected)
    largest = max(float(grad.abs().max()) for grad in expected.values())
    for name, grad in expected.items():
        assert float((found[name] - grad).abs().max()) < 3e-6 * largest, name  # sums of fp32 numbers that cancel


def test_a_head_without_rows_in_a_batch_still_takes_the_step(base: Base, joined: Any) -> None:
    """Its gradient is zero, alone as among several processes, where what one process has no row of is zero too."""
    source, rows = joined(1.0)
    singles = tuple(part.kind for part in source._parts)
    goal = MultiTaskKind(singles, ("a", "b"), ("accuracy", "pearson"))
    settings = Settings(epochs=1).resolved(rows=100, lr=1e-3, limit=64, metric="mean", pooling="first")
    run = loop.Trainer(
        base, parse("pfeiffer:4"), goal, (source, rows), (source, rows), settings, None, (), lambda event: None
    )
    run.pressed, run.clock = (lambda: False), 0.0
    some = rows[:5]
    run._step(some, source.examples(some))
    assert {name for name in run.trained if name.startswith("head.1")} == {"head.1.weight", "head.1.bias"}
    assert all(p in run.optimiser.state for p in run.trained.values())


# What comes out


def test_each_file_becomes_a_task_with_the_shared_adapters_and_a_head_of_its_own(trained: list[Bound]) -> None:
    records = [bound.task.record for bound in trained]
    assert [record.name for record in records] == ["all/words-of-2024", "all/lions", "all/tags", "all/labels"]
    assert [record.kind for record in records] == ["classify", "regress", "tag", "multilabel"]
    assert all(record.extra["joint"] == {"tasks": [r.name for r in records], "temperature": 2.0} for record in records)
    assert all(record.extra["saw"] == {r.data["digest"]: r.name for r in records} for record in records)
    shared = {name for name in trained[0].task.weights if not name.startswith("head.")}
    assert shared
    for bound in trained:
        assert set(bound.task.weights) == shared | {"head.weight", "head.bias"}
        assert all(torch.equal(bound.task.weights[name], trained[0].task.weights[name]) for name in shared)
    assert not torch.equal(trained[0].task.weights["head.weight"], trained[3].task.weights["head.weight"])
    assert [record.data["train"] for record in records] == [48, 32, 20, 24]
    assert records[1].columns == {"text": "premise", "pair": "hypothesis", "label": "score"}


def test_the_scores_are_those_of_the_tasks_themselves(trained: list[Bound], files: list[Path], store: Store) -> None:
    for bound, path in zip(trained, files, strict=True):
        record = bound.task.record
        _, held = split(open_data(path), seed=0)
        with path.open() as file:
            rows = list(csv.DictReader(file)) if path.suffix == ".csv" else [*map(json.loads, file)]
        found = api.evaluate(open_task(store, record.name, base=bound.base), [rows[i] for i in held])
        assert found["metrics"]["test"] == pytest.approx(record.metrics["validation"], abs=1e-12)
        best = record.history[record.settings["best_epoch"] - 1]
        assert {key: best[key] for key in record.metrics["validation"]} == pytest.approx(record.metrics["validation"])


def test_what_a_kind_chooses_on_validation_is_chosen_by_the_best_epoch(trained: list[Bound], files: list[Path]) -> None:
    bound, table = trained[3], open_data(files[3])
    _, held = split(table, seed=0)
    examples, out = bound.run(table.inputs(held))
    unsettled = kinds.for_data(table, held, bound.base.encoder)
    expected = unsettled.calibrated(out, examples, table.targets(held))
    assert bound.kind == expected
    assert bound.task.record.extra["threshold"] != 0.5, "nothing was chosen"


def test_the_epoch_is_judged_by_the_mean_of_the_main_metrics(trained: list[Bound]) -> None:
    metrics = ["accuracy", "pearson", "f1", "f1"]
    for number in range(2):
        entries = [bound.task.record.history[number] for bound in trained]
        mean = np.mean([entry[metric] for entry, metric in zip(entries, metrics, strict=True)])
        assert entries[0]["joint_mean"] == pytest.approx(mean)
    best = trained[0].task.record.settings["best_epoch"]
    means = [entry["joint_mean"] for entry in trained[0].task.record.history]
    assert means[best - 1] == max(means)


def test_what_is_better_when_lower_counts_the_other_way_round() -> None:
    class Fixed:
        def __init__(self, scores: dict[str, float]) -> None:
            self.scores = scores

        def score(self, targets: Any, answers: Any) -> dict[str, float]:
            return self.scores

    both: Any = (Fixed({"mse": 3.0}), Fixed({"accuracy": 0.5}))
    goal = MultiTaskKind(both, ("a", "b"), ("mse", "accuracy"))
    found = goal.score([0.0, 1.0], [OfTask(0, 0.0), OfTask(1, 1.0)])
    assert found == {"mean": -1.25, "a.mse": 3.0, "b.accuracy": 0.5}


def test_the_logits_are_the_very_bits_of_the_joint_model(
    trained: list[Bound], files: list[Path], base: Base, store: Store
) -> None:
    method = parse("pfeiffer:4")
    v = {name: t for name, t in trained[0].task.weights.items() if not name.startswith("head.")}
    for i, bound in enumerate(trained):
        v |= {f"head.{i}.{key}": bound.task.weights[f"head.{key}"] for key in ("weight", "bias")}
    tables = [open_data(path) for path in files]
    goal = MultiTaskKind(tuple(bound.kind for bound in trained), tuple("abcd"), ("accuracy", "pearson", "f1", "f1"))
    source = MultiTaskDataset(
        [EncodedDataset(t, b.kind, base.encoder, 64) for t, b in zip(tables, trained, strict=True)], 1.0
    )
    each = 12
    rows = source.rows([np.arange(each)] * 4)
    mixed = np.random.default_rng(0).permutation(len(rows))
    plan = base.hooked.hook(method.plan(base.hooked.sites, v))
    out = infer(base, source.examples(rows[mixed]), goal, v, plan, "first")
    back = [out[int(i)] for i in np.argsort(mixed)]
    for number, (bound, table) in enumerate(zip(trained, tables, strict=True)):
        stored = base.bind(store[bound.task.record.name])
        expected = stored.logits(table.inputs(np.arange(each)))
        found = torch.cat([part.flatten() for part in back[number * each : (number + 1) * each]])
        assert torch.equal(found, expected.flatten()), bound.task.record.name


def test_the_joint_kind_answers_mixed_inputs_as_the_tasks_do(trained: list[Bound], base: Base) -> None:
    goal = MultiTaskKind(tuple(bound.kind for bound in trained), tuple("abcd"), ("accuracy", "pearson", "f1", "f1"))
    v = {name: t for name, t in trained[0].task.weights.items() if not name.startswith("head.")}
    for i, bound in enumerate(trained):
        v |= {f"head.{i}.{key}": bound.task.weights[f"head.{key}"] for key in ("weight", "bias")}
    asked: list[Any] = ["a lion", ("the lion", "a bear"), "the old wolf", "a saw and a plum"]
    own = [bound.kind.inputs([one], bound.task.record)[0] for bound, one in zip(trained, asked, strict=True)]
    mixed = [(i, own[i]) for i in (2, 0, 3, 1, 0)]
    examples = goal.examples(base.encoder, mixed, 64)
    out = infer(base, examples, goal, v, base.hooked.hook(parse("pfeiffer:4").plan(base.hooked.sites, v)), "first")
    told = goal.predictions(out, examples, mixed, None)
    assert [of.task for of in told] == [2, 0, 3, 1, 0]
    assert [of.value for of in told] == [trained[i].predict([asked[i]])[0] for i in (2, 0, 3, 1, 0)]
    targets: list[Any] = [["O", "O", "B-BEAST"], np.int64(1), ["tool"], np.float64(2), np.int64(0)]
    expected = []
    for (i, _), example, part, gold in zip(mixed, examples, out, targets, strict=True):
        row = [part] if i == 2 else part[None]
        plain = [[each._replace(at=each.at.value) for each in example]]
        expected.append(trained[i].kind.loss(row, plain, [gold] if isinstance(gold, list) else np.array([gold])))
    torch.testing.assert_close(goal.loss(out, examples, targets), torch.cat(expected), check_dtype=False)
    assert goal.changed(out, out, examples) == 0
    assert goal.changed(out, [-2 * part for part in out], examples) >= 3


def test_they_stack_and_fuse_like_others(trained: list[Bound], files: list[Path], base: Base, store: Store) -> None:
    text = "the lion and a plum"
    assert base.bind("stack(all/lions, all/words-of-2024)", tasks=store).predict(text)[0].label in WORDS
    names = "fuse(all/words-of-2024, all/lions)"
    fused = api.train(files[0], base=base, method=names, store=store, name="fused", epochs=1, baselines=False)
    assert fused.predict(text)[0].label in WORDS
    assert set(fused.task.parts) == {"all/words-of-2024@1", "all/lions@1"}


# How it runs


def weights(found: list[Bound]) -> list[dict[str, Tensor]]:
    return [bound.task.weights for bound in found]


def same(a: list[Bound], b: list[Bound]) -> bool:
    return all(
        set(x) == set(y) and all(torch.equal(x[name], y[name]) for name in x)
        for x, y in zip(weights(a), weights(b), strict=True)
    )


def test_the_same_seed_gives_the_same_bits(trained: list[Bound], base: Base, files: list[Path]) -> None:
    asked: dict[str, Any] = {"base": base, "method": "pfeiffer:4", "temperature": 2.0, **FAST}
    assert same(trained, api.train_jointly(files, name="again", **asked))
    assert not same(trained, api.train_jointly(files, name="again", seed=1, **asked))


@pytest.mark.parametrize("stop", [(1, 3), (2, 1), (2, 5)])
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    trained: list[Bound], base: Base, files: list[Path], tmp_path: Path, stop: tuple[int, int]
) -> None:
    """Within the first epoch, before there is a task; and after it, when the threshold has to be remembered."""
    asked: dict[str, Any] = {"name": "all", "store": tmp_path, "base": base, "method": "pfeiffer:4", "temperature": 2.0}
    steps: Counter[int] = Counter()

    def press(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            steps[event["epoch"]] += 1
            if (event["epoch"], steps[event["epoch"]]) == stop:
                signal.raise_signal(signal.SIGINT)

    if stop[0] == 1:
        with pytest.raises(Exception, match="before the first epoch"):
            api.train_jointly(files, on_event=press, **asked, **FAST)
    else:
        first = api.train_jointly(files, on_event=press, **asked, **FAST)
        assert not first[0].task.record.settings["finished"]
    found = api.train_jointly(files, resume=True, **asked, **FAST)
    assert found[0].task.record.settings["finished"]
    assert same(trained, found)
    for a, b in zip(trained, found, strict=True):
        assert a.kind == b.kind
        assert a.task.record.metrics == b.task.record.metrics
    assert not checkpoint_folder(Store(tmp_path), "all", joint=True).exists()


def test_a_resumed_run_needs_the_same_temperature(base: Base, files: list[Path], tmp_path: Path) -> None:
    asked: dict[str, Any] = {"name": "all", "store": tmp_path, "base": base, "method": "pfeiffer:4"}

    def press(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Exception, match="first epoch"):
        api.train_jointly(files[:2], temperature=2.0, on_event=press, **asked, **FAST)
    with pytest.raises(Exception, match="other data or settings"):
        api.train_jointly(files[:2], temperature=3.0, resume=True, **asked, **FAST)


def test_the_activation_cache_gives_the_same_bits_as_without(
    base: Base, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTREE_CACHE", str(tmp_path))
    asked: dict[str, Any] = {"name": "all", "base": base, "method": "houlsby(size=4, layers=top:1)", **FAST}
    kept = api.train_jointly(files, **asked)
    assert kept[0].task.record.settings["cached_layers"] == 1
    assert same(kept, api.train_jointly(files, activation_cache="off", **asked))


def test_a_batch_in_parts_takes_the_same_steps(trained: list[Bound], base: Base, files: list[Path]) -> None:
    asked: dict[str, Any] = {"base": base, "method": "pfeiffer:4", "temperature": 2.0, **FAST}
    parts = api.train_jointly(files, name="again", accumulate=3, **asked)
    for one, other in zip(weights(trained), weights(parts), strict=True):
        assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-4


@pytest.mark.parametrize("method", ["houlsby:4", "lora:2", "bitfit", "head", "lt_sft:0.05", "full"])
def test_any_method_that_works_for_one_task_works_for_several(base: Base, files: list[Path], method: str) -> None:
    found = api.train_jointly(files[:2], name="all", base=base, method=method, **{**FAST, "epochs": 1})
    assert [len(bound.predict(asked)) for bound, asked in zip(found, ("a lion", [("a lion", "a bear")]), strict=True)]


# What cannot be


def test_names_are_made_of_files() -> None:
    for name, expected in {
        "a/Ünder Score_1.CSV.gz": "under-score_1", "b.train.jsonl": "b-train", "_x.csv": "x", "日本.tsv": "data",
        f"{'y' * 99}.csv": "y" * 64,
    }.items():  # fmt: skip
        assert check_name(stem(name)) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"files": 1}, "two files"),
        ({"name": "a/b"}, "a-b"),
        ({"name": "A"}, "cannot be"),
        ({"temperature": 0.5}, "at least 1"),
        ({"temperature": float("nan")}, "at least 1"),
        ({"method": "tfidf"}, "no adapters to share"),
        ({"class_weights": True}, "one task at a time"),
        ({"metric": "f1"}, "f1"),
        ({"metric": "pearson"}, "pearson"),
        ({"kind": "mlm"}, "mlm"),
        ({"resume": True}, "in a store"),
        ({"temprature": 2.0}, "temprature"),
    ],
)
def test_what_has_no_meaning_together_is_refused(
    base: Base, files: list[Path], change: dict[str, Any], expected: str
) -> None:
    asked: dict[str, Any] = {"name": "all", "base": base, **FAST, **change}
    some = files[: asked.pop("files", 2)]
    with pytest.raises(UsageError, match=expected):
        api.train_jointly(some, **asked)


def test_a_name_that_has_no_room_in_the_store_is_refused_before_training(
    base: Base, files: list[Path], tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    api.train(files[0], name="both", base=base, store=store, method="pfeiffer:4", **{**FAST, "epochs": 1})
    events: list[Any] = []
    with pytest.raises(StoreError, match="'both/1' cannot be added: it is where version 1 of task 'both' lies"):
        api.train_jointly(
            {"1": files[0], "b": files[1]}, name="both", base=base, store=store, on_event=events.append, **FAST
        )
    assert events == []
    assert list(store) == ["both"]


def test_a_command_that_is_refused_leaves_a_stopped_run_as_it_was(
    base: Base, files: list[Path], tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    for name, method in (("low", "pfeiffer(size=4, layers=0)"), ("high", "pfeiffer(size=4, layers=1)")):
        api.train(files[0], name=name, base=base, store=store, method=method, **{**FAST, "epochs": 1})
    kept = checkpoint_folder(store, "both", joint=True) / "checkpoint.safetensors"
    kept.parent.mkdir(parents=True)
    kept.touch()
    for wrong in ({"method": "fuse(low, high)"}, {"pooling": "median"}, {"method": "pfeiffer(layers=9)"}):
        with pytest.raises(UsageError):
            api.train_jointly(files[:2], name="both", base=base, store=store, **{**FAST, **wrong})
        assert kept.exists()


def test_two_files_of_one_name_are_refused_and_a_dict_names_them(base: Base, files: list[Path], tmp_path: Path) -> None:
    other = words_csv(tmp_path / "words-of_2024.csv", 30)
    again = words_csv(tmp_path / "words of 2024.csv", 30)
    with pytest.raises(UsageError, match="both be the task 'all/words-of-2024'"):
        api.train_jointly([files[0], again], name="all", base=base, **FAST)
    found = api.train_jointly({"x": files[0], "y": other}, name="all", base=base, **{**FAST, "epochs": 1})
    assert [bound.task.record.name for bound in found] == ["all/x", "all/y"]
    with pytest.raises(UsageError, match="Give a dict"):
        api.train_jointly([[{"text": "a", "label": "b"}], files[0]], name="all", base=base, **FAST)


# The command


@pytest.fixture
def run(base: Base, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: object, code: int = 0) -> tuple[str, str]:
        args = ["train", *map(str, words), "--base", base.location, "--store", str(tmp_path), "--epochs", "1"]
        assert main(args) == code
        return capsys.readouterr()

    return call


def test_the_command_tells_a_line_for_each_task(run: Any, files: list[Path]) -> None:
    out, err = run(files[0], files[1], "--joint", "--name", "all", "--method", "pfeiffer:4", "--temperature", 2)
    lines = [line for line in out.splitlines() if line.strip().startswith("all/")]
    assert [line.split()[:3] for line in lines] == [
        ["all/words-of-2024@1", "classify", "accuracy"], ["all/lions@1", "regress", "pearson"],
    ]  # fmt: skip
    assert "shared by 2 tasks" in out
    assert "all/lions: regress, 32 rows to train on, 36 an epoch" in err
    out, _ = run(files[0], files[1], "--joint", "--name", "all", "--format", "json", "-q")
    assert [(each["task"], each["version"]) for each in json.loads(out)] == [("all/words-of-2024", 2), ("all/lions", 2)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--joint", "--validation", "v.csv"], "--validation does not go with --joint"),
        (["--joint", "--test", "v.csv"], "evaluate each on its own"),
        (["--joint", "--fast"], "--fast does not go"),
        (["--joint", "--search", "3"], "--search does not go"),
        ([], "2 files are for training several tasks at once.  Add --joint."),
    ],
)
def test_options_of_one_task_are_refused(run: Any, files: list[Path], words: list[str], expected: str) -> None:
    out, err = run(*files[:2], "--name", "all", *words, code=2)
    assert (out, len(err.splitlines())) == ("", 1)
    assert expected in err


def test_a_temperature_is_for_several(run: Any, files: list[Path]) -> None:
    _, err = run(files[0], "--name", "all", "--temperature", 2, code=2)
    assert "Add --joint." in err
    _, err = run(files[0], "--joint", "--name", "all", code=2)
    assert "two files" in err

"""Which stored tasks help: what knows the labels comes first, and it is said how sure that is."""

from __future__ import annotations

import csv
import dataclasses
import json
import random
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptree import api
from adaptree.analysis.suggest import Ranking, ranking, suggest
from adaptree.analysis.suggest.probe import _sample, _sure
from adaptree.cli import main
from adaptree.core import ridge
from adaptree.data.dataset import Dataset
from adaptree.errors import AdaptreeError, DataError, TaskNotFound, UsageError
from adaptree.kinds.reading import open_data
from adaptree.models.base import Base
from adaptree.models.loading import load_base
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from adaptree.training.composing import compose
from tests.bases import FILLER, tiny_base, words_csv

LEARN: dict[str, Any] = {"epochs": 12, "lr": 3e-2, "baselines": False}


def filler_csv(path: Path, rows: int = 60) -> Path:
    """Sentences whose label is told by words that the other files' labels do not depend on."""
    rng = random.Random(1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for i in range(rows):
            words = [*rng.choices(FILLER, k=rng.randint(2, 6)), ("the", "today")[i % 2]]
            writer.writerow([" ".join(words), "xy"[i % 2]])
    return path


def shaken(task: Task, name: str, seed: int, std: float = 0.1) -> Task:
    """The same task with random adapters."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {key: std * torch.randn(t.shape, generator=generator) for key, t in task.weights.items()}
    return Task(dataclasses.replace(task.record, name=name, version=0), tensors)


def deaf(task: Task, name: str, loud: float) -> Task:
    """The same task with adapters that drown every text in one constant, of which float32 keeps nothing else."""
    tensors = {key: torch.zeros_like(t) for key, t in task.weights.items()}
    for key, t in tensors.items():
        if key.endswith("bias"):
            t += loud * torch.linspace(-1, 1, t.numel())
    return Task(dataclasses.replace(task.record, name=name, version=0), tensors)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny"))


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_csv(tmp_path_factory.mktemp("data") / "My (new) words.csv", 150, seed=5)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, base: Base, mine: Path) -> Store:
    """Tasks of the same labels on other texts, of other labels, with random adapters; and some that cannot help."""
    folder = tmp_path_factory.mktemp("more")
    same, other = words_csv(folder / "same.csv", 120, seed=6), filler_csv(folder / "other.csv")
    kept = Store(folder / "store")
    for name, data, method in (
        ("same", same, "pfeiffer:16"), ("other", other, "pfeiffer:16"), ("strong", same, "houlsby:8"),
        ("bags", same, "tfidf"),
    ):  # fmt: skip
        lr = 1e-2 if name == "strong" else 3e-2
        api.train(data, name=name, base=base, store=kept, method=method, **{**LEARN, "lr": lr})
    api.train(mine, name="own", base=base, store=kept, method="pfeiffer:16", **{**LEARN, "epochs": 1})
    api.train_jointly([same, other], name="both", base=base, store=kept, method="pfeiffer:4", **{**LEARN, "epochs": 2})
    kept.add(shaken(kept["same"], "random", 0))
    elsewhere = load_base(tiny_base(folder / "elsewhere", seed=1))
    api.train(same, name="foreign", base=elsewhere, store=kept, method="pfeiffer:16", **{**LEARN, "epochs": 1})
    return kept


@pytest.fixture(scope="module")
def table(mine: Path) -> Dataset:
    found = open_data(mine)
    assert isinstance(found, Dataset)
    return found


def some(store: Store, folder: Path, *names: str) -> Store:
    """A store of its own, with some of the tasks."""
    kept = Store(folder)
    for name in names:
        kept.add(store[name])
    return kept


# The probe


def test_the_probe_is_ridge_regression_with_the_strength_that_leaving_one_out_prefers() -> None:
    """Against a fit for each row left out, by the normal equations."""
    rng = np.random.default_rng(0)
    for n, d in ((30, 6), (12, 20)):
        x, asked = rng.normal(3, 2, (n, d)), rng.normal(3, 2, (5, d))
        y = x[:, :2] @ rng.normal(0, 1, (2, 2)) + rng.normal(0, 2, (n, 2))
        z, w = (x - x.mean(0)) / x.std(0), (asked - x.mean(0)) / x.std(0)
        size = np.linalg.svd(z, compute_uv=False)

        def fitted(rows: Any, asked: Any, strength: float, z: Any = z, y: Any = y) -> Any:
            """With an intercept of no price."""
            a = np.concatenate([np.ones((len(z[rows]), 1)), z[rows]], 1)
            price = strength * np.diag([0.0] + [1.0] * z.shape[1])
            return np.concatenate([np.ones((len(asked), 1)), asked], 1) @ np.linalg.solve(
                a.T @ a + price, a.T @ y[rows]
            )

        strengths = ridge.STRENGTHS * (size**2).mean()
        errors = []
        for strength in strengths:
            left = [fitted(np.arange(n) != i, z[i : i + 1], strength)[0] for i in range(n)]
            errors.append(((y - np.array(left)) ** 2).sum())
        expected = fitted(np.arange(n), w, strengths[int(np.argmin(errors))])
        np.testing.assert_allclose(ridge.predict(x, y, asked), expected, rtol=1e-6, atol=1e-8)


def test_columns_that_tell_nothing_change_nothing() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), rng.normal(size=(20, 1))
    folds = np.arange(20) % 5
    wide = np.concatenate([x, np.full((20, 2), 7.0)], 1)
    np.testing.assert_allclose(ridge.held_out(wide[:, [0, 1, 2]], y, folds), ridge.held_out(x, y, folds))
    assert np.isfinite(ridge.held_out(wide, y, folds)).all()
    nothing = ridge.held_out(np.zeros((20, 1)), y, folds)
    np.testing.assert_allclose(nothing[folds == 0], np.repeat(y[folds != 0].mean(0)[None], 4, 0))


def test_a_sample_is_of_different_texts_and_every_beginning_has_its_share_of_each_label(table: Dataset) -> None:
    order, folds = _sample(table, 90, 0)
    assert len(np.unique(table.keys[order])) == 90
    for count in (30, 60, 90):
        shares = np.bincount(table.values[order[:count]], minlength=3) / count
        whole = np.bincount(table.values, minlength=3) / len(table)
        assert np.abs(shares - whole).max() <= 2 / count
    for fold in range(5):
        assert set(table.values[order[folds == fold]]) == {0, 1, 2}
    again, _ = _sample(table, 90, 0)
    assert np.array_equal(order, again)
    assert not np.array_equal(order, _sample(table, 90, 1)[0])


# The ranking


@pytest.fixture(scope="module")
def found(store: Store, base: Base, table: Dataset) -> Ranking:
    return ranking(table, ["random", "same", "other", "strong"], store, base)


@pytest.mark.slow
def test_what_knows_the_labels_is_ahead_of_what_does_not(found: Ranking) -> None:
    gains = {gain.task: gain for gain in found.gains}
    assert {gain.task for gain in found.gains[:2]} == {"strong", "same"}
    assert gains["same"].gain > gains["other"].gain
    assert gains["same"].gain > gains["random"].gain
    assert gains["same"].sure == gains["strong"].sure == "clear"
    assert gains["other"].sure in ("unsure", "no")
    assert gains["random"].sure != "clear"  # other features of the same texts may help a little
    for gain in found.gains:
        assert gain.low < gain.gain < gain.high
        assert gain.rows == 150
        assert gain.bare == found.gains[0].bare


def test_an_adapter_that_does_nothing_gains_nothing(store: Store, base: Base, table: Dataset) -> None:
    idle = shaken(store["same"], "idle", 0, std=0.0)
    (gain,) = ranking(table, ["idle"], {"idle": idle}, base).gains
    assert gain.gain == pytest.approx(0, abs=1e-5)
    assert gain.sure in ("unsure", "no")


def test_what_is_explained_is_that_of_the_vectors_that_a_task_gives(store: Store, base: Base, table: Dataset) -> None:
    """The gain again from `features`, and from the definition: errors on held-out rows over those of the mean."""
    order, folds = _sample(table, 450, 0)
    texts, y = table.texts(order), np.eye(3)[table.values[order]]

    def errors(x: Any) -> float:
        return float(((y - ridge.held_out(x, y, folds)) ** 2).sum())

    mean = sum(((y[folds == fold] - y[folds != fold].mean(0)) ** 2).sum() for fold in range(5))
    bare = errors(base.features(texts).numpy())
    adapted = errors(base.bind(store["same"]).features(texts).numpy())
    (gain,) = ranking(table, ["same"], store, base).gains
    assert gain.gain == pytest.approx((bare - adapted) / mean, rel=1e-6)
    assert gain.bare == pytest.approx(1 - bare / mean, rel=1e-6)


def test_the_same_seed_gives_the_same_ranking(found: Ranking, store: Store, base: Base, table: Dataset) -> None:
    assert ranking(table, ["strong", "other", "same", "random"], store, base) == found
    assert ranking(table, ["random", "same", "other", "strong"], store, base, seed=1) != found


def test_many_tasks_are_halved_and_the_best_comes_through(store: Store, base: Base, table: Dataset) -> None:
    tasks = {f"r{i}": shaken(store["same"], f"r{i}", i) for i in range(10)} | {"strong": store["strong"]}
    events: list[dict[str, Any]] = []
    found = ranking(table, list(tasks), tasks, base, top=1, on_event=events.append)
    stages = [(event["tasks"], event["rows"]) for event in events if event["event"] == "stage"]
    assert stages == [(11, 50), (4, 150)]
    assert found.gains[0].task == "strong"
    assert [gain.rows for gain in found.gains] == [150] * 4 + [50] * 7
    assert sum(event["event"] == "probe" for event in events) == 15
    alone = ranking(table, ["strong"], tasks, base).gains[0]
    assert dataclasses.replace(alone, sure="") == dataclasses.replace(found.gains[0], sure="")  # the bits of one pass


def test_sure_is_said_in_view_of_how_many_were_tried() -> None:
    assert _sure(0.3, 0.1, 0.5, 0.1, 1) == "clear"
    assert _sure(0.3, 0.1, 0.5, 0.1, 500) == "likely"  # three standard deviations: one of 500 has that by chance
    assert _sure(0.3, -0.1, 0.5, 0.1, 1) == "unsure"
    assert _sure(-0.3, -0.5, -0.1, 0.1, 1) == "no"


def test_numbers_can_be_the_target_too(store: Store, base: Base, tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = []
    for _ in range(120):
        words = rng.choices(FILLER, k=5) + rng.choices(["lion", "wolf", "saw"], k=rng.randint(1, 6))
        beasts = sum(word in ("lion", "wolf") for word in words)
        rows.append({"text": " ".join(words), "label": beasts / 3 + rng.random() / 10})
    data = open_data(rows, kind="regress")
    assert isinstance(data, Dataset)
    gains = {gain.task: gain for gain in ranking(data, ["strong", "random"], store, base).gains}
    assert gains["strong"].gain > gains["random"].gain


# The suggestion


def test_a_suggestion_says_what_to_run_and_what_was_left_out(store: Store, base: Base, mine: Path) -> None:
    told = suggest(mine, store, base)
    assert told.gains[0].task == "strong"
    assert set(told.unfusable) == {"strong"}
    assert set(told.skipped) == {"bags", "foreign", "own", "both/same"}
    assert "tfidf does not use the base" in told.skipped["bags"]
    assert "another base" in told.skipped["foreign"]
    assert "this very data" in told.skipped["own"]
    assert "same adapters as 'both/other'" in told.skipped["both/same"]
    assert told.fuse[0] == "same"
    assert told.fuse[-1] == "own", "the data's own adapters are fused too, as in the paper"
    words = shlex.split(told.command)
    assert words == [
        "adaptree", "compose", f"fuse({', '.join(told.fuse)})", "--name", "my-new-words-fused", "--train", str(mine),
    ]  # fmt: skip


def test_the_fuse_can_be_trained(store: Store, base: Base, mine: Path) -> None:
    told = suggest(mine, store, base, top=2)
    method = shlex.split(told.command)[2]
    fused = api.train(mine, name="x", base=base, store=store.path, method=method, epochs=1, baselines=False)
    assert {name.partition("@")[0] for name in fused.task.parts} == set(told.fuse)
    store.remove("x")


def test_a_task_that_was_trained_together_with_this_data_is_not_ranked(
    store: Store, base: Base, tmp_path: Path, mine: Path
) -> None:
    kept = Store(tmp_path)
    kept.add(store["same"])
    files = [mine, filler_csv(tmp_path / "other.csv", 40)]
    api.train_jointly(files, name="both", base=base, store=kept, method="pfeiffer:4", **{**LEARN, "epochs": 1})
    told = suggest(mine, kept, base)
    assert [gain.task for gain in told.gains] == ["same"]
    assert "both/my-new-words" in told.skipped["both/other"]
    kept.remove("both/my-new-words")  # what the other learnt stays learnt
    assert "both/my-new-words" in suggest(mine, kept, base).skipped["both/other"]


def test_if_nothing_beats_the_base_it_says_so(store: Store, base: Base, tmp_path: Path, mine: Path) -> None:
    kept = Store(tmp_path)
    for i in range(2):
        kept.add(deaf(store["same"], f"r{i}", 1e12 * (i + 1)))
    told = suggest(mine, kept, base)
    assert all(gain.gain < 0 for gain in told.gains)
    assert told.verdict.startswith("None of 2 tasks beats the bare base;")
    assert told.fuse == []
    assert shlex.split(told.command) == [
        "adaptree", "train", str(mine), "--name", "my-new-words", "--method", "pfeiffer", "--base", base.location,
    ]  # fmt: skip
    latin = tmp_path / "latin.csv"
    latin.write_bytes(mine.read_text().replace("lion", "liôn").encode("latin-1"))
    told = suggest(latin, kept, base, encoding="latin-1")
    assert shlex.split(told.command)[-2:] == ["--encoding", "latin-1"]


def test_what_is_made_of_a_task_of_this_very_data_is_not_ranked(
    store: Store, base: Base, tmp_path: Path, mine: Path
) -> None:
    kept = some(store, tmp_path, "same", "own")
    compose("average(same, own)", name="made", store=kept, base=base)
    told = suggest(mine, kept, base)
    assert [gain.task for gain in told.gains] == ["same"]
    assert "'own@1'" in told.skipped["made"]


def test_what_is_made_of_it_at_any_remove_is_not_ranked_either(
    store: Store, base: Base, tmp_path: Path, mine: Path
) -> None:
    kept = some(store, tmp_path / "store", "same", "own", "other")
    few = {**LEARN, "epochs": 1}
    compose("average(same, own)", name="made", store=kept, base=base)
    compose("average(made, same)", name="far", store=kept, base=base)
    more = words_csv(tmp_path / "more.csv", 60, seed=8)
    api.train(more, name="fused", base=base, store=kept, method="fuse(own, other)", **few)
    api.train(more, name="upper", base=base, store=kept, method="pfeiffer:4", on="fused", **few)
    api.train_jointly([mine, more], name="both", base=base, store=kept, method="pfeiffer:16", **few)
    compose("average(same, both/more)", name="joined", store=kept, base=base)
    for name in ("own", "made", "both/my-new-words"):
        kept.remove(name, force=True)  # what was learned from it stays learned
    told = suggest(mine, kept, base)
    assert sorted(gain.task for gain in told.gains) == ["other", "same"]
    assert {"far", "fused", "upper", "joined", "both/more"} <= set(told.skipped)


def test_an_average_is_not_taken_for_the_data_s_own_adapter(
    store: Store, base: Base, tmp_path: Path, mine: Path
) -> None:
    kept = some(store, tmp_path, "same", "own")
    compose("average(own, same)", name="zed", store=kept, base=base)
    assert suggest(mine, kept, base).fuse == ["same", "own"]


def test_adapters_in_other_layers_are_not_fused_together(store: Store, base: Base, tmp_path: Path, mine: Path) -> None:
    kept = Store(tmp_path)
    kept.add(store["same"])
    data = words_csv(tmp_path / "a.csv", 120, seed=7)
    api.train(data, name="top", base=base, store=kept, method="pfeiffer(size=16, layers=top:1)", **LEARN)
    told = suggest(mine, kept, base)
    assert len(told.gains) == 2
    assert told.fuse == []


def test_adapters_in_other_places_are_not_fused_together(store: Store, base: Base, tmp_path: Path, mine: Path) -> None:
    """One is beside a layer's last norm, the other in front of its residual add: the command has to run."""
    kept = Store(tmp_path)
    kept.add(store["same"])
    data = words_csv(tmp_path / "a.csv", 120, seed=7)
    how = "houlsby_feedforward(size=16, norms=false)"
    api.train(data, name="front", base=base, store=kept, method=how, **LEARN)
    told = suggest(mine, kept, base)
    assert len(told.gains) == 2
    assert told.unfusable == {}
    assert told.fuse == []


def test_what_cannot_be_asked_is_answered_by_one_line(store: Store, base: Base, tmp_path: Path, mine: Path) -> None:
    empty = Store(tmp_path / "empty")
    with pytest.raises(TaskNotFound, match="no task in the store yet"):
        suggest(mine, empty, base)
    empty.add(store["foreign"])
    with pytest.raises(TaskNotFound, match=r"none of the 1 stored tasks can help on .*another base"):
        suggest(mine, empty, base)
    with pytest.raises(DataError, match="at least 20"):
        suggest(words_csv(tmp_path / "few.csv", 12), store, base)
    tags = tmp_path / "tags.jsonl"
    tags.write_text('{"tokens": ["a", "lion"], "tags": ["O", "B-X"]}\n' * 3)
    with pytest.raises(UsageError, match="one label or one number"):
        suggest(tags, store, base)
    with pytest.raises(UsageError, match="at least 1 task"):
        suggest(mine, store, base, top=0)


def test_a_damaged_task_is_left_out_and_told(store: Store, base: Base, tmp_path: Path, mine: Path) -> None:
    kept = Store(tmp_path)
    for name in ("same", "other", "strong"):
        kept.add(store[name])
    (kept.path_of("other") / "task.json").write_text("{")
    with (kept.path_of("strong") / "task.safetensors").open("r+b") as file:
        file.truncate(100)
    told = suggest(mine, kept, base)
    assert [gain.task for gain in told.gains] == ["same"]
    assert "damaged" in told.skipped["other"]
    assert "damaged" in told.skipped["strong"]


def test_a_task_that_makes_no_numbers_or_lacks_weights_is_left_out_and_told(
    store: Store, base: Base, table: Dataset
) -> None:
    same = store["same"]
    wild = shaken(same, "wild", 0, std=float("inf"))
    lame = Task(same.record, {name: t for name, t in same.weights.items() if name.startswith("head.")})
    found = ranking(table, ["wild", "lame", "same"], {"wild": wild, "lame": lame, "same": same}, base)
    assert [gain.task for gain in found.gains] == ["same"]
    assert "not finite" in found.skipped["wild"]
    assert "lacks the weight" in found.skipped["lame"]


# The command


@pytest.fixture
def run(base: Base, store: Store, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: object, code: int = 0, where: Path = store.path) -> tuple[str, str]:
        assert main(["suggest", *map(str, words), "--base", base.location, "--store", str(where)]) == code
        return capsys.readouterr()

    return call


def test_the_command_prints_a_table_and_what_to_run(run: Any, mine: Path, store: Store) -> None:
    out, err = run(mine, "--top", 2, "--rows", 90)
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert lines[0] == ["task", "gain", "95", "%", "sure", "fusable", "rows"]
    assert [line[0] for line in lines if line[0] in ("strong", "same", "other", "random", "both/other")] == [
        "strong", "same",
    ]  # fmt: skip
    assert "help for sure" in out
    assert shlex.split(out.splitlines()[-1])[-4:] == ["--train", str(mine), "--store", str(store.path)]
    assert "'strong' cannot be fused" in err
    assert "'bags' is not ranked" in err
    assert "tasks on 90 rows" in err
    out, err = run(mine, "--quiet")
    assert err == ""


def test_programs_get_all_of_it(run: Any, mine: Path, base: Base, store: Store) -> None:
    out, _ = run(mine, "--format", "json", "-q")
    told = json.loads(out)
    expected = suggest(mine, store, base).to_dict()
    assert told["tasks"] == expected["tasks"]
    assert told["skipped"] == expected["skipped"]
    assert {row["task"]: row["fusable"] for row in told["tasks"]}["strong"] is False
    out, _ = run(mine, "--format", "csv", "-q")
    assert out.splitlines()[0].startswith("task,gain,low,high,sure,bare,rows,fusable")


def test_an_empty_store_is_one_line(run: Any, mine: Path, tmp_path: Path) -> None:
    out, err = run(mine, code=1, where=tmp_path)
    assert out == ""
    assert err.splitlines() == [
        "✘ there is no task in the store yet.  adaptree train DATA --name NAME --method pfeiffer"
    ]


def test_every_error_is_ours(store: Store, base: Base, tmp_path: Path) -> None:
    with pytest.raises(AdaptreeError, match="no such file"):
        suggest(tmp_path / "none.csv", store, base)

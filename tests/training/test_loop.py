"""Training: the same bits for the same seed, the best epoch kept, the base untouched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.bases import tiny_base, words_csv

import adaptree as at
from adaptree import kinds
from adaptree.errors import TrainingError, UsageError
from adaptree.kinds import metrics
from adaptree.kinds.metrics import perfect as metrics_perfect
from adaptree.models.fingerprint import fingerprint
from adaptree.tasks.store import Store
from adaptree.training import checkpoint, loop, package
from adaptree.training.settings import Settings, default_epochs, learning_rate


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> at.Base:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("base")))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_csv(tmp_path_factory.mktemp("data") / "words.csv", 120)


def train(data: Path, base: at.Base, **changes: Any) -> at.Bound:
    settings: dict[str, Any] = {"epochs": 3, "lr": 5e-3, "batch_size": 16, "method": "houlsby:8", "baselines": False}
    return at.train(data, base=base, **(settings | changes))


def same(a: at.Task, b: at.Task) -> bool:
    return all(torch.equal(a.weights[name], b.weights[name]) for name in a.weights | b.weights)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(data: Path, base: at.Base) -> None:
    first = train(data, base)
    torch.manual_seed(99)
    np.random.seed(99)
    assert same(first.task, train(data, base).task)
    assert not same(first.task, train(data, base, seed=1).task)


def test_many_tasks_leave_the_base_and_each_other_unchanged(data: Path, base: at.Base, tmp_path: Path) -> None:
    before = base.fingerprint
    texts = [f"the {word} seen" for word in ("lion", "saw", "plum")]
    store = Store(tmp_path)
    kept: dict[str, torch.Tensor] = {}
    for number in range(4):
        method = ("houlsby:8", "pfeiffer:4")[number % 2]
        bound = train(data, base, name=f"t{number}", seed=number, method=method, store=store, epochs=1)
        kept[bound.task.record.name] = bound.logits(texts)
    assert fingerprint(base.hooked.backbone) == before
    for name, logits in kept.items():
        assert torch.equal(base.bind(store[name]).logits(texts), logits)


def test_logits_do_not_depend_on_the_batch(data: Path, base: at.Base) -> None:
    bound = train(data, base, epochs=1)
    texts = ["the " * n + word for n in (1, 4, 9, 17, 30) for word in ("lion", "saw", "plum near", "")]
    together = bound.logits(texts, batch_size=7)
    for i, text in enumerate(texts):
        assert torch.equal(bound.logits([text])[0], together[i])


def test_the_probe_in_the_file_is_what_the_task_gives(data: Path, base: at.Base, tmp_path: Path) -> None:
    store = Store(tmp_path)
    train(data, base, name="words", store=store)
    task = store["words"]
    assert torch.equal(base.bind(task).logits(task.record.probe["inputs"]), task.tensors["probe.logits"])


def test_the_best_epoch_is_kept(data: Path, base: at.Base) -> None:
    bound = train(data, base, epochs=6, lr=0.02)
    record = bound.task.record
    scores = [h["accuracy"] for h in record.history]
    assert scores[record.settings["best_epoch"] - 1] == max(scores)
    assert record.metrics["validation"]["accuracy"] == max(scores)


def test_training_stops_when_nothing_gets_better(data: Path, base: at.Base) -> None:
    record = train(data, base, epochs=50, patience=2, lr=0.02).task.record
    assert len(record.history) < 50
    assert len(record.history) == record.settings["best_epoch"] + 2


def test_max_steps_ends_in_the_middle_of_an_epoch(data: Path, base: at.Base) -> None:
    record = train(data, base, max_steps=2).task.record
    assert len(record.history) == 1
    assert record.history[0]["rows"] <= 32


@pytest.mark.parametrize("steps", [2, 8])
def test_a_run_that_dies_on_its_last_step_is_resumed_to_the_same_bits(
    data: Path, base: at.Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    def die(run: Any) -> None:
        if run.state.step == steps:
            raise KeyboardInterrupt
        real(run)

    whole = train(data, base, max_steps=steps).task
    real = loop.Trainer._close_epoch
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_close_epoch", die)
        with pytest.raises(KeyboardInterrupt):
            train(data, base, max_steps=steps, store=Store(tmp_path))
    resumed = train(data, base, max_steps=steps, store=Store(tmp_path), resume=True).task
    assert len(resumed.record.history) == len(whole.record.history)
    assert same(whole, resumed)


def test_a_run_goes_on_when_another_of_its_name_ends(
    data: Path, base: at.Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    store = Store(tmp_path)

    def other_ends(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3:
            checkpoint.remove(tmp_path / "runs" / "task")

    assert train(data, base, store=store, on_event=other_ends).task.record.version == 1
    assert list((tmp_path / "runs").iterdir()) == []


def test_only_what_is_in_a_store_is_resumed(data: Path, base: at.Base) -> None:
    with pytest.raises(UsageError, match="store"):
        train(data, base, resume=True)


def test_class_weights_and_dropout_change_what_is_learnt(data: Path, base: at.Base) -> None:
    plain = train(data, base).task
    skewed = data.parent / "skewed.csv"
    lines = data.read_text().splitlines()
    skewed.write_text(
        "\n".join([lines[0], *(line for i, line in enumerate(lines[1:]) if i % 3 != 2 or i % 5 == 0)]) + "\n"
    )
    assert not same(train(skewed, base).task, train(skewed, base, class_weights=True).task)
    dropped = train(data, base, dropout=True).task
    assert not same(plain, dropped)
    assert same(dropped, train(data, base, dropout=True).task)


def test_a_method_may_be_trained_with_dropout_unless_the_settings_say_otherwise(
    data: Path, base: at.Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, dropped = train(data, base, epochs=1).task, train(data, base, epochs=1, dropout=True).task
    assert plain.record.settings["dropout"] is False
    monkeypatch.setattr(at.Houlsby, "base_dropout", True)
    by_default = train(data, base, epochs=1).task
    assert by_default.record.settings["dropout"] is True
    assert same(by_default, dropped)
    assert same(train(data, base, epochs=1, dropout=False).task, plain)


def test_only_the_asked_layers_are_trained(data: Path, base: at.Base) -> None:
    names = set(train(data, base, method="houlsby(size=4, layers=1)").task.weights)
    assert not any(name.startswith("0.") or "layer.0." in name or "embeddings" in name for name in names)
    assert any(name.startswith("1.attention") for name in names)


def test_a_loss_that_explodes_is_said(data: Path, base: at.Base) -> None:
    with pytest.raises(TrainingError, match="--lr"):
        train(data, base, lr=1e30, clip=1e30, weight_decay=0.0)


def test_an_unknown_setting_offers_a_near_one(data: Path, base: at.Base) -> None:
    with pytest.raises(UsageError, match="epochs"):
        train(data, base, epoch=3)


def test_rows_may_be_dicts(base: at.Base) -> None:
    rows = [{"text": f"{word} {i}", "label": word} for i in range(8) for word in ("lion", "saw")]
    bound = at.train(rows, base=base, epochs=1, baselines=False)
    assert bound.predict(["lion"])[0].label in ("lion", "saw")


def test_a_pair_and_a_text_are_not_taken_for_each_other(base: at.Base) -> None:
    rows = [{"a": f"lion {i}", "b": f"saw {i}", "label": "xy"[i % 2]} for i in range(20)]
    single = at.train(rows, base=base, text="a", label="label", epochs=1, baselines=False)
    pairs = at.train(rows, base=base, text="a", text_pair="b", label="label", epochs=1, baselines=False)
    with pytest.raises(UsageError, match="one text"):
        single.predict([("lion", "saw")])
    with pytest.raises(UsageError, match="two texts"):
        pairs.predict(["lion"])
    assert len(pairs.predict([("lion", "saw"), ["bear", "saw"]])) == 2


def test_events_tell_how_it_goes(data: Path, base: at.Base) -> None:
    events: list[dict[str, Any]] = []
    train(data, base, on_event=events.append)
    told = [e["event"] for e in events if e["event"] not in ("step", "estimate")]  # the estimate comes after a second
    assert told == ["start", "note", "epoch", "epoch", "epoch", "end"]
    steps = [e for e in events if e["event"] == "step"]
    assert steps[-1]["seen"] == steps[-1]["total"] == 3 * 96
    assert max(e["lr"] for e in steps) <= 5e-3
    assert steps[-1]["lr"] < 1e-3


def test_the_learning_rate_warms_up_over_a_tenth_and_falls_to_zero() -> None:
    assert learning_rate(0.05, 1.0, 0.1) == pytest.approx(0.5)
    assert learning_rate(0.1, 1.0, 0.1) == pytest.approx(1.0)
    assert learning_rate(0.55, 1.0, 0.1) == pytest.approx(0.5)
    assert learning_rate(1.0, 1.0, 0.1) == 0.0
    assert learning_rate(0.5, 1.0, 0.0) == 0.5
    assert learning_rate(0.5, 1.0, 1.0) == 0.5


def test_defaults_follow_the_data_the_method_and_the_base() -> None:
    assert [default_epochs(n) for n in (10, 1000, 2500, 5000, 10**6)] == [100, 20, 8, 4, 4]
    assert [default_epochs(n) * n // 32 for n in (80, 160, 320)] == [200] * 3  # batches
    chosen = Settings().resolved(rows=2500, lr=1e-3, limit=128, metric="accuracy", pooling="mean")
    assert (chosen.epochs, chosen.lr, chosen.max_length, chosen.metric, chosen.pooling) == (
        8,
        1e-3,
        128,
        "accuracy",
        "mean",
    )
    assert kinds.get("regress").metrics[0] == "pearson"


def test_a_slow_starter_has_half_of_its_epochs(data: Path, base: at.Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.Trainer, "_is_better", lambda self, new, old: False)
    assert len(train(data, base, epochs=12, patience=2).task.record.history) == 6


def test_a_perfect_score_ends_a_run_though_the_loss_still_falls(
    data: Path, base: at.Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.Trainer, "_is_better", lambda self, new, old: True)
    assert len(train(data, base, epochs=8, patience=2).task.record.history) == 8
    monkeypatch.setattr(metrics, "perfect", lambda metric, value: True)
    assert len(train(data, base, epochs=8, patience=2).task.record.history) == 3
    assert [metrics_perfect(*each) for each in (("accuracy", 1.0), ("accuracy", 0.99), ("loss", 0.0))] == [1, 0, 1]


@pytest.mark.parametrize("method", ["houlsby:8", "lt_sft:0.02", "full", "head", "lora(rank=2, layers=top:1)", "tfidf"])
def test_scores_are_of_the_very_logits_that_the_task_gives(
    data: Path, base: at.Base, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    real, seen = package.decode, []

    def check(bound: Any, part: Any, out: Any = None, keep: int = 0) -> Any:
        assert out is not None
        seen.append(torch.equal(out, bound.logits(part.dataset.texts(part.rows))))
        return real(bound, part, out, keep)

    monkeypatch.setattr(package, "decode", check)
    # A solved head learns the rows that were held out, too, unless they come from a file of their own.
    train(data, base, method=method, **({"validation": data} if method == "head" else {}))
    assert seen == [True]


def test_a_batch_size_that_is_no_positive_whole_number_is_refused(data: Path, base: at.Base) -> None:
    """-1 gave an empty list for two texts."""
    bound = train(data, base, epochs=1)
    both = base.bind("parallel(a, b)", tasks={"a": bound.task, "b": bound.task})
    for call in (bound.predict, bound.logits, bound.features, bound.decode, base.features, both.predict):
        for size in (-1, 0, 2.5, True, "8"):
            with pytest.raises(UsageError, match="batch_size must be a whole number of at least 1"):
                call(["lion", "old saw"], batch_size=size)
    assert len(bound.predict(["lion", "old saw"], batch_size=1)) == 2


@pytest.mark.parametrize(("rows", "batch_size"), [(16, 4), (17, 4), (18, 4), (3, 4), (17, 1)])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_penalties_of_an_epoch_do_not_depend_on_how_rows_fall_into_batches(
    base: at.Base, data: Path, monkeypatch: pytest.MonkeyPatch, rows: int, batch_size: int, accumulate: int
) -> None:
    """An epoch has rows / batch_size penalties in all, a last batch of one row has its share, and parts none twice."""

    def epoch(penalty: float) -> dict[str, torch.Tensor]:
        """The gradients of all steps of an epoch added up, at the initial weights."""
        found: dict[str, torch.Tensor] = {}

        def clip(method: Any, trained: Any, most: float, group: Any) -> None:
            for name, p in trained.items():
                found[name] = found.get(name, 0) + p.grad.clone()
                p.grad.zero_()

        monkeypatch.setattr(loop, "clip", clip)
        price = (lambda self, v: penalty * v["norm.embeddings.LayerNorm.bias"].sum()) if penalty else (lambda *_: None)
        monkeypatch.setattr(at.Houlsby, "penalty", price)
        lines = data.read_text().splitlines()[: rows + 1]
        few = data.parent / f"few-{rows}.csv"
        few.write_text("\n".join(lines) + "\n")
        options: dict[str, Any] = {"weight_decay": 0, "objective": "cross-entropy", "accumulate": accumulate}
        train(few, base, validation=data, epochs=1, batch_size=batch_size, **options)
        return found

    without, with_it = epoch(0), epoch(2.0)
    for name, gradient in with_it.items():
        share = 2.0 * rows / batch_size if name == "norm.embeddings.LayerNorm.bias" else 0.0
        torch.testing.assert_close(gradient - without[name], torch.full_like(gradient, share), rtol=0, atol=1e-3)

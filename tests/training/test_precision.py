"""Steps in bf16: quicker, near, and never what a task answers in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.bases import tiny_base, words_csv
from torch.nn.functional import linear, scaled_dot_product_attention

import adaptree as at
from adaptree.models.base import Base
from adaptree.training import fast
from adaptree.training.precision import computing_in


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("base"), layers=3, mask=True))


def test_linear_maps_are_in_bf16_and_attention_is_not() -> None:
    x = torch.randn(2, 3, 4, 8)
    with computing_in("bf16", "cpu"):
        y = linear(x, torch.randn(8, 8))
        found = scaled_dot_product_attention(y, y, y)
    assert y.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    with computing_in("fp32", "cpu"):
        assert linear(x, torch.randn(8, 8)).dtype == torch.float32


KINDS: dict[str, list[dict[str, Any]]] = {
    "classify": [{"text": f"{i} {word}", "label": word} for i in range(12) for word in ("lion", "saw")],
    "regress": [{"text": f"{i} {'lion ' * (i % 4)}", "label": float(i % 4)} for i in range(24)],
    "labels": [{"text": f"{i} {word}", "labels": [word]} for i in range(12) for word in ("lion", "saw")],
    "tag": [{"tokens": ["a", word], "tags": ["O", "B-X"]} for i in range(12) for word in (f"lion{i}", f"saw{i}")],
    "choose": [{"question": f"{i} a", "choices": ["lion", "saw"], "label": i % 2} for i in range(24)],
    "mlm": [{"text": f"the lion saw {i} plums"} for i in range(24)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_scores_of_a_task_are_those_that_it_gives_in_fp32(base: Base, kind: str) -> None:
    rows = KINDS[kind]
    tuned = at.train(
        rows[4:], validation=rows[:8], base=base, method="houlsby:8", precision="bf16", epochs=2, baselines=False,
        kind="mlm" if kind == "mlm" else None,
    )  # fmt: skip
    assert tuned.task.record.settings["precision"] == "bf16"
    again = at.api.evaluate(tuned, rows[:8])["metrics"]["test"]
    assert tuned.task.record.metrics["validation"] == pytest.approx(again, abs=1e-12)
    assert all(t.dtype != torch.bfloat16 for t in tuned.task.weights.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [{"precision": "bf16"}, {"activation_cache": "fp16"}])
def test_the_best_epoch_and_the_task_have_the_same_scores(base: Base, kind: str, how: dict[str, Any]) -> None:
    rows = KINDS[kind]
    record = at.train(
        rows[4:], validation=rows[:8], base=base, method="houlsby(size=8, layers=2)", epochs=3, baselines=False,
        kind="mlm" if kind == "mlm" else None, **how,
    ).task.record  # fmt: skip
    best = record.history[record.settings["best_epoch"] - 1]
    assert {name: best[name] for name in record.metrics["validation"]} == record.metrics["validation"]


def test_an_epoch_that_was_scored_with_a_rounded_cache_says_so(base: Base) -> None:
    rows = KINDS["regress"]
    notes: list[str] = []
    record = at.train(
        rows[4:], validation=rows[:8], base=base, method="houlsby(size=8, layers=2)", epochs=3, baselines=False,
        activation_cache="fp16", kind="regress", on_event=lambda event: notes.append(event.get("text", "")),
    ).task.record  # fmt: skip
    best = record.history[record.settings["best_epoch"] - 1]
    assert best["while_training"]["pearson"] != best["pearson"]
    own = f"epoch {best['epoch']} has pearson {best['pearson']:.4f} as the task computes it"
    assert any(note.startswith(own) for note in notes)


@pytest.mark.parametrize("quick", [True, False])
def test_fast_takes_bf16_where_it_is_quick_and_not_asked_otherwise(
    base: Base, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    monkeypatch.setattr(fast, "quick_at_bf16", lambda device: quick)
    data = words_csv(tmp_path / "words.csv", 40)
    notes: list[str] = []

    def settings(**more: Any) -> dict[str, Any]:
        tuned = at.train(
            data, base=base, method="houlsby:4", fast=True, epochs=1, baselines=False,
            on_event=lambda event: notes.append(event.get("text", "")), **more,
        )  # fmt: skip
        return dict(tuned.task.record.settings)

    assert settings()["precision"] == ("bf16" if quick else "fp32")
    assert any("in bf16" in note for note in notes) == quick
    assert settings(precision="fp32")["precision"] == "fp32"


def test_fast_trains_all_layers_of_pairs_and_says_why(base: Base) -> None:
    notes: list[str] = []
    rows = [{"text": f"{i} {word}", "text_pair": "b", "label": word} for i in range(12) for word in ("lion", "saw")]
    tuned = at.train(
        rows, text_pair="text_pair", base=base, method="houlsby:4", fast=True, epochs=1, baselines=False,
        on_event=lambda event: notes.append(event.get("text", "")),
    )  # fmt: skip
    assert tuned.task.record.method == "houlsby(size=4)"
    assert any("all layers are trained; with fewer, this kind of input loses" in note for note in notes)

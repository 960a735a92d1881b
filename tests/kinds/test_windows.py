"""Long documents in windows, and the vectors of a task."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.bases import FILLER, WORDS, tiny_base, words_csv

import adaptree as at
from adaptree.errors import UsageError
from adaptree.kinds import windows as module
from adaptree.kinds.classify import Classify
from adaptree.kinds.regress import Regress


def documents(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Fillers for longer than the base takes; what tells the label stands at the end."""
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        label = sorted(WORDS)[i % 3]
        words = rng.choices(FILLER, k=rng.choice([10, 90, 130])) + rng.choices(WORDS[label].split(), k=8)
        rows.append({"text": " ".join(words), "label": label})
    return rows


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("windows") / "base"))


def test_a_long_text_is_in_its_windows_whole(base: Any) -> None:
    text = " ".join(random.Random(0).choices(FILLER, k=150))
    (pieces,) = base.encoder.pieces([text])
    for length in (8, 20, 64):
        (example,) = module.examples(base.encoder, [text], length)
        seen = np.concatenate([row.ids[1:-1] for row in example])
        assert max(len(row.ids) for row in example) <= length
        assert set(seen.tolist()) == set(pieces.ids.tolist())
        assert example[0].ids[1:-1].tolist() == pieces.ids[: length - 2].tolist()
        assert example[-1].ids[1:-1].tolist() == pieces.ids[-(length - 2) :].tolist()
    assert [len(example) for example in module.examples(base.encoder, ["", "the old"], 16)] == [1, 1]


def test_votes_are_the_mean_of_the_windows_probabilities() -> None:
    out = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    examples: Any = [[0, 0], [0], [0, 0]]
    expected = torch.stack([out[:2].softmax(-1).mean(0), out[2].softmax(-1), out[3:].softmax(-1).mean(0)])
    torch.testing.assert_close(module.votes(out, examples).exp(), expected)
    kind = Classify(("a", "b", "c"), windows=True)
    torch.testing.assert_close(kind.loss(out, examples, np.array([0, 2, 1])), -expected.log()[[0, 1, 2], [0, 2, 1]])
    number = Regress(1.0, 2.0, windows=True)
    np.testing.assert_allclose(number.decode(out[:, :1], examples)[0], float(out[:2, 0].mean()) * 2 + 1, rtol=1e-6)


def test_what_stands_behind_the_limit_is_learned_with_windows_and_lost_without(base: Any, tmp_path: Path) -> None:
    def accuracy(**options: Any) -> float:
        bound = at.train(
            documents(180), base=base, method="houlsby:8", epochs=8, lr=1e-2, baselines=False, store=tmp_path / "store",
            name="long", **options,
        )  # fmt: skip
        return float(bound.task.record.metrics["validation"]["accuracy"])

    assert accuracy(windows=True) > accuracy() + 0.2
    store = at.Store(tmp_path / "store")
    bound = base.bind(store["long@1"])
    assert bound.kind == Classify(tuple(sorted(WORDS)), windows=True)
    texts = [row["text"] for row in documents(30, seed=4)]
    together = bound.logits(texts)
    assert torch.equal(together, torch.cat([bound.logits([text]) for text in texts]))
    assert bound.truncated == 0


def test_windows_are_for_single_texts_with_one_answer(base: Any) -> None:
    pairs = [{"text_a": f"the {i}", "text_b": "old", "label": "ab"[i % 2]} for i in range(30)]
    with pytest.raises(UsageError, match="single texts"):
        at.train(pairs, base=base, windows=True, epochs=1)
    several = [{"text": f"the {i}", "labels": ["a"] * (i % 2)} for i in range(30)]
    with pytest.raises(UsageError, match="one label or one number"):
        at.train(several, base=base, windows=True, epochs=1)


def test_features_are_the_pooled_states_under_the_task(base: Any, tmp_path: Path) -> None:
    bound = at.train(words_csv(tmp_path / "words.csv", 60), base=base, epochs=1, method="houlsby:4")
    texts = ["the old lion", "apple", "", "the big bear and the small wolf"]
    found = bound.features(texts)
    assert found.shape == (4, 32)
    v = bound.task.weights
    torch.testing.assert_close(found @ v["head.weight"].t() + v["head.bias"], bound.logits(texts))
    assert torch.equal(found, torch.cat([bound.features([text]) for text in texts]))
    assert bound.features("apple").shape == (1, 32)
    outside = at.train(words_csv(tmp_path / "more.csv", 60), base=base, method="tfidf")
    with pytest.raises(UsageError, match="no vectors"):
        outside.features(texts)

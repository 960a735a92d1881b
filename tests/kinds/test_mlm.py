"""Masked language modelling: what is hidden, what is learned, and how it is scored."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.bases import tiny_base

import adaptree as at
from adaptree.data.encode import Encoder
from adaptree.errors import BaseError, UsageError
from adaptree.kinds.mlm import Mlm, _words
from adaptree.models.embedded import config_of, locate
from adaptree.models.forward import infer

PAIRS = [("lion", "wolf"), ("apple", "pear"), ("hammer", "saw")]


def lines(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Each word comes with its fellow, so that one tells the other."""
    rng = random.Random(seed)
    drawn = [[word for pair in rng.choices(PAIRS, k=4) for word in pair] for _ in range(count)]
    return [{"text": " ".join(words)} for words in drawn]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("mlm") / "base", mask=True))


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    folder = locate("minilm")
    return Encoder.load(folder, config_of(folder))


def kind_of(encoder: Encoder, **changes: Any) -> Mlm:
    return Mlm(encoder.vocabulary, encoder.mask_id(), words=encoder.words(), **changes)


def test_pieces_are_hidden_as_the_paper_says(minilm: Encoder) -> None:
    kind = kind_of(minilm)
    examples = kind.examples(minilm, ["word " * 200] * 60, 256)
    chosen = masked = swapped = kept = total = 0
    for (before,), (after,) in zip(examples, kind.resampled(examples, 7), strict=True):
        places = after.at.places
        assert (after.at.pieces == before.ids[places]).all()
        untouched = np.delete(np.arange(len(before.ids)), places)
        assert (after.ids[untouched] == before.ids[untouched]).all()
        chosen, total = chosen + len(places), total + len(before.at.places)
        masked += int((after.ids[places] == kind.mask_id).sum())
        same = after.ids[places] == before.ids[places]
        kept, swapped = kept + int(same.sum()), swapped + int((~same & (after.ids[places] != kind.mask_id)).sum())
    assert chosen / total == pytest.approx(0.15, abs=0.001)
    assert masked / chosen == pytest.approx(0.8, abs=0.03)
    assert swapped / chosen == pytest.approx(0.1, abs=0.03)
    assert kept / chosen == pytest.approx(0.1, abs=0.03)


def test_special_tokens_are_never_hidden_and_every_text_has_something_to_say(minilm: Encoder) -> None:
    kind = kind_of(minilm)
    examples = kind.resampled(kind.examples(minilm, ["a", "a b", "", "é 🙂 ?"], 16), 0)
    assert [len(example[0].at.places) for example in examples] == [1, 1, 0, 1]
    for example in examples:
        assert all(0 < place < len(example[0].ids) - 1 for place in example[0].at.places)


def test_a_mask_in_one_window_of_a_long_text_is_filled(base: Any) -> None:
    bound = at.train(lines(30), base=base, kind="mlm", epochs=1, method="bitfit")
    text = "lion wolf " * 60
    (found,) = bound.predict([f"{text} lion [MASK] {text}"])
    assert [len(fill) for fill in found.fills] == [5]
    assert found.perplexity is None
    (several,) = bound.predict([f"[MASK] {text} [MASK]"])
    assert len(several.fills) == 2
    assert bound.predict([text])[0].perplexity > 0
    with pytest.raises(UsageError, match="score to abstain by"):
        bound.predict(["lion [MASK]"], min_score=0.5)


def test_what_is_hidden_changes_with_the_step_and_not_in_validation(minilm: Encoder) -> None:
    kind = kind_of(minilm)
    examples = kind.examples(minilm, ["one two three four five six seven eight nine ten " * 4] * 2, 64)
    one, other = kind.resampled(examples, 1), kind.resampled(examples, 2)
    assert one[0][0].ids.tolist() != other[0][0].ids.tolist()
    assert one[0][0].ids.tolist() != one[1][0].ids.tolist()
    assert [r.ids.tolist() for [r] in kind.resampled(examples, 1)] == [r.ids.tolist() for [r] in one]
    fixed = kind.resampled(examples, None)
    assert fixed[0][0].ids.tolist() == fixed[1][0].ids.tolist()
    assert fixed[0][0].ids.tolist() == kind.resampled(examples[1:], None)[0][0].ids.tolist()


def test_whole_words_are_hidden_together(minilm: Encoder) -> None:
    text = "unbelievably antidisestablishmentarianism overcomplicates hyperparameters, don't"
    (pieces,) = minilm.pieces([text])
    words = _words(text, pieces.spans)
    joined: dict[int, str] = {}
    for word, (start, end) in zip(words.tolist(), pieces.spans.tolist(), strict=True):
        joined[word] = joined.get(word, "") + text[start:end]
    assert list(joined.values())[:4] == [
        "unbelievably",
        "antidisestablishmentarianism",
        "overcomplicates",
        "hyperparameters",
    ]
    kind = kind_of(minilm, whole_words=True, share=0.3)
    for seed in range(20):
        [[row]] = kind.resampled(kind.examples(minilm, [text], 64), seed)
        hidden = set(row.at.words.tolist())
        assert sorted(row.at.places - 1) == [i for i, word in enumerate(words.tolist()) if word in hidden]


def test_a_long_text_is_all_there_in_windows(minilm: Encoder) -> None:
    kind = kind_of(minilm)
    (example,) = kind.examples(minilm, ["many words in a row " * 50], 32)
    (pieces,) = minilm.pieces(["many words in a row " * 50])
    assert np.concatenate([row.at.pieces for row in example]).tolist() == pieces.ids.tolist()
    assert max(len(row.ids) for row in example) <= 32


def test_the_output_is_tied_to_the_words_of_the_base(base: Any) -> None:
    kind = kind_of(base.encoder)
    v = {name: t + 0.1 * torch.randn(t.shape) for name, t in kind.init(32, torch.Generator().manual_seed(0)).items()}
    examples = kind.resampled(kind.examples(base.encoder, ["lion wolf apple pear", "apple"], 32), 3)
    out = infer(base, examples, kind, v, {}, "mean")
    for (row,), found in zip(examples, out, strict=True):
        with torch.no_grad():
            hidden, _ = base.hidden([row])
        x = F.gelu(hidden[0, row.at.places] @ v["head.dense.weight"].t() + v["head.dense.bias"])
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-12).sqrt()
        x = x * v["head.norm.weight"] + v["head.norm.bias"]
        logits = x @ base.embeddings.t() + v["head.bias"]
        expected = -logits.log_softmax(-1)[range(len(x)), row.at.pieces]
        torch.testing.assert_close(found[:, 0], expected, rtol=1e-5, atol=1e-5)


def test_a_language_adapter_learns_its_words_and_fills_them_in(base: Any, tmp_path: Path) -> None:
    trained = at.train(
        lines(300),
        base=base,
        kind="mlm",
        method="houlsby:16",
        epochs=15,
        lr=5e-3,
        store=tmp_path / "store",
        name="lang",
    )
    course = [epoch["perplexity"] for epoch in trained.task.record.history]
    assert trained.task.record.metrics["validation"]["perplexity"] == min(course) < 7 < course[0]
    store = at.Store(tmp_path / "store")
    bound = base.bind(store["lang"])
    told = bound.predict(["lion [MASK] apple pear hammer saw lion wolf", "lion wolf apple pear"])
    known = {word for pair in PAIRS for word in pair}
    assert all(fill["word"] in known for fill in told[0].to_dict()["fills"][0][:3])
    assert told[0].perplexity is None
    assert told[1].fills == []
    assert told[1].perplexity is not None
    assert math.isfinite(told[1].perplexity)
    scores = at.evaluate(bound, lines(50, seed=3))
    assert scores["metrics"]["test"]["perplexity"] < 9
    low, high = scores["intervals"]["test"]["perplexity"]
    assert low <= scores["metrics"]["test"]["perplexity"] <= high


def test_training_is_the_same_again_and_without_an_activation_cache(base: Any) -> None:
    notes: list[str] = []

    def run(**options: Any) -> dict[str, torch.Tensor]:
        found = at.train(
            lines(60), base=base, kind="mlm", method="head", epochs=2,
            on_event=lambda e: notes.append(e["text"]) if e["event"] == "note" else None, **options,
        )  # fmt: skip
        return dict(found.task.weights)

    first, again, other = run(), run(), run(seed=1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert any("samples its inputs anew" in note for note in notes)


def test_a_base_without_a_mask_token_is_refused(tmp_path: Path) -> None:
    plain = at.load_base(tiny_base(tmp_path / "plain"))
    with pytest.raises(BaseError, match="no mask token"):
        at.train(lines(30), base=plain, kind="mlm")


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert"])
def test_the_head_that_a_base_was_pretrained_with_is_where_training_begins(architecture: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForMaskedLM

    folder = tiny_base(tmp_path / "base", mask=True)
    size = config_of(folder)["vocab_size"]
    shape = {
        "hidden_size": 32,
        "dim": 32,
        "num_hidden_layers": 2,
        "n_layers": 2,
        "num_attention_heads": 4,
        "n_heads": 4,
    }
    config = AutoConfig.for_model(
        architecture, vocab_size=size, intermediate_size=64, hidden_dim=64, max_position_embeddings=70, pad_token_id=0,
        **(shape if architecture == "distilbert" else {k: v for k, v in shape.items() if "_" in k and k[:2] != "n_"}),
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(config).eval()
    for p in model.parameters():
        p.data += 0.05 * torch.randn(p.shape)
    model.save_pretrained(folder)
    base = at.load_base(folder)
    kind = kind_of(base.encoder)
    v = base.head_for(kind)
    assert set(v) == set(kind.init(32, torch.Generator()))
    examples = kind.resampled(kind.examples(base.encoder, ["lion wolf apple pear", "the old saw"], 32), 3)
    out = infer(base, examples, kind, v, {}, "mean")
    for (row,), found in zip(examples, out, strict=True):
        with torch.no_grad():
            logits = model(torch.from_numpy(row.ids.astype(np.int64))[None]).logits[0, row.at.places]
        expected = F.cross_entropy(logits, torch.from_numpy(row.at.pieces.astype(np.int64)), reduction="none")
        torch.testing.assert_close(found[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_a_base_without_such_a_head_gets_a_new_one(base: Any) -> None:
    assert base.head_for(kind_of(base.encoder)) == {}
    assert at.load_base().head_for(kind_of(at.load_base().encoder)) == {}

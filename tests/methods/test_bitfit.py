"""BitFit: the biases alone, as δ on top of a base that stays as it is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adaptree import api, attach
from adaptree.errors import MethodError
from adaptree.methods.bitfit import BitFit
from adaptree.models.fingerprint import fingerprint
from adaptree.models.hooks import HookedModel
from adaptree.models.loading import load_base
from adaptree.models.sites import find
from adaptree.tasks.store import Store
from tests import tiny
from tests.bases import tiny_base, words_csv


def large() -> Any:
    """BERT-large with no weights in it."""
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    with torch.device("meta"):
        return BertModel(config)


@pytest.mark.parametrize(
    ("method", "weights", "low", "high"),
    [(BitFit(), 24 * 11 * 1024 + 1024, 0.08, 0.09), (BitFit(queries_and_ffn=True), 24 * 5 * 1024, 0.03, 0.04)],
)
def test_bert_large_has_the_published_share(method: BitFit, weights: int, low: float, high: float) -> None:
    model = large()
    counted = method.count(find(model), model)
    assert sum(counted.values()) == weights
    assert low < 100 * weights / sum(p.numel() for p in model.parameters()) < high


@pytest.mark.parametrize("case", ["t5", "llama", "mistral", "modernbert"])
def test_a_base_without_biases_is_refused_with_the_reason(case: str) -> None:
    model = tiny.model(case)
    with pytest.raises(MethodError, match=r"trains biases, and this base .* has none"):
        BitFit().count(find(model), model)
    with pytest.raises(MethodError, match=r"trains biases, and this base .* has none"):
        attach(model, BitFit())


def test_the_option_takes_true_or_false() -> None:
    with pytest.raises(MethodError, match="true or false"):
        BitFit(queries_and_ffn="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("case", ["bert", "deberta", "gpt2", "distilbert", "qwen2"])
def test_queries_and_ffn_are_one_bias_each_a_layer(case: str) -> None:
    model = tiny.model(case)
    names = BitFit(queries_and_ffn=True).touched(find(model), dict(model.named_parameters()))
    assert len(names) == (3 if case == "qwen2" else 6)
    assert len(names) < len(BitFit().touched(find(model), dict(model.named_parameters())))


@pytest.mark.parametrize(
    ("layers", "inside"), [("1", {"encoder.layer.1."}), ("0", {"encoder.layer.0.", "embeddings."})]
)
def test_layers_restricts_the_biases(layers: str, inside: set[str]) -> None:
    model = tiny.model("bert")
    names = BitFit(layers=layers).touched(find(model), dict(model.named_parameters()))
    assert {prefix for prefix in inside if any(name.startswith(prefix) for name in names)} == inside
    assert all(name.startswith(tuple(inside)) for name in names)


def test_training_is_that_of_biases_in_place() -> None:
    """The same steps with AdamW on a model's own biases."""
    model, plain = tiny.model("bert"), tiny.model("bert")
    tuned = attach(model, BitFit())
    inputs = tiny.batch(model)
    towards = torch.randn(5, 5, 32, generator=torch.Generator().manual_seed(3)) / 25
    trained: dict[str, Tensor] = {}
    for name, p in plain.named_parameters():
        p.requires_grad_(name.endswith("bias") and not name.startswith("pooler"))
        if p.requires_grad:
            trained[name] = p
    assert {name.removeprefix("delta.") for name, _ in tuned.named_parameters()} == set(trained)
    for run, weights in ((tuned, list(tuned.parameters())), (plain, list(trained.values()))):
        optimiser = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
        for _ in range(5):
            optimiser.zero_grad()
            (run(**inputs).last_hidden_state * towards).sum().backward()
            optimiser.step()
    found, expected = tiny.output(tuned, inputs), tiny.output(plain, inputs)
    assert float((found - tiny.output(model, inputs)).detach().abs().max()) > 0.1
    assert float((found - expected).detach().abs().max() / expected.detach().abs().max()) < 1e-6


def test_what_is_kept_predicts_the_same_bits(tmp_path: Path) -> None:
    base = load_base(tiny_base(tmp_path / "base"))
    store = Store(tmp_path / "store")
    bound = api.train(
        words_csv(tmp_path / "words.csv"), base=base, store=store, method="bitfit", epochs=2, baselines=False
    )
    assert sum(bound.task.weights[n].abs().sum() for n in bound.task.weights if n.startswith("delta.")) > 0
    again = base.bind(store["task"])
    texts = ["the old hammer", "lion wolf", "a plum and a pear"]
    assert torch.equal(bound.logits(texts), again.logits(texts))
    assert fingerprint(base.hooked.backbone) == base.fingerprint


def test_copies_and_moves_of_an_attached_task_stay_true_to_the_base() -> None:
    model = tiny.model("bert")
    tuned = attach(model, BitFit())
    with torch.no_grad():
        for p in tuned.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    inputs = tiny.batch(model)
    with torch.no_grad():
        out = tiny.output(tuned, inputs)
        assert torch.equal(tiny.output(copy.deepcopy(tuned), inputs), out)
        assert torch.equal(tiny.output(tuned, inputs), out)
        doubled = tiny.output(copy.deepcopy(tuned).double(), inputs)
    assert doubled.dtype == torch.float64
    assert tuned.num_parameters(only_trainable=True) == tuned.count()["trained"]
    assert tuned.num_parameters() == tuned.count()["trained"] + tuned.count()["base"]
    assert float((doubled - out).abs().max()) < 1e-4


def test_weights_that_are_not_swapped_any_more_are_the_bases_again() -> None:
    hooked = HookedModel(tiny.model("bert"))
    own = dict(hooked.backbone.named_parameters())
    first, second = list(own)[:2]
    hooked.swap({first: own[first] + 1, second: own[second] + 1})
    hooked.swap({second: own[second] + 2})
    now = dict(hooked.backbone.named_parameters())
    assert now[first] is own[first]
    assert torch.equal(now[second], own[second] + 2)
    hooked.swap({})
    assert dict(hooked.backbone.named_parameters())[second] is own[second]

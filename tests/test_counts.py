"""The papers' numbers of parameters, on models of the real sizes that have shapes but no weights."""

from __future__ import annotations

import functools

import pytest
import torch
from transformers import BertConfig, BertModel

from adaptree import attach
from adaptree.methods import parse
from adaptree.models.hooks import price
from adaptree.models.sites import find
from tests import tiny

SHAPES = {
    "bert-base": {},
    "bert-large": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}


@functools.cache
def bert(size: str) -> BertModel:
    with torch.device("meta"):
        return BertModel(BertConfig(**SHAPES[size]))


@pytest.mark.parametrize(
    ("size", "method", "adapters", "norms"),
    [
        ("bert-base", "houlsby:64", 2_379_264, 38_400),
        ("bert-large", "houlsby:64", 6_343_680, 100_352),
        ("bert-base", "pfeiffer:48", 12 * (2 * 48 * 768 + 768 + 48), 0),
        ("bert-base", "pfeiffer", 894_528, 0),  # a sixteenth of 768 is 48
        ("bert-base", "houlsby(size=64, norms=false)", 2_379_264, 0),
        ("bert-base", "houlsby(size=64, layers=top:1)", 2_379_264 // 12, 2 * 2 * 768),
        ("bert-base", "houlsby(size=64, layers=0)", 2_379_264 // 12, 3 * 2 * 768),  # with the embeddings' norm
        ("bert-base", "houlsby(size=8)", 24 * (2 * 8 * 768 + 768 + 8), 38_400),
    ],
)
def test_counts_are_the_papers(size: str, method: str, adapters: int, norms: int) -> None:
    model, how = bert(size), parse(method)
    assert how.count(find(model), model) == {"adapters": adapters, "norms": norms}


@pytest.mark.parametrize(("size", "method"), [("bert-base", "houlsby:64"), ("bert-base", "pfeiffer:48")])
def test_what_is_born_has_the_counted_size(size: str, method: str) -> None:
    model, how = bert(size), parse(method)
    born = how.init(find(model), model, torch.Generator().manual_seed(0))
    assert sum(tensor.numel() for tensor in born.values()) == sum(how.count(find(model), model).values())


@pytest.mark.parametrize(
    ("size", "base", "embeddings", "percent", "percent_without_embeddings"),
    [
        ("bert-base", 109_482_240, 23_835_648, 2.21, 2.82),
        ("bert-large", 335_141_888, 31_780_864, 1.92, 2.12),  # the paper's 2.1 % is of BERT-large without embeddings
    ],
)
def test_the_price_is_a_part_of_the_base(
    size: str, base: int, embeddings: int, percent: float, percent_without_embeddings: float
) -> None:
    model = bert(size)
    counts = parse("houlsby:64").count(find(model), model)
    cost = price(counts, 1538, model)
    v = counts["adapters"] + counts["norms"]
    assert cost == {
        **counts,
        "head": 1538,
        "trained": v + 1538,
        "base": base,
        "base_without_embeddings": base - embeddings,
    }
    assert 100 * v / cost["base"] == pytest.approx(percent, abs=0.005)
    assert 100 * v / cost["base_without_embeddings"] == pytest.approx(percent_without_embeddings, abs=0.005)


def test_the_head_is_counted_apart() -> None:
    counts = attach(tiny.model("distilbert", head=True), "houlsby:4").count()
    d = 32
    assert counts["adapters"] == 6 * (2 * 4 * d + d + 4)
    assert counts["norms"] == 7 * 2 * d
    assert counts["head"] == (d * d + d) + (d * tiny.LABELS + tiny.LABELS)
    assert counts["trained"] == counts["adapters"] + counts["norms"] + counts["head"]


def test_tables_that_are_shared_are_counted_once() -> None:
    """BART's encoder and decoder read one table of words; each has its own positions, two more than it can use."""
    counts = attach(tiny.model("bart"), "pfeiffer:4").count()
    assert counts["base"] - counts["base_without_embeddings"] == 32 * (60 + 2 * (40 + 2))

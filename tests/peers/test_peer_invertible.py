"""Invertible adapters beside adapters 1.3, with the same weights: the block, and a whole model for masked words."""

from __future__ import annotations

import json
import os

import pytest
import torch
import transformers as tf
from safetensors import safe_open
from torch import Tensor

from adaptree import attach
from adaptree.core import invertible
from adaptree.kinds.mlm import _predict

FOLDER = os.environ.get("ADAPTREE_PEERS")
pytestmark = pytest.mark.skipif(not FOLDER, reason="ADAPTREE_PEERS names no folder with adapters' numbers: make peers")


def numbers(name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(f"{FOLDER}/invertible.{name}.safetensors", "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118


def under(found: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): t for key, t in found.items() if key.startswith(prefix)}


def difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / one.abs().max())


def test_the_block_and_its_inverse_are_theirs() -> None:
    found, _ = numbers("block")
    p, x = under(found, "invertible."), found["input"]
    assert difference(x, found["output"]) > 0.05, "a coupling that changes nothing proves nothing"
    assert difference(found["output"], invertible.apply(x, p)) < 1e-6
    assert difference(found["inverse"], invertible.invert(x, p)) < 1e-6


@torch.no_grad()
def test_a_language_adapter_says_the_same_words() -> None:
    """Theirs inverts just before the output embeddings, after the head's transform; so does kind mlm."""
    found, facts = numbers("mlm")
    usual = tf.BertConfig().to_dict()
    settings = json.loads(facts["config"])
    config = tf.BertConfig(**{key: value for key, value in settings.items() if key in usual and "version" not in key})
    bert = tf.BertModel(config).eval()
    bert.load_state_dict(under(found, "base."))
    v = under(found, "v.")
    own = {name: t for name, t in v.items() if not name.startswith("head.")}
    tuned = attach(bert, "pfeiffer(size=8, invertible=true)")
    tuned.load_state_dict(own)
    batch = {name: found[name] for name in ("input_ids", "attention_mask")}
    real = batch["attention_mask"].bool()
    x, gold = tuned(**batch)[0][real], batch["input_ids"][real]
    words = bert.get_input_embeddings().weight
    theirs = found["output"][real]
    head = {name: t for name, t in v.items() if name not in own}
    ours, uninverted = (_predict(x, gold, of, words)[1] for of in (v, head))
    assert difference(theirs, ours) < 1e-5
    assert difference(theirs, uninverted) > 0.05, "an inverse that changes nothing proves nothing"

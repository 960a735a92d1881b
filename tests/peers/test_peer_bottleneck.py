"""The bottleneck family beside adapters 1.3, with the same weights: where the two agree, and where they do not."""

from __future__ import annotations

import json
import os

import pytest
import torch
import transformers as tf
from safetensors import safe_open
from torch import Tensor

import adaptree.methods.bapna
import adaptree.methods.parallel
import adaptree.methods.variants  # noqa: F401
from adaptree import attach

FOLDER = os.environ.get("ADAPTREE_PEERS")
pytestmark = pytest.mark.skipif(not FOLDER, reason="ADAPTREE_PEERS names no folder with adapters' numbers: make peers")

# Their Houlsby trains no norm, and its nonlinearity is swish.
OURS = {
    "double_seq_bn": "houlsby(size=8, activation=swish, norms=false)",
    "attention_only": "houlsby_attention(size=8, activation=swish, norms=false)",
    "seq_bn": "pfeiffer:8",
    "seq_bn_before_the_norm": "pfeiffer:8",
    "par_bn": "scaled_parallel:8",
    "par_bn_unscaled": "parallel_adapter:8",
    "par_bn_both": "houlsby_parallel(size=8, activation=relu, norms=false)",
    "layer_output_ln_before": "bapna:8",
}
# seq_bn (MAD-X, eq. 1) reads LN(h + x), and what it adds goes through that norm again: ours too, where a layer ends
# with a norm. Without that norm (original_ln_before=False) it is another adapter there. GPT-2's layers end without one:
# ours then reads h, which is theirs with original_ln_before=False.
# par_bn in a pre-norm layer reads the stream before the norm. Ours reads what the sublayer itself reads, so that it
# is beside f in f(x): the same thing for every layer. (He et al.'s mBART code has a switch for either.)
DIFFERENT = {
    ("bert", "seq_bn_before_the_norm"), ("gpt2", "seq_bn"), ("gpt2", "par_bn"), ("gpt2", "par_bn_unscaled"),
    ("gpt2", "par_bn_both"),
}  # fmt: skip


def outputs(kind: str, config: str) -> tuple[Tensor, Tensor, Tensor]:
    """Theirs, ours and the bare base's, at the real positions."""
    with safe_open(f"{FOLDER}/bottleneck.{kind}.{config}.safetensors", "pt") as file:
        numbers = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        settings = json.loads(file.metadata()["config"])
    made_for = {"bert": tf.BertConfig, "gpt2": tf.GPT2Config}[kind]
    usual = made_for().to_dict()
    model = tf.AutoModel.from_config(
        made_for(**{key: value for key, value in settings.items() if key in usual and "version" not in key})
    ).eval()
    model.load_state_dict({k.removeprefix("base."): t for k, t in numbers.items() if k.startswith("base.")})
    tuned = attach(model, OURS[config])
    tuned.load_state_dict({k.removeprefix("v."): t for k, t in numbers.items() if k.startswith("v.")})
    batch = {name: numbers[name] for name in ("input_ids", "attention_mask")}
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        return numbers["output"][real], tuned(**batch)[0][real], model(**batch)[0][real]


def difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / one.abs().max())


@pytest.mark.parametrize("config", OURS)
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_equal_where_the_definitions_agree(kind: str, config: str) -> None:
    theirs, ours, bare = outputs(kind, config)
    assert difference(theirs, bare) > 0.1, "adapters that change nothing prove nothing"
    if (kind, config) in DIFFERENT:
        assert difference(theirs, ours) > 0.05
    else:
        assert difference(theirs, ours) < 1e-5

"""AdapterFusion beside adapters 1.3, in whole models with the same weights: where the two agree, and where they do not.

Ours is the paper's form: z_n is adapter n's whole output, skip included, s = softmax((h Q)·(z_n K)), o = Σ s_n (z_n V).
Theirs attends over branches b_n = z_n - r without the skip, adds r to Σ s_n (b_n V), and has biases in Q and K.

- The attention is the same: what r, and a bias in K, add to a score is the same for every n, and softmax does not see
  it. A bias in Q adds b·(z_n K), which it sees: there theirs is another function.
- The output is the same where V is the identity, as at birth: Σ s_n b_n + r = Σ s_n z_n. Elsewhere the two differ by
  r (V - I), and theirs equals ours when it adds r to the branches first (residual_before), in GPT-2. In BERT r is the
  sum that a layer's last norm closes, of which it adds only the feed-forward part first: that differs again.
"""

from __future__ import annotations

import json
import os

import pytest
import torch
import transformers as tf
from safetensors import safe_open
from torch import Tensor

from adaptree.methods import parse
from adaptree.methods.fusion import Fusion
from adaptree.methods.method import part
from adaptree.models.hooks import HookedModel

FOLDER = os.environ.get("ADAPTREE_PEERS")
pytestmark = pytest.mark.skipif(not FOLDER, reason="ADAPTREE_PEERS names no folder with adapters' numbers: make peers")

CASES = ("usual_at_birth", "usual", "whole_outputs", "query_bias")
SAME = {("bert", "usual_at_birth"), ("gpt2", "usual_at_birth"), ("gpt2", "whole_outputs")}


def outputs(kind: str, case: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Theirs and ours, at the real positions: the last hidden state, and the attention of the first layer."""
    with safe_open(f"{FOLDER}/fusion.{kind}.{case}.safetensors", "pt") as file:
        numbers = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        settings = json.loads(file.metadata()["config"])
    made_for = {"bert": tf.BertConfig, "gpt2": tf.GPT2Config}[kind]
    usual = made_for().to_dict()
    model = tf.AutoModel.from_config(
        made_for(**{key: value for key, value in settings.items() if key in usual and "version" not in key})
    ).eval()
    model.load_state_dict(part(numbers, "base"))
    hooked = HookedModel(model)
    seen: list[Tensor] = []
    fusion = Fusion().over([(parse("pfeiffer:8"), part(numbers, str(n))) for n in range(3)])
    plan = fusion.watched(lambda layer, s: seen.append(s)).plan(hooked.sites, part(numbers, "fusion"))
    batch = {name: numbers[name] for name in ("input_ids", "attention_mask")}
    real = batch["attention_mask"].bool()
    with torch.no_grad(), hooked.running(plan):
        output = model(**batch)[0]
    theirs = {"output": numbers["output"][real], "attention": numbers["attention.0"][real]}
    return theirs, {"output": output[real], "attention": seen[0][real]}


def difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / one.abs().max())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_equal_where_the_definitions_agree(kind: str, case: str) -> None:
    theirs, ours = outputs(kind, case)
    assert (theirs["attention"] - 1 / 3).abs().max() > 0.1, "attention that is even everywhere proves nothing"
    if case == "query_bias":
        assert difference(theirs["attention"], ours["attention"]) > 0.05
    else:
        assert difference(theirs["attention"], ours["attention"]) < 1e-5
    if (kind, case) in SAME:
        assert difference(theirs["output"], ours["output"]) < 1e-5
    else:
        assert difference(theirs["output"], ours["output"]) > 0.02

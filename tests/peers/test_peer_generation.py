"""LoRA on the real language model, beside peft with the same weights: the loss of outputs, and every gradient."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import adaptree as at
from adaptree.data.encode import Encoding
from adaptree.kinds.generate import Generate, Output
from adaptree.models.known import SMOLLM

FILE = Path(os.environ.get("ADAPTREE_PEERS", "")) / "generation.safetensors"
pytestmark = [
    pytest.mark.skipif(not os.environ.get("ADAPTREE_PEERS"), reason="ADAPTREE_PEERS names no folder: make peers"),
    pytest.mark.skipif(not FILE.is_file(), reason="peft has computed nothing with smollm: adaptree bases get smollm"),
    pytest.mark.skipif(not SMOLLM.folder.is_dir(), reason="smollm is not here: adaptree bases get smollm"),
]


def test_loss_and_gradients_are_those_of_peft() -> None:
    theirs = load_file(FILE)
    base = at.load_base("smollm")
    kind, method = Generate._of(base.encoder, {}), at.Lora(rank=4, alpha=8)
    v = {name.removeprefix("v."): t.requires_grad_() for name, t in theirs.items() if name.startswith("v.")}
    born = method.init(base.hooked.sites, base.hooked.backbone, torch.Generator())
    assert {name: t.shape for name, t in v.items()} == {name: t.shape for name, t in born.items()}
    rows = [
        Encoding(theirs[f"ids.{i}"].numpy().astype(np.int32), None, False, Output(int(theirs[f"start.{i}"])))
        for i in range(len(theirs["losses"]))
    ]
    with base.hooked.running(method.plan(base.hooked.sites, v)):
        hidden, mask = base.hidden(rows)  # in one batch, the shorter one padded
        losses = kind.loss(kind.run(hidden, mask, rows, v, "", base.words()), [[row] for row in rows], None)
    torch.testing.assert_close(losses.detach(), theirs["losses"], atol=1e-5, rtol=1e-5)
    assert losses.min() > 1, "these are no losses of nothing"
    grads = dict(zip(v, torch.autograd.grad(losses.mean(), list(v.values())), strict=True))
    largest = max(float(grad.abs().max()) for grad in grads.values())
    for name, grad in grads.items():
        wanted = theirs[f"grad.{name}"]
        assert float(wanted.abs().max()) > 0
        assert float((grad - wanted).abs().max()) < 1e-5 * max(1.0, largest), name

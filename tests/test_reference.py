"""An independent reference: whole models written out from the papers, with the adapters straight in the layers.

Nothing of the package does the maths here, and there are no hooks: `w` are a Hugging Face model's own weights by name,
`v` a task's. Each model is a page of plain PyTorch to be read beside Houlsby et al. 2019, figure 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from adaptree import attach
from tests import tiny

Weights = Mapping[str, Tensor]


def adapter(h: Tensor, v: Weights, site: str, activation: str) -> Tensor:
    x = torch.einsum("btd,dm->btm", h, v[f"{site}.down"]) + v[f"{site}.down_bias"]
    x = {"gelu": gelu, "relu": torch.relu}[activation](x)
    return torch.einsum("btm,md->btd", x, v[f"{site}.up"]) + v[f"{site}.up_bias"] + h


def closing(h: Tensor, x: Tensor, w: Weights, v: Weights, layer: int, name: str, both: bool, act: str) -> Tensor:
    """The end of a post-norm layer, from its feed-forward output h and the residual x.

    Houlsby: the adapter on h, then add and norm. MAD-X: r = h + x, adapted as U(ReLU(D(LN(r)))) + r, then the norm.
    """
    site, eps = f"{layer}.feedforward", 1e-12
    if both:
        return norm(adapter(h, v, site, act) + x, w, v, name, eps)
    r = h + x
    normed = norm(r, w, v, name, eps)
    return norm(adapter(normed, v, site, act) - normed + r, w, v, name, eps)


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_new(x: Tensor) -> Tensor:
    """GPT-2's own approximation."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def norm(x: Tensor, w: Weights, v: Weights, name: str, eps: float) -> Tensor:
    """The task's own scale and shift where it has them, else the base's."""
    scale, shift = (v.get(f"norm.{name}.{leaf}", w[f"{name}.{leaf}"]) for leaf in ("weight", "bias"))
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * scale + shift


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def attention(q: Tensor, k: Tensor, value: Tensor, heads: int, allowed: Tensor) -> Tensor:
    """Softmax over the keys that `allowed` (B, T, T) lets a query see."""
    B, T, d = q.shape
    q, k, value = (x.reshape(B, T, heads, d // heads) for x in (q, k, value))
    scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / math.sqrt(d // heads)
    scores = scores.masked_fill(~allowed[:, None], -math.inf)
    return torch.einsum("bhqk,bkhe->bqhe", torch.softmax(scores, -1), value).reshape(B, T, d)


def bert(
    w: Weights, v: Weights, both: bool, act: str, ids: Tensor, mask: Tensor, positions: Tensor | None = None
) -> Tensor:
    """Post-norm: each sublayer's output passes its adapter, then the residual add and the norm."""
    eps, heads = 1e-12, 4
    positions = torch.arange(ids.shape[1]) if positions is None else positions
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][positions]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], w, v, "embeddings.LayerNorm", eps)
    allowed = mask.bool()[:, None, :].expand(-1, ids.shape[1], -1)
    for i in range(3):
        at = f"encoder.layer.{i}"
        q, k, value = (linear(x, w, f"{at}.attention.self.{name}") for name in ("query", "key", "value"))
        h = linear(attention(q, k, value, heads, allowed), w, f"{at}.attention.output.dense")
        h = adapter(h, v, f"{i}.attention", act) if both else h
        x = norm(h + x, w, v, f"{at}.attention.output.LayerNorm", eps)
        h = linear(gelu(linear(x, w, f"{at}.intermediate.dense")), w, f"{at}.output.dense")
        x = closing(h, x, w, v, i, f"{at}.output.LayerNorm", both, act)
    return x


def roberta(w: Weights, v: Weights, both: bool, act: str, ids: Tensor, mask: Tensor) -> Tensor:
    """BERT with positions counted from the padding id on, over real tokens only."""
    real = (ids != tiny.PAD).long()
    return bert(w, v, both, act, ids, mask, real.cumsum(1) * real + tiny.PAD)


def distilbert(w: Weights, v: Weights, both: bool, act: str, ids: Tensor, mask: Tensor) -> Tensor:
    """BERT without token types, under other names."""
    eps, heads = 1e-12, 4
    x = w["embeddings.word_embeddings.weight"][ids]
    x = norm(x + w["embeddings.position_embeddings.weight"][: ids.shape[1]], w, v, "embeddings.LayerNorm", eps)
    allowed = mask.bool()[:, None, :].expand(-1, ids.shape[1], -1)
    for i in range(3):
        at = f"transformer.layer.{i}"
        q, k, value = (linear(x, w, f"{at}.attention.{name}_lin") for name in ("q", "k", "v"))
        h = linear(attention(q, k, value, heads, allowed), w, f"{at}.attention.out_lin")
        h = adapter(h, v, f"{i}.attention", act) if both else h
        x = norm(h + x, w, v, f"{at}.sa_layer_norm", eps)
        h = linear(gelu(linear(x, w, f"{at}.ffn.lin1")), w, f"{at}.ffn.lin2")
        x = closing(h, x, w, v, i, f"{at}.output_layer_norm", both, act)
    return x


def gpt2(w: Weights, v: Weights, both: bool, act: str, ids: Tensor, mask: Tensor) -> Tensor:
    """Pre-norm and causal: the norm comes before a sublayer, its adapter before the residual add."""
    eps, heads, T = 1e-5, 4, ids.shape[1]

    def conv(x: Tensor, name: str) -> Tensor:  # GPT-2 keeps its matrices the other way round
        return F.linear(x, w[f"{name}.weight"].T, w[f"{name}.bias"])

    x = w["wte.weight"][ids] + w["wpe.weight"][:T]
    allowed = torch.ones(T, T, dtype=torch.bool).tril() & mask.bool()[:, None, :]
    for i in range(3):
        q, k, value = conv(norm(x, w, v, f"h.{i}.ln_1", eps), f"h.{i}.attn.c_attn").chunk(3, -1)
        h = conv(attention(q, k, value, heads, allowed), f"h.{i}.attn.c_proj")
        x = x + (adapter(h, v, f"{i}.attention", act) if both else h)
        h = conv(gelu_new(conv(norm(x, w, v, f"h.{i}.ln_2", eps), f"h.{i}.mlp.c_fc")), f"h.{i}.mlp.c_proj")
        x = x + adapter(h, v, f"{i}.feedforward", act)
    return norm(x, w, v, "ln_f", eps)


REFERENCES: dict[str, Callable[..., Tensor]] = {
    "bert": bert,
    "roberta": roberta,
    "distilbert": distilbert,
    "gpt2": gpt2,
}
ACTIVATION = {"houlsby:8": "gelu", "pfeiffer:8": "relu"}


def both_sides(case: str, method: str) -> tuple[Any, dict[str, Tensor], Tensor, Tensor, Tensor]:
    """The tuned model, the same weights as plain tensors, and both outputs at the real positions."""
    model = tiny.model(case)
    tuned = attach(model, method)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in tuned.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    v = {
        name: p.detach().clone().requires_grad_()
        for name, p in tuned.named_parameters()
        if not name.startswith("head.")
    }
    inputs = tiny.batch(model, rows=6, tokens=11)
    real = inputs["attention_mask"].bool()
    assert not real.all()
    found = tuned(**inputs).last_hidden_state[real]
    both = method.startswith("houlsby")
    written = REFERENCES[case](model.state_dict(), v, both, ACTIVATION[method], inputs["input_ids"], real)[real]
    return tuned, v, found, written, model(**inputs).last_hidden_state[real]


def difference(found: Tensor, written: Tensor) -> float:
    """The largest, as a part of the largest value: float32 rounds by the size of what it adds up."""
    return float(((found - written).abs().max() / written.abs().max()).detach())


@pytest.mark.parametrize("method", ACTIVATION)
@pytest.mark.parametrize("case", REFERENCES)
def test_outputs_equal_the_written_out_model(case: str, method: str) -> None:
    _, _, found, written, bare = both_sides(case, method)
    assert difference(found, bare) > 0.1, "a task that changes nothing proves nothing"
    assert difference(found, written) < 1e-6


@pytest.mark.parametrize("method", ACTIVATION)
@pytest.mark.parametrize("case", REFERENCES)
def test_gradients_equal_the_written_out_models(case: str, method: str) -> None:
    tuned, v, found, written, _ = both_sides(case, method)
    towards = torch.randn(found.shape, generator=torch.Generator().manual_seed(2)) / len(found)
    (found * towards).sum().backward()
    (written * towards).sum().backward()
    given = {name: p.grad for name, p in tuned.named_parameters() if not name.startswith("head.")}
    assert set(given) == set(v)
    for name, p in v.items():
        assert p.grad is not None, name
        assert p.grad.any(), name
        assert difference(given[name], p.grad) < 1e-5, name

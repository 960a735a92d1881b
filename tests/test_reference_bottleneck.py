"""The bottleneck family against whole models written out in plain PyTorch, with the adapters straight in the layers.

`Adapters` is what each paper says of one module, in its own words; the two models call it at three places of a layer,
with a sublayer's input x and its output y, and with the whole layer's output z. No maths of the package is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import adaptree.methods.bapna
import adaptree.methods.parallel
import adaptree.methods.variants  # noqa: F401
from adaptree import attach
from tests import tiny
from tests.test_reference import Weights, attention, difference, gelu, gelu_new, linear, norm


class Adapters:
    """What happens after a sublayer f with y = f(x), and after a whole layer."""

    def __init__(self, v: Weights) -> None:
        self.v = v

    def sublayer(self, site: str, x: Tensor, y: Tensor) -> Tensor:
        return y

    def layer(self, i: int, z: Tensor) -> Tensor:
        return z

    def affine(self, x: Tensor, name: str) -> Tensor:
        return torch.einsum("btd,dm->btm", x, self.v[name]) + self.v[f"{name}_bias"]

    def normed(self, x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        spread = (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return centred / spread * self.v[f"{name}.norm"] + self.v[f"{name}.norm_bias"]


class BapnaFirat(Adapters):
    def layer(self, i: int, z: Tensor) -> Tensor:
        """z̃ = LN_T(z);  h = relu(W z̃);  x = W h + z."""
        site = f"{i}.feedforward"
        return self.affine(torch.relu(self.affine(self.normed(z, site), f"{site}.down")), f"{site}.up") + z


class He(Adapters):
    scale = 1.0

    def sublayer(self, site: str, x: Tensor, y: Tensor) -> Tensor:
        """h ← h + s · f(x W_down) W_up, where h is the feed-forward part's output."""
        if site.endswith("attention"):
            return y
        return y + self.scale * self.affine(torch.relu(self.affine(x, f"{site}.down")), f"{site}.up")


class HeScaled(He):
    scale = 3.0


class Norm(Adapters):
    def sublayer(self, site: str, x: Tensor, y: Tensor) -> Tensor:
        return self.affine(gelu(self.normed(self.affine(y, f"{site}.down"), site)), f"{site}.up") + y


class Deep(Adapters):
    def sublayer(self, site: str, x: Tensor, y: Tensor) -> Tensor:
        z = gelu(self.affine(y, f"{site}.down"))
        z = gelu(self.affine(z, f"{site}.mid1"))
        z = gelu(self.affine(z, f"{site}.mid2"))
        return self.affine(z, f"{site}.up") + y


class OnlyAttention(Adapters):
    where = "attention"

    def sublayer(self, site: str, x: Tensor, y: Tensor) -> Tensor:
        if not site.endswith(self.where):
            return y
        return self.affine(gelu(self.affine(y, f"{site}.down")), f"{site}.up") + y


class OnlyFeedforward(OnlyAttention):
    where = "feedforward"


class Both(Adapters):
    def sublayer(self, site: str, x: Tensor, y: Tensor) -> Tensor:
        return self.affine(gelu(self.affine(x, f"{site}.down")), f"{site}.up") + y


class Multiplied(Adapters):
    def sublayer(self, site: str, x: Tensor, y: Tensor) -> Tensor:
        return y + y * self.affine(gelu(self.affine(x, f"{site}.down")), f"{site}.up")


def bert(w: Weights, v: Weights, adapters: Adapters, ids: Tensor, mask: Tensor) -> Tensor:
    """Post-norm: a sublayer reads the stream as it is."""
    eps, heads = 1e-12, 4
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], w, v, "embeddings.LayerNorm", eps)
    allowed = mask[:, None, :].expand(-1, ids.shape[1], -1)
    for i in range(3):
        at = f"encoder.layer.{i}"
        q, k, value = (linear(x, w, f"{at}.attention.self.{name}") for name in ("query", "key", "value"))
        y = linear(attention(q, k, value, heads, allowed), w, f"{at}.attention.output.dense")
        x = norm(adapters.sublayer(f"{i}.attention", x, y) + x, w, v, f"{at}.attention.output.LayerNorm", eps)
        y = linear(gelu(linear(x, w, f"{at}.intermediate.dense")), w, f"{at}.output.dense")
        x = norm(adapters.sublayer(f"{i}.feedforward", x, y) + x, w, v, f"{at}.output.LayerNorm", eps)
        x = adapters.layer(i, x)
    return x


def gpt2(w: Weights, v: Weights, adapters: Adapters, ids: Tensor, mask: Tensor) -> Tensor:
    """Pre-norm and causal: a sublayer reads the normed stream, and its output is added to the stream itself."""
    eps, heads, T = 1e-5, 4, ids.shape[1]

    def conv(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"].T, w[f"{name}.bias"])

    stream = w["wte.weight"][ids] + w["wpe.weight"][:T]
    allowed = torch.ones(T, T, dtype=torch.bool).tril() & mask[:, None, :]
    for i in range(3):
        x = norm(stream, w, v, f"h.{i}.ln_1", eps)
        q, k, value = conv(x, f"h.{i}.attn.c_attn").chunk(3, -1)
        y = conv(attention(q, k, value, heads, allowed), f"h.{i}.attn.c_proj")
        stream = stream + adapters.sublayer(f"{i}.attention", x, y)
        x = norm(stream, w, v, f"h.{i}.ln_2", eps)
        y = conv(gelu_new(conv(x, f"h.{i}.mlp.c_fc")), f"h.{i}.mlp.c_proj")
        stream = stream + adapters.sublayer(f"{i}.feedforward", x, y)
        stream = adapters.layer(i, stream)
    return norm(stream, w, v, "ln_f", eps)


MODELS: dict[str, Callable[..., Tensor]] = {"bert": bert, "gpt2": gpt2}
FAMILY: dict[str, type[Adapters]] = {
    "bapna:8": BapnaFirat,
    "parallel_adapter:8": He,
    "scaled_parallel(size=8, scale=3)": HeScaled,
    "houlsby_norm:8": Norm,
    "houlsby_deep(size=8, depth=3)": Deep,
    "houlsby_attention:8": OnlyAttention,
    "houlsby_feedforward:8": OnlyFeedforward,
    "houlsby_parallel:8": Both,
    "houlsby_multiplicative:8": Multiplied,
}


def both_sides(case: str, method: str) -> tuple[Any, dict[str, Tensor], Tensor, Tensor, Tensor]:
    """The tuned model, its weights as plain tensors, both outputs at the real positions, and the bare model's."""
    model = tiny.model(case)
    tuned = attach(model, method)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in tuned.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    v = {name: p.detach().clone().requires_grad_() for name, p in tuned.named_parameters()}
    inputs = tiny.batch(model, rows=6, tokens=11)
    real = inputs["attention_mask"].bool()
    assert not real.all()
    written = MODELS[case](model.state_dict(), v, FAMILY[method](v), inputs["input_ids"], real)[real]
    return tuned, v, tuned(**inputs).last_hidden_state[real], written, model(**inputs).last_hidden_state[real]


@pytest.mark.parametrize("method", FAMILY)
@pytest.mark.parametrize("case", MODELS)
def test_outputs_equal_the_written_out_model(case: str, method: str) -> None:
    _, _, found, written, bare = both_sides(case, method)
    assert difference(found, bare) > 0.05, "a task that changes nothing proves nothing"
    assert difference(found, written) < 1e-6


@pytest.mark.parametrize("method", FAMILY)
@pytest.mark.parametrize("case", MODELS)
def test_gradients_equal_the_written_out_models(case: str, method: str) -> None:
    tuned, v, found, written, _ = both_sides(case, method)
    towards = torch.randn(found.shape, generator=torch.Generator().manual_seed(2)) / len(found)
    (found * towards).sum().backward()
    (written * towards).sum().backward()
    given = {name: p.grad for name, p in tuned.named_parameters()}
    assert set(given) == set(v)
    for name, p in v.items():
        assert p.grad is not None, name
        assert p.grad.any(), name
        assert difference(given[name], p.grad) < 1e-5, name

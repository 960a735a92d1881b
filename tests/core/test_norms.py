from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import tiny
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from adaptree.core import norms


def deberta_norm(d: int) -> nn.Module:
    """DeBERTa v1's own class, out of a model: importing its module warns of what it uses."""
    kind = type(tiny.model("deberta").embeddings.LayerNorm)  # type: ignore[union-attr]
    made: nn.Module = kind(d, 1e-7)
    return made


CLASSES: dict[str, Callable[[int], nn.Module]] = {
    "LayerNorm": nn.LayerNorm,
    "LayerNorm without bias": lambda d: nn.LayerNorm(d, bias=False),
    "RMSNorm": nn.RMSNorm,
    "LlamaRMSNorm": LlamaRMSNorm,
    "Qwen3RMSNorm": Qwen3RMSNorm,
    "T5LayerNorm": T5LayerNorm,
    "DebertaLayerNorm": deberta_norm,
}
every_class = pytest.mark.parametrize("kind", CLASSES)


def own(norm: nn.Module, seed: int) -> dict[str, Tensor]:
    """A task's scale, and shift where the norm has one."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=generator) for name, p in norm.named_parameters()}


def with_parameters(kind: str, d: int, p: dict[str, Tensor]) -> nn.Module:
    """A norm of the class that really has these parameters."""
    norm = CLASSES[kind](d)
    norm.load_state_dict(p)
    return norm


@torch.no_grad()
@every_class
@pytest.mark.parametrize("shape", [(3, 5, 24), (2, 3, 4, 24), (7, 24)])
def test_apply_is_the_class_with_other_parameters_bit_for_bit(kind: str, shape: tuple[int, ...]) -> None:
    norm, x = CLASSES[kind](24), 3 * torch.randn(shape) + 1
    p = own(norm, 1)
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    assert torch.equal(norms.apply(norm, x, **p), with_parameters(kind, 24, p)(x))
    assert not torch.equal(norms.apply(norm, x, **p), norm(x))
    assert all(torch.equal(tensor, before[name]) for name, tensor in norm.state_dict().items())


@torch.no_grad()
@every_class
@pytest.mark.parametrize("shape", [(4, 4, 24), (4, 6, 24), (4, 6, 3, 24), (3, 3, 3, 3)])
def test_by_row_equals_one_by_one(kind: str, shape: tuple[int, ...]) -> None:
    """Also where rows, tokens, heads and width are as many."""
    B, d = shape[0], shape[-1]
    norm, x = CLASSES[kind](d), torch.randn(shape)
    tasks = [own(norm, seed) for seed in range(B)]
    rows = {name: torch.stack([task[name] for task in tasks]).unsqueeze(1) for name in tasks[0]}
    assert rows["weight"].shape == (B, 1, d)
    out = norms.apply(norm, x, **rows)
    for b in range(B):
        assert torch.equal(out[b : b + 1], with_parameters(kind, d, tasks[b])(x[b : b + 1]))


@given(rows=st.integers(1, 3), tokens=st.integers(1, 5), d=st.integers(2, 70), seed=st.integers(0, 2**31))
def test_a_layer_norm_by_row_is_bit_equal_at_any_width(rows: int, tokens: int, d: int, seed: int) -> None:
    B, x = rows, torch.randn(rows, tokens, d, generator=torch.Generator().manual_seed(seed))
    norm = nn.LayerNorm(d)
    tasks = [own(norm, seed + b) for b in range(B)]
    stacked = {name: torch.stack([task[name] for task in tasks]).unsqueeze(1) for name in tasks[0]}
    out = norms.apply(norm, x, **stacked)
    for b in range(B):
        assert torch.equal(out[b], norms.apply(norm, x[b], **tasks[b]))


@every_class
def test_gradients_reach_the_tasks_parameters_and_not_the_norms(kind: str) -> None:
    norm = CLASSES[kind](8)
    p = {name: tensor.requires_grad_() for name, tensor in own(norm, 0).items()}
    norms.apply(norm, torch.randn(2, 3, 8), **p).square().sum().backward()
    assert all(tensor.grad is not None and tensor.grad.all() for tensor in p.values())
    assert all(tensor.grad is None for tensor in norm.parameters())

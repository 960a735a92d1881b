"""Words that fade: each token's embedding between its own and that of a token that stands for a hidden word."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from adaptree.compose.merge import steps_of
from adaptree.errors import UsageError
from adaptree.methods import Action, Plan
from adaptree.models.hooks import HookedModel


def gated(hooked: HookedModel, plan: Plan, gates: Tensor, hidden_id: int) -> Plan:
    """Return a plan that does the same, and before it moves each token's embedding by its gate, (rows, tokens)."""
    backbone: Any = hooked.backbone
    table = backbone.get_input_embeddings().weight
    tables = (module for module in hooked.backbone.modules() if isinstance(module, nn.Embedding))
    shared = {id(module) for module in tables if module.weight is table}  # BART's encoder and decoder have one each
    paths = [path for path, module in hooked.backbone.named_modules() if id(module) in shared]
    fade = _fade(gates, hidden_id)
    return {**plan, **{path: (fade, *(steps_of(plan[path]) if path in plan else ())) for path in paths}}


def _fade(gates: Tensor, hidden_id: int) -> Action:
    seen: list[Tensor] = []

    def act(module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
        ids: Tensor = args[0]
        seen.append(ids)
        g = torch.ones(ids.shape, dtype=output.dtype, device=output.device)
        if len(ids) != len(gates) or not _same(ids, seen[0]):
            if len(ids) != len(gates) or not _same(ids[:, 1:], seen[0][:, :-1]):
                raise UsageError(
                    "this base reads its tokens in a way that gradients cannot follow.", hint="--by leave-one-out"
                )
            g = torch.cat([g[:, :1], gates, g[:, gates.shape[1] + 1 :]], 1)[:, : ids.shape[1]]  # BART's decoder
        else:
            g = torch.cat([gates, g[:, gates.shape[1] :]], 1)  # padding is as it is
        hidden = type(module).forward(module, torch.full_like(ids, hidden_id))
        return hidden + g.unsqueeze(-1) * (output - hidden)  # type: ignore[no-any-return]

    return act


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)

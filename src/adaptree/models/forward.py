"""Run encoded rows through a base, in batches of one length, to a head's output or to pooled vectors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from adaptree.data.batch import group
from adaptree.data.encode import Encoding
from adaptree.kinds import Example, Kind, Out
from adaptree.kinds.kind import pool
from adaptree.methods import Params, Plan
from adaptree.models import encoder_decoder
from adaptree.models.hooks import HookedModel

if TYPE_CHECKING:
    from adaptree.models.base import Base


def vectors(
    base: Base, rows: Sequence[Encoding], pooling: str, batch_size: int = 64, hooked: HookedModel | None = None
) -> Tensor:
    """Return the pooled vector of each row, (n, width), in this base or in a copy of it."""
    out = torch.empty(len(rows), base.width)
    with torch.inference_mode():
        for at in group([len(row.ids) for row in rows], batch_size):
            hidden, mask = base.hidden([rows[i] for i in at], hooked)
            out[torch.from_numpy(at)] = pool(hidden, mask, pooling).float().cpu()
    return out


def states(
    base: Base, rows: Sequence[Encoding], pooling: str = "", batch_size: int = 64, hooked: HookedModel | None = None
) -> list[Tensor]:
    """Return the last hidden state of every token of each row, (tokens, width), in this base or in a copy of it."""
    out: dict[int, Tensor] = {}
    with torch.inference_mode():
        for at in group([len(row.ids) for row in rows], batch_size):
            hidden, _ = base.hidden([rows[i] for i in at], hooked)
            out |= {int(i): h[: len(rows[i].ids)].float().cpu() for i, h in zip(at, hidden, strict=True)}
    return [out[i] for i in range(len(rows))]


def forward(
    base: Base,
    examples: Sequence[Example],
    kind: Kind,
    v: Params,
    pooling: str,
    *,
    batch_size: int,
    hooked: HookedModel | None = None,
) -> Out:
    """Return the head's output for each row of some examples, in their order."""
    rows = [row for example in examples for row in example]
    parts: list[Any] = []
    order: list[np.ndarray[Any, Any]] = []
    batches = group([len(row.ids) for row in rows], batch_size)
    if not torch.is_grad_enabled() and encoder_decoder.writes(base.hooked):
        batches = [some for at in batches for some in encoder_decoder.alike(rows, at)]
    for at in batches:
        some = [rows[i] for i in at]
        hidden, mask = base.hidden(some, hooked)
        found = kind.run(hidden, mask, some, v, pooling, base.words(hooked))
        if not torch.is_grad_enabled():
            found = found.cpu() if isinstance(found, Tensor) else [part.cpu() for part in found]
        parts.append(found)
        order.append(at)
    if not parts:
        return [] if kind.reads_tokens else torch.empty(0, kind.width)
    back = np.argsort(np.concatenate(order))
    if kind.reads_tokens:
        flat = [part for found in parts for part in found]
        return [flat[i] for i in back]
    return parts[0] if len(parts) == 1 else torch.cat(parts)[torch.from_numpy(back).to(parts[0].device)]


def infer(
    base: Base,
    examples: Sequence[Example],
    kind: Kind,
    v: Params,
    plan: Plan | None,
    pooling: str,
    batch_size: int = 64,
    hooked: HookedModel | None = None,
) -> Out:
    """Run `forward` without gradients under a plan; without one, under the plan that `hooked` is bound to."""
    with torch.inference_mode(), nullcontext() if plan is None else base.hooked.running(plan):
        return forward(base, examples, kind, v, pooling, batch_size=batch_size, hooked=hooked)

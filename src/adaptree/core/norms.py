"""A normalisation layer with a task's own scale and shift instead of the base's."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def apply(norm: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return norm(x) with these (d,) parameters, or with (B, 1, d) ones, a task's for each row.

    Works for any class that keeps its scale in `weight` and its shift in `bias` (LayerNorm, the RMS norms,
    DeBERTa's own): the class's formula runs on a shallow copy, so the norm itself is never touched.
    """
    if weight.dim() > 1:  # a row's weights meet all axes between its row and its width, however many there are
        between = [1] * (x.dim() - 2)
        weight = weight.reshape(weight.shape[0], *between, -1)
        bias = None if bias is None else bias.reshape(bias.shape[0], *between, -1)
    if isinstance(norm, nn.LayerNorm):
        if weight.dim() == 1:
            return F.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)
        plain = F.layer_norm(x, norm.normalized_shape, eps=norm.eps)
        # addcmul is bit-equal to the fused form; `plain * weight + bias` is not.
        return plain * weight if bias is None else torch.addcmul(bias, plain, weight)
    if isinstance(norm, nn.RMSNorm) and weight.dim() > 1:  # torch's own kernel takes one scale for all rows
        return F.rms_norm(x, norm.normalized_shape, eps=norm.eps) * weight
    twin = copy.copy(norm)
    twin._parameters = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}  # type: ignore[dict-item]
    return twin.forward(x)  # type: ignore[no-any-return]

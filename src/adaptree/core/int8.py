"""Linear maps in int8: weights scaled by output, inputs scaled by token, products summed in int32."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MOST = 127


class Int8Linear(nn.Linear):
    """A linear map that computes with an int8 copy of its weight, which it keeps in fp32 too.

    Integer sums are exact, so a row's bits do not depend on the batch that it is in.
    """

    scale: Tensor
    """(out,)"""
    whole: Tensor
    """(in, out) int8"""

    def forward(self, input: Tensor) -> Tensor:
        x = input.reshape(-1, input.shape[-1])
        size = x.abs().amax(-1, keepdim=True).clamp_min_(torch.finfo(x.dtype).tiny * MOST).div_(MOST)  # (N, 1)
        sums = torch._int_mm((x / size).round_().to(torch.int8), self.whole)  # (N, out) int32
        y = sums.to(x.dtype).mul_(size).mul_(self.scale)
        if self.bias is not None:
            y += self.bias
        return y.view(*input.shape[:-1], -1)


def quantise(module: nn.Module) -> int:
    """Let every linear map in a module compute in int8, with its current weights; return how many there are."""
    count = 0
    for part in module.modules():
        if type(part) is nn.Linear:
            weight = part.weight.detach()
            scale = weight.abs().amax(1).clamp_min(torch.finfo(weight.dtype).tiny * MOST) / MOST
            part.__class__ = Int8Linear
            part.scale = scale
            part.whole = (weight / scale[:, None]).round().to(torch.int8).t().contiguous()
            count += 1
    return count

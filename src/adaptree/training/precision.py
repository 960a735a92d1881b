"""Training steps in bf16, which is quicker where the processor has instructions for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


class _WideAttention(TorchFunctionMode):
    """Attention itself stays in fp32: on processors its backward pass takes eight times as long in bf16."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        with torch.autocast("cpu", enabled=False):
            return func(*map(_wide, args), **{key: _wide(value) for key, value in (kwargs or {}).items()})


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


@contextmanager
def computing_in(precision: str, device_type: str) -> Iterator[None]:
    """Compute forward passes in this precision within a `with` block; weights and gradients stay in fp32."""
    if precision == "fp32":
        yield
        return
    with torch.autocast(device_type, torch.bfloat16):
        if device_type != "cpu":
            yield
            return
        with _WideAttention():
            yield


def quick_at_bf16(device_type: str) -> bool:
    """Return whether bf16 is quicker than fp32 on a device: it is not where it is only emulated."""
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device_type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported())

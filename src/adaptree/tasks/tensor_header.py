"""The header of a safetensors file, checked before any tensor is loaded from it."""

from __future__ import annotations

import math
from typing import Any, BinaryIO

from adaptree.data.foreign_json import has_type, loads

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Bytes of a number, by the types that methods have."""
METADATA = "__metadata__"
MOST_AXES = 8
LONGEST_NAME = 1000
SMALL, PART = 1_000_000, 20
"""JSON in memory is many times as large as in a file: beyond so many bytes it is no more than this part of its file."""


def check_header(file: BinaryIO, size: int) -> None:
    """Raise ValueError, with the reason, unless the tensors fill a file of this size without a gap or an overlap.

    The numbers themselves are not read.
    """
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise ValueError(f"its header would have {length:,} bytes, and the file has {size:,}")
    if length > most_json(size):
        raise ValueError(f"its header has {length:,} of its {size:,} bytes")
    header = loads(file.read(length))
    if not isinstance(header, dict) or not has_type(header.pop(METADATA, {}), dict[str, str]):
        raise ValueError("its header is not one of safetensors")
    spans = sorted(_span(name, tensor) for name, tensor in header.items())
    end = 0
    for start, stop, name in spans:
        if start != end:
            raise ValueError(f"there is a gap or an overlap before {name!r}")
        end = stop
    if end != size - 8 - length:
        raise ValueError(f"its tensors end at {end:,}, and it has room for {size - 8 - length:,} bytes of them")


def most_json(size: int) -> int:
    """Return how many bytes of JSON a file of this size may hold, so that reading it takes no more memory than that."""
    return max(SMALL, size // PART)


def _span(name: str, tensor: Any) -> tuple[int, int, str]:
    """Return where a tensor begins and ends, and its name."""
    if len(name) > LONGEST_NAME:
        raise ValueError(f"a tensor's name has {len(name):,} characters")
    if not isinstance(tensor, dict) or tensor.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name!r} has no type, shape and place, or more than these")
    dtype, shape, offsets = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise ValueError(f"{name!r} is of type {dtype!r:.20}, which no method has")
    if not has_type(shape, list[int]) or len(shape) > MOST_AXES or min(shape, default=0) < 0:
        raise ValueError(f"{name!r} has no shape that can be")
    if not has_type(offsets, list[int]) or len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1]:
        raise ValueError(f"{name!r} has no place that can be")
    if math.prod(shape) * SIZES[dtype] != offsets[1] - offsets[0]:
        raise ValueError(f"{name!r} has {offsets[1] - offsets[0]:,} bytes, which its shape and type do not take")
    return offsets[0], offsets[1], name

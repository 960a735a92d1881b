"""The weights of many tasks of one method, stacked: a slot for each task, and by row of a batch those of its task.

A stack is one matrix, (slots, numbers): a row has all weights of one task, end to end. Its memory is reserved and not
taken: pages come when a slot is filled, and go back when it is freed. Where a system or a device does not reserve, it
grows by copying.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from adaptree.errors import StoreError
from adaptree.methods import Params
from adaptree.methods.method import Shapes

ALIGNED = 64
"""Bytes to which a slot, and a weight in it, is aligned: kernels are quicker there, and give the same bits."""
MOST_SLOTS, FIRST = 1 << 20, 16
NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE, which Python's mmap has no name for before 3.13."""


class RowWeights:
    """One weight by row of a batch, (rows, *shape); it is taken out of the stack when an operation needs it.

    So a forward pass copies the weights of a layer just before it uses them, while they fit in the processor's cache.
    """

    def __init__(self, weights: Tensor, slots: Tensor) -> None:
        self._weights, self._slots = weights, slots
        self.shape = torch.Size((len(slots), *weights.shape[1:]))
        self.dtype, self.device = weights.dtype, weights.device

    def take(self) -> Tensor:
        """Return the weights of the rows as a tensor."""
        return self._weights.index_select(0, self._slots)

    def dim(self) -> int:
        return len(self.shape)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*_taken(args), **_taken(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.take(), name)


def _taken(value: Any) -> Any:
    """Return arguments with tensors in the place of weights by row."""
    if isinstance(value, RowWeights):
        return value.take()
    if type(value) in (tuple, list):
        return type(value)(map(_taken, value))
    if type(value) is dict:
        return {key: _taken(each) for key, each in value.items()}
    return value


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *others: getattr(self.take(), name)(*_taken(others))


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "matmul", "rmatmul", "truediv", "neg", "getitem"):
    setattr(RowWeights, f"__{_name}__", _operator(f"__{_name}__"))


class Stack:
    """The weights of tasks whose names and shapes agree. A weight smaller than its place is filled up with zeros."""

    def __init__(self, shapes: Shapes, room: int, device: str = "cpu") -> None:
        """Reserve slots in `room` bytes, at least one."""
        self.shapes = {name: tuple(length or 0 for length in shape) for name, (shape, _) in shapes.items()}
        self.device = device
        types = {dtype for _, dtype in shapes.values()} or {torch.float32}
        if len(types) > 1:
            raise ValueError("the weights of a stack are of one type")
        (self.dtype,) = types
        unit = ALIGNED // self.dtype.itemsize
        self._places: dict[str, tuple[int, int]] = {}
        end = 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            self._places[name] = end, size
            end = -(-(end + size) // unit) * unit
        self.bytes = end * self.dtype.itemsize
        """What a task takes."""
        self.most = max(1, min(MOST_SLOTS, room // self.bytes)) if end else MOST_SLOTS
        """How many slots there may be."""
        self._free: list[int] = []
        self._used = 0
        self._memory = _reserved(self.most * self.bytes) if end and device == "cpu" else None
        if self._memory is not None:
            self._place(torch.frombuffer(self._memory, dtype=self.dtype).view(self.most, end))
        else:
            first = min(self.most, FIRST) if end else self.most
            self._place(torch.zeros(first, end, dtype=self.dtype, device=device))

    def _place(self, flat: Tensor) -> None:
        """Keep the weights in this memory, (slots, numbers), from now on."""
        self._flat = flat
        self.slots = len(flat)
        """How many there is memory for."""
        self._by_name = {
            name: torch.unflatten(flat[:, start : start + size], 1, _row_shape(self.shapes[name]))
            for name, (start, size) in self._places.items()
        }

    def _grow(self) -> None:
        """Move to twice the memory."""
        if self.slots >= self.most:
            raise StoreError(f"there is no place for more than {self.most:,} tasks of one method.")
        larger = self._flat.new_zeros(min(self.most, 2 * self.slots), self._flat.shape[1])
        larger[: self.slots] = self._flat
        self._place(larger)

    def fill(self, v: Params) -> int:
        """Copy a task's weights into a free slot; return its number."""
        if self._free:
            slot = self._free.pop()
        else:
            if self._used == self.slots:
                self._grow()
            slot, self._used = self._used, self._used + 1
        for name, shape in self.shapes.items():
            place, tensor = self._by_name[name][slot].view(shape), v[name]
            if tensor.shape == place.shape:
                place.copy_(tensor)
            else:
                place.zero_()
                place[tuple(slice(0, length) for length in tensor.shape)].copy_(tensor)
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back, with the memory that it alone has."""
        if self._memory is not None:
            start, end = slot * self.bytes, (slot + 1) * self.bytes
            first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
            if last > first and hasattr(mmap, "MADV_DONTNEED"):
                self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)
        self._free.append(slot)

    def of_task(self, slot: int) -> dict[str, Tensor]:
        """Return the weights in one slot, as a task has them: views of the stack, filled up with zeros."""
        return {name: self._by_name[name][slot].view(shape) for name, shape in self.shapes.items()}

    def of_rows(self, slots: Sequence[int]) -> Mapping[str, Any]:
        """Return the weights of the rows of a batch, given each row's slot."""
        at = torch.tensor(slots, dtype=torch.long, device=self.device)
        return {name: RowWeights(weights, at) for name, weights in self._by_name.items()}


def _row_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that a row's weight has: a vector meets all tokens of its row."""
    return (1, *shape) if len(shape) == 1 else shape


def _reserved(size: int) -> mmap.mmap | None:
    """Return so many bytes of zeros that take no memory until they are written; None where that cannot be had."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return None
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (NO_RESERVE if sys.platform == "linux" else 0)
    try:
        return mmap.mmap(-1, size, flags=flags)
    except (OSError, ValueError, OverflowError):
        return None

"""Stacked weights: a slot for each task, memory only for those that are there, and by row those of its task."""

from __future__ import annotations

import os

import pytest
import torch

from adaptree.errors import StoreError
from adaptree.models.stacks import RowWeights, Stack

SHAPES = {"down": ((6, 4), torch.float32), "bias": ((1, 4), torch.float32), "scale": ((6,), torch.float32)}


def weights(seed: int, m: int = 4) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = {"down": (6, m), "bias": (1, m), "scale": (6,)}
    return {name: torch.randn(shape, generator=g) for name, shape in shapes.items()}


def test_what_is_put_in_comes_out_for_each_row() -> None:
    stack = Stack(SHAPES, 1 << 20)
    tasks = [weights(i) for i in range(5)]
    slots = [stack.fill(v) for v in tasks]
    for slot, v in zip(slots, tasks, strict=True):
        assert all(torch.equal(stack.of_task(slot)[name], v[name]) for name in v)
    rows = stack.of_rows([slots[3], slots[0], slots[3]])
    assert rows["down"].shape == (3, 6, 4)
    assert rows["scale"].shape == (3, 1, 6), "a vector meets all tokens of its row"
    x = torch.randn(3, 7, 6)
    assert torch.equal(x @ rows["down"], torch.stack([x[i] @ tasks[t]["down"] for i, t in enumerate((3, 0, 3))]))
    assert torch.equal(x * rows["scale"], torch.stack([x[i] * tasks[t]["scale"] for i, t in enumerate((3, 0, 3))]))
    assert torch.equal(torch.cat([rows["bias"], rows["bias"]], 1)[1], tasks[0]["bias"].repeat(2, 1))
    assert torch.equal(2 * rows["bias"], 2 * rows["bias"].take())
    assert torch.equal(rows["bias"].reshape(3, 4), rows["bias"].take().reshape(3, 4))
    assert isinstance(rows["down"], RowWeights)


def test_smaller_weights_are_filled_up_with_zeros_whatever_was_there() -> None:
    stack = Stack(SHAPES, 1 << 20)
    slot = stack.fill(weights(0))
    stack.free(slot)
    small = weights(1, m=3)
    again = stack.fill(small)
    assert again == slot
    found = stack.of_task(again)
    assert torch.equal(found["down"][:, :3], small["down"])
    assert found["down"][:, 3].eq(0).all()
    assert found["bias"][:, 3].eq(0).all()


def test_a_stack_that_is_full_says_so() -> None:
    stack = Stack(SHAPES, 1)
    slot = stack.fill(weights(0))
    with pytest.raises(StoreError, match="more than 1 tasks"):
        stack.fill(weights(1))
    stack.free(slot)
    stack.fill(weights(1))


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
def test_memory_is_taken_when_a_slot_is_filled_and_goes_back_when_it_is_freed() -> None:
    shapes = {"w": ((1024, 1024), torch.float32)}
    big = {"w": torch.ones(1024, 1024)}
    before = resident()
    stack = Stack(shapes, 1 << 34)
    assert resident() - before < 4 << 20, "reserved, not taken"
    slots = [stack.fill(big) for _ in range(20)]
    taken = resident() - before
    assert 0.95 < taken / (20 * 4 << 20) < 1.1
    for slot in slots:
        stack.free(slot)
    assert resident() - before < 8 << 20
    assert stack.of_task(slots[0])["w"][1:-1].eq(0).all(), "nothing of a task is left for the next one"


@pytest.mark.parametrize("why", ["another system", "no memory to reserve"])
def test_where_memory_cannot_be_reserved_a_stack_grows(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise OSError("no memory")

    if why == "another system":
        monkeypatch.delattr("mmap.MAP_ANONYMOUS")
    else:
        monkeypatch.setattr("mmap.mmap", refuse)
    stack = Stack(SHAPES, 1 << 20)
    assert stack.slots == 16
    tasks = [weights(i) for i in range(100)]
    slots = [stack.fill(v) for v in tasks]
    assert stack.slots == 128
    for slot, v in zip(slots, tasks, strict=True):
        assert all(torch.equal(stack.of_task(slot)[name], v[name]) for name in v)
    stack.free(slots[3])
    assert stack.fill(weights(500)) == slots[3]


def test_a_task_without_weights_of_its_own_has_a_slot_too() -> None:
    stack = Stack({}, 1 << 20)
    assert stack.fill({}) != stack.fill({})
    assert stack.of_rows([0, 1]) == {}
    stack.free(0)

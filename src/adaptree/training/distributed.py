"""Processes that train one task together: `accelerate launch … -m adaptree train …` starts them.

Every process has the whole base and the same weights v. Of each batch it computes its shard of the rows; gradients are
sums over rows and are added up over all processes. So any number of processes takes the same steps, but for the order
of additions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from adaptree.errors import AdaptreeError, TrainingError, UsageError

if TYPE_CHECKING:
    from torch import Tensor


T = TypeVar("T")


def rank() -> int:
    """Return this process's number among those started together; 0 is the one that writes files and prints."""
    return int(os.environ.get("RANK", "0")) if size() > 1 else 0


def size() -> int:
    """Return how many processes were started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def leave() -> None:
    """Leave the group of processes, at the very end."""
    import torch

    if size() > 1 and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class ProcessGroup:
    """This process among those that train together; with one process every method returns its input."""

    def __init__(self, device: str) -> None:
        import torch

        self.rank, self.size, self.device = rank(), size(), device
        if self.size > 1 and not torch.distributed.is_initialized():
            try:
                from accelerate import PartialState  # type: ignore[import-untyped]
            except ImportError as error:
                raise UsageError(
                    "several processes train together through Accelerate.", hint="pip install 'adaptree[devices]'"
                ) from error
            PartialState(cpu=device == "cpu")

    def shard(self, count: int) -> slice:
        """Return which of `count` rows this process computes."""
        return slice(self.rank, count, self.size)

    def all_reduce(self, parameters: Iterable[Tensor], numbers: list[float]) -> list[float]:
        """Sum the gradients of all processes in place; return the sums of `numbers`."""
        import torch

        if self.size == 1:
            return numbers
        owners = list(parameters)
        for p in owners:
            if p.grad is None:  # this process had no row that reaches it
                p.grad = torch.zeros_like(p)
        grads = [p.grad for p in owners if p.grad is not None]
        together = torch.cat([*(grad.flatten() for grad in grads), torch.tensor(numbers, device=grads[0].device)])
        torch.distributed.all_reduce(together)
        start = 0
        for grad in grads:
            grad.copy_(together[start : start + grad.numel()].view_as(grad))
            start += grad.numel()
        sums: list[float] = together[start:].tolist()
        return sums

    def sum(self, numbers: list[float]) -> list[float]:
        """Return the sums of numbers over all processes."""
        import torch

        if self.size == 1:
            return numbers
        together = torch.tensor(numbers, device=self.device)
        torch.distributed.all_reduce(together)
        sums: list[float] = together.tolist()
        return sums

    def gather(self, mine: Tensor, count: int) -> Tensor:
        """Return the output for all `count` rows, put together from each process's shard."""
        import torch

        if self.size == 1:
            return mine
        whole = torch.zeros(count, *mine.shape[1:], device=self.device)
        whole[self.shard(count)] = mine.to(self.device)
        torch.distributed.all_reduce(whole)
        return whole.cpu()

    def broadcast(self, value: T) -> T:
        """Return the first process's value in every process."""
        import torch

        if self.size == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def by_first(self, call: Callable[[], T]) -> T:
        """Return in every process what the first one's call returns; raise its error in all of them."""
        if self.size == 1:
            return call()
        outcome: T | AdaptreeError | None = None
        if self.rank == 0:
            try:
                outcome = call()
            except AdaptreeError as error:
                outcome = error
        outcome = self.broadcast(outcome)
        if isinstance(outcome, AdaptreeError):
            raise outcome
        return outcome  # type: ignore[return-value]

    def broadcast_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the first process's tensors in every process, on the CPU, sent one by one."""
        import torch

        if self.size == 1:
            return tensors
        found = {}
        for name, shape, dtype in self.broadcast([(name, t.shape, t.dtype) for name, t in tensors.items()]):
            here = tensors[name] if self.rank == 0 else torch.empty(shape, dtype=dtype)
            here = here.to(self.device).contiguous()
            torch.distributed.broadcast(here, src=0)
            found[name] = here.cpu()
        return found

    def check_same(self, identity: str) -> None:
        """Raise TrainingError, in every process, unless all of them train the same thing."""
        import torch

        if self.size == 1:
            return
        found: list[str | None] = [None] * self.size
        torch.distributed.all_gather_object(found, identity)
        if others := [str(n) for n, other in enumerate(found) if other != found[0]]:
            raise TrainingError(
                f"process {' and '.join(others)} of {self.size} has other data, another base or other settings than "
                "the first.",
                hint="Give every process the same command, files and base.",
            )

"""The processes that train one task together: `accelerate launch … -m adaptree train …` starts them.

Every process has the whole base and the same weights v. Of each batch it computes its share of the rows; the gradients,
sums over rows, are added up over all. So any number of processes takes the same steps, but for the order of additions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from adaptree.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


T = TypeVar("T")


def rank() -> int:
    """This process's number among those that were started together; 0 leads, and alone writes and speaks."""
    return int(os.environ.get("RANK", "0")) if size() > 1 else 0


def size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def dismiss() -> None:
    """Leave the others, at the very end."""
    import torch

    if size() > 1 and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class ProcessGroup:
    """This process among its fellows; alone, everything here does nothing."""

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

    def share(self, count: int) -> slice:
        """Which of so many rows are this process's."""
        return slice(self.rank, count, self.size)

    def add_up(self, parameters: Iterable[Tensor], more: list[float]) -> list[float]:
        """Sum every gradient over all processes, and some numbers along with them."""
        import torch

        if self.size == 1:
            return more
        owners = list(parameters)
        for p in owners:
            if p.grad is None:  # no row of this batch was ours
                p.grad = torch.zeros_like(p)
        grads = [p.grad for p in owners if p.grad is not None]
        together = torch.cat([*(grad.flatten() for grad in grads), torch.tensor(more, device=grads[0].device)])
        torch.distributed.all_reduce(together)
        start = 0
        for grad in grads:
            grad.copy_(together[start : start + grad.numel()].view_as(grad))
            start += grad.numel()
        numbers: list[float] = together[start:].tolist()
        return numbers

    def gather(self, mine: Tensor, count: int) -> Tensor:
        """All rows' answers, from each process's own."""
        import torch

        if self.size == 1:
            return mine
        whole = torch.zeros(count, *mine.shape[1:], device=self.device)
        whole[self.share(count)] = mine.to(self.device)
        torch.distributed.all_reduce(whole)
        return whole.cpu()

    def tell(self, what: T) -> T:
        """What the first process has, for all of them."""
        import torch

        if self.size == 1:
            return what
        box = [what]
        torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

"""A task that is in memory, ready to be served."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adaptree import kinds
from adaptree.data.encode import Encoding
from adaptree.errors import CompositionError
from adaptree.kinds import Example, Out
from adaptree.models.bank import Bank, Place
from adaptree.models.bound import Bound

if TYPE_CHECKING:
    from adaptree.compose import Composition
    from adaptree.models.base import Base


class Served:
    """A task or composition in memory: its weights are in the bank, or it has passes of its own (`bound`)."""

    def __init__(self, base: Base, bank: Bank, composition: Composition, reference: str) -> None:
        if composition.task is None:
            raise CompositionError(f"'{reference}' has nothing to predict with.", hint="Name a task in it.")
        self.base, self._bank = base, bank
        self.record = composition.task.record
        self.reference = reference
        """Its name with its version."""
        self.names: set[str] = set()
        """The names by which it was asked for; the shelf's."""
        self.kind = kinds.for_record(self.record, base.encoder)
        config: Any = base.hooked.backbone.config
        if self.kind.generates and getattr(config, "is_encoder_decoder", False):
            raise CompositionError(
                f"'{reference}' writes texts with an encoder and a decoder, which the server does not do.",
                hint="adaptree predict",
            )
        self.head = {name: p for name, p in composition.v.items() if name.startswith("head.")}
        self.place: Place | None = None
        self.bound: Bound | None = None
        self.why_apart = self._settle(composition)
        """Why it does not share passes with other tasks; '' if it does."""
        self.bytes = self._size(composition)
        self._lock = threading.Lock()
        self._users = 0
        self._retired = False

    def _settle(self, composition: Composition) -> str:
        """Put the weights into the bank; where they cannot share passes, bind the task. Return why not."""
        if composition.parts[-1][0].standalone:
            found: Place | str = f"{composition.parts[-1][0].name} does not use the base"
        else:
            found = self._bank.add(composition)
        if isinstance(found, Place):
            self.place = found
            return ""
        self.bound = Bound(self.base, composition)
        return found

    def _size(self, composition: Composition) -> int:
        """Return the bytes that it takes in memory."""
        head = sum(p.nbytes for p in self.head.values())
        if self.place is not None:
            return self.place.bytes + head
        return sum(p.nbytes for _, v in composition.parts for p in v.values())

    # Who uses it: its memory is freed when it was retired and its last request is done.

    def acquire(self) -> bool:
        """Count one more user; return False if it is retired already."""
        with self._lock:
            if self._retired:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """Count one user less."""
        with self._lock:
            self._users -= 1
            free = self._retired and not self._users
        if free:
            self._free()

    def retire(self) -> None:
        """Take no more users; free the memory as soon as there are none."""
        with self._lock:
            was, self._retired = self._retired, True
            free = not was and not self._users
        if free:
            self._free()

    @property
    def busy(self) -> bool:
        return self._users > 0

    def _free(self) -> None:
        if self.place is not None:
            self._bank.remove(self.place)
        self.bound = None

    # What it computes.

    def read(self, inputs: Any) -> tuple[list[Any], list[Example]]:
        """Return a user's inputs as the kind reads them, and their examples; raise UsageError for what is no input."""
        read = self.kind.inputs(inputs, self.record)
        if not read or (self.bound is not None and self.bound.method.standalone):
            return read, []
        examples = self.kind.examples(self.base.encoder, read, self.record.max_length)
        return read, list(self.kind.resampled(examples, None))

    def run_head(self, hidden: Tensor, mask: Tensor, rows: Sequence[Encoding]) -> Out:
        """Return the head's output for last hidden states of some rows."""
        with torch.inference_mode():
            return self.kind.run(hidden, mask, rows, self.head, self.record.pooling, self.base.words())

    def run_apart(self, read: list[Any], examples: list[Example]) -> Out:
        """Return the head's output for inputs of a task that has passes of its own."""
        assert self.bound is not None
        if self.bound.method.standalone:
            return self.bound.run(read)[1]
        return self.bound.compute(examples)

    def respond(self, out: Out, examples: list[Example], read: list[Any], min_score: float | None) -> list[Any]:
        """Return the predictions; texts are there as they were written."""
        if self.kind.generates:
            return list(out)
        return self.kind.respond(out, examples, read, min_score)

    def collected(self, outs: Sequence[Any]) -> Out:
        """Return the outputs of a request's rows as the kind takes them."""
        if self.kind.reads_tokens:
            return list(outs)
        return torch.stack(list(outs)) if outs else torch.empty(0, self.kind.width)

    def __repr__(self) -> str:
        return f"Served({self.reference}, {self.bytes:,} bytes)"

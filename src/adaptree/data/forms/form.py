"""How the rows of a file become the inputs and the targets of a kind of task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Form(ABC):
    """The form of one file. Inputs and targets are plain JSON values: they are kept as bytes, read back when needed."""

    kind: ClassVar[str]
    needs: ClassVar[str]
    """What a file of this kind has, for whoever gave another."""
    asked: ClassVar[tuple[str, ...]] = ("text",)
    """Which of the columns an input is made of."""
    nothing: ClassVar[Any] = None
    """The input of a row that has none, for kinds that can answer it."""
    columns: dict[str, str | None]
    """Which columns of the file are read, by what they are; kept in a task's record."""
    why: str
    """Why the file is taken to be of this kind, as `adaptree check` says it."""

    @classmethod
    @abstractmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], said: Mapping[str, str | None]) -> Form | None:
        """The form of a file with these columns and first rows; None when it is not of this kind.

        `said` are columns that the user named (text, pair, label); what was named and is not there is a DataError.
        """

    def reading(self, said: Mapping[str, str | None]) -> Form:
        """The same form with inputs from the columns that a user names: text, and pair where it has two."""
        named = {part: said[word] for part, word in zip(self.asked, ("text", "pair"), strict=False) if said.get(word)}
        return replace(self, columns={**self.columns, **named})

    @abstractmethod
    def input(self, row: Row, number: int, name: str) -> Any | None:
        """A row's input; None when it has none. What cannot be read is a DataError that names the row and the file."""

    @abstractmethod
    def gold(self, row: Row, given: Any, number: int, name: str) -> Any | None:
        """What is right for the row's input; None when the row does not say."""

    @abstractmethod
    def key(self, given: Any) -> str:
        """What makes two inputs the same: they stay on one side of a split."""

    def labels(self, gold: Any) -> Iterable[str]:
        """The labels in a gold, for kinds that have some."""
        return ()

"""The labels or numbers in one column of a file, collected row by row."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptree.data.labels import merged_names, plain_label, variants
from adaptree.errors import DataError, near

if TYPE_CHECKING:
    from adaptree.data.dataset import Schema

MOST_LABELS = 1000
LARGEST = float(np.finfo(np.float32).max)


class TargetColumn:
    """Collects the values of a label column; at the end they can be had as labels or as numbers.

    Every distinct spelling gets a code, until there are too many for classes; numbers are kept beside the codes.
    `as_labels` and `as_numbers` say which of the two may be asked for. With `merge`, labels that differ only in case,
    blanks or the like are one.
    """

    def __init__(
        self, name: str, sample: Sequence[Any], *, as_labels: bool, as_numbers: bool, schema: Schema | None = None,
        unknown: bool = False, merge: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.as_labels, self.as_numbers = as_labels, as_numbers
        self._schema = schema if as_labels else None
        # pandas writes NaN where there is no label: among names that is an absent label, among numbers a bad one
        names = any(isinstance(value, str) and _number(value) is None for value in sample)
        self._nan_is_absent = names or not as_numbers
        known = schema.labels if schema is not None else ()
        self._codes: dict[str, int] = {str(label): i for i, label in enumerate(known)}
        self._merge = merge
        self._by_plain = {plain_label(label): str(label) for label in reversed(known)} if merge else {}
        self.merged: dict[str, dict[str, int]] = {}
        """By label, how often each of the spellings occurs that were merged in it; filled by `labels`."""
        self._numbers: list[float] = [math.nan] * len(self._codes)
        self._code, self._value = array("i"), array("f")
        self._all_integers = True
        self.all_numbers = True
        """Whether every label is the spelling of a number."""
        self.fractions = False
        """Whether some of them are not whole."""
        self.overflow = False
        """Whether there are more than MOST_LABELS different ones."""
        self._not_finite: tuple[int, str] | None = None
        self.unknown: Counter[str] | None = Counter() if unknown else None
        """How often each label occurs that the schema does not have, where those are allowed."""

    @property
    def distinct(self) -> int:
        """How many different labels there are, counted up to MOST_LABELS."""
        return len({plain_label(label) for label in self._codes}) if self._merge else len(self._codes)

    @property
    def count(self) -> str:
        """How many different labels there are, in words."""
        return f"more than {MOST_LABELS}" if self.overflow else str(self.distinct)

    def add(self, value: Any, number: int) -> str | None:
        """Take the label of row `number`; return its spelling, or None when there is none."""
        if isinstance(value, np.generic):
            value = value.item()
        spelling = self._spell(value, number)
        if spelling is None:
            return None
        if self._by_plain and spelling not in self._codes:
            spelling = self._by_plain.get(plain_label(spelling), spelling)
        if type(value) is not int:
            self._all_integers = False
        code = self._codes.get(spelling)
        if code is not None:
            figure = self._numbers[code]
        elif self.unknown is not None and self._schema is not None:
            self.unknown[spelling] += 1
            code, figure = len(self._schema.labels), math.nan
        else:
            figure = self._first(spelling, number)
            code = self._codes.get(spelling, -1)
        if self.as_labels:
            self._code.append(code)
        if self.as_numbers:
            self._value.append(figure)
        return spelling

    def _spell(self, value: Any, number: int) -> str | None:
        if isinstance(value, str):
            return value.strip() or None
        if value is None or (isinstance(value, float) and math.isnan(value) and self._nan_is_absent):
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list | tuple | dict | set | np.ndarray):
            raise DataError(
                f"row {number} of '{self.name}': the label is a {type(value).__name__}; one label per row is needed.",
                hint="Choose another column with --label COL.",
            )
        return str(value)

    def _first(self, spelling: str, number: int) -> float:
        """Give a new spelling its code; return its number, or NaN."""
        figure = _number(spelling)
        finite = figure is not None and abs(figure) <= LARGEST
        if not self.as_labels and not finite:
            raise self._not_a_number(number, spelling)
        if self._schema is not None:
            raise self._unknown_label(number, spelling)
        if figure is None:
            self.all_numbers = False
        elif not finite:
            self._not_finite = self._not_finite or (number, spelling)
        elif not figure.is_integer():
            self.fractions = True
        if self.as_labels and len(self._codes) >= MOST_LABELS:
            self.overflow = True
            if not self.as_numbers or not self.all_numbers:
                raise self._too_many(f"more than {MOST_LABELS} different labels")
        elif self.as_labels:
            self._codes[spelling] = len(self._codes)
            self._numbers.append(math.nan if figure is None else figure)
        return math.nan if figure is None else figure

    def check_finite(self) -> None:
        """Raise DataError for the first label that is infinite or NaN."""
        if self._not_finite is not None:
            raise self._not_a_number(*self._not_finite)

    def numbers(self) -> NDArray[np.float32]:
        """Return the number of each row."""
        return np.frombuffer(self._value, dtype=np.float32)

    def labels(self) -> tuple[tuple[str | int, ...], NDArray[np.int32]]:
        """Return the labels in order, numbers by size and names by the alphabet, and the position of each row's."""
        codes: NDArray[np.int32] = np.frombuffer(self._code, dtype=np.int32)
        if self._schema is not None:
            return tuple(self._schema.labels), codes
        names = self._names(codes)
        order = sorted(set(names.values()))
        if len(order) == 1:
            raise DataError(f"'{self.name}' has only one label, '{order[0]}'.", hint="Two or more are needed.")
        if len(codes) >= 10 and len(order) > 0.8 * len(codes):
            raise self._too_many(f"{len(order)} different labels in {len(codes)} rows")
        if self.all_numbers and self._not_finite is None:
            order.sort(key=lambda label: self._numbers[self._codes[label]])
        at = {label: i for i, label in enumerate(order)}
        place = np.empty(len(names), dtype=np.int32)
        place[[self._codes[label] for label in names]] = [at[name] for name in names.values()]
        return tuple(int(label) for label in order) if self._all_integers else tuple(order), place[codes]

    def _names(self, codes: NDArray[np.int32]) -> dict[str, str]:
        """Return the name of each label: its own, or that of the spelling with which it is merged."""
        if not self._merge:
            return {label: label for label in self._codes}
        counts = dict(zip(self._codes, np.bincount(codes, minlength=len(self._codes)).tolist(), strict=True))
        self.merged = {next(iter(spellings)): spellings for spellings in variants(counts)}
        return merged_names(counts)

    def _not_a_number(self, number: int, spelling: str) -> DataError:
        return DataError(
            f"row {number} of '{self.name}': the label '{spelling[:60]}' is not a finite number.",
            hint="Correct or remove the row; for labels that are names: --kind classify",
        )

    def _unknown_label(self, number: int, spelling: str) -> DataError:
        assert self._schema is not None
        known = [str(label) for label in self._schema.labels]
        listed = ", ".join(f"'{label}'" for label in known[:10]) + (", …" if len(known) > 10 else "")
        return DataError(
            f"row {number} of '{self.name}': unknown label '{spelling[:60]}'; '{self._schema.name}' has {listed}.",
            hint=near(spelling, known) + self._merging(spelling, known),
        )

    @staticmethod
    def _merging(spelling: str, known: Sequence[str]) -> str:
        """Return the flag that makes a label one of the known ones, if that is so."""
        return " --merge-labels takes them for one." if plain_label(spelling) in map(plain_label, known) else ""

    def _too_many(self, what: str) -> DataError:
        numbers = " or, as they are numbers, --kind regress" if self.all_numbers else ""
        return DataError(
            f"'{self.name}' has {what}, which no classifier can learn.",
            hint=f"Choose another column with --label COL{numbers}.",
        )


def _number(spelling: str) -> float | None:
    try:
        return None if "_" in spelling else float(spelling)
    except ValueError:
        return None

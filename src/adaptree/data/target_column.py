"""The labels or numbers in one column of a file, collected row by row."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptree.errors import DataError, near

if TYPE_CHECKING:
    from adaptree.data.dataset import Schema

MOST_LABELS = 1000
LARGEST = float(np.finfo(np.float32).max)


class TargetColumn:
    """Collects the values of a label column; at the end they can be had as labels or as numbers.

    Every distinct spelling gets a code, until there are too many for classes; numbers are kept beside the codes.
    `as_labels` and `as_numbers` say which of the two may be asked for.
    """

    def __init__(
        self, name: str, sample: Sequence[Any], *, as_labels: bool, as_numbers: bool, schema: Schema | None = None,
        unknown: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.as_labels, self.as_numbers = as_labels, as_numbers
        self._schema = schema if as_labels else None
        # pandas writes NaN where there is no label: among names that is an absent label, among numbers a bad one
        names = any(isinstance(value, str) and _number(value) is None for value in sample)
        self._nan_is_absent = names or not as_numbers
        known = schema.labels if schema is not None else ()
        self._codes: dict[str, int] = {str(label): i for i, label in enumerate(known)}
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
        return len(self._codes)

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
        count = len(self._codes)
        if count == 1:
            only = next(iter(self._codes))
            raise DataError(f"'{self.name}' has only one label, '{only}'.", hint="Two or more are needed.")
        if len(codes) >= 10 and count > 0.8 * len(codes):
            raise self._too_many(f"{count} different labels in {len(codes)} rows")
        order = sorted(self._codes)
        if self.all_numbers and self._not_finite is None:
            order.sort(key=lambda label: self._numbers[self._codes[label]])
        place = np.empty(count, dtype=np.int32)
        place[[self._codes[label] for label in order]] = np.arange(count, dtype=np.int32)
        return tuple(int(label) for label in order) if self._all_integers else tuple(order), place[codes]

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
            hint=near(spelling, known),
        )

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

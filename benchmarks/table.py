"""The parts of a benchmark's row, and the arithmetic from measurements to tables.

A `Run` is a command; each is measured once in every round, in a process of its own. An `Amount` is a number read from
the measurements of some runs. A `Table` compares amounts with a reference, round by round; a `Growth` fits how an
amount grows. Rows that read different numbers from the same command share its measurement.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Measurement = Mapping[str, Any]
"""Of one process: seconds and cpu (its whole life), load (average before it), found (what it printed about itself)."""
Rounds = Mapping[int, Mapping[str, Measurement]]
"""Measurements by round, then by the run's key."""


@dataclass(frozen=True)
class Run:
    """A command: `{python}` of an environment, then words in which {base}, {data}, {scratch}, … stand for places."""

    words: tuple[str, ...]
    place: Literal["ours", "peers"] = "ours"

    @property
    def key(self) -> str:
        """Its name in results.json; no path of a machine is in it."""
        return " ".join((f"[{self.place}]", *self.words))


@dataclass(frozen=True)
class Amount:
    """`times` the mean of what is read from each run; with no runs, `times` itself."""

    runs: tuple[Run, ...]
    read: Callable[[Measurement], float | None]
    times: float = 1.0

    def of(self, measured: Mapping[str, Measurement]) -> float | None:
        """Return the amount in one round: None if a measurement is missing, infinite if a score was never reached."""
        if not self.runs:
            return self.times
        values = [self.read(measured[run.key]) if run.key in measured else None for run in self.runs]
        known = [value for value in values if value is not None]
        return self.times * statistics.fmean(known) if len(known) == len(values) else None


def constant(value: float) -> Amount:
    return Amount((), lambda measured: None, value)


@dataclass(frozen=True)
class Spread:
    """The median over rounds, and the range."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread | None:
        return cls(statistics.median(values), min(values), max(values), len(values)) if values else None


@dataclass(frozen=True)
class Table:
    """Amounts side by side; a ratio is an amount over the reference's of the same round."""

    title: str
    unit: str
    amounts: Mapping[str, Amount]
    reference: str = "adaptree"
    aims: Mapping[str, str] = field(default_factory=dict)
    """By label, what the ratio's median should be: '>= 2' or '<= 0.7'."""
    note: str = ""
    scores: Mapping[str, Amount] = field(default_factory=dict)
    """By label, the score that came with it: a faster run that learns less is no faster."""
    scale: float = 1.0
    """What an amount is multiplied by to be in `unit`."""

    @property
    def runs(self) -> list[Run]:
        return [run for amount in (*self.amounts.values(), *self.scores.values()) for run in amount.runs]

    def values(self, label: str, rounds: Rounds) -> list[float]:
        found = (self.amounts[label].of(measured) for measured in rounds.values())
        return [self.scale * value for value in found if value is not None]

    def ratios(self, label: str, rounds: Rounds) -> list[float]:
        """Return the ratio of each round in which both were measured; none if one is infinite in any round."""
        pairs = [(self.amounts[label].of(m), self.amounts[self.reference].of(m)) for m in rounds.values()]
        if any(math.inf in pair for pair in pairs):
            return []
        return [value / whole for value, whole in pairs if value is not None and whole]

    def score(self, label: str, rounds: Rounds) -> float | None:
        if label not in self.scores:
            return None
        found = [value for m in rounds.values() if (value := self.scores[label].of(m)) is not None]
        return statistics.fmean(found) if found else None


@dataclass(frozen=True)
class Growth:
    """How amounts grow with something: y ~ x^exponent."""

    title: str
    unit: str
    along: str
    """What x is."""
    lines: Mapping[str, Mapping[float, Amount]]
    aims: Mapping[str, str] = field(default_factory=dict)
    """By label, what the exponent's median should be."""
    note: str = ""
    scale: float = 1.0
    fitted: bool = True
    """Whether an exponent has a meaning here; of a score it has none."""

    @property
    def runs(self) -> list[Run]:
        return [run for line in self.lines.values() for amount in line.values() for run in amount.runs]

    def values(self, label: str, x: float, rounds: Rounds) -> list[float]:
        found = (self.lines[label][x].of(measured) for measured in rounds.values())
        return [self.scale * value for value in found if value is not None]

    def exponents(self, label: str, rounds: Rounds) -> list[float]:
        """Return the exponent of each round in which two points or more were measured."""
        found = []
        for measured in rounds.values():
            points = [(x, y) for x, amount in self.lines[label].items() if (y := amount.of(measured))]
            if len(points) > 1:
                found.append(exponent(points))
        return found


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of log y against log x by least squares."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    middle, height = statistics.fmean(xs), statistics.fmean(ys)
    over = sum((x - middle) ** 2 for x in xs)
    return sum((x - middle) * (y - height) for x, y in zip(xs, ys, strict=True)) / over


def holds(aim: str, value: float) -> bool:
    """Return whether an aim, '>= 2' or '<= 0.7', is true of a value."""
    sign, number = aim.split()
    return value >= float(number) if sign == ">=" else value <= float(number)

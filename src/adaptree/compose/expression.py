"""The algebra as a value: text, Python and JSON are three spellings of one thing.

    ner                                     a task; ner@3 is a version of it, ner@stable a tagged one
    stack(lang/qu, ner)                     one on top of the other; the last one predicts
    average(a, b, weights=[0.25, 0.75])     one task whose weights are the mean of theirs
    average_outputs(a, b)                   both run; at each site, and from the heads, the mean of what they give
    fuse(mnli, qqp, sst2)                   attention over what feed-forward adapters give, learned on a target task
    parallel(a, b)                          every task predicts for each input
    rows(a, b)                              each input names the task that predicts for it
    drop(a, layers='0-4')                   a without what it does in those layers
    drop(a, layers='0-4', keep_norms=true)  the same, but the norms there stay the task's

`parse(repr(x)) == x`, and so is `from_json(x.to_json())`.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from adaptree.compose.parser import read
from adaptree.errors import CompositionError, near
from adaptree.methods.method import ALIASES
from adaptree.tasks.names import check_reference

DEEPEST = 50
"""How deep blocks may be nested."""


class Expression:
    """A task's name, or a block of expressions. Two with the same text are equal."""

    block: ClassVar[str] = ""
    """The word before the bracket; a name has none."""
    holds: ClassVar[tuple[str, ...]] = ()
    """Which blocks may be inside; '' is a name."""
    least: ClassVar[int] = 0
    """How many parts it needs."""
    takes: ClassVar[tuple[str, ...]] = ()
    """The names of its options, which are attributes."""

    @property
    def parts(self) -> tuple[Expression, ...]:
        return ()

    @property
    def names(self) -> tuple[str, ...]:
        """The references of its tasks, each once, in the order of the text."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.names))

    @property
    def depth(self) -> int:
        """How deep its blocks are nested; 0 for a name."""
        return 1 + max((part.depth for part in self.parts), default=-1)

    def options(self) -> dict[str, Any]:
        """Return its options by name, such as weights and layers; those that are None or False are left out."""
        values = {name: getattr(self, name) for name in self.takes}
        values = {name: value for name, value in values.items() if value is not None and value is not False}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def to_json(self) -> Any:
        """Return the expression as JSON: a string for a name, else {block: parts, …}."""
        return {self.block: [part.to_json() for part in self.parts], **self.options()}

    def renamed(self, names: Mapping[str, str]) -> Expression:
        """Return the expression with other names for some of its tasks."""
        return from_json(_renamed(self.to_json(), names))

    def __repr__(self) -> str:
        inside = [repr(part) for part in self.parts]
        inside += [f"{key}={_spell(value)}" for key, value in self.options().items()]
        return f"{self.block}({', '.join(inside)})"

    def _check(self) -> None:
        if len(self.parts) < self.least:
            least = f"{self.least} part{'s' * (self.least > 1)}"
            raise CompositionError(
                f"{self.block} needs at least {least}, and {self!r} has {len(self.parts)}.",
                hint=f"{self.block}({', '.join('abc'[: self.least])})",
            )
        if self.depth > DEEPEST:
            raise _too_deep()
        for part in self.parts:
            if part.block not in self.holds:
                raise CompositionError(
                    f"{part.block or 'a name'} cannot stand inside {self.block}: {self!r}.",
                    hint=f"{self.block} takes {_listed(self.holds)}. {_instead(self, part)}".strip(),
                )


@dataclass(frozen=True, repr=False)
class Name(Expression):
    """A task in a store: name, name@version or name@tag."""

    reference: str

    def __post_init__(self) -> None:
        check_reference(self.reference)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.reference,)

    def to_json(self) -> Any:
        return self.reference

    def __repr__(self) -> str:
        return self.reference


@dataclass(frozen=True, repr=False)
class _Block(Expression):
    inside: tuple[Expression, ...]

    def __post_init__(self) -> None:
        self._check()

    @property
    def parts(self) -> tuple[Expression, ...]:
        return self.inside


@dataclass(frozen=True, repr=False)
class _Weighted(_Block):
    weights: tuple[float, ...] | None = None
    """The share of each part, which sum up to one; None: equal shares."""

    least: ClassVar[int] = 1
    takes: ClassVar[tuple[str, ...]] = ("weights",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights is None:
            return
        object.__setattr__(self, "weights", _numbers(self.weights))
        if len(self.weights) != len(self.inside):
            raise CompositionError(
                f"{self.block} has {len(self.inside)} parts and {len(self.weights)} weights.", hint="Give one for each."
            )
        total = sum(self.weights)
        if not math.isfinite(total) or abs(total - 1) > 1e-6:
            *rest, _ = (round(w / total, 4) for w in self.weights) if math.isfinite(total) and total > 0 else (0,)
            shares = [*rest, round(1 - sum(rest), 4)]
            raise CompositionError(
                f"the weights of {self.block} sum up to {total:g}, not to 1.",
                hint=f"weights={shares}" if rest else "Give shares such as weights=[0.25, 0.75].",
            )

    @property
    def shares(self) -> tuple[float, ...]:
        return self.weights or (1 / len(self.inside),) * len(self.inside)


class Stack(_Block):
    """The parts act one after the other, the first one lowest; the last one's head predicts."""

    block = "stack"
    holds = ("", "stack", "average", "average_outputs", "drop")


class Average(_Weighted):
    """One task whose weights, and head, are the mean of the parts'."""

    block = "average"
    holds = ("", "average")


class AverageOutputs(_Weighted):
    """All parts run; at each site, and from the heads, comes the mean of what they give."""

    block = "average_outputs"
    holds = ("", "average", "drop")


@dataclass(frozen=True, repr=False)
class Fuse(_Block):
    """Attention over what the parts' feed-forward adapters give; learned, so a fused task has a name of its own."""

    regularisation: float | None = None
    """How much ‖V − I‖² of each layer adds to the loss; None: the method's default."""

    block: ClassVar[str] = "fuse"
    holds: ClassVar[tuple[str, ...]] = ("",)
    least: ClassVar[int] = 2
    takes: ClassVar[tuple[str, ...]] = ("regularisation",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.regularisation is not None and _is_number(self.regularisation):
            object.__setattr__(self, "regularisation", float(self.regularisation))
        if len(set(self.inside)) < len(self.inside):
            raise CompositionError(f"{self!r} names a task twice.", hint="Name each once.")
        if self.regularisation is not None and not (_is_number(self.regularisation) and self.regularisation >= 0):
            raise CompositionError(
                f"fuse: regularisation must be a number of at least 0, not {reprlib.repr(self.regularisation)}.",
                hint="Leave it out for the usual 0.01.",
            )


class Parallel(_Block):
    """Every part predicts for each input."""

    block = "parallel"
    holds = ("", "stack", "average", "average_outputs", "drop")
    least = 1


class Rows(_Block):
    """Each input names the part that predicts for it; all of them share forward passes of the base."""

    block = "rows"
    holds = Parallel.holds
    least = 1


@dataclass(frozen=True, repr=False)
class Drop(Expression):
    """A composition without what it does in some layers."""

    inside: Expression
    layers: str
    """3-5, 0,2,4 or top:2."""
    keep_norms: bool = False
    """Whether the norms of these layers stay the task's, as in Houlsby et al. 2019, §3.6."""

    block: ClassVar[str] = "drop"
    holds: ClassVar[tuple[str, ...]] = ("", "stack", "average", "average_outputs")
    least: ClassVar[int] = 1
    takes: ClassVar[tuple[str, ...]] = ("layers", "keep_norms")

    def __post_init__(self) -> None:
        if not isinstance(self.layers, str) or not re.fullmatch(r"(?:top:\d+|[\d,\- ])+", self.layers):
            raise CompositionError(
                f"drop: layers={self.layers!r} cannot be read.", hint="Write layers='0-4', '0,2' or 'top:2'."
            )
        if not isinstance(self.keep_norms, bool):
            raise CompositionError(
                f"drop: keep_norms={reprlib.repr(self.keep_norms)} cannot be read.", hint="Write keep_norms=true."
            )
        self._check()

    @property
    def parts(self) -> tuple[Expression, ...]:
        return (self.inside,)

    def to_json(self) -> Any:
        return {"drop": self.inside.to_json(), **self.options()}


BLOCKS: dict[str, type[Any]] = {
    each.block: each for each in (Stack, Average, AverageOutputs, Fuse, Parallel, Rows, Drop)
}


def stack(*parts: str | Expression) -> Stack:
    return Stack(_all(parts))


def average(*parts: str | Expression, weights: Sequence[float] | None = None) -> Average:
    return Average(_all(parts), weights)  # type: ignore[arg-type]  # a list becomes a tuple


def average_outputs(*parts: str | Expression, weights: Sequence[float] | None = None) -> AverageOutputs:
    return AverageOutputs(_all(parts), weights)  # type: ignore[arg-type]


def fuse(*parts: str | Expression, regularisation: float | None = None) -> Fuse:
    return Fuse(_all(parts), regularisation)


def parallel(*parts: str | Expression) -> Parallel:
    return Parallel(_all(parts))


def rows(*parts: str | Expression) -> Rows:
    return Rows(_all(parts))


def drop(part: str | Expression, *, layers: str | int, keep_norms: bool = False) -> Drop:
    return Drop(parse(part), str(layers), keep_norms)


def _all(parts: Sequence[str | Expression]) -> tuple[Expression, ...]:
    return tuple(parse(part) for part in parts)


def parse(text: str | Expression) -> Expression:
    """Return the expression of a text such as stack(lang/qu, ner), or of JSON in a string."""
    if isinstance(text, Expression):
        return text
    if not isinstance(text, str):
        raise CompositionError(f"{text!r:.60} is not a composition.", hint="Write stack(lang/qu, ner), or a name.")
    try:
        return _from_json(read(text, BLOCKS), text)
    except RecursionError:
        raise _too_deep() from None


def from_json(value: Any) -> Expression:
    """Return the expression of a JSON value."""
    try:
        return _from_json(value)
    except RecursionError:
        raise _too_deep() from None


def _from_json(value: Any, text: str = "") -> Expression:
    """Return the expression of a JSON value; errors quote the text that it was read from."""
    if isinstance(value, str):
        return Name(value)
    if isinstance(value, Mapping):
        words = [key for key in value if key in BLOCKS]
        options = {key: each for key, each in value.items() if key not in BLOCKS}
        if len(words) == 1:
            inside = value[words[0]]
            parts = inside if isinstance(inside, list) else [inside]
            return _build(words[0], [_from_json(part, text) for part in parts], options, text or repr(value))
    raise CompositionError(f"{json.dumps(value, default=repr):.80} is not a composition in JSON.")


def _build(block: str, parts: Sequence[Expression], options: Mapping[str, Any], text: str) -> Expression:
    known: tuple[str, ...] = BLOCKS[block].takes
    for key in options:
        if key not in known:
            has = f"It has: {', '.join(known)}." if known else f"{block} has none."
            if block in ALIASES:
                has = f"The method is spelled {ALIASES[block]}({key}=…)."
            raise CompositionError(f"{block} has no '{key}': {text}.", hint=near(key, known) or has)
    if block == "drop":
        if len(parts) != 1 or "layers" not in options:
            raise CompositionError(f"drop takes one part and its layers: {text}.", hint="drop(ner, layers='0-4')")
        return Drop(parts[0], str(options["layers"]), _flag(options.get("keep_norms", False)))
    fields = {key: each for key, each in options.items() if each is not None}
    if isinstance(word := fields.get("regularisation"), str):
        fields["regularisation"] = _number(word)
    return BLOCKS[block](tuple(parts), **fields)  # type: ignore[no-any-return]


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def _number(word: str) -> Any:
    """Return a word as a number; another word unchanged."""
    try:
        return float(word)
    except ValueError:
        return word


def _flag(word: Any) -> Any:
    """Return the words true and false as what they say; anything else unchanged."""
    return {"true": True, "false": False}.get(word.lower(), word) if isinstance(word, str) else word


def _numbers(weights: Any) -> tuple[float, ...]:
    """Return weights as a tuple, from a list, an array or another sequence of numbers."""
    found = list(weights) if hasattr(weights, "__iter__") and not isinstance(weights, str) else [weights, None]
    found = [each.item() if hasattr(each, "item") else each for each in found]
    unread = CompositionError(f"weights={reprlib.repr(weights)} cannot be read.", hint="Write weights=[0.25, 0.75].")
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in found):
        raise unread
    try:
        return tuple(map(float, found))
    except OverflowError:
        raise unread from None


def _too_deep() -> CompositionError:
    return CompositionError(
        f"more than {DEEPEST} blocks are nested.", hint="Compose a part by itself, and use its name."
    )


def _spell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) else repr(value)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    if isinstance(value, dict):
        return {key: _renamed(each, names) if key in BLOCKS else each for key, each in value.items()}
    return value


def _listed(blocks: Sequence[str]) -> str:
    words = [block or "names" for block in blocks]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _instead(outer: Expression, inner: Expression) -> str:
    """Return a hint for a nesting that has a meaning in another order, or an empty string."""
    if isinstance(inner, Parallel | Rows) and isinstance(outer, Stack):
        stacks = [[part if each is inner else each for each in outer.parts] for part in inner.parts]
        each = ", ".join(f"stack({', '.join(map(repr, parts))})" for parts in stacks)
        return f"Write {inner.block}({each})."
    if isinstance(inner, Fuse) and isinstance(outer, Fuse):
        return "Attention over attention is not learned: name all of the tasks in one fuse(…)."
    if isinstance(inner, Fuse):
        return f'Train it first: adaptree compose "{inner!r}" --name NAME --train DATA, then use that name.'
    if isinstance(inner, Drop) and isinstance(outer, Average):
        return "Write drop(average(…), layers=…)."
    return ""

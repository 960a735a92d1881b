"""What a method is: which sites, how its weights are born, what they do there, and how many there are."""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from adaptree.errors import MethodError, near
from adaptree.methods.layers import parse_layers

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Sites

    Params = Mapping[str, Tensor]
    Action = Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor]
    Inputs = tuple[tuple[Any, ...], dict[str, Any]]
    Step: TypeAlias = "Action | Before"
    Entry: TypeAlias = "Step | tuple[Step, ...]"
    Plan = Mapping[str, Entry]
else:
    Params = Action = Inputs = Plan = Step = Entry = Any
"""Params: a task's weights by name. Plan: what happens to a module's output, by the module's path in the backbone."""

METHODS: dict[str, type[Method]] = {}
COMPOSED: dict[str, type[Method]] = {}
"""Those that are made of other tasks: a record names them, nobody trains them by that name."""


class Before:
    """A plan's entry that looks at what goes *into* a module; what it returns, if anything, goes in instead."""

    def __init__(self, look: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Inputs | None]) -> None:
        self.look = look


class BeforeNorm(Before):
    """What stands beside the sum r that a norm closes: it reads the norm of r, and its branch is added to r.

    Of several, each reads what the one before it gives, and adds to the same r (MAD-X, §4.1.2).
    """

    def __init__(self, *changes: Callable[[Tensor, Tensor], Tensor], norm: Params | None = None) -> None:
        super().__init__(self._look)
        self.changes = changes
        """Each from r and what it reads to what it gives."""
        self.norm = norm or {}
        """A task's own, where it has one; else the base's."""

    def then(self, upper: BeforeNorm) -> BeforeNorm:
        return BeforeNorm(*self.changes, *upper.changes, norm=self.norm or upper.norm)

    def read(self, module: nn.Module, r: Tensor) -> Tensor:
        """What the lowest one reads."""
        from adaptree.core import norms

        own: Any = self.norm or module._parameters
        return norms.apply(module, r, own["weight"], own.get("bias"))

    def _look(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        r, x = args[0], self.read(module, args[0])
        for change in self.changes:
            x = change(r, x)
        return (x, *args[1:]), kwargs


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way of tuning. A subclass with a `name` registers itself; its fields are the numbers a user would tune."""

    name: ClassVar[str]
    main: ClassVar[str]
    """The field that a bare number after the colon sets: houlsby:64."""
    paper: ClassVar[str]
    trains: ClassVar[str]
    """What is trained, in a few words."""
    choose: ClassVar[str]
    """When to choose it, in one sentence."""
    lr: ClassVar[float]
    """A learning rate that is good without a search."""
    stages: ClassVar[int] = 1
    """Trainings one after the other, each with the weights that `advance` makes of the last one's."""
    mixes: ClassVar[bool] = True
    """Whether one batch can mix tasks of this method, row by row."""
    standalone: ClassVar[bool] = False
    """Whether it leaves the base alone altogether, and learns by itself: `learn`, `logits`."""
    dynamic: ClassVar[bool] = False
    """Whether `weights` computes new tensors from v, so that it must be asked before every forward pass."""

    alone: ClassVar[bool] = True
    """Whether it can be trained by itself; what fuses other tasks' adapters cannot."""

    adds: ClassVar[bool] = False
    """Whether `weights` adds to the tensors that it is given, so that two such methods add up."""

    training_only: ClassVar[tuple[str, ...]] = ()
    """Fields that count while it is trained: what came out computes the same whatever they were."""

    layers: str | None = None
    """Only these layers: 3-5, 0,2,4 or top:2. Default: all."""

    def __post_init__(self) -> None:
        if isinstance(self.layers, int) and not isinstance(self.layers, bool):
            object.__setattr__(self, "layers", str(self.layers))  # layers=3 is a spelling of '3'
        elif not isinstance(self.layers, str | None):
            raise MethodError(
                f"{self.name}: layers={self.layers!r} cannot be read.", hint="Write 3-5, '0,2,4' or top:2."
            )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name := cls.__dict__.get("name"):
            (METHODS if cls.alone else COMPOSED)[name] = cls

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        """The weights at birth, by name; `model` is the backbone, to copy from where a weight starts at the base's."""
        raise NotImplementedError

    def plan(self, sites: Sites, v: Params) -> Plan:
        """What these weights do, by module path; with stacked weights, for a batch that mixes tasks."""
        return {}

    def weights(self, sites: Sites, frozen: Params, v: Params) -> dict[str, Tensor]:
        """The tensors that stand in the place of the backbone's own, by their names there."""
        return {}

    def owned(self, sites: Sites, v: Params) -> list[str]:
        """The base's norms that these weights stand in the place of, by their names there."""
        return [name.removeprefix("norm.") for name in v if name.startswith("norm.")]

    def alike(self, other: Method) -> bool:
        """Whether trained weights of the one would mean the same to the other."""
        names = {f.name for f in fields(self)} - set(self.training_only)
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in names)

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        """How many weights, by the paper's formula: {'adapters': …, 'norms': …}; `model` is the backbone."""
        raise NotImplementedError

    def advance(self, sites: Sites, frozen: Params, v: Params, birth: Params) -> dict[str, Tensor]:
        """The weights of the next stage, from this one's and those at the very beginning; a head not named is kept."""
        raise NotImplementedError

    def over(self, parts: Sequence[tuple[Method, Params]]) -> Method:
        """The same method over other tasks' adapters, where it takes some."""
        raise MethodError(f"{self.name} is not made of other tasks.")

    def learn(self, texts: Sequence[Any], targets: Sequence[Any], classes: int) -> dict[str, Tensor]:
        """Only `outside` the base: all there is to learn, at once; 0 classes are a regression."""
        raise NotImplementedError

    def logits(self, v: Params, texts: Sequence[Any]) -> Tensor:
        """Only `outside` the base: the scores of some texts."""
        raise NotImplementedError

    def penalty(self, v: Params) -> Tensor | None:
        """What is added to the loss of a step."""
        return None

    def report(self, v: Params) -> dict[str, float]:
        """What to tell after an epoch."""
        return {}

    def rate(self, name: str) -> float:
        """The learning rate of one of its weights, relative to the others'."""
        return 1.0

    def decays(self, name: str) -> bool:
        """Whether weight decay acts on one of its weights: not on norms and biases (as in the original code)."""
        return not (name.endswith("bias") or "norm" in name.lower())

    def chosen(self, sites: Sites) -> tuple[int, ...]:
        """The layers that this method touches."""
        return parse_layers(self.layers, sites.depth)

    def lowest(self, sites: Sites) -> int:
        """The lowest layer that it touches, or the base's depth: below it nothing ever changes."""
        return min(self.chosen(sites))

    def __repr__(self) -> str:
        """The full spelling: its main number and what is not at its default; `parse` reads it back."""
        usual = {f.name: f.default for f in fields(self)}
        names = [self.main, *(name for name in usual if name != self.main and getattr(self, name) != usual[name])]
        values = {name: getattr(self, name) for name in names}
        shown = [f"{name}={_spell(value)}" for name, value in values.items() if (value, usual[name]) != (None, None)]
        return f"{self.name}({', '.join(shown)})" if shown else self.name

    __str__ = __repr__


def parse(spelling: str | Method, **changes: Any) -> Method:
    """'houlsby', 'houlsby:64' or 'houlsby(size=64, activation=tanh)' as a method; `changes` override its fields."""
    if isinstance(spelling, Method):
        name, values = spelling.name, {f.name: getattr(spelling, f.name) for f in fields(spelling)}
    else:
        match = re.fullmatch(r"\s*([\w-]+)\s*(?::\s*([^()]+?)|\((.*)\))?\s*", spelling)
        if not match:
            raise MethodError(f"'{spelling}' is not a method.", hint="Write houlsby, houlsby:64 or houlsby(size=64).")
        name, number, inside = match[1], match[2], match[3]
        if name not in METHODS and name not in COMPOSED:
            load_plugins()
        if name not in METHODS and name not in COMPOSED:
            raise MethodError(
                f"no method '{name}'.", hint=near(name, METHODS) or f"There are: {', '.join(sorted(METHODS))}."
            )
        values = {_class(name).main: _read(number)} if number else dict(_pairs(spelling, inside or ""))
    cls = _class(name)
    values |= changes
    known = [f.name for f in fields(cls)]
    for field in values:
        if field not in known:
            raise MethodError(
                f"{name} has no field '{field}'.", hint=near(field, known) or f"It has: {', '.join(known)}."
            )
    return cls(**values)


def _class(name: str) -> type[Method]:
    return METHODS.get(name) or COMPOSED[name]


def load_plugins() -> None:
    """Import what other installed packages offer as methods: entry points of the group 'adaptree.methods'."""
    for entry in entry_points(group="adaptree.methods"):
        if entry.name not in METHODS:
            try:
                entry.load()
            except Exception as error:
                package = entry.dist.name if entry.dist else entry.value
                raise MethodError(
                    f"the method '{entry.name}' of {package} cannot be loaded: {type(error).__name__}: {error}",
                    hint=f"Update or remove it: pip uninstall {package}",
                ) from error


def part(v: Params, name: str) -> dict[str, Tensor]:
    """The weights under a name, by what follows it."""
    prefix = name + "."
    return {key[len(prefix) :]: tensor for key, tensor in v.items() if key.startswith(prefix)}


def check_number(method: str, field: str, value: object, kind: type, low: float) -> None:
    """Refuse a number of the wrong type or below `low`, naming the field."""
    good = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
    if not good or not low <= value < math.inf:  # type: ignore[operator]
        what = "a whole number" if kind is int else "a number"
        raise MethodError(f"{method}: {field} must be {what} of at least {low:g}, not {value!r}.")


def warn_if_wide(method: str, field: str, value: int, width: int) -> None:
    """Say in one line that a size is larger than the width of what it is put into; it is allowed."""
    if value > width:
        text = f"{method}: {field} {value} is larger than the width {width} of what it changes; less is usual."
        warnings.warn_explicit(text, UserWarning, "adaptree", 0)  # from no line of code: that would be shown as well


def check_choice(method: str, field: str, value: str, choices: Mapping[str, Any]) -> None:
    """Refuse a word that is not among the choices, offering a near one."""
    if value not in choices:
        raise MethodError(
            f"{method}: no {field} '{value}'.", hint=near(str(value), choices) or f"There are: {', '.join(choices)}."
        )


def _pairs(spelling: str, inside: str) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for part in re.findall(r"""(?:[^,'"]|'[^']*'|"[^"]*")+""", inside):
        field, equals, value = part.partition("=")
        if not equals:
            raise MethodError(
                f"'{spelling}': '{part.strip()}' is not field=value.",
                hint="Write size=64, and commas in quotes: layers='0,2'.",
            )
        if field.strip() in dict(pairs):
            raise MethodError(f"'{spelling}' says {field.strip()} twice.")
        pairs.append((field.strip(), _read(value)))
    return pairs


def _read(word: str) -> Any:
    word = word.strip()
    if word[:1] in "'\"" and word[-1:] == word[:1] and len(word) > 1:
        return word[1:-1]
    constants = {"true": True, "false": False, "none": None}
    if word.lower() in constants:
        return constants[word.lower()]
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word


def _spell(value: Any) -> str:
    """A value as `_read` reads it back; quoted where it would be taken for something else."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    return value if _read(value) == value and not re.search(r"[,='\"()\s]", value) else f"'{value}'"


def digest_of(parts: Sequence[tuple[Method, Params]]) -> str:
    """A few letters that are others for other methods or weights."""
    found = hashlib.sha256()
    for method, v in parts:
        found.update(repr(method).encode())
        for name, tensor in sorted(v.items()):
            found.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:8]

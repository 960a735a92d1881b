"""What a method is: which sites it uses, how its weights are initialised, what they do there, how many there are."""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

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
    Shapes = dict[str, tuple[tuple[int | None, ...], torch.dtype]]
else:
    Params = Action = Inputs = Plan = Step = Entry = Shapes = Any
"""Params: a task's weights by name. Plan: what to do with a module's input or output, by its path in the backbone.
Shapes: the shape and type of each weight; an axis of None may have any length.

An `Action` maps a module, its arguments and its output to another output; a `Before` acts on the arguments. An entry of
a plan is one such step, or several in their order.
"""

METHODS: dict[str, type[Method]] = {}
"""The methods that can be trained by their name."""
COMPOSED: dict[str, type[Method]] = {}
"""Methods of other tasks' adapters, or of another library: a record names them, but `--method` does not take them."""
ALIASES: dict[str, str] = {}
"""Earlier names of methods, which are still read, with the names that are written now."""


class Before:
    """A step of a plan before a module runs: it sees the arguments, and may return others to use instead."""

    def __init__(self, look: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Inputs | None]) -> None:
        self.look = look


class OwnNorm:
    """An action that is a task's own scale and shift of a norm and nothing else: `drop` can keep it."""

    def __init__(self, rescale: Action) -> None:
        self.rescale = rescale

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return self.rescale(module, args, output)


class BeforeNorm(Before):
    """Adapters at the norm that ends a layer: each reads the norm of the residual sum r, and its branch is added to r.

    Of several, each reads the output of the one before it, and adds to the same r (MAD-X, §4.1.2).
    """

    def __init__(self, *changes: Callable[[Tensor, Tensor], Tensor], norm: Params | None = None) -> None:
        super().__init__(self._look)
        self.changes = changes
        """Functions of r and of an adapter's input, which return its output."""
        self.norm = norm or {}
        """The task's own scale and shift of this norm; empty: the base's."""

    def then(self, upper: BeforeNorm) -> BeforeNorm:
        """Return these adapters and then the upper ones, as one step."""
        return BeforeNorm(*self.changes, *upper.changes, norm=self.norm or upper.norm)

    def read(self, module: nn.Module, r: Tensor) -> Tensor:
        """Return the input of the lowest adapter, the norm of r."""
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
    aliases: ClassVar[tuple[str, ...]] = ()
    """Earlier names, which are still read."""
    main: ClassVar[str]
    """The field that a bare number after the colon sets: houlsby:64."""
    paper: ClassVar[str]
    trains: ClassVar[str]
    """What is trained, in a few words."""
    choose: ClassVar[str]
    """When to choose it, in one sentence."""
    lr: ClassVar[float]
    """A learning rate that is good without a search."""
    base_dropout: ClassVar[bool] = False
    """Whether it is trained with the base's dropout unless the settings say otherwise."""
    stages: ClassVar[int] = 1
    """How many trainings follow each other, each with the weights that `advance` makes of the last one's."""
    standalone: ClassVar[bool] = False
    """Whether it does not use the base: it has `learn` and `logits` instead of `init` and `plan`."""
    dynamic: ClassVar[bool] = False
    """Whether `weights` computes new tensors from v, so that it is called before every forward pass."""
    alone: ClassVar[bool] = True
    """Whether `--method` trains it by its name: not a fusion of other tasks' adapters, nor another library's form."""
    adds: ClassVar[bool] = False
    """Whether `weights` adds to the tensors in `frozen`, so that two such methods add up."""
    by_layer: ClassVar[bool] = True
    """Whether it has a part in each layer that can be removed by itself; layers that are trained whole are no such."""
    training_only: ClassVar[tuple[str, ...]] = ()
    """Fields that matter in training only: trained weights compute the same whatever they are."""

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
            ALIASES.update(dict.fromkeys(cls.__dict__.get("aliases", ()), name))

    def for_kind(self, kind: str) -> Self:
        """Return the method as it is trained for a kind of task: defaults that depend on the kind are filled in."""
        return self

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the initial weights by name; `model` is the backbone, for weights that start at the base's values."""
        raise NotImplementedError

    def plan(self, sites: Sites, v: Params) -> Plan:
        """Return what these weights do, by module path; weights with a row axis are of a batch that mixes tasks."""
        return {}

    def weights(self, sites: Sites, frozen: Params, v: Params) -> dict[str, Tensor]:
        """Return the tensors that replace the backbone's parameters, by their names there."""
        return {}

    def by_row(self, sites: Sites, v: Params) -> Plan | None:
        """Return the plan of weights with a row axis, a task's for each row of a batch; None if rows cannot differ.

        The weights are `adaptree.models.stacks.RowWeights` or tensors: (B, *shape), and (B, 1, d) for a vector.
        """
        own = type(self)
        if own.standalone or own.weights is not Method.weights or own.over is not Method.over:
            return None
        return self.plan(sites, v)

    def stacked_as(self) -> Self:
        """Return the method whose tasks can share a stack with tasks of this one: training leaves no trace in it.

        It may be larger, if weights that are filled up with zeros compute the same.
        """
        defaults: dict[str, Any] = {f.name: f.default for f in fields(self)}
        return replace(self, **{name: defaults[name] for name in self.training_only if name in defaults})

    def owned(self, sites: Sites, v: Params) -> list[str]:
        """Return the names of the backbone's norm parameters that these weights replace."""
        return [name.removeprefix("norm.") for name in v if name.startswith("norm.")]

    def alike(self, other: Method) -> bool:
        """Return whether trained weights of the one compute the same in the other."""
        names = {f.name for f in fields(self)} - set(self.training_only)
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in names)

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        """Return the number of weights by the paper's formula, {'adapters': …, 'norms': …}; `model` is the backbone."""
        raise NotImplementedError

    def advance(self, sites: Sites, frozen: Params, v: Params, initial: Params) -> dict[str, Tensor]:
        """Return the weights of the next stage, from this stage's and the initial ones; without a head, v's is kept."""
        raise NotImplementedError

    def shapes(self, sites: Sites, model: nn.Module) -> Shapes:
        """Return the shapes of a finished task's weights, its head left out: by default those of the initial ones."""
        return shapes_of(lambda generator: self.init(sites, model, generator))

    def problem(self, sites: Sites, model: nn.Module, v: Params) -> str:
        """Return what is wrong with a finished task's weights of these shapes, in words; '' if they fit the model."""
        return ""

    def over(self, parts: Sequence[tuple[Method, Params]]) -> Method:
        """Return this method with the adapters of other tasks that it works on."""
        raise MethodError(f"{self.name} is not made of other tasks.")

    def learn(self, texts: Sequence[Any], targets: Sequence[Any], classes: int) -> dict[str, Tensor]:
        """Fit a standalone method and return its weights; 0 classes are a regression."""
        raise NotImplementedError

    def logits(self, v: Params, texts: Sequence[Any]) -> Tensor:
        """Return a standalone method's scores for some texts."""
        raise NotImplementedError

    def contributions(self, v: Params, text: Any) -> list[tuple[int, int, int, Any]]:
        """Return what each word of a text or pair adds to a standalone method's scores, where it is linear.

        A word is the number of its text, its characters from and to, and an array of what it adds to each score.
        """
        raise MethodError(f"{self.name} cannot say what a word adds.", hint="--by leave-one-out")

    def penalty(self, v: Params) -> Tensor | None:
        """Return what is added to the loss of a step."""
        return None

    def stops_early(self, v: Params) -> bool:
        """Return whether a stage with these weights may end when its scores get no better."""
        return True

    def report(self, v: Params) -> dict[str, float]:
        """Return numbers to show after an epoch."""
        return {}

    def rate(self, name: str) -> float:
        """Return the learning rate of one of its weights, relative to the others'."""
        return 1.0

    def constant_rate(self, name: str) -> float | None:
        """Return the learning rate of a weight that follows neither `lr` nor its schedule; None: it follows them."""
        return None

    def epsilon(self, name: str) -> float:
        """Return the ε of Adam for a weight: it hardly moves where its gradients are smaller."""
        return 1e-8

    def freezes(self, name: str) -> bool:
        """Return whether a weight, of the head too, keeps its initial value in training."""
        return False

    def decays(self, name: str) -> bool:
        """Return whether weight decay acts on a weight: not on norms and biases (as in the original code)."""
        return not (name.endswith("bias") or "norm" in name.lower())

    def chosen(self, sites: Sites) -> tuple[int, ...]:
        """Return the layers that this method acts in."""
        return parse_layers(self.layers, sites.depth)

    def lowest(self, sites: Sites) -> int:
        """Return the lowest layer that it acts in, or the base's depth: below it nothing ever changes."""
        return min(self.chosen(sites))

    def __repr__(self) -> str:
        """Return a spelling that `parse` reads back: the main field, and those that are not at their default."""
        defaults = {f.name: f.default for f in fields(self)}
        names = [self.main, *(name for name in defaults if name != self.main and getattr(self, name) != defaults[name])]
        values = {name: getattr(self, name) for name in names}
        shown = [f"{name}={_spell(value)}" for name, value in values.items() if (value, defaults[name]) != (None, None)]
        return f"{self.name}({', '.join(shown)})" if shown else self.name

    __str__ = __repr__


def parse(spelling: str | Method, **changes: Any) -> Method:
    """Return the method that is spelled 'houlsby', 'houlsby:64' or 'houlsby(size=64, activation=tanh)'.

    `changes` override its fields. An earlier name of a method is read too.
    """
    if isinstance(spelling, Method):
        name, values = spelling.name, {f.name: getattr(spelling, f.name) for f in fields(spelling)}
    else:
        match = re.fullmatch(r"\s*([\w-]+)\s*(?::\s*([^()]+?)|\((.*)\))?\s*", spelling)
        if not match:
            raise MethodError(f"'{spelling}' is not a method.", hint="Write houlsby, houlsby:64 or houlsby(size=64).")
        name, number, inside = match[1], match[2], match[3]
        name = ALIASES.get(name, name)
        if name not in METHODS and name not in COMPOSED:
            load_plugins()
            name = ALIASES.get(name, name)
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


def classes() -> dict[str, type[Method]]:
    """Return this package's own methods by the names of their classes; plug-ins' are in their own packages."""
    return {cls.__name__: cls for cls in METHODS.values() if cls.__module__.startswith("adaptree.methods.")}


def load_plugins() -> None:
    """Import the methods of other installed packages: entry points of the group 'adaptree.methods'."""
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
    """Return the weights whose names begin with `name.`, without that prefix."""
    prefix = name + "."
    return {key[len(prefix) :]: tensor for key, tensor in v.items() if key.startswith(prefix)}


def shapes_of(init: Callable[[Any], Params]) -> Shapes:
    """Return the shapes of the weights that a function makes, which it does without memory or numbers if it can."""
    import torch

    with warnings.catch_warnings():  # a size that is larger than the width was warned of in training
        warnings.simplefilter("ignore")
        try:
            with torch.device("meta"):
                made = init(None)
        except (RuntimeError, AttributeError, TypeError):  # a plug-in's, which needs a generator
            made = init(torch.Generator())
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in made.items()}


def check_number(method: str, field: str, value: object, kind: type, low: float) -> None:
    """Raise MethodError for a number of the wrong type or below `low`, naming the field."""
    good = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
    if not good or not low <= value < math.inf:  # type: ignore[operator]
        what = "a whole number" if kind is int else "a number"
        raise MethodError(f"{method}: {field} must be {what} of at least {low:g}, not {value!r}.")


def check_flag(method: str, field: str, value: object) -> None:
    """Raise MethodError for a value that is not true or false, naming the field."""
    if not isinstance(value, bool):
        raise MethodError(f"{method}: {field} must be true or false, not {value!r}.")


def warn_if_wide(method: str, field: str, value: int, width: int) -> None:
    """Warn in one line of a size larger than the width of what it is put into; it is allowed."""
    if value > width:
        text = f"{method}: {field} {value} is larger than the width {width} of what it changes; less is usual."
        warnings.warn_explicit(text, UserWarning, "adaptree", 0)  # from no line of code: that would be shown as well


def check_choice(method: str, field: str, value: str, choices: Mapping[str, Any]) -> None:
    """Raise MethodError for a word that is not among the choices, offering a near one."""
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
    """Return a value as `_read` reads it back, quoted where it would be read as something else."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    return value if _read(value) == value and not re.search(r"[,='\"()\s]", value) else f"'{value}'"


def digest_of(parts: Sequence[tuple[Method, Params]]) -> str:
    """Return a short digest of some methods and their weights."""
    digest = hashlib.sha256()
    for method, v in parts:
        digest.update(repr(method).encode())
        for name, tensor in sorted(v.items()):
            digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:8]

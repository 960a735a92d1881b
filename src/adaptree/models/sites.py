"""The sites of a model: the modules that its architecture's row names, or what is wrong with a row that does not fit.

Layers are numbered in the order of computation: an encoder's first, then its decoder's. Norms before the first layer
(of the embeddings) belong to that layer, norms after the last one to the last: `layers` restricts adapters and norms
alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adaptree.errors import UnknownArchitecture
from adaptree.models.architectures import ARCHITECTURES, Architecture, LayerStack

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Site:
    """A place for an adapter: the output of the module at `path`, `width` wide, run `calls` times in a forward pass."""

    layer: int
    role: str  # attention, cross or feedforward
    path: str
    width: int
    calls: int
    closing: str | None = None
    """The norm of the sum that this output goes into, where the layer ends with it."""

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.role}"


@dataclass(frozen=True)
class Norm:
    """A normalisation layer with its own scale, and a shift where it has one."""

    layer: int
    path: str
    width: int
    bias: bool

    @property
    def size(self) -> int:
        return self.width * (1 + self.bias)


@dataclass(frozen=True)
class Linear:
    """A linear map of a layer, from `inputs` to `outputs` wide."""

    layer: int
    role: str
    path: str
    inputs: int
    outputs: int
    bias: bool

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.role}"


@dataclass(frozen=True)
class Sites:
    """The row of an architecture, found in a model."""

    architecture: str
    depth: int
    sites: tuple[Site, ...]
    norms: tuple[Norm, ...]
    linears: tuple[Linear, ...]
    layers: tuple[str, ...]
    """The path of each layer."""
    pooling: str
    dtype: torch.dtype = field(compare=False)

    def layer_of(self, name: str) -> int:
        """Return the layer of one of the backbone's parameters; for the embeddings and others outside, layer 0."""
        for layer, path in enumerate(self.layers):
            if name.startswith(path + "."):
                return layer
        return next((norm.layer for norm in self.norms if name.startswith(norm.path + ".")), 0)

    def within(self, layers: tuple[int, ...]) -> Iterator[Site]:
        return (site for site in self.sites if site.layer in layers)

    def linears_within(self, layers: tuple[int, ...]) -> Iterator[Linear]:
        return (linear for linear in self.linears if linear.layer in layers)

    def norms_within(self, layers: tuple[int, ...]) -> Iterator[Norm]:
        return (norm for norm in self.norms if norm.layer in layers)


def backbone_of(model: nn.Module) -> nn.Module:
    """Return the pretrained network inside a Hugging Face model, without its head."""
    return getattr(model, "base_model", model)


def find(model: nn.Module, architecture: Architecture | None = None) -> Sites:
    """Return the sites, norms and linear maps that the architecture's row names and the model has."""
    backbone = backbone_of(model)
    config: Any = backbone.config
    kind = str(config.model_type)
    row = architecture or ARCHITECTURES.get(kind)
    # A row of ours serves several models, not all of which have everything: ModernBERT's first norm, DeBERTa's
    # convolution, a Llama without q_norm, T5's encoder alone. A row that is passed was written for this one.
    ours = any(row is known for known in ARCHITECTURES.values())
    if row is None:
        raise UnknownArchitecture(
            f"no sites are known for the architecture '{kind}'.",
            hint=f"Pass them as architecture=\n{_sketch(backbone)}",
        )
    modules = dict(backbone.named_modules())
    width = _width(config)
    sites: list[Site] = []
    norms: list[Norm] = []
    linears: list[Linear] = []
    layers: list[str] = []
    for stack in row.stacks:
        paths = _layer_paths(stack.layers, modules)
        if not ours:
            _check_has_all(stack, kind, paths, modules)
        if not paths:
            continue
        first = len(layers)
        norms += _norms(stack.before, first, kind, modules)
        for layer, path in enumerate(paths, start=first):
            places = _places(stack, kind, path, modules)
            sites += [Site(layer, role, at, width, row.calls(config, layer), end) for role, at, end in places]
            norms += _norms([f"{path}.{inner}" for inner in stack.norms], layer, kind, modules)
            for role, either in stack.linears.items():
                there = [f"{path}.{inner}" for inner in either.split("|") if f"{path}.{inner}" in modules]
                if there:
                    linears.append(_linear(layer, role, there[0], modules[there[0]]))
                elif not ours:
                    raise UnknownArchitecture(
                        f"the row for '{kind}' names the linear map '{either}', which layer '{path}' does not have."
                    )
        layers += paths
        norms += _norms(stack.after, len(layers) - 1, kind, modules)
    if not sites:
        raise UnknownArchitecture(
            f"none of the layer lists of '{kind}' ({', '.join(s.layers for s in row.stacks)}) is in this model.",
            hint=f"Pass the row as architecture=\n{_sketch(backbone)}",
        )
    twice, times = Counter(site.path for site in sites).most_common(1)[0]
    if times > 1:
        raise UnknownArchitecture(f"the row for '{kind}' names '{twice}' for two sites.")
    dtype = next(backbone.parameters()).dtype
    return Sites(kind, len(layers), tuple(sites), tuple(norms), tuple(linears), tuple(layers), row.pooling, dtype)


def _check_has_all(stack: LayerStack, kind: str, paths: list[str], modules: Mapping[str, nn.Module]) -> None:
    """Raise UnknownArchitecture if the layers, or one of the norms, of a row for this model are not in it."""
    if not paths:
        raise UnknownArchitecture(
            f"the row for '{kind}' names the layers '{stack.layers}', which this model does not have.",
            hint=f"Pass the row as architecture=\n{_sketch(modules[''])}",
        )
    absent = [name for name in (*stack.before, *stack.after) if name not in modules]
    absent += [name for name in stack.norms if not any(f"{path}.{name}" in modules for path in paths)]
    if absent:
        raise UnknownArchitecture(f"the row for '{kind}' names the norm '{absent[0]}', which this model does not have.")


def _places(
    stack: LayerStack, kind: str, layer: str, modules: Mapping[str, nn.Module]
) -> Iterator[tuple[str, str, str | None]]:
    """Yield the role, the path and the closing norm of each site in a layer."""
    for role in ("attention", "cross", "feedforward"):
        inner = getattr(stack, role)
        if inner is None:
            continue
        if f"{layer}.{inner}" not in modules:
            raise UnknownArchitecture(
                f"the row for '{kind}' names '{inner}', which layer '{layer}' does not have.",
                hint=f"Candidates there: {', '.join(_leaves(modules[layer]))}",
            )
        closing = f"{layer}.{stack.closing}" if role == "feedforward" and stack.closing else None
        if closing and closing not in modules:
            raise UnknownArchitecture(
                f"the row for '{kind}' names '{stack.closing}', which layer '{layer}' does not have."
            )
        yield role, f"{layer}.{inner}", closing


def _norms(paths: Sequence[str], layer: int, kind: str, modules: Mapping[str, nn.Module]) -> Iterator[Norm]:
    """Yield those of the named norms that this model has, with a scale of their own."""
    for path in paths:
        module = modules.get(path)
        weight = getattr(module, "weight", None)
        if module is not None and (list(module.children()) or (weight is not None and weight.dim() != 1)):
            raise UnknownArchitecture(
                f"the row for '{kind}' names '{path}' as a norm, which is a {type(module).__name__}."
            )
        if weight is not None:
            yield Norm(layer, path, weight.numel(), getattr(module, "bias", None) is not None)


def _linear(layer: int, role: str, path: str, module: nn.Module) -> Linear:
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 2:
        raise UnknownArchitecture(f"'{path}' is named as a linear map, and is a {type(module).__name__}.")
    inputs, outputs = weight.shape if transposed(module) else reversed(weight.shape)
    return Linear(layer, role, path, inputs, outputs, getattr(module, "bias", None) is not None)


def transposed(module: nn.Module) -> bool:
    """Return whether a linear map keeps its weight as (inputs, outputs), as GPT-2's Conv1D does."""
    return type(module).__name__ == "Conv1D"


def _width(config: Any) -> int:
    for name in ("hidden_size", "d_model", "dim", "n_embd"):
        if isinstance(value := getattr(config, name, None), int):
            return value
    raise UnknownArchitecture("the model's config has no hidden_size: its width is unknown.")


def _layer_paths(pattern: str, modules: Mapping[str, nn.Module]) -> list[str]:
    """Return the paths of the layers in the list, or with `*` the lists, that the pattern names, in order."""
    match = re.compile(re.escape(pattern).replace(r"\*", r"\d+") + r"\.\d+")
    return [path for path in modules if match.fullmatch(path)]


def _leaves(layer: nn.Module) -> list[str]:
    return [path for path, module in layer.named_modules() if path and not list(module.children())]


def _sketch(backbone: nn.Module) -> str:
    """Return a draft of the row to pass for a model that is not in the table, with the modules found in it."""
    from torch import nn

    lists = [(p, m) for p, m in backbone.named_modules() if isinstance(m, nn.ModuleList) and len(m)]
    if not lists:
        return "  (no list of layers was found in this model)"
    most = Counter({p: len(list(m.modules())) for p, m in lists}).most_common(1)[0][0]
    layer = next(m for p, m in lists if p == most)[0]
    leaves = {path: module for path, module in layer.named_modules() if path in _leaves(layer)}
    norms = [
        path
        for path, m in leaves.items()
        if "norm" in type(m).__name__.lower() and getattr(m, "weight", None) is not None
    ]
    rest = [f"{path} ({type(m).__name__})" for path, m in leaves.items() if path not in norms]
    stacks = ", ".join(f"{p} ({len(m)} × {type(m[0]).__name__})" for p, m in lists)
    return (
        f"  Architecture(stacks=(LayerStack(layers={most!r}, attention='…', feedforward='…', "
        f"norms={tuple(norms)!r}),))\n"
        f"  lists of layers: {stacks}\n"
        f"  in a layer, choose the output of attention and of the feed-forward part before its residual add, from: "
        f"{', '.join(rest)}"
    )

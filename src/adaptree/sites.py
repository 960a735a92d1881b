"""Where a task's weights go: one row per architecture, as data.

A row names, relative to the backbone, the stacks of layers, and within a layer the module whose *output* is the
sublayer's contribution just before the residual add (after its dropout, where it has one: Houlsby et al., §2.1), and
the norms. Layers are numbered in the order of computation: an encoder's first, then its decoder's. Norms before the
first layer (of the embeddings) belong to that layer, norms after the last one to the last: `layers` restricts
adapters and norms alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adaptree.errors import UnknownArchitecture, UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One stack of like layers. `*` in `layers` stands for every index of a list on the way."""

    layers: str
    attention: str
    feedforward: str
    cross: str | None = None
    norms: tuple[str, ...] = ()
    closing: str | None = None
    """The norm of the sum that the feed-forward output goes into, where the layer ends with one (post-norm)."""
    linears: Mapping[str, str] = field(default_factory=dict)
    """By role: query, key, value (or qkv, the three in one) and output, of cross attention with cross_ in front; gate,
    up and down of the feed-forward part."""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def _once(config: Any, layer: int) -> int:
    return 1


def _albert_calls(config: Any, layer: int) -> int:
    """An ALBERT layer is one set of weights, run once for every depth that is mapped to its group."""
    group = layer // config.inner_group_num
    depths = range(config.num_hidden_layers)
    return sum(int(i / (config.num_hidden_layers / config.num_hidden_groups)) == group for i in depths)


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A row of the table. `pooling`: which state stands for the text, as its pretraining has it."""

    stacks: tuple[Stack, ...]
    pooling: str = "first"
    calls: Callable[[Any, int], int] = _once


def _bert(**changes: Any) -> Architecture:
    row: dict[str, Any] = {
        "layers": "encoder.layer",
        "attention": "attention.output.dropout",
        "feedforward": "output.dropout",
        "norms": ("attention.output.LayerNorm", "output.LayerNorm"),
        "closing": "output.LayerNorm",
        "before": ("embeddings.LayerNorm",),
        "linears": {
            "query": "attention.self.query",
            "key": "attention.self.key",
            "value": "attention.self.value",
            "output": "attention.output.dense",
            "up": "intermediate.dense",
            "down": "output.dense",
        },
    }
    return Architecture(stacks=(Stack(**{**row, **changes}),))


def _t5_linears(feedforward: str) -> dict[str, str]:
    """Self-attention and both forms of the feed-forward part: wi, or wi_0 (the gate) and wi_1."""
    return {
        "query": "layer.0.SelfAttention.q",
        "key": "layer.0.SelfAttention.k",
        "value": "layer.0.SelfAttention.v",
        "output": "layer.0.SelfAttention.o",
        "gate": f"{feedforward}.DenseReluDense.wi_0",
        "up": f"{feedforward}.DenseReluDense.wi_1|{feedforward}.DenseReluDense.wi",
        "down": f"{feedforward}.DenseReluDense.wo",
    }


_BART_LINEARS = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.out_proj",
    "up": "fc1",
    "down": "fc2",
}

_BART_CROSS = {
    "cross_query": "encoder_attn.q_proj",
    "cross_key": "encoder_attn.k_proj",
    "cross_value": "encoder_attn.v_proj",
    "cross_output": "encoder_attn.out_proj",
}

_T5_CROSS = {
    "cross_query": "layer.1.EncDecAttention.q",
    "cross_key": "layer.1.EncDecAttention.k",
    "cross_value": "layer.1.EncDecAttention.v",
    "cross_output": "layer.1.EncDecAttention.o",
}

_LLAMA = Architecture(
    stacks=(
        Stack(
            layers="layers",
            attention="self_attn.o_proj",
            feedforward="mlp.down_proj",
            norms=("self_attn.q_norm", "self_attn.k_norm", "input_layernorm", "post_attention_layernorm"),
            linears={
                "query": "self_attn.q_proj",
                "key": "self_attn.k_proj",
                "value": "self_attn.v_proj",
                "output": "self_attn.o_proj",
                "gate": "mlp.gate_proj",
                "up": "mlp.up_proj",
                "down": "mlp.down_proj",
            },
            after=("norm",),
        ),
    ),
    pooling="last",
)

ARCHITECTURES: Mapping[str, Architecture] = {
    "bert": _bert(),
    "roberta": _bert(),
    "xlm-roberta": _bert(),
    "electra": _bert(),
    "deberta": _bert(
        linears={
            "qkv": "attention.self.in_proj",
            "output": "attention.output.dense",
            "up": "intermediate.dense",
            "down": "output.dense",
        },
    ),
    "deberta-v2": _bert(
        before=("embeddings.LayerNorm", "encoder.LayerNorm", "encoder.conv.LayerNorm"),
        linears={
            "query": "attention.self.query_proj",
            "key": "attention.self.key_proj",
            "value": "attention.self.value_proj",
            "output": "attention.output.dense",
            "up": "intermediate.dense",
            "down": "output.dense",
        },
    ),
    "mpnet": _bert(
        attention="attention.dropout",
        norms=("attention.LayerNorm", "output.LayerNorm"),
        linears={
            "query": "attention.attn.q",
            "key": "attention.attn.k",
            "value": "attention.attn.v",
            "output": "attention.attn.o",
            "up": "intermediate.dense",
            "down": "output.dense",
        },
    ),
    "distilbert": _bert(
        layers="transformer.layer",
        attention="attention.out_lin",
        feedforward="ffn.dropout",
        norms=("sa_layer_norm", "output_layer_norm"),
        closing="output_layer_norm",
        linears={
            "query": "attention.q_lin",
            "key": "attention.k_lin",
            "value": "attention.v_lin",
            "output": "attention.out_lin",
            "up": "ffn.lin1",
            "down": "ffn.lin2",
        },
    ),
    "albert": Architecture(
        stacks=(
            Stack(
                layers="encoder.albert_layer_groups.*.albert_layers",
                attention="attention.output_dropout",
                feedforward="ffn_output",
                norms=("attention.LayerNorm", "full_layer_layer_norm"),
                closing="full_layer_layer_norm",
                linears={
                    "query": "attention.query",
                    "key": "attention.key",
                    "value": "attention.value",
                    "output": "attention.dense",
                    "up": "ffn",
                    "down": "ffn_output",
                },
                before=("embeddings.LayerNorm",),
            ),
        ),
        calls=_albert_calls,
    ),
    "modernbert": Architecture(
        stacks=(
            Stack(
                layers="layers",
                attention="attn.out_drop",
                feedforward="mlp.Wo",
                norms=("attn_norm", "mlp_norm"),
                linears={"qkv": "attn.Wqkv", "output": "attn.Wo", "up": "mlp.Wi", "down": "mlp.Wo"},
                before=("embeddings.norm",),
                after=("final_norm",),
            ),
        ),
    ),
    "t5": Architecture(
        stacks=(
            Stack(
                layers="encoder.block",
                attention="layer.0.dropout",
                feedforward="layer.1.dropout",
                norms=("layer.0.layer_norm", "layer.1.layer_norm"),
                linears=_t5_linears("layer.1"),
                after=("encoder.final_layer_norm",),
            ),
            Stack(
                layers="decoder.block",
                attention="layer.0.dropout",
                cross="layer.1.dropout",
                feedforward="layer.2.dropout",
                norms=("layer.0.layer_norm", "layer.1.layer_norm", "layer.2.layer_norm"),
                linears={**_t5_linears("layer.2"), **_T5_CROSS},
                after=("decoder.final_layer_norm",),
            ),
        ),
        pooling="mean",
    ),
    "gpt2": Architecture(
        stacks=(
            Stack(
                layers="h",
                attention="attn.resid_dropout",
                feedforward="mlp.dropout",
                norms=("ln_1", "ln_2"),
                linears={"qkv": "attn.c_attn", "output": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"},
                after=("ln_f",),
            ),
        ),
        pooling="last",
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "bart": Architecture(
        stacks=(
            Stack(
                layers="encoder.layers",
                attention="self_attn.out_proj",
                feedforward="fc2",
                norms=("self_attn_layer_norm", "final_layer_norm"),
                closing="final_layer_norm",
                linears=_BART_LINEARS,
                before=("encoder.layernorm_embedding",),
            ),
            Stack(
                layers="decoder.layers",
                attention="self_attn.out_proj",
                cross="encoder_attn.out_proj",
                feedforward="fc2",
                norms=("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
                closing="final_layer_norm",
                linears={**_BART_LINEARS, **_BART_CROSS},
                before=("decoder.layernorm_embedding",),
            ),
        ),
        pooling="last",
    ),
}


@dataclass(frozen=True)
class Site:
    """A place for an adapter: the output of the module at `path`, `width` wide, met `calls` times in a forward pass."""

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
    """A linear map of a layer, from `inputs` to `outputs` wide; met `calls` times in a forward pass."""

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
        """The layer that a parameter of the backbone belongs to; the embeddings' and what else is outside: layer 0."""
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
    """The pretrained network inside a Hugging Face model, without its head."""
    return getattr(model, "base_model", model)


def find(model: nn.Module, architecture: Architecture | None = None) -> Sites:
    """Resolve the model's row: every site and norm that it names and the model has."""
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
    depth = 0

    def add_norm(path: str, layer: int) -> None:
        module = modules.get(path)
        weight = getattr(module, "weight", None)
        if module is not None and (list(module.children()) or (weight is not None and weight.dim() != 1)):
            raise UnknownArchitecture(
                f"the row for '{kind}' names '{path}' as a norm, which is a {type(module).__name__}."
            )
        if weight is not None:
            norms.append(Norm(layer, path, weight.numel(), getattr(module, "bias", None) is not None))

    for stack in row.stacks:
        paths = _layer_paths(stack.layers, modules)
        absent = [name for name in (*stack.before, *stack.after) if name not in modules]
        absent += [name for name in stack.norms if not any(f"{path}.{name}" in modules for path in paths)]
        if paths and absent and not ours:
            raise UnknownArchitecture(
                f"the row for '{kind}' names the norm '{absent[0]}', which this model does not have."
            )
        if not paths and ours:
            continue
        if not paths:
            raise UnknownArchitecture(
                f"the row for '{kind}' names the layers '{stack.layers}', which this model does not have.",
                hint=f"Pass the row as architecture=\n{_sketch(backbone)}",
            )
        first, last = depth, depth + len(paths) - 1
        for path in stack.before:
            add_norm(path, first)
        for layer, path in enumerate(paths, start=first):
            for role in ("attention", "cross", "feedforward"):
                inner = getattr(stack, role)
                if inner is None:
                    continue
                if f"{path}.{inner}" not in modules:
                    raise UnknownArchitecture(
                        f"the row for '{kind}' names '{inner}', which layer '{path}' does not have.",
                        hint=f"Candidates there: {', '.join(_leaves(modules[path]))}",
                    )
                closing = f"{path}.{stack.closing}" if role == "feedforward" and stack.closing else None
                if closing and closing not in modules:
                    raise UnknownArchitecture(
                        f"the row for '{kind}' names '{stack.closing}', which layer '{path}' does not have."
                    )
                sites.append(Site(layer, role, f"{path}.{inner}", width, row.calls(config, layer), closing))
            for inner in stack.norms:
                add_norm(f"{path}.{inner}", layer)
            for role, either in stack.linears.items():
                there = [f"{path}.{inner}" for inner in either.split("|") if f"{path}.{inner}" in modules]
                if there:
                    linears.append(_linear(layer, role, there[0], modules[there[0]]))
                elif not ours:
                    raise UnknownArchitecture(
                        f"the row for '{kind}' names the linear map '{either}', which layer '{path}' does not have."
                    )
        layers += paths
        for path in stack.after:
            add_norm(path, last)
        depth = last + 1
    if not sites:
        raise UnknownArchitecture(
            f"none of the layer lists of '{kind}' ({', '.join(s.layers for s in row.stacks)}) is in this model.",
            hint=f"Pass the row as architecture=\n{_sketch(backbone)}",
        )
    twice, times = Counter(site.path for site in sites).most_common(1)[0]
    if times > 1:
        raise UnknownArchitecture(f"the row for '{kind}' names '{twice}' for two sites.")
    dtype = next(backbone.parameters()).dtype
    return Sites(kind, depth, tuple(sites), tuple(norms), tuple(linears), tuple(layers), row.pooling, dtype)


def _linear(layer: int, role: str, path: str, module: nn.Module) -> Linear:
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 2:
        raise UnknownArchitecture(f"'{path}' is named as a linear map, and is a {type(module).__name__}.")
    inputs, outputs = weight.shape if transposed(module) else reversed(weight.shape)
    return Linear(layer, role, path, inputs, outputs, getattr(module, "bias", None) is not None)


def transposed(module: nn.Module) -> bool:
    """Whether a linear map keeps its weight as (inputs, outputs): GPT-2's Conv1D does."""
    return type(module).__name__ == "Conv1D"


def parse_layers(spec: str | None, depth: int) -> tuple[int, ...]:
    """'3-5', '0,2,4', 'top:2' or None (all) as layer numbers from 0."""
    if spec is None:
        return tuple(range(depth))
    there = f"This base has layers 0-{depth - 1}."
    chosen: set[int] = set()
    for part in spec.replace(" ", "").split(","):
        if match := re.fullmatch(r"top:(\d+)", part):
            n = int(match[1])
            if not 1 <= n <= depth:
                raise UsageError(f"layers='{spec}': there is no top {n} of {depth} layers.", hint=there)
            chosen.update(range(depth - n, depth))
        elif match := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
            low, high = int(match[1]), int(match[2] or match[1])
            if low > high or high >= depth:
                raise UsageError(f"layers='{spec}': no such layers.", hint=there)
            chosen.update(range(low, high + 1))
        else:
            raise UsageError(f"layers='{spec}' cannot be read.", hint="Write 3-5, 0,2,4 or top:2.")
    return tuple(sorted(chosen))


def _width(config: Any) -> int:
    for name in ("hidden_size", "d_model", "dim", "n_embd"):
        if isinstance(value := getattr(config, name, None), int):
            return value
    raise UnknownArchitecture("the model's config has no hidden_size: its width cannot be told.")


def _layer_paths(pattern: str, modules: Mapping[str, nn.Module]) -> list[str]:
    """The paths of the layers in the list (or lists, where `*` stands) that the pattern names, in order."""
    match = re.compile(re.escape(pattern).replace(r"\*", r"\d+") + r"\.\d+")
    return [path for path in modules if match.fullmatch(path)]


def _leaves(layer: nn.Module) -> list[str]:
    return [path for path, module in layer.named_modules() if path and not list(module.children())]


def _sketch(backbone: nn.Module) -> str:
    """The object to pass for a model that is not in the table, filled in with what is found in it."""
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
        f"  Architecture(stacks=(Stack(layers={most!r}, attention='…', feedforward='…', norms={tuple(norms)!r}),))\n"
        f"  lists of layers: {stacks}\n"
        f"  in a layer, choose the output of attention and of the feed-forward part before its residual add, from: "
        f"{', '.join(rest)}"
    )

"""Where a task's weights go: one row per architecture, as data.

A row names, relative to the backbone, the stacks of layers, and within a layer the module whose *output* is the
sublayer's contribution just before the residual add (after its dropout, where it has one: Houlsby et al., §2.1), and
the norms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class LayerStack:
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
    """Return how often a layer of ALBERT runs: once for every depth that is mapped to its group."""
    group = layer // config.inner_group_num
    depths = range(config.num_hidden_layers)
    return sum(int(i / (config.num_hidden_layers / config.num_hidden_groups)) == group for i in depths)


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A row of the table. `pooling` is how token states become one vector, as in its pretraining."""

    stacks: tuple[LayerStack, ...]
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
    return Architecture(stacks=(LayerStack(**{**row, **changes}),))


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
        LayerStack(
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
            LayerStack(
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
            LayerStack(
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
            LayerStack(
                layers="encoder.block",
                attention="layer.0.dropout",
                feedforward="layer.1.dropout",
                norms=("layer.0.layer_norm", "layer.1.layer_norm"),
                linears=_t5_linears("layer.1"),
                after=("encoder.final_layer_norm",),
            ),
            LayerStack(
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
            LayerStack(
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
            LayerStack(
                layers="encoder.layers",
                attention="self_attn.out_proj",
                feedforward="fc2",
                norms=("self_attn_layer_norm", "final_layer_norm"),
                closing="final_layer_norm",
                linears=_BART_LINEARS,
                before=("encoder.layernorm_embedding",),
            ),
            LayerStack(
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

"""The identity of a base: a digest of its backbone's weights and of the settings that shape its maths.

Heads, the pooler (a head of pretraining) and the prefixes that a model with a head puts before its names do not
count: the same backbone gives the same fingerprint wherever it sits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

# Settings that change the output and do not show in the shapes of the weights. Others (defaults that a new
# version of a library adds, label names, dropout) must not change the fingerprint.
SETTINGS = [
    "activation",
    "activation_function",
    "attention_bias",
    "conv_act",
    "conv_kernel_size",
    "decoder_attention_heads",
    "decoder_start_token_id",
    "encoder_attention_heads",
    "feed_forward_proj",
    "global_attn_every_n_layers",
    "hidden_act",
    "hidden_activation",
    "inner_group_num",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "layer_types",
    "local_attention",
    "max_relative_positions",
    "model_type",
    "n_head",
    "n_heads",
    "norm_eps",
    "norm_rel_ebd",
    "num_attention_heads",
    "num_heads",
    "num_hidden_groups",
    "num_hidden_layers",
    "num_key_value_heads",
    "pad_token_id",
    "pos_att_type",
    "position_biased_input",
    "position_buckets",
    "position_embedding_type",
    "relative_attention",
    "relative_attention_max_distance",
    "relative_attention_num_buckets",
    "rms_norm_eps",
    "rope_parameters",
    "rope_theta",
    "scale_attn_weights",
    "scale_embedding",
    "share_att_key",
    "sinusoidal_pos_embds",
    "sliding_window",
]


def fingerprint(backbone: nn.Module) -> str:
    """Return the sha256 over the backbone's settings and weights, as hex."""
    config: dict[str, Any] = backbone.config.to_dict()  # type: ignore[operator, union-attr]
    settings = {key: config[key] for key in SETTINGS if config.get(key) is not None}
    if config.get("is_decoder"):  # a BERT that looks only back
        settings["is_decoder"] = True
    weights = {name: p for name, p in backbone.named_parameters() if not name.startswith(("pooler", "lm_head"))}
    return _hash(json.dumps(settings, sort_keys=True, default=str), weights)


def pooler(backbone: nn.Module) -> str:
    """Return the sha256 over the backbone's pooler alone, or '' if it has none.

    A model that was pretrained without a pooler gets a random one at every loading, so a task that runs through it
    records which one it was.
    """
    weights = {name: p for name, p in backbone.named_parameters() if name.startswith("pooler")}
    return _hash("", weights) if weights else ""


def _hash(settings: str, weights: Mapping[str, Tensor]) -> str:
    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
        digests = list(pool.map(_digest, weights.values()))
    whole = hashlib.sha256(settings.encode())
    for (name, p), digest in sorted(zip(weights.items(), digests, strict=True), key=lambda pair: pair[0][0]):
        whole.update(f"{name} {tuple(p.shape)} {p.dtype} {digest}\n".encode())
    return whole.hexdigest()


def _digest(p: Tensor) -> str:
    import torch

    flat = p.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().data).hexdigest()

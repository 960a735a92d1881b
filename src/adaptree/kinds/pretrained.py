"""The output layer for words that a base was pretrained with, where its folder still has one."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

PARTS = {
    "head.dense.weight": ("cls.predictions.transform.dense.weight", "lm_head.dense.weight", "vocab_transform.weight"),
    "head.dense.bias": ("cls.predictions.transform.dense.bias", "lm_head.dense.bias", "vocab_transform.bias"),
    "head.norm.weight": (
        "cls.predictions.transform.LayerNorm.weight", "cls.predictions.transform.LayerNorm.gamma",
        "lm_head.layer_norm.weight", "vocab_layer_norm.weight",
    ),
    "head.norm.bias": (
        "cls.predictions.transform.LayerNorm.bias", "cls.predictions.transform.LayerNorm.beta",
        "lm_head.layer_norm.bias", "vocab_layer_norm.bias",
    ),
    "head.bias": ("cls.predictions.bias", "lm_head.bias", "vocab_projector.bias"),
}  # fmt: skip
"""By our name, what BERT, RoBERTa (also XLM-R and MPNet) and DistilBERT call it."""


def words_head(folder: Path) -> dict[str, Tensor]:
    """The pretrained transform before the tied output layer, whole or not at all."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                there = set(file.keys())
                for name, spellings in PARTS.items():
                    for spelled in spellings:
                        if spelled in there:
                            found[name] = file.get_tensor(spelled).float()
        except (OSError, SafetensorError):
            return {}
    return found if found.keys() == PARTS.keys() else {}

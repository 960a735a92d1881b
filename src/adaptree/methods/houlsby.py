"""Adapters after both sublayers, with the task's own norms (Houlsby et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from adaptree.methods.bottleneck import Bottleneck


@dataclass(frozen=True, kw_only=True, repr=False)
class Houlsby(Bottleneck):
    """A bottleneck after attention and after the feed-forward part of every layer; every LayerNorm is the task's."""

    name: ClassVar[str] = "houlsby"
    paper: ClassVar[str] = "Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP"
    trains: ClassVar[str] = "two bottlenecks a layer, every norm, the head"
    choose: ClassVar[str] = "The default: close to full fine-tuning at a few per cent of its weights."
    roles: ClassVar[tuple[str, ...]] = ("attention", "cross", "feedforward")

    norms: bool = True

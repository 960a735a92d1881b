"""What is read from another library's folder, before it is a task of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adaptree.hub.interop.heads import Head
from adaptree.methods import Method

if TYPE_CHECKING:
    from torch import Tensor, nn

    from adaptree.models.sites import Sites


@dataclass(frozen=True)
class Place:
    """The model that a task is read for."""

    sites: Sites
    backbone: nn.Module
    pooler: bool = True
    """Whether its pooler is pretrained, and not random."""


@dataclass(frozen=True)
class Foreign:
    """A task of another library, with its adapters under our names."""

    library: str
    """And its version, such as 'peft 0.21.2'."""
    name: str
    base: str
    """What its files call the base; '' if they do not."""
    method: Method
    v: Mapping[str, Tensor]
    head: Head | None = None
    parts: Mapping[str, Foreign] = field(default_factory=dict)
    """The adapters that a fusion attends over, by name."""

"""`--fast`: less work for the same task, as far as no clear loss was measured (results/layers, results/fast)."""

from __future__ import annotations

from dataclasses import replace

import torch

from adaptree.data.dataset import Dataset
from adaptree.data.events import Listener, note
from adaptree.errors import UsageError
from adaptree.methods import Method, parse
from adaptree.methods.layers import top_layers
from adaptree.models.base import Base
from adaptree.training.parents import Parents
from adaptree.training.precision import quick_at_bf16
from adaptree.training.settings import Settings

MOST_TOKENS = 512
"""Tokens computed at once: enough to keep a processor busy, and long texts need no more memory than short ones."""


def preset(
    method: Method, settings: Settings, base: Base, dataset: Dataset, parents: Parents, on_event: Listener
) -> tuple[Method, Settings]:
    """Return the method in fewer layers and settings for faster steps; a note says what was changed."""
    if method.layers is not None or method.name == "top":
        raise UsageError(f"--fast chooses the layers, and {method} says which.", hint="Leave out --fast, or --layers.")
    changes = []
    sites = base.hooked.sites
    top = top_layers(sites.depth)
    if method.standalone or method.lowest(sites) or top == sites.depth:
        pass  # the lower layers are frozen already, or there are none
    elif dataset.values is not None and not dataset.columns.get("pair"):
        fewer = parse(method, layers=f"top:{top}")
        if parents.combine(fewer, base.device).lowest(sites):
            method = fewer
            changes.append(f"the top {top} of {sites.depth} layers are trained, the others computed once")
        else:
            note(on_event, "--fast: all layers are trained; what this task is trained on acts in all of them.")
    else:
        note(on_event, "--fast: all layers are trained; with fewer, this kind of input loses clearly.")
    if settings.precision is None and not method.standalone and quick_at_bf16(torch.device(base.device).type):
        settings = replace(settings, precision="bf16")
        changes.append("steps are computed in bf16")
    settings = replace(settings, most_tokens=settings.most_tokens or MOST_TOKENS)
    if settings.most_tokens == MOST_TOKENS and not method.standalone:
        changes.append(f"at most {MOST_TOKENS} tokens are computed at once")
    note(on_event, f"--fast: {', '.join(changes)}." if changes else "--fast changes nothing here.")
    return method, settings

"""`--fast`: less work for the same task, as far as no clear loss was measured (results/layers, results/fast)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from adaptree.data.dataset import Dataset
from adaptree.errors import UsageError
from adaptree.methods import Method, parse
from adaptree.methods.layers import top_layers
from adaptree.models.base import Base
from adaptree.training.precision import quick_at_bf16
from adaptree.training.settings import Settings

MOST_TOKENS = 512
"""That a step computes at once: enough to keep a processor busy, and long texts need no more memory than short ones."""


def preset(
    method: Method,
    settings: Settings,
    base: Base,
    data: Dataset,
    note: Callable[[str], None],
    under: Callable[[Method], Method] = lambda method: method,
) -> tuple[Method, Settings]:
    """The same method in fewer layers and quicker steps, as far as little is known to be lost.

    `under` puts a method on top of what it is trained on; where that acts in all layers, none can be left alone.
    """
    if method.layers is not None or method.name == "top":
        raise UsageError(
            f"--fast chooses the layers, and {method} says which.", hint="Leave out --fast, or the layers."
        )
    did = []
    sites = base.hooked.sites
    top = top_layers(sites.depth)
    if method.standalone or method.lowest(sites) or top == sites.depth:
        pass  # the lower layers are left alone already, or there are none
    elif data.values is not None and data.columns.get("pair") is None:
        fewer = parse(method, layers=f"top:{top}")
        if under(fewer).lowest(sites):
            method = fewer
            did.append(f"the top {top} of {sites.depth} layers are trained, the others computed once")
        else:
            note("--fast: all layers are trained; what this task is trained on acts in all of them.")
    else:
        note("--fast: all layers are trained; with fewer, this kind of input loses clearly.")
    if settings.precision is None and not method.standalone and quick_at_bf16(torch.device(base.device).type):
        settings = replace(settings, precision="bf16")
        did.append("steps are computed in bf16")
    settings = replace(settings, most_tokens=settings.most_tokens or MOST_TOKENS)
    if settings.most_tokens == MOST_TOKENS and not method.standalone:
        did.append(f"at most {MOST_TOKENS} tokens are computed at once")
    note(f"--fast: {', '.join(did)}." if did else "--fast changes nothing here.")
    return method, settings

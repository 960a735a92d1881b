"""Run a base from the middle: the states that enter a layer are given, and the layers below compute nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from adaptree.data.encode import Encoding
from adaptree.models.encoder_decoder import writes
from adaptree.models.hooks import HookedModel, probe_inputs


class CannotRestart(Exception):
    """A base cannot be restarted in the middle with the same bits; the message says why."""


def private_copy(hooked: HookedModel) -> HookedModel:
    """Return a copy of the modules over the same tensors, in evaluation mode; no other thread meets its hooks."""
    copy = hooked.copy()
    copy.model.eval()
    return copy


def check_restart(hooked: HookedModel, depth: int) -> int:
    """Return the length of the tuple that a layer returns, or 0 for a tensor, having tried a restart at layer `depth`.

    Raise CannotRestart if the restarted base does not give the same bits.
    """
    sites = hooked.sites
    if any(site.calls > 1 for site in sites.sites):
        raise CannotRestart(f"the layers of {sites.architecture} share their weights")
    if writes(hooked):
        raise CannotRestart(f"an encoder-decoder that writes, such as {sites.architecture}, is computed whole")
    differs = CannotRestart(f"{sites.architecture} cannot be restarted from the middle with the same bits")
    inputs = probe_inputs(hooked.backbone)
    device = next(hooked.backbone.parameters()).device
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        copy = private_copy(hooked)
        whole = copy.backbone(**inputs).last_hidden_state
        output = _output_below(copy, depth, inputs)
        rest = output[1:] if isinstance(output, tuple) else ()
        if any(extra is not None for extra in rest):  # such as T5's position bias, which the layers above need
            raise differs
        form = len(output) if isinstance(output, tuple) else 0
        restart(copy, depth, form, lambda: _first(output))
        if not torch.equal(copy.backbone(**inputs).last_hidden_state, whole):
            raise differs
    return form


def states_below(hooked: HookedModel, depth: int, inputs: dict[str, Tensor]) -> Tensor:
    """Return the states that enter layer `depth`, or leave the last one, without computing what lies above."""
    return _first(_output_below(hooked, depth, inputs))


def restart(copy: HookedModel, depth: int, form: int, states: Callable[[], Tensor]) -> None:
    """Let the layers below `depth` of a private copy compute nothing, and the last of them return `states()`."""

    def replaced(last: bool) -> Callable[..., Any]:
        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            state = states() if last else hidden_states
            return (state, *[None] * (form - 1)) if form else state

        return forward

    for at, path in enumerate(copy.sites.layers[:depth]):
        copy.backbone.get_submodule(path).forward = replaced(at == depth - 1)


def key_of(row: Encoding) -> bytes:
    """Return the ids and types of a row: rows with the same key have the same states."""
    return row.ids.tobytes() + (b"|" + row.types.tobytes() if row.types is not None else b"")


class _Done(Exception):
    pass


def _output_below(hooked: HookedModel, depth: int, inputs: dict[str, Tensor]) -> Any:
    kept: list[Any] = []

    def stop(module: nn.Module, args: Any, output: Any) -> Tensor:
        kept.append(output)
        raise _Done

    with hooked.running({hooked.sites.layers[depth - 1]: stop}), contextlib.suppress(_Done):
        hooked.backbone(**inputs)
    return kept[0]


def _first(output: Any) -> Tensor:
    state: Tensor = output[0] if isinstance(output, tuple) else output
    return state

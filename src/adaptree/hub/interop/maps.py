"""LoRA and IA³ beside linear maps that a file names, as weights of our methods.

A file may adapt any maps, in any layers, each with a rank and a scale of its own. Ours adapt the same roles in every
chosen layer: what a file leaves out is filled with zeros (LoRA) or ones (IA³), which compute nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from adaptree.errors import InteropError, WrongBase
from adaptree.methods.ia3 import Ia3
from adaptree.methods.lora import Lora

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.models.sites import Linear, Sites

WITHOUT_ROTATION = ("albert", "bart", "bert", "distilbert", "electra", "gpt2", "mpnet", "roberta", "t5", "xlm-roberta")
"""Where a query meets a key number by number, so that a scale of the one is a scale of the other."""


class LowRank(NamedTuple):
    """y + scale · B A x, with A (rank, inputs) and B (outputs, rank)."""

    A: Tensor
    B: Tensor
    scale: float


def linear_of(module: str, sites: Sites) -> Linear | None:
    """Return the linear map of a module that a file names, whatever prefix a model with a head gave it."""
    by_path = {linear.path: linear for linear in sites.linears}
    while module not in by_path and "." in module:
        module = module.partition(".")[2]
    return by_path.get(module)


def spell_layers(layers: Collection[int], depth: int) -> str | None:
    """Return layers as a method's field: None for all."""
    return None if len(set(layers)) == depth else ",".join(map(str, sorted(set(layers))))


def lora(found: Mapping[Linear, LowRank], sites: Sites) -> tuple[Lora, dict[str, Tensor]]:
    """Return the LoRA that adds these changes, and its weights."""
    import torch

    for linear, change in found.items():
        r = len(change.A)
        _check_shape(f"{linear.path}: A", change.A, (r, linear.inputs))
        _check_shape(f"{linear.path}: B", change.B, (linear.outputs, r))
    rank = max(len(change.A) for change in found.values())
    scale = next((change.scale for change in found.values() if change.scale > 0), 1.0)
    roles = list(dict.fromkeys("query" if linear.role == "qkv" else linear.role for linear in found))
    layers = spell_layers({linear.layer for linear in found}, sites.depth)
    method = Lora(rank=rank, alpha=scale * rank, targets="+".join(roles), layers=layers)
    v: dict[str, Tensor] = {}
    for linear in method._linears(sites):
        A, B = torch.zeros(linear.inputs, rank), torch.zeros(rank, linear.outputs)
        if linear in found:
            change = found[linear]
            A[:, : len(change.A)] = change.A.T
            B[: len(change.A)] = change.B.T * (1.0 if change.scale == scale else change.scale / scale)
        v |= {f"{linear.name}.A": A, f"{linear.name}.B": B}
    return method, v


def ia3(
    outputs: Mapping[Linear, Tensor], inputs: Mapping[Linear, Tensor], sites: Sites, form: type[Ia3] = Ia3
) -> tuple[Ia3, dict[str, Tensor]]:
    """Return the IA³ that scales some maps' outputs and others' inputs, and its weights.

    A scale of a query is one of the key that it meets, and a scale of what attention gives is one of the values.
    """
    import torch

    method = form(layers=spell_layers({linear.layer for linear in (*outputs, *inputs)}, sites.depth))
    v = {name: torch.ones(width) for name, width in method._widths(sites).items()}

    def scale(linear: Linear, role: str, by: Tensor) -> None:
        name = f"{linear.layer}.{role}.scale"
        if name not in v or v[name].shape != by.shape:
            raise InteropError(
                f"IA³ at '{linear.path}' scales {len(by):,} numbers, which the IA³ of Liu et al. (keys, values, "
                "feed-forward activations) does not."
            )
        v[name] = v[name] * by

    for linear, by in outputs.items():
        _check_shape(linear.path, by, (linear.outputs,))
        cross = "cross_" if linear.role.startswith("cross_") else ""
        role = linear.role.removeprefix("cross_")
        if role == "qkv":
            query, key, value = by.chunk(3)
            scale(linear, "key", _as_key(linear, query, sites) * key)
            scale(linear, "value", value)
        elif role == "query":
            scale(linear, f"{cross}key", _as_key(linear, by, sites))
        elif role in ("key", "value") or role == form.feedforward == "up":
            scale(linear, linear.role, by)
        else:
            raise InteropError(f"IA³ scales the output of '{linear.path}', and that of Liu et al. does not.")
    for linear, by in inputs.items():
        _check_shape(linear.path, by, (linear.inputs,))
        cross = "cross_" if linear.role.startswith("cross_") else ""
        if linear.role.removeprefix("cross_") == "output":  # Σ a_t v_t ⊙ l = Σ a_t (v_t ⊙ l)
            scale(linear, f"{cross}value", by)
        elif linear.role == form.feedforward == "down":
            scale(linear, "down", by)
        else:
            raise InteropError(f"IA³ scales the input of '{linear.path}', and that of Liu et al. does not.")
    return method, v


def _as_key(linear: Linear, query: Tensor, sites: Sites) -> Tensor:
    """Return the scale of a query as one of the key: Σ (l q)_i k_i = Σ q_i (l k)_i, unless positions rotate them."""
    if sites.architecture not in WITHOUT_ROTATION and bool((query != 1).any()):
        raise InteropError(
            f"IA³ scales the queries of '{linear.path}', and that of Liu et al. does not: in {sites.architecture} "
            "they cannot stand for keys."
        )
    return query


def _check_shape(what: str, tensor: Tensor, wanted: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != wanted:
        has, fits = (" × ".join(map(str, shape)) for shape in (tensor.shape, wanted))
        raise WrongBase(
            f"'{what}' is {has}, and {fits} fits this base.", hint="Give the base that it was trained on: --base B"
        )


def unplaced(names: Iterable[str], sites: Sites) -> WrongBase:
    """Return the error for weights that have no place in a base."""
    first = next(iter(names))
    alone = " This base is the encoder alone." if ".decoder." in f".{first}" else ""
    return WrongBase(
        f"the file has weights for '{first}', which has no place in this {sites.architecture}.{alone}",
        hint="Give the base that it was trained on, or attach it to a whole model: at.attach(model, folder)",
    )

"""Move a task into another, aligned base of the same shape, such as a student of the same teacher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.errors import UsageError, WrongBase
from adaptree.methods import Method, parse
from adaptree.models.opening import base_of
from adaptree.tasks.names import check_name
from adaptree.tasks.record import NEEDS, REBASED, WARNINGS, Record
from adaptree.tasks.runs import remember
from adaptree.tasks.task import Task
from adaptree.training.package import base_record, probe_of

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.models.base import Base
    from adaptree.tasks.store import Store

OF_THE_OLD_BASE = (WARNINGS, "insight", "search")
"""Entries of a record's extra that describe the task on its old base."""


def rebase(
    store: Store,
    reference: str,
    base: Base | str | Path,
    name: str | None = None,
    *,
    device: str = "auto",
    threads: int | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> Task:
    """Put a stored task into another base unchanged: as a new version of it, or under another `name`.

    Nothing is trained, and scores are not carried over: the task has none until it is evaluated there.
    """
    task = store[reference]
    new_name = task.record.name if name is None else check_name(name)
    check_movable(task)
    base = base_of(base, device, threads, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    check_fits(task, base)
    record = _moved(task.record, new_name, base)
    probe, logits = probe_of(base.bind(Task(record, task.weights)), record.probe.get("inputs", []))
    moved = store.add(Task(replace(record, probe=probe), {**task.weights, **logits}))
    remember(store, base)
    return moved


def check_movable(task: Task) -> None:
    """Raise UsageError for a task whose weights mean nothing without its base or its parents."""
    from adaptree.methods.dense import Full

    record, method = task.record, parse(task.record.method)
    why = ""
    if record.kind == "attached":
        why = "was attached to a model of your own, which has its head"
    elif record.extra.get(NEEDS):
        why = f"is made of {', '.join(record.extra[NEEDS])}, which would stay on the old base"
    elif isinstance(method, Full):
        why = f"has whole weights of the old base ({method.name}): there is nothing to put into another one"
    elif method.standalone:
        why = f"does not use the base ({method.name}), and has no place in another one"
    if why:
        raise UsageError(
            f"'{record.reference}' {why}.", hint=f"Train it there: adaptree train DATA --name {record.name} --base BASE"
        )


def check_fits(task: Task, base: Base) -> None:
    """Raise WrongBase, saying what differs, for a base of another shape; UsageError for the task's own base."""
    record, sites = task.record, base.hooked.sites
    if record.base["fingerprint"] == base.fingerprint:
        raise UsageError(
            f"'{record.reference}' is on that base already, {base.name}.", hint=f"adaptree predict {record.reference} …"
        )
    differs = ""
    if (was := record.base.get("architecture")) != sites.architecture:
        differs = f"the architecture {was}, here {sites.architecture}"
    differs = differs or _other_size(task, base) or _other_weights(task, base)
    if not differs and record.max_length > base.limit:
        differs = f"inputs of {record.max_length} tokens, here at most {base.limit}"
    if differs:
        raise WrongBase(
            f"'{record.reference}' does not fit into {base.name}: it has {differs}.",
            hint=f"A base of the same shape as {record.base.get('name')} is needed, or train it there.",
        )


def _other_size(task: Task, base: Base) -> str:
    """Return how the base's number of weights differs, empty if it does not.

    Embeddings are compared only for sparse δs, whose positions count all weights.
    """
    from adaptree.methods.sparse import Sparse
    from adaptree.models.hooks import price

    here, there = price({}, 0, base.hooked.backbone), task.record.parameters
    compared = {"base_without_embeddings": "parameters without embeddings"}
    if isinstance(parse(task.record.method), Sparse):
        compared["base"] = "parameters in all"
    for key, what in compared.items():
        if there.get(key, here[key]) != here[key]:
            return f"a base of {there[key]:,} {what}, here {here[key]:,}"
    return ""


def _other_weights(task: Task, base: Base) -> str:
    """Return the first weight that this base has in another shape, or not at all."""
    import torch

    from adaptree import kinds
    from adaptree.methods.sparse import POSITIONS

    method: Method = parse(task.record.method)
    generator = torch.Generator().manual_seed(0)
    kind = kinds.for_record(task.record, base.encoder)
    here: dict[str, Tensor] = kind.init(base.width, generator)
    own: Mapping[str, Tensor] = {key: t for key, t in task.weights.items() if key.startswith("head.")}
    if method.stages == 1 and POSITIONS not in task.weights:  # else they are by position, and have no names
        here |= method.init(base.hooked.sites, base.hooked.backbone, generator)
        own = task.weights
    for key in (*own, *here):
        was, now = (tuple(of[key].shape) if key in of else None for of in (own, here))
        if was != now:
            return f"{key} {_shape(was)}, here {_shape(now)}"
    return ""


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else " × ".join(map(str, shape))


def _moved(record: Record, name: str, base: Base) -> Record:
    """Return the record of the same task in another base."""
    from adaptree.models.hooks import price

    backbone = base.hooked.backbone
    counts = {key: record.parameters.get(key, 0) for key in ("adapters", "norms")}
    parameters = price(counts, record.parameters.get("head", 0), backbone)
    came: dict[str, Any] = {
        "from": record.base["name"], "fingerprint": record.base["fingerprint"], "reference": record.reference,
        "metrics": record.metrics,
    }  # fmt: skip
    kept = {key: value for key, value in record.extra.items() if key not in OF_THE_OLD_BASE}
    return record.unscored(
        name=name,
        base=base_record(base),
        parameters=parameters,
        trained_percent=100 * parameters["trained"] / parameters["base"],
        extra={**kept, REBASED: came},
    )

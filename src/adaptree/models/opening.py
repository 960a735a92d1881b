"""Open a base on a device, and a stored task or a composition of stored tasks on its base."""

from __future__ import annotations

import os
import shlex
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree import kinds
from adaptree.compose import Expression, parse
from adaptree.errors import CompositionError, UsageError, WrongBase
from adaptree.tasks.record import EVALUATED, REBASED
from adaptree.tasks.runs import bases_of
from adaptree.tasks.task import Task

if TYPE_CHECKING:
    from adaptree.data.encode import Encoder
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound
    from adaptree.tasks.store import Store

_WARNED: dict[Any, Any] = {}


def base_of(base: Base | str | Path, device: str, threads: int | None, **trust: bool) -> Base:
    """Return a base, loading it unless it is one already, and set the number of threads."""
    import torch

    from adaptree.models.base import Base
    from adaptree.models.loading import load_base

    if threads is not None:
        if threads < 1:
            raise UsageError(f"threads must be at least 1, not {threads}.")
        torch.set_num_threads(threads)
    if isinstance(base, Base):
        return base
    return load_base(base, device=_device(device), **trust)  # type: ignore[arg-type]


def _device(name: str) -> str:
    import torch

    if name == "auto":
        if not torch.cuda.is_available() or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"):
            return "cpu"
        several = int(os.environ.get("WORLD_SIZE", "1")) > 1  # set by torchrun and accelerate launch
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if several else "cuda"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0][:80]
        raise UsageError(f"the device '{name}' is not there ({why}).", hint="Try --device cpu.") from error
    return name


def encoder_of(base: Base | str | Path, *, writes: bool = False) -> tuple[Encoder, int]:
    """Return a base's tokenizer and its longest input, without its weights and torch; `writes` as in `load_base`."""
    from adaptree.data.encode import Encoder
    from adaptree.models.embedded import config_of, limit_of, locate
    from adaptree.models.trust import check_folder

    if isinstance(base, str | Path):
        folder = locate(base)
        config = config_of(folder)
        if not (folder / "tokenizer.json").is_file():  # then transformers reads it
            check_folder(folder)
        return Encoder.load(folder, config, writes=writes), limit_of(config)
    return base.encoder, base.limit


def open_task(
    store: Store,
    reference: str | Expression,
    *,
    base: Base | str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    int8: bool = False,
    evaluating: bool = False,
) -> Bound:
    """Return a stored task, or a composition of some, bound to `base` or else to the base it was trained on.

    parallel(…) and rows(…) become `ParallelTasks` and `RowTasks`, which predict lines and rows as a `Bound` does. A
    rebased task that nobody has evaluated comes with a warning, unless it is opened for `evaluating`.
    """
    plain = isinstance(reference, str) and not any(mark in reference for mark in "({")
    tasks = {"": store[str(reference)]} if plain else _named(store, reference)
    first = next(iter(tasks.values()))
    if base is None:
        base = bases_of(store).get(first.record.base.get("fingerprint", ""), first.record.base.get("name", ""))
    trust = {"trust_remote_code": trust_remote_code, "allow_pickle": allow_pickle}
    opened = base_of(base, device, threads, writes=kinds.writes(first.record.kind), **trust)
    bound: Bound = opened.bind(first, int8=int8) if plain else opened.bind(reference, tasks=tasks, int8=int8)
    if not evaluating:
        for each in getattr(bound, "parts", {"": bound}).values():
            _warn_of_rebased(store, each)
    return bound


def _named(store: Store, composition: str | Expression) -> dict[str, Task]:
    """Return the tasks that a composition names; raise WrongBase if they are of several bases."""
    expression = parse(composition)
    if not expression.names:
        raise CompositionError(
            f"{expression!r} is the bare base: it has no task to predict with.", hint="Name a task in it."
        )
    tasks = {name: store[name] for name in expression.names}
    first, *others = tasks.values()
    for other in others:
        if other.record.base["fingerprint"] != first.record.base["fingerprint"]:
            a, b = first.record, other.record
            there = shlex.quote(bases_of(store).get(a.base["fingerprint"], a.base["name"]))
            raise WrongBase(
                f"'{a.name}' was trained on the base {a.base['name']} and '{b.name}' on another, {b.base['name']}: "
                f"{expression!r} has no base to run on.",
                hint=f"Compose tasks of one base, or: adaptree rebase {b.reference} --base {there}",
            )
    return tasks


def _warn_of_rebased(store: Store, bound: Bound) -> None:
    """Warn of tasks that were put into another base and never scored there."""
    for record in (task.record for task in bound.composition.tasks):
        marks = store.marks(record.reference) if record.reference in store else ()
        if REBASED in record.extra and EVALUATED not in marks:
            text = (
                f"'{record.name}' was trained on {record.extra[REBASED]['from']} and put into {record.base['name']}, "
                f"where nobody has scored it yet.  adaptree evaluate {record.reference} DATA"
            )
            warnings.warn_explicit(text, UserWarning, "adaptree", 0, registry=_WARNED)

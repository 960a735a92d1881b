"""Make a task of what another library saved."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree import compose
from adaptree.errors import InteropError, UsageError
from adaptree.hub.interop import adapterhub, peft
from adaptree.hub.interop.adapterhub_fusion import FUSION, SETUP, read_fusion, read_setup
from adaptree.hub.interop.files import as_bytes, read_config
from adaptree.hub.interop.foreign import Foreign, Place
from adaptree.methods.norms import Head as HeadOnly
from adaptree.models.fit import ODD
from adaptree.tasks.names import check_name
from adaptree.tasks.record import FUSES, NEEDS, Record
from adaptree.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor, nn

    from adaptree.models.architectures import Architecture
    from adaptree.models.base import Base

IMPORTED = "imported"
"""In a record's extra: the library that a task comes from, and what its files call the base."""
PROBES = ("a text", "another text, somewhat longer than the first one")
"""The inputs of an imported task's probe: it comes without data."""


def recognise(folder: str | Path) -> str | None:
    """Return 'peft' or 'adapters' for a folder that one of them saved; None for any other."""
    folder = Path(folder)
    if any((folder / name).is_file() for name in (SETUP, FUSION, adapterhub.HEAD)):
        return "adapters"
    if not (folder / peft.CONFIG).is_file():
        return None
    if any((folder / name).is_file() for name in (adapterhub.SAFE, adapterhub.PICKLED)):
        return "adapters"
    if any((folder / name).is_file() for name in (peft.SAFE, peft.PICKLED)):
        return "peft"
    return "peft" if "peft_type" in read_config(folder, peft.CONFIG) else "adapters"


def read_foreign(
    folder: str | Path,
    base: Base,
    *,
    name: str | None = None,
    labels: Sequence[str | int] | None = None,
    pair: bool = False,
) -> Task:
    """Return the task in a folder of `peft` or `adapters`, on the base that it was trained on.

    `labels` name the head's outputs, in their order, where the files do not. `pair`: whether it takes two texts. A task
    without a head is of kind 'attached': it can be stacked, fused and attached, but predicts nothing by itself.
    """
    folder = Path(folder).expanduser()
    place = Place(base.hooked.sites, base.hooked.backbone, pooler=_has_pooler(base))
    return _task(_read(folder, place), base, check_name(name) if name else None, labels, pair)


def read_for_model(folder: str | Path, model: nn.Module, architecture: Architecture | None = None) -> Task:
    """Return the task in a folder of `peft` or `adapters` as `attach` takes it: its head is that of the model's class.

    Parts of the head that the folder does not have are the model's own, as when the other library loads it.
    """
    from adaptree.models.fingerprint import fingerprint, pooler
    from adaptree.models.hooks import price
    from adaptree.models.sites import backbone_of, find
    from adaptree.models.tuned import head_of

    sites, backbone = find(model, architecture), backbone_of(model)
    found = _read(Path(folder).expanduser(), Place(sites, backbone))
    if found.parts:
        raise UsageError(
            f"'{folder}' is a fusion of several adapters, which attach does not put below it.",
            hint="Read it for a base: adaptree import, or adaptree.hub.interop.read.read_foreign(folder, base).",
        )
    head = {f"head.{name}": p.detach() for name, p in head_of(model).items()}
    own = dict(found.head.named) if found.head else {}
    if found.head and not own and head:
        raise UsageError(
            f"'{folder}' has a head of adapters' own classes, which does not fit that of a {type(model).__name__}.",
            hint="Attach it to the model without a head (AutoModel), or read it into a store.",
        )
    _check_pooler(own, backbone)
    fits = {name: t for name, t in own.items() if not _of_pooler(name)}
    for name, tensor in fits.items():
        if f"head.{name}" not in head or head[f"head.{name}"].shape != tensor.shape:
            has = head.get(f"head.{name}")
            raise UsageError(
                f"'{folder}' has '{name}' of {tuple(tensor.shape)}, and this {type(model).__name__} has "
                f"{'none such' if has is None else f'it of {tuple(has.shape)}'}.",
                hint="Load the model with the class and the number of labels that the task was trained with.",
            )
    base = {
        "name": str(getattr(model.config, "_name_or_path", "") or type(model).__name__),
        "fingerprint": fingerprint(backbone),
        "architecture": sites.architecture,
    }
    weights = {**found.v, **head, **{f"head.{name}": tensor for name, tensor in fits.items()}}
    counts = price(found.method.count(sites, backbone), sum(p.numel() for p in head.values()), backbone)
    extra = {"pooler": pooler(backbone), IMPORTED: _origin(found)}
    name = _name(found)
    return Task(
        Record(name=name, kind="attached", method=str(found.method), base=base, parameters=counts, extra=extra), weights
    )


def _read(folder: Path, place: Place) -> Foreign:
    if not folder.is_dir():
        raise InteropError(f"there is no folder '{folder}'.")
    library = recognise(folder)
    if library is None:
        raise InteropError(
            f"'{folder}' is no folder that peft or adapters saved.", hint=f"Such a folder has {peft.CONFIG} in it."
        )
    try:
        return peft.read(folder, place) if library == "peft" else _read_adapters(folder, place)
    except (*ODD, RuntimeError) as error:
        why = str(error).partition("\n")[0][:100]
        raise InteropError(
            f"'{folder}' is broken: its files do not hold what {library} writes ({type(error).__name__}: {why}).",
            hint="Save or fetch it again.",
        ) from error


def _read_adapters(folder: Path, place: Place) -> Foreign:
    """Return what `adapters` saved: a setup, an adapter, a fusion beside its adapters, or a head alone."""
    if (folder / SETUP).is_file():
        return read_setup(folder, place)
    if (folder / adapterhub.CONFIG).is_file():
        return adapterhub.read(folder, place)
    if (folder / FUSION).is_file():
        return read_fusion(folder, folder.parent, place)
    return Foreign("adapters", folder.name, "", HeadOnly(), {}, adapterhub.read_head(folder, place))


def _task(
    found: Foreign, base: Base, name: str | None, labels: Sequence[str | int] | None, pair: bool, part: bool = False
) -> Task:
    """Return a task of ours; a `part` of a fusion needs no head, and loses one that has no counterpart."""
    from adaptree.models.hooks import price
    from adaptree.training.package import base_record

    head = found.head
    if head is not None and head.problem:
        if not part:
            raise InteropError(f"'{found.name}' cannot predict here: {head.problem}.", hint=head.hint)
        head = None
    if labels is not None:
        if head is None:
            raise InteropError(f"'{found.name}' has no head: there is nothing to label.", hint="Leave out --labels.")
        head = head.labelled(labels)
    weights: dict[str, Tensor] = {**found.v, **(head.weights if head else {})}
    counts = price(
        found.method.count(base.hooked.sites, base.hooked.backbone),
        sum(t.numel() for t in (head.weights if head else {}).values()),
        base.hooked.backbone,
    )
    name = name or _name(found)
    parts = {
        _part_name(name, each): _task(one, base, _part_name(name, each), None, pair, True)
        for each, one in found.parts.items()
    }
    kind = head.kind if head else "attached"
    columns = {"text": "text", "pair": "text_pair" if pair else None, "label": "label"}
    record = Record(
        name=name,
        kind=kind,
        labels=list(head.labels) if head else [],
        method=_spelling(found),
        base=base_record(base),
        pooling=(head.pooling if head else "") or base.pooling,
        max_length=base.limit,
        columns=columns if kind in ("classify", "regress", "multilabel") else {},
        parameters=counts,
        trained_percent=100 * counts["trained"] / counts["base"],
        extra={**(head.extra if head else {}), **_parents(parts), IMPORTED: _origin(found)},
    )
    task = Task(record, weights, parts)
    base.check(task)
    return task if part else _probed(task, base, pair)


def _spelling(found: Foreign) -> str:
    """Return the method's spelling, for a fusion without the digest of its parts."""
    return found.method.name if found.parts else str(found.method)


def _part_name(whole: str, part: str) -> str:
    return f"{whole}-{_plain_name(part)}"[:64].rstrip("-_") if "/" not in whole else f"{whole}-{_plain_name(part)}"


def _plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:40] or "part"


def _name(found: Foreign) -> str:
    return re.sub(r"^[_-]+", "", _plain_name(found.name)) or "imported"


def _origin(found: Foreign) -> dict[str, str]:
    return {"library": found.library, "name": found.name, "base": found.base}


def _parents(parts: Mapping[str, Task]) -> dict[str, Any]:
    """Return the entries of a fused task's record about its parts."""
    if not parts:
        return {}
    needs = {name: hashlib.sha256(as_bytes(task.tensors)).hexdigest() for name, task in parts.items()}
    return {FUSES: repr(compose.fuse(*parts)), NEEDS: needs}


def _probed(task: Task, base: Base, pair: bool) -> Task:
    """Return the task with a probe, where its kind takes plain texts."""
    from dataclasses import replace

    from adaptree.training.package import probe_of

    if task.record.kind not in ("classify", "regress", "multilabel"):
        return task
    inputs = [[text, PROBES[0]] if pair else text for text in PROBES]
    probe, logits = probe_of(base.bind(task), inputs)
    return Task(replace(task.record, probe=probe), {**task.tensors, **logits}, task.parts)


def _has_pooler(base: Base) -> bool:
    """Return whether a base's files hold a pooler; one that they lack is random at each loading."""
    from safetensors import SafetensorError, safe_open

    for path in base.files("*.safetensors"):
        try:
            with safe_open(path, framework="pt") as file:
                if any(_of_pooler(name) for name in file.keys()):  # noqa: SIM118
                    return True
        except (OSError, SafetensorError):
            continue
    return False


def _of_pooler(name: str) -> bool:
    return f".{name}".endswith((".pooler.dense.weight", ".pooler.dense.bias"))


def _check_pooler(own: Mapping[str, Tensor], backbone: nn.Module) -> None:
    """Raise UsageError if a folder has another pooler than the model: it is the base's here, and frozen with it."""
    import torch

    theirs = {name[name.index("pooler") :]: t for name, t in own.items() if _of_pooler(name)}
    ours = dict(backbone.named_parameters())
    if any(name not in ours or not torch.equal(ours[name].detach().float(), t) for name, t in theirs.items()):
        raise UsageError(
            "the task has a pooler of its own, and attach leaves the model's as it is.",
            hint="Read it for a base, where the pooler is a part of the head: adaptree import FOLDER",
        )

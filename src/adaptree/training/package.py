"""From trained weights to a task: its scores beside the baselines', its price, its examples, its probe."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from adaptree.data.dataset import MERGED
from adaptree.kinds import Kind
from adaptree.kinds.findings import cut, examine
from adaptree.models.base import Base
from adaptree.models.bound import Bound
from adaptree.models.evaluate import CHUNK, Decoded, Part, decode, score
from adaptree.models.hooks import price
from adaptree.tasks.machine import computing
from adaptree.tasks.record import WARNINGS, Record
from adaptree.tasks.task import Task
from adaptree.training import baselines
from adaptree.training.result import Fit
from adaptree.training.warn import no_better

if TYPE_CHECKING:
    from adaptree.training.pipeline import Resolved, TaskData

RESCORED = "while_training"
"""In the best epoch of a record's history: its scores in training, where the task's own are others."""
PROBES = 4
"""Training inputs in a task's probe."""
INSPECTED = 50_000
"""Inputs whose predictions are analysed for the card at most; the scores are of all inputs."""
WRITTEN, WRITTEN_TOKENS, SHOWN = 100, 64, 3
"""Of how many inputs a task that writes texts shows some on its card, with so many tokens at most."""


def make_task(
    data: TaskData,
    plan: Resolved,
    fit: Fit,
    *,
    truncated: int,
    extra: dict[str, Any],
    with_baselines: bool,
    warnings: Sequence[str] = (),
    own_head: bool = True,
) -> Task:
    """Return the task of a run, scored on its validation rows and, where there are some, its test rows.

    With `own_head` its head was trained, and counts as such.
    """
    parts, dataset, settings = data.parts, data.dataset, plan.settings
    counts = _price(plan, fit, own_head)
    record = Record(
        name=data.name,
        kind=dataset.kind,
        labels=list(dataset.labels),
        method=str(plan.method),
        base=base_record(plan.base),
        pooling=str(settings.pooling),
        max_length=int(settings.max_length or 0),
        columns=dict(dataset.columns),
        data={
            "name": dataset.name,
            "digest": dataset.digest,
            "rows": len(dataset),
            **{part: len(parts.get(part, ())) for part in ("train", "validation", "test")},
            "truncated": truncated,
            "left_out": dict(dataset.left_out),
            "label_counts": dataset.counts(),
            **({MERGED: dataset.merged} if dataset.merged is not None else {}),
            **({} if dataset.weight is None else {"weight": dataset.weight}),
        },
        parameters=counts,
        trained_percent=100 * counts["trained"] / counts["base"],
        seconds=round(fit.seconds, 3),
        seed=settings.seed,
        settings={**settings.to_dict(), "best_epoch": fit.best, "finished": fit.finished, **fit.used},
        history=fit.history,
        examples=_examples(parts["train"]),
        extra=extra,
    )
    parents = plan.parents.tasks
    bound = plan.base.bind(Task(record, fit.v, parents))
    metrics, intervals, about = _scores(bound, parts, fit)
    inputs = [list(x) if isinstance(x, tuple) else x for x in dataset.inputs(parts["train"].rows[:PROBES])]
    probe, logits = probe_of(bound, inputs)
    record = replace(
        record,
        history=_rescored(fit, metrics["validation"]),
        metrics=metrics,
        intervals=intervals,
        baselines=_baselines(fit.kind, parts) if with_baselines else {},
        probe=probe,
        extra=extra | ({"insight": about} if about else {}),
    )
    if found := [*warnings, *no_better(record, fit.kind)]:
        record = replace(record, extra=record.extra | {WARNINGS: found})
    return Task(record, {**fit.v, **logits}, parents)


def _rescored(fit: Fit, scores: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the history with the task's own scores in its best epoch.

    They are others where activations were cached in fp16; those are kept as `while_training`.
    """
    history = list(fit.history)
    at = [i for i, epoch in enumerate(history) if epoch.get("stage") == history[-1].get("stage")][fit.best - 1]
    before = {name: history[at][name] for name in scores if name in history[at]}
    if any(before[name] != scores[name] and not math.isnan(scores[name]) for name in before):
        history[at] = {**history[at], **scores, RESCORED: before}
    return history


def base_record(base: Base) -> dict[str, str]:
    """Return what a task's record says of its base."""
    return {"name": base.name, "fingerprint": base.fingerprint, "architecture": base.hooked.sites.architecture}


def probe_of(bound: Bound, inputs: list[Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a task's probe for its record, and the logits of its inputs, to check later that the bits are the same."""
    machine = computing(bound.base.device)
    probe = {"inputs": inputs, "path": "single", "threads": machine["threads"], "machine": machine}
    return probe, {"probe.logits": bound.logits(inputs)}


def _price(plan: Resolved, fit: Fit, own_head: bool) -> dict[str, int]:
    """Return how many parameters the adapters, norms and head have, and the base."""
    sites, backbone = plan.base.hooked.sites, plan.base.hooked.backbone
    heads = {key: t for key, t in fit.v.items() if key.startswith("head.")} if own_head else {}
    head = sum(t.numel() for key, t in heads.items() if not plan.trained.freezes(key))
    counts = plan.trained.count(sites, backbone)
    if plan.trained.standalone:
        counts["adapters"] = sum(t.numel() for t in fit.v.values() if t.is_floating_point()) - head
    return price(counts, head, backbone)


def _scores(bound: Bound, parts: dict[str, Part], fit: Fit) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return metrics and intervals for validation and test, and what the card says of the answers to the last."""
    metrics: dict[str, dict[str, float]] = {}
    intervals: dict[str, dict[str, list[float]]] = {}
    about: dict[str, Any] = {}
    inspected = "test" if "test" in parts else "validation"
    for key, part in parts.items():
        if key == "train":
            continue
        out = fit.out if key == "validation" else None
        decoded = decode(bound, part, out, INSPECTED if key == inspected else 0)
        metrics[key], intervals[key] = score(bound, part, decoded.answers)
        if key == inspected:
            about = _inspect(bound, part, decoded)
    return metrics, intervals, about


def _inspect(bound: Bound, part: Part, decoded: Decoded) -> dict[str, Any]:
    """Return what the card says of a task's answers beside their scores."""
    targets = part.dataset.targets(part.rows[:INSPECTED])
    inputs = _Inputs(part, INSPECTED)
    found = examine(bound.kind, inputs, targets, decoded.out, decoded.examples, decoded.answers[:INSPECTED])
    return {**found, "written": _written(bound, part)} if bound.kind.generates else found


def _written(bound: Bound, part: Part) -> list[dict[str, str]]:
    """Return what a task writes for a few prompts that leave room, beside a reference of each."""
    chosen: dict[str, tuple[Any, str]] = {}
    for given, target in zip(_Inputs(part, WRITTEN), part.dataset.targets(part.rows[:WRITTEN]), strict=True):
        ((row,),) = bound.read([given])
        if len(row.ids) + WRITTEN_TOKENS <= bound.base.limit:
            chosen.setdefault(part.dataset.form.key(given), (given, target))
    some = list(chosen.values())[:SHOWN]
    said = bound.write([given for given, _ in some], max_new_tokens=WRITTEN_TOKENS) if some else []
    return [
        {"prompt": cut(bound.kind.show(given, "")[0][-1]), "reference": cut(target), "text": cut(each.text)}
        for (given, target), each in zip(some, said, strict=True)
    ]


class _Inputs(Sequence[Any]):
    """The first inputs of a part, as a sequence that reads them from the dataset when they are used."""

    def __init__(self, part: Part, most: int) -> None:
        self._part, self._count = part, min(most, len(part))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: Any) -> Any:
        return self._part.dataset.inputs(self._part.rows[range(self._count)[i], None])[0]

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, self._count, CHUNK):
            yield from self._part.dataset.inputs(self._part.rows[start : min(start + CHUNK, self._count)])


def _baselines(kind: Kind, parts: Mapping[str, Part]) -> dict[str, dict[str, float]]:
    """Return the scores of the majority class and a bag of words on the same rows; none for kinds without them."""
    training, other = parts["train"], parts.get("test", parts["validation"])
    dataset, against = training.dataset, other.dataset
    if not kind.baselines:
        return {}
    kept = training.rows[:: -(-len(training) // baselines.MOST)]
    return baselines.baselines(
        kind, dataset.texts(kept), dataset.targets(kept), against.texts(other.rows), against.targets(other.rows)
    )


def _examples(part: Part, most: int = 5) -> list[dict[str, Any]]:
    """Return a few rows for the card, of as many labels as possible."""
    dataset, strata = part.dataset, part.dataset.strata()
    chosen: dict[Any, int] = {}
    for i in part.rows[:2000].tolist():
        chosen.setdefault(strata[i].item() if dataset.values is not None and dataset.labels else i, i)
        if len(chosen) == most:
            break
    return [dataset.example(i) for i in chosen.values()]

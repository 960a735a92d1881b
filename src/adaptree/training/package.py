"""From trained weights to a task: its scores beside the baselines', its price, its examples, its probe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from adaptree.data.dataset import Dataset
from adaptree.kinds import Example, Kind, Out
from adaptree.kinds.findings import examine
from adaptree.methods import Method
from adaptree.models.base import Base
from adaptree.models.bound import Bound
from adaptree.models.hooks import price
from adaptree.tasks.record import Record
from adaptree.tasks.task import Task
from adaptree.training import baselines
from adaptree.training.result import Fit
from adaptree.training.settings import Settings

Array = np.ndarray[Any, Any]
CHUNK = 4096
PROBES = 4
LOOKED_AT = 50_000
"""Inputs whose answers are looked at one by one for the card; the scores are of all."""


@dataclass(frozen=True)
class Part:
    """Some rows of a table."""

    table: Dataset
    rows: Array

    def __len__(self) -> int:
        return len(self.rows)


class Inputs(Sequence[Any]):
    """The first inputs of a part, read when asked for."""

    def __init__(self, part: Part, most: int) -> None:
        self._part, self._count = part, min(most, len(part))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: Any) -> Any:
        return self._part.table.inputs(self._part.rows[range(self._count)[i], None])[0]

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, self._count, CHUNK):
            yield from self._part.table.inputs(self._part.rows[start : min(start + CHUNK, self._count)])


@dataclass(frozen=True)
class Answered:
    """A task's answers to a part, and of its first inputs what the head gave."""

    answers: Any
    out: Any
    examples: list[Example]


def answer(bound: Bound, part: Part, out: Out | None = None, keep: int = 0) -> Answered:
    """The answers to labelled rows; `out` where the head's output is known already, `keep` inputs' is handed back."""
    if out is not None:
        return Answered(bound.kind.decode(out, []), out[:keep], [])
    answers: list[Any] = []
    outs: list[Any] = []
    kept: list[Example] = []
    for start in range(0, len(part), CHUNK):
        given = bound.kind.inputs(part.table.inputs(part.rows[start : start + CHUNK]), bound.task.record)
        examples, found = bound.run(given, batch_size=64)
        answers.append(bound.kind.decode(found, examples))
        if start < keep:  # even an empty part of a tensor would keep all of it
            some = examples[: keep - start]
            outs.append(found[: keep - start if bound.kind.single else sum(map(len, some))])
            kept += [] if bound.kind.single else some
    return Answered(_joined(answers), _joined(outs), kept)


def _joined(parts: list[Any]) -> Any:
    if parts and isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    if parts and isinstance(parts[0], torch.Tensor):
        return torch.cat(parts)
    return [each for some in parts for each in some]


def score(bound: Bound, part: Part, answers: Any = None) -> tuple[dict[str, float], dict[str, list[float]]]:
    """A task's metrics on labelled rows, with their 95 % intervals; `answers` where they are known already."""
    targets = part.table.targets(part.rows)
    answers = answer(bound, part).answers if answers is None else answers
    spans = bound.kind.intervals(targets, answers)
    return bound.kind.score(targets, answers), {key: list(span) for key, span in spans.items()}


def look(bound: Bound, part: Part, answered: Answered) -> dict[str, Any]:
    """What a card tells of a task's answers beside its scores."""
    targets = part.table.targets(part.rows[:LOOKED_AT])
    given = Inputs(part, LOOKED_AT)
    return examine(bound.kind, given, targets, answered.out, answered.examples, answered.answers[:LOOKED_AT])


def finish(
    name: str,
    base: Base,
    method: Method,
    fit: Fit,
    settings: Settings,
    parts: dict[str, Part],
    *,
    truncated: int,
    extra: dict[str, Any],
    compare: bool,
    spelled: str | None = None,
    made_on: Mapping[str, Task] | None = None,
) -> Task:
    """The task of a run, scored on every part but the training rows; `compare` also fits the cheap baselines."""
    training, table = parts["train"], parts["train"].table
    head = sum(tensor.numel() for key, tensor in fit.v.items() if key.startswith("head."))
    counted = method.count(base.hooked.sites, base.hooked.backbone)
    if method.standalone:
        counted["adapters"] = sum(t.numel() for t in fit.v.values() if t.is_floating_point()) - head
    counts = price(counted, head, base.hooked.backbone)
    record = Record(
        name=name,
        kind=table.kind,
        labels=list(table.labels),
        method=spelled or str(method),
        base={"name": base.name, "fingerprint": base.fingerprint, "architecture": base.hooked.sites.architecture},
        pooling=str(settings.pooling),
        max_length=int(settings.max_length or 0),
        columns=table.columns,
        data={
            "name": table.name,
            "digest": table.digest,
            "rows": len(table),
            **{part: len(parts.get(part, ())) for part in ("train", "validation", "test")},
            "truncated": truncated,
            "left_out": dict(table.left_out),
            "label_counts": table.counts(),
        },
        parameters=counts,
        trained_percent=100 * counts["trained"] / counts["base"],
        seconds=round(fit.seconds, 3),
        seed=settings.seed,
        settings={**settings.to_dict(), "best_epoch": fit.best, "finished": fit.finished, **fit.used},
        history=fit.history,
        examples=_examples(training),
        extra=extra,
    )
    bound = base.bind(Task(record, fit.v, made_on))
    judged = "test" if "test" in parts else "validation"
    scored: dict[str, tuple[dict[str, float], dict[str, list[float]]]] = {}
    told: dict[str, Any] = {}
    for key, part in parts.items():
        if key != "train":
            out = fit.out if key == "validation" else None
            answered = answer(bound, part, out, LOOKED_AT if key == judged else 0)
            scored[key] = score(bound, part, answered.answers)
            told |= look(bound, part, answered) if key == judged else {}
    # What `verify` will compute again, bit for bit.
    probes = [list(given) if isinstance(given, tuple) else given for given in table.inputs(training.rows[:PROBES])]
    record = replace(
        record,
        metrics={key: scores for key, (scores, _) in scored.items()},
        intervals={key: spans for key, (_, spans) in scored.items()},
        baselines=_baselines(fit.kind, training, parts.get("test", parts["validation"])) if compare else {},
        probe={"inputs": probes, "path": "single", "threads": torch.get_num_threads()},
        extra=extra | ({"insight": told} if told else {}),
    )
    return Task(record, {**fit.v, "probe.logits": bound.logits(probes)}, made_on)


def _baselines(kind: Kind, training: Part, other: Part) -> dict[str, dict[str, float]]:
    """Majority and bag of words on the same rows, so that a user sees what the model adds."""
    table, against = training.table, other.table
    if not kind.baselines:
        return {}
    kept = training.rows[:: -(-len(training) // baselines.MOST)]
    return baselines.baselines(
        kind, table.texts(kept), table.targets(kept), against.texts(other.rows), against.targets(other.rows)
    )


def _examples(part: Part, most: int = 5) -> list[dict[str, Any]]:
    """A few rows for the card, of as many labels as possible."""
    table, strata = part.table, part.table.strata()
    chosen: dict[Any, int] = {}
    for i in part.rows[:2000].tolist():
        chosen.setdefault(strata[i].item() if table.values is not None and table.labels else i, i)
        if len(chosen) == most:
            break
    return [table.example(i) for i in chosen.values()]

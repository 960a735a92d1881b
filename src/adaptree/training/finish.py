"""From trained weights to a task: its scores beside the baselines', its price, its examples, its probe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from adaptree import baselines
from adaptree.base import Base, Bound
from adaptree.data.table import Table
from adaptree.host import price
from adaptree.kinds import Out
from adaptree.methods import Method
from adaptree.task import Record, Task
from adaptree.training.loop import Fit
from adaptree.training.settings import Settings

Array = np.ndarray[Any, Any]
CHUNK = 4096
PROBES = 4


@dataclass(frozen=True)
class Part:
    """Some rows of a table."""

    table: Table
    rows: Array

    def __len__(self) -> int:
        return len(self.rows)


def score(bound: Bound, part: Part, out: Out | None = None) -> tuple[dict[str, float], dict[str, list[float]]]:
    """A task's metrics on labelled rows, with their 95 % intervals; `out` where the head's output is known already."""
    golds = part.table.golds(part.rows)
    if out is None:
        starts = range(0, len(part), CHUNK)
        parts = [bound.answers(part.table.texts(part.rows[i : i + CHUNK])) for i in starts]
        answers = np.concatenate(parts) if isinstance(parts[0], np.ndarray) else [a for some in parts for a in some]
    else:
        answers = bound.kind.answers(out, [])
    spans = bound.kind.intervals(golds, answers)
    return bound.kind.score(golds, answers), {key: list(span) for key, span in spans.items()}


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
) -> Task:
    """The task of a run, scored on every part but the training rows; `compare` also fits the cheap baselines."""
    training, table = parts["train"], parts["train"].table
    head = sum(tensor.numel() for key, tensor in fit.v.items() if key.startswith("head."))
    counted = method.count(base.host.sites, base.host.backbone)
    if method.outside:
        counted["adapters"] = sum(t.numel() for t in fit.v.values() if t.is_floating_point()) - head
    counts = price(counted, head, base.host.backbone)
    record = Record(
        name=name,
        kind=table.kind,
        labels=list(table.labels),
        method=str(method),
        base={"name": base.name, "fingerprint": base.fingerprint, "architecture": base.host.sites.architecture},
        pooling=str(settings.pooling),
        max_length=int(settings.max_length or 0),
        columns={"text": table.columns.text, "pair": table.columns.pair, "label": table.columns.label},
        data={
            "name": table.name,
            "digest": table.digest,
            "rows": len(table),
            **{part: len(parts.get(part, ())) for part in ("train", "validation", "test")},
            "truncated": truncated,
            "left_out": dict(table.left_out),
            "label_counts": _label_counts(table),
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
    bound = base.bind(Task(record, fit.v))
    known = {"validation": fit.out}
    scored = {key: score(bound, part, known.get(key)) for key, part in parts.items() if key != "train"}
    # What `verify` will compute again, bit for bit.
    probes = [list(text) if isinstance(text, tuple) else text for text in table.texts(training.rows[:PROBES])]
    record = replace(
        record,
        metrics={key: scores for key, (scores, _) in scored.items()},
        intervals={key: spans for key, (_, spans) in scored.items()},
        baselines=_baselines(training, parts.get("test", parts["validation"])) if compare else {},
        probe={"inputs": probes, "path": "single", "threads": torch.get_num_threads()},
    )
    return Task(record, {**fit.v, "probe.logits": bound.logits(probes)})


def _baselines(training: Part, other: Part) -> dict[str, dict[str, float]]:
    """Majority and bag of words on the same rows, so that a user sees what the model adds."""
    table = training.table
    kept = training.rows[:: -(-len(training) // baselines.MOST)]
    return baselines.baselines(
        table.kind,
        table.texts(kept),
        table.targets[kept].tolist(),
        other.table.texts(other.rows),
        other.table.targets[other.rows].tolist(),
        range(len(table.labels)),
    )


def _label_counts(table: Table) -> dict[str, int]:
    if table.kind != "classify":
        return {}
    counts = np.bincount(table.targets, minlength=len(table.labels)).tolist()
    return {str(label): count for label, count in zip(table.labels, counts, strict=True)}


def _examples(part: Part, most: int = 5) -> list[dict[str, Any]]:
    """A few rows for the card, of as many labels as possible."""
    table = part.table
    chosen: dict[Any, int] = {}
    for i in part.rows[:2000].tolist():
        chosen.setdefault(table.targets[i].item() if table.kind == "classify" else i, i)
        if len(chosen) == most:
            break
    out = []
    for i in chosen.values():
        target = table.targets[i].item()
        example = {"text": table.text(i), "label": table.labels[target] if table.kind == "classify" else target}
        out.append(example | ({"pair": table.pair(i)} if table.columns.pair else {}))
    return out

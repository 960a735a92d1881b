"""What the papers say, set beside the cells of an experiment: each number is computed from what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adaptree.analysis.experiments import forgetting, glue, initscale, ledger, lowdata, squad, sweep, text17, tradeoff
from adaptree.analysis.experiments.sweep import Chosen, Row, Sweep, short

SAME = 2.0
"""Points within which two scores on a thousand test rows count as the same."""
FEWEST = 3
"""Tasks that a mean over tasks needs for a verdict."""
FLAT = 100
"""How many times as many parameters the adapters have between which the paper finds their score flat."""


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, its number there and ours, and whether they agree; None if there is too little yet."""

    text: str
    published: str
    here: str
    agrees: bool | None


def claims(experiment: str, out: Path) -> list[Claim]:
    """Return what can be said of an experiment's finished cells; nothing if it has none, or no paper to agree with."""
    return list(CLAIMS[experiment](out)) if experiment in CLAIMS else []


def _glue(out: Path) -> Iterator[Claim]:
    full, adapters = "full", "adapters 8-256"
    published = {label: float(values[-1]) for label, values in glue.PUBLISHED.items()}
    found = glue.SWEEP.read(out)
    yield from _difference(
        "GLUE: adapters less full fine-tuning, mean over tasks",
        found[adapters],
        found[full],
        lambda names: published[f"{adapters}, BERT-large"] - published[f"{full}, BERT-large"],
    )


def _text17(out: Path) -> Iterator[Claim]:
    found = text17.SWEEP.read(out)
    _, full, _, adapters = range(4)  # the columns of the published table

    def published(names: Sequence[str]) -> float:
        return statistics.fmean(text17.PUBLISHED[name][adapters] - text17.PUBLISHED[name][full] for name in names)

    text = "17 tasks: adapters less full fine-tuning, mean over the tasks that are done"
    yield from _difference(text, found["adapters 2-64"], found["full"], published)


def _difference(
    text: str, ours: Mapping[str, Chosen], beside: Mapping[str, Chosen], published: Callable[[Sequence[str]], float]
) -> Iterator[Claim]:
    """Yield the claim on a mean difference: it agrees if the published one lies in the 95 % interval over tasks."""
    names = [name for name in ours if name in beside]
    if not names:
        return
    differences = [ours[name].mean - beside[name].mean for name in names]
    low, high = sweep.mean_interval(differences)
    value = published(names)
    here = f"{statistics.fmean(differences):+.1f} ({low:+.1f} to {high:+.1f}), {len(names)} tasks"
    yield Claim(text, f"{value:+.1f}", here, low <= value <= high if len(names) >= FEWEST else None)


def _squad(out: Path) -> Iterator[Claim]:
    found = {label: row[squad.TASK.name].mean for label, row in squad.SWEEP.read(out).items() if row}
    for ours, beside, text in (
        ("houlsby:2", "houlsby:64", "SQuAD: F1 with adapters of size 2, less that of size 64"),
        ("houlsby:64", squad.FULL, "SQuAD: F1 with adapters of size 64, less that of full fine-tuning"),
    ):
        if ours in found and beside in found:
            published, here = squad.PUBLISHED[ours] - squad.PUBLISHED[beside], found[ours] - found[beside]
            yield Claim(text, f"{published:+.1f}", f"{here:+.1f}", abs(here - published) <= SAME)


def _initscale(out: Path) -> Iterator[Claim]:
    found = initscale.SWEEP.read(out)
    for task in (task.name for task in initscale.SWEEP.tasks):
        means = {s: row[task].mean for s in initscale.SCALES if task in (row := found[initscale.label(s)])}
        stable = [mean for scale, mean in means.items() if scale <= initscale.STABLE]
        if len(means) < len(initscale.SCALES):
            continue
        spread, drop = max(stable) - min(stable), means[max(means)] - statistics.fmean(stable)
        text = f"Init scale, {task}: the range of the scores up to {initscale.STABLE:g}"
        yield Claim(text, "stable", f"{spread:.1f}", spread <= SAME)
        text = f"Init scale, {task}: the score at {max(means):g}, less the mean up to {initscale.STABLE:g}"
        yield Claim(text, "lower", f"{drop:+.1f}", drop < -SAME)


def _tradeoff(out: Path) -> Iterator[Claim]:
    methods = {cell["asked"]["method"] for cell in ledger.read(out)}
    found = Sweep(tradeoff.TASKS, tuple(Row(short(method), (method,)) for method in methods)).read(out)
    shared = tradeoff.shared_tasks(found)
    if not shared or tradeoff.FULL not in found:
        return
    points = {method: tradeoff.point(found, method, shared) for method in found}
    adapters = sorted(p for method, p in points.items() if method.startswith("houlsby:"))
    enough = len(shared) >= FEWEST
    largest = adapters[-1:]
    if flat := [p.median for p in adapters if p.trained * FLAT >= largest[0].trained]:
        text = f"Trade-off: the range of the adapters' medians up to {FLAT} times fewer parameters than the largest"
        here = max(flat) - min(flat)
        yield Claim(text, "flat", f"{here:.1f}", here <= SAME if enough else None)
    if "top:1" in points and (fewer := [p for p in adapters if p.trained < points["top:1"].trained]):
        gain = fewer[-1].median - points["top:1"].median
        text = "Trade-off: the largest adapters with fewer parameters than the top layer, less fine-tuning that layer"
        yield Claim(text, "higher", f"{gain:+.1f}", gain > 0 if enough else None)


def _forgetting(out: Path) -> Iterator[Claim]:
    cells = ledger.alike(ledger.read(out), "tasks", "fingerprint")
    for way, text in ((forgetting.ADAPTERS, "adapters"), (forgetting.SEQUENCE, "one model, fine-tuned in sequence")):
        earlier = [curve for curve in forgetting.curves(cells, way).values() if len(curve) > 1]
        if not earlier:
            continue
        changes = [curve[max(curve)] - curve[min(curve)] for curve in earlier]
        kept = not any(changes) if way == forgetting.ADAPTERS else statistics.fmean(changes) < 0
        said = "0, perfect memory" if way == forgetting.ADAPTERS else "forgets"
        text = f"Forgetting: what earlier tasks lose by the end, {text}"
        yield Claim(text, said, f"{statistics.fmean(changes):+.1f}", kept)


def _lowdata(out: Path) -> Iterator[Claim]:
    ours, beside = "contrastive", lowdata.SETFIT
    for size, ways in lowdata.summary(lowdata.finished(out)).items():
        names = sorted(set(ways.get(ours, {})) & set(ways.get(beside, {})))
        if not names:
            continue
        gains = [statistics.fmean(ways[ours][name]) - statistics.fmean(ways[beside][name]) for name in names]
        low, high = sweep.mean_interval(gains)
        here = f"{statistics.fmean(gains):+.1f} ({low:+.1f} to {high:+.1f}), {len(names)} tasks"
        text = f"Few labels, {size} rows a label: contrastive training less SetFit"
        yield Claim(text, "as good", here, high >= 0 if len(names) >= FEWEST else None)


CLAIMS: dict[str, Callable[[Path], Iterator[Claim]]] = {
    "glue": _glue,
    "text17": _text17,
    "squad": _squad,
    "tradeoff": _tradeoff,
    "initscale": _initscale,
    "forgetting": _forgetting,
    "lowdata": _lowdata,
}

"""Does `adaptree suggest` find the tasks that help? Its ranking beside the measured gain of each source.

Each task is a source, trained on rows that grow with the size of its dataset, and a target of few rows. The gain of a
source is the test accuracy of an adapter that is trained on top of the source's (`--on`) minus that of one trained
alone; and the same difference of their test losses, which is finer where few rows leave most predictions the same.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from adaptree.analysis.compare.files import read
from adaptree.analysis.compare.files import write as write_json
from adaptree.analysis.experiments import commands, figures
from adaptree.analysis.experiments.corpora import Corpus, count_lines, cut, one_file, write_lines
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.kinds import bootstrap

Array = np.ndarray[Any, Any]

SHARE = 6
"""A source is trained on SHARE·√n of the n rows of its dataset, so that sources differ in size as datasets do."""
FEW = 200
"""Training rows of a target."""
TEST = 500
METHOD = "pfeiffer:48"
EPOCHS = 6
NOTHING = "nothing"
OPTIONS = ("--method", METHOD, "--epochs", str(EPOCHS), "--max-length", "128", "--precision", "bf16")
TASKS = (
    Corpus("mnli", test="validation_matched"),
    Corpus("qqp", test="validation_from_train"),
    Corpus("sst2", test="validation"),
    Corpus("qnli", test="validation"),
    Corpus("rte", test="validation"),
    Corpus("sick", test="test"),
    Corpus("mrpc", test="test"),
    one_file("crowdflower_airline"),
    one_file("crowdflower_corporate_messaging"),
)


def run(setup: Setup) -> str:
    """Train what is missing, and rank the sources for each target; return the page."""
    out, store = setup.out, setup.out / "store"
    rows = {corpus.name: _rows(corpus, setup.data, out / "rows") for corpus in TASKS}
    for name, (source, _, test) in rows.items():
        commands.train(out / "sources" / f"{name}.json", source, name, store, ["--test", test, *OPTIONS], setup,
                       train_rows=count_lines(source))  # fmt: skip
    for target in select(setup.tasks, TASKS):
        _, few, test = rows[target.name]
        _rank(target.name, few, store, setup)
        for below in _sources(target.name):
            on = () if below == NOTHING else ("--on", below)
            path = out / target.name / f"on-{below}.json"
            commands.train(path, few, f"{target.name}-on/{below}", store, ["--test", test, *OPTIONS, *on], setup)
        _losses(target.name, test, store, setup)
    return table(out, setup.command)


def _sources(target: str) -> list[str]:
    """Return what an adapter of the target is trained on top of: nothing, and each other task."""
    return [NOTHING, *(corpus.name for corpus in TASKS if corpus.name != target)]


def _rows(corpus: Corpus, data: Path, out: Path) -> tuple[Path, Path, Path]:
    """Return the files of a corpus's rows as a source, as a target, and to test on, cut with seed 0."""
    train, test = cut(corpus, data, out)
    lines = train.read_text().splitlines()
    random.Random(0).shuffle(lines)
    many = min(round(SHARE * math.sqrt(len(lines))), len(lines) - FEW)
    return (
        write_lines(out / f"{corpus.name}-source.jsonl", lines[FEW : FEW + many]),
        write_lines(out / f"{corpus.name}-few.jsonl", lines[:FEW]),
        write_lines(out / f"{corpus.name}-test.jsonl", test.read_text().splitlines()[:TEST]),
    )


def _rank(target: str, few: Path, store: Path, setup: Setup) -> None:
    """Keep the gain that `suggest` predicts for each source."""
    path = setup.out / target / "suggested.json"
    if path.is_file():
        return
    from adaptree.analysis.suggest import ranking
    from adaptree.kinds.reading import open_data
    from adaptree.models.opening import base_of
    from adaptree.tasks.store import Store

    data = open_data(few)
    found = ranking(data, _sources(target)[1:], Store(store), base_of(setup.base, "cpu", setup.threads))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"gains": [asdict(gain) for gain in found.gains]})


def _losses(target: str, test: Path, store: Path, setup: Setup) -> None:
    """Keep the mean of -log p of the right label, in nats, for each adapter of a target."""
    path = setup.out / target / "losses.json"
    if path.is_file():
        return
    from adaptree.models.opening import base_of
    from adaptree.tasks.store import Store
    from adaptree.training.predict import predict_rows

    setup.on_event({"event": "note", "text": f"{target}, losses"})
    base, tasks = base_of(setup.base, "cpu", setup.threads), Store(store)
    found = {}
    for below in _sources(target):
        predictions = predict_rows(base.bind(tasks[f"{target}-on/{below}"]), test)
        right = [prediction.scores.get(str(row["label"]), 0.0) for row, prediction in predictions]
        found[below] = float(-np.log(np.maximum(right, 1e-9)).mean())
    write_json(path, found)


def measured(out: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Return by target and source: the true gain in points and in nats, the probe's gain, and the source's rows."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for target in TASKS:
        folder = out / target.name
        alone, suggested, losses = (read(folder / f"{name}.json") for name in (f"on-{NOTHING}", "suggested", "losses"))
        if not alone or not suggested or not losses:
            continue
        probe = {gain["task"]: gain["gain"] for gain in suggested["gains"]}
        for source in TASKS:
            pair = read(folder / f"on-{source.name}.json")
            if pair and source.name in probe:
                found.setdefault(target.name, {})[source.name] = {
                    "gain": 100 * (pair["metrics"]["test"]["accuracy"] - alone["metrics"]["test"]["accuracy"]),
                    "nats": losses[NOTHING] - losses[source.name],
                    "probe": probe[source.name],
                    "rows": read(out / "sources" / f"{source.name}.json")["train_rows"],
                }
    return {target: pairs for target, pairs in found.items() if len(pairs) == len(TASKS) - 1}


Pairs = Mapping[str, Mapping[str, float]]
"""By source: gain, nats, probe, rows."""


def correlations(found: Mapping[str, Pairs], gain: str = "gain") -> dict[str, list[float]]:
    """Return Spearman's correlation of two rankings, by suggest and by size, with the true gain: one per target."""
    return {
        ranking: [_spearman(_column(pairs, by), _column(pairs, gain))[0] for pairs in found.values()]
        for ranking, by in (("suggest", "probe"), ("by size", "rows"))
    }


def chance(found: Mapping[str, Pairs], gain: str = "gain", resamples: int = 2000) -> tuple[float, float]:
    """Return the 2.5 % and 97.5 % quantiles of the mean rank correlation of random rankings."""
    rng = np.random.default_rng(0)
    by_target = []
    for pairs in found.values():
        random_rankings = [rng.permutation(len(pairs)) for _ in range(resamples)]
        by_target.append(_spearman(np.array(random_rankings), _column(pairs, gain)))
    low, high = np.quantile(np.mean(by_target, axis=0), [0.025, 0.975])
    return float(low), float(high)


def _column(pairs: Pairs, key: str) -> Array:
    return np.array([pair[key] for pair in pairs.values()], dtype=float)


def _spearman(rankings: Array, values: Array) -> Array:
    """Return Spearman's correlation of each ranking (the last axis) with the values; 0 where either is constant."""
    from scipy.stats import rankdata

    x, y = (rankdata(each, axis=-1) for each in (np.atleast_2d(rankings), values))
    x, y = (each - each.mean(-1, keepdims=True) for each in (x, y))
    norms = np.sqrt((x**2).sum(-1) * (y**2).sum())
    return np.asarray((x @ y) / np.where(norms == 0, 1.0, norms))


def table(out: Path, command: str) -> str:
    """Write the page over the targets that are done, and the figure; return the page."""
    lines = [
        "# Does `suggest` find the tasks that help?",
        "",
        f"What a source brings to a target: an adapter ({METHOD}, {EPOCHS} epochs, {FEW} rows, one seed) is trained on "
        "top of the source's, and alone. The gain is in nats, how much less it is surprised by the labels of at most "
        f"{TEST} test rows, and in points of their accuracy, of which two are noise: with so few rows many answers "
        f"stay the same. Sources have {SHARE}·√n of the n rows of their datasets here.",
        "",
    ]
    if found := measured(out):
        ranks = {gain: correlations(found, gain) for gain in ("nats", "gain")}
        random_ = {gain: chance(found, gain) for gain in ranks}
        cells = [(gain, who) for gain in ranks for who in ("suggest", "by size")]
        lines += [
            "Rank correlation with the gain:",
            "",
            "| target | nats: suggest | by size | points: suggest | by size |",
            f"|{'---|' * 5}",
            *(
                " | ".join([f"| {target}", *(f"{ranks[gain][who][i]:+.2f}" for gain, who in cells)]) + " |"
                for i, target in enumerate(found)
            ),
            " | ".join(
                ["| **mean**"]
                + [f"**{np.mean(ranks[gain][who]):+.2f}** {_interval(ranks[gain][who])}" for gain, who in cells]
            )
            + " |",
            "",
            f"Means with 95 % intervals, bootstrap over {len(found)} targets; 95 of 100 random rankings lie between "
            + " (nats), ".join(f"{low:+.2f} and {high:+.2f}" for low, high in random_.values())
            + " (points).",
            "",
            f"What each scores by itself, as a source and as a target: {_alone(out, found)}.",
            "",
            "What is gained with the source that is chosen, in nats (points):",
            "",
            "| target | the best one | suggest's first | the largest | mean of all |",
            f"|{'---|' * 5}",
            *(f"| {target} | {_best(pairs)} |" for target, pairs in found.items()),
            f"| **mean** | {_means(found)} |",
            "",
            "![gains](gains.png)",
            "",
        ]
        figures.transfer(found, out / "gains.png")
        write_json(out / "summary.json", {"pairs": found, "correlations": ranks, "chance": random_})
    return write_page(lines, out, command)


def _alone(out: Path, found: Iterable[str]) -> str:
    """Return each task's test accuracy, trained on the many rows of a source and on the few of a target."""
    parts = []
    for name in found:
        source, few = read(out / "sources" / f"{name}.json"), read(out / name / f"on-{NOTHING}.json")
        many, less = (100 * cell["metrics"]["test"]["accuracy"] for cell in (source, few))
        parts.append(f"{name} {many:.1f} ({source['train_rows']:,} rows), {less:.1f}")
    return "; ".join(parts)


def _chosen(pairs: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the best source, and those that suggest and size rank first."""
    return [max(pairs, key=lambda name: pairs[name][by]) for by in ("nats", "probe", "rows")]


def _best(pairs: Mapping[str, Mapping[str, float]]) -> str:
    cells = [f"{pairs[name]['nats']:+.3f} ({pairs[name]['gain']:+.1f}), {name}" for name in _chosen(pairs)]
    nats, points = (np.mean([pair[gain] for pair in pairs.values()]) for gain in ("nats", "gain"))
    return " | ".join([*cells, f"{nats:+.3f} ({points:+.1f})"])


def _means(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    columns = []
    for gain in ("nats", "gain"):
        chosen = [[pairs[name][gain] for name in _chosen(pairs)] for pairs in found.values()]
        every = np.mean([np.mean([pair[gain] for pair in pairs.values()]) for pairs in found.values()])
        columns.append([*np.mean(chosen, axis=0), every])
    return " | ".join(f"**{nats:+.3f}** ({points:+.1f})" for nats, points in zip(*columns, strict=True))


def _interval(values: Sequence[float]) -> str:
    sums = np.asarray(values)[:, None]
    low, high = bootstrap.intervals(sums, lambda totals: {"mean": totals[:, 0] / len(sums)}, resamples=2000)["mean"]
    return f"({low:+.2f} to {high:+.2f})"

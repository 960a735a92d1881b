"""Does `adaptree suggest` find the tasks that help? Its ranking beside the measured gain of each source.

Each task is a source, trained on rows that grow with the size of its dataset, and a target of few rows. The gain of a
source is the test accuracy of an adapter that is trained on top of the source's (`--on`) minus that of one trained
alone; and the same difference of their test losses, which is finer where few rows leave most predictions the same.
Only sources that have learned something count. How well the gains of one seed rank those of another is the ceiling:
no suggestion can rank them better than they rank themselves.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.analysis.experiments import figures, ledger, trainings
from adaptree.analysis.experiments.corpora import Corpus, cut, one_file, write_lines
from adaptree.analysis.experiments.ledger import Cell, Found
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.analysis.experiments.trainings import Trainer, Training
from adaptree.kinds import bootstrap
from adaptree.reports.markdown import table

if TYPE_CHECKING:
    from adaptree.models.bound import Bound

Array = np.ndarray[Any, Any]

Pairs = Mapping[str, Mapping[str, float]]
"""By source: gain, nats, probe, rows."""

SHARE, MOST = 12, 3000
"""A source is trained on SHARE·√n of the n rows of its dataset, at most MOST: sources differ in size as datasets do."""
FEW = 200
"""Training rows of a target."""
TEST, VALIDATION = 500, 300
METHOD = "pfeiffer:48"
STEPS, FEW_STEPS, BATCH, MAX_LENGTH, SEEDS = 400, 100, 16, 128, 2
NOTHING, SOURCE, TARGET, SUGGESTED = "nothing", "source", "target", "suggested"
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
    found = ledger.alike(ledger.read(setup.out), "base", "recipe") if setup.redraw else ledger.run(_cells(setup), setup)
    return write_page(_page(found, setup.out), setup.out, setup.command)


def _cells(setup: Setup) -> list[Cell]:
    """Return the sources' cells, and of each target those on top of nothing and of each source, and their ranking."""
    trainer = Trainer.of(setup, BATCH, MAX_LENGTH, few=FEW, share=SHARE, steps=STEPS, few_steps=FEW_STEPS)
    rows = {corpus.name: _rows(corpus, setup.data, setup.out / "rows") for corpus in TASKS}
    sources = {
        name: trainer.cell(SOURCE, name, own[SOURCE], METHOD, trainer.epochs(own[SOURCE], STEPS),
                           then=partial(_surprise, test=own[SOURCE]["test"]))
        for name, own in rows.items()
    }  # fmt: skip
    found: list[Cell] = [*sources.values()]
    for target in select(setup.tasks, TASKS):
        files = rows[target.name][TARGET]
        others = {name: cell for name, cell in sources.items() if name != target.name}
        found.append(_suggest(trainer, target.name, files, others))
        for seed, (below, on) in itertools.product(range(setup.seeds or SEEDS), [(NOTHING, None), *others.items()]):
            epochs = trainer.epochs(files, FEW_STEPS)
            look = partial(_surprise, test=files["test"])
            cell = trainer.cell(
                TARGET, target.name, files, METHOD, epochs, seed, on=on, then=look, keep=False, about={"below": below}
            )  # fmt: skip
            found.append(cell)
    return found


def _rows(corpus: Corpus, data: Path, out: Path) -> dict[str, dict[str, Path]]:
    """Return the files of a corpus as a source and as a target of few rows, cut with seed 0."""
    train, test = cut(corpus, data, out)
    lines = train.read_text().splitlines()
    random.Random(0).shuffle(lines)
    held = min(VALIDATION, len(lines) // 5)
    few, validation, rest = lines[:FEW], lines[FEW : FEW + held], lines[FEW + held :]
    many = min(round(SHARE * math.sqrt(len(lines))), MOST, len(rest))
    tested = write_lines(out / f"{corpus.name}-test.jsonl", test.read_text().splitlines()[:TEST])
    first = FEW * 4 // 5
    return {
        SOURCE: {
            "train": write_lines(out / f"{corpus.name}-source.jsonl", rest[:many]),
            "validation": write_lines(out / f"{corpus.name}-validation.jsonl", validation),
            "test": tested,
        },
        TARGET: {
            "train": write_lines(out / f"{corpus.name}-few.jsonl", few[:first]),
            "validation": write_lines(out / f"{corpus.name}-few-validation.jsonl", few[first:]),
            "test": tested,
        },
    }


def _surprise(bound: Bound, test: Path) -> dict[str, Any]:
    """Return the mean of -log p of the right label on test rows, in nats, and how often the commonest one is right."""
    from adaptree.training.predict import predict_rows

    labels, right = [], []
    for row, prediction in predict_rows(bound, test):
        labels.append(str(row["label"]))
        right.append(prediction.scores.get(labels[-1], 0.0))
    majority = Counter(labels).most_common(1)[0][1] / len(labels)
    return {"nats": float(-np.log(np.maximum(right, 1e-9)).mean()), "majority": majority}


def _suggest(trainer: Trainer, target: str, files: Mapping[str, Path], sources: Mapping[str, Training]) -> Cell:
    """Return the cell with the gain that `suggest` predicts for each source, from the target's training rows."""
    asked = trainer.asked(what=SUGGESTED, task=target, sources=[cell.name for cell in sources.values()])

    def rank() -> dict[str, Any]:
        from adaptree.analysis.suggest import ranking
        from adaptree.kinds.reading import open_data
        from adaptree.tasks.store import Store

        began = time.process_time()
        names = {cell.task().record.name: name for name, cell in sources.items()}
        found = ranking(open_data(files["train"]), list(names), Store(trainer.store), trainer.base)
        gains = [{**asdict(gain), "task": names[gain.task.partition("@")[0]]} for gain in found.gains]
        return {"gains": gains, "cpu_seconds": round(time.process_time() - began, 2)}

    return Cell(asked, rank, 20_000, SUGGESTED, tuple(sources.values()))


def clear(cells: Sequence[Found]) -> dict[str, bool]:
    """Return for each source whether its own score is above the commonest label's by more than its standard error."""
    found = {}
    for cell in _of(cells, SOURCE):
        got = cell["found"]
        accuracy, rows = got["test"]["accuracy"], got["test_rows"]
        found[cell["asked"]["task"]] = accuracy - got["majority"] > math.sqrt(accuracy * (1 - accuracy) / rows)
    return found


def _of(cells: Sequence[Found], what: str) -> list[Found]:
    return [cell for cell in cells if cell["asked"]["what"] == what and "found" in cell]


def measured(cells: Sequence[Found]) -> list[dict[str, dict[str, dict[str, float]]]]:
    """Return for each seed, by target and source: the true gain in points and in nats, the probe's, the source's rows.

    Only sources that are `clear` are there, and only targets that have all of them.
    """
    sources = {cell["asked"]["task"]: cell["found"] for cell in _of(cells, SOURCE)}
    good = [name for name, learned in clear(cells).items() if learned]
    probes = {
        cell["asked"]["task"]: {gain["task"]: gain["gain"] for gain in cell["found"]["gains"]}
        for cell in _of(cells, SUGGESTED)
    }
    trained = {(c["asked"]["seed"], c["asked"]["task"], c["asked"]["below"]): c["found"] for c in _of(cells, TARGET)}
    by_seed = []
    for seed in sorted({key[0] for key in trained}):
        found: dict[str, dict[str, dict[str, float]]] = {}
        for target, probe in probes.items():
            names = [name for name in good if name in probe]
            if not all((seed, target, below) in trained for below in (NOTHING, *names)) or not names:
                continue
            alone = trained[seed, target, NOTHING]
            for name in names:
                pair = trained[seed, target, name]
                found.setdefault(target, {})[name] = {
                    "gain": 100 * (pair["test"]["accuracy"] - alone["test"]["accuracy"]),
                    "nats": alone["nats"] - pair["nats"],
                    "probe": probe[name],
                    "rows": sources[name]["train_rows"],
                }
        by_seed.append(found)
    return [found for found in by_seed if found]


def mean_over(seeds: Sequence[Mapping[str, Pairs]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the means over seeds, of the targets that all seeds have."""
    shared = [target for target in seeds[0] if all(target in found for found in seeds)] if seeds else []
    return {
        target: {
            name: {key: float(np.mean([found[target][name][key] for found in seeds])) for key in pair}
            for name, pair in seeds[0][target].items()
        }
        for target in shared
    }


def ceiling(seeds: Sequence[Mapping[str, Pairs]], gain: str) -> list[float]:
    """Return by target the rank correlation between the gains of two seeds, the mean over all pairs of seeds."""
    both = list(itertools.combinations(seeds, 2))
    return [
        float(np.mean([_spearman(_column(a[target], gain), _column(b[target], gain))[0] for a, b in both]))
        for target in mean_over(seeds)
    ]


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


def _page(cells: Sequence[Found], out: Path) -> list[str]:
    """Return the lines of the page over the targets that are done, and draw the figure."""
    own = {"recipe": {"few": FEW, "share": SHARE, "steps": STEPS, "few_steps": FEW_STEPS}, "batch_size": BATCH}
    asked: dict[str, Any] = cells[0]["asked"] if cells else own
    recipe, batch = asked["recipe"], asked["batch_size"]
    few = trainings.length({**recipe, "steps": recipe["few_steps"]} if "few_steps" in recipe else recipe, batch)
    seeds = measured(cells)
    found = mean_over(seeds)
    lines = [
        "# Does `suggest` find the tasks that help?",
        "",
        f"What a source brings to a target: an adapter ({METHOD}, {recipe['few']} rows, {few}) is trained on top of "
        f"the source's, and alone; {len(seeds)} seed(s). The gain is in nats, how much less it is surprised by the "
        f"labels of at most {TEST} test rows, and in points of their accuracy, of which two are noise: with so few "
        f"rows many answers stay the same. Sources have {recipe['share']}·√n of the n rows of their datasets here.",
        "",
        *_sources(cells),
        "",
    ]
    if not found:
        return [*lines, "No target is done yet.", ""]
    ranks = {gain: correlations(found, gain) for gain in ("nats", "gain")}
    if len(seeds) > 1:
        for gain, by in ranks.items():
            by["ceiling"] = ceiling(seeds, gain)
    random_ = {gain: chance(found, gain) for gain in ranks}
    columns = [(gain, who) for gain in ranks for who in ranks[gain]]
    heads = [f"{'nats' if gain == 'nats' else 'points'}: {who}" for gain, who in columns]
    body = [[name, *(f"{ranks[gain][who][i]:+.2f}" for gain, who in columns)] for i, name in enumerate(found)]
    means = [f"**{np.mean(ranks[gain][who]):+.2f}** {_interval(ranks[gain][who])}" for gain, who in columns]
    lines += [
        "Rank correlation with the gain, mean of the seeds"
        + ("; ceiling: of the gains of one seed with those of another:" if len(seeds) > 1 else
           ". With one seed there is no ceiling, the correlation between the gains of two:"),
        "",
        table(("target", *heads), [*body, ["**mean**", *means]]),
        "",
        f"Means with 95 % intervals, bootstrap over {len(found)} targets; 95 of 100 random rankings lie between "
        + " (nats), ".join(f"{low:+.2f} and {high:+.2f}" for low, high in random_.values())
        + " (points).",
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
    ]  # fmt: skip
    figures.transfer(found, out / "gains.png")
    return lines


def _sources(cells: Sequence[Found]) -> list[str]:
    """Return the table of what each task scores by itself, and whether it counts as a source."""
    good = clear(cells)
    alone: dict[str, list[float]] = {}
    for cell in _of(cells, TARGET):
        if cell["asked"]["below"] == NOTHING:
            alone.setdefault(cell["asked"]["task"], []).append(100 * cell["found"]["test"]["accuracy"])
    body = [
        [
            name := cell["asked"]["task"], f"{cell['found']['train_rows']:,}",
            f"{100 * cell['found']['test']['accuracy']:.1f}", f"{100 * cell['found']['majority']:.1f}",
            "yes" if good[name] else "no",
            f"{np.mean(alone[name]):.1f}" if name in alone else "-",
        ]
        for cell in _of(cells, SOURCE)
    ]  # fmt: skip
    head = ("task", "rows as a source", "test accuracy", "the commonest label", "counts", "of a target's few rows")
    said = "A source counts if its accuracy is above the commonest label's by more than its standard error:"
    return [said, "", table(head, body)] if body else []


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

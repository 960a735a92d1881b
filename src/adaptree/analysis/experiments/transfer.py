"""Does `adaptree suggest` find the tasks that help? Its ranking beside what each source really brings to a target.

Each task is a source, trained on rows that grow with the size of its dataset, and a target of few rows. What a source
brings: the test accuracy of an adapter that is trained on top of the source's (`--on`) less that of one trained alone,
and by how much less it is surprised by the test labels, which is finer where few rows leave most answers alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from adaptree.analysis.compare.files import read
from adaptree.analysis.compare.files import write as write_json
from adaptree.analysis.experiments import figures
from adaptree.analysis.experiments.commands import trained
from adaptree.analysis.experiments.tasks import Asked, Task, files, kept_page, named, rows_in, whole
from adaptree.kinds import metrics

SHARE = 6
"""A source is trained on so many times the square root of its dataset's rows: sizes differ as those of datasets do."""
FEW = 200
"""Rows of a target, to train on."""
TEST = 500
METHOD = "pfeiffer:48"
EPOCHS = 6
OPTIONS = ("--method", METHOD, "--epochs", str(EPOCHS), "--max-length", "128", "--precision", "bf16")
TASKS = (
    Task("mnli", test="validation_matched"),
    Task("qqp", test="validation_from_train"),
    Task("sst2", test="validation"),
    Task("qnli", test="validation"),
    Task("rte", test="validation"),
    Task("sick", test="test"),
    Task("mrpc", test="test"),
    whole("crowdflower_airline"),
    whole("crowdflower_corporate_messaging"),
)


def run(asked: Asked) -> str:
    """Train what is missing, rank the sources for each target, and write the table."""
    out, store = asked.out, asked.out / "store"
    rows = {task.name: _rows(task, asked.data, out / "rows") for task in TASKS}
    for name, (source, _, test) in rows.items():
        trained(out / "sources" / f"{name}.json", source, name, store, ["--test", test, *OPTIONS], asked,
                train_rows=rows_in(source))  # fmt: skip
    for target in named(asked.tasks, TASKS):
        _, few, test = rows[target.name]
        _ranked(target.name, few, store, asked)
        for below in ("nothing", *(task.name for task in TASKS if task != target)):
            on = () if below == "nothing" else ("--on", below)
            path = out / target.name / f"on-{below}.json"
            trained(path, few, f"{target.name}-on/{below}", store, ["--test", test, *OPTIONS, *on], asked)
        _surprised(target.name, test, store, asked)
    return kept_page(table(out, asked.command), out)


def _rows(task: Task, data: Path, out: Path) -> tuple[Path, Path, Path]:
    """Rows for a source, others for a target, and those to test on; drawn with seed 0."""
    train, test = files(task, data, out)
    lines = train.read_text().splitlines()
    random.Random(0).shuffle(lines)
    many = min(round(SHARE * math.sqrt(len(lines))), len(lines) - FEW)
    parts = {"source": lines[FEW : FEW + many], "few": lines[:FEW], "test": test.read_text().splitlines()[:TEST]}
    paths = [out / f"{task.name}-{part}.jsonl" for part in parts]
    for path, some in zip(paths, parts.values(), strict=True):
        path.write_text("".join(f"{line}\n" for line in some))
    return paths[0], paths[1], paths[2]


def _ranked(target: str, few: Path, store: Path, asked: Asked) -> None:
    """What `suggest` says of each source, kept."""
    path = asked.out / target / "suggested.json"
    if path.is_file():
        return
    from adaptree.analysis.suggest import ranking
    from adaptree.data.source import open_data
    from adaptree.data.table import Table
    from adaptree.models.opening import base_of
    from adaptree.tasks.store import Store

    data = open_data(few)
    assert isinstance(data, Table)
    sources = [task.name for task in TASKS if task.name != target]
    found = ranking(data, sources, Store(store), base_of(asked.base, "cpu", asked.threads))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"gains": [asdict(gain) for gain in found.gains]})


def _surprised(target: str, test: Path, store: Path, asked: Asked) -> None:
    """The mean of -log p of the right label, in nats, for each adapter of a target, kept."""
    path = asked.out / target / "losses.json"
    if path.is_file():
        return
    from adaptree.models.opening import base_of
    from adaptree.tasks.store import Store
    from adaptree.training.predict import predict_rows

    asked.on_event({"event": "note", "text": f"{target}, losses"})
    base, tasks = base_of(asked.base, "cpu", asked.threads), Store(store)
    found = {}
    for below in ("nothing", *(task.name for task in TASKS if task.name != target)):
        answers = predict_rows(base.bind(tasks[f"{target}-on/{below}"]), test)
        right = [answer.scores.get(str(row["label"]), 0.0) for row, answer in answers]
        found[below] = float(-np.log(np.maximum(right, 1e-9)).mean())
    write_json(path, found)


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """The rank correlation of two rows of numbers."""
    return metrics.score("regress", np.asarray(first, dtype=float), np.asarray(second, dtype=float))["spearman"]


def measured(out: Path) -> dict[str, dict[str, dict[str, float]]]:
    """By target and source: what it really brings in points and in nats, what the probe says, and its rows."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for target in TASKS:
        folder = out / target.name
        alone, told, losses = (read(folder / f"{name}.json") for name in ("on-nothing", "suggested", "losses"))
        if not alone or not told or not losses:
            continue
        probe = {gain["task"]: gain["gain"] for gain in told["gains"]}
        for source in TASKS:
            pair = read(folder / f"on-{source.name}.json")
            if pair and source.name in probe:
                found.setdefault(target.name, {})[source.name] = {
                    "gain": 100 * (pair["metrics"]["test"]["accuracy"] - alone["metrics"]["test"]["accuracy"]),
                    "nats": losses["nothing"] - losses[source.name],
                    "probe": probe[source.name],
                    "rows": read(out / "sources" / f"{source.name}.json")["train_rows"],
                }
    return {target: pairs for target, pairs in found.items() if len(pairs) == len(TASKS) - 1}


def correlations(found: Mapping[str, Mapping[str, Mapping[str, float]]], gain: str = "gain") -> dict[str, list[float]]:
    """The rank correlation with the real gain, one for each target, by who ranks."""
    return {
        who: [
            spearman([pair[by] for pair in pairs.values()], [pair[gain] for pair in pairs.values()])
            for pairs in found.values()
        ]
        for who, by in (("suggest", "probe"), ("by size", "rows"))
    }


def chance(
    found: Mapping[str, Mapping[str, Mapping[str, float]]], gain: str = "gain", draws: int = 2000
) -> tuple[float, float]:
    """Between what values the mean rank correlation of random rankings lies, 95 times of 100."""
    rng = np.random.default_rng(0)
    means = np.mean(
        [
            [
                spearman(rng.permutation(len(pairs)).tolist(), [pair[gain] for pair in pairs.values()])
                for _ in range(draws)
            ]
            for pairs in found.values()
        ],
        axis=0,
    )
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def table(out: Path, command: str) -> str:
    """Every target whose pairs are all there."""
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
    return "\n".join([*lines, *([f"Made by `{command}`."] if command else [])]) + "\n"


def _alone(out: Path, found: Iterable[str]) -> str:
    """The test accuracy of a task's adapter of many rows, and of the one of few."""
    told = []
    for name in found:
        source, few = read(out / "sources" / f"{name}.json"), read(out / name / "on-nothing.json")
        many, less = (100 * cell["metrics"]["test"]["accuracy"] for cell in (source, few))
        told.append(f"{name} {many:.1f} ({source['train_rows']:,} rows), {less:.1f}")
    return "; ".join(told)


def _chosen(pairs: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The best source, and those that suggest and size put first."""
    return [max(pairs, key=lambda name: pairs[name][by]) for by in ("nats", "probe", "rows")]


def _best(pairs: Mapping[str, Mapping[str, float]]) -> str:
    told = [f"{pairs[name]['nats']:+.3f} ({pairs[name]['gain']:+.1f}), {name}" for name in _chosen(pairs)]
    nats, points = (np.mean([pair[gain] for pair in pairs.values()]) for gain in ("nats", "gain"))
    return " | ".join([*told, f"{nats:+.3f} ({points:+.1f})"])


def _means(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    columns = []
    for gain in ("nats", "gain"):
        chosen = [[pairs[name][gain] for name in _chosen(pairs)] for pairs in found.values()]
        every = np.mean([np.mean([pair[gain] for pair in pairs.values()]) for pairs in found.values()])
        columns.append([*np.mean(chosen, axis=0), every])
    return " | ".join(f"**{nats:+.3f}** ({points:+.1f})" for nats, points in zip(*columns, strict=True))


def _interval(values: Sequence[float]) -> str:
    drawn = np.random.default_rng(0).choice(np.asarray(values), (2000, len(values))).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"({low:+.2f} to {high:+.2f})"

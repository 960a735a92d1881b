"""The figures of the experiments."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptree.reports.plots import (
    COLOURS,
    FAINT,
    GREEN,
    LINE,
    RED,
    heatmap,
    log_scale,
    name_points,
    panels,
    save,
    style,
)


@style()
def layers(rows: Sequence[Mapping[str, Any]], path: Path, counts: Sequence[int]) -> None:
    """Draw points and time against the number of trained layers, `counts` by row; the last row trains all."""
    figure, (score, time) = panels(4.2, 3.0, 1, 2)
    for name in rows[0]["scores"]:
        score.plot(counts, [-row["behind"][name] for row in rows], color=LINE, lw=1, marker="o", ms=3)
    score.plot(counts, [_mean_gain(row) for row in rows], color=GREEN, lw=2, marker="o", label="mean of the tasks")
    score.axhline(0, color=RED, ls="--", lw=1.2)
    score.axhline(-0.5, color=RED, ls=":", lw=1)
    score.set(title="Points against all layers, test", xlabel="layers trained, from the top", xticks=counts)
    score.legend()
    time.plot(counts, [row["time"] for row in rows], color=GREEN, lw=2, marker="o")
    time.set(
        title="Training time, all layers = 1", xlabel="layers trained, from the top", xticks=counts, ylim=(0, None)
    )
    save(figure, path)


@style()
def beside(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw by how many points each further row lies above the first, task by task and on the mean; whiskers: seeds."""
    reference, *others = rows
    names = list(reference["scores"])
    figure, (axis,) = panels(6.5, 0.42 * (len(names) + 1))
    places = [*range(len(names), 0, -1), 0]
    for row in others:
        gains = [-row["behind"][name] for name in names]
        spread = [max(row["spreads"][name] or 0.0, reference["spreads"][name] or 0.0) for name in names]
        axis.errorbar(gains, places[:-1], xerr=spread, fmt="o", color=FAINT, capsize=3, lw=1)
        time = f"{row['method']}: {row['time']:.2f} of the time"
        axis.plot([_mean_gain(row)], [0], "D", color=GREEN, ms=8, label=time)
    axis.axvline(0, color=RED, ls="--", lw=1.2)
    axis.axvline(-0.5, color=RED, ls=":", lw=1)
    axis.set_yticks(places, [*names, "mean"])
    axis.set(title=f"Points against {reference['method']}, test", xlabel="points")
    axis.legend()
    save(figure, path)


def _mean_gain(row: Mapping[str, Any]) -> float:
    return -float(sum(row["behind"].values())) / len(row["behind"])


@style()
def attention(found: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw what fusions attend to: a panel for each layer, a row for each target, a column for each adapter."""
    targets = list(found)
    names = {target: [_plain(name) for name in one["adapters"]] for target, one in found.items()}
    adapters = sorted({name for some in names.values() for name in some}, key=lambda name: (name in targets, name))
    layers = found[targets[0]]["layers"]
    across = min(3, len(layers))
    most = max(weight for one in found.values() for layer in one["weights"] for weight in layer)
    size = 0.38 * len(adapters), 0.3 * len(targets)
    figure, axes = panels(*size, -(-len(layers) // across), across)
    for i, (axis, layer) in enumerate(zip(axes, layers, strict=False)):
        weights = [dict(zip(names[target], one["weights"][i], strict=True)) for target, one in found.items()]
        values = [[row.get(name, float("nan")) for name in adapters] for row in weights]
        texts = [
            ["" if value != value else f"{value:.2f}"[1:] if value < 1 else "1" for value in row] for row in values
        ]
        heatmap(axis, values, [] if i % across else targets, [] if i >= across else adapters, texts=texts, most=most)
        axis.set_title(f"layer {layer}")
    for axis in axes[len(layers) :]:
        axis.set_visible(False)
    save(figure, path)


def _plain(reference: str) -> str:
    return reference.partition("@")[0].rpartition("/")[2]


@style()
def transfer(found: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> None:
    """Draw each source's gain by the probe against its measured gain, a panel for each target."""
    across = 3
    figure, axes = panels(2.7, 2.1, -(-len(found) // across), across)
    for axis, (target, pairs) in zip(axes, found.items(), strict=False):
        axis.axhline(0, color=LINE, lw=1.2)
        axis.axvline(0, color=LINE, lw=1.2)
        axis.plot([p["probe"] for p in pairs.values()], [p["nats"] for p in pairs.values()], "o", color=GREEN, ms=5)
        axis.set_title(target.removeprefix("crowdflower_"))
        axis.margins(0.18)
        names = [name.removeprefix("crowdflower_").partition("_")[0] for name in pairs]
        points = [(pair["probe"], pair["nats"], name) for pair, name in zip(pairs.values(), names, strict=True)]
        name_points(axis, points, [{"fontsize": 6}] * len(points))
    for axis in axes[len(found) :]:
        axis.set_visible(False)
    for axis in axes[::across]:
        axis.set_ylabel("nats gained on top of it")
    for axis in axes[len(found) - across : len(found)]:
        axis.set_xlabel("what the probe of suggest says")
    save(figure, path)


@style()
def lowdata(curves: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Draw the mean accuracy of each way against the number of rows a label."""
    figure, (axis,) = panels(6.5, 3.6)
    colours = {"contrastive": GREEN, "setfit": RED}
    for way, curve in curves.items():
        sizes = sorted(curve)
        weight = 2.2 if way in colours else 1.2
        axis.plot(
            sizes, [curve[size] for size in sizes], color=colours.get(way), lw=weight, marker="o", ms=4, label=way
        )
    axis.set_xscale("log", base=2)
    ticks = sorted({size for curve in curves.values() for size in curve})
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set(title="Mean test accuracy over tasks", xlabel="rows a label", ylabel="points")
    axis.legend()
    save(figure, path)


@style()
def improve(curves: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Draw the mean accuracy against the rows that were labelled after the start; `curves` are by strategy, learner."""
    learners = list(dict.fromkeys(name.partition(", ")[2] for name in curves))
    colours = {"random": FAINT, "diverse": GREEN, "uncertain": RED}
    figure, axes = panels(4.6, 3.4, 1, len(learners))
    for axis, learner in zip(axes, learners, strict=True):
        for name, curve in curves.items():
            strategy, _, own = name.partition(", ")
            if own == learner:
                colour, weight = colours.get(strategy), 2.2 if strategy in colours else 1.2
                axis.plot(list(curve), list(curve.values()), color=colour, lw=weight, marker="o", ms=4, label=strategy)
        axis.set(title=learner, xlabel="rows labelled after the start", xticks=list(next(iter(curves.values()))))
        axis.legend()
    axes[0].set_ylabel("mean test accuracy, points")
    save(figure, path)


@style()
def bands(families: Mapping[str, Sequence[Any]], path: Path, *, title: str) -> None:
    """Draw each family's medians against trained parameters, with a band, or a bar where it has one point.

    A point has `trained`, `median`, `low` and `high`.
    """
    figure, (axis,) = panels(7.5, 4.2)
    for (name, points), colour in zip(families.items(), itertools.cycle((*COLOURS, FAINT)), strict=False):
        points = sorted(points, key=lambda point: point.trained)
        x, y = [point.trained for point in points], [point.median for point in points]
        low, high = [point.low for point in points], [point.high for point in points]
        if len(points) > 1:
            axis.fill_between(x, low, high, color=colour, alpha=0.13, lw=0)
            axis.plot(x, y, color=colour, lw=2, marker="o", ms=4, label=name)
        else:
            bar = [[y[0] - low[0]], [high[0] - y[0]]]
            axis.errorbar(x, y, yerr=bar, fmt="D", color=colour, capsize=3, lw=1, ms=5, label=name)
    axis.axhline(0, color=LINE, lw=1.2, zorder=1)
    log_scale(axis)
    axis.set(title=title, xlabel="trained parameters", ylabel="points")
    axis.legend(loc="lower right")
    save(figure, path)


@style()
def spreads(
    curves: Mapping[str, Mapping[float, Sequence[float]]],
    path: Path,
    *,
    title: str,
    xlabel: str,
    lines: Mapping[str, float] | None = None,
) -> None:
    """Draw the mean of the scores at each x, on a log scale, with their standard deviation as a bar.

    `lines` are scores to set beside the curves of the same names, as dashed lines.
    """
    figure, (axis,) = panels(6.5, 3.4)
    for (name, curve), colour in zip(curves.items(), itertools.cycle(COLOURS), strict=False):
        xs = sorted(curve)
        means = [statistics.fmean(curve[x]) for x in xs]
        spread = [statistics.stdev(curve[x]) if len(curve[x]) > 1 else 0.0 for x in xs]
        axis.errorbar(xs, means, yerr=spread, color=colour, lw=1.8, marker="o", ms=4, capsize=3, label=name)
        if lines and name in lines:
            axis.axhline(lines[name], color=colour, ls="--", lw=1.2, label=f"{name}, full fine-tuning")
    log_scale(axis)
    measured = sorted({x for curve in curves.values() for x in curve})
    axis.set_xticks(measured, [f"{x:g}" for x in measured])
    axis.minorticks_off()
    axis.set(title=title, xlabel=xlabel, ylabel="points")
    axis.legend()
    save(figure, path)


@style()
def forgetting(panels_: Mapping[str, Mapping[str, Mapping[int, float]]], arrivals: Sequence[str], path: Path) -> None:
    """Draw the score of each task after each arrival, a panel for each way; a ring marks the task's own arrival."""
    figure, axes = panels(4.4, 3.2, 1, len(panels_))
    ends = [score for tasks in panels_.values() for curve in tasks.values() for score in curve.values()]
    for axis, (way, tasks) in zip(axes, panels_.items(), strict=True):
        for (name, curve), colour in zip(tasks.items(), itertools.cycle(COLOURS), strict=False):
            at = sorted(curve)
            axis.plot(at, [curve[i] for i in at], color=colour, lw=1.8, marker="o", ms=4, label=_without_source(name))
            axis.plot(at[:1], [curve[at[0]]], "o", ms=9, mfc="none", mew=1.4, color=colour)
        axis.set(title=way, ylim=(min(ends) - 4, max(ends) + 4))
        names = [_without_source(name).replace("_", "\n") for name in arrivals]
        axis.set_xticks(range(1, len(arrivals) + 1), names, fontsize=7)
        axis.set_xlabel("after this task was trained")
    axes[0].set_ylabel("test accuracy, points")
    axes[-1].legend(loc="upper left", bbox_to_anchor=(1.02, 1))
    save(figure, path)


def _without_source(name: str) -> str:
    return name.removeprefix("crowdflower_")


@style()
def masks(
    shares: Mapping[str, Mapping[tuple[str, ...], float]], layers: Sequence[str], kinds: Sequence[str], path: Path
) -> None:
    """Draw how often weights are kept by layer and kind, 1 being as often as in a uniform mask; a panel for each mask.

    Twice as often is as dark as half as often; where a layer has no such weights the place stays blank.
    """
    across = min(2, len(shares))
    figure, axes = panels(0.62 * len(kinds), 0.34 * len(layers), -(-len(shares) // across), across)
    most = max(abs(math.log2(share)) for mask in shares.values() for share in mask.values() if share)
    for i, (axis, (name, mask)) in enumerate(zip(axes, shares.items(), strict=False)):
        found = [[mask.get((layer, kind), math.nan) for kind in kinds] for layer in layers]
        values = [[math.log2(share) if share else -most for share in row] for row in found]
        texts = [["" if math.isnan(share) else _times(share) for share in row] for row in found]
        heatmap(axis, values, [] if i % across else layers, [] if i >= across else kinds, texts=texts, most=most)
        axis.set_title(name)
    for axis in axes[len(shares) :]:
        axis.set_visible(False)
    save(figure, path)


def _times(share: float) -> str:
    return f"{share:.0f}" if share >= 9.95 or not share else f"{share:.1f}"


@style()
def written(ways: Mapping[str, Mapping[str, float]], metrics: Sequence[str], path: Path) -> None:
    """Draw the scores of several ways to write, from 0 to 100, a panel for each metric."""
    figure, axes = panels(3.0, 0.4 * len(ways) + 0.6, 1, len(metrics))
    places = list(range(len(ways), 0, -1))
    for i, (axis, metric) in enumerate(zip(axes, metrics, strict=True)):
        values = [100 * scores[metric] for scores in ways.values()]
        axis.barh(places, values, color=[GREEN if "(" in way or ":" in way or way == "full" else FAINT for way in ways])
        axis.set_yticks(places, list(ways) if i == 0 else [""] * len(ways))
        axis.set(title=metric.replace("_", "-"), xlim=(0, 100))
    save(figure, path)

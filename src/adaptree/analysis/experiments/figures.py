"""The figures of the experiments that compare one way of tuning with another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptree.reports.plots import DPI, FRONT, FULL


def layers(rows: Sequence[Mapping[str, Any]], path: Path, counts: Sequence[int]) -> None:
    """Points and time against the layers trained, `counts` of them in each row; the last row is all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    score, time = figure.subplots(1, 2)
    for name in rows[0]["scores"]:
        score.plot(counts, [-row["behind"][name] for row in rows], color="#c3cad2", lw=1, marker="o", ms=3)
    score.plot(counts, [_mean_gain(row) for row in rows], color=FRONT, lw=2, marker="o", label="mean of the tasks")
    score.axhline(0, color=FULL, ls="--", lw=1.2)
    score.axhline(-0.5, color=FULL, ls=":", lw=1)
    score.set(title="Points against all layers, test", xlabel="layers trained, from the top")
    score.legend(frameon=False, fontsize=8)
    time.plot(counts, [row["time"] for row in rows], color=FRONT, lw=2, marker="o")
    time.set(title="Training time, all layers = 1", xlabel="layers trained, from the top", ylim=(0, None))
    for axis in (score, time):
        axis.grid(alpha=0.3)
        axis.set_xticks(counts)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=DPI)


def _mean_gain(row: Mapping[str, Any]) -> float:
    return -float(sum(row["behind"].values())) / len(row["behind"])


def beside(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """How many points each further row lies above the first, task by task and on the mean; whiskers: over seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    reference, *others = rows
    names = list(reference["scores"])
    figure = Figure(figsize=(8.5, 1.2 + 0.42 * (len(names) + 1)), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    places = [*range(len(names), 0, -1), 0]
    for row in others:
        gains = [-row["behind"][name] for name in names]
        spread = [max(row["spreads"][name] or 0.0, reference["spreads"][name] or 0.0) for name in names]
        axis.errorbar(gains, places[:-1], xerr=spread, fmt="o", color="#7d8895", capsize=3, lw=1)
        time = f"{row['method']}: {row['time']:.2f} of the time"
        axis.plot([_mean_gain(row)], [0], "D", color=FRONT, ms=8, label=time)
    axis.axvline(0, color=FULL, ls="--", lw=1.2)
    axis.axvline(-0.5, color=FULL, ls=":", lw=1)
    axis.set_yticks(places, [*names, "mean"])
    axis.set(title=f"Points against {reference['method']}, test", xlabel="points")
    axis.legend(frameon=False, fontsize=8)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=DPI)


def attention(found: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """What fusions attend to: a panel for each layer, a row for each target, a column for each adapter."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    targets = list(found)
    plain = {name: [_plain(each) for each in told["adapters"]] for name, told in found.items()}
    adapters = sorted({each for names in plain.values() for each in names}, key=lambda name: (name in targets, name))
    layers = found[targets[0]]["layers"]
    columns = min(3, len(layers))
    rows = -(-len(layers) // columns)
    figure = Figure(figsize=(1.5 + 3.6 * columns, 1.0 + (0.9 + 0.33 * len(targets)) * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    most = max(weight for told in found.values() for layer in told["weights"] for weight in layer)
    drawn: Any = None
    for number, panel in enumerate(panels.flat):
        if number >= len(layers):
            panel.set_visible(False)
            continue
        here = {name: dict(zip(plain[name], told["weights"][number], strict=True)) for name, told in found.items()}
        weights = [[here[name].get(each, float("nan")) for each in adapters] for name in targets]
        drawn = panel.imshow(weights, cmap="Greens", vmin=0, vmax=most, aspect="auto")
        panel.set_title(f"layer {layers[number]}", fontsize=9)
        panel.set_xticks(range(len(adapters)), adapters, rotation=90, fontsize=8)
        panel.set_yticks(range(len(targets)), targets, fontsize=8)
    figure.colorbar(drawn, ax=panels, shrink=0.8, label="mean attention")
    figure.savefig(path, dpi=DPI)


def _plain(reference: str) -> str:
    return reference.partition("@")[0].rpartition("/")[2]


def transfer(found: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> None:
    """What the probe says of a source against what it brings, a panel for each target."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = 3
    down = -(-len(found) // across)
    figure = Figure(figsize=(3.2 * across, 2.6 * down), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, squeeze=False).flat
    for panel, (target, pairs) in zip(panels, found.items(), strict=False):
        panel.axhline(0, color="#c3cad2", lw=1)
        panel.axvline(0, color="#c3cad2", lw=1)
        panel.plot([p["probe"] for p in pairs.values()], [p["nats"] for p in pairs.values()], "o", color=FRONT, ms=5)
        for name, pair in pairs.items():
            short = name.removeprefix("crowdflower_").partition("_")[0]
            panel.annotate(short, (pair["probe"], pair["nats"]), xytext=(4, 2), textcoords="offset points", fontsize=6)
        panel.set_title(target.removeprefix("crowdflower_"), fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=7)
        panel.margins(0.18)
    for panel in list(panels):
        panel.set_visible(False)
    figure.supxlabel("what the probe of suggest says", fontsize=9)
    figure.supylabel("nats gained on top of the source", fontsize=9)
    figure.savefig(path, dpi=DPI)

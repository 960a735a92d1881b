"""Several comparisons as one table: a column per task, the mean, and each method's price beside a reference."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptree.analysis.compare.choose import pareto
from adaptree.analysis.compare.files import writing
from adaptree.analysis.compare.report import how_chosen, part_of
from adaptree.analysis.experiments.setup import write_page
from adaptree.reports import tradeoff as drawing

Result = Mapping[str, Any]
Row = dict[str, Any]


def rows(results: Sequence[Result], reference: str) -> list[Row]:
    """Return one row per method that finished on every task: scores in points, time as a share of the reference's.

    `behind` is how many points it lies below the reference on each task.
    """
    names = [result["title"] for result in results]
    tables = [{row["label"]: row for row in result["methods"] if "scores" in row} for result in results]
    found = []
    for method in dict.fromkeys(row["label"] for result in results for row in result["methods"]):
        if not all(method in table for table in tables):
            continue
        of = [table[method] for table in tables]
        beside = [table.get(reference) for table in tables]
        scores = [_points(row, result) for row, result in zip(of, results, strict=True)]
        row = {
            "method": method,
            "family": of[0]["family"],
            "outside": of[0]["outside"],
            "trained": statistics.fmean(row["trained"] for row in of),
            "base": of[0]["parameters"]["base"] if not of[0]["outside"] else 0,
            "percent": statistics.fmean(row["trained_percent"] or 0 for row in of),
            "scores": dict(zip(names, scores, strict=True)),
            "spreads": {
                name: None if (s := row["scores"][part_of(result)]["spread"]) is None else 100 * s
                for name, row, result in zip(names, of, results, strict=True)
            },
            "mean": statistics.fmean(scores),
        }
        if all(beside):
            whole = [_points(row, result) for row, result in zip(beside, results, strict=True) if row]
            row["behind"] = {name: w - s for name, w, s in zip(names, whole, scores, strict=True)}
            row["time"] = statistics.fmean(r["seconds"] / b["seconds"] for r, b in zip(of, beside, strict=True) if b)
        found.append(row)
    return found


def tradeoff(made: Sequence[Row], path: Path, *, title: str, tasks: int) -> None:
    """Draw the mean over tasks against trained parameters, in the figure that `compare` draws of one task."""
    inside = [row for row in made if not row["outside"]]
    front = pareto([(row["trained"], row["mean"]) for row in inside])
    points = [
        {"label": row["method"], "family": row["family"], "trained": row["trained"], "mean": row["mean"] / 100,
         "spread": None, "front": i in front, "hover": {}}
        for i, row in enumerate(inside)
    ]  # fmt: skip
    titles = {"full": "full fine-tuning", "tfidf": "TF-IDF"}
    lines = [
        {"name": row["method"], "label": titles[row["method"]], "mean": row["mean"] / 100}
        for row in made
        if row["method"] in titles
    ]
    metric = f"mean test score over {tasks} tasks"
    drawing.tradeoff(points, lines, path.parent, metric=metric, title=title, base=inside[0]["base"], page=False)


def _points(row: Mapping[str, Any], result: Result) -> float:
    return 100 * float(row["scores"][part_of(result)]["mean"])


def write(
    results: Sequence[Result],
    out: Path,
    *,
    title: str,
    reference: str,
    command: str,
    draw: Callable[[Sequence[Row], Path], None],
) -> str:
    """Write table.md and figure.png into `out`; return the page."""
    made = rows(results, reference)
    if made:
        with writing(out / "figure.png"):
            draw(made, out / "figure.png")
    return write_page(markdown(results, made, title=title, reference=reference), out, command)


def markdown(results: Sequence[Result], made: Sequence[Row], *, title: str, reference: str) -> list[str]:
    """Return the lines of the page: a row per method, a column per task, the best of each in bold."""
    names = [result["title"] for result in results]
    shown = [f"{result['title']}, {result['metric']}" for result in results]
    best = {name: max((row["scores"][name] for row in made), default=0.0) for name in names}
    heads = ["method", *shown, "**mean**", f"below {reference}", "% of base", f"time / {reference}"]
    body = []
    for row in made:
        cells = [_cell(row["scores"][name], row["spreads"][name], best[name]) for name in names]
        behind = statistics.fmean(row["behind"].values()) if "behind" in row else None
        share = "-" if row["outside"] else f"{row['percent']:.3g}"
        time = f"{row['time']:.2f}" if "time" in row and not row["outside"] else "-"
        below = "-" if behind is None else f"{behind:+.1f}"
        body.append([row["method"], *cells, f"**{row['mean']:.1f}**", below, share, time])
    seeds = {result["title"]: len(result["seeds"]) for result in results}
    several = [f"{name} ({count})" for name, count in seeds.items() if count > 1]
    return [
        f"# {title}",
        "",
        "Test scores in points. "
        + how_chosen([row for result in results for row in result["methods"]], tested=True)
        + " "
        + (f"Means over seeds: {', '.join(several)}, ± their standard deviation"
           + ("; one seed elsewhere. " if len(several) < len(seeds) else ". ") if several else
           "One seed: a difference of a point or two on one task says nothing. ")
        + "Rows to train on, to validate, to test: "
        + "; ".join(f"{r['title']} {r['data']['train']:,}, {r['data']['validation']:,}, {r['data'].get('test', 0):,}"
                    for r in results) + ".",
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(cells)} |" for cells in body),
        "",
        "![figure](figure.png)",
        "",
    ]  # fmt: skip


def _cell(score: float, spread: float | None, best: float) -> str:
    text = f"{score:.1f}" + ("" if spread is None else f" ± {spread:.1f}")
    return f"**{text}**" if score == best else text

"""From finished cells to a table: the best setting on validation, its test scores, the Pareto front."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.analysis.compare.cells import Cell, method_of, short_spelling
from adaptree.analysis.compare.files import digest as digest_of
from adaptree.analysis.compare.files import write
from adaptree.data.events import Listener
from adaptree.data.read import Source
from adaptree.kinds import metrics
from adaptree.models.evaluate import evaluate
from adaptree.models.opening import open_task

if TYPE_CHECKING:
    from adaptree.models.base import Base


def choose(done: Sequence[Cell], metric: str) -> dict[str, Any]:
    """Return each method's best setting on validation, among those that most seeds finished.

    `best_size` says whether a method is the best of those that differ only in their options: houlsby:8, houlsby:64.
    """
    tried: dict[str, dict[str, list[Cell]]] = {}
    for cell in done:
        setting = {key: value for key, value in cell["asked"]["settings"].items() if key in ("lr", "epochs")}
        group = tried.setdefault(cell["asked"]["method"], {}).setdefault(json.dumps(setting), [])
        if cell["state"] == "done":
            group.append(cell)
    sign = -1 if metric in metrics.LOWER_IS_BETTER else 1
    choices: dict[str, Any] = {}
    for method, groups in tried.items():
        means = {
            setting: statistics.fmean(cell["found"]["metrics"]["validation"][metric] for cell in group)
            for setting, group in groups.items()
            if group
        }
        if means:
            best = max(means, key=lambda s: (len(groups[s]), sign * means[s]))
            choices[method] = {
                "setting": json.loads(best),
                "validation": means[best],
                "tried": [{**json.loads(s), "validation": mean, "seeds": len(groups[s])} for s, mean in means.items()],
            }
    for method, choice in choices.items():
        family = [m for m in choices if _family(m) == _family(method)]
        top = max(family, key=lambda m: sign * float(choices[m]["validation"]))
        choice["best_size"] = top == method
    return choices


def chosen(choices: Mapping[str, Any], done: Sequence[Cell], method: str) -> list[Cell]:
    """Return the finished cells of a method's chosen setting."""
    return [
        cell
        for cell in done
        if cell["state"] == "done"
        and cell["asked"]["method"] == method
        and {key: cell["asked"]["settings"][key] for key in ("lr", "epochs")} == choices[method]["setting"]
    ]


def score_test(
    choices: Mapping[str, Any],
    done: Sequence[Cell],
    base: Base,
    test: Source,
    digest: str,
    reading: Mapping[str, Any],
    folder: Path,
    on_event: Listener,
) -> None:
    """Score the chosen cells' tasks on the test file, and keep the scores in the cells by the file's digest."""
    from adaptree.tasks.store import Store

    store = Store(folder / "store")
    cells = [cell for method in choices for cell in chosen(choices, done, method) if digest not in cell["tests"]]
    if cells:
        text = f"the choices are written; now {len(cells)} chosen cells are scored on the test file."
        on_event({"event": "note", "text": text})
    for cell in cells:
        scored = evaluate(open_task(store, cell["found"]["task"], base=base), test, **reading)
        cell["tests"][digest] = {"metrics": scored["metrics"]["test"], "intervals": scored["intervals"]["test"]}
        write(folder / "cells" / f"{digest_of(cell['asked'])}.json", cell)


def summary(
    methods: Sequence[str], done: Sequence[Cell], choices: Mapping[str, Any], metric: str, test: str | None
) -> list[dict[str, Any]]:
    """Return one row per method, in their order: scores over seeds, price, setting, and whether it is on the front."""
    rows: list[dict[str, Any]] = []
    for method in methods:
        errors = [
            {"error": cell["error"], **cell["asked"]["settings"]}
            for cell in done
            if cell["asked"]["method"] == method and cell["state"] == "failed"
        ]
        row: dict[str, Any] = {
            "method": method,
            "label": short_spelling(method),
            "family": _family(method),
            "failed": errors,
        }
        if method in choices:
            cells = chosen(choices, done, method)
            scores = {"validation": [cell["found"]["metrics"]["validation"][metric] for cell in cells]}
            if test is not None:
                scores["test"] = [cell["tests"][test]["metrics"][metric] for cell in cells]
            found = cells[0]["found"]
            row |= {
                "setting": {key: found["settings"].get(key) for key in ("lr", "epochs")},
                "tried": len(choices[method]["tried"]),
                "best_size": choices[method]["best_size"],
                "seeds": len(cells),
                "scores": {part: _spread(values) for part, values in scores.items()},
                "parameters": found["parameters"],
                "trained": found["parameters"]["trained"],
                "trained_percent": found["trained_percent"],
                "bytes": found["bytes"],
                **{
                    key: _mean([cell["found"][key] for cell in cells])
                    for key in ("seconds", "memory", "peak_memory", "base_memory")
                },
                "outside": method_of(method)[0].standalone,
            }
        rows.append(row)
    part = "test" if test is not None else "validation"
    sign = -1 if metric in metrics.LOWER_IS_BETTER else 1
    inside = [row for row in rows if "scores" in row and not row["outside"]]
    front = pareto([(row["trained"], sign * row["scores"][part]["mean"]) for row in inside])
    for row in rows:
        row["pareto"] = False
    for i in front:
        inside[i]["pareto"] = True
    return rows


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the (price, score) points that no other beats: as cheap and better, or cheaper."""
    return [
        i
        for i, (price, score) in enumerate(points)
        if not any(p <= price and s >= score and (p < price or s > score) for p, s in points)
    ]


def _family(method: str) -> str:
    """Return a method's name without its options."""
    return method.partition("(")[0]


def _spread(values: Sequence[float]) -> dict[str, Any]:
    """Return mean and standard deviation (n - 1) over seeds; one seed has no deviation."""
    return {
        "mean": statistics.fmean(values),
        "spread": statistics.stdev(values) if len(values) > 1 else None,
        "values": list(values),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None

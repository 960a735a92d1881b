"""A comparison for people: the table, and the figure of score against trained parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adaptree.analysis.compare.cells import method_of
from adaptree.analysis.compare.files import writing
from adaptree.data.events import Listener
from adaptree.reports.markdown import code, plain
from adaptree.reports.markdown import table as markdown_table
from adaptree.reports.tradeoff import tradeoff

MOST_WIDE = 400
"""Letters of a method, or of an error, that a table shows."""
BASELINES = {"tfidf": "TF-IDF", "majority": "majority class"}


def part_of(result: Mapping[str, Any]) -> str:
    """Return the part that methods are judged by: test where there is one, else validation."""
    return "test" if "test" in result["data"] else "validation"


def table(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the rows to print: each method with its scores and price, then the baselines."""
    parts = _parts(result)
    rows = []
    for row in result["methods"]:
        shown = {"method": ("● " if row["pareto"] else "  ") + row["label"]}
        if "scores" in row:
            rows.append(shown | {part: _score(row["scores"][part]) for part in parts} | _price(row))
        else:
            rows.append(dict.fromkeys(titles(result), "") | shown | dict.fromkeys(parts, "failed"))
    measured = {row["family"] for row in result["methods"] if "scores" in row}
    for name, title in BASELINES.items():
        if name in result["floors"] and name not in measured:
            scores = {part: f"{result['floors'][name][part]:.4f}" for part in parts}
            rows.append(dict.fromkeys(titles(result), "") | {"method": f"  {title}"} | scores)
    return rows


def titles(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the table's columns, each with its heading."""
    return {
        "method": "method",
        **{part: f"{part} {result['metric']}" for part in _parts(result)},
        "trained": "trained",
        "percent": "% of base",
        "disk": "on disk",
        "seconds": "seconds",
        "memory": "memory",
        "lr": "lr",
        "epochs": "epochs",
    }


def failures(result: Mapping[str, Any]) -> list[str]:
    """Return what failed and why, one line for each method and reason."""
    lines = []
    for row in result["methods"]:
        for error in dict.fromkeys(failed["error"] for failed in row["failed"]):
            count = sum(failed["error"] == error for failed in row["failed"])
            lines.append(f"{row['label']}: {count} failed: {error}")
    return lines


def _parts(result: Mapping[str, Any]) -> list[str]:
    return ["validation", "test"] if part_of(result) == "test" else ["validation"]


def _price(row: Mapping[str, Any]) -> dict[str, str]:
    outside = row["outside"]
    return {
        "trained": f"{row['trained']:,}",
        "percent": "-" if outside else f"{row['trained_percent']:.3f}",
        "disk": _bytes(row["bytes"]),
        "seconds": f"{row['seconds']:.1f}",
        "memory": "-" if row["memory"] is None else _bytes(row["memory"]),
        "lr": "-" if outside else f"{row['setting']['lr']:g}",
        "epochs": "-" if outside else f"{row['setting']['epochs']}",
    }


def write_all(result: Mapping[str, Any], folder: Path, on_event: Listener) -> None:
    """Write table.md and the figures; without plotly a note says that figure.html is left out."""
    with writing(folder / "table.md"):
        (folder / "table.md").write_text(markdown(result))
    points = [point(row, result) for row in result["methods"] if "scores" in row and not row["outside"]]
    if not points:
        on_event({"event": "note", "text": "no method came through, so there is no figure."})
        return
    page = find_spec("plotly") is not None
    if not page:
        on_event({"event": "note", "text": "figure.html is left out: pip install 'adaptree[compare]'"})
    first = next(row for row in result["methods"] if "scores" in row)
    part, data = part_of(result), result["data"]
    with writing(folder / "figure.png"):
        tradeoff(
            points,
            lines(result),
            folder,
            metric=f"{part} {result['metric'].replace('_', ' ')}",
            title=f"{result['title']} ({data['train']:,} training rows)",
            base=first["parameters"]["base"],
            page=page,
        )


def point(row: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method as a point of the figure."""
    score = row["scores"][part_of(result)]
    price = _price(row)
    hover = {f"{result['metric']}, {part}": _score(found) for part, found in row["scores"].items()}
    hover |= {
        "trained": f"{price['trained']} parameters, {price['percent']} % of the base",
        "on disk": price["disk"],
        "training": f"{price['seconds']} s",
        "peak memory above the base": price["memory"],
        "setting": f"lr {price['lr']}, {price['epochs']} epochs",
        "seeds": str(row["seeds"]),
    }
    return {
        "label": row["label"],
        "family": row["family"],
        "trained": row["trained"],
        "mean": score["mean"],
        "spread": score["spread"],
        "front": row["pareto"],
        "hover": hover,
    }


def lines(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the figure's horizontal lines: full fine-tuning and the baselines; tfidf as a method replaces its own."""
    part = part_of(result)
    found = {row["family"]: row["scores"][part]["mean"] for row in result["methods"] if "scores" in row}
    means = {name: scores[part] for name, scores in result["floors"].items()}
    means |= {name: mean for name, mean in found.items() if name in ("full", "tfidf")}
    titles = {"full": "full fine-tuning", **BASELINES}
    return [{"name": name, "label": title, "mean": means[name]} for name, title in titles.items() if name in means]


def markdown(result: Mapping[str, Any]) -> str:
    """Return the table as a Markdown page, with what is needed to make it again."""
    data, heads = result["data"], titles(result)
    sample = f" of {data['of']:,}, a sample with seed 0" if data["train"] < data["of"] else ""
    test = f", {data['test']:,} to test" if "test" in data else ""
    split = "split with seed 0" if data["split_seed"] == 0 else "validated on a file of its own"
    body = [[plain(row.get(key, ""), MOST_WIDE) for key in heads] for row in table(result)]
    seeds = f"Seeds {', '.join(map(str, result['seeds']))}: mean ± standard deviation."
    if len(result["seeds"]) == 1:
        seeds = f"One seed, {result['seeds'][0]}: differences of a point or two say nothing."
    page = [
        f"# {plain(result['title'])}",
        "",
        f"{data['train']:,} rows to train on{sample}, {data['validation']:,} to validate{test}; {split}.",
        f"{seeds} {how_chosen(result['methods'], tested=bool(test))}",
        "● is on the Pareto front: nothing that trains as few parameters scores better.",
        "Memory is the peak of a process of its own, above what it held once the base was loaded.",
        "",
        markdown_table([plain(title) for title in heads.values()], body),
        "",
        *(f"- {plain(line, MOST_WIDE)}" for line in failures(result)),
        "",
        "![score against trained parameters](figure.png)",
        "",
        *([f"Made by {code(result['command'])}", ""] if result["command"] else []),
        f"{result['date']}; " + ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
    ]
    return "\n".join(page) + "\n"


def how_chosen(methods: Sequence[Mapping[str, Any]], *, tested: bool) -> str:
    """Return a sentence on what was chosen on validation, and one on methods that are trained in two stages."""
    before = " before the test file was opened" if tested else ""
    most = max((row.get("tried", 1) for row in methods), default=1)
    if most > 1:
        text = f"Settings, of up to {most} tried for a method, were chosen on validation{before}."
    else:
        text = f"One setting was tried for each method; its best epoch was chosen on validation{before}."
    twice = dict.fromkeys(row["label"] for row in methods if method_of(row["method"])[0].stages > 1)
    return f"{text} {', '.join(twice)}: two stages, so twice the epochs." if twice else text


def _score(found: Mapping[str, Any]) -> str:
    spread = found["spread"]
    return f"{found['mean']:.4f}" + ("" if spread is None else f" ± {spread:.4f}")


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"

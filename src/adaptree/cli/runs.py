"""What the commands that train share: how they resume, report and end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.cli.show import Format, emit, out, say, size
from adaptree.errors import TrainingError

if TYPE_CHECKING:
    from adaptree.tasks.record import Record


def typed_command() -> str:
    """Return the command line that was typed."""
    return shlex.join(["adaptree", *sys.argv[1:]])


def resume_command() -> str:
    """Return the command that goes on with this run."""
    return shlex.join(["adaptree", *(word for word in sys.argv[1:] if word != "--resume"), "--resume"])


@contextmanager
def stoppable(folder: Path) -> Iterator[None]:
    """If Ctrl-C leaves something in a run's folder, say how to go on with it."""
    try:
        yield
    except KeyboardInterrupt:
        from adaptree.training.checkpoint import kept

        if not (what := kept(folder)):
            raise
        raise TrainingError(f"stopped; {what} is kept.", hint=f"Go on with: {resume_command()}") from None


@contextmanager
def keeping_cells(folder: Path) -> Iterator[None]:
    """If Ctrl-C ends a comparison or an experiment, say that its finished cells are kept."""
    try:
        yield
    except KeyboardInterrupt:
        raise TrainingError(
            f"stopped; finished cells are kept in '{folder}'.", hint="Run the same command to go on."
        ) from None


def finish(records: Sequence[Record], quiet: bool) -> int:
    """Print what a user should know of a run's tasks beside their scores; return the exit code."""
    for record in records:
        for warning in record.extra.get("warnings", ()):
            say(f"⚠ {record.reference}: {warning}", quiet)
        if record.version > 1:
            say(f"'{record.name}' exists already: this is version {record.version}, older ones are kept.", quiet)
    settings = records[0].settings
    if settings.get("finished", True):
        return 0
    say(f"✘ stopped: the best so far (epoch {settings['best_epoch']}) is kept.  Go on with: {resume_command()}")
    return 1


def report(result: dict[str, Any], record: Record) -> None:
    """Print a trained task for people: scores beside the baselines, and the price."""
    from adaptree.reports.card import chosen_on_validation

    parts = list(result["metrics"])
    part = "test" if "test" in parts else parts[0]
    rows = []
    for key in result["metrics"][part]:
        row: dict[str, Any] = {"metric": key}
        row |= {name: result["metrics"][name][key] for name in parts}
        interval = result["intervals"][part].get(key)
        row["interval"] = None if interval is None else "{:.4f} - {:.4f}".format(*interval)
        row |= {name: scores.get(key) for name, scores in result["baselines"].items()}
        rows.append(row)
    titles = {"metric": "", **{name: name for name in parts}, "interval": f"95 % of {part}"}
    emit(rows, Format.table, titles | {name: name for name in result["baselines"]})
    if also := chosen_on_validation(record):
        out().print(f"{also}: --test FILE gives a score on rows that chose nothing.", soft_wrap=True)
    price = result["parameters"]
    share = 100 * price["trained"] / price["base_without_embeddings"]
    out().print(
        f"{result['task']}@{result['version']}: {result['method']} on {result['base']}; "
        f"{price['trained']:,} parameters trained (adapters {price['adapters']:,}, norms {price['norms']:,}, "
        f"head {price['head']:,}): {result['trained_percent']:.2f} % of the base, {share:.2f} % without embeddings; "
        f"{size(result['bytes'])}, {result['seconds']:.0f} s",
        soft_wrap=True,
    )


def report_joint(results: Sequence[dict[str, Any]], record: Record) -> None:
    """Print the tasks of a joint training for people: a line for each, and what they share."""
    from adaptree.reports.card import chosen_on_validation

    rows = []
    for result in results:
        metric = next(iter(result["metrics"]["validation"]))
        low, high = result["intervals"]["validation"].get(metric, (None, None))
        row = {"task": f"{result['task']}@{result['version']}", "kind": result["kind"], "metric": metric}
        row["validation"] = result["metrics"]["validation"][metric]
        row["interval"] = None if low is None else f"{low:.4f} - {high:.4f}"
        row |= {name: result["baselines"].get(name, {}).get(metric) for name in ("majority", "tfidf")}
        row["head"] = result["parameters"]["head"]
        rows.append(row)
    emit(rows, Format.table, {key: key for key in rows[0]} | {"interval": "95 % of validation"})
    if also := chosen_on_validation(record):
        out().print(f"{also}: `adaptree evaluate TASK DATA` scores each on other rows.", soft_wrap=True)
    first = results[0]
    shared = first["parameters"]["trained"] - first["parameters"]["head"]
    out().print(
        f"{first['method']} on {first['base']}, shared by {len(results)} tasks: {shared:,} parameters beside the "
        f"heads; {size(sum(result['bytes'] for result in results))} in all, {first['seconds']:.0f} s",
        soft_wrap=True,
    )

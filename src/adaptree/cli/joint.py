"""adaptree train --joint"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adaptree.cli import runs
from adaptree.cli.show import Format, Progress, emit, out, say, size
from adaptree.errors import UsageError

REASONS = {
    "--validation": "a fifth of each file is held out, and one more file cannot be for all of them",
    "--test": "one file cannot be for all of the tasks; evaluate each on its own",
    "--fast": "it is tuned for one task",
    "--search": "its trials are of one task",
}


def train_jointly(
    files: Sequence[str],
    refused: Mapping[str, Any],
    progress: Progress,
    form: Format,
    quiet: bool,
    **asked: Any,
) -> int:
    """Train several files at once and tell of each task; `refused` are options that one task alone can have."""
    from adaptree import api
    from adaptree.training import distributed, joint

    for option, value in refused.items():
        if value:
            raise UsageError(f"{option} does not go with --joint: {REASONS[option]}.", hint=f"Leave out {option}.")
    with runs.stoppable(joint.folder_of(asked["store"], asked["name"])), progress:
        found = joint.train(files, on_event=progress, **asked)
    distributed.dismiss()
    if distributed.rank():  # one of several processes, and not the one that speaks
        return 0
    results = [api.result(bound.task) for bound in found]
    if form is Format.table:
        report(results)
    else:
        emit(results, form)
    records = [bound.task.record for bound in found]
    code = runs.tell_end(records, quiet)
    if not code and not quiet and form is Format.table:
        say(f'adaptree predict {records[0].name} "…"      adaptree show {records[0].name}')
    return code


def report(results: Sequence[dict[str, Any]]) -> None:
    """The tasks of a joint training for people: a line for each, and what they share."""
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
    first = results[0]
    shared = first["parameters"]["trained"] - first["parameters"]["head"]
    out().print(
        f"{first['method']} on {first['base']}, shared by {len(results)} tasks: {shared:,} parameters beside the "
        f"heads; {size(sum(result['bytes'] for result in results))} in all, {first['seconds']:.0f} s",
        soft_wrap=True,
    )

"""Compare methods on one file, of any kind: every method on the same rows, each run in a process of its own.

OUT/data/      the rows to train and to validate on, the same for every cell
OUT/cells/     one JSON file per cell: a method with a learning rate, a number of epochs and a seed
OUT/store/     the cells' tasks
OUT/choices.json   the best setting of each method on validation; written before the test file is opened
OUT/results.json, table.md, figure.png, figure.svg, figure.html
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree import kinds
from adaptree.analysis.compare import cells, choose, report
from adaptree.analysis.compare import rows as splits
from adaptree.analysis.compare.choose import pareto
from adaptree.analysis.compare.files import write, writing
from adaptree.data.events import Listener, silent
from adaptree.data.parts import own_parts
from adaptree.data.read import Source
from adaptree.errors import UsageError
from adaptree.kinds.reading import open_data
from adaptree.methods import Method
from adaptree.models.opening import base_of
from adaptree.tasks.record import installed
from adaptree.training.settings import Settings

if TYPE_CHECKING:
    from adaptree.models.base import Base

__all__ = ["compare", "pareto"]


def compare(
    data: Source,
    *,
    methods: Sequence[str | Method],
    out: str | Path,
    seeds: int | Sequence[int] = 3,
    lr: Sequence[float] = (),
    epochs: Sequence[int] = (),
    rows: int | None = None,
    base: Base | str | Path = "minilm",
    validation: Source | None = None,
    test: Source | None = None,
    kind: str | None = None,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    encoding: str = "utf-8",
    no_header: bool = False,
    merge_labels: bool = False,
    objective: str | None = None,
    batch_size: int = 32,
    max_length: int | None = None,
    metric: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    retry: bool = False,
    jobs: int = 1,
    cluster: str | None = None,
    title: str | None = None,
    command: str = "",
    on_event: Listener = silent,
) -> dict[str, Any]:
    """Train every method with every seed on the same rows, choose on validation, then score the chosen on `test`.

    A method may be spelled with ` --fast` after it. Several values of `lr` and `epochs` are tried for each method.
    Cells that are finished in `out` are not run again; those that failed are, with `retry`. `jobs` cells run at a time,
    or as many as a `cluster` has cores for ("ray", or its address). Return what `out/results.json` holds.
    """
    spellings = list(dict.fromkeys(cells.full_spelling(method) for method in methods))
    if not spellings:
        raise UsageError("nothing to compare.", hint="--method houlsby:64 --method pfeiffer")
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(dict.fromkeys(seeds))
    if not numbers:
        raise UsageError("at least one seed is needed.", hint="--seeds 3")
    grid = [
        Settings(
            objective=objective,
            lr=rate,
            epochs=passes,
            seed=seed,
            batch_size=batch_size,
            max_length=max_length,
            metric=metric,
        )
        for rate, passes, seed in itertools.product(lr or (None,), epochs or (None,), numbers)
    ]
    folder = Path(out)
    with writing(folder):
        for name in ("cells", "data"):
            (folder / name).mkdir(parents=True, exist_ok=True)
    columns = {"text": text, "pair": text_pair, "label": label}
    reading: dict[str, Any] = {"encoding": encoding, "no_header": no_header}
    data, validation, _ = own_parts(data, validation, on_event=on_event, use=("train", "validation"))
    parts = splits.prepare(data, validation, folder / "data", rows, columns, kind, reading, merge_labels, on_event)
    train = parts.train
    judged_kind = kinds.get(train.kind)
    judge = judged_kind.check_metric(metric or judged_kind.metrics[0], train.labels)
    trust = {"trust_remote_code": trust_remote_code, "allow_pickle": allow_pickle, "writes": judged_kind.generates}
    model = base_of(base, device, threads, **trust)
    wanted = [
        {
            "data": {key: parts.about[key] for key in ("digest", "validation_digest")},
            "base": model.fingerprint,
            "method": method,
            "settings": settings.to_dict(),
            "device": model.device,
            "threads": threads,
        }
        for method in spellings
        for settings in ([Settings(seed=numbers[0], metric=metric)] if cells.method_of(method)[0].standalone else grid)
    ]
    files = {part: Path(file) for part, file in parts.files.items()}
    where = Path(model.location) if Path(model.location).is_dir() else model.location
    place = {"files": files, "columns": parts.columns, "base": where, "trust": trust}
    done = cells.run_all(wanted, place, folder, test is not None, retry, on_event, jobs=jobs, cluster=cluster)
    choices = choose.choose(done, judge)
    write(folder / "choices.json", {"metric": judge, "part": "validation", "choices": choices})
    baselines = {"validation": splits.baseline_scores(parts, parts.validation, folder / "data", model.encoder)}
    about = dict(parts.about)
    if test is not None:  # from here on nothing is chosen any more
        tested = open_data(test, like=train.schema, **reading)
        about |= {"test": len(tested), "test_name": tested.name, "test_digest": tested.digest}
        choose.score_test(choices, done, model, test, tested.digest, reading, folder, on_event)
        baselines["test"] = splits.baseline_scores(parts, tested, folder / "data", model.encoder)
    result = {
        "title": title or f"{parts.about['name']} on {model.name}",
        "data": about,
        "base": {"name": model.name, "fingerprint": model.fingerprint},
        "metric": judge,
        "seeds": numbers,
        "methods": choose.summary(spellings, done, choices, judge, about.get("test_digest")),
        "floors": {
            name: {part: scores[name][judge] for part, scores in baselines.items()} for name in baselines["validation"]
        },
        "command": command,
        "versions": installed(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write(folder / "results.json", result)
    report.write_all(result, folder, on_event)
    return result

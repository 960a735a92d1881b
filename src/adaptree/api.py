"""What the command line, a notebook and a service call: check, train, evaluate and predict, over files or rows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree import metrics
from adaptree.data.columns import Columns, guess
from adaptree.data.read import rows as read_rows
from adaptree.data.split import overlap, split
from adaptree.data.table import Table, load
from adaptree.errors import DataError, TrainingError, UsageError
from adaptree.methods import Method, parse
from adaptree.task import Record, Task, check_name
from adaptree.train.settings import Settings

if TYPE_CHECKING:
    import numpy as np

    from adaptree.base import Base, Bound
    from adaptree.data.check import Report
    from adaptree.heads import Prediction
    from adaptree.store.local import Store

Source = str | Path | Iterable[dict[str, Any]]
Event = dict[str, Any]
CHUNK = 4096
"""Rows that are predicted together from a file: it may be longer than memory."""


def check(
    data: Source,
    *,
    validation: Source | None = None,
    base: Base | str | Path = "minilm",
    kind: str | None = None,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    encoding: str = "utf-8",
    max_length: int | None = None,
    seed: int = 0,
) -> Report:
    """What is in this file, what `train` would do with it, and what looks wrong."""
    from adaptree.data.check import check as look

    table = load(data, text=text, pair=text_pair, label=label, kind=kind, encoding=encoding)
    other = None if validation is None else load(validation, encoding=encoding, like=table)
    encoder, limit = _encoder_of(base)
    longest = Settings(max_length=max_length).resolved(rows=1, lr=1.0, limit=limit, metric="", pooling="").max_length
    return look(table, validation=other, lengths=encoder.lengths, limit=limit, max_length=longest, seed=seed)


def train(
    data: Source,
    *,
    name: str = "task",
    base: Base | str | Path = "minilm",
    method: Method | str = "houlsby",
    kind: str | None = None,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    validation: Source | None = None,
    test: Source | None = None,
    encoding: str = "utf-8",
    store: Store | None = None,
    resume: bool = False,
    baselines: bool = True,
    device: str = "auto",
    threads: int | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
    **settings: Any,
) -> Bound:
    """Turn labelled data into a task over a base; with a `store` it is kept there and can be resumed.

    `settings` are the fields of `adaptree.train.settings.Settings`. Events (dicts) tell `on_event` how it goes.
    """
    check_name(name)
    asked = Settings(**_known(settings))
    how = parse(method)
    table = load(data, text=text, pair=text_pair, label=label, kind=kind, encoding=encoding)
    if asked.metric is not None:
        metrics.check_metric(table.kind, asked.metric)
    if asked.class_weights and table.kind != "classify":
        raise UsageError("class weights are for labels, and this file's are numbers.")

    import numpy as np

    other = None if validation is None else load(validation, encoding=encoding, like=table)
    if other is None:
        train_rows, validation_rows = split(table, seed=asked.seed)
        checker = table
    else:
        train_rows, validation_rows, checker = np.arange(len(table)), np.arange(len(other)), other
        if shared := overlap(table, other):
            on_event(_note(f"{shared} of the {len(other)} validation texts are in the training data too."))
    tester = None if test is None else load(test, encoding=encoding, like=table)
    for what, count in table.left_out.items():
        if count:
            on_event(_note(f"{count} rows {what} are left out."))

    from adaptree import heads
    from adaptree.data.encode import Encoded
    from adaptree.train.loop import fit

    base = _base_of(base, device, threads, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    chosen = asked.resolved(
        rows=len(train_rows),
        lr=how.lr,
        limit=base.limit,
        metric=metrics.main_metric(table.kind, table.labels),
        pooling=heads.check_pooling(asked.pooling or base.pooling),
    )
    assert chosen.max_length is not None
    kind_of = heads.for_table(table, train_rows)
    source = Encoded(table, base.encoder, chosen.max_length)
    checked = source if other is None else Encoded(other, base.encoder, chosen.max_length)
    on_event({
        "event": "start", "name": name, "kind": table.kind, "why": table.why, "columns": table.columns, "base": base.name,
        "method": str(how), "train": len(train_rows), "validation": len(validation_rows), "settings": chosen.to_dict(),
        "labels": table.labels,
    })  # fmt: skip
    folder = None if store is None else store.path / "runs" / name.replace("/", "--")
    fitted = fit(
        base, how, kind_of, (source, train_rows), (checked, validation_rows), chosen,
        folder=folder, resume=resume, on_event=on_event,
    )  # fmt: skip
    if not fitted.best:
        raise TrainingError("stopped before the first epoch was done: there is no task yet.")
    if cut := source.truncated + (checked.truncated if other is not None else 0):
        on_event(_note(f"{cut} texts are longer than {chosen.max_length} tokens and were cut."))

    from adaptree.attach import price

    counts = price(how.count(base.host.sites), sum(fitted.v[f"head.{p}"].numel() for p in ("weight", "bias")),
                   base.host.backbone)  # fmt: skip
    record = Record(
        name=name, kind=table.kind, labels=list(table.labels), method=str(how), pooling=str(chosen.pooling),
        base={"name": base.name, "fingerprint": base.fingerprint, "architecture": base.host.sites.architecture},
        max_length=chosen.max_length,
        columns={"text": table.columns.text, "pair": table.columns.pair, "label": table.columns.label},
        data={
            "name": table.name, "digest": table.digest, "rows": len(table), "train": len(train_rows),
            "validation": len(validation_rows), "test": 0 if tester is None else len(tester),
            "truncated": cut, "left_out": dict(table.left_out), "label_counts": _label_counts(table),
        },
        parameters=counts, trained_percent=100 * counts["trained"] / counts["base"],
        seconds=round(fitted.seconds, 3), seed=chosen.seed,
        settings={**chosen.to_dict(), "best_epoch": fitted.best, "finished": fitted.finished},
        history=fitted.history, examples=_examples(table, validation_rows if other is None else train_rows),
        extra=kind_of.extra(),
    )  # fmt: skip
    bound = base.bind(Task(record, fitted.v))
    pieces = {"validation": (checked.table, validation_rows)}
    if tester is not None:
        pieces["test"] = (tester, np.arange(len(tester)))
    scored = {part: _score(bound, *piece) for part, piece in pieces.items()}
    floor = _baselines(table, train_rows, *pieces.get("test", pieces["validation"])) if baselines else {}
    bound = base.bind(_with_probe(bound, table, validation_rows if other is None else train_rows, scored, floor))
    if store is not None:
        bound = base.bind(store.add(bound.task))
        _remember(store, base)
        if fitted.finished and folder is not None:
            from adaptree.train import checkpoint

            checkpoint.remove(folder)
    return bound


def open_task(
    store: Store, reference: str, *, base: Base | str | Path | None = None, device: str = "auto", threads: int | None = None
) -> Bound:
    """A stored task on its base: the one given, else the one that it was trained on."""
    task = store[reference]
    if base is None:
        base = _remembered(store).get(task.record.base["fingerprint"], task.record.base["name"])
    return _base_of(base, device, threads).bind(task)


def evaluate(bound: Bound, data: Source, *, encoding: str = "utf-8", **columns: str | None) -> dict[str, Any]:
    """A task's scores on labelled data, with 95 % intervals."""
    import numpy as np

    record = bound.task.record
    table = load(data, encoding=encoding, like=_form(record), **_table_columns(columns))
    scores, intervals = _score(bound, table, np.arange(len(table)))
    return {**result(bound.task), "rows": len(table), "metrics": {"test": scores}, "intervals": {"test": intervals}}


def predict_rows(
    bound: Bound, data: Source, *, encoding: str = "utf-8", min_score: float | None = None, **columns: str | None
) -> Iterator[tuple[dict[str, Any], Prediction]]:
    """Each row of a file as it stands, with the task's answer; in order and in bounded memory."""
    chunk: list[dict[str, Any]] = []
    names = bound.task.record.columns
    chosen: tuple[str, str | None] | None = None
    for _, row in read_rows(data, encoding=encoding):
        if chosen is None:
            chosen = _input_columns(list(row), [row], names, columns)
        chunk.append(row)
        if len(chunk) == CHUNK:
            yield from _answers(bound, chunk, chosen, min_score)
            chunk = []
    if chunk and chosen:
        yield from _answers(bound, chunk, chosen, min_score)


def result(task: Task) -> dict[str, Any]:
    """A trained task as one object of plain numbers: the contract of `--format json`."""
    record = task.record
    return {
        "task": record.name, "version": record.version, "kind": record.kind, "base": record.base["name"],
        "method": record.method, "metrics": record.metrics, "intervals": record.intervals,
        "baselines": record.baselines, "parameters": record.parameters, "trained_percent": record.trained_percent,
        "bytes": task.bytes, "seconds": record.seconds, "seed": record.seed,
    }  # fmt: skip


def _known(settings: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import fields

    from adaptree.errors import near

    names = [f.name for f in fields(Settings)]
    for name in settings:
        if name not in names:
            raise UsageError(f"there is no setting '{name}'.", hint=near(name, names) or f"There are: {', '.join(names)}.")
    return settings


def _note(text: str) -> Event:
    return {"event": "note", "text": text}


def _base_of(base: Base | str | Path, device: str, threads: int | None, **trust: bool) -> Base:
    import torch

    from adaptree.base import Base, load_base

    if threads is not None:
        if threads < 1:
            raise UsageError(f"threads must be at least 1, not {threads}.")
        torch.set_num_threads(threads)
    if isinstance(base, Base):
        return base
    return load_base(base, device=_device(device), **trust)


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"the device '{name}' is not there ({str(error).splitlines()[0][:80]}).", hint="Try --device cpu.") from error
    return name


def _remembered(store: Store) -> dict[str, str]:
    """Where this machine has the bases that are not known by name, by fingerprint."""
    try:
        return dict(json.loads((store.path / "bases.json").read_text()))
    except (OSError, ValueError):
        return {}


def _remember(store: Store, base: Base) -> None:
    known = _remembered(store)
    if known.get(base.fingerprint) != base.location:
        partial = store.path / f"bases.json.{os.getpid()}"
        partial.write_text(json.dumps(known | {base.fingerprint: base.location}, indent=1))
        partial.replace(store.path / "bases.json")


def _encoder_of(base: Base | str | Path) -> tuple[Any, int]:
    """A base's tokenizer and limit, without loading its weights."""
    from adaptree.base import Base, limit_of
    from adaptree.data.encode import Encoder
    from adaptree.models import config_of, locate

    if isinstance(base, Base):
        return base.encoder, base.limit
    folder = locate(base)
    config = config_of(folder)
    return Encoder.load(folder, config), limit_of(config)


def _score(bound: Bound, table: Table, rows: np.ndarray[Any, Any]) -> tuple[dict[str, float], dict[str, list[float]]]:
    import numpy as np
    import torch

    logits = [bound.logits(table.texts(rows[i : i + CHUNK])) for i in range(0, len(rows), CHUNK)]
    answers = bound.kind.answer(torch.cat(logits))
    targets = np.asarray(table.targets[rows])
    labels = range(bound.kind.width) if table.kind == "classify" else None
    scores = metrics.score(table.kind, targets, answers, labels=labels)
    spans = metrics.intervals(table.kind, targets, answers, labels=labels)
    return scores, {key: list(span) for key, span in spans.items()}


def _baselines(
    table: Table, train_rows: np.ndarray[Any, Any], other: Table, rows: np.ndarray[Any, Any]
) -> dict[str, dict[str, float]]:
    """Majority and bag of words on the same rows, so that a user sees what the model adds."""
    from adaptree.baselines import MOST, baselines

    kept = train_rows[:: -(-len(train_rows) // MOST)]
    labels = range(len(table.labels))
    gold = other.targets[rows].tolist()
    return baselines(table.kind, table.texts(kept), table.targets[kept].tolist(), other.texts(rows), gold, labels)


def _with_probe(
    bound: Bound,
    table: Table,
    rows: np.ndarray[Any, Any],
    scored: dict[str, tuple[dict[str, float], dict[str, list[float]]]],
    floor: dict[str, dict[str, float]],
) -> Task:
    """The task with its scores, and a few inputs with their logits: what `verify` will compute again, bit for bit."""
    from dataclasses import replace

    import torch

    inputs = [list(text) if isinstance(text, tuple) else text for text in table.texts(rows[:4])]
    record = replace(
        bound.task.record,
        metrics={part: scores for part, (scores, _) in scored.items()},
        intervals={part: spans for part, (_, spans) in scored.items()},
        baselines=floor,
        probe={"inputs": inputs, "path": "single", "threads": torch.get_num_threads()},
    )
    return Task(record, {**bound.task.tensors, "probe.logits": bound.logits(inputs)})


def _label_counts(table: Table) -> dict[str, int]:
    import numpy as np

    if table.kind != "classify":
        return {}
    counts = np.bincount(table.targets, minlength=len(table.labels)).tolist()
    return {str(label): count for label, count in zip(table.labels, counts, strict=True)}


def _examples(table: Table, rows: np.ndarray[Any, Any], most: int = 5) -> list[dict[str, Any]]:
    """A few rows for the card, of as many labels as possible."""
    chosen: list[int] = []
    seen: set[Any] = set()
    for i in rows[:2000].tolist():
        target = table.targets[i].item()
        if target not in seen or table.kind == "regress":
            seen.add(target)
            chosen.append(i)
        if len(chosen) == most:
            break
    out = []
    for i in chosen:
        target = table.targets[i].item()
        example = {"text": table.text(i), "label": table.labels[target] if table.kind == "classify" else target}
        out.append(example | ({"pair": table.pair(i)} if table.columns.pair else {}))
    return out


@dataclass(frozen=True)
class _Form:
    """What a record says of the files that fit its task."""

    name: str
    columns: Columns
    kind: Any
    labels: tuple[str | int, ...]


def _form(record: Record) -> _Form:
    names = record.columns
    columns = Columns(text=names["text"], pair=names["pair"], label=names["label"])
    return _Form(f"the task {record.name}", columns, record.kind, tuple(record.labels))


def _table_columns(columns: dict[str, str | None]) -> dict[str, str | None]:
    return {{"text_pair": "pair"}.get(name, name): value for name, value in columns.items()}


def _input_columns(
    there: list[str], sample: list[dict[str, Any]], names: dict[str, Any], asked: dict[str, str | None]
) -> tuple[str, str | None]:
    """Which columns of a file to predict on: those asked for, else those trained on, else a guess."""
    text, pair = asked.get("text"), asked.get("text_pair")
    if text is None and names["text"] in there and (names["pair"] is None or names["pair"] in there):
        return names["text"], pair or names["pair"]
    found = guess(there, sample, text=text, pair=pair, label=None, need_label=False)
    if names["pair"] and not found.pair:
        raise DataError("this task takes two texts, and the file has one column of text.", hint="--text COL --text-pair COL")
    return found.text, found.pair if names["pair"] else None


def _answers(
    bound: Bound, chunk: list[dict[str, Any]], columns: tuple[str, str | None], min_score: float | None
) -> Iterator[tuple[dict[str, Any], Prediction]]:
    text, pair = columns

    def cell(row: dict[str, Any], name: str) -> str:
        value = row.get(name)
        return "" if value is None else str(value)

    inputs: list[Any] = [(cell(row, text), cell(row, pair)) if pair else cell(row, text) for row in chunk]
    return zip(chunk, bound.predict(inputs, min_score=min_score), strict=True)

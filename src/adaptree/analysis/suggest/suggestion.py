"""Which stored tasks help a new one, and the command that fuses them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.analysis.suggest.probe import CLEAR, FEWEST, LIKELY, Gain, ranking
from adaptree.data.check import note_columns
from adaptree.data.dataset import Dataset
from adaptree.data.events import Listener, silent
from adaptree.data.parts import own_parts
from adaptree.data.read import Source
from adaptree.data.stem import stem
from adaptree.errors import AdaptreeError, TaskNotFound, UsageError
from adaptree.kinds.reading import open_data
from adaptree.methods import Method, parse
from adaptree.methods.fusion import apart, unfit
from adaptree.models.opening import base_of
from adaptree.tasks.record import MADE_OF, ON, Record
from adaptree.tasks.runs import bases_of

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.tasks.store import Store


@dataclass(frozen=True)
class Suggestion:
    """What `adaptree suggest` found: the stored tasks by gain, what to fuse, and the command to run next."""

    data: str
    base: str
    rows: int
    gains: list[Gain]
    unfusable: dict[str, str]
    """By task, why it cannot be fused."""
    skipped: dict[str, str]
    fuse: list[str]
    """Tasks to fuse, the best first; empty if fewer than two help."""
    command: str
    """The command that fuses them; if there are none, the one that trains an adapter on this data."""

    @property
    def helpful(self) -> list[Gain]:
        """The gains whose interval is above zero."""
        return [gain for gain in self.gains if gain.sure in (CLEAR, LIKELY)]

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        tried = f"{len(self.gains)} task{'s' * (len(self.gains) != 1)}"
        bare = f"the bare base explains {self.gains[0].bare:.3f} of the labels in {self.gains[0].rows:,} rows"
        if self.helpful:
            return f"{len(self.helpful)} of {tried} help for sure; {bare}."
        if any(gain.gain > 0 for gain in self.gains):
            return f"None of {tried} beats the bare base for sure; {bare}."
        return f"None of {tried} beats the bare base; {bare}."

    def to_dict(self) -> dict[str, Any]:
        """Return what `--format json` prints."""
        rows = [{**asdict(gain), "fusable": gain.task not in self.unfusable} for gain in self.gains]
        return {
            "data": self.data, "base": self.base, "rows": self.rows, "verdict": self.verdict, "tasks": rows,
            "unfusable": self.unfusable, "skipped": self.skipped, "fuse": self.fuse, "command": self.command,
        }  # fmt: skip


def suggest(
    data: Source,
    store: Store | str | Path,
    base: Base | str | Path = "minilm",
    *,
    top: int = 5,
    rows: int = 450,
    seed: int = 0,
    kind: str | None = None,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    encoding: str = "utf-8",
    no_header: bool = False,
    device: str = "auto",
    threads: int | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    on_event: Listener = silent,
) -> Suggestion:
    """Rank the stored tasks by how much they help to learn these labels; return the ranking and what to fuse.

    At most `rows` rows of the data are used, and the `top` best tasks go into the command.
    """
    from adaptree.tasks.store import Store

    if top < 1 or rows < FEWEST:
        raise UsageError(f"at least 1 task and {FEWEST} rows are needed, not {top} and {rows}.")
    if not isinstance(store, Store):
        store = Store(store)
    if not len(store):
        raise TaskNotFound(
            "there is no task in the store yet.", hint="adaptree train DATA --name NAME --method pfeiffer"
        )
    source, _, _ = own_parts(data, on_event=on_event, use=("train",))
    table = open_data(
        source, text=text, pair=text_pair, label=label, kind=kind, encoding=encoding, no_header=no_header,
        on_event=on_event,
    )  # fmt: skip
    note_columns(table, on_event)
    if table.values is None:
        raise UsageError(f"'{table.name}' is of kind {table.kind}: suggest is for one label or one number a text.")
    base = base_of(base, device, threads, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    fitting, skipped, own = _fitting(store, base, table)
    if not fitting:
        other = _elsewhere(store, base)
        raise TaskNotFound(
            f"none of the {len(store)} stored tasks can help on {base.name}: {_reasons(skipped)}.",
            hint=f"adaptree suggest DATA --base {other}" if other else shlex.join(_alone("DATA", "NAME", base)),
        )
    found = ranking(table, list(fitting), store, base, rows=rows, top=top, seed=seed, on_event=on_event)
    skipped |= found.skipped
    if not found.gains:
        raise TaskNotFound(f"none of the {len(store)} stored tasks can be tried: {_reasons(skipped)}.")
    unfusable = {name: why for name, record in fitting.items() if (why := _unfusable(record))}
    chosen = _chosen(found.gains, own, fitting | own, unfusable, base, top)
    options = {"--text": text, "--text-pair": text_pair, "--label": label, "--kind": kind}
    options["--encoding"] = encoding if encoding != "utf-8" else None
    more = [word for option, value in options.items() if value is not None for word in (option, value)]
    trust = {"--no-header": no_header, "--trust-remote-code": trust_remote_code, "--allow-pickle": allow_pickle}
    more += [option for option, on in trust.items() if on]
    file = str(data) if isinstance(data, str | Path) else "DATA"
    if len(chosen) > 1:
        begin = f'adaptree compose "fuse({", ".join(chosen)})"'
        words = ["--name", f"{stem(data)[:58]}-fused", "--train", file]
    else:
        begin, *words = _alone(file, stem(data), base)
    return Suggestion(
        data=table.name,
        base=base.name,
        rows=min(rows, len(np.unique(table.keys))),
        gains=found.gains,
        unfusable=unfusable,
        skipped=skipped,
        fuse=chosen if len(chosen) > 1 else [],
        command=f"{begin} {shlex.join([*words, *more])}",
    )


def _fitting(store: Store, base: Base, table: Dataset) -> tuple[dict[str, Record], dict[str, str], dict[str, Record]]:
    """Return the tasks to try, why others are skipped, and those of them that were trained on this data."""
    fitting: dict[str, Record] = {}
    skipped: dict[str, str] = {}
    own: dict[str, Record] = {}
    for name in store:
        try:
            record = store.record(name)
            method = parse(record.method)
        except AdaptreeError as error:
            skipped[name] = error.what
            continue
        if record.base.get("fingerprint") != base.fingerprint:
            skipped[name] = f"was trained on another base, {record.base.get('name')}"
        elif method.standalone:
            skipped[name] = f"{method.name} does not use the base"
        elif record.data.get("digest") == table.digest:
            own[name] = record
            skipped[name] = "was trained on this very data, and knows its answers"
        elif saw := record.learned_from.get(table.digest):
            skipped[name] = f"was trained together with '{saw}', or made of it, which is of this very data"
        else:
            fitting[name] = record
    return fitting, skipped, own


def _unfusable(record: Record) -> str:
    """Return why a task cannot be fused; empty if it can."""
    if why := unfit(parse(record.method)):
        return why
    return f"was trained on {record.extra[ON]}, which it would lack" if record.extra.get(ON) else ""


def _chosen(
    gains: Sequence[Gain], own: Mapping[str, Record], records: Mapping[str, Record], unfusable: Mapping[str, str],
    base: Base, top: int,
) -> list[str]:  # fmt: skip
    """Return what to fuse: those that surely help, else those that may, and the data's own task as in the paper."""
    fusable = [gain for gain in gains if gain.gain > 0 and gain.task not in unfusable]
    sure = [gain.task for gain in fusable if gain.sure in (CLEAR, LIKELY)]
    helping = sure or [gain.task for gain in fusable]
    if not helping:
        return []

    first: Method = parse(records[helping[0]].method)

    def beside(name: str) -> bool:
        return not apart([first, parse(records[name].method)], base.hooked.sites)

    trained = {name: record for name, record in own.items() if MADE_OF not in record.extra}
    mine = [name for name, record in trained.items() if not _unfusable(record) and beside(name)]
    return [name for name in helping if beside(name)][:top] + mine[-1:]


def _elsewhere(store: Store, base: Base) -> str:
    """Return where this machine has another base that stored tasks were trained on; empty if there is none."""
    known = bases_of(store)
    for name in store:
        try:
            there = store.record(name).base
        except AdaptreeError:
            continue
        if there.get("fingerprint") != base.fingerprint:
            return shlex.quote(known.get(str(there.get("fingerprint")), str(there.get("name"))))
    return ""


def _alone(data: str, name: str, base: Base) -> list[str]:
    """Return the words of the command that trains an adapter on the data alone, on the same base."""
    there = [] if base.name == "minilm" else ["--base", base.location]
    return ["adaptree", "train", data, "--name", name, "--method", "pfeiffer", *there]


def _reasons(skipped: Mapping[str, str]) -> str:
    """Return why the first three tasks were skipped, and how many more were."""
    first = [f"'{name}' {why}" for name, why in list(skipped.items())[:3]]
    return "; ".join(first) + (f"; and {len(skipped) - 3} more" if len(skipped) > 3 else "")

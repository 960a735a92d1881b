"""The functions that commands, notebooks and services call. Each is thin: the work is done in the rooms below."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.events import Event, Listener, silent
from adaptree.data.read import Source
from adaptree.errors import UsageError
from adaptree.models.evaluate import evaluate, result
from adaptree.training.predict import predict_lines, predict_rows
from adaptree.training.run import Run
from adaptree.training.settings import Settings
from adaptree.training.stream import stream

if TYPE_CHECKING:
    from torch import nn

    from adaptree.analysis.ablate import Ablation
    from adaptree.analysis.attribution import Explanations
    from adaptree.analysis.clean import Cleaning
    from adaptree.analysis.explain import Attention
    from adaptree.analysis.improve import Improvement
    from adaptree.analysis.report import Report
    from adaptree.analysis.suggest import Suggestion
    from adaptree.compose import Expression
    from adaptree.data.check import Report as DataReport
    from adaptree.hub.certificate import Change
    from adaptree.hub.diff import Difference
    from adaptree.hub.exporting import ExportedModel
    from adaptree.hub.search import Hit
    from adaptree.hub.sharing import Exported, Imported
    from adaptree.hub.site import Site
    from adaptree.hub.transfer import Copied
    from adaptree.hub.verify import Verification
    from adaptree.methods import Method
    from adaptree.models.architectures import Architecture
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound
    from adaptree.models.tuned import Tuned
    from adaptree.serve.doctor import Check
    from adaptree.tasks.store import Store
    from adaptree.tasks.task import Task

__all__ = [
    "Event", "Listener", "Source", "ablate", "attach", "check", "clean", "compare", "compose", "diff", "evaluate",
    "explain", "export", "export_model", "import_file", "import_folder", "improve", "methods", "predict_lines",
    "predict_rows", "pull", "push", "rebase", "report", "result", "search", "site", "stream", "suggest", "train",
    "train_jointly", "verify",
]  # fmt: skip


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
    no_header: bool = False,
    merge_labels: bool = False,
    max_length: int | None = None,
    windows: bool = False,
    seed: int = 0,
    on_event: Listener = silent,
) -> DataReport:
    """Return what is in a file, what `train` would do with it, and what looks wrong."""
    from adaptree import kinds
    from adaptree.data.parts import own_parts
    from adaptree.kinds.reading import open_data
    from adaptree.models.opening import encoder_of
    from adaptree.training.preview import report_on

    data, validation, _ = own_parts(data, validation, on_event=on_event, use=("train", "validation"))
    reading: dict[str, Any] = {"encoding": encoding, "no_header": no_header, "on_event": on_event}
    dataset = open_data(data, text=text, pair=text_pair, label=label, kind=kind, merge_labels=merge_labels, **reading)
    other = None if validation is None else open_data(validation, like=dataset.schema, **reading)
    settings = Settings(max_length=max_length, windows=windows, seed=seed)
    return report_on(dataset, settings, *encoder_of(base, writes=kinds.writes(dataset.kind)), validation=other)


def _takes_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Show the options of a run in a function's signature, for `help()` and notebooks."""
    shown = inspect.signature(function)
    own = [p for p in shown.parameters.values() if p.kind is not p.VAR_KEYWORD]
    taken = {"data", "settings", *shown.parameters}
    options = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
        for f in (*fields(Run), *fields(Settings))
        if f.name not in taken
    ]
    function.__signature__ = shown.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return function


def train(
    data: Source, *, on_event: Listener = silent, jobs: int = 1, cluster: str | None = None, **options: Any
) -> Bound:
    """Train a task on labelled data and return it on its base, ready to predict.

    `options` are the fields of `adaptree.training.run.Run` (name, base, method, on, kind, text, label, validation,
    test, store, fast, search, …) and of `adaptree.training.settings.Settings` (epochs, lr, batch_size, seed, …).
    With a `store` the task is kept there, and a run that was stopped can be resumed. `on_event` is called with a dict
    for every step and epoch. The trials of a `search` run in `jobs` processes at a time, or on a `cluster` ("ray", or
    its address).
    """
    from adaptree.training.pipeline import train as run_pipeline

    run = Run.of(data, **options)
    if run.joint:
        raise UsageError("several files become several tasks.", hint="Call train_jointly(files, …).")
    return run_pipeline(run, on_event, jobs=jobs, cluster=cluster)[0]


def train_jointly(
    files: Sequence[str | Path] | Mapping[str, Source], *, name: str, on_event: Listener = silent, **options: Any
) -> list[Bound]:
    """Train one set of adapters on several files at once; return a task NAME/FILE for each, with a head of its own.

    `files` may be a dict, whose keys are the tasks' names. An epoch has as many rows as the files together, of a file
    of n rows a number in proportion to n^(1/temperature): at 1 each row once, the larger the more even. It is judged by
    the mean of the tasks' main metrics. The other `options` are those of `train`.
    """
    from adaptree.training.pipeline import train as run_pipeline

    return run_pipeline(Run.of(files, name=name, joint=True, **options), on_event)


_takes_options(train)
_takes_options(train_jointly)


def attach(
    model: nn.Module,
    what: Method | str | Task | Path = "houlsby",
    *,
    architecture: Architecture | None = None,
    dropout: bool = False,
    seed: int = 0,
) -> Tuned:
    """Put a task's weights into a Hugging Face model: new ones of a method, or those of a task or of its folder.

    `what` is a method or its spelling ("houlsby:64"), a `Task`, or the folder of a saved one as a path or a string;
    also a folder that `peft` or `adapters` saved, whose head is that of the model's class. `dropout`: whether the
    frozen base keeps its dropout in training mode; its head always does.
    """
    from adaptree.hub.interop.read import read_for_model, recognise
    from adaptree.models.tuned import attach as put

    if isinstance(what, str | Path) and recognise(folder := Path(what).expanduser()):
        what = read_for_model(folder, model, architecture)
    return put(model, what, architecture=architecture, dropout=dropout, seed=seed)


def compose(
    expression: str | Expression,
    *,
    name: str,
    store: Store | str | Path,
    data: Source | None = None,
    on_event: Listener = silent,
    **options: Any,
) -> Bound:
    """Keep a composition of stored tasks as a task of its own; fuse(…) is trained on `data` with options of `train`."""
    from adaptree.training.composing import compose as keep

    return keep(expression, name=name, store=store, data=data, on_event=on_event, **options)


def import_folder(
    folder: str | Path,
    store: Store,
    *,
    base: Base | str | Path = "minilm",
    name: str | None = None,
    labels: Sequence[str] | None = None,
    pair: bool = False,
    device: str = "auto",
    threads: int | None = None,
    **trust: bool,
) -> Task:
    """Read a folder that `peft` or `adapters` saved, and keep it as a task (`adaptree.hub.interop.read`).

    `base` is the one that it was trained on. `labels` name the head's outputs, in their order, where the files do not.
    `pair`: whether it takes two texts. `trust` is trust_remote_code and allow_pickle, for the base.
    """
    from adaptree.hub.interop.read import read_foreign
    from adaptree.models.opening import base_of
    from adaptree.tasks.runs import remember

    base = base_of(base, device, threads, **trust)
    kept = store.add(read_foreign(folder, base, name=name, labels=labels, pair=pair))
    remember(store, base)
    return kept


def rebase(
    store: Store,
    reference: str,
    base: Base | str | Path,
    name: str | None = None,
    **options: Any,
) -> Task:
    """Put a stored task into another base of the same shape, as a new version of it or under another `name`.

    `options` are device, threads, trust_remote_code and allow_pickle (`adaptree.training.rebase.rebase`).
    """
    from adaptree.training.rebase import rebase as move

    return move(store, reference, base, name, **options)


def export(store: Store, references: Sequence[str], file: str | Path, **options: Any) -> Exported:
    """Write tasks, with the parts that they need, as one file (`adaptree.hub.sharing.export`).

    `options` are everything (all tasks of the store, and no references), versions (all of each), sign, key and force.
    """
    from adaptree.hub.sharing import export as write

    return write(store, references, file, **options)


def import_file(file: str | Path, store: Store, **options: Any) -> list[Imported]:
    """Check an exported file and add its tasks to a store (`adaptree.hub.sharing.import_file`).

    `options` are name, base, trust (a key) and dry_run.
    """
    from adaptree.hub.sharing import import_file as add

    return add(file, store, **options)


def push(references: Sequence[str], to: str | Path, *, store: Store | str | Path, **options: Any) -> list[Copied]:
    """Copy tasks of a store, with the tasks that they need, to another one; none named: all (`hub.transfer.push`).

    `to` is a folder or a URL. `options` are versions (all of them, not only the newest), tags (also copy tags and
    notes) and on_event.
    """
    from adaptree.hub.transfer import push as send

    return send(references, to, store=store, **options)


def pull(
    source: str | Path, references: Sequence[str] = (), *, store: Store | str | Path, **options: Any
) -> list[Copied]:
    """Copy tasks from a folder or URL into a store; none named: all that are there (`hub.transfer.pull`).

    `source` may also end in the task: s3://bucket/prefix/reviews@3. `options` are those of `push`.
    """
    from adaptree.hub.transfer import pull as fetch

    return fetch(source, references, store=store, **options)


def compare(data: Source, *, methods: Sequence[Any], out: str | Path, **options: Any) -> dict[str, Any]:
    """Train several methods on the same rows and return scores and prices (`adaptree.analysis.compare.compare`)."""
    from adaptree.analysis.compare import compare as run_comparison

    return run_comparison(data, methods=methods, out=out, **options)


def report(results: str | Path) -> Report:
    """Write report.html and report.md over all experiments of a results folder; return the report.

    Its `rows` are the papers' statements beside what was measured (`adaptree.analysis.report.report`).
    """
    from adaptree.analysis.report import report as gather

    return gather(results)


def site(store: Store, folder: str | Path, **options: Any) -> Site:
    """Write a static site of a store into a folder, which opens offline, or update the one that is there.

    `options` are title, url, force and on_event (`adaptree.hub.site.write_site`).
    """
    from adaptree.hub.site import write_site

    return write_site(store, folder, **options)


def suggest(data: Source, store: Store, base: Base | str | Path = "minilm", **options: Any) -> Suggestion:
    """Return which stored tasks help to learn new data (`adaptree.analysis.suggest.suggest`)."""
    from adaptree.analysis.suggest import suggest as probe

    return probe(data, store, base, **options)


def search(words: str, store: Store, **options: Any) -> list[Hit]:
    """Return the stored tasks that match some words, the best first (`adaptree.hub.search.search`).

    `options` are meaning (rank by meaning, with a base's vectors), base and limit.
    """
    from adaptree.hub.search import search as find

    return find(words, store, **options)


def clean(data: Source, *, out: str | Path | None = None, **options: Any) -> Cleaning:
    """Return the rows whose labels are probably wrong, that repeat another row or contradict it.

    With `out`, all rows are written there as csv, with what was found in further columns. `options` are base, kind,
    text, text_pair, label, encoding, max_length, seed, device, … (`adaptree.analysis.clean.clean`).
    """
    from adaptree.analysis.clean import clean as judge

    return judge(data, out=out, **options)


def improve(bound: Bound, data: Source, *, rows: int = 20, **options: Any) -> Improvement:
    """Return the rows of an unlabelled file that are most worth labelling next for a task.

    `options` are labelled (the data that it learned from), out, strategy, text, text_pair, encoding, no_header, seed,
    on_event (`adaptree.analysis.improve.improve`).
    """
    from adaptree.analysis.improve import improve as choose

    return choose(bound, data, rows=rows, **options)


def explain(bound: Bound, inputs: Any, *, by: str | None = None, target: str | None = None) -> Attention | Explanations:
    """Return which words the predictions for some inputs rest on (`adaptree.analysis.attribution.explain_words`).

    `by` is gradients, leave-one-out or attention: what a fused task attends to, which is the default of fused tasks
    (`adaptree.analysis.explain.attention`). `target` names a label, number or choice to explain instead of the
    predicted one.
    """
    from adaptree.analysis.attribution import explain_words
    from adaptree.analysis.explain import attention, default_way

    if (by or default_way(bound)) == "attention":
        return attention(bound, inputs)
    return explain_words(bound, inputs, by=by, target=target)


def ablate(bound: Bound, data: Source, *, out: str | Path | None = None, **options: Any) -> Ablation:
    """Score a task on labelled data without its adapters in every span of layers, and say which can go.

    Nothing is trained. `out` is a folder for figure.png, table.md and ablation.json. `options` are within (how many
    points may be lost), keep_norms, text, text_pair, label, encoding, … (`adaptree.analysis.ablate.ablate`).
    """
    from adaptree.analysis import ablate as analysis

    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)  # a folder that cannot be is known before the work
    found = analysis.ablate(bound, data, **options)
    if out is not None:
        analysis.write(found, out)
    return found


def diff(store: Store, a: str, b: str, data: Source | None = None, **options: Any) -> Difference:
    """Return where two stored versions differ, and with `data` which of its rows they answer differently.

    `options` are text, text_pair, label, encoding, no_header, base, device, threads, … (`adaptree.hub.diff.diff`).
    """
    from adaptree.hub.diff import diff as compare_versions

    return compare_versions(store, a, b, data, **options)


def verify(
    store: Store,
    tasks: Sequence[str] = (),
    *,
    probes: bool = False,
    repair: Store | str | Path | None = None,
    certificate: str | Path | None = None,
    against: str | Path | None = None,
    jobs: int = 1,
    cluster: str | None = None,
    on_event: Listener = silent,
    **opening: Any,
) -> tuple[Verification, list[Change]]:
    """Check a store's files against their digests; return what was found, and what changed since a certificate.

    `repair` is another store to restore damaged files from. The certificate is written as .json or .html; `against` is
    one that was written earlier, as .json. `opening` are device, trust_remote_code and allow_pickle, for the bases on
    which `probes` are computed again (`adaptree.hub.verify.verify`), in `jobs` processes or on a `cluster`.
    """
    from adaptree.hub import certificate as certificates
    from adaptree.hub.repair import existing
    from adaptree.hub.verify import verify as check_store
    from adaptree.tasks.store import Store

    before = None if against is None else certificates.read(Path(against))
    peer = repair if repair is None or isinstance(repair, Store) else existing(repair)
    if certificate is not None:
        certificates.check_ending(Path(certificate))
    spread: dict[str, Any] = {"jobs": jobs, "cluster": cluster}
    found = check_store(store, tasks, probes=probes, repair=peer, on_event=on_event, **spread, **opening)
    if certificate is not None:
        certificates.write(found, Path(certificate))
    return found, [] if before is None else certificates.changes(before, found, tasks)


def export_model(
    bound: Bound, folder: str | Path, *, to: str, int8: bool = False, data: Source | None = None, head: bool = True
) -> ExportedModel:
    """Write a task as a model of another library, `to` transformers, onnx, peft or adapters; return what was written.

    The first two run without adaptree. `int8` is for onnx; its change is measured on the labelled rows in `data`, or on
    the inputs in the task's record. For the last two, `head` says whether the head is written too.
    """
    from adaptree.hub.exporting import export_model as write

    return write(bound, folder, to=to, int8=int8, data=data, head=head)


def doctor(store: Store, **options: Any) -> Iterator[Check]:
    """Look at an installation and at what a deployment needs to reach; yield what was found, one check after another.

    Options: `base`, `url` and `key` of a running server, `cluster` (`adaptree.serve.doctor.doctor`).
    """
    from adaptree.serve.doctor import doctor

    return doctor(store, **options)


def methods(base: Base | str | Path = "minilm") -> list[dict[str, Any]]:
    """Return every method at its defaults, from the fewest weights to the most, with what it costs on a base."""
    from adaptree.methods.method import METHODS, load_plugins
    from adaptree.models.opening import base_of

    load_plugins()
    base = base_of(base, "cpu", None)
    total = sum(p.numel() for p in base.hooked.backbone.parameters())
    rows = []
    for name, kind in METHODS.items():
        method, refused = kind(), None
        try:
            count: int | None = sum(method.count(base.hooked.sites, base.hooked.backbone).values())
        except UsageError as error:
            count, refused = None, str(error)
        rows.append(
            {
                "method": name,
                "spelling": str(method),
                "trains": kind.trains,
                "parameters": None if kind.standalone else count,
                "percent": None if count is None or kind.standalone else 100 * count / total,
                "lr": kind.lr,
                "paper": kind.paper,
                "choose": kind.choose,
                "refused": refused,
            }
        )
    return sorted(rows, key=lambda row: (row["parameters"] is None, row["parameters"] or 0, row["method"]))

"""Train a task on one file of a stream: what an executor carries out, in this process or elsewhere."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.events import Event, Listener
from adaptree.errors import AdaptreeError, CannotResume, DataError, Diverged, TrainingError, UsageError
from adaptree.tasks.record import STREAM, read_record
from adaptree.tasks.runs import LOCK
from adaptree.training.entries import Signature, digest, signature
from adaptree.training.work.interrupt import ctrl_c
from adaptree.training.work.shared_store import check_known, streams_folder

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.tasks.store import Store

TRAINED, UNCHANGED, FAILED, STOPPED = "trained", "unchanged", "failed", "stopped"
LASTING = (DataError, UsageError, Diverged)
"""Errors that come again while the file and its settings are the same."""
REPORTED = ("start", "epoch", "estimate")
"""Events of a run that are sent to whoever waits for it, and warnings."""


@dataclass(frozen=True)
class Work:
    """A file to train a task on: plain values, which can be sent to another process."""

    task: str
    data: Path
    options: dict[str, Any]
    """Those of `adaptree.train`."""
    key: str
    """The digest of the files' contents and of the settings."""
    files: tuple[Path, ...]
    signature: Signature
    """That of the files when the key was computed."""
    content: str = ""
    """The digest of `data`, where it may be a copy that was made later."""


@dataclass(frozen=True)
class Trained:
    """What became of a file: trained, unchanged (it was done before), failed or stopped."""

    state: str
    version: int = 0
    why: str = ""
    lasting: bool = False
    """Whether it would fail again."""
    base_is_intact: bool = True
    """Whether the base's weights had the same fingerprint after training."""
    trace: str = ""


@dataclass(frozen=True)
class Place:
    """Where the tasks of a stream are kept, and how many processes of a machine work for it."""

    store: Store | str | None
    share: int = 1
    """How many processes share the machine's threads."""
    mark: str = ""
    """The name of a file that the stream has put into the store's folder, so that other machines know the folder."""
    base: Base | None = None
    """A base that is loaded already."""


def train_file(place: Place, work: Work, on_event: Listener) -> Trained:
    """Train what a piece of work asks for; an error that would come again is returned, any other raised."""
    from adaptree.tasks.store import Store

    store = Store(place.store) if place.store is None or isinstance(place.store, str) else place.store
    check_known(store, place.mark)
    try:
        with ctrl_c() as pressed:
            return _train(store, place, work, on_event, pressed)
    except LASTING as error:
        return Trained(FAILED, why=str(error), lasting=True, trace=traceback.format_exc())


def _train(store: Store, place: Place, work: Work, on_event: Listener, pressed: Callable[[], bool]) -> Trained:
    from adaptree.models.cache_files import alone
    from adaptree.models.fingerprint import fingerprint
    from adaptree.training.pipeline import train
    from adaptree.training.run import Run, checkpoint_folder

    with alone(streams_folder(store) / f"{work.task.replace('/', '.')}{LOCK}", pressed):
        if done := version_of(store, work.task, work.key):  # by another process
            return Trained(UNCHANGED, done)
        threads = _share_of_threads(place, work)
        base = _base(place, work, threads)
        options = {**work.options, "base": base, "threads": threads}
        resume = checkpoint_folder(store, work.task).is_dir()
        run = Run.of(work.data, name=work.task, store=store, stream=work.key, resume=resume, **options)
        listener = _reporting(work, on_event)
        try:
            trained = train(run, listener)[0]
        except CannotResume:  # it was of the file as it was before
            trained = train(replace(run, resume=False), listener)[0]
    intact = fingerprint(base.hooked.backbone) == base.fingerprint
    return Trained(TRAINED, trained.task.record.version, base_is_intact=intact)


_loaded: dict[tuple[Any, ...], Base] = {}
"""The base of the last file that this process was given: the next one usually has the same."""


def _base(place: Place, work: Work, threads: int | None) -> Base:
    from adaptree.models.opening import base_of

    wanted = work.options.get("base", "minilm")
    if place.base is not None and wanted == place.base.location:
        return place.base
    options = {name: work.options.get(name, False) for name in ("trust_remote_code", "allow_pickle")}
    device = str(work.options.get("device", "auto"))
    key = (str(wanted), device, *options.values())
    if key not in _loaded:
        _loaded.clear()  # two at once may be too many for the memory
        _loaded[key] = base_of(wanted, device, threads, **options)
    return _loaded[key]


def _share_of_threads(place: Place, work: Work) -> int | None:
    if place.share == 1 or work.options.get("threads"):
        return work.options.get("threads")
    return max(1, _all_threads() // place.share)


@functools.cache
def _all_threads() -> int:
    """Return how many threads torch has by itself: asked before the first training sets their number."""
    import torch

    return torch.get_num_threads()


def _reporting(work: Work, on_event: Listener) -> Listener:
    """Return a listener that passes on what a stream shows; it raises TrainingError if the file has changed."""

    def listen(event: Event) -> None:
        if event["event"] == "start" and not _as_it_was(work):
            raise TrainingError("it was changed while it was read.", hint="Run the command again.")
        if event["event"] in REPORTED or event.get("warning"):
            on_event(event)

    return listen


def _as_it_was(work: Work) -> bool:
    """Return whether a file has not changed since its digest was computed: by its time, or of a copy its content."""
    return digest(work.data) == work.content if work.content else signature(work.files) == work.signature


def version_of(store: Store, task: str, key: str) -> int:
    """Return the newest version of a task that was trained on files and settings with this digest; 0 if none was."""
    for version in reversed(store.versions(task)):
        reference = f"{task}@{version}"
        with contextlib.suppress(AdaptreeError):  # a damaged version is none
            if read_record(store.path_of(reference), called=reference).extra.get(STREAM) == key:
                return version
    return 0

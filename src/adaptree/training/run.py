"""The specification of a training run, from which both `adaptree.train` and the command line take their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.read import Source
from adaptree.errors import UsageError, near
from adaptree.tasks.runs import run_folder
from adaptree.training.settings import Settings, check_number

if TYPE_CHECKING:
    from adaptree.compose import Expression
    from adaptree.methods import Method
    from adaptree.models.base import Base
    from adaptree.tasks.store import Store
    from adaptree.tasks.task import Task

__all__ = ["Run", "Source", "checkpoint_folder"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is trained, on which data and over which base; `settings` say how.

    The text under each field is the help of the command line's option of that name.
    """

    data: Source | Sequence[str | Path] | Mapping[str, Source]
    """A file or folder, or rows in memory. With `joint`, several files, or a dict from task names to files or rows."""
    name: str = "task"
    """The task's name. With --joint each file becomes a task NAME/FILE."""
    base: Base | str | Path = "minilm"
    """The frozen model: a name of `adaptree bases`, a folder, a .gguf file, or a name on the Hugging Face hub."""
    method: Method | str | Expression = "houlsby"
    """What is trained: houlsby, houlsby:64, in full houlsby(size=64, …), or fuse(a, b) of other tasks."""
    on: str | Expression | None = None
    """Train on top of this task or composition, which stays frozen."""
    start: Task | None = None
    """A task of the same method and base, whose weights are trained on in the place of fresh ones; its head is not."""
    head: Task | None = None
    """A task of the same kind and base, whose head is taken as it is, and stays so: what is trained fits to it."""
    kind: str | None = None
    """Kind of task: classify or regress (with one target or several), tag, answer, choose or mlm. Default: guessed."""
    text: str | None = None
    """Column with the text. Default: guessed."""
    text_pair: str | None = None
    """Column with the second text of a pair."""
    label: str | None = None
    """Column with the label. Default: guessed."""
    merge_labels: bool = False
    """Take labels that differ only in case or blanks, or that are n/a, none, null or -, for one and the same."""
    descriptions: str | Path | Mapping[str, str] | None = None
    """File of label descriptions, a line each, name: description; for few rows a label, further texts to learn from."""
    weight: str | None = None
    """Column with each row's weight in the training loss; rows of weight 0 are left out."""
    validation: Source | None = None
    """Validation file. Default: a fifth of the data."""
    split: str | None = None
    """Column that says for each row whether it is held out: train or validation. Default: a fifth is held out."""
    test: Source | None = None
    """Test file, scored once at the end."""
    encoding: str = "utf-8"
    """Character encoding of the files, such as latin-1."""
    no_header: bool = False
    """The first row of a table is data: its columns are called column1, column2, … Default: guessed."""
    store: Store | str | Path | None = None
    """Where the task, and checkpoints of its run, are kept."""
    resume: bool = False
    """Go on with a run that was stopped or killed."""
    fast: bool = False
    """Train fewer layers in faster steps: a little less score, if any."""
    search: int | None = None
    """First try this many settings (lr, size, epochs) on a part of the training data."""
    joint: bool = False
    """Train one set of adapters on several files at once, with a head for each."""
    temperature: float = 1.0
    """For --joint: a file of n rows is sampled in proportion to n^(1/temperature); 1 takes each row once an epoch."""
    baselines: bool = True
    """Whether the majority class and a bag of words are scored too, for comparison."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, …"""
    threads: int | None = None
    """Processor threads. The same number gives the same bits."""
    stream: str = ""
    """In a stream of files, the digest of this file and its settings, which the task's record keeps. If such a run is
    stopped, its checkpoint is kept, but no task is made of the best epoch so far."""
    checkpoints: Path | None = None
    """Folder of this run's checkpoint. Default: in the store, by the task's name."""
    trust_remote_code: bool = False
    """Run code that comes with a base from the hub."""
    allow_pickle: bool = False
    """Also read a base's weights from a pickle."""
    settings: Settings = field(default_factory=Settings)
    """How it is trained."""

    def __post_init__(self) -> None:
        check_number("threads", self.threads, whole=True, least=1)
        if self.search is not None and self.search < 1:
            raise UsageError(f"a search needs at least one trial, not {self.search}.", hint="--search 10")
        if self.split is not None and (self.validation is not None or self.joint):
            raise UsageError(
                "--split says which rows of one file are held out.",
                hint="Leave out --validation and --joint, or --split.",
            )
        if self.temperature != 1 and not self.joint:
            raise UsageError("the temperature is for training several tasks at once.", hint="Add --joint.")
        if self.start is not None and (self.joint or self.search is not None or self.resume or self.on is not None):
            raise UsageError(
                "a run that starts from another task is of one task, alone and in one go.",
                hint="Leave out joint, search, resume and on.",
            )
        if self.head is not None and (self.joint or self.search is not None):
            raise UsageError("a head is taken for one task, without a search.", hint="Leave out joint and search.")
        number = isinstance(self.temperature, int | float) and not isinstance(self.temperature, bool)
        if not number or not self.temperature >= 1:  # infinity is fine: every file counts the same
            raise UsageError(
                f"temperature must be a number of at least 1, not {self.temperature}.",
                hint="1 takes each row once, larger ones sample the files more evenly.",
            )

    @classmethod
    def of(cls, data: Any, **options: Any) -> Run:
        """Return the run that options describe, those of `Settings` among them; raise UsageError for unknown ones."""
        own = [f.name for f in fields(cls) if f.name not in ("data", "settings")]
        how = [f.name for f in fields(Settings)]
        for name in options:
            if name not in own and name not in how:
                hint = near(name, [*how, *own]) or f"There are: {', '.join([*own, *how])}."
                raise UsageError(f"there is no option '{name}'.", hint=hint)
        settings = Settings(**{name: value for name, value in options.items() if name in how})
        return cls(data=data, settings=settings, **{name: value for name, value in options.items() if name in own})


def checkpoint_folder(store: Store, name: str, joint: bool = False) -> Path:
    """Return where a run keeps its checkpoint; a joint run's folder is never that of a task."""
    return run_folder(store, f"{name}/+joint" if joint else name)

"""The trials of a search in other processes, or on other machines: each is a call that reads the run's files itself."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.events import Listener, silent
from adaptree.errors import TrainingError, UsageError
from adaptree.methods import Method
from adaptree.training import distributed
from adaptree.training.search import Asked, RunTrials, Trial, run_trial
from adaptree.training.work import Call, Executor, executor_for
from adaptree.training.work.interrupt import ctrl_c

if TYPE_CHECKING:
    from adaptree.training.parents import Parents
    from adaptree.training.pipeline import Halves, Loaded
    from adaptree.training.run import Run

LOOK = 0.2
"""Seconds from one look at running trials to the next."""


def check_spread(run: Run, jobs: int, cluster: str | None) -> None:
    """Raise UsageError where there is nothing that several processes or machines could do at once."""
    if jobs == 1 and cluster is None:
        return
    if jobs < 1:
        raise UsageError(f"jobs must be at least 1, not {jobs}.", hint="--jobs 2")
    if run.search is None:
        raise UsageError(
            "one training is one piece of work; --jobs and --cluster are for the trials of a search.",
            hint="Add --search 10, or leave them out.",
        )
    if distributed.size() > 1:
        raise UsageError("processes that train together run one trial at a time.", hint="Leave out --jobs, --cluster.")
    if isinstance(run.data, Iterator) or isinstance(run.validation, Iterator):
        raise UsageError("rows that can be read only once cannot be sent.", hint="Write them to a file, or a list.")


@contextlib.contextmanager
def elsewhere(
    run: Run, loaded: Loaded, halves: Halves, jobs: int, cluster: str | None, on_event: Listener
) -> Iterator[RunTrials | None]:
    """Yield what runs trials in other processes or on a cluster; None if this process is to run them itself."""
    if jobs == 1 and cluster is None:
        yield None
        return
    sent = replace(
        run, data=_file(run.data), validation=_file(run.validation), descriptions=_file(run.descriptions), test=None,
        base=halves.plan.base, store=None, checkpoints=None, resume=False, threads=run.threads or 1,
    )  # fmt: skip
    arguments = sent, loaded.method, loaded.parents, _digest(halves)
    executor = executor_for(cluster, jobs, lambda key, event: on_event(event))
    with contextlib.closing(executor):
        yield lambda todo, earlier: _run_all(executor, arguments, todo, earlier)


def _file(source: Any) -> Any:
    """Return a file or folder as a Path, a copy of which goes to other machines, and anything else as it is."""
    return Path(source) if isinstance(source, str | os.PathLike) and os.path.exists(source) else source


def _run_all(
    executor: Executor, arguments: tuple[Any, ...], todo: Sequence[Asked], earlier: Sequence[Trial]
) -> Iterator[Trial]:
    """Have trials run; yield each when it ends. Raise KeyboardInterrupt after Ctrl-C."""
    known = list(earlier)
    for asked in todo:
        call = Call(f"trial {asked.number + 1}", make_trial, (*arguments, asked, known), cores=arguments[0].threads)
        executor.submit(call)
    left = len(todo)
    with ctrl_c() as pressed:
        while left:
            for outcome in executor.outcomes(LOOK):
                left -= 1
                if outcome.stopped:
                    raise KeyboardInterrupt
                if outcome.error:
                    raise TrainingError(f"{outcome.key}: {outcome.error}")
                yield outcome.value
            if pressed():
                raise KeyboardInterrupt


def make_trial(
    run: Run,
    method: Method,
    parents: Parents,
    digest: str,
    asked: Asked,
    earlier: Sequence[Trial],
    on_event: Listener,
) -> Trial:
    """Run a trial in this process, which reads the data and opens the base for the first one only."""
    import torch

    torch.set_num_threads(run.threads or 1)
    return run_trial(asked, earlier, _opened(run, method, parents, digest).run, on_event)


_last: dict[str, Halves] = {}
"""The data and base of the search whose trials this process runs, by its digest."""


def _opened(run: Run, method: Method, parents: Parents, digest: str) -> Halves:
    from adaptree.training.pipeline import Halves, Loaded, TaskData, read, resolve

    if digest not in _last:
        loaded = Loaded(None, method, parents, [TaskData(run.name, read(run, run.data, method, silent))])
        halves = Halves.of(resolve(run, loaded, silent), loaded)
        if _digest(halves) != digest:
            raise TrainingError("the data was changed during the search.", hint="Run the command again.")
        _last.clear()
        _last[digest] = halves
    return _last[digest]


def _digest(halves: Halves) -> str:
    return hashlib.sha256(repr(halves.identity()).encode()).hexdigest()

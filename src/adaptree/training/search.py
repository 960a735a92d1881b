"""Search for a learning rate, a size and a number of epochs: trials on a part of the training rows.

Asynchronous successive halving (Li et al. 2020): a trial that after one, three, nine … epochs is not among the best
third of those so far is stopped. Trials share one activation cache, and none sees the rows that choose the epoch and
score the task. Optuna proposes the settings. Its `SuccessiveHalvingPruner` lets equal trials go on and counts trials
that diverge later, so `is_weak` below does that part.

Settings are chosen for `ROUND` trials at once, from the results of the rounds before, wherever the trials are run. A
trial that runs beside earlier ones of its round does not know their scores yet: it goes on until it is weak whatever
they are, and `settled` then cuts it where it would have been stopped after them. So the trials are the same, one after
another or in any number of processes.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from adaptree.data.events import Event, Listener, silent
from adaptree.errors import Diverged, TrainingError, UsageError
from adaptree.kinds import metrics
from adaptree.methods import Method, parse
from adaptree.tasks.runs import search_header
from adaptree.training import checkpoint
from adaptree.training.distributed import ProcessGroup
from adaptree.training.result import Fit
from adaptree.training.settings import Settings
from adaptree.training.work.interrupt import ctrl_c

RunTrial = Callable[[Method, Settings, Listener], Fit]
ROUND = 5
"""Trials whose settings are chosen at once: those of the first round by chance, and so many can run side by side."""
SIZES = (8, 16, 32, 64, 128, 256)
RANKS = (2, 4, 8, 16, 32)
SPREAD = 5.0
"""Learning rates are tried from a fifth of the given one to five times that."""
FACTOR = 3
RUNGS = frozenset(FACTOR**rung for rung in range(20))
"""The numbers of epochs after which weak trials are stopped."""


@dataclass(frozen=True)
class Trial:
    """One setting that was tried, and its result."""

    number: int
    method: str
    lr: float
    epochs: int
    score: float | None
    """The best epoch's, on the rows held out for the search; None if it, or the loss, is not a number."""
    course: list[float]
    """The score after each epoch."""
    stopped: bool
    """Whether it was stopped before its last epoch."""
    seconds: float


@dataclass(frozen=True)
class Asked:
    """A trial that is to be run."""

    number: int
    method: Method
    settings: Settings

    def is_of(self, trial: Trial) -> bool:
        """Return whether a trial is one of this setting."""
        wanted = self.number, str(self.method), self.settings.lr, self.settings.epochs
        return wanted == (trial.number, trial.method, trial.lr, trial.epochs)


RunTrials = Callable[[Sequence[Asked], Sequence[Trial]], Iterator[Trial]]
"""Runs the trials of a round, and yields them in any order; the second argument are the trials before them."""


def search(
    trials: int,
    method: Method,
    settings: Settings,
    width: int,
    run: RunTrial,
    *,
    run_all: RunTrials | None = None,
    identity: tuple[Any, ...] = (),
    device: str = "cpu",
    folder: Path | None = None,
    resume: bool = False,
    on_event: Listener = silent,
) -> tuple[Method, Settings, list[Trial]]:
    """Return the best method and settings of `trials` trials, and the trials; the first has the given settings.

    Which settings are tried next depends on the seed and on the results of earlier rounds alone. `run_all`, where it is
    given, runs the trials of a round elsewhere. Trials are kept in `folder`; with `resume`, those of the same
    `identity` and settings are not run again.
    """
    optuna = check_search(method)
    space = _space(optuna, method, settings, width)
    study = optuna.create_study(direction="maximize")
    study.enqueue_trial({"lr": settings.lr, "size": _initial_size(method, width), "epochs": settings.epochs})
    group = ProcessGroup(device)
    file = None if folder is None else folder / checkpoint.SEARCH
    key = hashlib.sha256(repr((identity, settings.to_dict())).encode()).hexdigest()
    done = group.broadcast(_read(file, key) if resume and group.rank == 0 else [])
    found: list[Trial] = []

    def propose(number: int) -> tuple[Any, Asked]:
        seed = (settings.seed * 1009 + number) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=ROUND)
        proposal = study.ask(space)
        params = proposal.params
        tried = parse(method, **{method.main: params["size"]}) if "size" in params else method
        return proposal, Asked(number, tried, replace(settings, lr=params["lr"], epochs=params["epochs"]))

    def keep(ahead: Sequence[Trial]) -> None:
        if file is not None and group.rank == 0:
            _write(file, key, [*found, *ahead])

    def run_here(todo: Sequence[Asked], earlier: Sequence[Trial]) -> Iterator[Trial]:
        return (run_trial(asked, earlier, run, on_event) for asked in todo)

    with ctrl_c() as pressed:
        for first in range(0, trials, ROUND):
            proposals = [propose(number) for number in range(first, min(first + ROUND, trials))]
            ended = {trial.number: trial for _, asked in proposals for trial in done if asked.is_of(trial)}
            kept = frozenset(ended)
            running = (run_all or run_here)([asked for _, asked in proposals if asked.number not in kept], found)
            for proposal, asked in proposals:
                while asked.number not in ended:
                    trial = next(running)
                    ended[trial.number] = trial
                    if trial.number != asked.number:
                        keep(list(ended.values()))
                trial = settled(ended.pop(asked.number), found, asked)
                _report(optuna, study, proposal, trial, _sign(settings))
                found.append(trial)
                on_event({"event": "trial", "trials": trials, "metric": settings.metric, **asdict(trial)})
                if asked.number not in kept:
                    keep(list(ended.values()))
                if group.broadcast(pressed()):
                    raise KeyboardInterrupt
    best = _best(found, _sign(settings), settings)
    return parse(best.method), replace(settings, lr=best.lr, epochs=best.epochs), found


def _sign(settings: Settings) -> float:
    """Return 1 where a higher score is better, -1 where a lower one is."""
    return 1.0 if metrics.better(str(settings.metric), 1.0, 0.0) else -1.0


def _report(optuna: Any, study: Any, proposal: Any, trial: Trial, sign: float) -> None:
    """Tell Optuna a trial's result; one without a score is the worst, however well it began."""
    if trial.score is not None:
        for epoch, value in enumerate(trial.course, start=1):
            proposal.report(_worth(value, sign), epoch)
    state = optuna.trial.TrialState.PRUNED if trial.stopped else optuna.trial.TrialState.COMPLETE
    study.tell(proposal, None if trial.stopped or trial.score is None else sign * trial.score, state=state)


def _best(found: Sequence[Trial], sign: float, settings: Settings) -> Trial:
    """Return the best of the trials that were not stopped, or of all if none is left; of equal ones the first."""
    scored = [(not t.stopped, sign * t.score, -t.number, t) for t in found if t.score is not None]
    if not scored:
        raise TrainingError(
            f"the loss or the score of each of the {len(found)} trials is not a number.",
            hint=f"Search around a smaller learning rate: --lr {float(settings.lr or 0) / 10:g}",
        )
    return max(scored)[-1]


def _worth(value: float, sign: float) -> float:
    return sign * value if math.isfinite(value) else -math.inf


def is_weak(value: float, epoch: int, earlier: Sequence[Trial], sign: float, unknown: int = 0) -> bool:
    """Return whether a score after 1, 3, 9 … epochs is outside the best third of those so far, its own included.

    An equal score of an earlier trial counts as better. Trials that ended without a score do not count. With so many
    earlier trials `unknown`, return whether that holds whatever their scores are.
    """
    if epoch not in RUNGS:
        return False
    scores = [trial.course[epoch - 1] for trial in earlier if trial.score is not None and len(trial.course) >= epoch]
    better = sum(_worth(other, sign) >= _worth(value, sign) for other in scores)
    return better >= max(1, (len(scores) + unknown + 1) // FACTOR)


def settled(trial: Trial, earlier: Sequence[Trial], asked: Asked) -> Trial:
    """Return a trial as it is after all earlier ones: cut at the first epoch whose score is weak beside theirs."""
    sign = _sign(asked.settings)
    for epoch, value in enumerate(trial.course, start=1):
        if epoch < _epochs(asked) and is_weak(value, epoch, earlier, sign):
            course = trial.course[:epoch]
            return replace(trial, course=course, score=_best_of(course, sign), stopped=True)
    return trial


def _epochs(asked: Asked) -> int:
    """Return how many epochs a trial has, those of all stages of its method."""
    return int(asked.settings.epochs or 0) * asked.method.stages


def _best_of(course: Sequence[float], sign: float) -> float | None:
    """Return the best score of a trial that was stopped; None if none is a number."""
    best = max(_worth(value, sign) for value in course)
    return sign * best if math.isfinite(best) else None


def _write(file: Path, key: str, trials: Sequence[Trial]) -> None:
    lines = "".join(json.dumps(asdict(trial)) + "\n" for trial in trials)
    checkpoint.put(file, lambda partial: partial.write_text(search_header(key, lines) + lines))


def _read(file: Path | None, key: str) -> list[Trial]:
    """Return the trials of a search that was stopped, if it was this one; none if the file is damaged."""
    if file is None or not file.is_file():
        return []
    try:
        first, *rest = [json.loads(line) for line in file.read_text().splitlines()]
        return [Trial(**line) for line in rest] if first["key"] == key else []
    except (ValueError, TypeError, KeyError):
        return []


def run_trial(asked: Asked, earlier: Sequence[Trial], run: RunTrial, on_event: Listener) -> Trial:
    """Run one trial until it ends, or until an epoch's score is weak beside those of the earlier trials."""
    method, settings = asked.method, asked.settings
    sign, unknown = _sign(settings), asked.number - len(earlier)
    course: list[float] = []

    def watch(event: Event) -> None:
        if event["event"] == "note" and asked.number == 0:  # once is enough
            on_event(event)
        if event["event"] == "epoch":
            course.append(event[str(settings.metric)])
            if len(course) < _epochs(asked) and is_weak(course[-1], len(course), earlier, sign, unknown):
                raise _Weak

    began = time.monotonic()
    stopped = False
    score: float | None
    try:
        fit = run(method, settings, watch)
        if not fit.finished:
            raise KeyboardInterrupt  # Ctrl-C ended the trial in good order, and ends the search too
        score = [h for h in fit.history if h.get("stage", 0) == method.stages - 1][fit.best - 1][str(settings.metric)]
    except _Weak:
        stopped, score = True, _best_of(course, sign)
    except Diverged:
        score = None
    lost = score is None or not math.isfinite(score)
    return Trial(
        number=asked.number,
        method=str(method),
        lr=float(settings.lr or 0),
        epochs=int(settings.epochs or 0),
        score=None if lost else score,
        course=course,
        stopped=stopped or lost,
        seconds=round(time.monotonic() - began, 3),
    )


class _Weak(Exception):
    pass


def check_search(method: Method) -> Any:
    """Return the module of Optuna; raise UsageError if it is not installed or the method has nothing to search for."""
    if method.standalone:
        raise UsageError(f"{method.name} has no learning rate to search for.", hint="Leave --search out.")
    try:
        import optuna
    except ImportError as error:
        raise UsageError("a search needs Optuna.", hint="pip install 'adaptree[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _space(optuna: Any, method: Method, settings: Settings, width: int) -> dict[str, Any]:
    """Return what may be tried: learning rates around the given one, all or half of the epochs, and sizes."""
    assert settings.lr is not None
    assert settings.epochs is not None
    space = {"lr": optuna.distributions.FloatDistribution(settings.lr / SPREAD, settings.lr * SPREAD, log=True)}
    epochs = sorted({max(1, settings.epochs // 2), settings.epochs})
    space["epochs"] = optuna.distributions.CategoricalDistribution(epochs)
    usual = {"size": SIZES, "rank": RANKS}.get(method.main, ())
    if (initial := _initial_size(method, width)) is not None:
        sizes = sorted({initial, *(n for n in usual if n <= width)})
        space["size"] = optuna.distributions.CategoricalDistribution(sizes)
    return space


def _initial_size(method: Method, width: int) -> int | None:
    """Return the size to begin with; None for a method without one, or one whose size must fit its heads."""
    if method.main not in ("size", "rank") or hasattr(method, "heads"):
        return None
    return getattr(method, method.main) or max(1, width // 16)

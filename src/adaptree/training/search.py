"""Which learning rate, size and number of epochs: trials on a part of the training rows, the weak ones stopped early.

Every trial runs on the same trunk. A trial that is not among the best third of those so far after one epoch, three,
nine, is stopped (asynchronous successive halving, Li et al. 2020); of equal ones the earlier is the better, as a second
one brings nothing. The rows that choose the epoch and score the task are not seen by any of them.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from adaptree.errors import Diverged, TrainingError, UsageError
from adaptree.kinds import metrics
from adaptree.methods import Method, parse
from adaptree.training import checkpoint
from adaptree.training.distributed import ProcessGroup
from adaptree.training.interrupt import ctrl_c
from adaptree.training.result import Fit
from adaptree.training.settings import Settings

Event = dict[str, Any]
SIZES = (8, 16, 32, 64, 128, 256)
RANKS = (2, 4, 8, 16, 32)
SPREAD = 5.0
"""Learning rates are tried from a fifth of the method's own to five times that."""
FACTOR = 3


@dataclass(frozen=True)
class Trial:
    """One setting that was tried, and what came of it."""

    number: int
    method: str
    lr: float
    epochs: int
    score: float | None
    """The best epoch's, on the rows held out for the search; none where it, or the loss, is not a number."""
    course: list[float]
    """The score after each epoch."""
    stopped: bool
    """Whether it was given fewer epochs than it asked for."""
    seconds: float


def search(
    trials: int,
    method: Method,
    settings: Settings,
    width: int,
    run: Callable[[Method, Settings, Callable[[Event], None]], Fit],
    *,
    identity: tuple[Any, ...] = (),
    device: str = "cpu",
    folder: Path | None = None,
    resume: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
) -> tuple[Method, Settings, list[Trial]]:
    """The best of so many settings, the given one among them; with `resume`, those kept in `folder` are not run again.

    What is tried next depends on the seed and on what came of the trials before it, and on nothing else. What was kept
    counts for the same `identity` and settings only.
    """
    optuna = ready(trials, method)
    space = _space(optuna, method, settings, width)
    sign = 1.0 if metrics.better(str(settings.metric), 1.0, 0.0) else -1.0
    study = optuna.create_study(direction="maximize")
    halving = Halving()
    study.enqueue_trial({"lr": settings.lr, "size": _given(method, width), "epochs": settings.epochs})
    group = ProcessGroup(device)
    file = None if folder is None else folder / checkpoint.SEARCH
    key = hashlib.sha256(repr((identity, settings.to_dict())).encode()).hexdigest()
    done = group.tell(_read(file, key) if resume and group.rank == 0 else [])
    found: list[Trial] = []
    with ctrl_c() as pressed:
        for number in range(trials):
            study.sampler = optuna.samplers.TPESampler(seed=(settings.seed * 1009 + number) % 2**32, n_startup_trials=5)
            asked = study.ask(space)
            how = parse(method, **{method.main: asked.params["size"]}) if "size" in asked.params else method
            chosen = replace(settings, lr=asked.params["lr"], epochs=asked.params["epochs"])
            same = (number, str(how), chosen.lr, chosen.epochs)
            kept = next((t for t in done if (t.number, t.method, t.lr, t.epochs) == same), None)
            trial = _try(same, how, chosen, run, halving, sign, kept, on_event)
            _tell(optuna, study, asked, trial, sign)
            found.append(trial)
            on_event({"event": "trial", "trials": trials, "metric": settings.metric, **asdict(trial)})
            if file is not None and kept is None and group.rank == 0:
                _write(file, key, found)
            if group.tell(pressed()):
                raise KeyboardInterrupt
    best = _best(found, sign, settings)
    return parse(best.method), replace(settings, lr=best.lr, epochs=best.epochs), found


def _tell(optuna: Any, study: Any, asked: Any, trial: Trial, sign: float) -> None:
    """What came of a trial; one without a score is the worst, however well it began."""
    if trial.score is not None:
        for epoch, value in enumerate(trial.course, start=1):
            asked.report(_worth(value, sign), epoch)
    state = optuna.trial.TrialState.PRUNED if trial.stopped else optuna.trial.TrialState.COMPLETE
    study.tell(asked, None if trial.stopped or trial.score is None else sign * trial.score, state=state)


def _best(found: Sequence[Trial], sign: float, settings: Settings) -> Trial:
    """The best of those that went to their end, or of all where none did; of equal ones the first."""
    scored = [(not t.stopped, sign * t.score, -t.number, t) for t in found if t.score is not None]
    if not scored:
        raise TrainingError(
            f"the loss or the score of each of the {len(found)} trials is not a number.",
            hint=f"Search around a smaller learning rate: --lr {float(settings.lr or 0) / 10:g}",
        )
    return max(scored)[-1]


def _worth(value: float, sign: float) -> float:
    return sign * value if math.isfinite(value) else -math.inf


class Halving:
    """What the trials so far had after one epoch, three, nine …, and whether another one is worth going on with."""

    def __init__(self) -> None:
        self._seen: dict[int, list[float]] = {FACTOR**rung: [] for rung in range(20)}

    def stops(self, epoch: int, value: float) -> bool:
        """Whether a value, which counts from now on, is not in the best third."""
        if epoch not in self._seen:
            return False
        seen = self._seen[epoch]
        better = sum(other >= value for other in seen)
        seen.append(value)
        return better >= max(1, len(seen) // FACTOR)

    def forget(self, values: Sequence[float]) -> None:
        """Take back the values of a trial, from its first epoch on."""
        for epoch, value in enumerate(values, start=1):
            if epoch in self._seen:
                self._seen[epoch].remove(value)


def _write(file: Path, key: str, trials: Sequence[Trial]) -> None:
    lines = [json.dumps(line) + "\n" for line in [{"key": key}, *map(asdict, trials)]]
    checkpoint.put(file, lambda partial: partial.write_text("".join(lines)))


def _read(file: Path | None, key: str) -> list[Trial]:
    """The trials of a search that was stopped, if it was this one; none where the file is torn."""
    if file is None or not file.is_file():
        return []
    try:
        first, *rest = [json.loads(line) for line in file.read_text().splitlines()]
        return [Trial(**line) for line in rest] if first["key"] == key else []
    except (ValueError, TypeError, KeyError):
        return []


def _try(
    named: tuple[int, str, float | None, int | None],
    method: Method,
    settings: Settings,
    run: Callable[[Method, Settings, Callable[[Event], None]], Fit],
    halving: Halving,
    sign: float,
    kept: Trial | None,
    on_event: Callable[[Event], None],
) -> Trial:
    """Run one setting, or go through what is known of it; what has no score in the end stops no other."""
    worths: list[float] = []
    last = int(settings.epochs or 0) * method.stages

    def weak(value: float) -> bool:
        worths.append(_worth(value, sign))
        return halving.stops(len(worths), worths[-1]) and len(worths) < last

    if kept is None:
        trial = _run(named, method, settings, run, weak, sign, on_event)
    else:
        trial = kept
        for value in kept.course:
            weak(value)
    if trial.score is None:
        halving.forget(worths)
    return trial


def _run(
    named: tuple[int, str, float | None, int | None],
    method: Method,
    settings: Settings,
    run: Callable[[Method, Settings, Callable[[Event], None]], Fit],
    weak: Callable[[float], bool],
    sign: float,
    on_event: Callable[[Event], None],
) -> Trial:
    """Run one setting, asking after each epoch whether it is worth the next."""
    course: list[float] = []

    def watch(event: Event) -> None:
        if event["event"] == "note" and named[0] == 0:  # once is enough
            on_event(event)
        if event["event"] == "epoch":
            course.append(event[str(settings.metric)])
            if weak(course[-1]):
                raise _Weak

    began = time.monotonic()
    stopped = False
    try:
        fit = run(method, settings, watch)
        if not fit.finished:
            raise KeyboardInterrupt  # the run ended its step and would be kept; the search ends with it
        score = [h for h in fit.history if h.get("stage", 0) == method.stages - 1][fit.best - 1][str(settings.metric)]
    except _Weak:
        stopped, score = True, sign * max(_worth(value, sign) for value in course)
    except Diverged:
        score = math.nan
    lost = not math.isfinite(score)
    number, spelled, lr, epochs = named
    seconds = round(time.monotonic() - began, 3)
    told = None if lost else score
    return Trial(number, spelled, float(lr or 0), int(epochs or 0), told, course, stopped or lost, seconds)


class _Weak(Exception):
    pass


def ready(trials: int, method: Method) -> Any:
    """Optuna, where a search of so many trials can be made; otherwise an error says why not."""
    if trials < 1:
        raise UsageError(f"a search needs at least one trial, not {trials}.")
    if method.standalone:
        raise UsageError(f"{method.name} has no learning rate to search for.", hint="Leave --search out.")
    try:
        import optuna
    except ImportError as error:
        raise UsageError("a search needs Optuna.", hint="pip install 'adaptree[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _space(optuna: Any, method: Method, settings: Settings, width: int) -> dict[str, Any]:
    """What may be tried: learning rates around the given one, half the epochs too, and sizes where there are such."""
    assert settings.lr is not None
    assert settings.epochs is not None
    space = {"lr": optuna.distributions.FloatDistribution(settings.lr / SPREAD, settings.lr * SPREAD, log=True)}
    epochs = sorted({max(1, settings.epochs // 2), settings.epochs})
    space["epochs"] = optuna.distributions.CategoricalDistribution(epochs)
    usual = {"size": SIZES, "rank": RANKS}.get(method.main, ())
    if (given := _given(method, width)) is not None:
        sizes = sorted({given, *(n for n in usual if n <= width)})
        space["size"] = optuna.distributions.CategoricalDistribution(sizes)
    return space


def _given(method: Method, width: int) -> int | None:
    """The size to begin with; none for a method that has no such number, or one that must fit its heads."""
    if method.main not in ("size", "rank") or hasattr(method, "heads"):
        return None
    return getattr(method, method.main) or max(1, width // 16)

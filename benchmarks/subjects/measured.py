"""Shared by every subject's script: the arguments, the data, a clock and one line of JSON at the end.

It runs in every environment, ours and the peers', so it imports nothing but the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

LABELS = "labels.json"
PACKAGES = ("adaptree", "adapters", "peft", "torch", "transformers", "accelerate", "tokenizers")
STARTED = float(os.environ.get("BENCH_STARTED") or time.monotonic())
"""When this process was started, by the clock that all processes of a machine share."""


def arguments(*more: tuple[str, Any]) -> argparse.Namespace:
    """Read the options of a training from the command line; `more` are further ones with their defaults."""
    parser = argparse.ArgumentParser()
    defaults: dict[str, Any] = {
        "base": "", "train": "", "validation": "", "out": "", "method": "houlsby", "size": 64, "epochs": 3,
        "lr": 1e-3, "batch": 32, "max_length": 128, "seed": 0,
    }  # fmt: skip
    for name, default in {**defaults, **dict(more)}.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser.parse_args()


def read(path: str) -> tuple[list[str], list[int]]:
    """Return texts and the numbers of their labels, from a file of JSON lines."""
    with Path(path).open() as file:
        rows = [json.loads(line) for line in file]
    names = json.loads((Path(path).parent / LABELS).read_text())
    return [row["text"] for row in rows], [names.index(row["label"]) if "label" in row else 0 for row in rows]


def accuracy(answers: Sequence[int], labels: Sequence[int]) -> float:
    return sum(int(a) == b for a, b in zip(answers, labels, strict=True)) / len(labels)


def weight(folder: str | Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def peak(start: bool = False) -> int | None:
    """Return this process's peak memory in bytes, after a reset with `start`; None if the system does not count it."""
    try:
        if start:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return None


class Measured:
    """Collects what one process measures of itself, and prints it at the end."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self.epochs: list[float] = []
        """Seconds of training in each epoch, evaluation left aside."""
        self.course: list[tuple[float, float]] = []
        """After each epoch: seconds since the process was started, and the validation score."""
        self._held: int | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began

    def base_is_loaded(self, model: Any) -> None:
        """Begin to count memory; the weights are read first, as a mapped file is held only once it is read."""
        self.seconds["until the base is loaded"] = time.monotonic() - STARTED
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.detach().sum()
        self._held = peak(start=True)

    def epoch_is_trained(self, seconds: float) -> None:
        self.epochs.append(seconds)

    def epoch_is_scored(self, score: float) -> None:
        self.course.append((time.monotonic() - STARTED, score))

    def say(self, **found: Any) -> None:
        """Print the one line of JSON that the benchmark reads."""
        most = peak()
        if self._held is not None and most is not None:
            self.found["memory"] = max(0, most - self._held)
        if self.course:
            self.found["score"] = max(score for _, score in self.course)
        self.found |= {"epochs": self.epochs, "course": self.course, "seconds": self.seconds, "versions": versions()}
        print(json.dumps(self.found | found))


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def computed() -> float:
    """Return the CPU seconds of this process and of the processes that it has run, which other work leaves alone."""
    own, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + theirs.ru_utime + theirs.ru_stime


def median_computed(do: Callable[[int], object], times: int) -> float:
    """Return the median CPU seconds of `do(0)`, `do(1)`, …"""
    took = []
    for i in range(times):
        began = computed()
        do(i)
        took.append(computed() - began)
    return statistics.median(took)


def median_seconds(do: Callable[[int], object], times: int) -> float:
    """Return the median time of `do(1)`, `do(2)`, …; `do(0)` runs first and is not counted."""
    took = []
    do(0)
    for i in range(1, times):
        began = time.perf_counter()
        do(i)
        took.append(time.perf_counter() - began)
    return statistics.median(took)

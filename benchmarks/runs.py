"""The commands that rows are made of, and the numbers that are read from their measurements."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from benchmarks.table import Measurement, Run

DOCUMENTED, TUNED, SAMPLER, FLOOR = "as documented", "tuned", "tuned, own sampler", "floor, by hand"
OURS = "adaptree"
RATES = {"houlsby": 1e-3, "lora": 3e-3, "full": 1e-4}
SIZES = {"houlsby": 64, "lora": 8, "full": 1}


@dataclass(frozen=True)
class Setup:
    """How large a benchmark is."""

    quick: bool
    rows: int
    """Training rows."""
    validation: int
    epochs: int
    texts: int
    """Texts to predict."""
    depth: int = 6
    """Layers of the base."""


QUICK = Setup(quick=True, rows=192, validation=96, epochs=2, texts=1_000)
FULL = Setup(quick=False, rows=300, validation=150, epochs=10, texts=10_000)


def training(
    setup: Setup,
    script: str,
    method: str = "houlsby",
    *,
    rows: int | None = None,
    epochs: int | None = None,
    size: int | None = None,
    max_length: int = 128,
    base: str = "{base}",
    data: str = "train",
    more: tuple[str, ...] = (),
) -> Run:
    """Return the run of a training script in subjects/ on the benchmark's data."""
    words = (
        "{python}", f"{{subjects}}/{script}.py", "--base", base,
        "--train", f"{{data}}/{data}-{rows or setup.rows}.jsonl",
        "--validation", f"{{data}}/validation-{setup.validation}.jsonl", "--out", "{out}",
        "--method", method, "--size", str(size or SIZES[method]), "--lr", f"{RATES[method]:g}",
        "--epochs", str(epochs or setup.epochs), "--max-length", str(max_length), *more,
    )  # fmt: skip
    return Run(words, "peers" if script.startswith(("adapters", "peft")) else "ours")


def command(setup: Setup, *more: str, epochs: int | None = None, out: str = "{out}") -> Run:
    """Return the run of `adaptree train` on the same data."""
    epochs = epochs or setup.epochs
    words = (
        "{adaptree}", "train", f"{{data}}/train-{setup.rows}.jsonl",
        "--validation", f"{{data}}/validation-{setup.validation}.jsonl", "--name", "task", "--store", out,
        "--base", "{base}", "--method", "houlsby(size=64, norms=false)", "--lr", "1e-3", "--epochs", str(epochs),
        "--patience", str(epochs), "--max-length", "128", "--quiet", "--format", "jsonl", *more,
    )  # fmt: skip
    return Run(words)


def stored(setup: Setup) -> Run:
    """Return the run that puts a task into the benchmark's store, to predict with and to load."""
    return command(setup, epochs=1, out="{scratch}/store")


def kept(setup: Setup, script: str) -> Run:
    """Return the run that trains a script's task for one epoch and leaves it in the scratch folder, as SCRIPT."""
    run = training(setup, script, epochs=1)
    return Run(tuple(word.replace("{out}", f"{{scratch}}/{script}") for word in run.words), run.place)


def bottlenecks(setup: Setup) -> dict[str, Run]:
    """Return runs with the same bottlenecks in all layers: ours, the peer in three ways, and the floor."""
    return {
        OURS: training(setup, "ours"),
        f"adapters, {DOCUMENTED}": training(setup, "adapters_documented"),
        f"adapters, {TUNED}": training(setup, "adapters_tuned"),
        f"adapters, {SAMPLER}": training(setup, "adapters_tuned", more=("--sampler",)),
        FLOOR: training(setup, "floor"),
    }


def loras(setup: Setup) -> dict[str, Run]:
    """Return runs with LoRA of rank 8 in query and value of all layers; a few epochs suffice for the time of one."""
    epochs = min(4, setup.epochs)

    def run(script: str, *more: str) -> Run:
        return training(setup, script, "lora", epochs=epochs, more=more)

    return {
        OURS: run("ours"),
        f"peft, {DOCUMENTED}": run("peft_documented"),
        f"peft, {TUNED}": run("peft_tuned"),
        f"peft, {SAMPLER}": run("peft_tuned", "--sampler"),
        FLOOR: run("floor"),
    }


def wall(m: Measurement) -> float:
    """Return the seconds of the whole process."""
    return float(m["seconds"])


def cpu(m: Measurement) -> float:
    """Return the CPU seconds of the whole process, on all cores."""
    return float(m["cpu"])


def memory(m: Measurement) -> float | None:
    """Return the bytes at the peak above the loaded base."""
    return _maybe(m["found"].get("memory"))


def size(m: Measurement) -> float | None:
    """Return the bytes of the saved task."""
    return _maybe(m["found"].get("bytes"))


def per_epoch(m: Measurement) -> float:
    """Return the median seconds of training in an epoch, without the first, which has one-off work in it."""
    epochs = m["found"]["epochs"]
    return float(statistics.median(epochs[1:] or epochs))


def answering(m: Measurement) -> float:
    """Return the seconds of tokenising and predicting a file of texts, once all is loaded."""
    return float(m["found"]["seconds"]["answer"])


def score(m: Measurement) -> float | None:
    """Return the best validation accuracy, from a script's output or from that of `adaptree train`."""
    found = m["found"]
    return _maybe(found["metrics"]["validation"]["accuracy"] if "metrics" in found else found.get("score"))


def _maybe(value: Any) -> float | None:
    return None if value is None else float(value)

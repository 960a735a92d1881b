"""A language model of 135 M that learns to write: training with LoRA, and decoding with a task."""

from __future__ import annotations

from benchmarks.runs import FLOOR, OURS, Setup, per_epoch
from benchmarks.table import Amount, Measurement, Run, Table

QUICK = False
ROWS, EPOCHS, BATCH = 24, 2, 8


def run(setup: Setup, script: str, *more: str) -> Run:
    """Return the run of a script on smollm, whose folder `{smollm}` stands for."""
    words = (
        "{python}", f"{{subjects}}/generate_{script}.py", "--base", "{smollm}",
        "--train", f"{{data}}/train-{ROWS}.jsonl", "--validation", f"{{data}}/validation-{setup.validation}.jsonl",
        "--out", "{out}", "--size", "8", "--lr", "0.001", "--epochs", str(EPOCHS), "--batch", str(BATCH), *more,
    )  # fmt: skip
    return Run(words, "peers" if script == "peft" else "ours")


def decoding(measured: Measurement) -> float | None:
    """Return the seconds of one step of decoding."""
    found = measured["found"].get("decode")
    return None if found is None else float(found)


def tables(setup: Setup) -> list[Table]:
    ours, floor = run(setup, "ours"), run(setup, "floor")
    peers = {"peft, as documented": run(setup, "peft"), "peft, tuned": run(setup, "peft", "--tuned")}
    training = {OURS: ours, FLOOR: floor, **peers}
    return [
        Table(
            title=f"One epoch of a language model: LoRA of rank 8 on smollm, {ROWS} short texts",
            unit="s",
            amounts={label: Amount((each,), per_epoch) for label, each in training.items()},
            aims={FLOOR: ">= 0.952", "peft, as documented": ">= 1", "peft, tuned": ">= 1"},
            note="Each text's second half is learned after its first; fp32, processor seconds of one thread. The floor "
            "computes the output layer only where an output is, as adaptree does; peft's model does for every token.",
        ),
        Table(
            title="One step of decoding 16 prompts with that task",
            unit="ms",
            amounts={OURS: Amount((ours,), decoding), FLOOR: Amount((floor,), decoding)},
            aims={FLOOR: ">= 0.909"},
            scale=1000,
            note="Greedy, at most 32 tokens, processor time of one thread; the floor is transformers' generate with "
            "merged weights.",
        ),
    ]

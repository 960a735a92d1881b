"""Predictions for a file of short texts."""

from __future__ import annotations

from benchmarks.runs import FLOOR, OURS, Setup, answering, kept, stored, wall
from benchmarks.table import Amount, Run, Table

QUICK = False


def before(setup: Setup) -> list[Run]:
    return [stored(setup), kept(setup, "adapters_documented"), kept(setup, "floor")]


def tables(setup: Setup) -> list[Table]:
    texts = f"{{data}}/texts-{setup.texts}.jsonl"
    common = ("--base", "{base}", "--texts", texts, "--out", "{out}")
    script = "{subjects}/predict_"
    words = ("{adaptree}", "predict", "task", "--file", texts, "--store", "{scratch}/store", "--base", "{base}",
             "--format", "jsonl")  # fmt: skip
    ours = {OURS: Run(words), f"{OURS} --int8": Run((*words, "--int8"))}
    saved = "{scratch}/adapters_documented/saved"
    peers = {
        "adapters, as documented": Run(("{python}", f"{script}adapters.py", *common, "--task", saved), "peers"),
        "adapters, tuned": Run(("{python}", f"{script}adapters.py", *common, "--task", saved, "--sorted"), "peers"),
    }
    floor = Run(("{python}", f"{script}floor.py", *common, "--task", "{scratch}/floor"))
    within = {OURS: Run(("{python}", f"{script}ours.py", *common, "--task", "{scratch}/store")), FLOOR: floor}
    return [
        Table(
            title=f"{setup.texts:,} short texts, from start to written answers",
            unit="s",
            amounts={label: Amount((run,), wall) for label, run in {**ours, **peers, FLOOR: floor}.items()},
            note="adaptree from the command line. The peer as documented: texts in their order, batches of 32, padded "
            "to the longest; tuned: ordered by length, batches of 64, in inference mode.",
        ),
        Table(
            title=f"The same without start-up: tokenising and answering {setup.texts:,} texts",
            unit="s",
            amounts={label: Amount((run,), answering) for label, run in {**within, **peers}.items()},
            reference=FLOOR,
            aims={OURS: "<= 1.05"},
        ),
    ]

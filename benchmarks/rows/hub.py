"""A store of up to 10,000 small tasks: add, list, search, verify, the index, remove; and folders of the peers'."""

from __future__ import annotations

from benchmarks.rows.tasks import reader
from benchmarks.runs import OURS, Setup, stored
from benchmarks.table import Amount, Growth, Run

QUICK = False
COUNTS = (100, 1000, 10_000)
FLAT, LINEAR = "<= 0.1", "<= 1.1"
OPERATIONS = {
    "list": ("list, index filled", LINEAR),
    "command": ("`adaptree list --limit 50`", LINEAR),
    "search": ("search, two words", LINEAR),
    "rebuild": ("list, index deleted", LINEAR),
    "verify": ("verify, all files hashed", LINEAR),
    "add": ("add", FLAT),
    "remove": ("remove", FLAT),
}
"""Label and aim of each, by its name in what the subject prints."""


def before(setup: Setup) -> list[Run]:
    return [stored(setup)]


def tables(setup: Setup) -> list[Growth]:
    counts = ("--base", "{base}", "--out", "{out}", "--counts", ",".join(map(str, COUNTS)))
    ours = Run(("{python}", "{subjects}/hub_ours.py", *counts, "--task", "{scratch}/store"))
    peers = {
        name: Run(("{python}", "{subjects}/hub_peers.py", *counts, "--method", name), "peers")
        for name in ("adapters", "peft")
    }
    along = "tasks that are there"
    price = "CPU time, with files that the system has in memory; what the disk takes to write a task comes on top."
    note = (
        "CPU time. Ours: every task is listed with its kind, score and price, and one that changed on disk is noticed. "
        "The peers have no store: every folder's adapter_config.json is read, which has neither labels nor a score; "
        "once by a plain walk, once with the library's own class."
    )
    return [
        Growth(
            "Many tasks in a store", "ms", along,
            {label: {n: Amount((ours,), reader(what, n)) for n in COUNTS} for what, (label, _) in OPERATIONS.items()},
            aims=dict(OPERATIONS.values()), scale=1e3, note=price,
        ),
        Growth(
            "Listing many tasks", "ms", along,
            {OURS: {n: Amount((ours,), reader("list", n)) for n in COUNTS}}
            | {f"{name}, {how}": {n: Amount((run,), reader(what, n)) for n in COUNTS}
               for name, run in peers.items() for what, how in (("list", "plain walk"), ("own", "its own class"))},
            aims={OURS: LINEAR}, scale=1e3, note=note,
        ),
    ]  # fmt: skip

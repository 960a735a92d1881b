"""Start-up: importing, --help, and one prediction from the command line."""

from __future__ import annotations

from benchmarks.runs import Setup, stored, wall
from benchmarks.table import Amount, Run, Table

QUICK = True


def before(setup: Setup) -> list[Run]:
    return [stored(setup)]


def tables(setup: Setup) -> list[Table]:
    bare = "import torch, transformers; BertModel.from_pretrained"
    load = "import sys, torch, transformers; transformers.BertModel.from_pretrained(sys.argv[1])"
    helps = {
        "import adapters": Run(("{python}", "-c", "import adapters"), "peers"),
        "import peft": Run(("{python}", "-c", "import peft"), "peers"),
        "adaptree --help": Run(("{adaptree}", "--help")),
        "import adaptree": Run(("{python}", "-c", "import adaptree")),
    }
    predicts = {
        bare: Run(("{python}", "-c", load, "{base}")),
        "adaptree predict, one line": Run(
            ("{adaptree}", "predict", "task", "call this number now", "--store", "{scratch}/store", "--base", "{base}")
        ),
    }
    return [
        Table("Start-up", "s", {label: Amount((run,), wall) for label, run in helps.items()},
              reference="import adapters", aims={"adaptree --help": "<= 0.3"}),
        Table("One answer from the command line", "s", {label: Amount((run,), wall) for label, run in predicts.items()},
              reference=bare, aims={"adaptree predict, one line": "<= 1.3"}),
    ]  # fmt: skip

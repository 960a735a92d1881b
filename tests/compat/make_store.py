"""Make a base, a store with tasks of all kinds and methods, and what they answer.

    python tests/compat/make_store.py OUT

The result of one release is committed as `store-VERSION`; test_old_store.py checks that later code reads it and gives
the same answers. Make it anew only for a new version of the format, under a new name.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402

import adaptree as at  # noqa: E402
from tests.bases import tiny_base  # noqa: E402
from tests.compat.asking import answers, command, machine  # noqa: E402
from tests.compat.forms import OPTIONS, questions, rows, write  # noqa: E402

PLACE = "{here}"
"""Stands in bases.json for the folder that holds the base; the test puts its own there."""
TASKS: list[tuple[str, str, str, dict[str, Any]]] = [
    # name, form, method, other options; a name that comes again is a new version
    ("words", "single", "houlsby:4", {}),
    ("words", "single", "houlsby:4", {"seed": 1}),
    ("a", "single", "pfeiffer:4", {}),
    ("b", "single", "pfeiffer:4", {"seed": 1}),
    ("pairs", "pair", "parallel:4", {}),
    ("long", "windows", "lora:2", {}),
    ("several", "labels", "bitfit", {}),
    ("number", "regress", "lt_sft:0.05", {}),
    ("numbers", "numbers", "ia3", {}),
    ("tags", "tag", "houlsby:4", {}),
    ("spans", "spans", "pfeiffer:4", {}),
    ("answers", "answer", "top:1", {}),
    ("choices", "choose", "norms", {}),
    ("lang/xx", "mlm", "pfeiffer(size=4, invertible=true)", {}),
    ("lang/yy", "mlm", "houlsby:4", {"seed": 1}),
    ("methods/full", "single", "full", {"class_weights": True}),
    ("methods/head", "single", "head", {}),
    ("methods/tfidf", "single", "tfidf", {}),
    ("methods/tfidf-number", "regress", "tfidf", {}),
    ("methods/pal", "single", "pal(size=8, heads=4)", {}),
    ("methods/diff-pruning", "single", "diff_pruning:0.05", {}),
    ("methods/rand-sft", "single", "rand_sft:0.05", {}),
    ("methods/bapna", "single", "bapna:4", {}),
    ("methods/scaled-parallel", "single", "scaled_parallel:4", {}),
    ("methods/deep", "single", "houlsby_deep:4", {}),
    ("methods/attention", "single", "houlsby_attention:4", {}),
    ("methods/feedforward", "single", "houlsby_feedforward:4", {}),
    ("methods/norm", "single", "houlsby_norm:4", {}),
    ("methods/beside", "single", "houlsby_parallel:4", {}),
    ("methods/multiplicative", "single", "houlsby_multiplicative:4", {}),
    ("methods/lora-all", "pair", "lora(rank=2, targets=all)", {}),
    ("methods/layers", "tag", "houlsby(size=4, layers=top:1)", {}),
    ("on-language", "single", "pfeiffer:4", {"on": "lang/xx"}),
    ("tags-on-language", "tag", "pfeiffer:4", {"on": "stack(lang/xx, a)"}),
    ("fused", "single", "fuse(a, b)", {"seed": 2}),
]
COMPOSITIONS: list[tuple[str, str]] = [
    ("stack(lang/xx, a)", "single"),
    ("stack(a, methods/lora-all)", "pair"),
    ("average(a, b, weights=[0.25, 0.75])", "single"),
    ("average(words@1, words@2)", "single"),
    ("average_outputs(a, words)", "single"),
    ("drop(words, layers='0')", "single"),
    ("stack(b, average(a, b))", "single"),
]


def make_tasks(base: Any, store: Any) -> dict[str, str]:
    """Train all of TASKS; the form of each reference."""
    forms = {}
    for name, form, method, options in TASKS:
        at.train(
            rows(form, 30, seed=options.get("seed", 0)), name=name, base=base, method=method, store=store, epochs=2,
            batch_size=4, lr=2e-2, **{**OPTIONS.get(form, {}), **options},
        )  # fmt: skip
        forms[f"{name}@{1 + (f'{name}@1' in forms)}"] = form
    return forms


def make_with_commands(out: Path, data: Path) -> dict[str, str]:
    """What the command line makes of files and of other tasks; the form of each reference."""
    common = ["--store", out / "store", "--quiet"]
    here = ["--base", out / "base", *common]
    learn = ["--epochs", 2, "--batch-size", 4, "--lr", 2e-2]
    single, lions = (
        write(data / "single.jsonl", "single", 30, seed=3),
        write(data / "lions.jsonl", "regress", 30, seed=3),
    )
    command("train", single, lions, "--joint", "--name", "both", "--method", "pfeiffer:4", "--temperature", 2,
            *learn, *here)  # fmt: skip
    command("compose", "fuse(a, both/single)", "--name", "fused-joint", "--train", single, *learn, *here)
    command("compose", "average(a, b)", "--name", "mean", *here)
    command("compose", "drop(words, layers='0')", "--name", "less", *here)
    command("compose", "stack(lang/xx, a)", "--name", "stacked", *here)
    command("rebase", "a", "--base", out / "aligned", "--name", "moved", *common)
    made = ("both/single", "fused-joint", "mean", "less", "stacked", "moved")
    return {"both/lions@1": "regress", **{f"{name}@1": "single" for name in made}}


def make_attached(base: Path, store: Any) -> list[list[int]]:
    """A task taken from a user's own model after a few steps, in the store; inputs to ask of it."""
    from transformers import BertForSequenceClassification
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    with contextlib.chdir(base.parent):  # the task records where the model was loaded from
        model = BertForSequenceClassification.from_pretrained(base.name, num_labels=3)
    tuned = at.attach(model, "houlsby:4", seed=0)
    ids = torch.randint(4, 20, (12, 8), generator=torch.Generator().manual_seed(0))
    optimiser = torch.optim.AdamW(tuned.parameters(), lr=2e-2)
    for _ in range(8):
        loss = tuned.train()(input_ids=ids, labels=ids[:, 1] % 3).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    store.add(tuned.task)
    return ids[:4].tolist()


def asks_of(forms: dict[str, str], ids: list[list[int]]) -> list[dict[str, Any]]:
    """What is asked of each task and composition."""
    found = [
        {"task": task, "form": form, "base": "aligned" if task == "moved@1" else "base", "inputs": questions(form)}
        for task, form in (*forms.items(), *COMPOSITIONS)
    ]
    found.append({"task": "attached@1", "form": "attached", "base": "base", "inputs": ids})
    texts = questions("single")[:4]
    many = "parallel(words, number, tags, methods/tfidf, lang/xx, several, stack(lang/xx, a), both/single)"
    found.append({"task": many, "form": "several", "base": "base", "inputs": texts})
    wanted = ["words", "several", "stack(lang/xx, a)", "tags"]
    found.append(
        {"task": "rows(words, several, tags, stack(lang/xx, a))", "form": "several", "base": "base", "inputs": texts,
         "tasks": wanted}
    )  # fmt: skip
    return found


def tidy(out: Path) -> None:
    """Leave what a user would copy to another machine: no caches, no folders of runs, no paths of this one."""
    for path in (out / "store").iterdir():
        if path.name not in ("tasks", "bases.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    bases = out / "store" / "bases.json"
    bases.write_text(bases.read_text().replace(str(out), PLACE))


def main(out: Path) -> None:
    out.mkdir(parents=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ADAPTREE_CACHE"] = str(Path(folder) / "cache")
        for name, seed in (("base", 0), ("aligned", 1)):
            tiny_base(out / name, seed=seed, hidden=16, mask=True)
        base, store = at.load_base(out / "base"), at.Store(out / "store")
        forms = make_tasks(base, store)
        forms |= make_with_commands(out, Path(folder))
        asks = asks_of(forms, make_attached(out / "base", store))
        listed = json.loads(command("list", "--store", store.path, "--format", "json"))
        tidy(out)
        bases: dict[str, Any] = {}
        entries = [{**each, "expected": answers(out, each, bases)} for each in asks]
        made = {"machine": machine(), "adaptree": at.__version__, "listed": listed, "entries": entries}
        (out / "expected.json").write_text(json.dumps(made, indent=1, allow_nan=False) + "\n")
        tidy(out)
    missing = {f"{row['name']}@{row['version']}" for row in listed} - {each["task"] for each in asks}
    assert not missing, f"nothing is asked of {sorted(missing)}"
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{len(entries)} entries, {len(listed)} tasks, {size / 1e6:.2f} MB in {out}, by {Path(at.__file__).parent}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve())

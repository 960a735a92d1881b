"""Digests of what training gives, to see that a change of the code changes no bit of it.

    python tests/compat/digests.py OUT.json                             # train, and write the digests
    python tests/compat/digests.py OUT.json --against digests-0.1.json  # and compare; ends with 1 where they differ

Each run is trained on a tiny base by one thread, over all kinds of data and all families of methods. For each, the file
has a sha256 over the names and bytes of the task's weights, and the parts of its record that time does not change. Only
names that users have are used here, so the same script runs before and after a change inside the package. Digests of
two machines may differ; the file says on which one they were made.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402

import adaptree as at  # noqa: E402
from tests.bases import tiny_base  # noqa: E402
from tests.compat.asking import command, machine, renamed  # noqa: E402
from tests.compat.forms import FORMS, OPTIONS, rows, write  # noqa: E402

METHODS = {
    # of each method the form of data that it is trained on; the forms are all trained with houlsby too
    "pfeiffer:8": "single",
    "pfeiffer(size=8, invertible=true)": "mlm",
    "parallel:8": "pair",
    "scaled_parallel:8": "single",
    "bapna:8": "single",
    "lora:2": "windows",
    "lora(rank=2, targets=all)": "tag",
    "ia3": "choose",
    "bitfit": "answer",
    "norms": "labels",
    "head": "numbers",
    "full": "regress",
    "top:1": "single",
    "lt_sft:0.05": "tag",
    "rand_sft:0.05": "single",
    "diff_pruning:0.05": "single",
    "pal(size=16, heads=4)": "pair",
    "tfidf": "single",
    "houlsby(size=8, layers=top:1)": "single",
    "houlsby_deep:8": "single",
    "houlsby_multiplicative:8": "single",
}
RECORD = (
    "kind", "labels", "method", "metrics", "intervals", "baselines", "parameters", "columns", "data", "settings",
    "max_length", "pooling", "history", "extra",
)  # fmt: skip
"""What is written of a record, beside the weights' digest."""


def timeless(value: Any) -> Any:
    """A value of a record without the seconds that something took."""
    if isinstance(value, dict):
        return {key: timeless(each) for key, each in value.items() if key != "seconds"}
    return [timeless(each) for each in value] if isinstance(value, list | tuple) else value


class World:
    """A base, a store and files of data in a folder, and what was trained on them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.base = at.load_base(tiny_base(root / "base", layers=3, mask=True))
        self.store = at.Store(root / "store")
        self.found: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}

    def file(self, form: str, part: str) -> Path:
        """Data of a form to train on, to validate on or to test on."""
        path = self.root / f"{form}-{part}.jsonl"
        count, seed = {"train": (48, 0), "validation": (20, 1), "test": (20, 2)}[part]
        return path if path.exists() else write(path, form, count, seed)

    def train(self, called: str, form: str = "single", **options: Any) -> Any:
        """Train a task with a validation and a test file, and note its digest; options are those of adaptree.train."""
        asked = {
            "method": "houlsby:8", "epochs": 2, "lr": 5e-3, "batch_size": 8, "name": "task",
            "validation": self.file(form, "validation"), "test": self.file(form, "test"), **OPTIONS.get(form, {}),
            **options,
        }  # fmt: skip
        began = time.monotonic()
        bound = at.train(self.file(form, "train"), base=self.base, **asked)
        self.seconds[called] = round(time.monotonic() - began, 2)
        self.note(called, bound.task)
        return bound

    def note(self, called: str, task: Any) -> None:
        assert called not in self.found, called
        record = {key: timeless(getattr(task.record, key)) for key in RECORD}
        self.found[called] = {"weights": digest(task.weights), **record}


def digest(weights: Any) -> str:
    """A sha256 over the names, types, shapes and bytes of some tensors, by name."""
    found = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def every_form(world: World) -> None:
    """Data of each form, with houlsby; and without a validation file, so that rows are held out."""
    for form in FORMS:
        world.train(f"form {form}", form)
    world.train("held out: single", "single", validation=None, test=None)
    world.train("held out: tag", "tag", validation=None, test=None)
    bound = at.train(rows("pair", 30), base=world.base, name="rows", epochs=1, lr=5e-3, seed=3)
    world.note("rows of Python, default method", bound.task)


def every_method(world: World) -> None:
    for method, form in METHODS.items():
        world.train(f"method {method}", form, method=method)


def every_setting(world: World) -> None:
    """Options that take other ways through the training."""
    world.train("another seed", seed=7)
    world.train("class weights", "pair", class_weights=True)
    world.train("accumulate", accumulate=4)
    world.train("accumulate, several labels", "labels", accumulate=3)
    world.train("accumulate, windows", "windows", method="pfeiffer:8", accumulate=2)
    world.train("fast", fast=True)
    world.train("fast, pair", "pair", fast=True)
    # With this seed one search keeps the settings that it began with, and the other finds better ones.
    world.train("search", search=3, method="pfeiffer:8", epochs=4, lr=1e-3, seed=1)
    world.train("search, fast", search=3, fast=True, epochs=4, lr=1e-3, seed=1, store=world.store, name="searched")


def made_of_others(world: World) -> None:
    """Tasks on top of others, a fusion, joint training and compositions that are kept."""
    kept: dict[str, Any] = {"store": world.store, "method": "pfeiffer:8"}
    world.train("part a", name="a", **kept)
    world.train("part b", name="b", seed=1, **kept)
    world.train("language", "mlm", name="lang", **kept)
    world.train("on", "tag", name="on", on="lang", **kept)
    world.train("on a stack", name="on-stack", on="stack(lang, a)", **kept)
    world.train("fuse", name="fused", **{**kept, "method": "fuse(a, b)"})
    common = ["--store", world.store.path, "--base", world.root / "base", "--quiet"]
    files = [world.file(form, "train") for form in ("single", "regress", "tag")]
    learn = ["--method", "pfeiffer:8", "--epochs", 2, "--lr", 5e-3, "--batch-size", 8]
    command("train", *files, "--joint", "--name", "both", "--temperature", 2, *learn, *common)
    command("compose", "average(a, b)", "--name", "mean", *common)
    command("compose", "drop(a, layers='0')", "--name", "less", *common)
    for name in ("both/single-train", "both/regress-train", "both/tag-train", "mean", "less"):
        world.note(f"command {name}", world.store[name])


def stopped_and_resumed(world: World) -> None:
    """Ctrl-C in the second of four epochs; what was resumed has to be what was never stopped."""
    whole = world.train("not stopped", epochs=4, lr=2e-2)
    steps = 0

    def press(event: dict[str, Any]) -> None:
        nonlocal steps
        steps += event["event"] == "step" and event["epoch"] == 2
        if steps == 3:
            steps += 1
            signal.raise_signal(signal.SIGINT)

    kept: dict[str, Any] = {"epochs": 4, "lr": 2e-2, "store": world.store, "name": "stopped"}
    half = world.train("stopped", on_event=press, **kept)
    assert len(half.task.record.history) < len(whole.task.record.history), "the run was not stopped"
    assert digest(half.task.weights) != digest(whole.task.weights), "the best epoch was before the stop"
    again = world.train("resumed", resume=True, **kept)
    assert digest(again.task.weights) == digest(whole.task.weights), "a resumed run gave other bits"


PARTS: list[Callable[[World], None]] = [every_form, every_method, every_setting, made_of_others, stopped_and_resumed]


def run() -> dict[str, Any]:
    """Train everything; the digests, and the machine that made them."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["ADAPTREE_CACHE"] = str(root / "cache")  # nothing of an earlier run counts
        world = World(root)
        for part in PARTS:
            part(world)
            print(f"{part.__name__}: {len(world.found)} tasks so far", file=sys.stderr)
        base = hashlib.sha256((root / "base" / "model.safetensors").read_bytes()).hexdigest()
    slow = sorted(world.seconds.items(), key=lambda item: -item[1])[:3]
    print(f"the slowest: {', '.join(f'{name} {seconds} s' for name, seconds in slow)}", file=sys.stderr)
    return {"machine": machine(), "adaptree": at.__version__, "base": base, "tasks": world.found}


def compare(found: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """What differs, one line for each task and each part of it."""
    said = [f"{key}: {found[key]}, before {before[key]}" for key in ("machine", "base") if found[key] != before[key]]
    now, then = found["tasks"], {name: renamed(task) for name, task in before["tasks"].items()}
    said += [f"{name}: only {'now' if name in now else 'before'}" for name in sorted(now.keys() ^ then.keys())]
    for name in (name for name in then if name in now):
        for key in then[name]:
            if now[name].get(key) != then[name][key]:
                said.append(f"{name}: {key} differ")
    return said


def written(found: dict[str, Any]) -> str:
    """The file's text, with a line for each task."""
    lines = [
        f" {json.dumps(name)}: {json.dumps(task, sort_keys=True)}" for name, task in sorted(found["tasks"].items())
    ]
    facts = [f"{json.dumps(key)}: {json.dumps(found[key])}" for key in ("adaptree", "base", "machine")]
    return "{\n" + ",\n".join([*facts, '"tasks": {\n' + ",\n".join(lines) + "\n}"]) + "\n}\n"


def main(words: list[str]) -> int:
    if len(words) not in (1, 3) or (len(words) == 3 and words[1] != "--against"):
        sys.exit(__doc__)
    print(f"adaptree of {Path(at.__file__).parent}", file=sys.stderr)
    began = time.monotonic()
    found = json.loads(json.dumps(run(), sort_keys=True))
    Path(words[0]).write_text(written(found))
    print(f"{len(found['tasks'])} tasks in {time.monotonic() - began:.0f} s")
    if len(words) == 1:
        return 0
    differ = compare(found, json.loads(Path(words[2]).read_text()))
    print("\n".join(differ) or "all as before, bit for bit")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

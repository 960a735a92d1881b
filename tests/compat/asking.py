"""How the compatibility fixtures are made and checked: commands, answers, bits and the machine that gave them.

Only names that users have are used here, so that a fixture can be checked whatever the modules inside are called.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import adaptree as at
from tests.compat.forms import asked, rows


def machine() -> dict[str, Any]:
    """What the last bits of a product depend on."""
    bf16 = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "bf16": bool(bf16()),
    }


def command(*words: object, **env: str) -> str:
    """What `adaptree …` prints, run as a user runs it; a code other than 0 is an error that shows what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "adaptree", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "HF_HUB_OFFLINE": "1", **env},
    )
    if done.returncode:
        raise AssertionError(f"adaptree {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def bits(tensor: torch.Tensor) -> dict[str, Any]:
    """A tensor's shape and the bytes of its numbers in fp32, as JSON can hold them."""
    numbers = tensor.detach().to(torch.float32).contiguous()
    return {"shape": list(numbers.shape), "fp32": numbers.numpy().astype("<f4").tobytes().hex()}


def numbers(kept: dict[str, Any]) -> torch.Tensor:
    """The tensor that `bits` wrote down."""
    return torch.frombuffer(bytearray.fromhex(kept["fp32"]), dtype=torch.float32).reshape(kept["shape"])


def answers(root: Path, asks: dict[str, Any], bases: dict[str, Any]) -> dict[str, Any]:
    """What a store says to one entry of expected.json: predictions, logits and scores, each where there is such.

    `asks` has the task's name or a composition, the form of its data, the inputs, and the folder of the base. `bases`
    keeps those that were loaded.
    """
    store = at.Store(root / "store")
    if asks["form"] == "attached":
        return {"logits": bits(_attached_logits(root / asks["base"], store[asks["task"]], asks["inputs"]))}
    base = bases.setdefault(asks["base"], None) or at.load_base(root / asks["base"])
    bases[asks["base"]] = base
    plain = "(" not in asks["task"]
    bound = base.bind(store[asks["task"]]) if plain else base.bind(asks["task"], tasks=store)
    inputs = asked(asks["form"], asks["inputs"])
    if "tasks" in asks:
        found = {"predictions": [each.to_dict() for each in bound.predict(inputs, tasks=asks["tasks"])]}
    else:
        found = {"predictions": [each.to_dict() for each in bound.predict(inputs)]}
    if asks["form"] == "several":
        return found
    scored = at.evaluate(bound, rows(asks["form"], 24, seed=7))
    scores = {"metrics": scored["metrics"], "intervals": scored["intervals"]}
    return {**found, "logits": bits(bound.logits(inputs)), "scores": scores}


def _attached_logits(base: Path, task: Any, ids: list[list[int]]) -> torch.Tensor:
    """The logits of a user's own model with a stored task on it."""
    from transformers import BertForSequenceClassification
    from transformers.utils import logging

    logging.set_verbosity_error()  # the head is not in the base's folder, and comes with the task
    logging.disable_progress_bar()
    model = BertForSequenceClassification.from_pretrained(base, num_labels=3)
    with torch.no_grad():
        return at.attach(model, task).eval()(input_ids=torch.tensor(ids)).logits


SETTINGS = {"trunk": "activation_cache", "trunk_depth": "cached_layers"}
NEW = {"adapter_drop": 0}
"""Settings that came later, at the values that change nothing."""


def renamed(record: dict[str, Any]) -> dict[str, Any]:
    """Return what a record of 0.1 says today: nothing but names has changed since, and settings were added.

    Several labels or numbers are kinds of their own now, the method `parallel` is `parallel_adapter`, and two settings
    of the activation cache have its name.
    """
    now = dict(record)
    extra = dict(now.get("extra") or {})
    if now.get("kind") == "classify" and extra.pop("several", False):
        now["kind"] = "multilabel"
    if now.get("kind") == "regress" and "targets" in extra:
        now["kind"] = "multioutput"
    if "extra" in now:
        now["extra"] = extra
    if str(now.get("method", "")).startswith("parallel("):
        now["method"] = "parallel_adapter(" + now["method"].removeprefix("parallel(")
    if now.get("settings"):
        now["settings"] = {**NEW, **{SETTINGS.get(key, key): value for key, value in now["settings"].items()}}
    return now

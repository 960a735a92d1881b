"""A tiny language model with tasks that write and one that classifies, for tests of serving texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from adaptree.models.loading import load_base
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from tests.bases import writing_base
from tests.serve.serving import World, trained

METHODS = {
    "echo": "houlsby:4", "sing": "houlsby:4", "lora": "lora:4", "norms": "norms", "full": "full", "top": "top:1",
    "acme/poem": "houlsby:4",
}  # fmt: skip
PROMPTS = ["say ag", "tell me about the old lion near the river and what it did there", "a", "what is 1 and 2?"]


def make_writing_world(folder: Path, *, chat: bool = True) -> World:
    base = load_base(writing_base(folder / "writer", chat=chat))
    store = Store(folder / "store")
    rows = [{"prompt": f"say {a}{b}", "completion": f"{b}{a} {a}"} for a in "abcd" for b in "gh"]
    for i, (name, method) in enumerate(METHODS.items()):
        task = trained(base, rows, name, method=method, seed=i)
        noise = torch.Generator().manual_seed(i)
        weights = {key: p + 0.2 * torch.randn(p.shape, generator=noise) for key, p in task.weights.items()}
        store.add(Task(task.record, weights))
    labelled = [{"text": f"{a} {b}", "label": "xy"[i % 2]} for i, a in enumerate("abcd") for b in "ghij"]
    store.add(trained(base, labelled, "words", method="houlsby:4"))
    return World(folder, base, store)


def alone(world: World, task: str, given: Any, **decoding: Any) -> Any:
    """What a task writes by itself, outside of any server."""
    bound = world.base.bind(world.store[task])
    return bound.predict([given], **decoding)[0]

"""`attach(model, method)`: a task's weights on any Hugging Face model, for any training loop."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptree.errors import AdaptreeError, WrongBase
from adaptree.fingerprint import fingerprint
from adaptree.host import Host, share, without_dropout
from adaptree.methods import Method, parse
from adaptree.sites import Architecture, backbone_of
from adaptree.task import Record, Task


class Tuned(nn.Module):
    """A frozen model with a task's weights in it. Its parameters, and its state dict, are just those and the head.

    It runs on a shared-tensor tree of the model (same tensors, modules of its own), so the model given is never
    touched. What is not found here is asked of that tree: `config`, `gradient_checkpointing_enable()`, `generate()` …
    """

    def __init__(
        self, model: nn.Module, method: Method, architecture: Architecture | None, dropout: bool, seed: int
    ) -> None:
        super().__init__()
        head = {name: nn.Parameter(p.detach().clone()) for name, p in _head(model).items()}
        tree = share(model, own=head)
        host = Host(tree, architecture)
        host.probe()
        if not dropout:
            without_dropout(host.backbone)
        generator = torch.Generator().manual_seed(seed)
        device = next(tree.parameters()).device
        born = method.init(host.sites, host.backbone, generator)
        v = {name: nn.Parameter(tensor.to(device)) for name, tensor in born.items()}
        _nest(self, v)
        _nest(self, {f"head.{name}": p for name, p in head.items()})
        host.bind(method.plan(host.sites, v))
        self.method = method
        # Kept out of nn.Module's registers: neither the tree's parameters nor the model's are ours.
        self.__dict__["_host"] = host
        self.__dict__["_original"] = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._tree(*args, **kwargs)

    @property
    def _tree(self) -> nn.Module:
        host: Host | None = self.__dict__.get("_host")
        if host is None:
            raise AdaptreeError("this task was detached from its model.", hint="attach(model, task) binds it again.")
        return host.model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or "_host" not in self.__dict__:
                raise
            return getattr(self._tree, name)

    def train(self, mode: bool = True) -> Tuned:
        super().train(mode)
        if "_host" in self.__dict__:
            self._tree.train(mode)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Tuned:
        """`.to(device)` and its like move the tree too: its head is ours already, the rest becomes its own copy."""
        super()._apply(fn, recurse)
        if "_host" in self.__dict__:
            self._tree._apply(fn, recurse)
        return self

    def count(self) -> dict[str, int]:
        """How many parameters: adapters, norms and head, their sum, and the base's."""
        host: Host = self.__dict__["_host"]
        head = sum(p.numel() for name, p in self.named_parameters() if name.startswith("head."))
        return price(self.method.count(host.sites), head, host.backbone)

    def weights(self) -> dict[str, Tensor]:
        """The task's weights and head by name, as plain tensors on the CPU."""
        return {name: p.detach().cpu().contiguous() for name, p in self.state_dict().items()}

    @property
    def task(self) -> Task:
        """What was trained, as data: the weights, the method and the base's fingerprint."""
        host: Host = self.__dict__["_host"]
        base = {
            "name": str(getattr(host.model.config, "_name_or_path", "") or type(host.model).__name__),
            "fingerprint": fingerprint(host.backbone),
            "architecture": host.sites.architecture,
        }
        record = Record(name="attached", kind="attached", method=str(self.method), base=base, parameters=self.count())
        return Task(record, self.weights())

    def save(self, folder: str | Path) -> None:
        """Write the task (never the base) as a folder that `attach(model, folder)` reads back."""
        self.task.save(folder)

    def detach(self) -> nn.Module:
        """Let go of the model, which is bit for bit what it was, and return it."""
        model: nn.Module = self.__dict__.pop("_original")
        self.__dict__.pop("_host").close()
        return model


def attach(
    model: nn.Module,
    method: Method | str | Task | Path = "houlsby",
    *,
    architecture: Architecture | None = None,
    dropout: bool = False,
    seed: int = 0,
) -> Tuned:
    """Put a new task's weights (a method, or its spelling) or a saved one's (a Task, or its folder) into a model.

    `dropout`: whether the frozen base keeps its dropout in training mode; its head always does.
    """
    task = Task.load(method) if isinstance(method, Path) else method
    how = parse(task.record.method) if isinstance(task, Task) else parse(task)
    tuned = _class_for(type(model))(model, how, architecture, dropout, seed)
    if isinstance(task, Task):
        found = fingerprint(backbone_of(model))
        if found != task.record.base["fingerprint"]:
            raise WrongBase(
                f"the task '{task.record.name}' was trained on another base ({task.record.base['name']}).",
                hint="Attach it to that one: its weights mean nothing here.",
            )
        tuned.load_state_dict(task.weights)
    return tuned


def price(counts: Mapping[str, int], head: int, backbone: nn.Module) -> dict[str, int]:
    """A task's parameters beside the base's, with and without its embeddings (the papers' per cents differ in that)."""
    total = sum(p.numel() for p in backbone.parameters())
    tables = {m.weight: m.weight.numel() for m in backbone.modules() if isinstance(m, nn.Embedding)}
    return {
        **counts,
        "head": head,
        "trained": sum(counts.values()) + head,
        "base": total,
        "base_without_embeddings": total - sum(tables.values()),
    }


def _head(model: nn.Module) -> dict[str, nn.Parameter]:
    """What a model adds to its backbone and is not shared with it; a pretrained output layer over words is not a head."""
    backbone = backbone_of(model)
    get_output: Callable[[], nn.Module | None] = getattr(model, "get_output_embeddings", lambda: None)
    output = get_output()
    kept = {id(p) for p in backbone.parameters()} | {id(p) for p in (output.parameters() if output else ())}
    return {name: p for name, p in model.named_parameters() if id(p) not in kept}


@functools.cache
def _class_for(kind: type[nn.Module]) -> type[Tuned]:
    """`Tuned` with the model's own signature: the Hugging Face Trainer reads it to choose columns and labels."""

    def forward(self: Tuned, *args: Any, **kwargs: Any) -> Any:
        return self._tree(*args, **kwargs)

    forward.__signature__ = inspect.signature(kind.forward)  # type: ignore[attr-defined]
    return type(f"Tuned{kind.__name__}", (Tuned,), {"forward": forward, "__module__": __name__})


def _nest(root: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Register parameters under dotted names as a tree of plain modules, so that state-dict keys are those names."""
    for name, p in parameters.items():
        *path, leaf = name.split(".")
        node = root
        for part in path:
            if part not in node._modules:
                node.add_module(part, nn.Module())
            node = node._modules[part]  # type: ignore[assignment]
        node.register_parameter(leaf, p)

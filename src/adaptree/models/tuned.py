"""`attach(model, …)`: a task's weights on any Hugging Face model, for any training loop."""

from __future__ import annotations

import copy
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from adaptree.errors import AdaptreeError, MethodError, TaskNotFound, UnknownArchitecture, UsageError, WrongBase
from adaptree.methods import Method, parse
from adaptree.models.architectures import Architecture
from adaptree.models.fingerprint import fingerprint, pooler
from adaptree.models.fit import check_weights
from adaptree.models.hooks import HookedModel, price, share, without_dropout
from adaptree.models.sites import backbone_of, find
from adaptree.tasks.record import FUSES, ON, RECORD, Record
from adaptree.tasks.task import Task

HEAD = "head."


class Tuned(nn.Module):
    """A frozen model with a task's weights in it. Its parameters and its state dict are those weights and the head.

    It runs on a copy of the model's modules over the same tensors, so the model itself is never touched. Attributes
    that are not found here are those of the copy: `config`, `activation_checkpointing_enable()`, `generate()` …
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        architecture: Architecture | None,
        dropout: bool,
        seed: int,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        _nest(self, {HEAD + name: nn.Parameter(p.detach().clone()) for name, p in head_of(model).items()})
        hooked = HookedModel(share(model, own=self._own_head()), architecture)
        hooked.probe()
        if not dropout:
            without_dropout(hooked.backbone)
        device = next(hooked.model.parameters()).device
        weights = weights or method.init(hooked.sites, hooked.backbone, torch.Generator().manual_seed(seed))
        here = {name: tensor.to(device) for name, tensor in weights.items()}
        _nest(self, {name: nn.Parameter(t) if t.is_floating_point() else t for name, t in here.items()})
        if not any(True for _ in self.parameters()):
            raise MethodError(f"{method}: this model has no head of its own, so there is nothing to train.")
        super().train(model.training)
        self.method = method
        self._hold(model, hooked)

    def _hold(self, model: nn.Module, hooked: HookedModel) -> None:
        """Keep both out of nn.Module's registers: neither the copy's parameters nor the model's are this module's."""
        self.__dict__ |= {"_model": model, "_hooked": hooked, "_bound": {}}
        self._bind()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._tree(*args, **kwargs)

    @property
    def _attached(self) -> HookedModel:
        hooked: HookedModel | None = self.__dict__.get("_hooked")
        if hooked is None:
            raise AdaptreeError(
                "this task was detached from its model.",
                hint="attach(model, task) binds a task again; take tuned.task before detach().",
            )
        return hooked

    @property
    def _tree(self) -> nn.Module:
        self._bind()
        return self._attached.model

    @property
    def _at_rest(self) -> nn.Module:
        """The copy with the base's own parameters, which the next forward pass of a dynamic method replaces."""
        if not self.method.dynamic:
            return self._tree
        self._attached.swap({})
        return self._attached.model

    def _bind(self) -> None:
        """Let the copy run on the tensors that are registered here now.

        `load_state_dict(assign=True)`, a move to the meta device or `functional_call` replace parameters.
        """
        hooked = self._attached
        bound: dict[str, Tensor] = self.__dict__["_bound"]
        now: dict[str, Any] = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        if all(p is bound.get(name) for name, p in now.items()):
            if self.method.dynamic:
                hooked.swap(self.method.weights(hooked.sites, hooked.frozen, now))
            return
        hooked.bind(self.method.plan(hooked.sites, now))
        hooked.swap(self.method.weights(hooked.sites, hooked.frozen, now))
        became = {id(old): now[name] for name, old in bound.items()}
        for part in hooked.model.modules():
            part._parameters.update({key: became[id(p)] for key, p in part._parameters.items() if id(p) in became})
        self.__dict__["_bound"] = now

    def _own_head(self) -> dict[str, nn.Parameter]:
        """Return the head's parameters by the model's names for them."""
        return {name.removeprefix(HEAD): p for name, p in self.named_parameters() if name.startswith(HEAD)}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or "_hooked" not in self.__dict__:
                raise
            return getattr(self._tree, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the copy (`generation_config` …) there, where it is read."""
        ours = "_hooked" not in self.__dict__ or hasattr(type(self), name) or name in (*self.__dict__, *self._modules)
        if ours or not hasattr(self._tree, name):
            super().__setattr__(name, value)
        else:
            setattr(self._tree, name, value)

    def train(self, mode: bool = True) -> Tuned:
        super().train(mode)
        if "_hooked" in self.__dict__:
            self._tree.train(mode)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Tuned:
        """Move the copy too (`.to(device)` and its like); its frozen tensors are then its own."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if "_hooked" in self.__dict__:
            self._at_rest._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Tuned:
        """Return a task of its own over the same frozen tensors."""
        memo[id(self)] = twin = type(self).__new__(type(self))
        ours = {key: value for key, value in self.__dict__.items() if key not in ("_model", "_bound", "_hooked")}
        twin.__dict__ |= copy.deepcopy(ours, memo)
        if (hooked := self.__dict__.get("_hooked")) is not None:
            hooked = HookedModel(share(self._at_rest, own=twin._own_head()), hooked.architecture)
            twin._hold(self.__dict__["_model"], hooked)
        return twin

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise AdaptreeError(
            "a tuned model is not pickled: that would write the whole base.",
            hint="tuned.save(folder) or torch.save(tuned.state_dict(), file) writes the task alone.",
        )

    def save_pretrained(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AdaptreeError(
            "save_pretrained would write the base and leave the task out.",
            hint="tuned.save(folder) writes the task; attach(model, folder) reads it.",
        )

    push_to_hub = save_pretrained

    def _replicate_for_data_parallel(self) -> NoReturn:
        raise AdaptreeError(
            "nn.DataParallel cannot copy a tuned model to several devices.",
            hint="Start a process for each (torchrun, accelerate launch), or show one device: CUDA_VISIBLE_DEVICES=0.",
        )

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Return the model's and the task's parameters together, as Hugging Face counts; `count()` tells them apart."""
        v = [p for name, p in self.named_parameters() if not name.startswith(HEAD)]
        own = sum(p.numel() for p in v if p.requires_grad or not only_trainable)
        return own + int(self._at_rest.num_parameters(only_trainable, exclude_embeddings))  # type: ignore[operator]

    def count(self) -> dict[str, int]:
        """Return the numbers of parameters: adapters, norms and head, their sum, and the base's."""
        hooked = self._attached
        head = sum(p.numel() for p in self._own_head().values())
        return price(self.method.count(hooked.sites, hooked.backbone), head, hooked.backbone)

    def weights(self) -> dict[str, Tensor]:
        """Return the current weights of the task and its head by name, as copies on the CPU."""
        return {name: p.detach().cpu().clone().contiguous() for name, p in self.state_dict().items()}

    @property
    def task(self) -> Task:
        """The task as data: its weights, the method and the base's fingerprint."""
        hooked = self._attached
        base = {
            "name": str(getattr(hooked.model.config, "_name_or_path", "") or type(hooked.model).__name__),
            # Of the model itself: the copy may have been moved to another dtype.
            "fingerprint": fingerprint(backbone_of(self.__dict__["_model"])),
            "architecture": hooked.sites.architecture,
        }
        record = Record(
            name="attached",
            kind="attached",
            method=str(self.method),
            base=base,
            parameters=self.count(),
            extra={"pooler": pooler(backbone_of(self.__dict__["_model"]))},
        )
        return Task(record, self.weights())

    def save(self, folder: str | Path) -> None:
        """Write the task (never the base) as a folder that `attach(model, folder)` reads back."""
        self.task.save(folder)

    def detach(self) -> nn.Module:
        """Let go of the model, which is bit for bit what it was, and return it."""
        self._attached.close()
        del self.__dict__["_hooked"], self.__dict__["_bound"]
        model: nn.Module = self.__dict__.pop("_model")
        return model


def attach(
    model: nn.Module,
    what: Method | str | Task | Path = "houlsby",
    *,
    architecture: Architecture | None = None,
    dropout: bool = False,
    seed: int = 0,
) -> Tuned:
    """Put a task's weights into a Hugging Face model: new ones of a method, or those of a task or of its folder.

    `what` is a method or its spelling ("houlsby:64"), a `Task`, or the folder of a saved one as a path or a string.
    `dropout`: whether the frozen base keeps its dropout in training mode; its head always does.
    """
    if isinstance(model, Tuned):
        raise UsageError("this model has a task attached already.", hint="Attach to the model that it was attached to.")
    if not hasattr(model, "config"):
        raise UnknownArchitecture(f"a {type(model).__name__} is not a Hugging Face model: it has no config.")
    found = _read(what)
    method = found if isinstance(found, Method) else parse(found.record.method)
    if method.standalone:
        raise UsageError(f"{method.name} does not run in a model.", hint="Use adaptree.train(…) for it.")
    kind: Any = type(model)
    build = functools.partial(_class_for(kind), model, method, architecture, dropout, seed)
    if isinstance(found, Task):
        return _with_task(build, model, found, architecture)
    if method.stages > 1:
        raise UsageError(
            f"{method.name} trains {method.stages} times over, with other weights each time: it needs its own loop.",
            hint="Use adaptree.train; a finished task of it can be attached.",
        )
    return build()


def _read(what: Method | str | Task | Path) -> Method | Task:
    """Return the method or the task that `attach` was called with, reading a task from its folder."""
    if isinstance(what, Path):
        return Task.load(what.expanduser())
    if not isinstance(what, str):
        return what
    folder = Path(what).expanduser()
    has_task = (folder / RECORD).is_file()
    try:
        method = parse(what)
    except MethodError:
        if has_task:
            return Task.load(folder.resolve())
        if folder.exists() or what.startswith((".", "~")) or "/" in what or os.sep in what:
            raise TaskNotFound(
                f"no task in folder '{what}'.",
                hint=f"A task's folder has {RECORD} in it; a method is spelled houlsby:64.",
            ) from None
        raise
    if has_task:
        raise UsageError(
            f"'{what}' is a method, and here also a folder with a task in it.",
            hint=f"Write './{what}' for the folder, or at.attach(model, adaptree.methods.parse('{what}')).",
        )
    return method


def _with_task(
    build: Callable[..., Tuned], model: nn.Module, task: Task, architecture: Architecture | None = None
) -> Tuned:
    """Attach a trained task; raise WrongBase, TaskCorrupt or UsageError if its weights are not for this model."""
    record = task.record
    if fingerprint(backbone_of(model)) != record.base.get("fingerprint"):
        raise WrongBase(
            f"the task '{record.name}' was trained on another base ({record.base.get('name', '?')}).",
            hint="Attach it to that one: its weights mean nothing here.",
        )
    known = record.extra.get("pooler")
    if known and pooler(backbone_of(model)) not in ("", known):
        raise WrongBase(
            f"the task '{record.name}' was trained over another pooler: a base that was pretrained without one "
            "gets a random one whenever it is loaded.",
            hint="Save the model that you train on, pooler and all, and load that one.",
        )
    weights = dict(task.weights)
    if record.kind != "attached":
        _check_trained(task, model)
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith(HEAD)}
    last = {name: tensor for name, tensor in weights.items() if not name.startswith(HEAD)}
    method = parse(record.method)
    check_weights(task, method, find(model, architecture), backbone_of(model))
    tuned = build(weights=last if method.stages > 1 else None)
    _check_fit(record.name, weights, tuned, type(model).__name__)
    tuned.load_state_dict(weights)
    return tuned


def _check_trained(task: Task, model: nn.Module) -> None:
    """Raise UsageError for a task of `adaptree.train` that is more than weights inside this model.

    Its adapters and norms fit a model without a head, whose hidden states are then the task's. Its head reads a pooled
    state in our own way, and has no place in a Hugging Face head.
    """
    name = task.record.name
    hint = f"Predict with it: at.load_base({task.record.base.get('name', '?')!r}).bind(task)."
    if on := task.record.extra.get(ON) or task.record.extra.get(FUSES):
        raise UsageError(f"the task '{name}' was trained on {on}, which attach does not put below it.", hint=hint)
    if head_of(model):
        raise UsageError(
            f"the task '{name}' has a head of its own, which does not fit that of a {type(model).__name__}.",
            hint=f"Attach it to the model without a head (AutoModel), for its hidden states. {hint}",
        )


def _check_fit(task: str, weights: Mapping[str, Tensor], tuned: Tuned, model: str) -> None:
    """Raise UsageError if a task's weights have other names or shapes than the model's: another head, mostly."""
    has = {name: str(tuple(tensor.shape)) for name, tensor in weights.items()}
    wants = {name: str(tuple(tensor.shape)) for name, tensor in tuned.state_dict().items()}
    for name in {**wants, **has}:
        if has.get(name) != wants.get(name):
            raise UsageError(
                f"the task '{task}' has other weights than this {model} takes: "
                f"'{name}' is {has.get(name, 'absent')} in the task, {wants.get(name, 'absent')} in the model.",
                hint="Load the model with the class and the number of labels that the task was trained with.",
            )


def head_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a model adds to its backbone; a pretrained output layer over words is no head.

    The pooler is the backbone's, and frozen with it.
    """
    backbone = backbone_of(model)
    output: nn.Module | None = getattr(model, "get_output_embeddings", lambda: None)()
    kept = {id(p) for p in backbone.parameters()} | {id(p) for p in (output.parameters() if output else ())}
    return {name: p for name, p in model.named_parameters() if id(p) not in kept}


@functools.cache
def _class_for(kind: type[Any]) -> type[Tuned]:
    """Return `Tuned` with the model's own signature, which the Hugging Face Trainer reads to choose columns."""

    def forward(self: Tuned, *args: Any, **kwargs: Any) -> Any:
        return self._tree(*args, **kwargs)

    forward.__signature__ = inspect.signature(kind.forward)  # type: ignore[attr-defined]
    return type(f"Tuned{kind.__name__}", (Tuned,), {"forward": forward, "__module__": __name__})


def _nest(root: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Register parameters, and other tensors as buffers, under dotted names: the keys of a state dict."""
    for name, p in tensors.items():
        *path, leaf = name.split(".")
        node = root
        for part in path:
            if part not in node._modules:
                node.add_module(part, nn.Module())
            node = node._modules[part]  # type: ignore[assignment]
        if isinstance(p, nn.Parameter):
            node.register_parameter(leaf, p)
        else:
            node.register_buffer(leaf, p)

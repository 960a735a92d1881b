"""A model with hooks on its modules, which run the plan of the moment; the model itself holds no task."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from adaptree.compose.merge import run_after, run_before, steps_of
from adaptree.core import bottleneck, norms
from adaptree.errors import UnknownArchitecture
from adaptree.methods import Action, Before, Plan, Step
from adaptree.methods.method import Inputs
from adaptree.models.architectures import Architecture
from adaptree.models.sites import Sites, backbone_of, find

M = TypeVar("M", bound=nn.Module)


def share(module: M, own: Mapping[str, nn.Parameter] | None = None) -> M:
    """Return a copy of the modules over the same tensors, frozen, with no task in it.

    `own` gives the copy parameters of its own for some names. Flags, hooks and modes of the original do not change,
    then or later.
    """
    own = own or {}
    memo: dict[int, Any] = {}
    for name, p in module.named_parameters():
        memo[id(p)] = own.get(name) if name in own else nn.Parameter(p.detach(), requires_grad=False)
    memo |= {id(b): b for b in module.buffers()}
    tree = copy.deepcopy(module, memo)
    for part in tree.modules():
        for key in [key for key, hook in part._forward_hooks.items() if isinstance(hook, ModuleHook)]:
            del part._forward_hooks[key]
        for key in [
            k for k, hook in part._forward_pre_hooks.items() if isinstance(getattr(hook, "__self__", 0), ModuleHook)
        ]:
            del part._forward_pre_hooks[key]
    return tree


def without_dropout(module: nn.Module) -> None:
    """Set every dropout below a module to zero, so that it can be in training mode and yet be a fixed function.

    Evaluation mode would do the same, but Hugging Face recomputes checkpoints only in training mode.
    """
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for name, value in vars(part).items():
            if isinstance(value, float) and ("dropout" in name or name in ("layerdrop", "drop_prob")):
                setattr(part, name, 0.0)


class ModuleHook:
    """The hook on one module of a `HookedModel`: it runs the steps of the current plan for that module."""

    def __init__(self, hooked: HookedModel, path: str) -> None:
        self.hooked = hooked
        self.path = path

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        steps = [step for step in self._steps() if not isinstance(step, Before)]
        return run_after(steps, module, args, output) if steps else None

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs | None:
        return run_before((step for step in self._steps() if isinstance(step, Before)), module, args, kwargs)

    def _steps(self) -> tuple[Step, ...]:
        """Return the steps of the current plan for this module, in their order."""
        return steps_of(self.hooked.current().get(self.path, ()))

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleHook:
        return self  # a deep copy of the model keeps its hooks; `share` removes them


class HookedModel:
    """Runs plans over one model. The bound `plan` runs in every thread, also where activations are recomputed."""

    def __init__(self, model: nn.Module, architecture: Architecture | None = None) -> None:
        self.model = model
        self.architecture = architecture
        self.backbone = backbone_of(model)
        self.sites: Sites = find(model, architecture)
        self.plan: Plan = {}
        self.override: ContextVar[Plan | None] = ContextVar("plan", default=None)
        self.frozen: dict[str, Tensor] = dict(self.backbone.named_parameters())
        """The backbone's own parameters, whatever replaces them now."""
        self.feed: Callable[[Sequence[Any]], None] | None = None
        """Called with the rows of a forward pass just before it, where an activation cache has their states."""
        self._hooks: dict[str, torch.utils.hooks.RemovableHandle] = {}
        self._hooking = threading.Lock()
        self._places: dict[str, list[tuple[nn.Module, str]]] | None = None
        self._swapped: set[str] = set()

    def copy(self, weights: Mapping[str, Tensor] | None = None) -> HookedModel:
        """Return a copy of the modules over the same tensors, with some of the backbone's weights replaced."""
        twin = HookedModel(share(self.model), self.architecture)
        twin.swap(weights or {})
        return twin

    def hook(self, plan: Plan) -> Plan:
        """Put a hook on every module that the plan names, and return the plan."""
        with self._hooking:  # two threads that hook one module would run a plan there twice
            for path, step in ((path, step) for path, entry in plan.items() for step in steps_of(entry)):
                key = f"{path} (before)" if isinstance(step, Before) else path
                if key not in self._hooks:
                    module = self.backbone.get_submodule(path)
                    hook = ModuleHook(self, path)
                    if isinstance(step, Before):
                        self._hooks[key] = module.register_forward_pre_hook(hook.before, with_kwargs=True)
                    else:
                        # In front: the model's own hooks (hidden states, attentions) see the task's output too.
                        self._hooks[key] = module.register_forward_hook(hook, prepend=True)
        return plan

    def current(self) -> Plan:
        """Return the plan that runs in this thread now."""
        override = self.override.get()
        return self.plan if override is None else override

    def swap(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the backbone's parameters of these names, and restore all others.

        Only for a private copy of a model.
        """
        if not weights and not self._swapped:
            return
        if self._places is None:
            names = {id(p): name for name, p in self.frozen.items()}
            self._places = defaultdict(list)
            for module in self.model.modules():
                for key, p in module._parameters.items():
                    if id(p) in names:
                        self._places[names[id(p)]].append((module, key))
        back = {name: self.frozen[name] for name in self._swapped if name not in weights}
        for name, tensor in {**back, **weights}.items():
            for module, key in self._places[name]:
                module._parameters[key] = tensor  # type: ignore[assignment]
        self._swapped = set(weights)

    def bind(self, plan: Plan) -> None:
        """Run this plan in every thread from now on."""
        self.plan = self.hook(plan)

    @contextlib.contextmanager
    def running(self, plan: Plan) -> Iterator[None]:
        """Run this plan instead of the bound one, in this thread, within a `with` block."""
        token = self.override.set(self.hook(plan))
        try:
            yield
        finally:
            self.override.reset(token)

    def close(self) -> None:
        """Remove all hooks."""
        for handle in self._hooks.values():
            handle.remove()
        self._hooks.clear()
        self.plan = {}

    @torch.no_grad()
    def probe(self) -> None:
        """Raise UnknownArchitecture unless a task of zeros leaves the bits of a small batch, and each site fires."""
        fired: Counter[str] = Counter()
        row = f"the row of sites for '{self.sites.architecture}'"

        def zero(path: str, width: int) -> Action:
            p = bottleneck.init(width, 1, std=0.0, dtype=self.sites.dtype)

            def action(module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
                fired[path] += 1
                if not isinstance(output, Tensor) or output.shape[-1] != width:
                    found = f"{tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
                    raise UnknownArchitecture(f"{row} does not fit: '{path}' gives {found}, not a tensor {width} wide.")
                return bottleneck.apply(output, {key: tensor.to(output.device) for key, tensor in p.items()})

            return action

        def same(path: str) -> Action:
            def action(module: Any, args: tuple[Any, ...], output: Tensor) -> Tensor:
                fired[path] += 1
                try:
                    return norms.apply(module, args[0], module.weight, getattr(module, "bias", None))
                except (AttributeError, TypeError, RuntimeError) as error:
                    kind = type(module).__name__
                    raise UnknownArchitecture(f"{row} does not fit: '{path}', a {kind}, is no norm.") from error

            return action

        plan = {site.path: zero(site.path, site.width) for site in self.sites.sites}
        plan |= {norm.path: same(norm.path) for norm in self.sites.norms}
        was_hooked = set(self._hooks)
        training = {module: module.training for module in self.backbone.modules()}
        self.backbone.eval()
        try:
            inputs = probe_inputs(self.backbone)
            with self.running({}):
                bare = _states(self.backbone(**inputs))
            with self.running(plan):
                zeroed = _states(self.backbone(**inputs))
        finally:
            for module, mode in training.items():
                module.training = mode
            for path in set(self._hooks) - was_hooked:
                self._hooks.pop(path).remove()
        for site in self.sites.sites:
            if (times := fired[site.path]) != site.calls:
                raise UnknownArchitecture(
                    f"{row} does not fit: '{site.path}' fired {times} times in a forward pass, not {site.calls}."
                )
        for norm in self.sites.norms:
            if not fired[norm.path]:
                raise UnknownArchitecture(f"{row} does not fit: the norm '{norm.path}' never fired.")
        if not torch.equal(bare, zeroed):
            raise UnknownArchitecture(f"{row} does not fit: a task of zeros changes the base's output.")


def price(counts: Mapping[str, int], head: int, backbone: nn.Module) -> dict[str, int]:
    """Return the numbers of a task's parameters and of the base's, with and without its embeddings."""
    total = sum(p.numel() for p in backbone.parameters())
    tables = {m.weight: m.weight.numel() for m in backbone.modules() if isinstance(m, nn.Embedding)}
    return {
        **counts,
        "head": head,
        "trained": sum(counts.values()) + head,
        "base": total,
        "base_without_embeddings": total - sum(tables.values()),
    }


def probe_inputs(backbone: nn.Module) -> dict[str, Tensor]:
    """Return two short rows, one of them padded, in the vocabulary of any text model."""
    config: Any = backbone.config
    device = next(backbone.parameters()).device
    ids = torch.arange(10, 20, device=device).reshape(2, 5) % int(config.vocab_size)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], device=device)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(config, "is_encoder_decoder", False) and hasattr(backbone, "decoder"):
        inputs["decoder_input_ids"] = ids
    return inputs


def _states(output: Any) -> Tensor:
    """Return all hidden states of an output, encoder's and decoder's, as one tensor."""
    states = [output[0]]  # the last hidden state; a T5 with its head is its own backbone, and gives logits
    if getattr(output, "encoder_last_hidden_state", None) is not None:
        states.append(output.encoder_last_hidden_state)
    return torch.cat([state.flatten() for state in states])

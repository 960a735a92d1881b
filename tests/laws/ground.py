"""The ground that the laws stand on: every method, in each of its stages, on every architecture where it applies."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptree import attach
from adaptree.methods import METHODS, Method, parse
from adaptree.models.tuned import Tuned
from adaptree.tasks.task import Task
from tests import tiny

# Sizes that are no width of the models, so that a mixed-up axis shows; a method not named here runs at its defaults.
SMALL: dict[str, dict[str, Any]] = {
    "houlsby": {"size": 6},
    "pfeiffer": {"size": 5},
    "bapna": {"size": 5},
    "parallel_adapter": {"size": 6},
    "scaled_parallel": {"size": 6},
    "houlsby_norm": {"size": 6},
    "houlsby_deep": {"size": 6, "depth": 3},
    "houlsby_attention": {"size": 6},
    "houlsby_feedforward": {"size": 6},
    "houlsby_multiplicative": {"size": 6},
    "houlsby_parallel": {"size": 6},
    "lora": {"rank": 3},
    "pal": {"size": 12, "heads": 3},
    "top": {"n": 1},
    "lt_sft": {"density": 0.05},
    "rand_sft": {"density": 0.05},
    "diff_pruning": {"density": 0.05},
}

# Where a method has no place, and what it says then; everything else must work everywhere.
REFUSED: dict[str, dict[str, str]] = {
    "head": {"t5-generator": "no head of its own"},
    "bitfit": dict.fromkeys(
        ("modernbert", "t5", "t5-encoder", "t5-generator", "llama", "mistral", "qwen3"), "(?i)bias"
    ),
    "lora": {"roformer": "linear"},
    "ia3": {"roformer": "linear|map", "deberta": "head"},
    "pal": dict.fromkeys(
        ("gpt2", "llama", "mistral", "qwen2", "qwen3", "t5", "t5-encoder", "t5-generator", "bart", "roformer"), "pal"
    ),
    "parallel_adapter": {"roformer": "linear|map"},
    "scaled_parallel": {"roformer": "linear|map"},
    "houlsby_parallel": {"roformer": "linear|map", **dict.fromkeys(("t5", "t5-generator", "bart"), "layers")},
    "houlsby_multiplicative": {"roformer": "linear|map", **dict.fromkeys(("t5", "t5-generator", "bart"), "layers")},
}

# Parameters that no gradient reaches: a table of sines.
FIXED = {
    "roformer": {f"{word}.encoder.embed_positions.weight" for word in ("weight", "delta", "gate", "group")},
}

# A method that trains in stages is a subject of the laws in each of them: `lt_sft` in its first, `lt_sft-cut` in its
# last, with the weights that `advance` makes of a first stage.
CUT = "-cut"
STAGED = [name for name, method in METHODS.items() if method.stages > 1]
INSIDE = [name for name, method in METHODS.items() if not method.standalone]
SUBJECTS = [*INSIDE, *(name + CUT for name in STAGED)]
FINISHED = [subject for subject in SUBJECTS if subject not in STAGED]
"""What can be a task: of a first stage alone none is made."""
LAYERED = [subject for subject in SUBJECTS if subject not in ("top", "head")]  # these say by themselves which layers

# `make test` tries these on four architectures of different build, and `make test-all` on all of them: variants of a
# method, which share its code, and methods that act through the same few hooks as those which are tried everywhere.
ON_FEW = {name for name in INSIDE if name.startswith("houlsby_")} | {
    "bapna",
    "bitfit",
    "diff_pruning",
    "head",
    "ia3",
    "lt_sft",
    "norms",
    "pal",
    "parallel_adapter",
    "pfeiffer",
    "rand_sft",
    "scaled_parallel",
    "top",
}
FEW = ("bert", "albert", "t5", "gpt2")


def method_of(subject: str) -> type[Method]:
    return METHODS[subject.removesuffix(CUT)]


def applies(case: str, subject: str) -> bool:
    """Whether a subject has a place in an architecture."""
    return case not in REFUSED.get(subject.removesuffix(CUT), {})


def pairs(subjects: list[str], without: Container[tuple[str, str]] = ()) -> pytest.MarkDecorator:
    """Every subject × every architecture where it applies; of a variant most of them are slow tests."""
    found = [(case, subject) for subject in subjects for case in tiny.CASES if applies(case, subject)]
    params = [
        pytest.param(case, subject, marks=[pytest.mark.slow] if _is_repetition(case, subject) else [])
        for case, subject in found
        if (case, subject) not in without
    ]
    return pytest.mark.parametrize(("case", "method"), params)


def _is_repetition(case: str, subject: str) -> bool:
    return subject.removesuffix(CUT) in ON_FEW and case not in FEW


def small(subject: str, **changes: Any) -> Method:
    name = subject.removesuffix(CUT)
    return parse(name, **{**SMALL.get(name, {}), **changes})


def put(model: nn.Module, case: str, subject: str, how: Method | None = None, **options: Any) -> Tuned:
    """A subject's weights on a model. `attach` takes no first stage, whose weights no task has; the laws do."""
    how, row = how or small(subject), tiny.CASES[case].row
    if how.stages == 1:
        return attach(model, how, architecture=row, **options)
    seed, dropout = options.get("seed", 0), options.get("dropout", False)
    first = Tuned(model, how, row, dropout, seed)
    return attach(model, advanced(first, seed), architecture=row, **options) if subject.endswith(CUT) else first


def advanced(first: Tuned, seed: int) -> Task:
    """The task at the beginning of the last stage, after a first stage that went anywhere."""
    hooked, birth = first._attached, first.weights()
    after = shake(first, seed + 10).weights()
    head = {name: tensor for name, tensor in after.items() if name.startswith("head.")}
    return Task(first.task.record, head | first.method.advance(hooked.sites, hooked.frozen, after, birth))


def tune(
    case: str, subject: str, how: Method | None = None, *, head: bool = False, **options: Any
) -> tuple[nn.Module, Tuned]:
    """A model and a task on it; features alone need a head to be trained."""
    model = tiny.model(case, head=head or subject == "head")
    return model, put(model, case, subject, how, **options)


@torch.no_grad()
def shake(tuned: Tuned, seed: int) -> Tuned:
    """Move a task's weights to where training might have brought them; gates to where they are half open."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in tuned.named_parameters():
        if name.startswith(("gate.", "group.")):
            p.fill_(0.5)
        p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return tuned


@torch.no_grad()
def output(model: nn.Module) -> Tensor:
    return tiny.output(model, tiny.batch(model))


def loss(model: nn.Module) -> Tensor:
    """A number that depends on every output."""
    out = tiny.output(model, tiny.batch(model))
    return (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(7))).sum()


def moved(after: Tensor, before: Tensor) -> float:
    return float((after - before).norm() / before.norm())


def state(model: nn.Module) -> dict[str, Any]:
    """All that attaching could change in a model: bits, places in memory, flags, hooks, modes and settings."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    plain = (bool, int, float, str, type(None))
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "class": type(model),
        "keys": list(model.state_dict()),
        "bits": {name: t.detach().numpy().tobytes() for name, t in tensors.items()},
        "places": {name: (id(t), t.data_ptr()) for name, t in tensors.items()},
        "flags": {name: (t.requires_grad, t.grad) for name, t in tensors.items()},
        "hooks": {path: [len(getattr(m, kind)) for kind in hooks] for path, m in model.named_modules()},
        "settings": {
            path: {key: value for key, value in vars(m).items() if isinstance(value, plain)}  # training, p, dropout …
            for path, m in model.named_modules()
        },
    }

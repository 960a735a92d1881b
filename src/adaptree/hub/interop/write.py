"""Write a task as a folder that `peft` or `adapters` loads.

What the other library would compute otherwise is refused: a folder that is written gives the task's own logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from adaptree.errors import InteropError
from adaptree.hub.interop import adapterhub_write, heads, peft
from adaptree.hub.interop.files import as_bytes, write_folder
from adaptree.methods import parse
from adaptree.methods.ia3 import Ia3
from adaptree.methods.lora import Lora
from adaptree.models.fingerprint import fingerprint
from adaptree.models.sites import Sites, backbone_of, find, transposed
from adaptree.reports.json_text import json_text
from adaptree.tasks.record import FUSES, ON
from adaptree.tasks.task import Task

if TYPE_CHECKING:
    from adaptree.models.base import Base

LANGUAGE_MODEL = "CausalLM"
TASK_TYPES = {ending: name for name, ending in peft.ENDINGS.items()} | {LANGUAGE_MODEL: "CAUSAL_LM"}


@dataclass(frozen=True)
class Target:
    """The model that a folder is written for."""

    sites: Sites
    backbone: nn.Module
    name: str
    """What it is found by."""
    model: Any = None
    """The Hugging Face model with its head, where the user gives one."""

    @classmethod
    def of(cls, base: Base | nn.Module, task: Task) -> Target:
        """Return the target for a base or a model; raise the error for a task of another one."""
        if isinstance(base, nn.Module):
            backbone = backbone_of(base)
            if fingerprint(backbone) != task.record.base.get("fingerprint"):
                raise InteropError(f"the task '{task.record.name}' was trained on another model than this one.")
            return cls(find(base), backbone, str(getattr(base.config, "_name_or_path", "")), base)
        base.check(task)
        return cls(base.hooked.sites, base.hooked.backbone, base.location)

    def prefix(self, headed: bool) -> str:
        """Return what stands before the backbone's names in the model that the folder is for."""
        if self.model is not None:
            return next((f"{name}." for name, m in self.model.named_modules() if m is self.backbone and name), "")
        return f"{self.backbone.base_model_prefix}." if headed else ""


def write_peft(task: Task, base: Base | nn.Module, folder: str | Path, *, head: bool = True) -> None:
    """Write a LoRA or IA³ task as `PeftModel.from_pretrained(model, folder)` reads it, its head in modules_to_save.

    `base` is the task's base; for a task that was attached to a model of the user's own, that model, or its base.
    """
    record, method = task.record, parse(task.record.method)
    _check_alone(task)
    if type(method) not in (Lora, Ia3):
        raise InteropError(
            f"peft has no {method.name}: of our methods it has lora and ia3.",
            hint="Bottlenecks: --to adapters. Any method: --to transformers",
        )
    target = Target.of(base, task)
    found = heads.for_model(record, task.weights, target.sites) if head else heads.ModelHead("", {})
    prefix = target.prefix(bool(found.ending or found.named))
    ending = found.ending or (type(target.model).__name__.rpartition("For")[2] if found.named else "")
    config: dict[str, Any] = {
        "auto_mapping": None,
        "base_model_name_or_path": target.name,
        "inference_mode": True,
        "modules_to_save": found.modules or None,
        "task_type": TASK_TYPES.get(ending),
    }
    settings, tensors = (_lora if isinstance(method, Lora) else _ia3)(method, task.weights, target)
    if ending == LANGUAGE_MODEL:
        settings["target_modules"] = _short(settings["target_modules"], target)
    named = {f"{peft.FRONT}{prefix}{name}": tensor for name, tensor in tensors.items()}
    for name, tensor in found.named.items():
        named[f"{peft.FRONT}{prefix if name.startswith('pooler.') else ''}{name}"] = tensor
    files = {
        peft.CONFIG: _json(config | settings),
        peft.SAFE: as_bytes(named),
        "README.md": _peft_card(task, target, found).encode(),
    }
    write_folder(Path(folder).expanduser(), files)


def write_adapters(task: Task, base: Base | nn.Module, folder: str | Path, *, head: bool = True) -> None:
    """Write a task of bottlenecks as `model.load_adapter(folder, use_safetensors=True)` of `adapters` reads it.

    A fused task becomes a folder for `model.load_adapter_setup(folder, use_safetensors=True)`, with its parts.
    """
    target = Target.of(base, task)
    if task.record.extra.get(ON):
        _check_alone(task)
    write_folder(Path(folder).expanduser(), adapterhub_write.files(task, target, head))


def _check_alone(task: Task) -> None:
    below = task.record.extra.get(ON) or task.record.extra.get(FUSES)
    if below:
        raise InteropError(
            f"'{task.record.name}' runs on {below}, which one such folder cannot hold.",
            hint="Write its parts one by one.",
        )


def _json(values: Any) -> bytes:
    return (json_text(values, indent=2, sort_keys=True) + "\n").encode()


def _lora(method: Any, weights: Any, target: Target) -> tuple[dict[str, Any], dict[str, Tensor]]:
    linears = method._linears(target.sites)
    tensors: dict[str, Tensor] = {}
    for linear in linears:
        tensors |= {f"{linear.path}.lora_{key}.weight": weights[f"{linear.name}.{key}"].T for key in "AB"}
    settings = {
        "peft_type": "LORA",
        "r": method.rank,
        "lora_alpha": method.alpha,
        "lora_dropout": method.dropout,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "target_modules": [linear.path for linear in linears],
        "fan_in_fan_out": _fan(linears, target),
    }
    return settings, tensors


def _ia3(method: Any, weights: Any, target: Target) -> tuple[dict[str, Any], dict[str, Tensor]]:
    at = method._linears(target.sites)
    tensors = {
        f"{linear.path}.ia3_l": weights[f"{linear.name}.scale"][:, None] for linear in (*at["key"], *at["value"])
    }
    for linear in at["qkv"]:
        key, value = (weights[f"{linear.layer}.{role}.scale"] for role in ("key", "value"))
        tensors[f"{linear.path}.ia3_l"] = torch.cat([torch.ones_like(key), key, value])[:, None]
    tensors |= {f"{linear.path}.ia3_l": weights[f"{linear.name}.scale"][None] for linear in at["down"]}
    settings = {
        "peft_type": "IA3",
        "init_ia3_weights": True,
        "target_modules": [name.removesuffix(".ia3_l") for name in tensors],
        "feedforward_modules": [linear.path for linear in at["down"]],
        "fan_in_fan_out": _fan(at["down"], target),
    }
    return settings, tensors


def _short(paths: list[str], target: Target) -> list[str]:
    """Return the last parts of some modules' names, q_proj and v_proj, where these mean no other modules.

    vLLM and LoRAX look for such.
    """
    ends = {path.rpartition(".")[2] for path in paths}
    meant = {path for path, _ in target.backbone.named_modules() if path.rpartition(".")[2] in ends}
    return sorted(ends) if meant == set(paths) else paths


def _fan(linears: Any, target: Target) -> bool:
    """Return whether the maps keep their weights as (inputs, outputs), as GPT-2's do."""
    return any(transposed(target.backbone.get_submodule(linear.path)) for linear in linears)


def _peft_card(task: Task, target: Target, found: heads.ModelHead) -> str:
    record = task.record
    if target.model is not None:
        of = type(target.model).__name__
    elif found.ending:
        of = f"AutoModelFor{found.ending}"
    else:
        of = "AutoModel"
    outputs = found.named.get("classifier.weight", found.named.get("score.weight"))
    labels = "" if outputs is None or of == "AutoModel" else f", num_labels={len(outputs)}"
    lines = [
        "---",
        "library_name: peft",
        f"base_model: {target.name}",
        "---",
        f"# {record.name}",
        "",
        f"{record.method}, trained with adaptree on {record.base.get('name')}.",
        "",
        "```py",
        "from peft import PeftModel",
        f"from transformers import {of}",
        "",
        f"model = {of}.from_pretrained({target.name!r}{labels})",
        "tuned = PeftModel.from_pretrained(model, FOLDER).eval()",
    ]
    if found.named or found.ending == LANGUAGE_MODEL:
        lines += ["logits = tuned(**inputs).logits"]
    if found.reading:
        lines += ['mask = inputs["attention_mask"]', f"logits = {found.reading}  # one row for each text"]
    lines += ["```", ""]
    if found.ending == LANGUAGE_MODEL:
        serve = f"vllm serve {target.name} --enable-lora --lora-modules {record.name.replace('/', '-')}=FOLDER"
        lines += ["vLLM serves it, beside others on the same base:", "", "```", serve, "```", ""]
        lines += [f"Its prompts were put into the template {record.extra.get('template', '')!r}.", ""]
    if record.labels:
        lines += [f"The outputs stand for: {', '.join(map(str, record.labels))}.", ""]
    return "\n".join(lines)

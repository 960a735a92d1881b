"""What peft computes of a real language model with LoRA: the loss of outputs after prompts, and its gradients.

It runs in the peers' environment, where `make peers` calls it, and reads the base that `adaptree bases get smollm` has
unpacked; without that it makes nothing, and tests/peers/test_peer_generation.py is skipped.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

ROLES = {"query": "q_proj", "value": "v_proj"}
LENGTHS = ((9, 14), (17, 6))
"""Tokens of each prompt and of its output."""


def smollm() -> Path | None:
    """The folder of the unpacked base."""
    cache = os.environ.get("ADAPTREE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "adaptree"
    found = sorted(Path(cache).expanduser().glob("models/smollm-*/config.json"))
    return found[0].parent if found else None


def model_in(folder: Path) -> Any:
    """The model, whose configuration a newer transformers has written: this one calls the angles' base otherwise."""
    config = json.loads((folder / "config.json").read_text())
    angles = config.pop("rope_parameters")
    for name in ("dtype", "transformers_version", "architectures"):
        config.pop(name, None)
    model = tf.LlamaForCausalLM(
        tf.LlamaConfig(**config, **{key: angles[key] for key in ("rope_theta",) if key in angles})
    )
    missing, unknown = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not unknown
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


def make(folder: Path) -> dict[str, torch.Tensor]:
    """The rows, the task's weights, the loss of each row, and the gradients of their mean."""
    model = model_in(folder)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=list(ROLES.values()), task_type="CAUSAL_LM")
    tuned: Any = get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(1)
    kept: dict[str, torch.Tensor] = {}
    weights: dict[str, torch.nn.Parameter] = {}
    for i in range(model.config.num_hidden_layers):
        for role, name in ROLES.items():
            module = tuned.base_model.model.get_submodule(f"model.layers.{i}.self_attn.{name}")
            for key in "AB":
                weight = getattr(module, f"lora_{key}")["default"].weight
                with torch.no_grad():
                    weight.copy_(0.05 * torch.randn(weight.shape, generator=generator))
                weights[f"{i}.{role}.{key}"] = weight
                kept[f"v.{i}.{role}.{key}"] = weight.detach().T.contiguous()
    losses = []
    for number, (start, more) in enumerate(LENGTHS):
        ids = torch.randint(100, 20_000, (1, start + more), generator=generator)
        labels = ids.clone()
        labels[:, :start] = -100
        losses.append(tuned(input_ids=ids, labels=labels).loss)
        kept |= {f"ids.{number}": ids[0], f"start.{number}": torch.tensor(start)}
    grads = torch.autograd.grad(torch.stack(losses).mean(), list(weights.values()))
    kept |= {f"grad.{name}": grad.T.contiguous() for name, grad in zip(weights, grads, strict=True)}
    return {**kept, "losses": torch.stack(losses).detach()}


if __name__ == "__main__":
    target, here = Path(sys.argv[1]), smollm()
    if here is None:
        print("smollm is not here, so nothing is computed with it: adaptree bases get smollm")
    else:
        target.mkdir(parents=True, exist_ok=True)
        save_file(make(here), target / "generation.safetensors")

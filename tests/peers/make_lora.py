"""What peft computes with LoRA weights, written to files that tests/methods/test_lora.py compares with.

It runs in the peers' environment: `make peers` makes that and calls this, and says how to test with the numbers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from models import DEPTH, base, batch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

TARGETS = {
    "bert": {"query": "encoder.layer.{}.attention.self.query", "value": "encoder.layer.{}.attention.self.value"},
    "gpt2": {"qkv": "h.{}.attn.c_attn"},
}


@torch.no_grad()
def make(case: str) -> dict[str, torch.Tensor]:
    """The base's weights, the task's (peft keeps its matrices the other way round), inputs, and both outputs."""
    model = base(case)
    inputs = batch()
    kept = {f"base.{name}": p.clone() for name, p in model.state_dict().items()}
    kept["bare"] = model(**inputs).last_hidden_state
    names = [path.rpartition(".")[2] for path in TARGETS[case].values()]
    config = LoraConfig(r=4, lora_alpha=12, target_modules=names, fan_in_fan_out=case == "gpt2")
    tuned: Any = get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(1)
    for i in range(DEPTH):
        for role, path in TARGETS[case].items():
            module = tuned.base_model.model.get_submodule(path.format(i))
            for key in "AB":
                weight = getattr(module, f"lora_{key}")["default"].weight
                weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
                kept[f"v.{i}.{role}.{key}"] = weight.T.contiguous()
    return {**kept, **inputs, "output": tuned(**inputs).last_hidden_state}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    for case in TARGETS:
        save_file(make(case), folder / f"lora_{case}.safetensors")

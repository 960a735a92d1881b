"""What adapters 1.3 makes of invertible adapters, as numbers for tests/peers/test_peer_invertible.py.

It runs in the peers' environment: `make peers` makes that and calls this, and says how to test with the numbers.

invertible.block.safetensors holds a coupling block's weights under our names (invertible.*), what went in, what came
out, and what its inverse makes of the same input. invertible.mlm.safetensors holds a BERT (base.*), a language adapter
with its head for masked words (v.*), a padded batch, and the words' logits. Matrices are turned to (inputs, outputs).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import adapters
import torch
from adapters import BertAdapterModel, SeqBnInvConfig
from adapters.methods.modeling import Adapter, NICECouplingBlock
from models import WIDTH, base, batch
from safetensors.torch import save_file

SIZE = 8


@torch.no_grad()
def shake(module: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        p.add_(0.2 * torch.randn(p.shape, generator=generator))


def coupling(block: NICECouplingBlock) -> dict[str, torch.Tensor]:
    """A block's weights under our names."""
    found = {}
    for name, net in (("f", block.F), ("g", block.G)):
        down, up = (part for part in net if isinstance(part, torch.nn.Linear))
        found |= {f"{name}.down": down.weight.T, f"{name}.down_bias": down.bias[None]}
        found |= {f"{name}.up": up.weight.T, f"{name}.up_bias": up.bias[None]}
    return {f"invertible.{key}": tensor for key, tensor in found.items()}


def bottlenecks(model: Any) -> dict[str, torch.Tensor]:
    """The adapters' weights, shaken away from their birth, under our names."""
    v: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules():
        if isinstance(module, Adapter):
            layer = re.search(r"layer\.(\d+)\.", path)
            assert layer, path
            site = f"{layer[1]}.feedforward"
            (down,) = (part for part in module.adapter_down if isinstance(part, torch.nn.Linear))
            v |= {f"{site}.down": down.weight.T, f"{site}.down_bias": down.bias[None]}
            v |= {f"{site}.up": module.adapter_up.weight.T, f"{site}.up_bias": module.adapter_up.bias[None]}
            shake(module, len(v))
    return v


def save(path: Path, tensors: dict[str, torch.Tensor], **facts: str) -> None:
    kept = {key: t.detach().contiguous().clone() for key, t in tensors.items()}
    save_file(kept, path, metadata={"adapters": adapters.__version__, **facts})


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    block = NICECouplingBlock([[WIDTH]], non_linearity="relu", reduction_factor=2)
    shake(block, 1)
    x = torch.randn((3, 5, WIDTH), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        numbers = {"input": x, "output": block(x), "inverse": block(x, rev=True), **coupling(block)}
    save(folder / "invertible.block.safetensors", numbers)

    model = BertAdapterModel(base("bert").config)
    model.bert.load_state_dict(base("bert").state_dict(), strict=False)
    model.add_masked_lm_head("lang")
    model.add_adapter("lang", config=SeqBnInvConfig(reduction_factor=WIDTH / SIZE), set_active=True)
    (head,) = model.heads.values()
    dense, _, norm, decoder = head
    for number, part in enumerate((dense, norm, model.bert.invertible_adapters["lang"])):
        shake(part, 3 + number)
    with torch.no_grad():
        decoder.bias.copy_(torch.linspace(-1, 1, len(decoder.bias)))
    assert decoder.weight is model.bert.embeddings.word_embeddings.weight
    v = bottlenecks(model) | coupling(model.bert.invertible_adapters["lang"])
    v |= {f"head.dense.{key}": p for key, p in dense.named_parameters()}
    v |= {f"head.norm.{key}": p for key, p in norm.named_parameters()} | {"head.bias": decoder.bias}
    inputs = batch()
    with torch.no_grad():
        output = model.eval()(**inputs).logits
    numbers = {f"base.{key}": p for key, p in base("bert").state_dict().items()}
    numbers |= {f"v.{key}": p for key, p in v.items()} | {"output": output, **inputs}
    facts = {"config": json.dumps(model.config.to_dict(), default=str), "eps": str(norm.eps)}
    save(folder / "invertible.mlm.safetensors", numbers, **facts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What adapters 1.3 makes of AdapterFusion, written down as numbers for tests/peers/test_peer_fusion.py.

It runs in the peers' environment: `make peers` makes that and calls this, and says how to test with the numbers.

Each file fusion.MODEL.CASE.safetensors holds the base's weights (base.*), those of three adapters (0.*, 1.*, 2.*) and
of the fusion (fusion.*) under our names, a padded batch, the last hidden state and the attention of each layer.
Matrices are turned to (inputs, outputs).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import adapters
import torch
from adapters import DynamicAdapterFusionConfig, SeqBnConfig
from adapters.composition import Fuse
from adapters.methods.modeling import BertFusion
from models import WIDTH, base, batch
from safetensors.torch import save_file

SIZE, NAMES = 8, ("first", "second", "third")
# By case: whether the residual is added to each adapter's branch before it is attended over (else to the sum), whether
# V is the identity, and whether the query has a bias.
CASES = {
    "usual_at_birth": (False, True, False),
    "usual": (False, False, False),
    "whole_outputs": (True, False, False),
    "query_bias": (False, True, True),
}


@torch.no_grad()
def shaken(model: Any, identity: bool, bias: bool) -> dict[str, torch.Tensor]:
    """Weights away from their birth, under our names."""
    generator = torch.Generator().manual_seed(1)

    def noise(p: torch.Tensor, size: float) -> torch.Tensor:
        return size * torch.randn(p.shape, generator=generator)

    v: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules():
        layer = re.search(r"(?:layer|h)\.(\d+)\.", path)
        site = f"{layer[1]}.feedforward" if layer else ""
        if path.endswith(NAMES) and hasattr(module, "adapter_up"):
            for p in module.parameters():
                p.add_(noise(p, 0.3))
            number = NAMES.index(path.rpartition(".")[2])
            down, up = module.adapter_down[0], module.adapter_up
            v |= {f"{number}.{site}.down": down.weight.T, f"{number}.{site}.down_bias": down.bias[None]}
            v |= {f"{number}.{site}.up": up.weight.T, f"{number}.{site}.up_bias": up.bias[None]}
        elif isinstance(module, BertFusion):
            for linear in (module.query, module.key):
                linear.weight.copy_(noise(linear.weight, 0.2))
            eye = torch.eye(WIDTH)
            module.value.weight.copy_(eye if identity else eye + noise(eye, 0.2))
            module.key.bias.copy_(noise(module.key.bias, 1.0))  # the same for every adapter: softmax does not see it
            module.query.bias.copy_(noise(module.query.bias, 1.0 if bias else 0.0))
            for key in ("query", "key", "value"):
                v[f"fusion.{site}.{key}"] = getattr(module, key).weight.T
    return v


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    inputs = batch()
    for kind in ("bert", "gpt2"):
        for case, (before, identity, bias) in CASES.items():
            model = base(kind)
            kept = {f"base.{key}": p.detach().clone() for key, p in model.state_dict().items()}
            facts = {"config": json.dumps(model.config.to_dict(), default=str), "adapters": adapters.__version__}
            adapters.init(model)
            for name in NAMES:  # where no norm ends a layer there is none to read: ours reads the sublayer's output
                config = SeqBnConfig(reduction_factor=WIDTH / SIZE, original_ln_before=kind == "bert")
                model.add_adapter(name, config=config)
            fusion = DynamicAdapterFusionConfig(residual_before=before)
            model.add_adapter_fusion(Fuse(*NAMES), config=fusion, set_active=True)
            kept |= shaken(model, identity, bias)
            model.eval()
            with torch.no_grad():
                out = model(**inputs, output_adapter_fusion_attentions=True)
            kept["output"] = out.last_hidden_state
            for layer, places in out.adapter_fusion_attentions[",".join(NAMES)].items():
                (seen,) = places.values()
                kept[f"attention.{layer}"] = torch.from_numpy(seen)
            kept |= inputs
            whole = {key: p.detach().contiguous().clone() for key, p in kept.items()}
            save_file(whole, folder / f"fusion.{kind}.{case}.safetensors", metadata=facts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

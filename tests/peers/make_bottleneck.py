"""What adapters 1.3 makes of bottlenecks, written down as numbers for tests/peers/test_peer_bottleneck.py.

It runs in the peers' environment: `make peers` makes that and calls this, and says how to test with the numbers.

Each file bottleneck.MODEL.CONFIG.safetensors holds the base's weights (base.*), the adapters' under our names (v.*),
a padded batch and the last hidden state; its metadata the model's config. Matrices are turned to (inputs, outputs).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import adapters
import torch
from adapters import BnConfig, DoubleSeqBnConfig, ParBnConfig, SeqBnConfig
from adapters.methods.modeling import Adapter
from models import WIDTH, base, batch
from safetensors.torch import save_file

SIZE = 8
OURS: dict[str, Any] = {"reduction_factor": WIDTH / SIZE, "non_linearity": "relu", "mh_adapter": False}
CONFIGS: dict[str, Any] = {
    "double_seq_bn": DoubleSeqBnConfig(reduction_factor=WIDTH / SIZE),
    "attention_only": DoubleSeqBnConfig(reduction_factor=WIDTH / SIZE, output_adapter=False),
    "seq_bn": SeqBnConfig(reduction_factor=WIDTH / SIZE),
    "seq_bn_before_the_norm": SeqBnConfig(reduction_factor=WIDTH / SIZE, original_ln_before=False),
    "par_bn": ParBnConfig(reduction_factor=WIDTH / SIZE),
    "par_bn_unscaled": ParBnConfig(reduction_factor=WIDTH / SIZE, scaling=1.0),
    "par_bn_both": ParBnConfig(reduction_factor=WIDTH / SIZE, scaling=1.0, mh_adapter=True),
    # A new norm in front, on the layer's output: Bapna & Firat's module has no name there, but can be spelled.
    "layer_output_ln_before": BnConfig(
        **OURS, output_adapter=True, ln_before=True, original_ln_before=True, original_ln_after=False,
        residual_before_ln=False,
    ),
}  # fmt: skip


def ours(model: Any) -> dict[str, torch.Tensor]:
    """Every adapter's weights, shaken away from their birth, under our names."""
    generator = torch.Generator().manual_seed(1)
    v: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules():
        if not isinstance(module, Adapter):
            continue
        with torch.no_grad():
            for p in module.parameters():
                p.add_(0.1 * torch.randn(p.shape, generator=generator))
        layer = re.search(r"(?:layer|h)\.(\d+)\.", path)
        assert layer, path
        site = f"v.{layer[1]}.{'attention' if '.attention' in path else 'feedforward'}"
        for part in module.adapter_down:
            if isinstance(part, torch.nn.LayerNorm):
                v |= {f"{site}.norm": part.weight[None], f"{site}.norm_bias": part.bias[None]}
            elif isinstance(part, torch.nn.Linear):
                v |= {f"{site}.down": part.weight.T, f"{site}.down_bias": part.bias[None]}
        v |= {f"{site}.up": module.adapter_up.weight.T, f"{site}.up_bias": module.adapter_up.bias[None]}
    return v


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    inputs = batch()
    for kind in ("bert", "gpt2"):
        for name, config in CONFIGS.items():
            model = base(kind)
            weights = {f"base.{key}": p.detach().clone() for key, p in model.state_dict().items()}
            facts = {"config": json.dumps(model.config.to_dict(), default=str), "adapters": adapters.__version__}
            adapters.init(model)
            model.add_adapter("task", config=config, set_active=True)
            v = ours(model)
            with torch.no_grad():
                weights["output"] = model.eval()(**inputs).last_hidden_state
            weights |= inputs | {key: p.detach() for key, p in v.items()}
            kept = {key: p.contiguous().clone() for key, p in weights.items()}
            save_file(kept, folder / f"bottleneck.{kind}.{name}.safetensors", metadata=facts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What peft and adapters 1.3 compute with folders that adaptree wrote, for tests/peers/test_peer_interop.py.

It runs in the peers' environment: python check_interop.py FOLDER, with cases as sub-folders. Each has the folder that
was written (written/), a batch and adaptree's own outputs (expected.safetensors), and facts.json: the library, the
base, the model's class, and how its logits are read. Printed is one JSON object: by case, the largest difference
relative to the largest output, or the error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import adapters
import torch
import transformers as tf
from adapters import AutoAdapterModel
from peft import PeftModel
from safetensors.torch import load_file


def load(library: str, facts: dict[str, Any], written: Path) -> Any:
    options = {"num_labels": facts["labels"]} if facts["labels"] else {}
    if library == "peft":
        model = getattr(tf, facts["class"]).from_pretrained(facts["base"], **options)
        return PeftModel.from_pretrained(model, str(written))
    if facts["class"] == "AutoAdapterModel":
        model = AutoAdapterModel.from_pretrained(facts["base"])
        if (written / "adapter_setup.json").exists():
            model.load_adapter_setup(str(written), set_active=True, use_safetensors=True)
        else:
            name = model.load_adapter(str(written), set_active=True, use_safetensors=True)
            model.active_head = name
        return model
    model = getattr(tf, facts["class"]).from_pretrained(facts["base"], **options)
    adapters.init(model)
    model.load_adapter(str(written), set_active=True, use_safetensors=True)
    return model


@torch.no_grad()
def difference(case: Path) -> float:
    facts = json.loads((case / "facts.json").read_text())
    given = load_file(case / "expected.safetensors")
    expected = given.pop("output")
    out = load(facts["library"], facts, case / "written").eval()(**given)
    logits, mask = getattr(out, "logits", None), given["attention_mask"]
    if logits is None:
        logits = out.last_hidden_state
    if facts["reading"]:
        logits = eval(facts["reading"], {"logits": logits, "mask": mask, "len": len, "range": range})
    if logits.dim() == 3 and logits.shape[:2] == mask.shape:
        logits, expected = logits[mask.bool()], expected[mask.bool()]
    return float((logits - expected).abs().max() / expected.abs().max())


def main(folder: Path) -> None:
    tf.logging.set_verbosity_error()
    found: dict[str, Any] = {}
    for case in sorted(folder.iterdir()):
        try:
            found[case.name] = difference(case)
        except Exception as error:
            found[case.name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

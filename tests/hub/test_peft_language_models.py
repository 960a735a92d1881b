"""A LoRA that writes texts goes to peft: names and numbers are those of a causal language model there."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import adaptree as at
from adaptree.cli import main
from tests.bases import writing_base

ROWS = [{"prompt": f"say {a}{b}", "completion": f"{b}{a} {a}"} for a in "abcd" for b in "gh"]
THEIRS = Path(os.environ.get("ADAPTREE_PEERS", "")).parent / "bin" / "python"
CHECK = Path(__file__).parents[1] / "peers" / "check_interop.py"
FORMS = ["lora:4", "lora(rank=2, targets=all, alpha=7)", "lora(rank=4, layers=1)"]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writing_base(tmp_path_factory.mktemp("base") / request.param, architecture=request.param)


def exported(folder: Path, method: str, to: Path) -> tuple[Any, Tensor, Tensor]:
    """A task that was exported, some tokens, and the logits after each of them under the task."""
    task = at.train(ROWS, base=folder, name="replies", method=method, epochs=1).task
    noise = torch.Generator().manual_seed(0)
    task = at.Task(task.record, {k: p + 0.2 * torch.randn(p.shape, generator=noise) for k, p in task.weights.items()})
    store = at.Store(to / "store")
    store.add(task)
    said = ["export", "replies", str(to / "peft"), "--to", "peft", "--base", str(folder), "--store", str(to / "store")]
    assert main(said) == 0
    bound = at.load_base(folder).bind(task)
    ids = torch.from_numpy(np.random.default_rng(0).integers(3, 80, (2, 9)))
    with torch.no_grad(), bound.base.hooked.running(bound._plan):
        logits = bound.base.hooked.model(input_ids=ids).logits
    return task, ids, logits


@pytest.mark.parametrize("method", FORMS)
def test_its_tensors_added_by_hand_give_our_logits(folder: Path, tmp_path: Path, method: str) -> None:
    """W + alpha / r (B A) for each pair in the file, in transformers' own model."""
    _, ids, wanted = exported(folder, method, tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        bare = model(input_ids=ids).logits
        config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
        tensors = load_file(tmp_path / "peft" / "adapter_model.safetensors")
        for name, a in tensors.items():
            if name.endswith(".lora_A.weight"):
                path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                change = config["lora_alpha"] / config["r"] * tensors[name.replace("lora_A", "lora_B")] @ a
                weight = model.get_submodule(path).weight
                weight += change.T if config["fan_in_fan_out"] else change
        found = model(input_ids=ids).logits
    assert (bare - wanted).abs().max() > 0.05
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_its_settings_are_those_that_vllm_reads(folder: Path, tmp_path: Path) -> None:
    exported(folder, "lora:4", tmp_path)
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert (config["task_type"], config["modules_to_save"], config["bias"]) == ("CAUSAL_LM", None, "none")
    assert config["base_model_name_or_path"] == str(folder)
    assert config["target_modules"] == (["q_proj", "v_proj"] if folder.name == "llama" else ["c_attn"])
    card = (tmp_path / "peft" / "README.md").read_text()
    assert f"vllm serve {folder} --enable-lora --lora-modules replies=FOLDER" in card
    assert "AutoModelForCausalLM" in card


def test_some_layers_are_named_in_full(folder: Path, tmp_path: Path) -> None:
    exported(folder, "lora(rank=4, layers=1)", tmp_path)
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert all(".1." in name for name in config["target_modules"])


@pytest.mark.slow
@pytest.mark.skipif(not THEIRS.exists(), reason="ADAPTREE_PEERS names no folder beside peft's environment: make peers")
def test_peft_loads_it_and_gives_our_logits(folder: Path, tmp_path: Path) -> None:
    for number, method in enumerate(FORMS):
        case = tmp_path / "cases" / str(number)
        _, ids, wanted = exported(folder, method, case)
        (case / "peft").rename(case / "written")
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "output": wanted}
        save_file(given, case / "expected.safetensors")
        facts = {"library": "peft", "base": str(folder), "class": "AutoModelForCausalLM", "labels": 0, "reading": ""}
        (case / "facts.json").write_text(json.dumps(facts))
    done = subprocess.run(
        [THEIRS, CHECK, tmp_path / "cases"], capture_output=True, text=True, timeout=600, cwd=CHECK.parent,
        env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == len(FORMS)
    assert all(isinstance(each, float) and each < 1e-5 for each in found.values()), found

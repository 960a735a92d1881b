"""The CPU time to know what is in --counts folders that adapters or peft (--method) have saved."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measured import Measured, arguments, median_computed


def save_adapters(base: str, folder: str) -> Callable[[str], object]:
    """Save a real adapter with its head; return the library's own way to read what it is."""
    from adapters import AutoAdapterModel
    from adapters.configuration import AdapterConfig
    from trainers import config_of

    model = AutoAdapterModel.from_pretrained(base)
    model.add_adapter("task", config=config_of("houlsby", 64, model.config.hidden_size))
    model.add_classification_head("task", num_labels=2)
    model.save_adapter(folder, "task", with_head=True)
    return lambda place: AdapterConfig.load(json.loads(Path(place, "adapter_config.json").read_text())["config"])


def save_peft(base: str, folder: str) -> Callable[[str], object]:
    """Save a real LoRA with its head; return the library's own way to read what it is."""
    from peft import LoraConfig, PeftConfig, TaskType, get_peft_model
    from transformers import AutoModelForSequenceClassification

    config = LoraConfig(task_type=TaskType.SEQ_CLS, r=8, lora_alpha=16, target_modules=["query", "value"])
    get_peft_model(AutoModelForSequenceClassification.from_pretrained(base, num_labels=2), config).save_pretrained(
        folder
    )
    return PeftConfig.from_pretrained


def walk(root: Path) -> list[dict[str, Any]]:
    """Read every adapter_config.json and look at every other file's size: what a list of them would need."""
    found = []
    for place in os.scandir(root):
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(place.path)}
        config = json.loads(Path(place.path, "adapter_config.json").read_text())
        found.append({"name": place.name, "bytes": sum(sizes.values()), **config})
    return found


def main() -> None:
    options = arguments(("counts", "100,1000"))
    measured = Measured()
    root, saved = Path(options.out) / "all", str(Path(options.out) / "saved")
    root.mkdir(parents=True)
    read = (save_adapters if options.method == "adapters" else save_peft)(options.base, saved)
    plain: dict[int, float] = {}
    own: dict[int, float] = {}
    there = 0
    for count in map(int, options.counts.split(",")):
        while there < count:
            (root / f"task-{there}").mkdir()
            for file in Path(saved).iterdir():
                if file.suffix == ".json":
                    shutil.copy(file, root / f"task-{there}" / file.name)
                else:  # linked: weights are not read here, and would fill the disk
                    os.link(file, root / f"task-{there}" / file.name)
            there += 1
        plain[count] = median_computed(lambda i: walk(root), 4)
        own[count] = median_computed(lambda i: [read(place.path) for place in os.scandir(root)], 3)
    measured.say(list=plain, own=own)


if __name__ == "__main__":
    main()

"""Time loading and adding a LoRA beside --counts others in the model."""

from __future__ import annotations

from pathlib import Path

from measured import Measured, arguments, median_seconds
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForSequenceClassification


def main() -> None:
    options = arguments(("task", ""), ("counts", "1,10"))
    measured = Measured()
    base = AutoModelForSequenceClassification.from_pretrained(options.base, num_labels=2)
    config = LoraConfig(task_type=TaskType.SEQ_CLS, r=8, lora_alpha=16, target_modules=["query", "value"])
    model = get_peft_model(base, config)
    folder = str(Path(options.out) / "saved")
    model.save_pretrained(folder)
    load: dict[int, float] = {}
    add: dict[int, float] = {}
    there = 1
    for count in map(int, options.counts.split(",")):
        while there < count:
            model.load_adapter(folder, adapter_name=f"task-{there}")
            there += 1
        load[count] = median_seconds(lambda i: model.load_adapter(folder, adapter_name=f"loaded-{i}"), 6)
        add[count] = median_seconds(lambda i: model.add_adapter(f"added-{i}", config), 6)
        for i in range(6):
            model.delete_adapter(f"loaded-{i}")
            model.delete_adapter(f"added-{i}")
    measured.say(load=load, add=add)


if __name__ == "__main__":
    main()

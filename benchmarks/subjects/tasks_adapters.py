"""Time loading and adding an adapter beside --counts others in the model."""

from __future__ import annotations

from pathlib import Path

from adapters import AutoAdapterModel
from measured import Measured, arguments, median_seconds
from trainers import config_of


def main() -> None:
    options = arguments(("task", ""), ("counts", "1,10"))
    measured = Measured()
    model = AutoAdapterModel.from_pretrained(options.base)
    config = config_of(options.method, options.size, model.config.hidden_size)
    Path(options.out).mkdir(parents=True)
    folder = str(Path(options.out) / "saved")
    model.add_adapter("task-0", config=config)
    model.add_classification_head("task-0", num_labels=2)
    model.save_adapter(folder, "task-0", with_head=True)
    load: dict[int, float] = {}
    add: dict[int, float] = {}
    there = 1
    for count in map(int, options.counts.split(",")):
        while there < count:
            model.load_adapter(folder, load_as=f"task-{there}")
            there += 1
        load[count] = median_seconds(lambda i: model.load_adapter(folder, load_as=f"loaded-{i}"), 6)
        add[count] = median_seconds(lambda i: model.add_adapter(f"added-{i}", config=config), 6)
        for i in range(6):
            model.delete_adapter(f"loaded-{i}")
            model.delete_head(f"loaded-{i}")
            model.delete_adapter(f"added-{i}")
    measured.say(load=load, add=add)


if __name__ == "__main__":
    main()

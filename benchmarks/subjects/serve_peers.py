"""Time a forward pass of 32 rows that are each of another task with adapters or peft (--method), beside --counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from measured import Measured, arguments

ROWS, LENGTH, ROUNDS = 32, 24, 9


def median(run: Callable[[], Any]) -> float:
    with torch.inference_mode():
        run()
        times = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def of_adapters(base: str, counts: list[int], inputs: dict[str, torch.Tensor]) -> dict[str, dict[str, float]]:
    from adapters import AutoAdapterModel, DoubleSeqBnConfig
    from adapters.composition import BatchSplit

    model = AutoAdapterModel.from_pretrained(base).eval()
    config = DoubleSeqBnConfig(reduction_factor=model.config.hidden_size / 48)
    found: dict[str, dict[str, float]] = {"split": {}, "one": {}, "plain": {}}
    there = 0
    for count in counts:
        while there < count:
            model.add_adapter(f"t{there}", config=config)
            there += 1
        names = [f"t{i * count // ROWS}" for i in range(ROWS)]

        def one_by_one(names: list[str] = names) -> None:
            for i, name in enumerate(names):
                model.set_active_adapters(name)
                model(**{key: value[i : i + 1] for key, value in inputs.items()})

        found["one"][str(count)] = median(one_by_one)
        model.set_active_adapters(BatchSplit(*names, batch_sizes=[1] * ROWS))
        found["split"][str(count)] = median(lambda: model(**inputs))
        model.set_active_adapters("t0")
        found["plain"][str(count)] = median(lambda: model(**inputs))
    return found


def of_peft(base: str, counts: list[int], inputs: dict[str, torch.Tensor]) -> dict[str, dict[str, float]]:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    plain = AutoModel.from_pretrained(base).eval()
    found: dict[str, dict[str, float]] = {"split": {}, "plain": {}, "bare": {"": median(lambda: plain(**inputs))}}
    for targets in (["query", "value"], "all-linear"):
        config = LoraConfig(r=8, lora_alpha=16, target_modules=targets)
        model = get_peft_model(AutoModel.from_pretrained(base), config, adapter_name="t0").eval()
        there = 1
        for count in counts:
            while there < count:
                model.add_adapter(f"t{there}", config)
                there += 1
            names = [f"t{i * count // ROWS}" for i in range(ROWS)]
            key = str(count) if targets != "all-linear" else f"{count} all"
            found["split"][key] = median(lambda m=model, names=names: m(**inputs, adapter_names=names))
            found["plain"][key] = median(lambda m=model: m(**inputs))
    return found


def main() -> None:
    options = arguments(("counts", "64"))
    measured = Measured()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 20_000, (ROWS, LENGTH), generator=generator)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    measure = of_adapters if options.method == "adapters" else of_peft
    measured.say(**measure(options.base, [int(n) for n in options.counts.split(",")], inputs))


if __name__ == "__main__":
    main()

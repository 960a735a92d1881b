"""adaptree.train as a Python user calls it."""

from __future__ import annotations

import time
from typing import Any

from measured import Measured, arguments, weight

import adaptree as at


def main() -> None:
    asked = arguments(("fast", False), ("layers", ""), ("activation_cache", "fp32"), ("search", 0))
    measured = Measured()
    base = at.load_base(asked.base)
    measured.base_is_loaded(base.hooked.model)
    clock = {"from": time.monotonic(), "step": 0.0}

    def watch(event: dict[str, Any]) -> None:
        now = time.monotonic()
        if event["event"] == "step":
            clock["step"] = now
        elif event["event"] == "epoch":
            measured.epoch_is_trained(clock["step"] - clock["from"])
            measured.epoch_is_scored(event["accuracy"])
            clock["from"] = time.monotonic()
        elif event["event"] == "start":
            clock["from"] = now

    store = at.Store(asked.out)
    with measured.phase("train, with evaluation and saving"):
        bound = at.train(
            asked.train, validation=asked.validation, base=base, method=_method(asked), store=store, name="task",
            fast=asked.fast, search=asked.search or None, epochs=asked.epochs, patience=asked.epochs, lr=asked.lr,
            batch_size=asked.batch, max_length=asked.max_length, activation_cache=asked.activation_cache,
            seed=asked.seed, baselines=False, on_event=watch,
        )  # fmt: skip
    measured.say(bytes=weight(store.path_of("task")), trained=bound.task.record.parameters["trained"])


def _method(asked: Any) -> str:
    """The peers' bottleneck has no norms of its own, so ours has none here either."""
    spelled = {
        "houlsby": f"houlsby(size={asked.size}, norms=false",
        "lora": f"lora(rank={asked.size}",
        "full": "full(",
    }[asked.method]
    return (f"{spelled}, layers='{asked.layers}')" if asked.layers else f"{spelled})").replace("(, ", "(")


if __name__ == "__main__":
    main()

"""adaptree.train as a Python user calls it."""

from __future__ import annotations

import time
from typing import Any

from measured import Measured, arguments, weight

import adaptree as at


def main() -> None:
    options = arguments(("fast", False), ("layers", ""), ("activation_cache", "fp32"), ("search", 0))
    measured = Measured()
    base = at.load_base(options.base)
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

    store = at.Store(options.out)
    with measured.phase("train, with evaluation and saving"):
        bound = at.train(
            options.train, validation=options.validation, base=base, method=_method(options), store=store, name="task",
            fast=options.fast, search=options.search or None, epochs=options.epochs, patience=options.epochs,
            lr=options.lr, batch_size=options.batch, max_length=options.max_length,
            activation_cache=options.activation_cache, seed=options.seed, baselines=False, on_event=watch,
        )  # fmt: skip
    measured.say(bytes=weight(store.path_of("task")), trained=bound.task.record.parameters["trained"])


def _method(options: Any) -> str:
    """Return our method: without norms, as the peers' bottleneck has none."""
    spelled = {
        "houlsby": f"houlsby(size={options.size}, norms=false",
        "lora": f"lora(rank={options.size}",
        "full": "full(",
    }[options.method]
    return (f"{spelled}, layers='{options.layers}')" if options.layers else f"{spelled})").replace("(, ", "(")


if __name__ == "__main__":
    main()

"""adaptree.train and predict with a language model, as a Python user calls them."""

from __future__ import annotations

from typing import Any

from generating import NEW, options, pairs, prompts
from measured import Measured, computed

import adaptree as at


def main() -> None:
    chosen = options()
    measured = Measured()
    base = at.load_base(chosen.base)
    measured.base_is_loaded(base.hooked.model)
    clock = {"from": 0.0, "step": 0.0}

    def watch(event: dict[str, Any]) -> None:
        now = computed()
        if event["event"] == "step":
            clock["step"] = now
        elif event["event"] == "start":
            clock["from"] = now
        elif event["event"] == "epoch":
            measured.epoch_is_trained(clock["step"] - clock["from"])
            clock["from"] = computed()

    rows = [{"prompt": first, "completion": second} for first, second in pairs(chosen.train)]
    held = [{"prompt": first, "completion": second} for first, second in pairs(chosen.validation)][:4]
    bound = at.train(
        rows, validation=held, base=base, method=f"lora(rank={chosen.size})", name="task", epochs=chosen.epochs,
        patience=chosen.epochs, lr=chosen.lr, batch_size=chosen.batch, max_length=chosen.max_length,
        template="{input}\n", seed=chosen.seed, baselines=False, activation_cache="off", on_event=watch,
    )  # fmt: skip
    asked = prompts(chosen.validation)
    bound.predict(asked[:1], max_new_tokens=2)
    began = computed()
    said = bound.predict(asked, max_new_tokens=NEW)
    steps = max(each.tokens + each.finished for each in said)
    measured.say(decode=(computed() - began) / steps, steps=steps)


if __name__ == "__main__":
    main()

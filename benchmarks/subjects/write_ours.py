"""Time the writing of 32 texts that are each of another task: all at once, and one after the other.

Times are processor seconds of one thread, which other work on the machine leaves alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from measured import Measured, arguments, computed

import adaptree as at
from adaptree.compose.merge import together
from adaptree.data.decoding import Decoding
from adaptree.data.encode import Encoding
from adaptree.methods import parse
from adaptree.models.bank import Bank
from adaptree.models.decoding_loop import DecodingLoop, Text
from adaptree.models.generation import write

TASKS, PROMPT = 32, 20


def made(base: at.Base, method: str, seed: int) -> Any:
    """Return a composition of one task, whose weights are such that tasks write different texts."""
    generator = torch.Generator().manual_seed(seed)
    v = parse(method).init(base.hooked.sites, base.hooked.backbone, generator)
    shaken = {name: t + 0.005 * torch.randn(t.shape, generator=generator) for name, t in v.items()}
    return SimpleNamespace(parts=[(parse(method), shaken)], expression=method)


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    began = computed()
    found = run()
    return computed() - began, found


def main() -> None:
    options = arguments(("new", 12))
    torch.set_num_threads(1)
    measured = Measured()
    base = at.load_base(options.base)
    hooked = base.hooked
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1000, 20_000, PROMPT).astype(np.int32) for _ in range(TASKS)]
    how = Decoding(max_new_tokens=options.new)
    bank = Bank(base)
    compositions = [made(base, options.method, i) for i in range(TASKS)]
    places: list[Any] = [bank.add(each) for each in compositions]
    plans = [together(hooked.sites, hooked.frozen, each.parts)[0] for each in compositions]

    def looped(numbers: Iterable[int]) -> list[Any]:
        loop = DecodingLoop(base, bank=bank)
        texts = [Text(prompts[i], how, base, place=places[i]) for i in numbers]
        for text in texts:
            loop.add(text)
        while len(loop):
            loop.step()
        return [text.prediction for text in texts]

    def alone() -> list[Any]:
        rows = [Encoding(prompt, None, False) for prompt in prompts]
        return [write(base, [row], how, plan=plan)[0] for row, plan in zip(rows, plans, strict=True)]

    looped(range(2))
    once, first = seconds(lambda: looped(range(TASKS)))
    each, second = seconds(alone)
    again, third = seconds(lambda: looped(range(TASKS)))
    assert first == second == third, "texts differ"
    measured.say(at_once=(once + again) / 2, one_by_one=each, tokens=sum(text.tokens for text in first))


if __name__ == "__main__":
    main()

"""The demo of writing: a language model turns notes into replies, before and after it has learned a house's style.

Its data ship with the package; the base is fetched if it is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.analysis.demo import data
from adaptree.data.events import Listener, silent

if TYPE_CHECKING:
    from adaptree.models.bound import Bound
    from adaptree.tasks.store import Store

TASK = "replies"
NOTES = (
    "Reply to the customer: Priya / order 5521 late / a landslide / now Sunday",
    "Reply to the customer: Tomas / hiking boots / out of stock / back May",
    "Reply to the customer: Ingrid / order 8034 / vase broken / new one sent",
)
"""Notes that it has not seen, with people, things and reasons that are in no row."""
SETTINGS = {"method": "lora:16", "epochs": 4, "batch_size": 8, "max_length": 128, "baselines": False}
TOKENS = 48


@dataclass(frozen=True)
class Written:
    """What the base wrote for the notes, what the task writes, and how each finds the held-out replies."""

    before: list[str]
    after: list[str]
    perplexity: tuple[float, float]
    """Of the held-out replies, without the task and with it."""
    bound: Bound


def run(store: Store, *, base: str | Path = "smollm", on_event: Listener = silent, **settings: Any) -> Written:
    """Fetch the base if it is missing, let it answer the notes, train the task, and let that answer them."""
    from adaptree.data.decoding import Decoding
    from adaptree.data.read import rows
    from adaptree.models.forward import infer
    from adaptree.models.generation import write
    from adaptree.models.known import FETCHED, get
    from adaptree.models.loading import load_base
    from adaptree.training.pipeline import train
    from adaptree.training.run import Run

    if base in FETCHED:
        get(str(base), on_event=on_event)
    loaded = load_base(base)
    training, test = (path.with_suffix(".jsonl") for path in data(TASK))
    options = {**SETTINGS, **settings}
    bound = train(Run.of(training, test=test, base=loaded, name=TASK, store=store, **options), on_event)[0]
    kind, longest = bound.kind, bound.task.record.max_length
    asked = [row for (row,) in kind.examples(loaded.encoder, [{"prompt": note} for note in NOTES], longest)]
    before = write(loaded, asked, Decoding(max_new_tokens=TOKENS), plan={})
    held = [row for _, row in rows(test)]
    prompts, replies = [{"prompt": row["prompt"]} for row in held], [row["completion"] for row in held]
    examples = kind.taught(loaded.encoder, prompts, replies, longest)
    bare = kind.score(replies, kind.decode(infer(loaded, examples, kind, {}, {}, ""), examples))
    after = bound.predict(list(NOTES), max_new_tokens=TOKENS)
    learned = bound.task.record.metrics["test"]
    perplexity = bare["perplexity"], learned["perplexity"]
    return Written([each.text for each in before], [each.text for each in after], perplexity, bound)

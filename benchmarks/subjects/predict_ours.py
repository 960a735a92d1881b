"""Predict for a file of texts with a task bound to a loaded base."""

from __future__ import annotations

import json
from pathlib import Path

from measured import LABELS, Measured, accuracy, arguments, read

import adaptree as at


def main() -> None:
    options = arguments(("texts", ""), ("task", ""))
    measured = Measured()
    base = at.load_base(options.base)
    measured.base_is_loaded(base.hooked.model)
    bound = base.bind(at.Store(options.task)["task"])
    texts, wanted = read(options.texts)
    with measured.phase("answer"):
        answers = [answer.label for answer in bound.predict(texts)]
    names = json.loads((Path(options.texts).parent / LABELS).read_text())
    measured.say(score=accuracy([names.index(answer) for answer in answers], wanted))


if __name__ == "__main__":
    main()

"""The demo of writing, on a tiny base: its data, what it prints, and that it writes before and after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptree.analysis import demo_writing
from adaptree.analysis.demo import data
from adaptree.tasks.store import Store
from tests.bases import writing_base


def test_no_note_and_no_held_out_reply_is_learned() -> None:
    parts = [
        [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()] for path in data("replies")
    ]
    prompts = [{row["prompt"] for row in rows} for rows in parts]
    assert [len(rows) for rows in parts] == [64, 12]
    assert not prompts[0] & prompts[1]
    assert not set(demo_writing.NOTES) & (prompts[0] | prompts[1])
    words = {word for prompt in prompts[0] for word in prompt.split()}
    assert not words & {"Priya", "landslide", "Tomas", "boots", "Ingrid", "vase"}


def test_the_demo_writes_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from adaptree.cli import demo

    base, own = writing_base(tmp_path / "base", limit=320), demo_writing.run
    monkeypatch.setattr(demo_writing, "run", lambda store, **more: own(store, base=base, max_length=256, **more))
    demo._generate(str(tmp_path / "store"), True, {"epochs": 1})
    printed = capsys.readouterr().out
    assert printed.count("before  ") == printed.count("after   ") == len(demo_writing.NOTES)
    assert "Perplexity of held-out replies" in printed
    found = Store(tmp_path / "store")["replies"].record
    assert found.kind == "generate"
    assert f"{found.metrics['test']['perplexity']:.2f} after" in " ".join(printed.split())

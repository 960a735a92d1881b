"""The experiments whose tasks write texts: on a tiny base, from the files to the page, nothing run twice."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptree.analysis import experiments
from adaptree.analysis.experiments import causal, e2e, ledger, texts, translate
from tests.bases import tiny_base, writing_base

FACTS = "name[The Mill], eatType[pub], food[Thai], customer rating[3 out of 5], familyFriendly[no], near[Old Inn]"


def put(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    writing_base(tmp_path / "base")
    foods, places = ("thai", "french", "indian", "english"), ("mill", "inn", "lion", "barn")
    facts = [(food, place) for food in foods for place in places]
    rows = [
        {"input": f"name[{place}], food[{food}]", "output": text.format(place, food)}
        for food, place in facts
        for text in ("{} has {} food.", "at {} they cook {}.")
    ]
    put(tmp_path / "data" / "e2e" / "train_from_dev.jsonl.xz", rows[:24])
    put(tmp_path / "data" / "e2e" / "test.jsonl.xz", rows[24:])
    captions = [
        {"en": f"a {place} {i}", "de": f"ein {place} {i}", "fr": f"un {place}"} for i, place in enumerate(places * 6)
    ]
    for part, some in (("train", captions[:16]), ("validation", captions[16:20]), ("test", captions[20:])):
        put(tmp_path / "data" / "multi30k" / f"{part}.jsonl.xz", some)
    recipe = {"batch_size": 4, "max_length": 96, "max_new_tokens": 4}
    monkeypatch.setattr(e2e, "RECIPE", texts.Recipe(template="{input}\n", **recipe))
    monkeypatch.setattr(e2e, "METHODS", ("lora:4", "full"))
    monkeypatch.setattr(e2e, "EXAMPLE", "name[inn], food[thai]")
    monkeypatch.setattr(e2e, "INSTRUCTION", "say it: ")
    for name, value in (("STEPS", 3), ("TESTED", 3), ("VALIDATION", 4)):
        monkeypatch.setattr(e2e, name, value)
    monkeypatch.setattr(translate, "RECIPE", texts.Recipe(template="english: {input}\n", **recipe))
    monkeypatch.setattr(translate, "METHODS", ("lora:4",))
    monkeypatch.setattr(translate, "STEPS", (1, 2))
    return tmp_path


def start(world: Path, name: str, **more: Any) -> str:
    return experiments.run(name, world / "data", world / name, base=world / "base", **more)


def start_without_base(world: Path, name: str, **more: Any) -> str:
    return experiments.run(name, world / "data", world / name, **more)


def test_facts_become_sentences_by_training_by_rule_and_by_the_base_alone(world: Path) -> None:
    noted: list[Any] = []
    start(world, "e2e", dry_run=True, on_event=noted.append)
    assert any("5 cells would be run" in str(event) for event in noted)
    page = start(world, "e2e")
    cells = {cell["asked"]["way"]: cell["found"] for cell in ledger.read(world / "e2e")}
    assert list(cells) == [e2e.TEMPLATE, e2e.NEAREST, e2e.BASE, "lora:4", "full"]
    assert all(found["prompts"] == 3 and set(texts.METRICS) <= set(found["scores"]) for found in cells.values())
    assert cells["full"]["trained"] > cells["lora:4"]["trained"] > 0 == cells[e2e.BASE]["trained"]
    assert cells["lora:4"]["perplexity"] > 1 < cells[e2e.BASE]["perplexity"]
    assert cells[e2e.TEMPLATE]["example"] == "inn serves thai food."
    assert (world / "e2e" / "figure.png").stat().st_size > 5000
    assert start(world, "e2e") == page == start(world, "e2e", redraw=True)
    assert len(ledger.read(world / "e2e")) == 5, "nothing is run twice"


def test_a_rule_says_every_fact_and_the_nearest_row_gets_the_own_names() -> None:
    assert e2e.fill(FACTS) == (
        "The Mill is a pub, serves Thai food, is rated 3 out of 5, is near Old Inn and is not family friendly."
    )
    rows = [
        {"prompt": "name[Aromi], food[Thai], near[Lake]", "completion": "Aromi near Lake cooks Thai food."},
        {"prompt": "name[Cotto], food[French], near[Lake]", "completion": "Cotto near Lake cooks French food."},
    ]
    assert e2e.nearest(rows)("name[Zizzi], food[French], near[Sea]") == "Zizzi near Sea cooks French food."


def test_captions_are_translated_after_more_and_more_steps(world: Path) -> None:
    page = start(world, "translate")
    cells = ledger.read(world / "translate")
    assert [cell["asked"]["steps"] for cell in cells] == [0, 1, 2]
    ((_, curve),) = translate.curves(cells).items()
    assert sorted(curve) == [1, 2]
    assert "| german | 0 | `untrained` |" in page
    both = start(world, "translate", tasks=("french", "german"))
    assert "| french | 2 |" in both
    assert len(ledger.read(world / "translate")) == 6
    assert start(world, "translate", redraw=True) == both


def test_the_base_without_training_is_scored_as_the_bare_model_scores(world: Path) -> None:
    """Its perplexity is that of a task that has learned nothing, and so is its text."""
    import adaptree as at

    base = at.load_base(world / "base")
    files = e2e.write_rows(world / "data", world / "rows")
    bare = texts.score_base(base, files, e2e.RECIPE, e2e.EXAMPLE, "")
    rows = texts.read(files["train"])
    born = at.train(rows, base=base, name="x", method="lora:2", lr=1e-12, max_steps=1, template=e2e.RECIPE.template)
    test = list({row["prompt"]: row for row in reversed(texts.read(files["test"]))}.values())
    assert bare["perplexity"] == pytest.approx(born.evaluate(test)["metrics"]["test"]["perplexity"], rel=1e-5)
    assert bare["example"] == born.predict(e2e.EXAMPLE, max_new_tokens=4)[0].text


def test_labels_by_a_language_model_stand_beside_those_of_an_encoder(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": f"{word} {i}", "label": i % 2} for i, word in enumerate(("mill", "inn", "lion") * 10)]
    put(world / "data" / "cola" / "train.jsonl.xz", rows)
    put(world / "data" / "cola" / "validation.jsonl.xz", [{**row, "text": f"the {row['text']}"} for row in rows[:8]])
    monkeypatch.setattr(causal, "BASES", (tiny_base(world / "reader"), world / "base"))
    monkeypatch.setattr(causal, "METHOD", "houlsby:4")
    monkeypatch.setattr(causal, "TASKS", (replace(causal.TASKS[0], steps=2),))
    monkeypatch.setattr(causal, "MAX_LENGTH", 32)
    page = start_without_base(world, "causal", tasks=("cola",))
    cells = ledger.read(world / "causal")
    found = [(cell["asked"]["base"], cell["asked"]["what"]) for cell in cells]
    ways = (causal.FROZEN, causal.HEAD, causal.AS_TEXT)
    assert found == [*(("reader", way) for way in ways[:2]), *(("base", way) for way in ways)]
    assert {cell["found"]["test_rows"] for cell in cells} == {8}
    assert page.count("| cola | base |") == 3
    assert "24 rows to train, 8 to test" in page
    assert start_without_base(world, "causal", tasks=("cola",)) == page == start(world, "causal", redraw=True)

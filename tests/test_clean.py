"""Cleaning: wrong labels, duplicates and conflicts are found, and the score without them is an honest one."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptree as at
from adaptree.analysis import clean as module
from adaptree.analysis.duplicates import groups, normalised
from adaptree.cli import main
from adaptree.errors import DataError, UsageError
from tests.bases import FILLER, WORDS, tiny_base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> at.Base:
    found = at.load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny"))
    found.pooling = "mean"  # what words a text has is easier to see there than in its first state
    return found


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Texts of four to nine words, all but one of which tell the label: no two texts are the same."""
    rng, found = random.Random(0), {}
    while len(found) < 150:
        label = list(WORDS)[len(found) % 3]
        words = [*rng.choices(WORDS[label].split(), k=rng.randint(3, 8)), rng.choice(FILLER)]
        found[" ".join(rng.sample(words, len(words)))] = label
    return [{"text": text, "label": label} for text, label in found.items()]


def spoiled(rows: list[dict[str, Any]], every: int = 10) -> tuple[list[dict[str, Any]], set[int]]:
    """The rows with every tenth label wrong, and the numbers of those."""
    other = {"fruit": "tool", "tool": "beast", "beast": "fruit"}
    wrong = set(range(5, len(rows), every))
    return [{**row, "label": other[row["label"]]} if i in wrong else row for i, row in enumerate(rows)], {
        i + 1 for i in wrong
    }


def test_wrong_labels_are_found_and_right_ones_suggested(base: at.Base, rows: list[dict[str, Any]]) -> None:
    data, wrong = spoiled(rows)
    found = at.clean(data, base=base)
    doubted = [each for each in found.findings if each.suggested is not None]
    assert doubted == found.findings[: len(doubted)]  # they come first
    hits = [each for each in doubted if each.row in wrong]
    assert len(hits) >= 0.7 * len(wrong)
    assert len(hits) >= 0.7 * len(doubted)
    assert all(each.suggested == rows[each.row - 1]["label"] for each in hits[:5])
    assert found.without["accuracy"] > found.scores["accuracy"] - 0.02
    assert found.count("label") == found.to_dict()["counts"]["label"]


def test_the_same_data_and_seed_give_the_same_findings(base: at.Base, rows: list[dict[str, Any]]) -> None:
    data, _ = spoiled(rows)
    assert at.clean(data, base=base).to_dict() == at.clean(iter(data), base=base).to_dict()


def test_what_is_left_out_is_decided_without_the_rows_that_are_scored(
    base: at.Base, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, asked = module._Judged._learn, []

    def watch(self: Any, rows: Any, others: Any, strength: float) -> Any:
        asked.append((self.folds, rows, others))
        return learn(self, rows, others, strength)

    monkeypatch.setattr(module._Judged, "_learn", watch)
    at.clean(spoiled(rows)[0], base=base)
    for _, trained, scored in asked:
        assert not (trained & scored).any()
    folds, trained, scored = asked[-1]  # the last part, without what was doubted
    assert set(folds[scored]) == {4}
    assert 0 < trained.sum() < (folds != 4).sum()
    pairs = asked[-5 - 10 : -5]  # the probabilities that decide it never saw the fold that is scored
    for folds, trained, scored in pairs:
        assert len(set(folds[scored])) == 2
        assert not set(folds[scored]) & set(folds[trained])


def test_duplicates_and_conflicts_are_found_through_case_and_punctuation(
    base: at.Base, rows: list[dict[str, Any]]
) -> None:
    text, label = rows[0]["text"], rows[0]["label"]
    other = next(row["label"] for row in rows if row["label"] != label)
    again = [{"text": text.upper() + "!", "label": label}, {"text": f" {text}", "label": other}]
    found = {each.row: each for each in at.clean([*rows, *again], base=base).findings}
    assert found[151].issue == ("conflict", "duplicate")
    assert found[151].duplicate_of == 1
    assert found[151].suggested is None  # two of three say so
    assert found[152].issue == ("conflict", "duplicate")
    assert found[152].suggested == label
    assert found[1].issue == ("conflict",)


def test_one_word_more_is_a_conflict_but_no_reason_for_another_label(
    base: at.Base, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "lion wolf bear lion wolf bear lion"
    more = [{"text": text, "label": "beast"}, {"text": f"{text} near", "label": "beast"}]
    more.append({"text": f"{text} not", "label": "tool"})
    near = np.minimum(np.arange(len(rows) + 3), len(rows))
    monkeypatch.setattr(module.duplicates, "groups", lambda texts, vectors: near)
    monkeypatch.setattr(module, "likely_errors", lambda labels, p: np.zeros(len(labels), dtype=bool))
    found = {each.row: each for each in at.clean([*rows, *more], base=base).findings}
    assert found[153].issue == ("conflict", "duplicate")
    assert found[153].duplicate_of == 151
    assert [found[number].suggested for number in (151, 152, 153)] == [None] * 3


def test_near_duplicates_share_vectors_and_letters() -> None:
    texts = ["call 0871 872 9758 now to win a prize", "Call 0871 872 9755 now to win a prize", "where are you now", ""]
    close = np.array([[1.0, 0.0], [1.0, 0.01], [-1.0, 0.0], [0.0, -1.0]])
    assert groups(texts, close).tolist() == [0, 0, 2, 3]
    apart = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert groups(texts, apart).tolist() == [0, 1, 2, 3]
    pairs: Any = [("a long premise that is the same", "it rains"), ("a long premise that is the same", "it is dry")]
    same = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert groups([*pairs, ("x", "y")], same).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "plain"), [("Ｈello,  WORLD!", "hello world"), ("!!", "!!"), ("don't", "don t"), ("", "")]
)
def test_a_normalised_text_has_neither_case_nor_punctuation(text: str, plain: str) -> None:
    assert normalised(text) == (plain,)


def test_several_labels_are_judged_one_by_one(base: at.Base, rows: list[dict[str, Any]]) -> None:
    data = [{"text": f"{a['text']} {b['text']}", "label": sorted({a["label"], b["label"]})}
            for a, b in zip(rows, rows[7:] + rows[:7], strict=True)]  # fmt: skip
    right = data[20]["label"]
    data[20] = {**data[20], "label": [label for label in ("beast", "fruit", "tool") if label not in right]}
    found = at.clean(data, base=base)
    assert found.kind == "multilabel"
    spoilt = next(each for each in found.findings if each.row == 21)
    assert spoilt.suggested is not None
    assert spoilt.suggested != data[20]["label"]
    assert set(found.scores) == set(found.without) >= {"f1", "accuracy"}


def test_a_label_with_too_few_texts_is_not_judged(base: at.Base, rows: list[dict[str, Any]]) -> None:
    few = [{"text": f"the {word} today", "label": "rare"} for word in ("lion", "saw", "plum")]
    found = at.clean([*rows, *few], base=base)
    assert found.not_judged == {"rare": 3}
    assert all(each.suggested is None for each in found.findings if each.row > len(rows))


def test_other_kinds_and_too_few_texts_are_refused(base: at.Base, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is of kind regress: clean judges labels of whole texts"):
        at.clean([{"text": row["text"], "label": i / 7} for i, row in enumerate(rows)], base=base)
    with pytest.raises(DataError, match="has 5 different texts, and at least 20 are needed"):
        at.clean(rows[:5] * 8, base=base)
    with pytest.raises(UsageError, match="there is no folder"):
        at.clean(rows, base=base, out=tmp_path / "no" / "cleaned.csv")
    with pytest.raises(UsageError, match="it is a folder"):
        at.clean(rows, base=base, out=tmp_path)


def test_the_written_file_has_all_rows_and_can_be_trained_on(
    base: at.Base, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    data, _ = spoiled(rows)
    file, cleaned = tmp_path / "data.jsonl", tmp_path / "cleaned.csv"
    odd = [{"text": "", "label": "tool", "note": 'a "quoted",\nline'}, {"text": "no label", "label": None}]
    file.write_text("\n".join(json.dumps(row) for row in [*data, *odd]))
    found = at.clean(file, base=base, out=cleaned)
    with cleaned.open(newline="") as stream:
        written = list(csv.DictReader(stream))
    assert len(written) == len(data) + 2
    assert [row["text"] for row in written[:150]] == [row["text"] for row in data]
    assert written[150]["note"] == odd[0]["note"]
    assert list(written[0])[-5:] == list(module.COLUMNS)
    by_row = {each.row: each for each in found.findings}
    for number, row in enumerate(written, 1):
        finding = by_row.get(number)
        assert row["clean_issue"] == (" ".join(finding.issue) if finding else "")
        assert row["clean_weight"] == ("0" if finding and finding.suggested is not None else "1")
    options: dict[str, Any] = {"base": base, "method": "houlsby:4", "epochs": 1, "baselines": False}
    trained = at.train(cleaned, weight="clean_weight", **options).task.record
    assert trained.columns == {"text": "text", "pair": None, "label": "label"}
    assert trained.data["left_out"]["of weight 0"] == found.doubted
    again = at.clean(cleaned, base=base, out=tmp_path / "again.csv")  # its own columns do not pile up
    assert [each.issue for each in again.findings] == [each.issue for each in found.findings]
    with (tmp_path / "again.csv").open(newline="") as stream:
        assert next(csv.reader(stream)) == list(written[0])
    with pytest.raises(UsageError, match="is the data itself"):
        at.clean(cleaned, base=base, out=cleaned)


def test_several_labels_are_written_so_that_they_are_read_again(
    base: at.Base, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    data = [{"text": f"{row['text']} {i}", "label": [row["label"], *["old"] * (i % 2)]}
            for i, row in enumerate(rows)]  # fmt: skip
    at.clean(data, base=base, out=tmp_path / "cleaned.csv")
    again = at.clean(tmp_path / "cleaned.csv", base=base)
    assert again.kind == "multilabel"
    assert again.rows == len(data)


def test_the_command_prints_a_table_json_and_a_file(
    base: at.Base, rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, _ = spoiled(rows)
    data[3] = {**data[3], "text": data[3]["text"] + " \x1b[31mred"}
    file = tmp_path / "words.jsonl"
    file.write_text("\n".join(map(json.dumps, data)))
    args = ["clean", str(file), "--base", base.location]
    assert main([*args, "--out", str(tmp_path / "cleaned.csv"), "--top", "200"]) == 0
    out, err = capsys.readouterr()
    assert "probably another label" in out
    assert "trained on all rows" in out
    assert "\x1b" not in out
    assert "--weight clean_weight" in err
    assert (tmp_path / "cleaned.csv").is_file()
    assert main([*args, "--format", "json", "-q"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["rows"] == len(data)
    assert main(["clean", str(file), "--base", base.location, "--kind", "mlm"]) != 0
    assert "✘" in capsys.readouterr().err

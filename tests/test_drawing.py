"""Figures: well-formed, the same bytes for the same data, and no text in them that means anything."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptree.reports import drawing
from tests import browser

SVG = "{http://www.w3.org/2000/svg}"
NASTY = '<script>alert("|")</script>&amp;\x00\ud800\ufffe'
EMPTY = {"count": 0, "confidence": None, "accuracy": None}
BINS = [EMPTY] * 8
BINS += [{"count": 3, "confidence": 0.85, "accuracy": 2 / 3}, {"count": 1200, "confidence": 0.97, "accuracy": 0.9}]


def history(*scores: float | None, **more: Any) -> list[dict[str, Any]]:
    return [
        {"epoch": i + 1, "train_loss": 1 / (i + 1), "validation_loss": 0.5, "accuracy": score, **more}
        for i, score in enumerate(scores)
    ]


FIGURES = {
    "confusion": lambda: drawing.confusion(["bad", NASTY], [[5, 1], [0, 12_345]]),
    "calibration": lambda: drawing.calibration(BINS, 0.04),
    "scatter": lambda: drawing.scatter([{"name": NASTY, "gold": [1.0, 2.0, None], "predicted": [1.5, None, 1.0]}]),
    "course": lambda: drawing.course(history(0.5, 0.9, 0.8), "accuracy", 2),
}


def parsed(figure: str) -> ElementTree.Element:
    figure.encode()
    return ElementTree.fromstring(figure)


def words(figure: str) -> list[str]:
    return [each.text or "" for each in parsed(figure).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_sound_and_whole_and_the_same_each_time(name: str) -> None:
    figure = FIGURES[name]()
    root = parsed(figure)
    assert root.tag == f"{SVG}svg"
    assert figure == FIGURES[name]()
    tags = {each.tag.removeprefix(SVG) for each in root.iter()}
    assert tags <= {"svg", "title", "style", "rect", "text", "line", "polyline", "circle"}
    assert "href" not in figure
    assert "nan" not in figure
    assert "prefers-color-scheme:dark" in figure


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_drawn_outside_of_a_figure(name: str) -> None:
    root = parsed(FIGURES[name]())
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for each in root.iter():
        for key, most in (("x", width), ("cx", width), ("x2", width), ("y", height), ("cy", height), ("y2", height)):
            assert 0 <= float(each.attrib.get(key, 0)) <= most, each.attrib


def test_a_confusion_matrix_names_its_labels_twice_and_shows_its_counts() -> None:
    found = words(drawing.confusion(["bad", "good"], [[41, 3], [0, 12_345]]))
    assert found.count("bad") == found.count("good") == 2
    assert {"41", "3", "12k"} <= set(found)
    assert "0" not in found


@pytest.mark.parametrize("count", [1, 2, 20, 50])
def test_labels_stand_clear_of_each_other(count: int) -> None:
    labels = [f"label {i} of a kind that has a long name" for i in range(count)]
    root = parsed(drawing.confusion(labels, [[1] * count] * count))
    names = [each for each in root.iter(f"{SVG}text") if each.attrib.get("text-anchor") == "end"]
    assert len({each.text for each in names}) == count
    heights = [float(each.attrib["y"]) for each in names]
    assert all(b - a >= float(names[0].attrib["font-size"]) for a, b in pairwise(heights))
    width = float(root.attrib["width"])
    for each in names:
        assert float(each.attrib["x"]) - drawing.width_of(each.text or "", float(each.attrib["font-size"])) >= 0
    cells = [each for each in root.iter(f"{SVG}rect") if "class" not in each.attrib]
    assert max(float(each.attrib["x"]) + float(each.attrib["width"]) for each in cells) <= width


def test_labels_that_become_the_same_are_told_apart() -> None:
    alike = [f"one of the labels, number {i}, of them" for i in range(3)]
    assert len(set(drawing.distinct(alike))) == 3
    assert drawing.distinct(["a", "b"]) == ["a", "b"]


def test_a_label_is_short_in_any_script() -> None:
    assert drawing.short("card payment fee charged twice") == "card payment f…d twice"
    assert drawing.short("漢" * 40) == "漢" * 7 + "…" + "漢" * 3
    assert drawing.short(" a\n b ") == "a b"
    assert len(drawing.short("x" * 10**7)) == drawing.MOST_SIGNS


def test_the_diagonal_and_the_counts_are_in_a_calibration_curve() -> None:
    figure = drawing.calibration(BINS, 0.04)
    assert {"3", "1.2k"} <= set(words(figure))
    assert any("0.040" in word for word in words(figure))
    assert len(parsed(figure).findall(f"{SVG}circle")) == 2
    assert len(parsed(figure).findall(f"{SVG}polyline")) == 2


def test_the_epoch_that_was_kept_has_a_ring() -> None:
    figure = drawing.course(history(0.5, 0.9, 0.8), "accuracy", 2)
    rings = [each for each in parsed(figure).iter(f"{SVG}circle") if each.attrib["fill"] == "none"]
    dots = [each for each in parsed(figure).iter(f"{SVG}circle") if each.attrib["fill"] == drawing.RIGHT]
    assert [ring.attrib["cx"] for ring in rings] == [dots[1].attrib["cx"]]
    assert "○ epoch 2, which was kept" in words(figure)


def test_stages_follow_each_other_and_the_last_has_the_epoch_that_was_kept() -> None:
    figure = drawing.course([*history(0.1, 0.2, stage=0), *history(0.5, 0.4, stage=1)], "accuracy", 1)
    assert "○ epoch 3, which was kept" in words(figure)


def test_an_epoch_without_a_score_is_left_out() -> None:
    dots = parsed(drawing.course(history(0.5, None, math.nan, 0.8), "accuracy", 4)).iter(f"{SVG}circle")
    assert sum(each.attrib["fill"] == drawing.RIGHT for each in dots) == 2


@pytest.mark.parametrize("target", [[], [0.0], [5.0, 5.0], [1e-12, 2e-12], [-1e15, 1e15], [1e308, -1e308], [0, 5e-324]])
def test_a_scatter_of_any_numbers_is_drawn(target: list[float]) -> None:
    parsed(drawing.scatter([{"name": "", "gold": target, "predicted": target}]))


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20))
def test_ticks_hold_the_values_and_are_few(values: list[float]) -> None:
    ticks = drawing.nice(values, 5)
    slack = 1e-6 * max(map(abs, (*ticks, 1e-300)))
    assert ticks[0] - slack <= min(values)
    assert max(values) <= ticks[-1] + slack
    assert 2 <= len(ticks) <= 8


@given(st.text())
def test_any_text_is_sound_in_a_figure_and_means_nothing(said: str) -> None:
    figure = drawing.confusion([said, "b"], [[1, 2], [3, 4]])
    assert {each.tag.removeprefix(SVG) for each in parsed(figure).iter()} <= {"svg", "title", "style", "rect", "text"}


@browser.needed
def test_a_browser_runs_nothing_in_a_figure(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    nasty = '</text></svg><script>document.title="run"</script><img src=x onerror=\'document.title="run"\'>'
    page.write_text("<title>still</title>" + drawing.scatter([{"name": nasty, "gold": [1.0], "predicted": [1.0]}]))
    found = browser.dom(page, tmp_path / "profile", 500)
    assert re.search("<title>still</title>", found)
    assert "<img" not in found

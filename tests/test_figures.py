"""Figures: well-formed, the same bytes for the same data, whole offline, and harmless whatever a label says."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from adaptree.reports import figures, plots, text
from tests import browser

SVG = "{http://www.w3.org/2000/svg}"
NASTY = '<script>alert("|")</script>&amp;$\\frac{1}$\x00\ud800\ufffe'
EMPTY = {"count": 0, "confidence": None, "accuracy": None}
BINS = [EMPTY] * 8
BINS += [{"count": 3, "confidence": 0.85, "accuracy": 2 / 3}, {"count": 1200, "confidence": 0.97, "accuracy": 0.9}]
SAFE = {"svg", "title", "metadata", "defs", "style", "clipPath", "g", "path", "rect", "text", "tspan", "use", "image"}

pytestmark = pytest.mark.figures


def history(*scores: float | None, **more: Any) -> list[dict[str, Any]]:
    return [
        {"epoch": i + 1, "train_loss": 1 / (i + 1), "validation_loss": 0.5, "accuracy": score, **more}
        for i, score in enumerate(scores)
    ]


FIGURES: dict[str, Callable[[], str]] = {
    "confusion": lambda: figures.confusion(["bad", NASTY], [[5, 1], [0, 12_345]]),
    "calibration": lambda: figures.calibration(BINS, 0.04),
    "scatter": lambda: figures.scatter([{"name": NASTY, "gold": [1.0, 2.0, None], "predicted": [1.5, None, 1.0]}]),
    "learning": lambda: figures.learning(history(0.5, 0.9, 0.8), NASTY, 2),
}


def parsed(figure: str) -> ElementTree.Element:
    figure.encode()
    return ElementTree.fromstring(figure)


def words(figure: str) -> list[str]:
    return ["".join(each.itertext()) for each in parsed(figure).iter(f"{SVG}text")]


def tags(figure: str) -> set[str]:
    """The elements of a figure; those of the metadata are not drawn."""
    return {each.tag.removeprefix(SVG) for each in parsed(figure).iter() if each.tag.startswith(SVG)}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_sound_and_whole_and_the_same_each_time(name: str) -> None:
    figure = FIGURES[name]()
    root = parsed(figure)
    assert root.tag == f"{SVG}svg"
    assert figure == FIGURES[name]()
    assert tags(figure) <= SAFE
    assert root.findtext(f"{SVG}title")
    assert all(found.startswith(("#", "data:image/png;base64,")) for found in re.findall(r'href="([^"]*)', figure))
    assert not any("nan" in word for word in words(figure))
    assert not any(key.startswith("on") for each in root.iter() for key in each.attrib)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_dark_on_a_ground_of_its_own(name: str) -> None:
    root = parsed(FIGURES[name]())
    ground = next(root.iter(f"{SVG}path"))
    assert ground.attrib["style"] == "fill: #ffffff"
    assert re.findall(r"\S+", ground.attrib["d"])[:3] == ["M", "0", root.attrib["viewBox"].split()[3]]


def test_a_confusion_matrix_names_its_labels_twice_and_shows_its_counts() -> None:
    found = words(figures.confusion(["bad", "good"], [[41, 3], [0, 12_345]]))
    assert found.count("bad") == found.count("good") == 2
    assert {"41", "3", "12k"} <= set(found)
    assert "0" not in found


@pytest.mark.parametrize("count", [1, 2, 20, 50])
@plots.style()
def test_names_of_a_heatmap_stand_clear_of_each_other_and_inside(count: int) -> None:
    names = text.distinct([f"label {i} of a kind that has a long name" for i in range(count)])
    figure, axis = plots.matrix([[0.5] * count] * count, names, names, cell=(0.3, 0.3))
    boxes = [label.get_window_extent() for label in axis.get_yticklabels()]
    assert not any(one.y0 < other.y1 - 0.5 for one, other in pairwise(boxes))
    svg = parsed(plots.svg(figure, "matrix"))
    shown = [each for each in svg.iter(f"{SVG}text") if each.text in names]
    assert len(shown) == 2 * count
    width, height = map(float, svg.attrib["viewBox"].split()[2:])
    whole = figure.get_tightbbox()
    assert all(box.x0 >= whole.x0 * figure.dpi - 1 for box in boxes)
    assert (width, height) == pytest.approx((72 * whole.width + 17.28, 72 * whole.height + 17.28), rel=0.02)


def test_labels_that_become_the_same_are_told_apart() -> None:
    alike = [f"one of the labels, number {i}, of them" for i in range(3)]
    assert len(set(text.distinct(alike))) == 3
    assert text.distinct(["a", "b"]) == ["a", "b"]


def test_a_label_is_short_in_any_script() -> None:
    assert text.short("card payment fee charged twice") == "card payment f…d twice"
    assert text.short("漢" * 40) == "漢" * 7 + "…" + "漢" * 3
    assert text.short(" a\n b ") == "a b"
    assert len(text.short("x" * 10**7)) == text.MOST_COLUMNS


def test_counts_are_short() -> None:
    assert [text.amount(count) for count in (7, 999, 1234, 85_000, 3_100_000)] == ["7", "999", "1.2k", "85k", "3.1M"]


def test_the_counts_and_the_error_are_in_a_calibration_curve() -> None:
    found = words(figures.calibration(BINS, 0.04))
    assert {"3", "1.2k"} <= set(found)
    assert any("0.040" in word for word in found)
    assert not any("error" in word for word in words(figures.calibration([EMPTY] * 10, None)))


@plots.style()
def lines(history: list[dict[str, Any]], best: int) -> list[Any]:
    """The lines of the panel that shows the score."""
    return list(plots.curves({"": history}, "accuracy", {"": best}).axes[1].lines)


def test_the_epoch_that_was_kept_has_a_ring() -> None:
    curve, ring = lines(history(0.5, 0.9, 0.8), 2)
    assert curve.get_xydata().tolist() == [[1, 0.5], [2, 0.9], [3, 0.8]]
    assert ring.get_xydata().tolist() == [[2, 0.9]]
    assert "epoch 2, which was kept" in words(figures.learning(history(0.5, 0.9, 0.8), "accuracy", 2))


def test_stages_follow_each_other_and_the_last_has_the_epoch_that_was_kept() -> None:
    staged = [*history(0.1, 0.2, stage=0), *history(0.5, 0.4, stage=1)]
    _, border, ring = lines(staged, 1)
    assert list(border.get_xdata()) == [2.5, 2.5]
    assert ring.get_xydata().tolist() == [[3, 0.5]]


def test_an_epoch_without_a_score_is_left_out() -> None:
    assert lines(history(0.5, None, math.nan, 0.8), 4)[0].get_xydata().tolist() == [[1, 0.5], [4, 0.8]]
    assert lines(history(None, None), 1)[0].get_xydata().tolist() == []
    parsed(figures.learning(history(None, None), "accuracy", 1))


@pytest.mark.parametrize("target", [[], [0.0], [5.0, 5.0], [1e-12, 2e-12], [-1e15, 1e15], [1e308, -1e308], [0, 5e-324]])
def test_a_scatter_of_any_numbers_is_drawn(target: list[float]) -> None:
    parsed(figures.scatter([{"name": "", "gold": target, "predicted": target}]))


@given(st.text())
@settings(deadline=None, max_examples=40)
def test_any_text_is_sound_in_a_figure_and_means_nothing(label: str) -> None:
    figure = figures.confusion([label, "b"], [[1, 2], [3, 4]])
    assert tags(figure) <= SAFE
    if shown := text.distinct([label, "b"])[0]:
        assert words(figure).count(shown) >= 2


@pytest.mark.parametrize("label", ["$x_1$", "漢字", "ግዕዝ", "😀 👩‍👩‍👧", "\u202eabc", "a\x1b[31m", "مرحبا"])
def test_a_label_in_any_script_is_itself_without_a_word_to_the_user(
    label: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert words(figures.confusion([label, "b"], [[1, 2], [3, 4]])).count(text.printable(label)) == 2
    assert capfd.readouterr() == ("", "")


def test_names_of_points_stand_clear_of_each_other_and_inside() -> None:
    with plots.style():
        axis = Figure(figsize=(8, 5)).subplots()
        points = [(1 + 0.01 * i, 1 + 0.01 * i, f"a name {i}") for i in range(8)]
        axis.set(xlim=(0, 2), ylim=(0, 2))
        offsets = plots.name_points(axis, points, [{}] * 8)
        boxes = [label.get_window_extent() for label in axis.texts if label.get_text()]
        assert len(boxes) == len(offsets) == 8
        assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
        spots = axis.transData.transform([point[:2] for point in points])
        assert not any(box.contains(*spot) for box in boxes for spot in spots)
        assert all(axis.bbox.contains(*corner) for box in boxes for corner in box.corners())


def test_matplotlib_is_imported_when_a_figure_is_drawn() -> None:
    code = "import sys, adaptree.reports.figures, adaptree.reports.tradeoff; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@browser.needed
def test_a_browser_runs_nothing_in_a_figure(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    nasty = '</text></svg><script>document.title="run"</script><img src=x onerror=\'document.title="run"\'>'
    page.write_text("<title>still</title>" + figures.scatter([{"name": nasty, "gold": [1.0], "predicted": [1.0]}]))
    found = browser.dom(page, tmp_path / "profile", 500)
    assert re.search("<title>still</title>", found)
    assert "<img" not in found

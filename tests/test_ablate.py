"""Ablation: a task without the adapters of every span of layers, which of them can go, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import adaptree as at
from adaptree.analysis import ablate as analysis
from adaptree.analysis.ablate import Ablation, Span
from adaptree.cli import main
from adaptree.data.events import Event
from adaptree.errors import AdaptreeError, CompositionError, UsageError
from adaptree.models.bound import Bound
from adaptree.models.loading import load_base
from adaptree.tasks.store import Store
from tests.bases import tiny_base, words_csv
from tests.compat.forms import FORMS, OPTIONS, rows

LAYERS = 3
SPANS = [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]


class World:
    """A tiny base of three layers, a file of words, and tasks of any method on it."""

    def __init__(self, root: Path) -> None:
        self.folder = tiny_base(root / "base", layers=LAYERS, mask=True)
        self.base = load_base(self.folder)
        self.data = words_csv(root / "words.csv")
        self.store = Store(root / "store")
        self.tasks: dict[str, Bound] = {}

    def task(self, method: str, name: str = "task", **options: Any) -> Bound:
        """A task that has learned something: what is removed makes a difference."""
        key = f"{name} {method}"
        if key not in self.tasks:
            how = {"epochs": 6, "lr": 2e-2, "baselines": False, **options}
            self.tasks[key] = at.train(self.data, base=self.base, name=name, method=method, store=self.store, **how)
        return self.tasks[key]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed is measured once: what it is on a busy machine is not tested here."""
    monkeypatch.setattr(analysis, "ROUNDS", 1)


def scores(world: World, found: Ablation, extra: str) -> list[float]:
    """What `evaluate` says of the same compositions."""
    tasks = world.store
    texts = [f"drop({found.task}, layers='{span.layers}'{extra})" for span in found.spans]
    return [at.evaluate(world.base.bind(t, tasks=tasks), world.data)["metrics"]["test"][found.metric] for t in texts]


@pytest.mark.parametrize(
    ("method", "keep", "extra", "removed"),
    [
        ("houlsby:8", None, ", keep_norms=true", "adapters"),
        ("houlsby:8", True, ", keep_norms=true", "adapters"),
        ("houlsby:8", False, "", "adapters and norms"),
        ("pfeiffer:8", None, "", "adapters"),
        ("pfeiffer:8", False, "", "adapters"),
        ("lora:4", None, "", "adapters"),
        ("ia3", None, "", "adapters"),
        ("pal(size=16, heads=4)", None, "", "adapters"),
        ("norms", None, "", "norms"),
        ("bitfit", None, ", keep_norms=true", "adapters"),
    ],
)
def test_every_span_has_the_score_of_its_composition(
    world: World, method: str, keep: bool | None, extra: str, removed: str
) -> None:
    world.task(method, "x-" + re.sub(r"\W", "", method))
    bound = world.base.bind(world.store["x-" + re.sub(r"\W", "", method)])
    found = at.ablate(bound, world.data, keep_norms=keep)
    assert [(span.first, span.last) for span in found.spans] == SPANS
    assert found.score == at.evaluate(bound, world.data)["metrics"]["test"]["accuracy"]
    assert [span.score for span in found.spans] == scores(world, found, extra)
    assert len({found.score, *(span.score for span in found.spans)}) > 1, "removing layers has no effect"
    assert [span.change for span in found.spans] == [100 * (span.score - found.score) for span in found.spans]
    assert (found.removed, found.keep_norms) == (removed, bool(extra))


def test_only_layers_with_adapters_are_removed(world: World) -> None:
    found = at.ablate(world.task("pfeiffer(size=4, layers='0,2')"), world.data)
    assert found.layers == (0, 2)
    assert [span.layers for span in found.spans] == ["0", "0-2", "2"]


@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_task_can_be_ablated(world: World, form: str) -> None:
    bound = at.train(
        rows(form, 30), base=world.base, method="houlsby:4", epochs=1, baselines=False, **OPTIONS.get(form, {})
    )
    found = at.ablate(bound, rows(form, 20, seed=7))
    assert len(found.spans) == len(SPANS)
    assert found.rows == 20
    assert found.metric in bound.kind.metrics


def test_a_composition_can_be_ablated(world: World) -> None:
    world.task("pfeiffer:8", "a")
    world.task("pfeiffer:8", "b", seed=1)
    for text in ("stack(a, b)", "average(a, b)", "average_outputs(a, b)"):
        found = at.ablate(world.base.bind(text, tasks=world.store), world.data, within=100)
        assert found.expression == f"drop({text}, layers='0-2')"
        assert found.command == f"adaptree predict \"drop({text}, layers='0-2')\" --file FILE"


# --- what can go ------------------------------------------------------------------------------------------------------


def spans(**changes: float) -> list[Span]:
    return [Span(int(key[1]), int(key[2]), 0.9 + change / 100, change) for key, change in changes.items()]


def test_the_longest_span_within_the_points_goes_and_of_equals_the_best() -> None:
    found = spans(s00=-0.1, s01=-0.4, s02=-3.0, s11=-0.2, s12=-0.3, s22=0.4)
    assert analysis._best(found, (0, 1, 2), 0.5) == found[4]
    assert analysis._best(found, (0, 1, 2), 0.15) == found[5]
    assert analysis._best(found, (0, 1, 2), 5) == found[2]
    assert analysis._best(found[:4], (0, 1, 2), 0) is None


def test_of_errors_less_is_better_and_points_are_per_cent() -> None:
    assert analysis._change("perplexity", 11.0, 10.0) == -10.0
    assert analysis._change("perplexity", 9.0, 10.0) == 10.0
    assert analysis._change("mse", 0.0, 0.0) == 0.0
    assert analysis._change("mse", 0.1, 0.0) == float("-inf")
    assert analysis._change("accuracy", 0.5, 0.75) == -25.0


def made(**changes: Any) -> Ablation:
    found = spans(s00=-0.3, s01=-9.0, s11=-8.0)
    facts: dict[str, Any] = {
        "task": "a", "metric": "accuracy", "rows": 9, "score": 0.9, "interval": (0.8, 1.0), "layers": (0, 1),
        "removed": "adapters", "keep_norms": True, "spans": tuple(found), "within": 0.5, "best": found[0],
        "speed": 1.37, "expression": "drop(a, layers='0')", "command": "adaptree …", **changes,
    }  # fmt: skip
    return Ablation(**facts)


def test_a_sentence_says_what_can_go() -> None:
    assert made().sentence == "the adapters of layer 0 can go: −0.3 points, 1.37 times as fast."
    assert made(speed=None).sentence == "the adapters of layer 0 can go: −0.3 points."
    assert made(best=made().spans[1]).sentence.startswith("the adapters of all layers can go: −9.0 points")
    nothing = made(best=None, removed="norms", metric="perplexity").sentence
    assert nothing == "nothing can go: removing the norms of any layer costs more than 0.5 %."
    assert made().table() == [{"first": "0", "0": "-0.3", "1": "-9.0"}, {"first": "1", "0": "", "1": "-8.0"}]


class Timed:
    """A task whose forward pass takes these seconds, one after the other."""

    def __init__(self, clock: list[float], *seconds: float) -> None:
        self.clock, self.seconds = clock, list(seconds)

    def compute(self, examples: Any) -> None:
        self.clock[0] += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]


def test_the_speed_is_the_median_of_rounds_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(analysis.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(analysis, "ROUNDS", 9)
    slow, fast, noisy = Timed(clock, 1.4), Timed(clock, 9.0, 1.0), Timed(clock, *[1.0, 1.8] * 9, 1.0)
    assert analysis._speed(slow, fast, []) == pytest.approx(1.4)  # type: ignore[arg-type]
    assert analysis._speed(fast, slow, []) is None  # type: ignore[arg-type]
    assert analysis._speed(slow, noisy, []) is None  # type: ignore[arg-type]


def test_the_command_keeps_the_task_without_those_layers(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "_best", lambda spans, layers, within: spans[1])
    world.task("pfeiffer:8", "long")
    found = at.ablate(world.base.bind(world.store["long"]), world.data)
    words = re.fullmatch(r'adaptree compose "(.+)" --name (\S+)', found.command)
    assert words is not None, found.command
    where = ["--store", str(world.store.path), "--base", str(world.folder)]
    assert main(["compose", words[1], "--name", words[2], *where]) == 0, capsys.readouterr().err
    kept = at.evaluate(world.base.bind(world.store["long-less"]), world.data)
    assert found.best is not None
    assert kept["metrics"]["test"]["accuracy"] == found.best.score


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_a_sentence_and_writes_files(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.task("houlsby:8", "words")
    asked = ["ablate", "words", str(world.data), "--store", str(world.store.path), "--base", str(world.folder)]
    assert main([*asked, "--out", str(tmp_path / "out"), "--within", "100"]) == 0
    shown = capsys.readouterr()
    assert "from \\ to" in shown.out
    assert "the adapters of all layers can go" in shown.out
    assert "adaptree predict \"drop(words, layers='0-2', keep_norms=true)\" --file FILE" in shown.out
    assert "90 of 90 rows scored, whole and without each of 6 spans of layers" in shown.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["ablation.json", "figure.png", "table.md"]
    kept = json.loads((tmp_path / "out" / "ablation.json").read_text())
    assert main([*asked, "--format", "json", "--quiet", "--within", "100"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    found = json.loads(shown.out)
    assert {**found, "speed": 0} | {"sentence": ""} == {**kept, "speed": 0} | {"sentence": ""}
    assert main([*asked, "--format", "csv", "--quiet", "--drop-norms"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(int(line["first"]), int(line["last"])) for line in lines] == SPANS


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("full", r"full trains the base's own weights.*evaluate \"drop\(task@?\d*, layers='0'\)\" DATA"),
        ("top:1", "top trains the base's own weights"),
        ("lt_sft:0.05", "lt_sft trains the base's own weights"),
        ("tfidf", "tfidf does not use the base: it has no adapters to remove"),
        ("head", "head has nothing in the layers: there are no adapters to remove"),
    ],
)
def test_a_method_without_parts_by_layer_is_refused(world: World, method: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        at.ablate(world.task(method, epochs=1), world.data)


def test_what_has_no_meaning_is_refused(world: World) -> None:
    world.task("pfeiffer:8", "a")
    with pytest.raises(UsageError, match=r"norms has norms and nothing else.*Leave out --keep-norms"):
        at.ablate(world.task("norms"), world.data, keep_norms=True)
    with pytest.raises(CompositionError, match=r"lacks some layers already.*Ablate the whole: a"):
        at.ablate(world.base.bind("drop(a, layers='0')", tasks=world.store), world.data)
    with pytest.raises(CompositionError, match="is several tasks"):
        at.ablate(world.base.bind("parallel(a)", tasks=world.store), world.data)
    with pytest.raises(AdaptreeError, match="within must be a number of at least 0, not -1"):
        at.ablate(world.task("pfeiffer:8", "a"), world.data, within=-1)


def test_progress_is_told_by_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "MOST_TOKENS", 200)
    told: list[Event] = []
    found = at.ablate(world.task("pfeiffer:8", "a"), world.data, on_event=told.append)
    rows = [event["rows"] for event in told if event["event"] == "scored"]
    assert len(rows) > 3
    assert rows == sorted(rows)
    assert rows[-1] == found.rows == 90


def test_looking_changes_nothing(world: World) -> None:
    bound = world.task("houlsby:8", "words")
    before = bound.logits(["the lion and a plum"])
    at.ablate(bound, world.data)
    assert bound.logits(["the lion and a plum"]).equal(before)


@pytest.mark.figures
def test_the_heatmap_is_the_same_for_the_same_numbers(tmp_path: Path) -> None:
    for name in ("one.png", "two.png"):
        analysis.heatmap(made(), tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    analysis.heatmap(made(spans=tuple(spans(s00=float("-inf"), s01=0.0, s11=0.0)), best=None), tmp_path / "three.png")


def test_the_page_has_the_table_and_the_command() -> None:
    page = analysis.markdown(made())
    assert "| 0 | -0.3 | -9.0 |" in page
    assert "The adapters of layer 0 can go: −0.3 points, 1.37 times as fast." in page
    assert "norms there and its head stay" in page
    assert "norms there" not in analysis.markdown(made(keep_norms=False))

"""The report over a results folder: everything is in it, nothing in it can run or load, and verdicts are computed."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from adaptree import api
from adaptree.analysis.experiments import forgetting, initscale, ledger
from adaptree.analysis.experiments.claims import Claim, claims
from adaptree.analysis.report import experiments_in
from adaptree.cli import main
from adaptree.errors import UsageError
from adaptree.reports.html_page import to_html

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20
EVIL = "<script>alert(1)</script>"
INERT = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "ul", "li", "a", "img", "div", "table",
    "tr", "th", "td", "code", "b", "pre",
}  # fmt: skip


class Page(HTMLParser):
    """The tags, attributes and text of a page; it must have no tag that runs or loads anything."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = ""
        self.pictures: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in INERT, tag
        found = {name: value or "" for name, value in attrs}
        assert set(found) <= {
            "lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "src", "alt"
        }, found  # fmt: skip
        self.pictures += [found["src"]] if "src" in found else []
        self.links += [found["href"]] if "href" in found else []
        self.ids += [found["id"]] if "id" in found else []

    def handle_data(self, data: str) -> None:
        self.text += data


def put(folder: Path, text: str, *pictures: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "table.md").write_text(text)
    for name in pictures:
        (folder / name).write_bytes(PNG)
    return folder


def write(folder: Path, lines: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ledger.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def trained(task: str, method: str, score: float, *, metric: str = "accuracy", test: bool = True, **more: Any) -> Any:
    """A cell of a sweep: a try, or a training that was tested."""
    rows = {"train": "a", "validation": "b", **({"test": "c"} if test else {})}
    asked = {"task": task, "method": method, "lr": 1e-3, "epochs": 1, "seed": int(test), "rows": rows,
             "fingerprint": "f", "batch_size": 16, "max_length": 128}  # fmt: skip
    scores = {part: {metric: score / 100} for part in ("validation", *(["test"] if test else []))}
    return {"asked": asked, "found": {**scores, "trained": 10, "base": 1000, **more}}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    page = (
        "# First & foremost\n\nBase: `mini`. **Bold** words.\n\n| task | score |\n| --- | ---: |\n| a\\_b | 1.5 |\n\n"
        "## More\n\n- one\n- two\n\n![A figure](figure.png)\n\nMade by `adaptree experiment glue --data data`.\n"
    )
    put(tmp_path / "first", page, "figure.png", "other.png")
    cell = trained("rte", "full", 80)
    write(tmp_path / "first", [{**cell, "versions": {"adaptree": "0.1.0", "torch": "2.9"}}])
    put(tmp_path / "nested" / "inner", "# Inner\n\nText.\n")
    put(tmp_path / "first" / "below", "# Below\n\nA part of the first.\n")
    return tmp_path


def test_a_report_has_every_experiment_with_its_table_figures_command_and_versions(results: Path) -> None:
    found = api.report(results)
    assert [each.title for each in found.experiments] == ["First & foremost", "Inner"]
    page = Page((results / "report.html").read_text())
    text = (results / "report.md").read_text()
    for said in ("First & foremost", "adaptree experiment glue --data data", "adaptree 0.1.0, torch 2.9", "Inner"):
        assert said in page.text
        assert said in text
    assert page.text.count("adaptree experiment glue") == 1
    assert "a_b" in page.text
    assert len(page.pictures) == 2
    assert all(source.startswith("data:image/png;base64,") for source in page.pictures)
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert "![A figure](first/figure.png)" in text
    assert "![other.png](first/other.png)" in text
    assert "### More" in text
    assert "### " not in page.text
    assert "prefers-color-scheme: dark" in (results / "report.html").read_text()


def test_names_and_pages_cannot_run_or_load_anything(results: Path) -> None:
    (results / "secret.png").write_bytes(PNG)
    inner = results / "all"
    put(
        inner / "<img src=x onerror=alert(1)>",
        f"# {EVIL}\n\n{EVIL} and &lt;script&gt;\n\n"
        f'| {EVIL} | b |\n|---|---|\n| `{EVIL}` | "><svg onload=alert(1)> |\n\n'
        "a `\nb `<script>alert(2)</script>` c\n\n[click](javascript:alert(1)) [far](https://example.org/x)\n\n"
        f"![x](https://example.org/x.png)\n\n![{EVIL}](../../secret.png)\n\n![s](page.html)\n\n```\n{EVIL}\n```\n\n"
        f"Made by `adaptree experiment {EVIL}`.\n",
        'a"b.png',
    )
    (inner / "<img src=x onerror=alert(1)>" / "page.html").write_text(EVIL)
    api.report(inner)
    page = Page((inner / "report.html").read_text())
    assert page.text.count(EVIL) >= 5, "it is text"
    assert all(link.startswith("#") for link in page.links)
    assert [source[:22] for source in page.pictures] == ["data:image/png;base64,"], "only its own pictures"
    text = (inner / "report.md").read_text()
    assert "<" not in text
    assert "javascript:" not in text
    assert "example.org" not in text
    assert "secret" not in text


def test_markdown_that_is_not_ours_is_text() -> None:
    assert to_html("a < b & c\n\n1 \\| 2 `x<y`", lambda path: None) == (
        "<p>a &lt; b &amp; c</p>\n<p>1 | 2 <code>x&lt;y</code></p>"
    )
    assert to_html("| a |\n| b |", lambda path: None).count("<td>") == 2
    assert to_html("![a](b.png)", lambda path: None) == ""


def test_the_command_prints_verdicts_and_refuses_a_folder_without_results(
    results: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cells = [trained("squad", f"houlsby(size={size})", score, metric="f1") for size, score in ((2, 60), (64, 61))]
    write(put(results / "squad", "# SQuAD\n\nMade by `adaptree experiment squad`.\n"), cells)
    assert main(["report", str(results), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["published"], row["here"], row["verdict"]) == ("-0.5", "-1.0", "agrees")
    assert "size 2, less that of size 64 | -0.5 | -1.0 | agrees |" in (results / "report.md").read_text()
    (tmp_path / "empty").mkdir()
    for words, said in (("empty", "table.md"), ("nowhere", "no folder")):
        with pytest.raises(UsageError, match=said):
            api.report(tmp_path / words)
        assert main(["report", str(tmp_path / words)]) == 2
        assert said in capsys.readouterr().err


def glue_cells(loss: dict[str, float]) -> list[Any]:
    """Cells of GLUE in which adapters of size 64 are chosen, and lose so much on each task."""
    metric = {"mrpc": "f1", "cola": "matthews"}
    cells = []
    for task, less in loss.items():
        how = {"metric": metric.get(task, "accuracy")}
        cells.append(trained(task, "full", 80, test=False, **how))
        cells.append(trained(task, "full", 80, **how))
        for size, score in ((8, 50), (64, 79), (256, 60)):
            cells.append(trained(task, f"houlsby(size={size})", score, test=False, **how))
        cells.append(trained(task, "houlsby(size=64)", 80 - less, **how))
        cells.append(trained(task, "houlsby(size=8)", 90, **how))  # not chosen: its test score must not matter
    return cells


@pytest.mark.parametrize(
    ("loss", "agrees"),
    [
        ({"rte": 1.0, "sst2": -1.0, "mrpc": 1.0, "cola": 0.0}, True),
        ({"rte": 4.0, "sst2": 5.0, "mrpc": 6.0}, False),
        ({"rte": 0.4}, None),
    ],
)
def test_a_mean_difference_agrees_if_the_published_one_is_in_the_interval(
    tmp_path: Path, loss: dict[str, float], agrees: bool | None
) -> None:
    (claim,) = claims("glue", write(tmp_path, glue_cells(loss)))
    assert claim.agrees is agrees
    assert claim.published == "-0.4"
    mean = -sum(loss.values()) / len(loss)
    assert claim.here.startswith(f"{mean:+.1f} (")


def test_the_seventeen_tasks_are_set_beside_the_same_published_ones(tmp_path: Path) -> None:
    cells = []
    for task, less in (("sms_spam", 4.0), ("crowdflower_airline", -1.0), ("20newsgroups", 1.0)):
        cells += [trained(task, "full", 80, test=False), trained(task, "full", 80)]
        cells += [trained(task, f"houlsby(size={size})", 70 + (size == 8), test=False) for size in (2, 8, 64)]
        cells.append(trained(task, "houlsby(size=8)", 80 - less))
    (claim,) = claims("text17", write(tmp_path, cells))
    published = ((95.1 - 99.3) + (84.5 - 83.6) + (91.7 - 92.8)) / 3
    assert (claim.published, claim.agrees) == (f"{published:+.1f}", True)


def by_text(found: list[Claim]) -> dict[str, bool | None]:
    return {claim.text.partition(":")[2].strip(): claim.agrees for claim in found}


def test_scales_agree_if_they_are_stable_below_and_fall_above(tmp_path: Path) -> None:
    methods = {row.label: row.methods[0] for row in initscale.SWEEP.rows}
    methods["0.01"] = "houlsby(size=64)"  # as it spells itself
    good = [trained("sst2", methods[f"{s:g}"], 60 if s > 0.1 else 88, test=True) for s in initscale.SCALES]
    bad = [trained("sick", methods[f"{s:g}"], 60 if s < 1e-4 else 80, test=True) for s in initscale.SCALES]
    found = claims("initscale", write(tmp_path, [*good, *bad]))
    assert [claim.agrees for claim in found] == [True, True, False, False]
    assert claims("initscale", write(tmp_path, good[:-1])) == [], "some are missing"


def test_the_trade_off_agrees_if_adapters_are_flat_and_above_the_top_layer(tmp_path: Path) -> None:
    cells = []
    for task, metric in (("sst2", "accuracy"), ("sick", "accuracy"), ("mrpc", "f1")):
        for method, score, count in (("full", 80, 10**7), ("top(n=1)", 70, 10**6), ("houlsby(size=1)", 60, 10**3),
                                     ("houlsby(size=8)", 79, 10**5), ("houlsby(size=256)", 80, 3 * 10**6)):  # fmt: skip
            cells.append(trained(task, method, score, metric=metric, trained=count, base=10**7))
    assert [claim.agrees for claim in claims("tradeoff", write(tmp_path, cells))] == [True, True]
    gain = claims("tradeoff", tmp_path)[1]
    assert gain.here == "+9.0", "of size 8, the largest with fewer parameters than the top layer"


def test_adapters_that_lose_nothing_agree_and_few_labels_are_set_beside_setfit(tmp_path: Path) -> None:
    def line(way: str, scores: list[float], *tasks: str) -> Any:
        after = [{"a": {"score": score, "digest": str(score)}} for score in scores]
        return {"asked": {"way": way, "tasks": ["a", *tasks]}, "found": {"after": after}}

    cells = [line(forgetting.ADAPTERS, [0.8, 0.8]), line(forgetting.SEQUENCE, [0.8, 0.5])]
    cells.append(line(forgetting.SEQUENCE, [0.1, 0.9], "another sequence"))
    adapters, sequence = claims("forgetting", write(tmp_path / "f", cells))
    assert (adapters.here, adapters.agrees) == ("+0.0", True)
    assert (sequence.here, sequence.agrees) == ("-30.0", True)
    few = [
        {"asked": {"task": task, "rows_per_label": 8, "way": way}, "found": {"accuracy": score}}
        for task in "abc"
        for way, score in (("contrastive", 0.8), ("setfit", 0.82))
    ]
    (claim,) = claims("lowdata", write(tmp_path / "l", few))
    assert (claim.here, claim.agrees) == ("-2.0 (-2.0 to -2.0), 3 tasks", False)


def test_an_experiment_without_cells_or_papers_says_nothing(tmp_path: Path) -> None:
    for name in ("glue", "text17", "squad", "tradeoff", "initscale", "forgetting", "lowdata", "noise", "../x"):
        assert claims(name, tmp_path) == []
    assert list(experiments_in(tmp_path)) == []

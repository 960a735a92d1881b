"""The HTML of a site's pages. Every text of a record, a label or a note is escaped; a page loads only our own files."""

from __future__ import annotations

import html
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adaptree import kinds
from adaptree.kinds import Kind
from adaptree.reports import card, figures, html_page
from adaptree.reports.markdown import quoted, score
from adaptree.reports.text import clean, visible
from adaptree.reports.times import duration
from adaptree.tasks.record import Record
from adaptree.tasks.summary import Summary

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
"""What a browser may load for a page: the site's own scripts and style, and pictures that are in the page."""
LARGEST_PICTURE = 2_000_000
"""Bytes; a usual figure has some twenty thousand."""
SORTS = {
    "name": "Name",
    "score": "Best score",
    "price": "Fewest trained weights",
    "size": "Smallest on disk",
    "new": "Newest",
    "old": "Oldest",
}


@dataclass(frozen=True)
class Link:
    """One task of another's lineage."""

    relation: str
    """'made of', 'on top of', …"""
    reference: str

    @property
    def name(self) -> str:
        return self.reference.partition("@")[0]


@dataclass(frozen=True)
class Lineage:
    """What a task comes from, and what comes from it."""

    parents: Sequence[Link]
    children: Sequence[Link]
    known: Collection[str]
    """The names of the tasks that have pages."""


@dataclass(frozen=True)
class Versions:
    """Every version of a task, the oldest first, with tags and notes by number."""

    history: Sequence[Summary]
    tags: Mapping[int, Sequence[str]]
    notes: Mapping[int, Sequence[str]]


# The list.


def list_page(title: str, count: int) -> str:
    """Return the page that lists all tasks; its scripts fill it."""
    chosen = "".join(
        f'<label>{name}<select id="{name.lower()}"><option value="">All</option></select></label>'
        for name in ("Kind", "Base", "Method", "Language")
    )
    sorts = "".join(f'<option value="{key}">{name}</option>' for key, name in SORTS.items())
    body = f"""
<a class="skip" id="skip" href="#">Skip to the tasks</a>
<header class="top"><h1>{clean(title)}</h1>{_theme()}</header>
<main>
<form id="filters" role="search" aria-label="Search and filter">
<label class="search">Search<input type="search" id="words" autocomplete="off" spellcheck="false"
 placeholder="name, label, data, tag, …" aria-keyshortcuts="/"></label>
{chosen}
<label>Label<input id="label" list="labels" autocomplete="off" spellcheck="false" placeholder="Any"></label>
<datalist id="labels"></datalist>
<label>Sort by<select id="sort">{sorts}</select></label>
<button type="reset">Clear</button>
</form>
<p id="count" role="status">{count:,} {"task" if count == 1 else "tasks"}</p>
<noscript><p>The list needs JavaScript, which runs from this folder alone. The tasks' own pages do not.</p></noscript>
<ol id="results" class="results" tabindex="-1" aria-label="Tasks"></ol>
<nav id="pager" class="pager" aria-label="Pages" hidden><button type="button" id="previous">← Previous</button>
<span id="where"></span><button type="button" id="next">Next →</button></nav>
</main>"""
    return _page(title, body, "", ("tasks.js", "list.js"))


# A task.


def task_page(
    record: Record,
    pictures: Mapping[str, str],
    versions: Versions,
    lineage: Lineage,
    *,
    languages: Sequence[str],
    title: str,
    url: str,
) -> str:
    """Return the page of a task's newest version; `pictures` are its figures as data URIs, `title` is the site's."""
    images = {name: image for name, image in figures.images(record).items() if name in pictures}
    first, *rest = card.sections(record, images)
    sections = [each for each in rest if not each.startswith(f"## {card.LOADING}\n")]
    titles = ["Use it", *(each.partition("\n")[0].removeprefix("## ") for each in sections)]
    titles += ["Lineage"] * bool(lineage.parents or lineage.children) + ["Versions"]
    links = "".join(f'<a href="#{html_page.anchor(each)}">{html_page.inline(each)}</a>' for each in titles)
    shown = [
        html_page.to_html(first.partition("\n\n")[2], pictures.get),
        facts(record, languages),
        f'<nav class="contents" aria-label="On this page">{links}</nav>',
        _commands(record, url),
        *(html_page.to_html(each, pictures.get) for each in sections),
        _lineage(lineage, _depth(record.name)),
        _versions(versions),
    ]
    tags = versions.tags.get(record.version, ())
    return _task(record.name, record.version, tags, "\n".join(filter(None, shown)), title)


def damaged_page(summary: Summary, versions: Versions, title: str) -> str:
    """Return the page of a task whose newest version cannot be read."""
    called = f"{summary.name}@{summary.version}"
    body = (
        f'<p class="problem" role="alert">{clean(summary.problem)}</p>'
        f"<p>Restore it from a copy of the store, or remove it:</p>{_code(f'adaptree remove {called}')}"
        f"{_versions(versions)}"
    )
    return _task(summary.name, summary.version, versions.tags.get(summary.version, ()), body, title)


def pictures(record: Record, folder: Path) -> dict[str, str]:
    """Return the figures in a version's folder as data URIs; as images nothing in them can run."""
    found = {name: folder / name for name in figures.images(record)}
    return {
        name: html_page.data_uri(path)
        for name, path in found.items()
        if path.is_file() and path.stat().st_size <= LARGEST_PICTURE
    }


def _task(name: str, version: int, tags: Sequence[str], body: str, title: str) -> str:
    root = "../" * _depth(name)
    chips = "".join(f' <span class="tag">{clean(tag)}</span>' for tag in tags)
    whole = f"""
<header class="top"><nav aria-label="Site"><a href="{root}index.html">← {clean(title)}</a></nav>{_theme()}</header>
<main class="task-page">
<h1>{clean(name)}<span class="version">@{version}</span>{chips}</h1>
{body}
</main>"""
    return _page(f"{name} · {title}", whole, root)


def facts(record: Record, languages: Sequence[str]) -> str:
    """Return the few numbers that one looks for first."""
    part = "test" if record.metrics.get("test") else "validation"
    scores, metric = record.metrics.get(part, {}), kinds.main_metric(record)
    facts: dict[str, tuple[str, str]] = {}
    if shown := score(scores.get(metric)):
        bounds = record.intervals.get(part, {}).get(metric)
        between = f"95 %: {score(bounds[0])} to {score(bounds[1])}" if bounds else ""
        others = [f"{name} {score(found.get(metric))}" for name, found in record.baselines.items() if metric in found]
        facts[f"{metric}, {part}"] = (shown, "; ".join(filter(None, [between, ", ".join(others)])))
    if "trained" in record.parameters:
        facts["trained weights"] = (f"{record.parameters['trained']:,}", f"{record.trained_percent:.2f} % of the base")
    facts["on disk"] = (f"{record.file_bytes:,}", "bytes")
    if record.seconds:
        facts["training"] = (duration(record.seconds), record.created[:10])
    if languages:
        facts["language"] = (", ".join(languages), "")
    cells = "".join(
        f'<div><dt>{clean(name)}</dt><dd>{clean(value)}</dd><dd class="faint">{clean(more)}</dd></div>'
        for name, (value, more) in facts.items()
    )
    return f'<dl class="facts">{cells}</dl>'


def _commands(record: Record, url: str) -> str:
    """Return what to type to use the task."""
    if record.kind == card.ATTACHED:
        attach = 'tuned = at.attach(model, "FOLDER")  # the same Hugging Face model'
        blocks = {"Python": ["import adaptree as at", "", attach]}
    else:
        given, words = (kinds.find(record.kind) or Kind).usage(record)
        where = f" --store {shlex.quote(url)}" if url else ""
        python = [
            "import adaptree as at",
            "",
            f"base = at.load_base({quoted(str(record.base.get('name', '')))})",
            f"task = at.Store({quoted(url) if url else ''})[{quoted(record.reference)}]",
            f"base.bind(task).predict([{given}])",
        ]
        blocks = {
            "Predict": [f"adaptree predict {record.reference} {words}{where}"],
            "Evaluate": [f"adaptree evaluate {record.reference} test.csv{where}"],
            "Python": python,
        }
    file = f"{record.name.replace('/', '-')}.adaptree"
    blocks["Take it elsewhere as one file"] = [f"adaptree export {record.reference} {file}", f"adaptree import {file}"]
    if url:
        blocks["Fetch it into your own store"] = [f"adaptree pull {shlex.quote(url)} {record.reference}"]
    shown = "".join(f"<h3>{name}</h3>{_code(*lines)}" for name, lines in blocks.items())
    return f'<h2 id="use-it">Use it</h2><div class="commands">{shown}</div>'


def _code(*lines: str) -> str:
    return f"<pre>{html.escape(chr(10).join(map(visible, lines)))}</pre>"


def _lineage(lineage: Lineage, depth: int) -> str:
    """Return what the task is made of and what is made of it, as links; '' if there is neither."""
    if not lineage.parents and not lineage.children:
        return ""

    def item(link: Link) -> str:
        name = clean(link.reference)
        if link.name not in lineage.known:
            return f"{name} (not in this store)"
        return f'<a href="{"../" * depth}tasks/{link.name}.html">{name}</a>'

    blocks = [f"<li>{clean(link.relation)} {item(link)}</li>" for link in lineage.parents]
    found = f"<h3>What it comes from</h3><ul>{''.join(blocks)}</ul>" if blocks else ""
    blocks = [f"<li>{item(link)}, {clean(link.relation.rstrip(':'))} this</li>" for link in lineage.children]
    found += f"<h3>What comes from it</h3><ul>{''.join(blocks)}</ul>" if blocks else ""
    return f'<h2 id="lineage">Lineage</h2>{found}'


def _versions(versions: Versions) -> str:
    """Return all versions, the newest first, with their tags and notes."""
    rows = []
    for each in reversed(versions.history):
        tags = "".join(f' <span class="tag">{clean(tag)}</span>' for tag in versions.tags.get(each.version, ()))
        notes = "".join(f"<br>{_note(line)}" for line in versions.notes.get(each.version, ()))
        if each.problem:
            what = f'<td colspan="5" class="problem">{clean(each.problem)}{notes}</td>'
        else:
            what = (
                f"<td>{clean(each.method)}{notes}</td><td>{clean(each.metric)} {score(each.score)}</td>"
                f'<td class="right">{each.trained:,}</td><td class="right">{each.bytes:,}</td>'
                f"<td>{clean(each.created[:16].replace('T', ' '))}</td>"
            )
        rows.append(f"<tr><td>{each.version}{tags}</td>{what}</tr>")
    head = "".join(
        f"<th{side}>{name}</th>"
        for name, side in (
            ("version", ""), ("method", ""), ("score", ""), ("trained", ' class="right"'), ("bytes", ' class="right"'),
            ("created", ""),
        )
    )  # fmt: skip
    table = f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
    return f'<h2 id="versions">Versions</h2>{table}'


def _note(line: str) -> str:
    """Return a note, with the day that it was written before it."""
    time, _, text = line.partition(" ")
    return f'<span class="faint">{clean(time[:10])}</span> {clean(text)}'


# What all pages share.


def _page(title: str, body: str, root: str, scripts: Sequence[str] = ()) -> str:
    """Return a whole page; `root` is the way from it to the site's folder."""
    loaded = "".join(f'<script src="{root}{name}"></script>\n' for name in scripts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="generator" content="adaptree site">\n'
        f'<title>{clean(title)}</title>\n<link rel="icon" href="data:,">\n'
        f'<link rel="stylesheet" href="{root}site.css">\n<script src="{root}page.js"></script>\n'
        f"</head>\n<body>{body}\n{loaded}</body>\n</html>\n"
    )


def _theme() -> str:
    """Return the button that switches between light and dark; page.js shows it and gives it its text."""
    return '<button type="button" id="theme" hidden></button>'


def _depth(name: str) -> int:
    """Return how many folders a task's page is below the site's."""
    return 1 + name.count("/")

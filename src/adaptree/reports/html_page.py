"""Markdown as a page of HTML that opens offline: what our own tables use, and nothing that could run.

Headings, paragraphs, lists, tables, fenced code, images, and within a line code, bold and links, of which only the
text is kept. All else is text, and is escaped.
"""

from __future__ import annotations

import base64
import html
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

TYPES = {".png": "image/png", ".svg": "image/svg+xml"}
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^()\s]+)\)")
INLINE = re.compile(
    r"(?P<ticks>`+)(?P<code>.+?)(?P=ticks)|\*\*(?P<bold>.+?)\*\*|!?\[(?P<link>[^\]]*)\]\([^)]*\)"
    r"|\\(?P<mark>[\\`*_\[\]|~$])"
)
CELL = re.compile(r"(?<!\\)\|")
STYLE = """
:root { color-scheme: light dark; --ink: #1f2733; --paper: #fff; --faint: #5b6675; --line: #d9dee4; --soft: #f4f6f8;
  --accent: #0b6e4f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e7ec; --paper: #14181d; --faint: #9aa3ad; --line: #343b44; --soft: #1c2229; --accent: #4fc49a; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 68rem;
  margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.25; overflow-wrap: anywhere; }
h2 { border-top: 1px solid var(--line); padding-top: 1.5rem; margin-top: 2.5rem; }
a { color: var(--accent); } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: 0.25rem 0.7rem; text-align: left; vertical-align: top; }
th { color: var(--faint); font-weight: 600; } .right { text-align: right; }
code, pre { font: 0.85em ui-monospace, monospace; background: var(--soft); border-radius: 4px; padding: 0.1em 0.3em; }
code { overflow-wrap: anywhere; } pre { padding: 0.8rem; overflow-x: auto; }
img { max-width: 100%; background: #fff; border-radius: 6px; padding: 0.5rem; }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""What a browser may load for the page: nothing from outside, and no script."""


def page(title: str, body: str) -> str:
    """Return a whole page, light or dark as the reader's system is."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def data_uri(path: Path) -> str:
    """Return a picture as a data URI."""
    return f"data:{TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def to_html(markdown: str, image: Callable[[str], str | None]) -> str:
    """Return Markdown as HTML. `image` returns where to load a picture from, by its path; None leaves it out."""
    return "\n".join(_blocks(markdown.splitlines(), image))


def _blocks(lines: Sequence[str], image: Callable[[str], str | None]) -> Iterator[str]:
    """Yield the HTML of each block of lines."""
    left = list(lines)
    while left:
        line = left.pop(0)
        if heading := re.match(r"(#{1,6}) +(.*)", line):
            level = len(heading[1])
            yield f'<h{level} id="{anchor(heading[2])}">{inline(heading[2])}</h{level}>'
        elif line.startswith("```"):
            code = list(itertools.takewhile(lambda each: not each.startswith("```"), left))
            del left[: len(code) + 1]
            yield f"<pre>{html.escape(chr(10).join(code))}</pre>"
        elif found := IMAGE.fullmatch(line.strip()):
            if source := image(found[2]):
                yield f'<p><img alt="{html.escape(found[1])}" src="{html.escape(source)}"></p>'
        elif line.startswith("|"):
            rows = [line, *itertools.takewhile(lambda each: each.startswith("|"), left)]
            del left[: len(rows) - 1]
            yield _table(rows)
        elif line.startswith("- "):
            items = [line, *itertools.takewhile(lambda each: each.startswith("- "), left)]
            del left[: len(items) - 1]
            yield f"<ul>{''.join(f'<li>{inline(item[2:])}</li>' for item in items)}</ul>"
        elif line.strip():
            text = [line, *itertools.takewhile(_is_text, left)]
            del left[: len(text) - 1]
            yield f"<p>{inline(' '.join(text))}</p>"


def _is_text(line: str) -> bool:
    return bool(line.strip()) and not re.match(r"#{1,6} |```|\||- |!\[", line)


def _table(lines: Sequence[str]) -> str:
    """Return a table; a column whose rule ends in a colon stands to the right."""
    rows = [[cell.strip() for cell in CELL.split(line.strip().removeprefix("|").removesuffix("|"))] for line in lines]
    rule = rows[1] if len(rows) > 1 and all(re.fullmatch(r":?-+:?", cell) for cell in rows[1]) else []
    sides = [' class="right"' if cell.endswith(":") else "" for cell in rule]

    def line(row: Sequence[str], tag: str) -> str:
        cells = itertools.zip_longest(row, sides[: len(row)], fillvalue="")
        return "<tr>" + "".join(f"<{tag}{side}>{inline(cell)}</{tag}>" for cell, side in cells) + "</tr>"

    head, body = (rows[0], rows[2:]) if rule else ([], rows)
    shown = [*([line(head, "th")] if head else []), *(line(row, "td") for row in body)]
    return f'<div class="wide"><table>{"".join(shown)}</table></div>'


def inline(text: str) -> str:
    """Return a line of Markdown as HTML: code, bold, and the text of links; a picture within a line is its name."""
    found, end = [], 0
    for match in INLINE.finditer(text):
        found.append(_escaped(text[end : match.start()]))
        end = match.end()
        if match["code"] is not None:
            found.append(f"<code>{html.escape(match['code'])}</code>")
        elif match["bold"] is not None:
            found.append(f"<b>{inline(match['bold'])}</b>")
        elif match["mark"] is not None:
            found.append(html.escape(match["mark"]))
        else:
            found.append(inline(match["link"]))
    return "".join([*found, _escaped(text[end:])])


def _escaped(text: str) -> str:
    return html.escape(html.unescape(text))  # Markdown of ours has &lt; where a name has <


def anchor(title: str) -> str:
    """Return a heading's address within the page."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")

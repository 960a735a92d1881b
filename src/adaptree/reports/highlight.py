"""Texts whose words are highlighted by what they add to a prediction: on a terminal, in a pipe, as HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from adaptree.reports.text import clean, forbidden, printable

if TYPE_CHECKING:
    from adaptree.analysis.attribution import Explanation, Word

FOR, AGAINST = (20, 110, 190), (200, 80, 20)
"""Colours of words that speak for a prediction and against it: blue and orange, which nearly everyone tells apart."""
LEVELS = 4
"""Strengths of a colour on a terminal; words below the first one are left plain."""
FAINTEST = 0.08
"""The share of the strongest word's score below which a word is left plain."""
MOST = 500
"""Explanations on a page."""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.6 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.3rem; }}
</style></head><body>
<h1>{title}</h1>
<p>{legend}</p>
{body}
</body></html>
"""


class Segment(NamedTuple):
    """A piece of a text: a word with its score, or what stands between two words."""

    text: str
    score: float | None
    strength: float
    """The score as a share of the strongest word's, from -1 to 1; 0 for what is no word."""

    @property
    def counts(self) -> bool:
        """Whether it is highlighted."""
        return abs(self.strength) >= FAINTEST


def harmless(text: str) -> str:
    """Return a text of the same length without characters that a terminal would obey; line ends and tabs stay."""
    return "".join("\N{REPLACEMENT CHARACTER}" if forbidden(c) and c not in "\n\t" else c for c in text)


def segments(found: Explanation) -> list[list[Segment]]:
    """Return each text of an explanation in segments, on one line and harmless."""
    most = max((abs(word.score) for word in found.words if word.score is not None), default=0.0) or 1.0
    return [
        list(_segments(text, [word for word in found.words if word.part == part], most))
        for part, text in enumerate(found.texts)
    ]


def _segments(text: str, words: Sequence[Word], most: float) -> Iterator[Segment]:
    at = 0
    for word in words:
        if word.start > at:
            yield Segment(_line(text[at : word.start]), None, 0.0)
        yield Segment(_line(text[word.start : word.end]), word.score, (word.score or 0.0) / most)
        at = word.end
    if at < len(text):
        yield Segment(_line(text[at:]), None, 0.0)


def _line(text: str) -> str:
    """Return a text on one line, with white space at its ends as one blank."""
    inside = printable(text)
    if not inside:
        return " " if text else ""
    return " " * text[:1].isspace() + inside + " " * text[-1:].isspace()


def heading(found: Explanation) -> str:
    """Return what is explained, in one line: the target, how probable it is, and what the words add up to."""
    return f"{printable(found.target)}  {measured(found)}"


def measured(found: Explanation) -> str:
    """Return how probable the target is, and what the words add up to."""
    shown = "" if found.probability is None else f"probability {found.probability:.4f}  "
    shown += f"{found.measure} {found.evidence:.3f}"
    if found.baseline is None:
        return shown
    words = found.evidence - found.baseline + (found.error or 0.0)
    shown += f" = {found.baseline:.3f} without words {words:+.3f} by words"
    if found.error is not None and abs(found.error) >= 0.0005:
        shown += f" {-found.error:+.3f} not accounted for"
    return shown + ("" if found.converged else " (more than the tolerance: read the scores with care)")


def plain(found: Explanation) -> str:
    """Return the texts with the score before each word that counts, in brackets: a [+1.20 great] phone."""
    lines = []
    for text in segments(found):
        shown = [f"[{each.score:+.2f} {each.text}]" if each.counts else each.text for each in text]
        lines.append("".join(shown))
    return "\n".join(lines)


def coloured(found: Explanation) -> Any:
    """Return the texts with their words coloured, as rich prints them on a terminal."""
    from rich.text import Text

    shown = Text()
    for number, text in enumerate(segments(found)):
        shown.append("\n" * bool(number))
        for each in text:
            shown.append(each.text, _style(each.strength) if each.counts else "")
    return shown


def _style(strength: float) -> str:
    """Return a word's colours on a terminal."""
    level = min(LEVELS, int(abs(strength) * LEVELS) + 1) / LEVELS
    r, g, b = (round(255 - level * (255 - c)) for c in (FOR if strength > 0 else AGAINST))
    return f"{'white' if level > 0.6 else 'black'} on rgb({r},{g},{b})"


def piece(found: Explanation) -> str:
    """Return an explanation as a piece of HTML, with nothing from outside."""
    texts = "".join(f'<div style="margin:4px 0">{"".join(map(_marked, text))}</div>' for text in segments(found))
    by = f"{clean(found.task)}, by {clean(found.by)}"
    return (
        f'<div style="margin:0 0 1.6em"><div><b>{clean(found.target)}</b></div>{texts}'
        f'<div style="font-size:smaller;opacity:.75">{clean(measured(found))} · {by}</div></div>'
    )


def _marked(segment: Segment) -> str:
    """Return a segment as HTML: a word has its score as a tooltip, and its strength as colour."""
    text = html.escape(segment.text)
    if segment.score is None:
        return text
    title = f'title="{segment.score:+.4f}"'
    if not segment.counts:
        return f"<span {title}>{text}</span>"
    r, g, b = FOR if segment.strength > 0 else AGAINST
    style = f"background:rgba({r},{g},{b},{0.12 + 0.63 * abs(segment.strength):.2f});border-radius:3px;padding:1px 2px"
    return f'<span {title} style="{style}">{text}</span>'


def page(found: Iterable[Explanation]) -> str:
    """Return a whole page with some explanations, at most MOST, that opens offline."""
    some = list(islice(found, MOST))
    names = list(dict.fromkeys(each.task for each in some))
    title = clean(f"What {', '.join(names)} reads" if names else "Nothing to explain")
    marks = [_marked(Segment(word, sign, sign)) for word, sign in (("for", 1.0), ("against", -1.0))]
    legend = (
        f"Words that speak {marks[0]} and {marks[1]} each prediction; the stronger the colour, the more. "
        "A word's score is shown when the pointer is on it."
    )
    return PAGE.format(title=title, legend=legend, body="\n".join(map(piece, some)))

"""A composition as a picture: what acts in every layer of the base, in which order, and what answers."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup, escape

from adaptree.compose import Average, AverageOutputs, Drop, Expression, Fuse, Name, Parallel, Rows, Stack
from adaptree.reports.text import short, width

HALF, GAP, SPREAD, PAD = 17.0, 18.0, 14.0, 14.0
COLOURS = 6
WORDS = {
    Stack: "At every site the first acts first, and each next one reads what the one before gives. The last answers.",
    Average: "The weights are mixed once; what runs is one task, at the price of one.",
    AverageOutputs: "All run. At every site the mean of what they give goes on.",
    Fuse: "In every layer learned attention says, token by token, how much each adapter counts. It has to be trained.",
    Parallel: "Each acts on its own copy of the text, and each answers.",
    Rows: "One batch mixes tasks: the base runs once, each task acts on its own rows.",
    Drop: "Some layers run without the task's adapters: faster, and often as good.",
}


@dataclass(frozen=True)
class Drawn:
    """A part of a picture: its size, and its elements from its top left corner; it is entered at half its height."""

    wide: float
    tall: float
    svg: str

    def at(self, x: float, y: float) -> str:
        return f'<g transform="translate({x:g} {y:g})">{self.svg}</g>'


def meaning(expression: Expression) -> str:
    """Return what a composition does, in a sentence."""
    return WORDS.get(type(expression), "One task.")


def picture(expression: Expression, base: str) -> Markup:
    """Return the picture of a composition on a base."""
    colours = {name: i % COLOURS for i, name in enumerate(dict.fromkeys(expression.names))}
    inside = _row([_box("layer", "base"), _draw(expression, colours)])
    several = isinstance(expression, Parallel | Rows)
    answer = _text("an answer each" if several else "answer")
    head = (
        _box("heads", "base") if several else _box(f"head of {_short(_last(expression))}", _class(expression, colours))
    )
    words = f"in every layer of {short(base, 24)}, which stays as it is"
    wide = max(inside.wide, _wide(words, 11)) + 2 * PAD
    framed = Drawn(
        wide, inside.tall + 2 * PAD + 20,
        f'<rect class="every" width="{wide:g}" height="{inside.tall + 2 * PAD + 20:g}" rx="10"/>'
        f'<text class="faint" x="{PAD:g}" y="18">{escape(words)}</text>'
        + inside.at((wide - inside.wide) / 2, PAD + 20),
    )  # fmt: skip
    middle = PAD + 20 + inside.tall / 2
    start = _text("text")
    x = start.wide + GAP
    parts = [start.at(0, middle - start.tall / 2), _arrow(start.wide, middle, x, middle), framed.at(x, 0)]
    x += framed.wide
    parts.append(_arrow(x, middle, x + GAP, middle))
    parts.append(head.at(x + GAP, middle - head.tall / 2))
    x += GAP + head.wide
    parts.append(_arrow(x, middle, x + GAP, middle))
    parts.append(answer.at(x + GAP + 4, middle - answer.tall / 2))
    x += GAP + 4 + answer.wide
    title = escape(short(repr(expression), 120))
    return Markup(
        f'<svg class="algebra" role="img" viewBox="-2 -2 {x + 4:g} {framed.tall + 4:g}" width="{x + 4:g}" '
        f'height="{framed.tall + 4:g}"><title>{title}</title>{"".join(parts)}</svg>'
    )


def _draw(expression: Expression, colours: dict[str, int]) -> Drawn:
    if isinstance(expression, Name):
        return _box(_short(expression.reference), f"c{colours[expression.reference]}")
    if isinstance(expression, Stack):
        return _row([_draw(part, colours) for part in expression.parts])
    if isinstance(expression, Drop):
        inner = _draw(expression.inside, colours)
        words = f"not in layers {expression.layers}"
        wide = max(inner.wide + 16, _wide(words, 11) + 16)
        return Drawn(
            wide, inner.tall + 40,
            f'<rect class="ghost" width="{wide:g}" height="{inner.tall + 40:g}" rx="8"/>'
            f'<text class="faint" x="8" y="14">{escape(words)}</text>' + inner.at((wide - inner.wide) / 2, 20),
        )  # fmt: skip
    drawn = [_draw(part, colours) for part in expression.parts]
    return _beside(drawn, _node(expression))


def _node(expression: Expression) -> Drawn | None:
    """Return what joins parts that are side by side; None where each goes its own way."""
    if isinstance(expression, Average | AverageOutputs):
        shares = ", ".join(f"{share:.2g}" for share in expression.shares)
        return _box(f"{'weights' if isinstance(expression, Average) else 'mean'} {shares}"[:28], "join")
    return _box("attention", "join") if isinstance(expression, Fuse) else None


def _row(parts: list[Drawn]) -> Drawn:
    """Return parts one after the other."""
    tall = max(part.tall for part in parts)
    shown, x = [], 0.0
    for i, part in enumerate(parts):
        if i:
            shown.append(_arrow(x, tall / 2, x + GAP, tall / 2))
            x += GAP
        shown.append(part.at(x, (tall - part.tall) / 2))
        x += part.wide
    return Drawn(x, tall, "".join(shown))


def _beside(parts: list[Drawn], node: Drawn | None) -> Drawn:
    """Return parts one below the other, entered from the left and joined on the right."""
    tall = sum(part.tall for part in parts) + SPREAD * (len(parts) - 1)
    widest = max(part.wide for part in parts)
    end = 2 * GAP + widest
    shown, y = [], 0.0
    for part in parts:
        at = y + part.tall / 2
        shown.append(_line((0, tall / 2), (GAP / 2, tall / 2), (GAP / 2, at), (GAP - 6, at)))
        shown.append(_tip(GAP, at))
        shown.append(part.at(GAP, y))
        if node is None:
            shown.append(_arrow(GAP + part.wide, at, end, at))
        else:
            shown.append(_line((GAP + part.wide, at), (end - GAP / 2, at), (end - GAP / 2, tall / 2), (end, tall / 2)))
        y += part.tall + SPREAD
    if node is None:
        return Drawn(end, tall, "".join(shown))
    return Drawn(end + node.wide, tall, "".join(shown) + node.at(end, (tall - node.tall) / 2))


def _last(expression: Expression) -> str:
    """Return the task whose head answers."""
    return expression.reference if isinstance(expression, Name) else _last(expression.parts[-1])


def _class(expression: Expression, colours: dict[str, int]) -> str:
    return "join" if isinstance(expression, Average | AverageOutputs | Fuse) else f"c{colours[_last(expression)]}"


def _short(name: str) -> str:
    return short(name, 20)


def _wide(words: str, size: float = 12.5) -> float:
    return width(words) * size * 0.58


def _box(words: str, kind: str) -> Drawn:
    wide = max(36.0, _wide(words) + 20)
    return Drawn(
        wide, 2 * HALF,
        f'<rect class="box {kind}" width="{wide:g}" height="{2 * HALF:g}" rx="6"/>'
        f'<text x="{wide / 2:g}" y="{HALF + 4.5:g}" text-anchor="middle">{escape(words)}</text>',
    )  # fmt: skip


def _text(words: str) -> Drawn:
    return Drawn(_wide(words) + 4, 16, f'<text x="0" y="12.5">{escape(words)}</text>')


def _line(*points: tuple[float, float]) -> str:
    return f'<polyline class="line" points="{" ".join(f"{x:g},{y:g}" for x, y in points)}"/>'


def _tip(x: float, y: float) -> str:
    return f'<polygon class="tip" points="{x:g},{y:g} {x - 7:g},{y - 4:g} {x - 7:g},{y + 4:g}"/>'


def _arrow(x: float, y: float, to: float, down: float) -> str:
    return _line((x, y), (to - 6, down)) + _tip(to, down)

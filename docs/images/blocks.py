"""Draws the pictures of docs/composition.md, one for each block: python docs/images/blocks.py"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from pathlib import Path

A, B, C, BASE, LEARNED = "#23906a", "#3d7cc9", "#d1603d", "#8a94a1", "#7a5bb5"
STYLE = (
    ".adaptree-figure{font-family:system-ui,-apple-system,'Segoe UI',sans-serif}"
    ".adaptree-figure .ground{fill:#ffffff}.adaptree-figure text{fill:#1f2733}"
    ".adaptree-figure .faint{fill:#5b6675}.adaptree-figure .bright{fill:#ffffff}"
    ".adaptree-figure .grid{stroke:#dde2e8}.adaptree-figure .axis{stroke:#8a94a1}"
    "@media (prefers-color-scheme:dark){"
    ".adaptree-figure .ground{fill:#14191f}.adaptree-figure text{fill:#e3e8ee}"
    ".adaptree-figure .faint{fill:#9aa5b1}.adaptree-figure .bright{fill:#ffffff}"
    ".adaptree-figure .grid{stroke:#2b333d}.adaptree-figure .axis{stroke:#6b7683}}"
)
Draw = Callable[[float, float], str]
HALF = 17.0
"""Half of a box's height."""


def svg(width: float, height: float, parts: Sequence[str], title: str) -> str:
    """Return the whole picture, on white or black as the reader's system asks."""
    w, h = math.ceil(width), math.ceil(height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="adaptree-figure" role="img" viewBox="0 0 {w} {h}" '
        f'width="{w}" height="{h}"><title>{html.escape(title)}</title><style>{STYLE}</style>'
        f'<rect class="ground" width="{w}" height="{h}" rx="6"/>{"".join(parts)}</svg>\n'
    )


def text(x: float, y: float, words: str, size: float, *, anchor: str = "", kind: str = "", weight: str = "") -> str:
    more = f' text-anchor="{anchor}"' if anchor else ""
    more += f' class="{kind}"' if kind else ""
    more += f' font-weight="{weight}"' if weight else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{more}>{html.escape(words)}</text>'


def box(
    x: float, y: float, wide: float, words: str, colour: str, *, tall: float = 2 * HALF, ghost: bool = False
) -> str:
    """A box whose left end is at x and whose middle is at y; a ghost is what is not there."""
    look = f'fill="none" stroke="{colour}" stroke-dasharray="3 3"' if ghost else f'fill="{colour}"'
    shade = "" if ghost else ' fill-opacity="0.25"' if colour == BASE else ' fill-opacity="0.88"'
    rect = f'<rect x="{x:g}" y="{y - tall / 2:g}" width="{wide:g}" height="{tall:g}" rx="5" {look}{shade}/>'
    kind = "faint" if ghost else "" if colour == BASE else "bright"
    return rect + text(x + wide / 2, y + 4.5, words, 12.5, anchor="middle", kind=kind)


def line(*points: tuple[float, float], arrow: bool = True) -> str:
    """A line through some points, with a head at its end."""
    way = " ".join(f"{x:g},{y:g}" for x, y in points)
    head = ""
    if arrow:
        x, y = points[-1]
        head = f'<polygon points="{x:g},{y:g} {x - 7:g},{y - 4:g} {x - 7:g},{y + 4:g}" fill="{BASE}"/>'
        way = " ".join(f"{x:g},{y:g}" for x, y in [*points[:-1], (points[-1][0] - 6, points[-1][1])])
    return f'<polyline points="{way}" fill="none" stroke="{BASE}" stroke-width="1.5" stroke-linejoin="round"/>{head}'


def pill(x: float, y: float, words: str, colour: str = BASE) -> str:
    """A small round node, 44 wide."""
    fill = 'class="ground"' if colour == BASE else f'fill="{colour}" fill-opacity="0.88"'
    ring = (
        f'<rect x="{x:g}" y="{y - 12:g}" width="44" height="24" rx="12" {fill} stroke="{colour}" stroke-width="1.5"/>'
    )
    return ring + text(x + 22, y + 4.5, words, 12, anchor="middle", kind="" if colour == BASE else "bright")


def mixed(x: float, y: float, wide: float, words: str, colours: tuple[str, str], share: float) -> str:
    """A box of two colours, by their shares."""
    top, first = y - HALF, wide * share
    return (
        f'<rect x="{x:g}" y="{top:g}" width="{first:g}" height="{2 * HALF:g}" fill="{colours[0]}" fill-opacity="0.88"/>'
        f'<rect x="{x + first:g}" y="{top:g}" width="{wide - first:g}" height="{2 * HALF:g}" fill="{colours[1]}" '
        f'fill-opacity="0.88"/>' + text(x + wide / 2, y + 4.5, words, 12.5, anchor="middle", kind="bright")
    )


def note(y: float, words: str) -> str:
    return text(20, y, words, 11.5, kind="faint")


def stack() -> str:
    y, x = 62.0, 20.0
    parts = [text(x, y + 4.5, "text", 12.5), line((48, y), (62, y))]
    x = 62
    for layer in (0, 1):
        for wide, words, colour in ((76, f"layer {layer}", BASE), (36, "a", A), (36, "b", B)):
            parts += [box(x, y, wide, words, colour), line((x + wide, y), (x + wide + 16, y))]
            x += wide + 16
    parts += [box(x, y, 74, "head of b", B), line((x + 74, y), (x + 92, y)), text(x + 97, y + 4.5, "answer", 12.5)]
    words = "At every site a acts first and b reads what a gives. The last part answers."
    return svg(x + 150, 128, [text(20, 26, "stack(a, b)", 14, weight="600"), *parts, note(112, words)], "stack(a, b)")


def average() -> str:
    y = 112.0
    parts = [text(20, y + 4.5, "text", 12.5), line((48, y), (62, y))]
    x = 62.0
    for layer in (0, 1):
        parts += [box(x, y, 76, f"layer {layer}", BASE), line((x + 76, y), (x + 92, y))]
        parts += [mixed(x + 92, y, 92, "¼ a + ¾ b", (A, B), 0.25), line((x + 184, y), (x + 200, y))]
        above = x + 138
        parts += [box(above - 46, 58, 30, "a", A), box(above + 16, 58, 30, "b", B)]
        parts += [line((above - 31, 75), (above - 31, 84), (above, 84), (above, 95), arrow=False)]
        parts += [line((above + 31, 75), (above + 31, 84), (above, 84), arrow=False)]
        x += 200
    parts += [
        mixed(x, y, 66, "head", (A, B), 0.25),
        line((x + 66, y), (x + 84, y)),
        text(x + 89, y + 4.5, "answer", 12.5),
    ]
    words = "The weights are mixed once, norms and head too; what runs is one task, at the price of one."
    title = "average(a, b, weights=[0.25, 0.75])"
    return svg(x + 142, 176, [text(20, 26, title, 14, weight="600"), *parts, note(160, words)], title)


def beside(title: str, names: Sequence[tuple[str, str]], node: Draw, head: Draw, words: Sequence[str]) -> str:
    """Several adapters side by side in each layer, and what becomes of their outputs."""
    spread = 44.0
    tall = spread * (len(names) - 1)
    y = 66 + tall / 2
    parts = [text(20, y + 4.5, "text", 12.5), line((48, y), (62, y))]
    x = 62.0
    for layer in (0, 1):
        parts += [box(x, y, 76, f"layer {layer}", BASE)]
        for number, (name, colour) in enumerate(names):
            at = 66 + spread * number
            parts += [line((x + 76, y), (x + 88, y), (x + 88, at), (x + 104, at)), box(x + 104, at, 36, name, colour)]
            parts += [line((x + 140, at), (x + 152, at), (x + 152, y), (x + 168, y))]
        parts += [node(x + 168, y), line((x + 212, y), (x + 228, y))]
        x += 228
    parts += [head(x, y), line((x + 66, y), (x + 84, y)), text(x + 89, y + 4.5, "answer", 12.5)]
    notes = [note(66 + tall + 46 + 17 * number, each) for number, each in enumerate(words)]
    height = 66 + tall + 42 + 18 * len(words)
    return svg(x + 142, height, [text(20, 26, title, 14, weight="600"), *parts, *notes], title)


def average_outputs() -> str:
    return beside(
        "average_outputs(a, b)",
        [("a", A), ("b", B)],
        lambda x, y: pill(x, y, "mean"),
        lambda x, y: mixed(x, y, 66, "head", (A, B), 0.5),
        ["All parts run. At every site, norms included, the mean of what they give goes on."],
    )


def fuse() -> str:
    return beside(
        "fuse(a, b, c)",
        [("a", A), ("b", B), ("c", C)],
        lambda x, y: pill(x, y, "QKV", LEARNED),
        lambda x, y: box(x, y, 66, "head", LEARNED),
        [
            "In every layer learned attention (Q, K, V) says, token by token, how much each adapter counts.",
            "Base and adapters stay as they are; attention and head are trained on the target task.",
        ],
    )


def parallel() -> str:
    y, up, down = 88.0, 64.0, 112.0
    parts = [text(20, y + 4.5, "text", 12.5), line((48, y), (62, y))]
    parts += [box(62, y, 76, "layer 0", BASE), line((138, y), (154, y)), box(154, y, 76, "layer 1", BASE)]
    for at, name, colour in ((up, "a", A), (down, "b", B)):
        parts += [line((230, y), (242, y), (242, at), (258, at))]
        parts += [box(258, at, 76, "layer 2", BASE), line((334, at), (350, at)), box(350, at, 36, name, colour)]
        parts += [line((386, at), (402, at)), box(402, at, 74, f"head of {name}", colour), line((476, at), (494, at))]
        parts += [text(499, at + 4.5, f"answer of {name}", 12.5)]
    words = [
        "Below the lowest layer that any part touches a text runs once; there the batch is spread out,",
        "and each part acts on its own copy.",
    ]
    notes = [note(154 + 17 * number, each) for number, each in enumerate(words)]
    return svg(600, 186, [text(20, 26, "parallel(a, b)", 14, weight="600"), *parts, *notes], "parallel(a, b)")


def rows() -> str:
    parts = []
    for number, (at, name) in enumerate(((60, "a"), (86, "a"), (112, "b"))):
        parts += [text(20, at + 4.5, f"text {number + 1}, for {name}", 12.5), line((112, at), (128, at))]
        parts += [line((204, at), (220, at)), line((256, at), (272, at)), line((348, at), (364, at))]
        parts += [
            line((400, at), (416, at)),
            line((490, at), (508, at)),
            text(513, at + 4.5, f"answer {number + 1}", 12.5),
        ]
    for x, layer in ((128, 0), (272, 1)):
        parts += [box(x, 86, 76, f"layer {layer}", BASE, tall=80)]
        parts += [box(x + 92, 73, 36, "a", A, tall=50), box(x + 92, 112, 36, "b", B, tall=22)]
    parts += [box(416, 73, 74, "head of a", A, tall=50), box(416, 112, 74, "head of b", B, tall=22)]
    words = "One batch mixes tasks: the base runs once for all rows, what a task does acts on its own."
    return svg(580, 172, [text(20, 26, "rows(a, b)", 14, weight="600"), *parts, note(156, words)], "rows(a, b)")


def drop() -> str:
    y, x = 62.0, 62.0
    parts = [text(20, y + 4.5, "text", 12.5), line((48, y), (62, y))]
    for layer in range(3):
        parts += [box(x, y, 76, f"layer {layer}", BASE), line((x + 76, y), (x + 92, y))]
        parts += [box(x + 92, y, 36, "a", A, ghost=layer < 2), line((x + 128, y), (x + 144, y))]
        x += 144
    parts += [box(x, y, 74, "head of a", A), line((x + 74, y), (x + 92, y)), text(x + 97, y + 4.5, "answer", 12.5)]
    words = "In layers 0 and 1 the base is as it was pretrained, norms included. The head stays."
    title = "drop(a, layers='0-1')"
    return svg(x + 150, 128, [text(20, 26, title, 14, weight="600"), *parts, note(112, words)], title)


PICTURES = {each.__name__: each for each in (stack, average, average_outputs, fuse, parallel, rows, drop)}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (Path(__file__).parent / f"{name}.svg").write_text(draw())

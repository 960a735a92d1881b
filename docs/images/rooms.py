"""Draw docs/images/rooms.svg: the rooms of the package, each standing on those that it imports from.

Run from the project's folder: python docs/images/rooms.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, HEIGHT, GAP = 760, 54, 8
FLOORS: list[list[tuple[str, str]]] = [
    [("cli/", "one thin file per command")],
    [("api.py", "what commands, notebooks and services call"), ("sklearn.py", "estimators")],
    [("serve/", "many tasks in one process: engine, batches, HTTP, training jobs")],
    [("analysis/", "clean, compare, experiments, explain, suggest, demo")],
    [("hub/", "tasks that travel: verify, export, import, other libraries, search, site")],
    [("training/", "one pipeline: load, resolve, fit, package; search, joint, checkpoints, stream")],
    [("models/", "architectures, sites, hooks, the frozen base, bound tasks, activation cache")],
    [("compose/", "the algebra of compositions"), ("tasks/", "record, store, digests, bundles, index")],
    [("reports/", "cards, figures, pages"), ("kinds/", "one file per kind of task")],
    [("data/", "read, Dataset, check, split, encode, batch"), ("methods/", "one file per method")],
    [("core/", "the maths, torch only"), ("errors.py", "the exception tree")],
]


def main() -> None:
    parts = []
    for floor, rooms in enumerate(FLOORS):
        top = GAP + floor * (HEIGHT + GAP)
        wide = (WIDTH - GAP * (len(rooms) + 1)) / len(rooms)
        shade = 0.10 + 0.04 * floor
        for number, (name, text) in enumerate(rooms):
            left = GAP + number * (wide + GAP)
            parts += [
                f'<rect x="{left:g}" y="{top}" width="{wide:g}" height="{HEIGHT}" rx="8" fill="#0b6e4f" '
                f'fill-opacity="{shade:.2f}" stroke="#0b6e4f" stroke-opacity="0.5"/>',
                f'<text x="{left + 14:g}" y="{top + 23}" font-weight="700" font-size="15">{escape(name)}</text>',
                f'<text x="{left + 14:g}" y="{top + 42}" font-size="12.5" fill="#4a5563">{escape(text)}</text>',
            ]
    height = GAP + len(FLOORS) * (HEIGHT + GAP)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif" fill="#1f2733"><title>The rooms of the package</title>'
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )
    (Path(__file__).parent / "rooms.svg").write_text(svg)


main()

"""The tables as text, and the figures, from what was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptree.reports.plots import BLUE, COLOURS, FAINT, GREEN, INK, RED, panels, save, style
from benchmarks.table import Growth, Rounds, Spread, Table, holds

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
PAGE, FIGURE, GROWTH = "performance.md", "performance", "performance-growth"


def publish(tables: Sequence[Table | Growth], rounds: Rounds, how: Mapping[str, Any], docs: Path) -> None:
    """Write the tables between the markers of docs/performance.md, and the figures beside it."""
    ratios = [table for table in tables if isinstance(table, Table) and _compared(table, rounds)]
    lines = [table for table in tables if isinstance(table, Growth) and _shown(table, rounds)]
    parts = []
    if ratios:
        draw_ratios(ratios, rounds, docs / FIGURE)
        parts.append(f"![ratios with their spread over rounds]({FIGURE}.png)")
    parts.append(text(tables, rounds, how))
    if lines:
        draw_growth(lines, rounds, docs / GROWTH)
        parts.append(f"![how it grows]({GROWTH}.png)")
    page = docs / PAGE
    page.write_text(between(page.read_text(), "\n\n".join(parts)))


def between(page: str, new: str) -> str:
    """Return the page with the text between its markers replaced."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{new}\n\n{END}{tail}"


def text(tables: Sequence[Table | Growth], rounds: Rounds, how: Mapping[str, Any]) -> str:
    """Return everything that was measured, as Markdown."""
    parts = [_circumstances(tables, rounds, how)]
    for table in tables:
        if _shown(table, rounds):
            parts.append(_table(table, rounds) if isinstance(table, Table) else _growth(table, rounds))
    return "\n\n".join(parts)


def _shown(table: Table | Growth, rounds: Rounds) -> bool:
    """Return whether a table has something to show: a ratio, an amount that was not reached, or a line."""
    if isinstance(table, Table):
        return _compared(table, rounds) or any(math.inf in table.values(label, rounds) for label in table.amounts)
    return any(table.values(label, x, rounds) for label, line in table.lines.items() for x in line)


def _compared(table: Table, rounds: Rounds) -> bool:
    return any(table.ratios(label, rounds) for label in table.amounts if label != table.reference)


def _circumstances(tables: Sequence[Table | Growth], rounds: Rounds, how: Mapping[str, Any]) -> str:
    keys = {run.key for table in tables for run in table.runs}
    measured = [m for of in rounds.values() for key, m in of.items() if key in keys]
    if not measured:
        return "Nothing is measured yet."
    loads, setup = [m["load"] for m in measured], how["setup"]
    lines = [
        f"Measured on {how['processor']} ({how['cpus']} cores, {how['threads']} threads), load average before a "
        f"measurement {statistics.median(loads):.1f} ({min(loads):.1f}-{max(loads):.1f}); {len(measured)} measurements "
        f"in {len(rounds)} interleaved rounds, each in a process of its own. Data: {how['data']}, {setup['rows']:,} "
        f"training and {setup['validation']:,} validation rows unless noted; base: {how['base']}.",
        *(f"Versions of {place}: {found}." for place, found in _versions(measured).items()),
        "A ratio is taken within a round; shown are the median and (least-most) over rounds.",
    ]
    return "\n".join(lines)


def _versions(measured: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    found: dict[str, dict[str, str]] = {}
    for m in measured:
        place = "the peers" if m["run"].startswith("[peers]") else "adaptree and the floor"
        found.setdefault(place, {}).update(m["found"].get("versions", {}))
    return {place: ", ".join(f"{k} {v}" for k, v in of.items()) for place, of in sorted(found.items()) if of}


def _table(table: Table, rounds: Rounds) -> str:
    scored = any(table.score(label, rounds) is not None for label in table.amounts)
    lines = [f"### {table.title}", ""]
    lines.append(f"| | {table.unit} | × {table.reference} | aim |" + (" accuracy |" if scored else ""))
    lines.append("|---|---|---|---|" + ("---|" if scored else ""))
    for label in table.amounts:
        ratio = Spread.over(table.ratios(label, rounds))
        cells = [
            label,
            shown(Spread.over(table.values(label, rounds))),
            "1" if label == table.reference else shown(ratio),
            judged(table.aims.get(label), ratio),
        ]
        if scored:
            score = table.score(label, rounds)
            cells.append("" if score is None else f"{score:.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *(["", table.note] if table.note else [])])


def _growth(growth: Growth, rounds: Rounds) -> str:
    xs = sorted({x for line in growth.lines.values() for x in line})
    lines = [f"### {growth.title}", ""]
    last = " exponent | aim |" if growth.fitted else ""
    lines.append(f"| {growth.unit} at {growth.along} | {' | '.join(f'{x:,g}' for x in xs)} |{last}")
    lines.append("|---" * (1 + len(xs) + (2 if growth.fitted else 0)) + "|")
    for label, line in growth.lines.items():
        cells = [label]
        cells += [shown(Spread.over(growth.values(label, x, rounds)), bare=True) if x in line else "" for x in xs]
        if growth.fitted:
            fitted = Spread.over(growth.exponents(label, rounds))
            cells += [shown(fitted, digits=2), judged(growth.aims.get(label), fitted)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *(["", growth.note] if growth.note else [])])


def shown(spread: Spread | None, *, bare: bool = False, digits: int | None = None) -> str:
    """Return '12.3 (11.9-13.0)', with three figures unless `digits` are given; 'not reached' if a round is infinite."""
    if spread is None:
        return "—"
    if math.isinf(spread.high):
        return "not reached"
    middle = _number(spread.median, digits)
    if bare or spread.rounds == 1:
        return middle
    return f"{middle} ({_number(spread.low, digits)}-{_number(spread.high, digits)})"


def _number(value: float, digits: int | None) -> str:
    if digits is None:
        size = abs(value)
        digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def judged(aim: str | None, spread: Spread | None) -> str:
    """Return an aim with a mark for whether the median meets it."""
    if aim is None:
        return ""
    sign = aim.replace(">=", "≥").replace("<=", "≤")
    return sign if spread is None else f"{sign} {'✓' if holds(aim, spread.median) else '✘'}"


@style()
def draw_ratios(tables: Sequence[Table], rounds: Rounds, path: Path) -> None:
    """Draw each ratio: a dot for the median, a bar for the range, a tick where it should be."""
    count = sum(len(table.amounts) for table in tables)
    figure, (axis,) = panels(6.0, 0.3 + 0.24 * count)
    across = axis.get_yaxis_transform()
    at, marks, labels = 0, [], []
    for table in tables:
        title = f"{table.title}, × {table.reference}"
        axis.text(0.01, at, title, transform=across, va="center", fontsize=8, fontweight="bold")
        for label in table.amounts:
            spread = Spread.over(table.ratios(label, rounds))
            if label == table.reference or spread is None:
                continue
            at += 1
            marks.append(at)
            labels.append(label)
            aim = table.aims.get(label)
            colour = BLUE if aim is None else GREEN if holds(aim, spread.median) else RED
            axis.plot([spread.low, spread.high], [at, at], color=colour, lw=3, alpha=0.4)
            axis.plot(spread.median, at, "o", color=colour, ms=5)
            if aim is not None:
                axis.plot(float(aim.split()[1]), at, "|", color=INK, ms=10)
            axis.text(1.01, at, shown(spread), transform=across, va="center", fontsize=7)
        at += 1
    axis.axvline(1, color=FAINT, lw=0.8)
    axis.set_yticks(marks, labels)
    axis.set_ylim(at, -1)
    axis.margins(x=0.08)
    _logarithmic(axis, "x")
    axis.set_xlabel("ratio: median (dot) and range over rounds (bar); | is the aim, red where it is missed")
    axis.grid(False, axis="y")
    save(figure, path.with_suffix(".png"), path.with_suffix(".svg"))


@style()
def draw_growth(growths: Sequence[Growth], rounds: Rounds, path: Path) -> None:
    """Draw a panel for each; both axes are logarithmic where an exponent is fitted."""
    columns = min(3, len(growths))
    figure, axes = panels(3.2, 2.5, -(-len(growths) // columns), columns)
    for axis, growth in zip(axes, growths, strict=False):
        for colour, (label, line) in zip(COLOURS, growth.lines.items(), strict=False):
            spreads = {x: s for x in line if (s := Spread.over(growth.values(label, x, rounds)))}
            fitted = Spread.over(growth.exponents(label, rounds)) if growth.fitted else None
            named = label if fitted is None else f"{label}: x^{fitted.median:.2f}"
            axis.plot(list(spreads), [s.median for s in spreads.values()], "o-", color=colour, label=named, ms=4)
            for x, s in spreads.items():
                axis.plot([x, x], [s.low, s.high], color=colour, lw=3, alpha=0.4)
        if growth.fitted:
            _logarithmic(axis, "x")
            _logarithmic(axis, "y")
        axis.set(title=growth.title, xlabel=growth.along, ylabel=growth.unit)
        axis.legend()
    for axis in axes[len(growths) :]:
        axis.set_visible(False)
    save(figure, path.with_suffix(".png"), path.with_suffix(".svg"))


def _logarithmic(axis: Any, which: str) -> None:
    """Make an axis logarithmic, with plain numbers: maths in texts is off."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set(**{f"{which}scale": "log"})
    of = getattr(axis, f"{which}axis")
    of.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_formatter=NullFormatter())
    of.set_major_formatter(lambda value, _: f"{value:g}")

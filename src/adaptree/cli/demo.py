"""adaptree demo"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.show import Format, Progress, emit, out, say, size
from adaptree.errors import AdaptreeError
from adaptree.reports.times import duration


@app.command()
@options.takes("epochs", "seed", "threads")
def demo(
    generate: Annotated[
        bool,
        typer.Option("--generate", help="Instead, a language model (93 MB, fetched once) learns to write."),
    ] = False,
    store: Annotated[str, typer.Option("--store", help="Where the tasks are kept.")] = "adaptree-demo",
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """Watch one frozen model learn two tasks in turn, and one with few labels: a few minutes, offline."""
    began = time.monotonic()
    if generate:
        return _generate(store, quiet, options.given(values))
    say("Two tasks, one frozen base: support-ticket topics, then review sentiment. Loading the base …", quiet)
    from adaptree.analysis import demo as shown
    from adaptree.tasks.store import Store

    with Progress(quiet) as progress:
        result = shown.run(Store(store), on_event=progress, **options.given(values))
    console = out()
    emit((_row(name, bound.task) for name, bound in result.tasks.items()), Format.table)
    base = next(iter(result.tasks.values())).task.record.parameters["base"]
    first = next(iter(result.tasks))
    if not result.unchanged:
        raise AdaptreeError(
            f"'{first}' gives other logits after the second task was trained.", hint="Please report this."
        )
    console.print(
        f"Perfect memory: after the second task, '{first}' gives the very same logits on its held-out rows, bit for "
        f"bit; the base that both share ({base:,} parameters) is unchanged."
    )
    console.print()
    few = result.few.task.record
    low, high = few.intervals["test"]["accuracy"]
    console.print(
        f"Few labels: with {shown.FEW} rows a label, '{first}' reaches {few.metrics['test']['accuracy']:.3f} "
        f"({low:.3f} - {high:.3f}, {duration(few.seconds)}); with none, its label names alone {result.zero_shot:.3f} "
        "(predict --labels)."
    )
    console.print()
    for name, bound in result.tasks.items():
        lines = shown.LINES[name]
        emit(
            (
                {"task": name, "prediction": a.label, "score": a.score, "text": t}
                for t, a in zip(lines, bound.predict(lines), strict=True)
            ),
            Format.table,
        )
    console.print(f"curves: {result.figure}      {duration(time.monotonic() - began)} in all")
    console.print()
    for line in (
        "Your turn:",
        "  adaptree check your.csv                      what is in it",
        "  adaptree train your.csv --name mine          train a task on it",
        '  adaptree predict mine "some text"            use it',
        f"  adaptree show {first} --store {store}    the card that a task writes of itself",
    ):
        console.print(line)


def _generate(store: str, quiet: bool, values: dict[str, Any]) -> None:
    """Train the task that writes, and print what the base wrote before and what it writes after."""
    from adaptree.analysis import demo_writing as shown
    from adaptree.tasks.store import Store

    began = time.monotonic()
    say("One task that writes: replies to customers in the style of the house, from short notes.", quiet)
    with Progress(quiet) as progress:
        found = shown.run(Store(store), on_event=progress, **values)
    console, record = out(), found.bound.task.record
    for note, before, after in zip(shown.NOTES, found.before, found.after, strict=True):
        for line in (note, f"  before  {before}", f"  after   {after}", ""):
            console.print(line)
    console.print(
        f"Perplexity of held-out replies: {found.perplexity[0]:.1f} before, {found.perplexity[1]:.2f} after; "
        f"{record.parameters['trained']:,} weights trained ({record.trained_percent:.2f} % of the base), "
        f"{size(found.bound.task.bytes)} on disk. {duration(time.monotonic() - began)} in all."
    )
    console.print()
    console.print(f'  adaptree predict {shown.TASK} "{shown.NOTES[0]}" --store {store}')


def _row(name: str, task: Any) -> dict[str, Any]:
    record = task.record
    return {
        "task": name,
        "majority": record.baselines["majority"]["accuracy"],
        "TF-IDF": record.baselines["tfidf"]["accuracy"],
        "adapters": record.metrics["test"]["accuracy"],
        "95 %": " - ".join(f"{x:.3f}" for x in record.intervals["test"]["accuracy"]),
        "trained": record.parameters["trained"],
        "% of base": round(record.trained_percent, 2),
        "on disk": size(task.bytes),
        "time": duration(record.seconds),
    }

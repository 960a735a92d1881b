"""adaptree experiment"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options, runs, show
from adaptree.cli.app import app
from adaptree.cli.show import Format, comparison_progress, emit, say
from adaptree.errors import UsageError


@app.command()
@options.takes("base", "threads")
def experiment(
    name: Annotated[str | None, typer.Argument(help="Its name; without one, all experiments are listed.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the datasets, one folder each. Default: $ADAPTREE_DATA.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results. Default: the experiment's name.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option("--task", help="Only this task; give it several times.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds. Default: the experiment's own.")] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Minutes after which no further cell is begun. Default: all are run.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the cells that would be run, with an estimate of their time.")
    ] = False,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Only write the page and its figures again, from the cells in the folder.")
    ] = False,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="The paper's own recipe, for a GPU: all rows, its rates, epochs and seeds."),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Run so many cells at a time, each in a process.")] = 1,
    cluster: shared.ClusterOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Fail unless a run was begun in the folder; without it, one is begun.")
    ] = False,
    quiet: shared.Quiet = False,
    store: shared.NoStore = None,
    debug: shared.Debug = False,
    **values: Any,
) -> int:
    """Run one of the papers' experiments on real data; the same command goes on with a run that was stopped."""
    from adaptree.analysis import experiments

    if name is None:
        emit([{"experiment": known, "about": experiments.about(known)} for known in experiments.NAMES], Format.table)
        return 0
    experiments.check_name(name)
    where = data or (Path(found) if (found := os.environ.get("ADAPTREE_DATA")) else None)
    if where is None and redraw:
        where = Path()  # not read
    if where is None:
        raise UsageError("the folder of the datasets is not given.", hint="--data DIR, or ADAPTREE_DATA")
    place = folder or Path(name)
    if (resume or redraw) and not place.is_dir():
        raise UsageError(f"no run was begun in '{place}'.", hint="Name its folder: --out DIR")
    with runs.keeping_cells(place):
        page = experiments.run(
            name, where, place, tasks=task or (), seeds=seeds, budget=budget, dry_run=dry_run, redraw=redraw,
            paper=paper, jobs=jobs, cluster=cluster, command=runs.typed_command(),
            on_event=partial(comparison_progress, quiet=quiet), **options.given(values),
        )  # fmt: skip
    if dry_run:
        return 0
    show.page(page)
    say("   ".join(map(str, [place / "table.md", *sorted(place.glob("*.png"))])), quiet)
    return 0

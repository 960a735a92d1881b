"""adaptree train"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options, runs
from adaptree.cli.app import app
from adaptree.cli.config import Config
from adaptree.cli.show import Format, Progress, emit, emit_one, say
from adaptree.errors import UsageError


@app.command()
@options.takes(*options.RUN, *options.SETTINGS, required=("name",))
def train(
    data: Annotated[
        list[str],
        typer.Argument(
            help="csv, tsv, xlsx, json, parquet, txt, conll, also .gz or .xz; a folder; several with --joint."
        ),
    ],
    size: Annotated[
        int | None, typer.Option(help="The method's main number: a bottleneck's width, LoRA's rank, …")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Only these layers: 3-5, 0,2,4 or top:2.")] = None,
    config: Config = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Also write the curves to this folder.")] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Also log the run to this project of Weights & Biases.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Also log the run to MLflow: a tracking URI, or a folder.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="For --search: how many trials run at a time, in processes.")] = 1,
    cluster: shared.ClusterOption = None,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> int:
    """Train a task on a file of labelled text."""
    from adaptree import api
    from adaptree.reports import callbacks
    from adaptree.tasks.store import Store
    from adaptree.training import distributed
    from adaptree.training.config import with_size
    from adaptree.training.run import checkpoint_folder

    wanted = with_size({**options.given(values), "store": Store(store)}, size, layers)
    name, joint = wanted["name"], wanted.pop("joint", False)
    if not joint and (len(data) > 1 or "temperature" in wanted):
        what = "the temperature is" if "temperature" in wanted else f"{len(data)} files are"
        raise UsageError(f"{what} for training several tasks at once.", hint="Add --joint.")
    quiet = quiet or distributed.rank() > 0
    trackers: dict[Any, Any] = {
        callbacks.tensorboard: tensorboard,
        callbacks.wandb: wandb,
        callbacks.mlflow: mlflow,
    }
    listeners = [make(to) for make, to in trackers.items() if to is not None and not distributed.rank()]
    folder = checkpoint_folder(wanted["store"], name, joint)
    with runs.stoppable(folder), Progress(quiet, listeners) as progress:
        if joint and (jobs != 1 or cluster is not None):
            raise UsageError("--jobs and --cluster are for the trials of a search.", hint="Leave them out.")
        if joint:
            trained = api.train_jointly(data, on_event=progress, **wanted)
        else:
            trained = [api.train(data[0], on_event=progress, jobs=jobs, cluster=cluster, **wanted)]
    distributed.leave()
    if distributed.rank():  # of several processes, the first prints
        return 0
    results = [api.result(bound.task) for bound in trained]
    if form is not Format.table:
        emit(results, form) if joint else emit_one(results[0], form)
    elif joint:
        runs.report_joint(results, trained[0].task.record)
    else:
        runs.report(results[0], trained[0].task.record)
    code = runs.finish([bound.task.record for bound in trained], quiet)
    if not code and not quiet and form is Format.table:
        say(f'adaptree predict {results[0]["task"]} "…"      adaptree show {results[0]["task"]}')
    return code

"""adaptree worker"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Annotated

import typer

from adaptree.cli import app as shared
from adaptree.cli.app import app
from adaptree.cli.serve import Log, needs_serve
from adaptree.cli.show import say


@app.command()
def worker(
    base: Annotated[
        str | None, typer.Option(help="The base, a name or a folder. Default: that of most of the store's tasks.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Train one job, if there is one, and end.")] = False,
    drain: Annotated[bool, typer.Option("--drain", help="Train all jobs that there are, and end.")] = False,
    idle: Annotated[float | None, typer.Option(min=0, help="End after so many seconds without a job.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Processor threads. Default: the cores; of a cluster, one a job.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="With --cluster: the most jobs that are trained at a time.")] = 2,
    cluster: shared.ClusterOption = None,
    log: Annotated[Log, typer.Option(help="A line on stderr for each job that ends, with its bill.")] = Log.json,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True, help="End when stdin does.")] = False,
    store: shared.StoreOption = None,
    index: shared.IndexOption = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Train the jobs that clients send to `adaptree serve`: one at a time, at a low priority, or on a cluster."""
    if cluster is not None:
        with needs_serve():
            from adaptree.serve.jobs.on_cluster import ClusterWorkers, JobPlace
            from adaptree.serve.jobs.queue import Jobs
            from adaptree.serve.server import ServeSettings, base_for

        opened = ServeSettings(store=store, index=index).open_store()
        place = JobPlace.of(
            opened, base or base_for(opened), device=device, threads=threads or 1, log="" if log is Log.none else log
        )
        workers = ClusterWorkers(opened, Jobs(opened), place, cluster, jobs, lambda text: say(text, quiet))
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, workers.stop)
        say(f"waiting for jobs of {opened.location}", quiet or once or drain)
        workers.run(once=once, drain=drain, idle=idle)
        return
    with needs_serve():
        from adaptree.serve.jobs.priority import step_back

        step_back()  # before torch starts its threads
        from adaptree.models.opening import base_of
        from adaptree.serve.jobs.queue import Jobs
        from adaptree.serve.jobs.worker import Worker
        from adaptree.serve.observe import RequestLog
        from adaptree.serve.server import ServeSettings, base_for

    opened = ServeSettings(store=store, index=index).open_store()
    found = Worker(
        opened,
        Jobs(opened),
        base_of(base or base_for(opened), device, threads),
        log=RequestLog("" if log is Log.none else log.value),
        say=lambda text: say(text, quiet),
    )
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, found.on_signal)
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, found.on_wake)
    if with_parent:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    say(f"waiting for jobs of {opened.location}", quiet or once or drain)
    found.run(once=once, drain=drain, idle=idle)


def _end_with_parent() -> None:
    """Stop, as a signal would, when the process that started this one is gone."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)

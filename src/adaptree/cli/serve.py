"""adaptree serve"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adaptree.cli import app as shared
from adaptree.cli.app import app
from adaptree.cli.show import say
from adaptree.errors import AdaptreeError, StoreError, UsageError

if TYPE_CHECKING:
    from adaptree.serve.keys import Place

MISSING = "serving needs packages that are not installed"


@contextmanager
def needs_serve() -> Iterator[None]:
    """Say which extra is missing, if an import in a `with` block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "adaptree":
            raise
        raise AdaptreeError(f"{MISSING} ({error.name}).", hint='pip install "adaptree[serve]"') from error


class Log(StrEnum):
    json = "json"
    text = "text"
    none = "none"


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 is any that is free.")] = 8080,
    base: Annotated[
        str | None, typer.Option(help="The base, a name or a folder. Default: that of most of the store's tasks.")
    ] = None,
    memory: Annotated[str, typer.Option(help="Memory for tasks; what was not used for longest makes room.")] = "2GB",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of each process. Default: the cores; of a replica, one."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the port, each with its own tasks.")] = 1,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ray|ray://HOST:PORT",
            help="Compute in replicas on a Ray cluster, and train jobs there: this machine's, or the one there.",
        ),
    ] = None,
    replicas: Annotated[
        str, typer.Option(metavar="N|MIN-MAX", help="With --cluster: how many; 1-4 is as many as the load wants.")
    ] = "1",
    max_queue: Annotated[int, typer.Option(min=1, help="Texts that may wait; beyond, clients get a 429.")] = 4096,
    keys: Annotated[
        str | None,
        typer.Option(
            help="The file of API keys, or postgresql://… Default: $ADAPTREE_API_KEYS, else that of `keys api new`, if "
            "any."
        ),
    ] = None,
    no_keys: Annotated[bool, typer.Option("--no-keys", help="Answer anybody who can reach the address.")] = False,
    open_metrics: Annotated[
        bool, typer.Option("--open-metrics", help="Show /metrics to callers without a key.")
    ] = False,
    max_body: Annotated[str, typer.Option(help="The most bytes of a request.")] = "8MB",
    max_upload: Annotated[str, typer.Option(help="The most bytes of an uploaded bundle.")] = "1GB",
    max_items: Annotated[int, typer.Option(min=1, help="The most inputs of a request.")] = 1024,
    max_characters: Annotated[int, typer.Option(min=1, help="The most characters of a text.")] = 100_000,
    max_headers: Annotated[int, typer.Option(min=1024, help="The most bytes of a request's headers.")] = 32_768,
    max_requests: Annotated[int, typer.Option(min=1, help="The most requests under way.")] = 1024,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds until an answer is given up.")] = 30.0,
    receive_timeout: Annotated[float, typer.Option(min=0.001, help="Seconds that a slow client has.")] = 30.0,
    log: Annotated[Log, typer.Option(help="A line on stderr for each request, without its texts.")] = Log.json,
    jobs: Annotated[bool, typer.Option("--jobs/--no-jobs", help="Accept training jobs.")] = True,
    train_workers: Annotated[
        int, typer.Option(min=0, help="Processes that train them, at a low priority; 0 leaves it to `adaptree worker`.")
    ] = 1,
    max_jobs: Annotated[int, typer.Option(min=1, help="The most jobs of a tenant that wait.")] = 20,
    max_running: Annotated[int, typer.Option(min=1, help="The most jobs of a tenant that run at once.")] = 2,
    max_rows: Annotated[int, typer.Option(min=1, help="The most rows of a job.")] = 1_000_000,
    max_stored: Annotated[str, typer.Option(help="The most bytes of data files of a tenant.")] = "5GB",
    results: Annotated[
        Path | None, typer.Option(help="A folder of comparisons, for the page that compares methods.")
    ] = None,
    traces: Annotated[
        bool, typer.Option("--traces", help="Send OpenTelemetry traces to $OTEL_EXPORTER_OTLP_ENDPOINT.")
    ] = False,
    store: shared.StoreOption = None,
    index: shared.IndexOption = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Serve all tasks of a store over HTTP, on one copy of their base."""
    with needs_serve():
        from adaptree.serve import keys as api_keys
        from adaptree.serve import server
        from adaptree.serve.limits import Limits, parse_size

    file = _keys_place(api_keys.keys_file(), None if keys is None else api_keys.place(keys), no_keys)
    if file is not None:
        if not api_keys.read_keys(file):
            at = api_keys.shown(file)
            raise StoreError(f"there are no keys in '{at}'.", hint=f"adaptree keys api new --file {at}")
        if api_keys.others_can_read(file):
            say(f"note: everybody on this machine can read {file}.  chmod 600 {file}", quiet)
    settings = server.ServeSettings(
        store=store,
        index=index,
        base=base,
        device=device,
        threads=threads,
        memory=parse_size(memory),
        max_queue=max_queue,
        host=host,
        port=port,
        workers=workers,
        cluster=cluster,
        replicas=replicas,
        keys=None if file is None else str(file),
        log="" if log is Log.none else log.value,
        open_metrics=open_metrics,
        traces=traces,
        jobs=jobs,
        train_workers=train_workers,
        results=None if results is None else str(results),
        limits=Limits(
            body=parse_size(max_body),
            upload=parse_size(max_upload),
            items=max_items,
            characters=max_characters,
            headers=max_headers,
            in_flight=max_requests,
            timeout=timeout,
            receive=receive_timeout,
            jobs_queued=max_jobs,
            jobs_running=max_running,
            job_rows=max_rows,
            rows_a_day=max(5 * max_rows, 5_000_000),
            stored=parse_size(max_stored),
        ),
    )
    opened = settings.check(open_to_all=no_keys)
    with server.bind(host, port) as listening:
        url = server.url_of(host, listening)
        example = next(iter(opened.names()), "TASK")

        def announce() -> None:
            key = '-H "Authorization: Bearer $KEY" ' if file is not None else ""
            ask = f"""curl {url}/v1/tasks/{example}/predict {key}--json '{{"inputs": ["some text"]}}'"""
            say(f"serving {opened.location} at {url}   {url}/docs", quiet)
            say(f"  {ask}", quiet)
            sys.stderr.flush()

        server.run(settings, opened, listening, announce, lambda text: say(text, quiet))


def _keys_place(default: Place, given: Place | None, none: bool) -> Place | None:
    """Return the file or the database of keys that counts; None if there are to be none."""
    if none and given is not None:
        raise UsageError("--keys and --no-keys contradict each other.", hint="Leave out one.")
    if none:
        return None
    if given is not None:
        return given
    return default if isinstance(default, str) or default.exists() else None

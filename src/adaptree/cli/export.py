"""adaptree export"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.show import Format, counted, emit_one, out, say, size
from adaptree.errors import UsageError


@app.command()
@options.takes(*options.COMPUTING, base=options.OF_TASK)
def export(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[TASK]… FILE",
            help="Tasks (name, name@version, or a composition), and last the file to write: reviews.adaptree. With "
            "--to, one task and a new folder.",
            autocompletion=shared.stored_tasks,
        ),
    ],
    everything: Annotated[bool, typer.Option("--all", help="The whole store, with tags and notes.")] = False,
    versions: Annotated[bool, typer.Option("--versions", help="All versions, not only the newest.")] = False,
    sign: Annotated[bool, typer.Option("--sign", help="Sign the tasks with your key (adaptree keys new).")] = False,
    key: Annotated[str | None, typer.Option("--key", help="Sign with this one of your keys.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="As a model that runs without adaptree: transformers, onnx; or as another library saves it: peft, "
            "adapters.",
        ),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="With --to onnx: compute the linear maps in int8.")] = False,
    data: Annotated[
        Path | None, typer.Option("--data", help="With --int8: a labelled file on which its change is measured.")
    ] = None,
    no_head: Annotated[
        bool, typer.Option("--no-head", help="With --to peft or adapters: leave the task's head out.")
    ] = False,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """Write tasks, with all that they need, as one file to share; or one task as a model of another library."""
    from adaptree import api
    from adaptree.tasks.store import Store

    *tasks, file = names
    given = options.given(values)
    if to is not None:
        if len(tasks) != 1 or everything or versions or sign or key or force:
            raise UsageError("--to writes one task into a new folder.", hint=f"adaptree export TASK FOLDER --to {to}")
        _export_model(tasks[0], Path(file), Store(store), form, quiet, to=to, int8=int8, data=data,
                      head=not no_head, **given)  # fmt: skip
        return
    only = [f"--{name.replace('_', '-')}" for name in given]
    only += ["--int8"] * int8 + ["--data"] * (data is not None) + ["--no-head"] * no_head
    if only:
        raise UsageError(f"{only[0]} is for --to.", hint="Leave it out, or add --to onnx.")
    done = api.export(
        Store(store), tasks, Path(file), everything=everything, versions=versions, sign=sign, key=key, force=force
    )
    if form is not Format.table:
        emit_one(asdict(done), form)
        return
    what = ", ".join(done.tasks) if len(done.tasks) <= 5 else counted(len(done.tasks), "task")
    held = counted(done.versions - len(done.tasks), "part")
    with_parts = f" with {held}" if done.versions > len(done.tasks) else ""
    signed = f", signed by {done.signed_by}" if done.signed_by else ""
    out().print(f"{done.file}: {what}{with_parts}, {size(done.bytes)}{signed}", soft_wrap=True)


def _export_model(task: str, folder: Path, store: Any, form: Format, quiet: bool, **chosen: Any) -> None:
    """Write a task as a model of another library, and say how far its logits are from ours."""
    from adaptree import api
    from adaptree.models.opening import open_task

    own = {name: chosen.pop(name) for name in ("to", "int8", "data", "head")}
    found = api.export_model(open_task(store, task, **chosen), folder, **own)
    if form is Format.table:
        out().print(f"{found.folder}: {found.to}, {found.form}, {size(found.bytes)}", soft_wrap=True)
    else:
        emit_one(found.to_dict(), form)
    if found.difference is not None:
        say(f"its logits differ by {found.difference:.1g} at most from adaptree's, on {found.compared} inputs", quiet)
    for line in found.int8_lines():
        say(line, quiet)

"""adaptree evaluate"""

from __future__ import annotations

from typing import Annotated

import typer

from adaptree.cli import app as options
from adaptree.cli.app import app
from adaptree.cli.predict import tell_cut
from adaptree.cli.show import Format, emit, emit_one, out


@app.command()
def evaluate(
    task: Annotated[str, typer.Argument(help="A task's name, name@version, or a composition: stack(a, b).")],
    data: Annotated[str, typer.Argument(help="A labelled file.")],
    base: options.BaseOption = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    encoding: options.Encoding = "utf-8",
    int8: options.Int8 = False,
    device: options.Device = "auto",
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    store: options.StoreOption = None,
    form: Annotated[Format, typer.Option("--format")] = Format.table,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Score a task on a labelled file."""
    from adaptree import api
    from adaptree.models.opening import open_task
    from adaptree.tasks.store import Store

    where = Store(store)
    bound = open_task(
        where, task, base=base, device=device, threads=threads, trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle, int8=int8, evaluating=True,
    )  # fmt: skip
    result = api.evaluate(bound, data, encoding=encoding, text=text, text_pair=text_pair, label=label, store=where)
    tell_cut(bound, quiet)
    if form is not Format.table:
        emit_one(result, form)
        return
    spans = result["intervals"]["test"]
    rows = [
        {"metric": key, "value": value, "interval": "{:.4f} - {:.4f}".format(*spans[key]) if key in spans else None}
        for key, value in result["metrics"]["test"].items()
    ]
    emit(rows, form, {"metric": "", "value": result["task"], "interval": "95 %"})
    out().print(f"{result['rows']:,} rows")
    for label, count in list(result.get("unknown_labels", {}).items())[:10]:
        out().print(f"'{label}' is no label of this task: {count:,} times, counted as wrong", soft_wrap=True)

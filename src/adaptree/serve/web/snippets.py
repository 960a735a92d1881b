"""How a task is used from elsewhere: with curl, from Python, on the command line; and what its inputs look like."""

from __future__ import annotations

import json
import shlex
from typing import Any, NamedTuple

from adaptree import kinds
from adaptree.kinds import Kind
from adaptree.reports.markdown import quoted
from adaptree.reports.text import visible
from adaptree.tasks.record import Record


class Field(NamedTuple):
    """A field of the try-it box."""

    name: str
    """As the API calls it."""
    label: str
    rows: int = 3
    placeholder: str = ""


def fields_of(record: Record) -> list[Field]:
    """Return the fields that an input of a task has."""
    if record.kind == "answer":
        return [Field("question", "Question", 2), Field("context", "Text that has the answer", 7)]
    if record.kind == "choose":
        about = [Field("context", "Context", 2)] if record.columns.get("context") else []
        return [Field("text", "Text"), *about, Field("choices", "Choices, one on each line", 4)]
    if record.kind == "mlm":
        return [Field("text", "Text with a word hidden as [MASK]", 3, "The capital of France is [MASK].")]
    if record.columns.get("pair"):
        return [Field("text", "First text"), Field("text_pair", "Second text")]
    return [Field("text", "Text", 4)]


def example_of(record: Record) -> Any:
    """Return an input as the API takes it."""
    if record.kind == "answer":
        return {"question": "who wrote it?", "context": "Ann wrote it in Bern."}
    if record.kind == "choose":
        return {"text": "a text", "choices": ["one", "another"]}
    if record.kind == "mlm":
        return "The capital of France is [MASK]."
    return ["a text", "the text beside it"] if record.columns.get("pair") else "a text"


def snippets(record: Record, name: str, url: str, *, keyed: bool) -> dict[str, str]:
    """Return what to type to use a task, by where."""
    given = json.dumps({"inputs": [example_of(record)]})
    key = ' \\\n  -H "Authorization: Bearer $KEY"' if keyed else ""
    words = (kinds.find(record.kind) or Kind).usage(record)[1]
    return {
        "curl": f"curl {shlex.quote(f'{url}/v1/tasks/{name}/predict')}{key} \\\n  --json {shlex.quote(given)}",
        "Python": (
            "import adaptree as at\n\n"
            f"with at.Client({quoted(url)}{', key=key' if keyed else ''}) as client:\n"
            f"    print(client.predict({quoted(name)}, [{json.dumps(example_of(record))}]))"
        ),
        "Command line": f"adaptree predict {visible(name)} {words}",
    }


def examples(record: Record, most: int = 4) -> list[dict[str, Any]]:
    """Return inputs out of a task's data, as the fields of the try-it box hold them."""
    names = [field.name for field in fields_of(record)]
    found = []
    for each in record.examples[: 4 * most]:
        given = each.get("input")
        if isinstance(given, str):
            values: dict[str, Any] = {"text": given}
        elif isinstance(given, dict):
            values = dict(given)
            if not values.get("text") and isinstance(values.get("tokens"), list):
                values["text"] = " ".join(map(str, values["tokens"]))
            if isinstance(values.get("choices"), list):
                values["choices"] = "\n".join(map(str, values["choices"]))
        elif isinstance(given, list) and len(given) == 2:
            values = {"text": given[0], "text_pair": given[1]}
        else:
            values = {"text": each.get("text", ""), "text_pair": each.get("pair", "")}
        shown = {name: str(values.get(name) or "") for name in names}
        if all(shown.values()):
            found.append(shown)
    return found[:most]

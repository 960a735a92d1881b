"""The certificate of a verification: every file's digest, what was compared and where, sealed with a checksum.

As JSON it can be compared with the store later (`changes`); as HTML it is a page that opens offline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adaptree.data.foreign_json import loads
from adaptree.errors import StoreError, UsageError
from adaptree.hub.verify import Checked, Verification
from adaptree.reports.html_page import page, to_html
from adaptree.reports.json_text import json_text, json_value
from adaptree.reports.markdown import code, number, plain, section, table
from adaptree.tasks.files import cannot_write, replace_file
from adaptree.tasks.record import checksum

FORMAT = 1
SAME, CHANGED, GONE, NEW = "same", "changed", "gone", "new"
LARGEST = 1_000_000_000
"""Bytes of a certificate that are read."""


def certificate(found: Verification) -> dict[str, Any]:
    """Return a verification as the JSON values of a certificate, with a checksum over all of them."""
    values: dict[str, Any] = json_value(
        {
            "certificate": FORMAT,
            "time": found.time,
            "store": found.store,
            "ok": found.ok,
            "summary": found.sentence,
            "versions": found.versions,
            "machine": found.machine,
            "bases": [asdict(base) for base in found.bases],
            "tasks": {row.task: _of_task(row) for row in found.tasks},
            "other_files": {
                file: digest for row in found.rows if "@" not in row.task for file, digest in row.files.items()
            },
            "other_damage": {
                file: why for row in found.rows if "@" not in row.task for file, why in row.damaged.items()
            },
        }
    )
    return {**values, "checksum": checksum(values)}


def _of_task(row: Checked) -> dict[str, Any]:
    probe = None if row.probe is None else {**asdict(row.probe), "said": str(row.probe)}
    return {
        "state": row.state, "weights": row.weights, "base": row.base, "files": row.files, "damaged": row.damaged,
        "notes": row.notes, "probe": probe,
    }  # fmt: skip


def write(found: Verification, path: Path) -> None:
    """Write the certificate as .json or .html."""
    values = certificate(found)
    text = json_text(values, indent=1) + "\n" if check_ending(path) == ".json" else html(values)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    except OSError as error:
        raise cannot_write(path, error, to_store=False) from error


def check_ending(path: Path) -> str:
    """Return the ending of a certificate's file; raise UsageError if it is neither .json nor .html."""
    if path.suffix not in (".json", ".html"):
        raise UsageError(f"a certificate is .json or .html, not '{path.name}'.", hint="--certificate store.html")
    return path.suffix


def read(path: Path) -> dict[str, Any]:
    """Read a certificate and check it; raise StoreError if it is none, or was changed."""
    try:
        with path.open("rb") as file:
            values = loads(file.read(LARGEST))
    except OSError as error:
        raise StoreError(f"the certificate '{path}' cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise StoreError(f"'{path.name}' is no certificate: {error}.", hint="Give the .json, not the page.") from error
    if not isinstance(values, dict) or not isinstance(values.get("tasks"), dict) or "certificate" not in values:
        raise StoreError(
            f"'{path.name}' is no certificate.", hint="adaptree verify --certificate FILE.json writes one."
        )
    if values.get("checksum") != checksum({key: value for key, value in values.items() if key != "checksum"}):
        raise StoreError(f"the certificate '{path.name}' was changed: its checksum does not match.")
    return values


@dataclass(frozen=True, kw_only=True)
class Change:
    """What became of a version since a certificate."""

    task: str
    state: str
    """same, changed, gone or new"""
    files: tuple[str, ...] = ()
    """those whose bytes are others now"""


def changes(before: Mapping[str, Any], now: Verification, asked: Sequence[str] = ()) -> list[Change]:
    """Return what has become of every version of a certificate, and which are new.

    `asked` are the names of those that were verified, if not all.
    """
    here = {row.task: row for row in now.tasks}
    found = []
    for task, then in before["tasks"].items():
        if task not in here and asked and task.partition("@")[0] not in asked:
            continue  # nobody has looked at it
        if task not in here:
            found.append(Change(task=task, state=GONE))
            continue
        files, kept = here[task].files, then["files"]
        others = tuple(sorted(file for file in {*files, *kept} if files.get(file) != kept.get(file)))
        found.append(Change(task=task, state=CHANGED if others else SAME, files=others))
    return found + [Change(task=task, state=NEW) for task in here if task not in before["tasks"]]


def html(values: Mapping[str, Any]) -> str:
    """Return a certificate as a page."""
    title = f"Certificate of {values['store']}"
    return page(title, to_html(markdown(values, title), lambda path: None))


def markdown(values: Mapping[str, Any], title: str) -> str:
    """Return a certificate in Markdown."""
    tasks: Mapping[str, Any] = values["tasks"]
    facts = {"verified": values["time"], **values["versions"], **values["machine"]}
    wrong = {file: why for task in tasks.values() for file, why in task["damaged"].items()} | values["other_damage"]
    wrong |= {name: task["probe"]["said"] for name, task in tasks.items() if _failed(task)}
    rows = [
        (
            plain(name),
            plain(task["state"]),
            code(task["weights"][:16]),
            number(len(task["files"])),
            plain(task["probe"]["said"] if task["probe"] else "not asked for"),
        )
        for name, task in tasks.items()
    ]
    bases = [(plain(base["name"]), code(base["fingerprint"]), plain(base["state"])) for base in values["bases"]]
    files = [(code(file), code(digest)) for task in tasks.values() for file, digest in task["files"].items()]
    files += [(code(file), code(digest)) for file, digest in values["other_files"].items()]
    parts = [
        f"# {plain(title)}",
        plain(values["summary"]),
        table(("what", "which"), [(plain(key), plain(value)) for key, value in facts.items()]),
        section(
            "Damaged",
            table(("file", "what"), [(code(file), plain(why)) for file, why in wrong.items()]) if wrong else "",
        ),
        section("Bases", table(("base", "fingerprint", "state"), bases) if bases else ""),
        section("Tasks", table(("task", "state", "weights (sha256)", "files", "answers"), rows) if rows else ""),
        section("Files", table(("file", "sha256"), files) if files else ""),
        f"Checksum of this certificate: {code(values['checksum'])}",
    ]
    return "\n\n".join(part for part in parts if part)


def _failed(task: Mapping[str, Any]) -> bool:
    return bool(task["probe"]) and task["probe"]["state"] == "damaged"

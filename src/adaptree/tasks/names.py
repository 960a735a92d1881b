"""Names of tasks (`reviews`, `lang/qu`), and references to a version of one by number or by tag (`reviews@3`)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from adaptree.errors import BadName, TaskNotFound

_WORD = r"[a-z0-9][a-z0-9_-]{0,63}"
NAME = re.compile(rf"{_WORD}(/{_WORD})?")
VERSION = re.compile(r"[1-9][0-9]{0,8}")
TAG = re.compile(r"[a-z][a-z0-9_-]{0,31}")
# In a composition's text: a quoted or bracketed option ('0-4', [0.5, 0.5]), or else a word that neither opens a block
# nor names an option.
_REFERENCE = re.compile(r"""'[^']*'|\[[^\]]*\]|(?P<task>[^\s(),=\[\]'"]+)(?!\s*[(=]|[^\s(),=\[\]'"])""")


def check_name(name: str) -> str:
    """Return the name; raise BadName, with the rule and a name that obeys it, if it cannot be a task's."""
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    raise BadName(
        f"{name!r} cannot be a task's name: it is 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or a digit, "
        "optionally after one namespace and a slash (lang/qu).",
        hint=f"Try '{_nearest(str(name))}'.",
    )


def _nearest(name: str) -> str:
    """Return the name that obeys the rule and is most like this one."""
    plain = unicodedata.normalize("NFKD", name.partition("@")[0]).encode("ascii", "ignore").decode().lower()
    space, slash, rest = plain.partition("/")
    parts = (re.sub(r"[^a-z0-9_]+", "-", part).lstrip("_-")[:64].rstrip("-") for part in (space, rest if slash else ""))
    return "/".join(part for part in parts if part) or "my-task"


def parse_reference(reference: str) -> tuple[str, int | None]:
    """Return the name and the version: 'reviews@3' is ('reviews', 3); 'reviews', the newest one, ('reviews', None)."""
    if any(mark in str(reference) for mark in "({"):
        raise BadName(f"'{reference}' is a composition, not a task's name.", hint="Name one of its tasks.")
    name, at, version = str(reference).partition("@")
    check_name(name)
    if not at:
        return name, None
    if not VERSION.fullmatch(version):
        raise TaskNotFound(
            f"no version {version!r} of task '{name}': versions are numbers from 1.", hint=f"adaptree history {name}"
        )
    return name, int(version)


def split_tag(reference: str) -> tuple[str, str]:
    """Return the name and the tag of 'reviews@stable'; the tag is '' in a reference that has none."""
    name, _, tag = str(reference).partition("@")
    return (name, tag) if TAG.fullmatch(tag) and NAME.fullmatch(name) else (name, "")


def check_reference(reference: str) -> str:
    """Return the reference; raise BadName or TaskNotFound unless it is a name, alone or with a version or a tag."""
    if not split_tag(reference)[1]:
        parse_reference(reference)
    return reference


def check_tag(tag: str) -> str:
    """Return the tag; raise BadName, with the rule, if it cannot be one."""
    if TAG.fullmatch(tag):
        return tag
    raise BadName(
        f"{tag!r} cannot be a tag: it is 1 to 32 of a-z, 0-9, '_' and '-', starting with a letter.",
        hint="Try 'stable'.",
    )


def rename_references(composition: str, names: Mapping[str, str]) -> str:
    """Return a composition's text with some of its tasks under other names; blocks and options stay as they are."""
    return _REFERENCE.sub(lambda found: names.get(found["task"], found[0]) if found["task"] else found[0], composition)

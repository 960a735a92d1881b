"""Spellings of one label: those that differ only in case, in blanks, or in how they say that something is not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

NOT_THERE = frozenset({"n/a", "na", "n.a.", "none", "null", "nil", "nan", "-", "--", "–", "—"})


def plain_label(label: object) -> str:
    """Return what all spellings of a label have in common: in lower case, without blanks, 'n/a' for 'NA' and 'none'."""
    folded = "".join(str(label).casefold().split())
    return "n/a" if folded in NOT_THERE else folded


def variants(counts: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the labels that are spelled in several ways: how often each spelling occurs, the most frequent first."""
    groups: dict[str, dict[str, int]] = {}
    for label, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if count:
            groups.setdefault(plain_label(label), {})[label] = count
    return [spellings for spellings in groups.values() if len(spellings) > 1]


def merged_names(counts: Mapping[str, int], known: Iterable[object] = ()) -> dict[str, str]:
    """Return the name under which each label is merged: a known label's, else the most frequent spelling of it."""
    exact = [str(label) for label in known]
    by_count = sorted(counts, key=lambda label: (-counts[label], label))
    first: dict[str, str] = {}
    for label in (*exact, *by_count):
        first.setdefault(plain_label(label), label)
    return {label: label if label in exact else first[plain_label(label)] for label in by_count}


def in_words(spellings: Mapping[str, int]) -> str:
    """Return spellings with their counts: 'spam' (90), 'Spam' (7)."""
    return ", ".join(f"'{label[:60]}' ({count:,})" for label, count in spellings.items())

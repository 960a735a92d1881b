"""SQuAD's own JSON, articles with paragraphs with questions, as flat rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from adaptree.errors import DataError

_TYPES: dict[type, str] = {str: "a text", list: "a list", dict: "an object"}


def read_squad(value: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield every question of SQuAD 1.1 or 2.0 with its context and answers, and its number, from 1."""
    return read_articles(_part(value, "data", list, ""))


def read_articles(articles: Iterable[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the questions of SQuAD's articles, which may come one by one."""
    number = 0
    for article, at in _objects(articles, "data"):
        for row in [article] if "question" in article else _questions(article, at):
            number += 1
            yield number, row


def _questions(article: dict[str, Any], at: str) -> Iterator[dict[str, Any]]:
    title = {"title": article["title"]} if "title" in article else {}
    for paragraph, here in _each(article, "paragraphs", at):
        context = _part(paragraph, "context", str, here)
        for item, there in _each(paragraph, "qas", here):
            question = _part(item, "question", str, there)
            if "answers" in item:
                _part(item, "answers", list, there)
            yield title | item | {"question": question, "context": context}


def _each(holder: Mapping[str, Any], name: str, at: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Return the objects in a list, each with its path."""
    return _objects(_part(holder, name, list, at), _joined(at, name))


def _objects(items: Iterable[Any], at: str) -> Iterator[tuple[dict[str, Any], str]]:
    for i, item in enumerate(items):
        here = f"{at}[{i}]"
        if not isinstance(item, dict):
            raise _broken(f"{here} is not an object")
        yield item, here


def _part(holder: Mapping[str, Any], name: str, kind: type, at: str) -> Any:
    if name not in holder:
        raise _broken(f"{at or 'the top'} has no '{name}'")
    if not isinstance(holder[name], kind):
        raise _broken(f"{_joined(at, name)} is not {_TYPES[kind]}")
    return holder[name]


def _joined(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _broken(what: str) -> DataError:
    return DataError(
        f"this is not SQuAD's JSON: {what}.",
        hint='It is {"data": [{"paragraphs": [{"context": "…", "qas": [{"question": "…", "answers": […]}]}]}]}.',
    )

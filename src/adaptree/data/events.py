"""Events that report how reading, training and comparing go on, and the type of whatever listens to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
"""Under "event" what happened: note, reading, start, step, epoch, end, failed, …; the other keys are its facts."""
Listener = Callable[[Event], None]


def silent(event: Event) -> None:
    """Ignore an event: the default wherever nobody listens."""


def note(listener: Listener, text: str, *, warning: bool = False) -> None:
    """Send a sentence for the user, or as a `warning` one that should not be missed."""
    listener({"event": "note", "text": text, **({"warning": True} if warning else {})})

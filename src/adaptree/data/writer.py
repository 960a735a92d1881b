"""How a base that writes text is asked: the tokens at which it stops, and the template that a prompt is put into."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from adaptree.errors import BaseError, UsageError

CHAT = "chat"
"""The template that stands for the base's own, of its chats."""
PLAIN = "{input}\n"
"""The template for a base that has none."""
BARE = "{input}"
"""The template for a base whose encoder reads the prompt: nothing has to say where the output begins."""
PLACE = "{input}"
Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Writer:
    """What a base says of its own writing."""

    ends: tuple[int, ...]
    """Tokens at which a text is over; the first is put after each text that is learned."""
    chat: str = ""
    """The Jinja template of its chats, if it has one."""
    tokens: Mapping[str, str] = field(default_factory=dict)
    """Names of special tokens in that template, with their spellings."""
    start: int | None = None
    """The token that the decoder begins with, where an encoder reads the prompt; None where one stack does both."""

    def check(self, template: str) -> str:
        """Return a template, by default the base's own; raise UsageError for one that cannot work."""
        if not template:
            return CHAT if self.chat else PLAIN if self.start is None else BARE
        if template == CHAT and not self.chat:
            raise UsageError("this base has no template of chats.", hint=f'Give one: --template "{PLAIN!s}"')
        if template != CHAT and PLACE not in template:
            raise UsageError(
                f"the template {template!r:.60} has no {PLACE}, where an input goes.",
                hint=f'--template "Translate: {PLACE}\\nGerman:"',
            )
        return template

    def prompt(self, template: str, given: str | Messages) -> str:
        """Return what the base reads before it writes: an input, or the messages of a chat so far."""
        if template != CHAT:
            text = given if isinstance(given, str) else "\n".join(str(each.get("content", "")) for each in given)
            return template.replace(PLACE, text)
        messages = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        from jinja2.exceptions import TemplateError

        try:
            return str(_compiled(self.chat).render(messages=messages, add_generation_prompt=True, **self.tokens))
        except (TemplateError, RecursionError) as error:
            raise UsageError(
                f"the base's template of chats does not take these messages: {str(error).strip()[:150]}",
                hint='Roles are "system", "user" and "assistant", the last two in turn; or choose another: --template',
            ) from error


@cache
def _compiled(template: str) -> Any:
    """Return a base's template, which is a stranger's: it runs in Jinja's sandbox and changes nothing."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, **options)

    place = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    place.filters["tojson"] = tojson
    place.globals["raise_exception"] = refuse
    place.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return place.from_string(template)
    except TemplateError as error:
        raise BaseError(
            f"the base's template of chats cannot be read: {error}", hint='Choose another: --template "{input}\\n"'
        ) from error


def read_writer(folder: Path, config: Mapping[str, Any], *, writes: bool = False) -> Writer | None:
    """Return how the model in a folder writes; None if it is none that does.

    An encoder-decoder only does where that is asked for (`writes`): for other kinds its encoder reads.
    """
    names = [str(name) for name in config.get("architectures") or ()]
    causal = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)
    start = None
    if not causal:
        if not writes or not is_encoder_decoder(config):
            return None
        start = config.get("decoder_start_token_id")
        if start is None:
            start = _json(folder / "generation_config.json").get("decoder_start_token_id")
        if not isinstance(start, int):
            raise BaseError("the base's config.json has no decoder_start_token_id.", hint="Fetch the model again.")
    settings = _json(folder / "tokenizer_config.json")
    chat = settings.get("chat_template") or ""
    if isinstance(chat, list):  # several, by name
        chat = next((each.get("template", "") for each in chat if each.get("name") == "default"), "")
    if (file := folder / "chat_template.jinja").is_file():
        chat = file.read_text(encoding="utf-8")
    ends = _json(folder / "generation_config.json").get("eos_token_id", config.get("eos_token_id"))
    found = tuple(each for each in (ends if isinstance(ends, list) else [ends]) if isinstance(each, int))
    tokens = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = settings.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[name] = value
    return Writer(found, str(chat), tokens, start)


def is_encoder_decoder(config: Mapping[str, Any]) -> bool:
    """Return whether a model's configuration is that of an encoder and a decoder with an output layer."""
    names = [str(name) for name in config.get("architectures") or ()]
    return bool(config.get("is_encoder_decoder")) and any(name.endswith("ForConditionalGeneration") for name in names)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

"""Options of the commands, made from the fields of `Run` and `Settings`: name, type, default and help."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, TypeVar

import typer

from adaptree.data.decoding import Decoding
from adaptree.training.config import type_of
from adaptree.training.run import Run
from adaptree.training.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])
NOT_OPTIONS = ("data", "store", "start", "head", "baselines", "stream", "checkpoints", "settings")
"""Fields of `Run` that are not options of a command."""
SETTINGS = tuple(f.name for f in fields(Settings))
RUN = tuple(f.name for f in fields(Run) if f.name not in NOT_OPTIONS)
COLUMNS = ("text", "text_pair", "label", "encoding", "no_header")
COMPUTING = ("device", "threads", "trust_remote_code", "allow_pickle")
FLAGS = tuple(f.name for f in (*fields(Run), *fields(Settings)) if f.type == "bool")
"""Fields that are false unless they are given; one that may be None has a second option, --no-…."""
OF_TASK = "The task's base, a name or a folder. Default: the base that it was trained on."


def takes(*names: str, required: tuple[str, ...] = (), **help: str) -> Callable[[Command], Command]:
    """Give a command options for some fields of `Run` and `Settings`; it receives them in its `**options`.

    Keywords name fields, too, and give them another help text. An option that is not given on the command line is None
    or False, which `given` leaves out: the defaults are those of the fields.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        arguments = [p for p in own if p.default is p.empty or _is_argument(p)]
        generated = [_option(name, name in required, help.get(name)) for name in (*names, *help)]
        ordered = [*arguments, *generated, *(p for p in own if p not in arguments)]
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in ordered]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def decodes(command: Command) -> Command:
    """Give a command options for the fields of `Decoding`; it receives them in its `**options`, too."""
    signature = inspect.signature(command)
    own = list(signature.parameters.values())
    more = []
    for field in fields(Decoding):
        several = "tuple" in str(field.type)
        kind: Any = list[str] if several else type_of(str(field.type))
        flag = "--choice" if field.name == "choices" else f"--{field.name.replace('_', '-')}"
        help = "For tasks that write: " + _lower(docstrings(Decoding).get(field.name, ""))
        option = typer.Option(flag, help=help, show_default=False)
        more.append(
            inspect.Parameter(f"decoding_{field.name}", inspect.Parameter.KEYWORD_ONLY,
                              annotation=Annotated[kind | None, option], default=None)
        )  # fmt: skip
    command.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return command


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def decoding(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of `Decoding` that are given out of others."""
    found = {name: options.pop(name) for name in list(options) if name.startswith("decoding_")}
    return {name.removeprefix("decoding_"): value for name, value in found.items() if value not in (None, [])}


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the command line, or its --config, gives."""
    return {name: value for name, value in options.items() if value is not None and (value or name not in FLAGS)}


def _is_argument(parameter: inspect.Parameter) -> bool:
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(each, typer.models.ArgumentInfo) for each in metadata)


def _option(name: str, required: bool, help: str | None) -> inspect.Parameter:
    """Return the parameter that typer makes an option of."""
    spec = Settings if name in SETTINGS else Run
    field = next(f for f in fields(spec) if f.name == name)
    kind = type_of(str(field.type))
    if help is None:
        help = docstrings(spec).get(name, "")
        if kind is not bool and field.default not in (None, MISSING) and not required:
            help += f" [default: {field.default}]"
    flag = f"--{name.replace('_', '-')}"
    if kind is bool and name not in FLAGS:
        flag += f"/--no-{flag[2:]}"
    option = typer.Option(flag, help=help, show_default=False)
    if required:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, option])
    annotation: Any = Annotated[bool, option] if name in FLAGS else Annotated[kind | None, option]
    default = False if name in FLAGS else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


@cache
def docstrings(spec: type) -> dict[str, str]:
    """Return the text under each field of a dataclass, read from its source."""
    try:
        tree = ast.parse(inspect.getsource(spec)).body[0]
    except OSError:  # installed without sources
        return {}
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found

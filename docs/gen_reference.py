"""Write the reference pages that come from the code itself: the commands and the Python API.

The site's build calls this (docs/hooks.py); `python docs/gen_reference.py commands|api` prints a page.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any, get_args

Command = Any
"""A click command; typer may bring a click of its own, so its classes are not imported."""


def commands() -> str:
    """Return the page of all commands, as Markdown."""
    from typer.main import get_command

    from adaptree.cli.app import app

    root = get_command(app)
    lines = [
        "# Commands",
        "",
        "Results go to stdout, progress and notes to stderr. The exit code is 0 when the command did its work, 1 when",
        "it could not, and 2 when it was called wrongly; one line then says what happened, why, and what to type next.",
        "This page is generated from the commands themselves: `adaptree COMMAND --help` prints the same.",
        "",
        "After `adaptree --install-completion`, your shell completes commands, options and the names of stored tasks",
        "(bash, zsh, fish, PowerShell). In tables and messages control characters are spelled out (`\\x1b`); JSON, and",
        "csv in a pipe, hold the true texts. JSON has `null` where a number is not finite.",
        "",
        "| command | what it does |",
        "|---|---|",
    ]
    found = sorted(walk(root, "adaptree"))
    lines += [f"| [`{path}`](#{path.replace(' ', '-')}) | {cell(summary(command))} |" for path, command in found]
    for path, command in found:
        lines += ["", f"## `{path}` {{ #{path.replace(' ', '-')} }}", "", *section(path, command)]
    return "\n".join(lines) + "\n"


def walk(group: Command, path: str) -> Iterator[tuple[str, Command]]:
    """Yield every visible command below a group with the words that call it."""
    for name, command in group.commands.items():
        if getattr(command, "hidden", False):
            continue
        if hasattr(command, "commands"):
            yield from walk(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def summary(command: Command) -> str:
    """Return the first paragraph of a command's help, on one line."""
    return " ".join((command.help or "").strip().split("\n\n")[0].split())


def section(path: str, command: Command) -> list[str]:
    """Return the lines about one command: usage, help, and a table of arguments and options."""
    shown = [param for param in command.params if not getattr(param, "hidden", False)]
    arguments = [param for param in shown if param.param_type_name == "argument"]
    options = [param for param in shown if param.param_type_name == "option" and "--help" not in param.opts]
    usage = " ".join([path, *(spelled(param) for param in arguments), *(["[OPTIONS]"] if options else [])])
    lines = ["```console", usage, "```", "", inspect.cleandoc(command.help or "")]
    if arguments:
        lines += ["", "| argument | |", "|---|---|"]
        lines += [f"| `{spelled(param)}` | {described(param)} |" for param in arguments]
    if options:
        lines += ["", "| option | value | |", "|---|---|---|"]
        for param in options:
            names = sorted([*param.opts, *param.secondary_opts], key=len, reverse=True)
            spelling = ", ".join(f"`{name}`" for name in names)
            lines.append(f"| {spelling} | {value(param)} | {described(param)} |")
    return lines


def spelled(param: Any) -> str:
    """Return an argument as a usage line shows it: DATA, [TEXTS]…"""
    name = param.name.upper()
    return (name if param.required else f"[{name}]") + ("…" if param.nargs == -1 else "")


def value(param: Any) -> str:
    """Return what an option takes: nothing for a flag, the choices, or the type's name."""
    if getattr(param, "is_flag", False):
        return ""
    kind = getattr(param, "type", None) or param.type_descriptor.annotation  # click's own types, or Python's
    choices = getattr(kind, "choices", None) or getattr(kind, "__members__", None) or get_args(kind)
    if choices and not getattr(param, "multiple", False):
        return " ".join(f"`{getattr(choice, 'value', choice)}`" for choice in choices)
    name = str(getattr(kind, "name", None) or getattr(kind, "__name__", kind)).lower()
    return next((word for word in ("int", "float", "path") if name.startswith(word)), "text")


def described(param: Any) -> str:
    """Return a parameter's help as a cell, with its default unless the help says it."""
    text = cell(" ".join((getattr(param, "help", None) or "").split()))
    default = getattr(param.default, "value", param.default)
    if param.required and param.param_type_name == "option":
        text += " **Required.**"
    elif isinstance(default, str | int | float) and not isinstance(default, bool) and "efault" not in text:
        text += f" Default: `{default}`."
    if getattr(param, "multiple", False):
        text += " May be repeated."
    return text.strip()


def cell(text: str) -> str:
    """Return a text as a table's cell."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def api() -> str:
    """Return the page of the public names, grouped by what they are, as mkdocstrings directives."""
    import adaptree as at

    groups = {
        "Functions": "What most programs need.",
        "Objects": "What the functions take and return.",
        "Methods": "Each is a frozen dataclass; its fields are the numbers that you may tune. "
        "[Methods](methods.md) says what each one does.",
        "Compositions": "Expressions over tasks. [Compositions](../composition.md) says what each one means.",
        "Architectures": "Where adapters go in a new architecture: [your own base](../how-to/own-base.md).",
    }
    lines = [
        "# Python API",
        "",
        "These are the public names: `import adaptree as at`, then `at.train`, `at.Houlsby` and so on. Importing the",
        "package is cheap; torch is loaded when a name is first used. What is not on this page may change.",
    ]
    for title, intro in groups.items():
        lines += ["", f"## {title}", "", intro]
        for name in at.__all__:
            if group_of(at, getattr(at, name), name) == title:
                lines += ["", f"::: adaptree.{name}"]
    lines += [
        "",
        "## Options of train",
        "",
        "`train`, `train_jointly` and the command line take the fields of both as options.",
    ]
    lines += ["", "::: adaptree.training.run.Run", "", "::: adaptree.training.settings.Settings"]
    return "\n".join(lines) + "\n"


def where_defined(page: str) -> str:
    """Return the page with every method's class named by its module.

    Methods register themselves: `adaptree.Houlsby` works when the code runs, but mkdocstrings only reads the source.
    """
    from adaptree.methods.method import classes

    for name, method in classes().items():
        page = page.replace(f"::: adaptree.{name}\n", f"::: {method.__module__}.{name}\n")
    return page


def group_of(at: Any, thing: Any, name: str) -> str:
    """Return the heading of the API page under which a public name belongs."""
    if inspect.isclass(thing):
        if issubclass(thing, at.Method):
            return "Methods"
        if thing is at.Expression:
            return "Compositions"
        return "Architectures" if "rchitecture" in name or name.endswith("Stack") else "Objects"
    returned = getattr(thing, "__globals__", {}).get(thing.__annotations__.get("return"))
    return "Compositions" if inspect.isclass(returned) and issubclass(returned, at.Expression) else "Functions"


if __name__ == "__main__":
    sys.stdout.write({"commands": commands, "api": api}[sys.argv[1]]())

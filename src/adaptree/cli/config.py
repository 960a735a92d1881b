"""--config run.toml: read options of a command from a file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from adaptree.errors import UsageError, near


def _from_config(context: typer.Context, path: str | None) -> str | None:
    """Read the options that the command line leaves out from a toml file."""
    if path is None:
        return None
    from adaptree.training.config import read_toml

    content = read_toml(path)
    options = {
        word.lstrip("-"): option
        for option in context.command.params
        for word in option.opts
        if word.startswith("--") and word not in ("--config", "--debug", "--help")
    }
    found: dict[str, Any] = {}
    for name, value in content.items():
        option = options.get(name.replace("_", "-"))
        if option is None or option.name is None:
            hint = near(name.replace("_", "-"), options) or "adaptree train --help lists them."
            raise UsageError(f"'{path}' has '{name}', which is no option of this command.", hint=hint)
        if isinstance(value, dict | list) or isinstance(value, bool) != bool(getattr(option, "is_flag", False)):
            wanted = "true or false" if getattr(option, "is_flag", False) else "one value"
            raise UsageError(f"'{name}' in '{path}' is not {wanted}.")
        if option.name in found:
            raise UsageError(f"'{path}' says '{name}' twice.")
        found[option.name] = value if isinstance(value, bool) else str(value)
    context.default_map = {**(context.default_map or {}), **found}
    return path


Config = Annotated[
    str | None,
    typer.Option(
        "--config", callback=_from_config, is_eager=True, help="A toml file of options that are not given here."
    ),
]

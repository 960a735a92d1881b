"""What the site's build does beside Markdown: generated reference pages, and the measured results as pages.

`results/` lies beside `docs/`, where its tables and the commands that made them belong. Links such as
`../results/fusion/table.md` work where the sources are browsed; here the folder is mounted inside the site.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
LEAVING = re.compile(r"(\]\((?:\.\./)*)\.\./(results/)")
"""A link out of docs/ into results/: the last step up is one too many inside the site."""


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and the results."""
    sys.path.insert(0, str(ROOT / "docs"))
    import gen_reference

    for name, write in (("commands", gen_reference.commands), ("api", gen_reference.api)):
        files.append(File.generated(config, f"reference/{name}.md", content=gen_reference.where_defined(write())))
    linked = "\n".join(path.read_text() for path in (ROOT / "results").rglob("*.md"))
    for path in sorted((ROOT / "results").rglob("*")):
        if path.suffix == ".md" or (path.suffix in (".png", ".svg") and path.name in linked):
            source = str(path.relative_to(ROOT))
            files.append(File.generated(config, source, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links at the results where they are in the site, and give their wide tables the whole width."""
    if page.file.src_uri.startswith("results/") and not page.is_index:
        page.meta["hide"] = ["navigation", "toc"]
    return LEAVING.sub(r"\1\2", markdown)

"""Stylesheets and scripts. Their address has a digest of them all, so that a browser may keep them for ever.

The look is that of `adaptree site`: site.css and page.js are the very files. plotly.min.js is out of plotly's Python
package, where that is installed.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import metadata, resources, util
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response
from starlette.exceptions import HTTPException

router = APIRouter(include_in_schema=False)

SHARED = ("site.css", "page.js")
PLOTLY = "plotly.min.js"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOR_EVER = "public, max-age=31536000, immutable"


class _File(NamedTuple):
    content: bytes
    type: str


@cache
def _files() -> dict[str, _File]:
    """Return our files by name."""
    shared = resources.files("adaptree.hub") / "assets"
    own = resources.files("adaptree.serve.web") / "static"
    found = {name: shared / name for name in SHARED} | {each.name: each for each in own.iterdir() if each.is_file()}
    return {
        name: _File(file.read_bytes(), TYPES[suffix])
        for name, file in sorted(found.items())
        if (suffix := Path(name).suffix) in TYPES
    }


@cache
def _mark() -> str:
    digest = hashlib.sha256()
    for name, file in _files().items():
        digest.update(f"{name} {len(file.content)} ".encode() + file.content)
    return digest.hexdigest()[:12]


@cache
def plotly() -> Path | None:
    """Return plotly's script; None where the package is not installed."""
    found = util.find_spec("plotly")
    path = Path(found.origin).parent / "package_data" / PLOTLY if found and found.origin else None
    return path if path is not None and path.is_file() else None


@cache
def plotly_styles() -> tuple[str, ...]:
    """Return the ids of the styles that plotly would write into a page: where an element has one, it writes none.

    The policy would refuse them; app.css has those that matter.
    """
    path = plotly()
    text = path.read_text(encoding="utf-8") if path else ""
    return ("plotly.js-style-global", *sorted(set(re.findall(r'getElementById\("([0-9a-f]{40,64})"\)', text))))


def address(name: str) -> str:
    """Return where a browser finds a file."""
    if name == PLOTLY:
        return f"/static/{metadata.version('plotly')}/{name}"
    if name not in _files():
        raise KeyError(name)
    return f"/static/{_mark()}/{name}"


@router.get("/static/{mark}/{name}")
async def file(request: Request, mark: str, name: str) -> Response:
    if name == PLOTLY and (path := plotly()) is not None:
        return FileResponse(path, media_type=TYPES[".js"], headers={"Cache-Control": FOR_EVER})
    found = _files().get(name)
    if found is None:
        raise HTTPException(404)
    keep = FOR_EVER if mark == _mark() else "no-cache"  # a page of before an update asks for what there is now
    return Response(
        found.content, media_type=found.type, headers={"Cache-Control": keep, "X-Content-Type-Options": "nosniff"}
    )


@router.get("/favicon.ico")
async def icon(request: Request) -> Response:
    return Response(_files()["icon.svg"].content, media_type=TYPES[".svg"], headers={"Cache-Control": "max-age=86400"})

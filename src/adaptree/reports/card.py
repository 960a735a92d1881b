"""The card of a task: a README.md that writes itself from the record."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from adaptree import kinds
from adaptree.kinds import Kind
from adaptree.reports import findings
from adaptree.reports.figures import images
from adaptree.reports.markdown import block, code, interval, number, plain, quoted, score, section, table
from adaptree.reports.text import printable

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

MOST_LABELS = 50
MOST_WARNING = 1000
"""Characters of a warning."""
LOADING = "How to load it"
"""The title of the section with commands and Python."""
ATTACHED = "attached"
"""The kind in the record of a task that belongs to a user's own Hugging Face model."""

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
CITATIONS = {"pfeiffer": _PFEIFFER, "fusion": _PFEIFFER}  # beside Houlsby's, by the method's name


def write(record: Record) -> str:
    """Return the whole card in Markdown, with a YAML front matter."""
    return f"{_front(record)}\n\n{body(record, images(record))}"


def body(record: Record, figures: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the card without its front matter; `figures` are images in Markdown, by the names of their files."""
    return "\n\n".join(sections(record, figures)) + "\n"


def sections(record: Record, figures: Mapping[str, str]) -> list[str]:
    """Return the card's sections in Markdown, each with its heading; the first is the task's name and what it does."""
    found = [
        f"# {plain(record.reference)}\n\n{_what(record)}",
        section("Labels", _labels(record)),
        section("Examples", _examples(record)),
        section("How good", _scores(record)),
        *findings.sections(record, figures),
        section("Price", _price(record)),
        section("How it was trained", figures.get("course.svg", ""), _training(record)),
        section(LOADING, _loading(record)),
        section("How to cite", _citation(record)),
    ]
    return [each for each in found if each]


MADE_OF = {
    "fuses": "It is made of {}: in each layer it attends to what their adapters give.",
    "made_of": "It is made of {}, and was not trained itself.",
    "on": "It runs on top of {}.",
}
"""What a task has of others, by keys of its record's extra."""


def _front(record: Record) -> str:
    base = str(record.base.get("name", ""))
    lines = ["---", "library_name: adaptree", f"base_model: {quoted(base)}", "tags:"]
    lines += [f"- {quoted(tag)}" for tag in ("adaptree", base, record.kind, record.method.partition("(")[0]) if tag]
    if scores := _main_part(record)[1]:
        lines += ["metrics:", *(f"- {quoted(name)}" for name in scores)]
    return "\n".join([*lines, "---"])


def _what(record: Record) -> str:
    base = record.base
    lines = [
        _purpose(record),
        f"It is {code(record.method)} on the frozen base {code(base.get('name', '?'))}, which it leaves unchanged.",
        *(sentence.format(code(record.extra[key])) for key, sentence in MADE_OF.items() if record.extra.get(key)),
        f"Base fingerprint: {code(base['fingerprint'])}." if base.get("fingerprint") else "",
    ]
    return "\n".join(line for line in lines if line)


def _purpose(record: Record) -> str:
    """Return what the task does, in one sentence."""
    if record.kind == ATTACHED:
        return "Weights trained on a user's own Hugging Face model."
    kind = kinds.find(record.kind)
    return kind.describe(record) if kind else f"A task of kind {plain(record.kind)}."


def _labels(record: Record) -> str:
    if not record.labels:
        return ""
    counts = record.data.get("label_counts") or {}
    shown = record.labels[:MOST_LABELS]
    more = f"\n\nand {len(record.labels) - len(shown)} more" if len(shown) < len(record.labels) else ""
    if not counts:
        return ", ".join(plain(label) for label in shown) + more
    return table(("label", "rows"), ((plain(label), number(counts.get(str(label), 0))) for label in shown)) + more


def _examples(record: Record) -> str:
    kind = kinds.find(record.kind)
    rows = []
    for example in record.examples:
        given, target = example.get("input"), example.get("gold")
        if given is None:  # one text or a pair, and one label or number
            given = [example.get("text", ""), *([example["pair"]] if "pair" in example else [])]
            target = example.get("label", "")
        texts, shown = kind.show(given, target) if kind else (_in_words(given), str(target))
        rows.append((" · ".join(plain(text) for text in texts), plain(shown)))
    name = kind.target_name if kind else "label"
    if not name:  # where a text's own words are what is right
        return table(("text",), ([text] for text, _ in rows)) if rows else ""
    return table(("text", name), rows) if rows else ""


def _in_words(given: Any) -> list[str]:
    """Return an input of an unknown kind as texts."""
    parts = given.values() if isinstance(given, Mapping) else given if isinstance(given, list) else [given]
    return [str(part) for part in parts]


def _main_part(record: Record) -> tuple[str, dict[str, float]]:
    """Return the part that the task is judged on and its scores: test, or validation where there is no test."""
    part = "test" if record.metrics.get("test") else "validation"
    return part, record.metrics.get(part, {})


def chosen_on_validation(record: Record) -> str:
    """Return which choices the scored validation rows have made, as a sentence without its stop; "" if none."""
    if _main_part(record)[0] == "test" or not record.metrics:
        return ""
    kind = kinds.find(record.kind) or Kind
    chosen = ["best epoch"] * (len(record.history) > 1) + [
        name.replace("_", " ") for name in kind.chosen if record.extra.get(name)
    ]
    return f"The validation rows also chose the {' and the '.join(chosen)}" if chosen else ""


def _scores(record: Record) -> str:
    part, scores = _main_part(record)
    if not scores:
        return ""
    kind = kinds.find(record.kind) or Kind
    names = {"majority": kind.majority, "tfidf": "TF-IDF, linear"}
    rows = []
    for name, value in scores.items():
        beside = [score(found.get(name)) for found in record.baselines.values()]
        rows.append([plain(name), score(value) or "not a number", interval(record, part, name), *beside])
    head = ("metric", "this task", "95 % interval", *(plain(names.get(name, name)) for name in record.baselines))
    size = record.data.get(part)
    on = f"On the {number(size)} rows of the {part} part" if isinstance(size, int) else f"On the {part} part"
    blocks = [f"**Warning:** {plain(text, MOST_WARNING)}" for text in record.extra.get("warnings", ())]
    blocks += [f"{on}:", table(head, rows)]
    if part == "test" and (others := record.metrics.get("validation")):
        spans = {name: interval(record, "validation", name) for name in others}
        shown = (
            f"{plain(name)} {score(others[name])}" + (f" ({span})" if span else "") for name, span in spans.items()
        )
        blocks.append(f"On the validation part: {', '.join(shown)}.")
    if record.settings.get("refitted"):
        blocks.append(
            "The validation score is of the same training without those rows; the task itself then learned all rows."
        )
    if chosen := chosen_on_validation(record):
        blocks.append(f"{chosen}, so that on other rows the scores may be a little lower.")
    if note := kind.score_note(record):
        blocks.append(plain(note))
    return "\n\n".join(blocks)


def _price(record: Record) -> str:
    counts = record.parameters
    rows = [(f"trained in {name}", number(counts[name])) for name in ("adapters", "norms", "head") if name in counts]
    if "trained" in counts:
        rows.append(("trained in all", number(counts["trained"])))
        shown = (("base", "of the base"), ("base_without_embeddings", "of the base without embeddings"))
        rows += [(what, f"{100 * counts['trained'] / counts[key]:.2f} %") for key, what in shown if counts.get(key)]
    if record.file_bytes:
        rows.append(("bytes on disk", number(record.file_bytes)))
    if record.seconds:
        rows.append(("seconds of training", f"{record.seconds:,.1f}"))
    return table(("what", "how much"), rows) if rows else ""


def _training(record: Record) -> str:
    data = record.data
    lines = []
    if data:
        parts = ", ".join(f"{number(data[part])} {part}" for part in ("train", "validation", "test") if data.get(part))
        digest = f", digest {code(data['digest'])}" if data.get("digest") else ""
        lines.append(f"- data: {plain(data.get('name', 'unnamed'))}{f' ({parts})' if parts else ''}{digest}")
        if data.get("truncated"):
            lines.append(f"- cut to {record.max_length} tokens (`--max-length`): {number(data['truncated'])} texts")
        left_out = data.get("left_out") or {}
        why = left_out if isinstance(left_out, dict) else {"": left_out}
        lines += [f"- left out: {number(count)} rows {plain(what)}".rstrip() for what, count in why.items() if count]
    shown = {**record.settings, "seed": record.seed, "pooling": record.pooling, "max_length": record.max_length}
    lines += [f"- {plain(key)}: {plain(value)}" for key, value in shown.items() if value not in ("", None)]
    lines += [f"- {plain(key)} {plain(value)}" for key, value in record.versions.items()]
    return "\n".join(lines)


def _loading(record: Record) -> str:
    start = ["import adaptree as at", ""]
    if record.kind == ATTACHED:
        return block("python", [*start, 'tuned = at.attach(model, ".")  # this folder; the same Hugging Face model'])
    kind = kinds.find(record.kind) or Kind
    given, words = kind.usage(record)
    base = quoted(str(record.base.get("name", "")))
    python = [
        *start,
        f"base = at.load_base({base})",
        f"task = at.Store()[{quoted(record.reference)}]",
        f"base.bind(task).predict([{given}])",
    ]
    return block("python", python) + "\n\n" + block("sh", [f"adaptree predict {printable(record.reference)} {words}"])


def _citation(record: Record) -> str:
    entries = [_HOULSBY]
    if (name := record.method.partition("(")[0].partition(":")[0]) in CITATIONS:
        entries.append(CITATIONS[name])
    return block("bibtex", entries)

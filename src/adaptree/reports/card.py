"""The card of a task: a README.md that writes itself from the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from adaptree.reports import findings
from adaptree.reports.figures import images
from adaptree.reports.markdown import block, code, interval, number, plain, quoted, score, section, table

if TYPE_CHECKING:
    from adaptree.tasks.task import Record

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
CITATIONS = {"pfeiffer": _PFEIFFER, "fusion": _PFEIFFER}  # beside Houlsby's, by the method's name


def write(record: Record) -> str:
    """The whole card in Markdown, with a YAML front matter."""
    drawn = images(record)
    sections = [
        _front(record),
        f"# {record.reference}\n\n{_what(record)}",
        section("Labels", _labels(record)),
        section("Examples", _examples(record)),
        section("How good", _scores(record)),
        *findings.sections(record, drawn),
        section("Price", _price(record)),
        section("How it was trained", drawn.get("course.svg", ""), _training(record)),
        section("How to load it", _loading(record)),
        section("How to cite", _citation(record)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _texts(record: Record) -> str:
    return "a pair of texts" if record.columns.get("pair") else "a text"


WHAT: Mapping[str, Callable[[Record], str]] = {
    "classify": lambda record: f"Puts {_texts(record)} under one of {len(record.labels)} labels.",
    "labels": lambda record: f"Puts {_texts(record)} under any number of {len(record.labels)} labels.",
    "regress": lambda record: f"Gives {_texts(record)} a number.",
    "numbers": lambda record: f"Gives {_texts(record)} {len(record.extra['targets'])} numbers.",
    "tag": lambda record: f"Gives every word of a text one of {len(record.labels)} tags.",
    "answer": lambda record: "Finds the part of a text that answers a question.",
    "choose": lambda record: "Chooses the right one of several answers to a text.",
    "mlm": lambda record: "Says the words that are hidden in a text.",
    "attached": lambda record: "Weights trained on a user's own Hugging Face model.",
}
"""What a task of each form does."""
MADE_OF = {
    "fuses": "It is made of {}: in each layer it attends to what their adapters give.",
    "made_of": "It is made of {}, and was not trained itself.",
    "on": "It runs on top of {}.",
}
"""What a task has of others, by what its record's extra says."""
GIVEN = {
    "answer": ('("a question?", "the text with the answer")', "--file questions.jsonl"),
    "choose": ('("a text", ["a choice", "another"])', "--file questions.jsonl"),
    "pair": ('("a text", "the text beside it")', "--file pairs.csv"),
}
"""An input in Python and on the command line, of what is not one text."""


def _form(record: Record) -> str:
    """The kind, and of labels and numbers whether there are several."""
    several = {"classify": bool(record.extra.get("several")), "regress": "targets" in record.extra}
    return {"classify": "labels", "regress": "numbers"}[record.kind] if several.get(record.kind) else record.kind


def _front(record: Record) -> str:
    base = str(record.base.get("name", ""))
    lines = ["---", "library_name: adaptree", f"base_model: {quoted(base)}", "tags:"]
    lines += [f"- {quoted(tag)}" for tag in ("adaptree", base, record.kind, record.method.partition("(")[0]) if tag]
    if scores := _main_part(record)[1]:
        lines += ["metrics:", *(f"- {quoted(name)}" for name in scores)]
    return "\n".join([*lines, "---"])


def _what(record: Record) -> str:
    form = _form(record)
    does = WHAT[form](record) if form in WHAT else f"A task of kind {plain(record.kind)}."
    base = record.base
    lines = [
        does,
        f"It is {code(record.method)} on the frozen base {code(base.get('name', '?'))}, which it leaves unchanged.",
        *(said.format(code(record.extra[key])) for key, said in MADE_OF.items() if record.extra.get(key)),
        f"Base fingerprint: {code(base['fingerprint'])}." if base.get("fingerprint") else "",
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
    return table(("label", "rows"), ((plain(label), number(counts.get(str(label), 0))) for label in shown)) + more


def _examples(record: Record) -> str:
    rows = []
    for example in record.examples:
        given, right = example.get("input"), example.get("gold")
        if given is None:  # one text or a pair, and one label or number
            given = [example.get("text", ""), *([example["pair"]] if "pair" in example else [])]
            right = example.get("label", "")
        rows.append((" · ".join(plain(part) for part in _asked(given)), plain(_right(given, right))))
    if record.kind == "mlm":  # where a text's own words are what is right
        return table(("text",), ([text] for text, _ in rows)) if rows else ""
    right_of = {"classify": "label", "regress": "number", "tag": "tags", "attached": "label"}
    return table(("text", right_of.get(record.kind, "answer")), rows) if rows else ""


def _asked(given: Any) -> list[Any]:
    """The texts that an input of any kind is made of."""
    if isinstance(given, Mapping):
        asked = [given[key] for key in ("question", "context", "text") if given.get(key)] or [given.get("tokens") or ""]
        return [" ".join(part) if isinstance(part, list) else part for part in (*asked, *given.get("choices", ()))]
    return given if isinstance(given, list) else [given]


def _right(given: Any, right: Any) -> Any:
    """What is right for an input of any kind, in words."""
    if isinstance(right, Mapping):
        return right["answers"][0]["text"] if right.get("answers") else "no answer"
    if isinstance(right, list):
        return ", ".join(str(_right(given, each)) for each in right) or "none"
    if isinstance(right, float):
        return f"{right:.6g}"
    return given["choices"][right] if isinstance(given, Mapping) and "choices" in given else right


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
        beside = [score(found.get(name)) for found in record.baselines.values()]
        rows.append([plain(name), score(value), interval(record, part, name), *beside])
    head = ("metric", "this task", "95 % interval", *(plain(names.get(name, name)) for name in record.baselines))
    size = record.data.get(part)
    on = f"On the {number(size)} rows of the {part} part" if isinstance(size, int) else f"On the {part} part"
    blocks = [f"{on}:", table(head, rows)]
    if part == "test" and (others := record.metrics.get("validation")):
        spans = {name: interval(record, "validation", name) for name in others}
        shown = (
            f"{plain(name)} {score(others[name])}" + (f" ({span})" if span else "") for name, span in spans.items()
        )
        blocks.append(f"On the validation part: {', '.join(shown)}.")
    if _form(record) == "classify" and len(record.labels) == 2 and "f1" in scores:
        blocks.append(f"f1, precision and recall are those of {plain(record.labels[1])}.")
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
            lines.append(f"- cut to {record.max_length} tokens: {number(data['truncated'])} texts")
        left_out = data.get("left_out") or {}
        why = left_out if isinstance(left_out, dict) else {"": left_out}
        lines += [f"- left out: {number(count)} rows {plain(what)}".rstrip() for what, count in why.items() if count]
    shown = {**record.settings, "seed": record.seed, "pooling": record.pooling, "max_length": record.max_length}
    lines += [f"- {plain(key)}: {plain(value)}" for key, value in shown.items() if value not in ("", None)]
    lines += [f"- {plain(key)} {plain(value)}" for key, value in record.versions.items()]
    return "\n".join(lines)


def _loading(record: Record) -> str:
    start = ["import adaptree as at", ""]
    if record.kind == "attached":
        return block("python", [*start, 'tuned = at.attach(model, ".")  # this folder; the same Hugging Face model'])
    one, asked = GIVEN.get("pair" if record.columns.get("pair") else record.kind, ('"a text"', '"a text"'))
    base = quoted(str(record.base.get("name", "")))
    python = [
        *start,
        f"base = at.load_base({base})",
        f"task = at.Store()[{quoted(record.reference)}]",
        f"base.bind(task).predict([{one}])",
    ]
    return block("python", python) + "\n\n" + block("sh", [f"adaptree predict {record.reference} {asked}"])


def _citation(record: Record) -> str:
    entries = [_HOULSBY]
    if (name := record.method.partition("(")[0].partition(":")[0]) in CITATIONS:
        entries.append(CITATIONS[name])
    return block("bibtex", entries)

"""Imports flow one way, and neither `import adaptree` nor `adaptree --help` loads what is heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import adaptree

ROOT = Path(adaptree.__file__).parent

# From the bottom up: a module imports from groups above its own line in this table, or from its own package; never
# from below, and never from a neighbour on its line.
ORDER = [
    ("errors", "core", "architectures", "cache", "plots", "drawing"),  # nothing of ours
    ("sites", "models", "fingerprint", "metrics"),  # where weights go; which model, and how it is known and scored
    ("methods", "data", "baselines"),  # ways of tuning; a file's rows, and what is reached without a model
    ("card", "scoring"),  # how a task writes about itself; what kinds beyond labels and numbers are scored by
    ("task",),  # a task as data
    ("compose",),  # several tasks in one model
    ("host", "kinds"),  # what runs a plan in a model, and what stands on top of it
    ("passes",),  # rows of several plans in one pass
    ("several",),  # compositions with several answers
    ("tuned", "base", "insight"),  # a task on any model; the frozen base that many tasks share; what its answers tell
    ("training",),
    ("store",),
    ("opening",),  # bases and stored tasks, as they are asked for
    ("api",),  # what the commands call
    ("joint", "suggest"),  # several tasks trained at once; which stored ones help a new one
    ("demo", "compare", "sklearn"),  # a walk through the api, on data of its own; estimators over it
    ("composing", "explain", "rebase"),  # tasks made of tasks, a look into them, and tasks on another base
    ("experiments",),  # the papers' tables, made of comparisons
    ("cli",),
    ("__main__",),
]
RANK = {name: rank for rank, group in enumerate(ORDER) for name in group}

# A card is written for a record, which it has to name, and a record's module writes the card: the one name that a type
# check looks up in the other direction.
FOR_TYPES_ONLY = {("card", "task")}


def part(path: Path) -> str:
    """The name of the room that a file belongs to: its package or its module, directly under adaptree."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Every room of ours that a file imports, in a function too, and whether only for its types."""
    for node, typing in walk(tree, False):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written out in full"
            whole = node.module or ""
            names = [f"{whole}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for words in (name.split(".") for name in names):
            if words[0] == "adaptree" and len(words) > 1 and words[1] in ROOMS:
                yield words[1], typing


def walk(node: ast.AST, typing: bool) -> Iterator[tuple[ast.AST, bool]]:
    yield node, typing
    for child in ast.iter_child_nodes(node):
        inside = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and child in node.body
        yield from walk(child, typing or inside)


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
ROOMS = {part(path) for path in FILES}


def test_every_room_has_its_place_in_the_order() -> None:
    assert set(RANK) == ROOMS
    assert sum(len(group) for group in ORDER) == len(RANK)


def test_imports_flow_one_way() -> None:
    wrong = []
    for path in FILES:
        importer = part(path)
        for other, typing in imported(ast.parse(path.read_text())):
            allowed = other == importer or RANK[other] < RANK[importer]
            if not allowed and not (typing and (importer, other) in FOR_TYPES_ONLY):
                wrong.append(f"{path.relative_to(ROOT)} imports {other}")
    assert wrong == []


def test_the_reader_of_imports_sees_them_all() -> None:
    code = (
        "import adaptree.store.local\nfrom adaptree import api, Houlsby\nfrom adaptree.data.batch import group\n"
        "if TYPE_CHECKING:\n    from adaptree.task import Task\nelse:\n    import adaptree.card\n"
        "def f():\n    from adaptree.base import Base\n"
    )
    expected = [("store", False), ("api", False), ("data", False), ("task", True), ("card", False), ("base", False)]
    assert list(imported(ast.parse(code))) == expected


def test_the_maths_imports_nothing_of_ours() -> None:
    inside = [name for path in (ROOT / "core").glob("*.py") for name, _ in imported(ast.parse(path.read_text()))]
    assert set(inside) <= {"core"}


HEAVY = ("torch", "transformers", "sklearn", "pyarrow", "matplotlib", "scipy")


@pytest.mark.parametrize(
    "what",
    [
        "import adaptree",
        "import adaptree; adaptree.AdaptreeError; adaptree.Houlsby; adaptree.Architecture; dir(adaptree)",
        "from adaptree.cli import main; assert main(['--help']) == 0",
        "from adaptree.cli import main; assert main(['train', '--help']) == 0",
        "from adaptree.cli import main; assert main(['no-such-command']) == 2",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(what: str) -> None:
    code = f"import sys\n{what}\nsys.stderr.write('LOADED:' + ' '.join(n for n in {HEAVY!r} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.rpartition("LOADED:")[2] == ""
    assert "LOADED:" in done.stderr

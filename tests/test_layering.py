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

# From the bottom up: a module imports from its own room and from rooms above its own line in this list; never from a
# room below. An import for type annotations alone may go either way.
ORDER = [
    "errors",  # nothing of ours
    "client",  # asks a server
    "core",  # the maths
    "methods",  # ways of tuning
    "data",  # a file's rows, split, encoded and batched
    "kinds",  # kinds of task: how rows become examples, the head, loss, predictions and metrics
    "reports",  # cards, figures and pages, callbacks
    "tasks",  # a task as data: its record, its folder, the store
    "compose",  # the algebra of compositions
    "models",  # the frozen base, the hooks that run a plan, tasks bound to it
    "training",  # one pipeline from data to a task
    "hub",  # tasks that travel: verified, exported, imported, found
    "analysis",  # comparisons, experiments, explanations, suggestions, cleaning
    "serve",  # many tasks in one process, jobs that train more
    "api",  # what commands, notebooks and services call
    "sklearn",  # estimators
    "cli",
    "__main__",
]
RANK = {name: rank for rank, name in enumerate(ORDER)}


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
    assert set(ORDER) == ROOMS
    assert sum((ROOT / room).is_dir() for room in ROOMS) <= 14


def test_imports_flow_one_way() -> None:
    wrong = []
    for path in FILES:
        importer = part(path)
        for other, typing in imported(ast.parse(path.read_text())):
            allowed = other == importer or RANK[other] < RANK[importer]
            if not allowed and not typing:
                wrong.append(f"{path.relative_to(ROOT)} imports {other}")
    assert wrong == []


def test_the_reader_of_imports_sees_them_all() -> None:
    code = (
        "import adaptree.tasks.store\nfrom adaptree import api, Houlsby\nfrom adaptree.data.batch import group\n"
        "if TYPE_CHECKING:\n    from adaptree.tasks.task import Task\nelse:\n    import adaptree.reports.card\n"
        "def f():\n    from adaptree.models.base import Base\n"
    )
    expected = [
        ("tasks", False),
        ("api", False),
        ("data", False),
        ("tasks", True),
        ("reports", False),
        ("models", False),
    ]
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
        "import adaptree; adaptree.Lora(rank=2); adaptree.ParallelAdapter; adaptree.__all__",
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

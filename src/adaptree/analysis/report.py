"""One page over a folder of results: every experiment's table, figures, command and versions, and what papers say.

DIR/report.html opens offline, with its figures inside; DIR/report.md shows the figures where they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from urllib.parse import quote

from adaptree.analysis.compare.files import read, writing
from adaptree.analysis.experiments import ledger
from adaptree.analysis.experiments.claims import SAME, Claim, claims
from adaptree.analysis.experiments.setup import MADE_BY
from adaptree.errors import UsageError
from adaptree.reports import html_page
from adaptree.reports.markdown import code, plain, table
from adaptree.tasks.record import installed

TABLE = "table.md"
TITLE, PAPERS = "Results", "Against the papers"
EXPERIMENT = re.compile(r"\badaptree experiment (?P<name>[\w-]+)")
VERDICTS = {True: "agrees", False: "does not", None: "too little yet"}


@dataclass(frozen=True)
class Experiment:
    """A folder of results with its page."""

    folder: Path
    page: str
    """Its table.md."""

    @property
    def title(self) -> str:
        first = self.page.partition("\n")[0]
        return first.removeprefix("# ") if first.startswith("# ") else self.folder.name

    @property
    def body(self) -> str:
        """The page without its title and command."""
        page = self.page.partition("\n")[2] if self.page.startswith("# ") else self.page
        return MADE_BY.sub("", page).strip()

    @property
    def command(self) -> str:
        found = MADE_BY.search(self.page)
        return found["command"] if found else ""

    @property
    def name(self) -> str:
        """The experiment's name, by its command, or else the folder's."""
        found = EXPERIMENT.search(self.command)
        return found["name"] if found else self.folder.name

    @property
    def versions(self) -> list[str]:
        """The versions that cells were found with, one text for each combination; empty where none are recorded."""
        found = [cell.get("versions") for cell in ledger.read(self.folder)]
        found.append(read(self.folder / "results.json").get("versions"))
        return list(dict.fromkeys(_listed(each) for each in found if each))

    @property
    def more_pictures(self) -> list[str]:
        """The PNG files that the page does not show."""
        shown = {path for _, path in html_page.IMAGE.findall(self.page)}
        return [path.name for path in sorted(self.folder.glob("*.png")) if path.name not in shown]


@dataclass(frozen=True)
class Report:
    """The experiments of a results folder, and the pages over them."""

    results: Path
    experiments: Sequence[Experiment]

    @cached_property
    def claims(self) -> list[Claim]:
        """What the papers say, for the experiments that have cells to set beside it."""
        return [claim for each in self.experiments for claim in claims(each.name, each.folder)]

    def rows(self) -> list[dict[str, str]]:
        """Return the papers' statements with their numbers, ours, and the verdict."""
        return [
            {"what": c.text, "published": c.published, "here": c.here, "verdict": VERDICTS[c.agrees]}
            for c in self.claims
        ]

    def markdown(self) -> str:
        """Return the report as Markdown, in which nothing from a name or a page can be HTML."""
        sections = [_inert(self._section(each), partial(self._relative, each)) for each in self.experiments]
        return "\n\n".join([f"# {TITLE}", self._opening(), *sections]) + "\n"

    def html(self) -> str:
        """Return the report as one page of HTML, with its pictures inside."""
        titles = [PAPERS, *(each.title for each in self.experiments)]
        links = (f'<li><a href="#{html_page.anchor(title)}">{html_page.inline(title)}</a></li>' for title in titles)
        sections = [html_page.to_html(self._section(each), partial(self._inside, each)) for each in self.experiments]
        opening = html_page.to_html(self._opening(), lambda path: None)
        return html_page.page(TITLE, "\n".join([f"<h1>{TITLE}</h1>", f"<ul>{''.join(links)}</ul>", opening, *sections]))

    def _opening(self) -> str:
        """Return what stands above the experiments: how the page was made, and what the papers say."""
        made = f"This page was made by {code(f'adaptree report {self.results}')} with {_listed(installed())}."
        if not self.claims:
            said = ["No experiment that has published numbers is finished here."]
        else:
            body = [[plain(cell) for cell in row.values()] for row in self.rows()]
            said = [
                "In points, computed from the cells of each experiment. A mean over tasks agrees if the published one "
                f"lies in our 95 % interval over tasks; single scores agree within {SAME:g} points. Our bases are "
                "smaller than the papers', and our training rows fewer.",
                table(("what", "published", "here", "verdict"), body),
            ]
        return "\n\n".join([made, f"## {PAPERS}", *said])

    def _section(self, each: Experiment) -> str:
        """Return an experiment's page below its title, with its command and versions, as Markdown."""
        body = re.sub(r"^#", "##", each.body, flags=re.MULTILINE)
        pictures = [f"![{name}]({name})" for name in each.more_pictures]
        where = f"Folder: {code(each.folder.relative_to(self.results).as_posix())}."
        made = [f"Made by {code(each.command)}."] if each.command else []
        measured = [f"Measured with {plain('; '.join(each.versions), 1000)}."] if each.versions else []
        return "\n\n".join([f"## {each.title}", body, *pictures, " ".join([where, *made, *measured])])

    def _picture(self, each: Experiment, path: str) -> Path | None:
        """Return the file of a page's picture; None unless it is one, below the results."""
        whole = each.folder / path
        inside = whole.resolve().is_relative_to(self.results.resolve())
        return whole if inside and whole.suffix in html_page.TYPES and whole.is_file() else None

    def _inside(self, each: Experiment, path: str) -> str | None:
        """Return a picture as a data URI."""
        found = self._picture(each, path)
        return html_page.data_uri(found) if found else None

    def _relative(self, each: Experiment, path: str) -> str | None:
        """Return the path from the report to a picture, as a link spells it."""
        found = self._picture(each, path)
        return quote(found.relative_to(self.results).as_posix()) if found else None


def _inert(markdown: str, picture: Callable[[str], str | None]) -> str:
    """Return Markdown without HTML and links, and with pictures only where `picture` says that they are."""
    lines = []
    for line in markdown.replace("<", "&lt;").splitlines():
        found = html_page.IMAGE.fullmatch(line.strip())
        if found and (source := picture(found[2])):
            lines.append(f"![{found[1]}]({source})")
        elif not found:
            lines.append(re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", line))
    return "\n".join(lines)


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def experiments_in(results: Path) -> Iterator[Experiment]:
    """Yield the experiments of a folder: those below it with a table.md; a folder that has one is not searched."""
    for folder in sorted(path for path in results.iterdir() if path.is_dir()):
        if (folder / TABLE).is_file():
            yield Experiment(folder, (folder / TABLE).read_text(encoding="utf-8"))
        else:
            yield from experiments_in(folder)


def report(results: str | Path) -> Report:
    """Write DIR/report.html and DIR/report.md over all experiments of a results folder; return the report."""
    results = Path(results)
    if not results.is_dir():
        raise UsageError(f"there is no folder '{results}'.", hint="Give a folder in which experiments have theirs.")
    found = Report(results, list(experiments_in(results)))
    if not found.experiments:
        raise UsageError(
            f"no folder in '{results}' has a {TABLE}.", hint="adaptree experiment NAME --out DIR/NAME makes one."
        )
    for path, text in ((results / "report.md", found.markdown()), (results / "report.html", found.html())):
        with writing(path):
            path.write_text(text, encoding="utf-8")
    return found

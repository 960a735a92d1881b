"""The paper's 17 further classification tasks: full fine-tuning, the top layers, adapters, and simple models.

Four of the datasets are partial or labelled anew (customer complaints, news aggregator, economic news relevance, US
economic performance), so that their scores cannot be set beside the published ones.
"""

from __future__ import annotations

from adaptree.analysis.experiments import simple, sweep
from adaptree.analysis.experiments.corpora import Corpus, one_file
from adaptree.analysis.experiments.setup import Setup, write_page
from adaptree.analysis.experiments.sweep import Recipe, Row, Sweep, Task
from adaptree.reports.markdown import table

PUBLISHED = {
    "crowdflower_progressive_stance": (54.3, 63.8, 61.5, 60.6),
    "crowdflower_corporate_messaging": (91.9, 92.5, 92.4, 92.9),
    "sms_spam": (98.5, 99.3, 99.3, 95.1),
    "crowdflower_airline": (84.5, 83.6, 84.0, 84.5),
    "crowdflower_progressive_opinion": (70.6, 71.6, 75.9, 71.7),
    "news_aggregator": (95.2, 96.3, 96.5, 96.2),
    "crowdflower_disasters": (84.9, 85.3, 85.3, 84.1),
    "crowdflower_global_warming": (82.7, 84.2, 81.9, 82.7),
    "crowdflower_primary_emotions": (33.5, 36.9, 38.2, 33.9),
    "crowdflower_emotion": (36.3, 38.4, 37.6, 38.7),
    "crowdflower_political_bias": (76.8, 75.2, 76.5, 75.9),
    "crowdflower_political_audience": (81.0, 80.9, 80.7, 79.0),
    "crowdflower_political_message": (43.8, 38.9, 44.9, 44.1),
    "crowdflower_us_economic_performance": (75.6, 75.3, 76.5, 77.3),
    "crowdflower_economic_news_relevance": (81.1, 82.1, 78.9, 82.5),
    "customer_complaints": (54.5, 55.9, 56.4, 55.4),
    "20newsgroups": (91.1, 92.8, 92.8, 91.7),
}
"""Houlsby et al. 2019, table 2, BERT-base: no BERT (AutoML), full fine-tuning, the top layers, adapters."""

SWEEP = Sweep(
    tasks=tuple(
        Task(Corpus(name, test="test") if name == "20newsgroups" else one_file(name)) for name in PUBLISHED
    ),
    rows=(
        Row("simple models", simple.NAMES),
        Row("full", ("full",)),
        Row("top n", ("top:1", "top:3", "top:5")),
        Row("adapters 2-64", ("houlsby:2", "houlsby:8", "houlsby:64")),
    ),
    recipe=Recipe(rows=2000),
)  # fmt: skip


def run(setup: Setup) -> str:
    """Run the cells that are missing; return the page."""
    bases = SWEEP.by_base(setup)
    recipe = sweep.PAPER if setup.paper else SWEEP.recipe
    lines = [
        "# Seventeen further classification tasks",
        "",
        f"{sweep.named([*bases])} At most {recipe.rows or 'all'} training rows, {recipe.validation} to validate, at "
        "most 1,000 to test (a third of a small dataset); test accuracy in points, mean ± standard deviation over "
        "seeds (their number). The learning rate of full fine-tuning, the number of layers, the adapters' size and the "
        "simple model are those that were best on validation: three tries each, eleven simple models. Trainings have "
        f"{recipe.steps or 'as many'} batches of {recipe.batch_size} or a little more, to whole epochs. Intervals of "
        "95 % over tasks.",
        "",
    ]
    for base, found in bases.items():
        lines += [*([f"## {base}", ""] if len(bases) > 1 else []), *_by_task(found), ""]
    lines += ["## What validation chose", ""]
    for base, found in bases.items():
        lines += [*([f"### {base}", ""] if len(bases) > 1 else []), *sweep.choices_table(found, SWEEP.tasks), ""]
    return write_page(lines, setup.out, setup.command)


def _by_task(found: dict[str, dict[str, sweep.Chosen]]) -> list[str]:
    """Return a table with a line for each task, as the paper has it, with the published accuracies beside ours."""
    labels = list(found)
    body = []
    done = [task.name for task in SWEEP.tasks if all(task.name in row for row in found.values())]
    for task in SWEEP.tasks:
        scores = [sweep.score_text(row[task.name]) if task.name in row else "" for row in found.values()]
        body.append([task.name, *scores, *(f"{value}" for value in PUBLISHED[task.name])])
    if done:
        means = [[found[label][name].mean for name in done] for label in labels]
        published = [sum(PUBLISHED[name][i] for name in done) / len(done) for i in range(4)]
        body.append(
            [f"mean of {len(done)}", *map(sweep.with_interval, means), *(f"{value:.1f}" for value in published)]
        )
        whole = [found["full"][name].mean for name in done]
        less = [sweep.with_interval([w - s for w, s in zip(whole, own, strict=True)]) for own in means]
        body.append(["less than full", *less, *(f"{published[1] - value:.1f}" for value in published)])
        body.append(
            ["total parameters", *(_total(found[label], done) for label in labels), "-", "17×", "9.9×", "1.19×"]
        )
        body.append(
            ["trained a task", *(_share(found[label], done) for label in labels), "-", "100 %", "52.9 %", "1.14 %"]
        )
    head = [
        "task", *labels, "no BERT (published)", "full (published)", "top n (published)", "adapters (published)",
    ]  # fmt: skip
    return [table(head, body)]


def _total(row: dict[str, sweep.Chosen], names: list[str]) -> str:
    chosen = {name: row[name] for name in names}
    return f"{sweep.total_parameters(chosen):.2f}×" if any(choice.share for choice in chosen.values()) else "-"


def _share(row: dict[str, sweep.Chosen], names: list[str]) -> str:
    share = sum(row[name].share for name in names) / len(names)
    return f"{100 * share:.3g} %" if share else "-"

"""The page of runs: one HTML file that needs nothing from outside and runs no script.

What it says is found in the modules beside this one, a section each; templates/report.html draws it
with the style sheet of `konsil data preview`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from konsil.errors import RunError
from konsil.evaluation.comparison import Comparison, compare
from konsil.files import write_text
from konsil.report.analysis import draw_selector
from konsil.report.charts import Chart, Picture, left_by_others
from konsil.report.costs import cost_tables
from konsil.report.curves import draw_lambdas, draw_progress, lambdas_of
from konsil.report.extremes import example_pictures
from konsil.report.flatness import Minimum, draw_flatness, flatness_table, read_minima
from konsil.report.gains import Answer, Known, answer
from konsil.report.page_tables import Named, compared_tables, main_tables
from konsil.report.runs import Runs
from konsil.report.selectors import Selected, selected_in
from konsil.report.series import metric_name
from konsil.report.served import Served
from konsil.report.settings import Settings, settings_of
from konsil.report.show import selector_lines, unfinished
from konsil.report.style import look, method_colours
from konsil.report.tables import Plain, plain
from konsil.report.unseen import asked_by_site, asked_table, draw_gamma

# Figures that other commands leave in a run, by the beginnings of their names.
LEFT = {
    "selector": "What the selector does with test images, and a map of what it sees",
    "cross": "Every hospital's own model on every hospital's test images",
    "surface": "The loss around a model",
    "plane": "The loss in the plane through three models",
    "interpolate": "The loss between two models",
    "levels": "What training further at a hospital gains there, and loses elsewhere",
}
ROUTES = {"routes": "Whom the super model asks, and images that go to the global model"}
TYPICAL = {"predictions": "A typical test image of every hospital, and what the models say"}
MOST_BYTES = 5_000_000  # of the page
MOST_PICTURES = 3_500_000  # of its pictures together


@dataclass(frozen=True)
class Unseen:
    """What the models of one `konsil unseen` are worth at hospitals that they have not seen."""

    tables: Sequence[Named]
    asked: Sequence[Plain]
    gammas: Sequence[Chart]


@dataclass
class Page:
    """Everything that stands on the page; the template only lays it out."""

    runs: Runs
    images: bool = True  # without them no picture of a patient is on it
    lacking: list[str] = field(default_factory=list)  # what is not on it, and why

    @cached_property
    def found(self) -> Comparison | None:
        """Everybody's scores on the same images; None: only means are known."""
        return compare(self.runs.told, self.runs.task.main_metric) if self.runs.told else None

    @cached_property
    def known(self) -> Known:
        """The same, and the means of hospitals that tell no more."""
        sites, metric = self.runs.plan.sites, self.runs.task.main_metric
        return Known.with_means(sites, self.found, self.runs.rows, metric)

    @cached_property
    def answer(self) -> Answer | None:
        """Who joins against who stays alone, in words."""
        return answer(self.known)

    @cached_property
    def served(self) -> Served:
        """Who is in the first picture, and where."""
        return Served(self.known)

    @property
    def metric(self) -> str:
        """What models are judged by, as people write it."""
        return metric_name(self.runs.task.main_metric)

    @cached_property
    def tables(self) -> list[Named]:
        """All of them; those of single metrics are folded away but the first."""
        return list(main_tables(self.runs, self.found))

    @cached_property
    def selector_lines(self) -> list[str]:
        """A line or two a super model."""
        return selector_lines(self.runs.rows)

    @cached_property
    def selected(self) -> list[Selected]:
        """Of every super model whose single images' scores are there."""
        scores = [run.scores for run in self.runs.runs if run.scores]
        return list(selected_in(scores, list(self.runs.plan.sites)))

    @cached_property
    def unfinished(self) -> list[str]:
        """A line for every job that is not done."""
        return [
            line
            for run in self.runs.runs
            for line in unfinished(run.plan, run.folder, run.rows, run.plan.hash)
        ]

    @cached_property
    def colours(self) -> Mapping[str, str]:
        """Of every method; who goes by its own name has its own colour."""
        methods = [method for method, _ in self.runs.methods()]
        return method_colours(sorted(methods, key=lambda method: method.title != method.name))

    @cached_property
    def curves(self) -> list[Chart]:
        """Validation scores of all methods against rounds, and lambda' where sites find it."""
        results, sites = self.runs.results, self.runs.plan.sites
        charts = []
        with look():
            if results:
                drawn = draw_progress(results, self.runs.task.main_metric, self.colours)
                charts.append(Chart("progress", drawn, PROGRESS))
            if lambdas := lambdas_of(results):
                charts.append(Chart("lambdas", draw_lambdas(lambdas, sites), LAMBDAS))
        return charts

    @cached_property
    def minima(self) -> list[Minimum]:
        """How sharp they are, where somebody has looked."""
        return read_minima([run.folder for run in self.runs.runs])

    @cached_property
    def flatness(self) -> tuple[Plain, Chart] | None:
        """The same as a table and a chart."""
        if not self.minima:
            return None
        table = flatness_table(self.minima)
        with look():
            return table, Chart("flatness", draw_flatness(self.minima, self.colours), table.caption)

    @cached_property
    def unseen(self) -> list[Unseen]:
        """Of every folder that `konsil unseen` has left."""
        metric = self.runs.task.main_metric
        return [_unseen(run.folder, run.scores, metric) for run in self.runs.unseen if run.scores]

    @cached_property
    def examples(self) -> list[Picture]:
        """Best, typical and worst answers at every hospital."""
        if not self.images or self.answer is None:
            return []
        candidates = self.known.candidates
        shown = [candidates[one.place] for one in self.served.shown]
        found, why = example_pictures(self.runs, candidates[self.answer.joined.place], shown)
        self.lacking += [f"Example images: {reason}." for reason in why]
        return found

    @cached_property
    def others(self) -> list[Picture]:
        """What other commands have drawn of these runs."""
        found = left_by_others([run.folder for run in self.runs.every], LEFT)
        if self.images:
            first = list(dict.fromkeys(run.folder for _, run in self.runs.methods()))
            kinds = ROUTES | ({} if self.examples else TYPICAL)
            found += left_by_others(first, kinds, of_patients=True)
        return found

    @property
    def shows_patients(self) -> bool:
        """Whether an image of a patient is on the page."""
        return any(picture.of_patients for picture, _ in self.pictures)

    @cached_property
    def pictures(self) -> list[tuple[Picture, str]]:
        """What of examples and others has room on the page, with its address."""
        room, placed = MOST_PICTURES, list[tuple[Picture, str]]()
        for picture in (*self.examples, *self.others):
            address = picture.address
            if len(address) <= room:
                placed.append((picture, address))
                room -= len(address)
            else:
                self.lacking.append(f"{picture.caption}: no room; konsil report --figures has it.")
        return placed

    @cached_property
    def costs(self) -> list[Plain]:
        """Bytes of a round by method, and seconds of each job."""
        return list(cost_tables(self.runs))

    @cached_property
    def settings(self) -> Settings:
        """What is equal in all runs, and what differs."""
        return settings_of(self.runs)

    def silences(self) -> list[str]:
        """What cannot be said, and why."""
        said = list(self.lacking)
        if self.found is None and self.runs.runs:
            said.append(NO_SCORES)
        elif self.known.silent:
            who = ", ".join(self.known.silent)
            said.append(
                f"Of {who} only means are known (a policy that says scores: means): no interval, "
                "no test, no row of single images there. Its means are in the first picture and in "
                "the tables of each metric; client average and all images of the tables with "
                "intervals are those of the other hospitals."
            )
        if self.runs.runs and not self.runs.results:
            said.append("Curves: the jobs' result.json are not in these folders.")
        if not self.flatness:
            said.append("How flat the minima are: konsil analyze sharpness leaves it in a run.")
        if not self.runs.unseen:
            said.append("Hospitals that took no part: konsil unseen, then report --unseen FOLDER.")
        return said

    def charts(self) -> Iterator[Chart]:
        """Every chart, those too that the page writes as tables and marks."""
        if self.known.sites:
            with look():
                yield Chart("served", self.served.draw(self.metric), SERVED)
        yield from self.curves
        for one in self.selected:
            if one.said is not None:
                with look():
                    figure = draw_selector(one.said, None, None, one.method)
                yield Chart(f"routing-{one.method}", figure, one.asked.title)
        yield from [self.flatness[1]] if self.flatness else []
        for unseen in self.unseen:
            yield from unseen.gammas


SERVED = "What each hospital gets: alone, from one model for all, by joining, from pooled images"
PROGRESS = (
    "Validation scores of all hospitals' images together; dashed: pooled images, thick: models of "
    "a hospital's own, thin: one model for all. Checkpoints are chosen by these, so the best of "
    "them are a little too good; the tables are of test images."
)
LAMBDAS = "How far sites keep to themselves"
NO_SCORES = (
    "Intervals, tests, and what selectors do with single images: no scores.parquet is in these "
    "folders. Either the hospitals' policies let only means out, or no job is done yet, or the "
    "file was not copied."
)


def _unseen(folder: Path, scores: Path, metric: str) -> Unseen:
    found, by_method = compare([folder], metric), asked_by_site(scores, metric)
    asked = [plain(asked_table(method, own, metric)) for method, own in by_method.items()]
    with look():
        gammas = [
            Chart(f"gamma-{method}", draw_gamma(method, own, metric), GAMMA.format(method))
            for method, own in by_method.items()
        ]
    return Unseen(list(compared_tables(found, metric)), asked, gammas)


GAMMA = (
    "{}: the score at the hospital that was left out against Algorithm 2's gamma; the ring is the "
    "best on these very images, which nobody can know"
)


def write_page(runs: Runs, out: Path, images: bool = True) -> None:
    """The page of one run, or of several on the same test images."""
    text = page(runs, images)
    if len(text.encode()) > MOST_BYTES:
        raise RunError(
            f"{out}: the page would have {len(text) / 1e6:.0f} MB; leave pictures of images out: "
            "--no-images"
        )
    write_text(out, text)


def page(runs: Runs, images: bool = True) -> str:
    """The text of the page; without `images` no picture of a patient is on it."""
    return render(Page(runs, images))


def render(page: Page) -> str:
    """The text of the page, laid out by its template."""
    return _environment().get_template("report.html").render(page=page, plan=page.runs.plan)


def write_figures(runs: Runs, folder: Path, images: bool = True) -> list[Path]:
    """Every figure of the page as PNG and SVG."""
    one = Page(runs, images)
    drawn: list[Chart | Picture] = [*one.charts(), *one.examples, *one.others]
    return [path for figure in drawn for path in figure.write(folder)]


def _environment() -> Environment:
    return Environment(
        loader=ChoiceLoader(
            [PackageLoader("konsil.report"), PackageLoader("konsil.prepare.preview")]
        ),
        autoescape=True,  # names of sites and methods are anybody's
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

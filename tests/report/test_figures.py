import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.artist import Artist
from PIL import Image

from konsil.data import test_images as images_of_test
from konsil.evaluation.results import Series
from konsil.report.answers import Panel, ask_all, at_quantiles, median_scores
from konsil.report.curves import LAMBDA, SELECTOR, curves_of, lambdas_of
from konsil.report.figures import draw_figures
from konsil.report.series import Estimate
from konsil.report.sites import difference, draw_sites, gains_over, reference_of
from konsil.report.style import MOST_BYTES, look, method_colours, new_figure, write_figure
from konsil.tasks import make_task

torch.set_num_threads(1)
PREDICTIONS = {"predictions", "predictions-north", "predictions-south"}
NAMES = {"curves", "lambdas", "sites", "routes", *PREDICTIONS}


def colours_of(path: Path) -> int:
    return len(Image.open(path).convert("RGB").getcolors(maxcolors=1 << 24))


@pytest.mark.parametrize(
    ("task", "seeds", "channels"),
    [("segmentation", (0, 1), 3), ("segmentation", (0,), 1), ("classification", (0,), 3)],
)
def test_every_figure_is_written_and_shows_something(make_run, task, seeds, channels):
    folder, plan = make_run(task, seeds, channels)
    paths = draw_figures(folder, plan)
    assert {path.stem for path in paths} == NAMES
    both = {f"{path.stem}.{kind}" for path in paths for kind in ("png", "svg")}
    assert {path.name for path in (folder / "figures").iterdir()} == both
    for path in paths:
        assert 5_000 < path.stat().st_size <= MOST_BYTES
        assert Image.open(path).size[0] >= 900
        assert colours_of(path) > 20


def test_unfinished_jobs_are_left_out(make_run):
    folder, plan = make_run("classification")
    (folder / "fedsoup" / "seed0" / "result.json").unlink()
    shutil.rmtree(folder / "fedsoup" / "seed0" / "checkpoints")
    assert len(draw_figures(folder, plan)) == len(NAMES)


def test_a_run_without_a_finished_job_has_no_figures(make_run):
    folder, plan = make_run()
    for result in folder.glob("*/seed0/result.json"):
        result.unlink()
    assert draw_figures(folder, plan) == []
    assert not (folder / "figures").exists()


def test_every_role_answers_and_the_super_model_names_whom_it_asked(make_run):
    folder, plan = make_run()
    panels = [Panel(folder, plan, job) for job in plan.jobs]
    images = images_of_test(plan.data_folder, "north")
    answered = ask_all(panels, "north", images.batch(torch.tensor([0, 2]))[0])
    assert [one.series.name for one in answered] == [
        "centralized",
        "local",
        "fedavg global",
        "fedsm global",
        "fedsm personal",
        "fedsm super",
        "fedsoup global",
        "fedsoup personal",
    ]
    asked = {one.series.role: one.asked for one in answered if one.asked is not None}
    assert set(asked) == {"super"}
    assert len(asked["super"]) == 2
    assert set(asked["super"]) <= {"north", "south"}  # gamma = 0 always asks a specialist
    # all models have the same weights here, so that every answer must be the same
    for one in answered:
        assert torch.allclose(one.logits, answered[0].logits, atol=1e-5)


@pytest.mark.parametrize("task_name", ["segmentation", "classification"])
def test_scores_of_images_are_those_of_the_task(make_run, task_name):
    folder, plan = make_run(task_name)
    task = make_task(plan.experiment.task, list(plan.labels))
    panels = [Panel(folder, plan, plan.jobs[0])]
    images = images_of_test(plan.data_folder, "south")
    scores = median_scores(panels, "south", images, task)
    assert scores.shape == (len(images),)
    (answered,) = ask_all(panels, "south", images.batch(torch.tensor([1]))[0])
    if task_name == "segmentation":
        expected = task.columns(answered.logits, images.targets[1:2])["dice"][0]
    else:
        expected = torch.softmax(answered.logits[0].double(), 0)[images.targets[1]]
    assert scores[1] == pytest.approx(float(expected), abs=1e-5)


def test_the_typical_image_is_the_median_one():
    scores = np.array([0.9, 0.1, 0.5, 0.8, 0.2])
    assert at_quantiles(scores, [0.5]) == [2]
    assert at_quantiles(scores, [0.0, 1.0]) == [1, 0]
    assert at_quantiles(scores[:1], [0.1, 0.35, 0.65, 0.9]) == [0]


def test_equal_scores_are_taken_in_the_order_of_the_images():
    assert at_quantiles(np.array([1.0, 1.0, 1.0]), [0.0, 0.5, 1.0]) == [0, 1, 2]


def test_lambdas_have_a_picture_of_their_own(make_run):
    folder, plan = make_run(seeds=(0, 1))
    results = [json.loads((folder / job.name / "result.json").read_text()) for job in plan.jobs]
    found = {1: [0.3, 0.3], 2: [0.6, 0.6]}
    assert lambdas_of(results) == {"fedsm": {"north": found, "south": found}}
    assert not any(series.role == LAMBDA for series in curves_of(results))


def test_curves_collect_all_seeds_of_a_method(make_run):
    folder, plan = make_run(seeds=(0, 1))
    results = [json.loads((folder / job.name / "result.json").read_text()) for job in plan.jobs]
    curves = curves_of(results)
    assert curves[Series("fedavg", "global")] == {
        0: pytest.approx([0.3, 0.31]),
        1: pytest.approx([0.5, 0.51]),
        2: pytest.approx([0.7, 0.71]),
    }
    assert Series("fedsm", SELECTOR) in curves
    assert Series("fedavg", SELECTOR) not in curves


def test_gains_are_differences_to_local_training_seed_by_seed():
    local, fedavg = Series("local", "local"), Series("fedavg", "global")
    lines = {
        fedavg: {"a": Estimate({0: 0.7, 1: 0.8}), "b": Estimate({0: 0.5})},
        local: {"a": Estimate({1: 0.5, 0: 0.6})},
    }
    assert reference_of(lines) == local
    gains = gains_over(lines, local)
    assert set(gains) == {fedavg}
    assert set(gains[fedavg]) == {"a"}  # local has no value at b
    assert gains[fedavg]["a"].by_seed == pytest.approx({0: 0.1, 1: 0.3})


def test_without_common_seeds_a_gain_is_the_difference_of_means():
    assert difference(Estimate({0: 0.7}), Estimate({1: 0.5})).mean == pytest.approx(0.2)


def test_without_local_training_the_gain_is_over_the_first_global_model():
    lines = {Series("fedsm", "super"): {}, Series("fedavg", "global"): {}}
    assert reference_of(lines) == Series("fedavg", "global")
    assert reference_of({Series("fedsm", "super"): {}}) is None


def test_well_known_methods_keep_their_colours(make_run):
    _, plan = make_run()
    colours = method_colours(plan.experiment.methods)
    assert colours["fedavg"] == "#0072B2"
    assert len(set(colours.values())) == len(colours)


class Unpaintable(Artist):
    def draw(self, renderer):
        raise OSError("no space left")


def test_a_figure_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "figures" / "a.png"
    figure = new_figure(2.0)
    figure.add_subplot().plot([0, 1], [0, 1])
    assert write_figure(figure, path) == path
    before, drawn = path.read_bytes(), path.with_suffix(".svg").read_bytes()
    assert drawn.startswith(b"<?xml")
    figure.add_artist(Unpaintable())
    with pytest.raises(OSError, match="no space"):
        write_figure(figure, path)
    assert path.read_bytes() == before
    assert path.with_suffix(".svg").read_bytes() == drawn
    assert {p.name for p in path.parent.iterdir()} == {"a.png", "a.svg"}


def test_the_same_figure_is_the_same_file(tmp_path):
    drawn = []
    for name in ("a.png", "b.png"):
        with look():
            figure = new_figure(2.0)
            figure.add_subplot().plot([0, 1], [0, 1], "o-")
            drawn.append(write_figure(figure, tmp_path / name).with_suffix(".svg").read_bytes())
    assert drawn[0] == drawn[1]


def test_a_picture_that_compresses_badly_stays_below_the_limit(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (360, 360, 3), dtype=np.uint8)
    figure = new_figure(3.6)
    figure.add_subplot().imshow(noise)
    path = write_figure(figure, tmp_path / "noise.png")
    assert path.stat().st_size <= MOST_BYTES
    assert Image.open(path).convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_the_look_changes_nothing_outside():
    import matplotlib

    before = dict(matplotlib.rcParams)
    with look():
        assert matplotlib.rcParams["axes.spines.top"] is False
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("gain", "text"), [(0.025, "+0.025"), (0.05, "+0.05"), (-0.0005, "-0.0005"), (0.0, "0")]
)
def test_a_tick_of_a_gain_says_what_it_stands_for(gain, text):
    lines = {
        Series("local", "local"): {"north": Estimate({0: 0.5})},
        Series("fedavg", "global"): {"north": Estimate({0: 0.6})},
    }
    colours = {"local": "#000000", "fedavg": "#000000"}
    with look():
        gains = draw_sites(lines, ["north"], "dice", colours).axes[1]
    assert gains.xaxis.get_major_formatter()(gain) == text

"""Every rule of whom to ask, on the super models of finished runs: validation beside test.

    python -m benchmarks.routing runs/prostate runs/fundus ...

A family's parameters (gamma, share) are those that validation images choose. Nothing is trained,
and nothing but this table is made of the test images.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean

from konsil.data import Images, test_images, training_data
from konsil.evaluation.routing import calibration, choose_rule, rule_scores, rules_of, table_of
from konsil.federation.plan import Plan
from konsil.federation.runner import read_plan
from konsil.supermodel import SuperModel
from konsil.supermodel.rules import Rule, Threshold, Utility
from konsil.tasks import Task, make_task

FAMILIES = ("fixed", "threshold", "utility", "utility of pairs", "blend", "auto")


def family(rule: Rule) -> str:
    """How the table calls a rule."""
    return f"{rule.name} of pairs" if isinstance(rule, Utility) and rule.passes > 1 else rule.name


def sums_of(
    model: SuperModel, rules: list[Rule], task: Task, images: dict[str, Images]
) -> dict[str, list[float]]:
    """By site the sum of scores of every rule."""
    return {site: rule_scores(model, rules, own, task) for site, own in images.items()}


def compare(folder: Path) -> None:
    """Print a line a family for every super model of a run."""
    plan = Plan.from_json(read_plan(folder))
    task = make_task(plan.experiment.task, list(plan.labels))
    val = {site: training_data(plan.data_folder, (site,)).val for site in plan.sites}
    test = {site: test_images(plan.data_folder, site) for site in plan.sites}
    for path in sorted(folder.glob("*/seed*/supermodel/model.json")):
        model = SuperModel.load(path.parent)
        counts = {site: len(images) for site, images in val.items()}
        scores = {
            site: calibration(model, [], images, task, place).scores
            for place, (site, images) in enumerate(val.items())
        }
        rules = [*rules_of("auto", table_of(scores, counts)), Threshold(0.0)]
        on_val, on_test = (sums_of(model, rules, task, images) for images in (val, test))
        print(f"{folder.name} {path.parent.parent.name}: {task.main_metric}")
        for name in FAMILIES:
            own = [r for r in rules if name == "auto" or family(r) == name]
            places = [rules.index(rule) for rule in [rules[0], *own]]
            kept = {site: [sums[p] for p in places] for site, sums in on_val.items()}
            rule = choose_rule([rules[p] for p in places], kept, counts)
            place = rules.index(rule)
            cells = [
                _both({site: sums[place] for site, sums in by_site.items()}, images)
                for by_site, images in ((on_val, val), (on_test, test))
            ]
            print(f"| {name} | {' | '.join(cells)} | {family(rule)} |")


def _both(sums: dict[str, float], images: dict[str, Images]) -> str:
    """Client average and mean over all images."""
    plain = mean(sums[site] / len(own) for site, own in images.items())
    overall = sum(sums.values()) / sum(map(len, images.values()))
    return f"{plain:.3f} / {overall:.3f}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        compare(Path(name))

"""Batch norm's statistics that stay at the site: what is scored is what is kept and handed out."""

import json

import pytest

from konsil.federation.runner import Run


def test_the_specialist_that_was_validated_is_the_one_that_is_evaluated(make_plan, tmp_path):
    plan = make_plan(
        methods=[{"name": "fedsm", "lambda": 0.6, "selector_optimizer": "closed_form"}],
        network={"name": "unet", "width": 2, "norm": "batch"},
        training={"batch_size": 3, "running_statistics": "local"},
    )
    run = Run(plan, tmp_path / "run")
    run.prepare(resume=False, write_splits=lambda path: None)
    run.go()
    result = json.loads((tmp_path / "run/fedsm/seed0/result.json").read_text())
    validated = result["history"][-1]["sites"]
    rows = {
        site: value
        for _, _, role, split, site, metric, value, _ in result["last"]
        if (role, split, metric) == ("personal", "val", "dice") and site in validated
    }
    assert rows == {
        site: pytest.approx(values["personal"], abs=1e-12) for site, values in validated.items()
    }

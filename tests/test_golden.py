"""The numbers of a tiny FedSM run: a change that must not change them proves it here.

Tolerances: scores 0.02 (a pixel of a small mask), norms of weights 1e-3 relative; another CPU's
last bits stay far below both. To renew the file after a change that is meant to change numbers:

    python -m pytest tests/test_golden.py  # shows the difference
    KONSIL_RENEW_GOLDEN=1 python -m pytest tests/test_golden.py

and say in the commit message why the numbers changed.
"""

import json
import os
from pathlib import Path

import pytest

from konsil import testing as toy
from konsil.weights import Weights

GOLDEN = Path(__file__).parent / "golden" / "fedsm.json"


def measured(make_plan, folder: Path) -> dict[str, dict[str, float]]:
    plan = make_plan(
        methods=[{"name": "fedsm", "lambda": 0.7, "selector_optimizer": "average_moments"}],
        rounds=4,
        training={"batch_size": 2, "lr": 5e-3},
    )
    rows = toy.whole_run(plan, folder)
    norms = {
        str(path.relative_to(folder / "fedsm" / "seed0")): Weights.load(path).norm()
        for path in sorted((folder / "fedsm").rglob("*.safetensors"))
        if "last" in path.parts
    }
    scores = {f"{r.role} {r.split} {r.site}": r.value for r in rows if r.metric == "dice"}
    return {"scores": scores, "norms": norms}


def test_a_tiny_run_gives_the_golden_numbers(make_plan, tmp_path):
    now = measured(make_plan, tmp_path)
    if os.environ.get("KONSIL_RENEW_GOLDEN"):
        GOLDEN.write_text(json.dumps(now, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert now["scores"] == pytest.approx(golden["scores"], abs=0.02)
    assert now["norms"] == pytest.approx(golden["norms"], rel=1e-3)

"""Every method by itself through the command: what it leaves is shown and drawn without others.

With a whole recipe of training and server: every method takes all of it.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from konsil.cli import main
from konsil.ingredients.method import METHODS


@pytest.mark.parametrize("name", METHODS.all())
def test_a_method_alone(
    name: str, classes: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file, out = tmp_path / "alone.yaml", tmp_path / "run"
    training = {"batch_size": 4, "schedule": "cosine", "augment": "strong", "keep": "smoothed"}
    server = {"momentum": "auto", "weights": "equal"}
    blocks = {"training": training, "server": server, "rounds": 3}
    content = {**classes, **blocks, "methods": [name]}
    file.write_text(yaml.safe_dump(content))
    monkeypatch.setattr(sys, "argv", ["konsil", "run", str(file), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert name in (out / "results.csv").read_text()
    assert {"sites.png", "curves.png"} <= {path.name for path in out.rglob("*.png")}

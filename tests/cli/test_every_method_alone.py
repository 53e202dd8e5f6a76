"""Every method by itself through the command: what it leaves is shown and drawn without others."""

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
    content = {**classes, "methods": [name], "rounds": 3, "training": {"batch_size": 4}}
    file.write_text(yaml.safe_dump(content))
    monkeypatch.setattr(sys, "argv", ["konsil", "run", str(file), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert name in (out / "results.csv").read_text()
    assert {"sites.png", "curves.png"} <= {path.name for path in out.rglob("*.png")}

"""An importer of one's own: in a plug-in file, as docs/importers.md has it, or installed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from konsil.config import FederationConfig, TaskConfig
from konsil.data import open_federation
from konsil.errors import DataError
from konsil.prepare.importers import IMPORTERS, import_dataset
from konsil.registry import PREFIX, load_plugins
from tests.prepare.importers.miniatures import Download

DOCS = Path(__file__).parents[3] / "docs" / "importers.md"
KONSIL = [sys.executable, "-c", "from konsil.cli import main; main()"]


@pytest.fixture(autouse=True)
def _fresh():
    """What a test loads is gone after it."""
    yield
    for module in [name for name in sys.modules if name.startswith(PREFIX)]:
        IMPORTERS.forget(module)
        del sys.modules[module]


@pytest.fixture
def plugin(tmp_path) -> Path:
    """The page's example, as a reader copies it."""
    section = DOCS.read_text(encoding="utf-8").split("## An importer of your own")[1]
    path = tmp_path / "my_vessels.py"
    path.write_text(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1])
    return path


@pytest.fixture
def vessels(download: Download) -> Download:
    for i in range(4):
        download.picture(f"VESSELS/images/{i:02d}.png")
        mask = np.zeros((48, 60), np.uint8)
        mask[10 + i : 20, 5:40] = 255
        download.write(f"VESSELS/manual/{i:02d}_vessels.png", mask)
    return download


def konsil(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*KONSIL, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_the_example_of_the_page(plugin, vessels):
    done = konsil("data", "import", "--plugin", plugin, "my-vessels", vessels.root, vessels.dest)
    assert done.returncode == 0, done.stderr
    assert "vessels  images     4" in done.stdout
    content = yaml.safe_load((vessels.dest / "federation.yaml").read_text())
    assert content["structures"] == {"vessel": [1]}
    assert (vessels.made("vessels/masks/02.png") == 1).sum() == 8 * 35
    config = FederationConfig(file=vessels.dest, image_size=16, cache=vessels.dest.parent / "cache")
    assert len(open_federation(config, TaskConfig(name="segmentation")).items) == 4


def test_it_is_listed_beside_the_others_and_described(plugin):
    done = konsil("data", "import", "--plugin", plugin)
    assert "my-vessels" in done.stdout
    assert "refuge" in done.stdout
    assert (
        "manual/01_vessels.png" in konsil("data", "import", "my-vessels", "--plugin", plugin).stdout
    )


def test_a_file_without_its_mask_is_named(plugin, vessels):
    load_plugins([plugin])
    (vessels.root / "VESSELS/manual/03_vessels.png").unlink()
    with pytest.raises(DataError, match=r"image without a mask:\n +VESSELS/images/03.png"):
        import_dataset("my-vessels", vessels.root, vessels.dest)


def test_a_name_that_is_taken(plugin):
    plugin.write_text(plugin.read_text().replace('"my-vessels"', '"refuge"'))
    done = konsil("data", "import", "--plugin", plugin)
    assert done.returncode == 1
    assert "konsil.prepare.importers.refuge has it already" in done.stderr.replace("\n", " ")


def test_an_importer_of_an_installed_package(plugin, tmp_path):
    """As pip leaves it: a module, and a dist-info folder with an entry point."""
    site = tmp_path / "site"
    info = site / "my_vessels-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "my_vessels.py").write_text(plugin.read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-vessels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[konsil.importers]\nvessels = my_vessels\n")
    done = konsil("data", "import", "my-vessels", PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    assert "manual/01_vessels.png" in done.stdout
    (info / "entry_points.txt").write_text("[konsil.importers]\nvessels = nowhere\n")
    done = konsil("data", "import", PYTHONPATH=str(site))
    assert done.returncode == 1
    assert "entry point vessels = nowhere of konsil.importers" in done.stderr.replace("\n", " ")

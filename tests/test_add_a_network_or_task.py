"""The pages on networks and tasks of one's own, followed to the letter."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from konsil.errors import StateError
from konsil.registry import PREFIX, REGISTRIES, load_plugins
from konsil.supermodel import SuperModel

DOCS = Path(__file__).resolve().parents[1] / "docs"
KONSIL = [sys.executable, "-c", "from konsil.cli import main; main()"]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """What a test loads is gone after it."""
    yield
    for module in [name for name in sys.modules if name.startswith(PREFIX)]:
        for registry in REGISTRIES.values():
            registry.forget(module)
        del sys.modules[module]


def blocks(page: str, language: str) -> list[str]:
    """The page's files, each named in its first line; or its commands."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for block in found if language == "bash" or re.match(r"# \w+\.\w+\n", block)]


def follow(page: str, folder: Path) -> dict[str, str]:
    """Write the page's files and call its commands; what each printed, by its experiment."""
    for block in (*blocks(page, "python"), *blocks(page, "yaml")):
        (folder / block.splitlines()[0].removeprefix("# ")).write_text(block, encoding="utf-8")
    printed = {}
    for line in "".join(blocks(page, "bash")).splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "konsil"
        printed[arguments[1]] = called([*KONSIL, *arguments], folder)
    return printed


def called(command: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_networks_of_the_page_train(tmp_path: Path):
    printed = follow("networks.md", tmp_path)
    assert list(printed) == ["segresnet.yaml", "mine.yaml"]
    assert "with monai.networks.nets.SegResNet, loss dice_ce" in printed["segresnet.yaml"]
    assert "with dilated" in printed["mine.yaml"]
    for run in ("segresnet", "mine"):
        assert (tmp_path / "runs" / run / "results.csv").exists()
    folder = tmp_path / "runs" / "mine" / "fedsm" / "seed0" / "supermodel"
    with pytest.raises(StateError, match=r"unknown network 'dilated'.*load_plugins") as caught:
        SuperModel.load(folder)
    assert str(folder) in str(caught.value)
    load_plugins([tmp_path / "my_network.py"])
    answer = SuperModel.load(folder).answer(torch.rand(2, 3, 32, 32))
    assert answer.logits.shape == (2, 2, 32, 32)


def test_the_task_of_the_page_trains_and_its_super_model_needs_no_plugin(tmp_path: Path):
    printed = follow("add-a-task.md", tmp_path)["lesions.yaml"]
    assert "lesions of disc, cup with unet, alpha 0.3, beta 0.8" in printed
    assert "recall" in printed
    rows = (tmp_path / "runs" / "lesions" / "results.csv").read_text()
    assert ",recall," in rows
    model = SuperModel.load(tmp_path / "runs" / "lesions" / "fedsm" / "seed0" / "supermodel")
    assert (model.facts.task, model.facts.targets) == ("lesions", "masks")
    assert model.answer(torch.rand(1, 3, 32, 32)).logits.shape == (1, 2, 32, 32)
    shown = called([*KONSIL, "show", "runs/lesions"], tmp_path)
    assert "recall" in shown


def test_the_tasks_loss_is_dice_where_the_page_says_so(tmp_path: Path):
    (tmp_path / "my_task.py").write_text(blocks("add-a-task.md", "python")[0])
    load_plugins([tmp_path / "my_task.py"])
    from konsil.tasks import TASKS

    cls = TASKS.find("lesions", "test")
    task = cls(["a"], cls.Settings(alpha=0.5, beta=0.5))
    logits, y = torch.randn(2, 1, 8, 8), (torch.rand(2, 1, 8, 8) > 0.5).float()
    p = torch.sigmoid(logits)
    hit, both = (p * y).sum((1, 2, 3)), (p + y).sum((1, 2, 3))
    expected = 1 - (2 * hit + 2) / (both + 2)
    assert torch.allclose(task.losses(logits, y), expected)
    assert torch.allclose(task.loss(logits, y), expected.mean())


def test_installed_packages_are_found_by_their_entry_points(tmp_path: Path):
    """A real distribution on the path: modules, and a dist-info folder that names them."""
    site = tmp_path / "site"
    info = site / "my_package-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[konsil.networks]\ndilated = my_network\n[konsil.tasks]\nlesions = my_task:Lesions\n"
    )
    for page in ("networks.md", "add-a-task.md"):
        code = blocks(page, "python")[0]
        (site / code.splitlines()[0].removeprefix("# ")).write_text(code, encoding="utf-8")
    experiment = blocks("add-a-task.md", "yaml")[0].replace(
        "{name: unet, width: 2}", "{name: dilated, width: 2, depth: 2}"
    )
    file = tmp_path / "installed.yaml"
    file.write_text(experiment.replace("[fedavg, fedsm]", "[fedavg]") + "engine: {name: processes}")
    command = [*KONSIL, "run", str(file), "--out", "run"]
    printed = called(command, tmp_path, PYTHONPATH=str(site))
    assert "lesions of disc, cup with dilated" in printed
    assert "plugins" not in (tmp_path / "run" / "plan.yaml").read_text().split("experiment:")[0]
    missing = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "task.name: unknown task 'lesions'; there are classification, seg" in missing.stderr


def test_an_installed_package_that_fails_is_named(tmp_path: Path):
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[konsil.networks]\nbroken = no_such_module\n")
    code = "from konsil.networks import NETWORKS; NETWORKS.all()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert "my-package (entry point broken = no_such_module of konsil.networks): " in done.stderr

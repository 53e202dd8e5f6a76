"""A user's own method in a file: found, run on every engine, held to its content, or refused."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from konsil import testing as toy
from konsil.config import check_experiment, read_experiment
from konsil.errors import ConfigError, RoundFailed
from konsil.federation.engines.processes import ProcessEngine
from konsil.federation.plan import Plan
from konsil.federation.runner import Run, differences, read_plan
from konsil.ingredients.method import METHODS
from konsil.registry import PREFIX, REGISTRIES, load_plugins, with_contents
from konsil.weights import Weights

KONSIL = [sys.executable, "-c", "from konsil.cli import main; main()"]
HALF = '''\
"""Halved steps."""
from __future__ import annotations

from pydantic import Field

from konsil.ingredients.method import Method, method
from konsil.ingredients.context import MethodSettings, Upload
from konsil.weights import mix


class HalfSettings(MethodSettings):
    """share = 1 is FedAvg."""

    share: float = Field(0.5, gt=0, le=1)


@method("half", paper="nobody, 2024")
class Half(Method):
    """FedAvg whose sites go only part of their way."""

    Settings = HalfSettings

    def local(self, site, shared):
        w_g, share = shared["global"], self.settings.share
        w = site.train(site.learner("global", w_g)).weights()
        return Upload().add("global", mix([(1 - share, w_g), (share, w)]), weight=site.images)
'''


THREE = '''\
"""A network, a task, and a method in one file."""
from torch import nn

from konsil.ingredients.method import method
from konsil.methods.fedavg import FedAvg
from konsil.networks import network
from konsil.tasks import TaskSettings, task
from konsil.tasks.segmentation import Segmentation, SegmentationSettings


@network("two-layers", segments=True)
def two_layers(in_channels, outputs, between=3):
    first = nn.Conv2d(in_channels, between, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), nn.Conv2d(between, outputs, 1))


class ScaledSettings(SegmentationSettings):
    """times = 1 is segmentation."""

    times: float = 1.0


@task("scaled")
class Scaled(Segmentation):
    """Segmentation with its loss multiplied."""

    Settings = ScaledSettings

    def loss(self, logits, y):
        return self.settings.times * super().loss(logits, y)


@method("same", paper="nobody, 2024")
class Same(FedAvg):
    """FedAvg under another name."""
'''


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """What a test loads is gone after it."""
    yield
    for module in plugins():
        for registry in REGISTRIES.values():
            registry.forget(module)
        del sys.modules[module]


def plugins() -> list[str]:
    return [name for name in sys.modules if name.startswith(PREFIX)]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "my-half.py"
    path.write_text(HALF)
    return path


@pytest.fixture
def file(tmp_path: Path, squares: Path) -> Path:
    content = {
        "federation": {"folder": str(squares), "image_size": 32},
        "network": {"name": "unet", "width": 2},
        "training": {"batch_size": 3},
        "methods": [{"name": "half", "share": 0.25}],
        "rounds": 2,
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def konsil(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*KONSIL, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


# Loading


def test_a_file_is_run_once_and_its_methods_are_known(plugin: Path):
    found = load_plugins([plugin])
    assert list(found) == ["half"]
    cls = METHODS.all()["half"]
    assert load_plugins([plugin, str(plugin)]) == found
    assert METHODS.all()["half"] is cls


def test_a_copy_of_a_file_is_the_same_plugin(plugin: Path, tmp_path: Path):
    moved = tmp_path / "elsewhere" / plugin.name
    moved.parent.mkdir()
    moved.write_bytes(plugin.read_bytes())
    assert load_plugins([plugin]) == load_plugins([moved])


WRONG: dict[str, tuple[str, list[str]]] = {
    "no method": ("x = 1\n", ["no method, network, task or importer in it", "@method", "@network"]),
    "its own name is taken": (
        HALF.replace('"half"', '"fedavg"'),
        [", line 17: method fedavg: konsil.methods.fedavg has it already; choose another name"],
    ),
    "an error": ("import math\n\nmath.lock(1)\n", [", line 3: AttributeError:", "lock"]),
    "an error elsewhere": ("import json\n\njson.loads('{')\n", [", line 3: JSONDecodeError"]),
    "no Python": ("def f(:\n", [", line 1: SyntaxError: invalid syntax"]),
    "a module that is not there": ("import nowhere\n", [", line 1: ModuleNotFoundError:"]),
    "a script that ends": ("import sys\nsys.exit(3)\n", [", line 2: SystemExit: 3"]),
    "no local": (
        HALF.replace("def local", "def lokal"),
        ["method half: Half has neither pieces nor local"],
    ),
    "no Method": (
        HALF.replace("class Half(Method)", "class Half"),
        ["method half: Half is not a subclass of Method"],
    ),
}


@pytest.mark.parametrize(("content", "words"), WRONG.values(), ids=WRONG)
def test_a_file_that_cannot_be_used_is_refused_and_leaves_nothing(
    tmp_path: Path, content: str, words: list[str]
):
    path = tmp_path / "wrong.py"
    path.write_text(content)
    before, loaded = METHODS.all(), plugins()
    with pytest.raises(ConfigError) as error:
        load_plugins([path])
    assert str(error.value).startswith(str(path))
    for word in words:
        assert word in str(error.value)
    assert METHODS.all() == before
    assert plugins() == loaded


def test_files_that_are_no_plugins_are_refused_by_name(tmp_path: Path, plugin: Path):
    with pytest.raises(ConfigError, match=r"none\.py: no such plugin file"):
        load_plugins([tmp_path / "none.py"])
    notes = tmp_path / "notes.txt"
    notes.write_text(HALF)
    with pytest.raises(ConfigError, match=r"notes\.txt: not a plugin"):
        load_plugins([notes])
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.py: cannot be read"):
        load_plugins([tmp_path / "folder.py"])


def test_two_files_with_one_name_are_refused(plugin: Path, tmp_path: Path):
    load_plugins([plugin])
    other = tmp_path / "other.py"
    other.write_text(HALF)
    with pytest.raises(ConfigError, match=rf"other\.py, line 17: method half: {plugin} has it"):
        load_plugins([other])


def test_a_second_version_in_one_process_is_refused(plugin: Path):
    load_plugins([plugin])
    plugin.write_text(HALF + "\n")
    with pytest.raises(ConfigError, match="changed since this process loaded it"):
        load_plugins([plugin])


# The experiment file and the plan


def test_the_file_and_the_command_line_are_added_up(
    file: Path, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MINE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    raw = yaml.safe_load(file.read_text()) | {"plugins": "$MINE/my-half.py"}
    file.write_text(yaml.safe_dump(raw))
    assert read_experiment(file).plugins == [plugin]
    more = read_experiment(file, plugins=[Path("b.py"), Path("my-half.py")])
    assert more.plugins == [plugin, tmp_path / "b.py"]


def test_the_plan_holds_the_content_not_the_place(
    make_plan: Callable[..., Plan], plugin: Path, tmp_path: Path
):
    blocks: dict[str, Any] = {"methods": ["half"], "plugins": [str(plugin)]}
    plan = make_plan(**blocks)
    (tmp_path / "far").mkdir()
    moved = plugin.rename(tmp_path / "far" / plugin.name)
    again = make_plan(**blocks | {"plugins": [str(moved)]})
    assert again.hash == plan.hash
    assert differences(plan.to_json(), again.to_json()) == []
    facts = json.loads(json.dumps(again.to_json()))
    assert facts["experiment"]["plugins"] == [str(moved)]
    assert Plan.from_json(facts).hash == plan.hash


def test_a_plan_without_plugins_has_none_in_it(make_plan: Callable[..., Plan]):
    assert "plugins" not in make_plan().to_json()


def test_a_worker_refuses_a_file_that_has_changed_before_it_runs(
    make_plan: Callable[..., Plan], plugin: Path
):
    facts = make_plan(methods=["half"], plugins=[str(plugin)]).to_json()
    plugin.write_text("raise KeyboardInterrupt\n")
    with pytest.raises(ConfigError, match=r"my-half\.py: this plugin has changed since the run"):
        Plan.from_json(facts)
    assert Plan.from_json(facts, methods=False).sites == ("north", "south")


def test_an_unknown_method_is_still_unknown_without_its_plugin(make_plan: Callable[..., Plan]):
    with pytest.raises(ConfigError, match="unknown method 'half'"):
        make_plan(methods=["half"])


def test_plugins_must_be_paths(squares: Path):
    raw = {"federation": {"folder": str(squares)}, "methods": ["fedavg"], "rounds": 1}
    with pytest.raises(ConfigError, match=r"plugins\.0 = 3: must be a path"):
        check_experiment(raw | {"plugins": [3]}, "test")


# Networks and tasks, the same way


@pytest.fixture
def three(tmp_path: Path) -> Path:
    path = tmp_path / "three.py"
    path.write_text(THREE)
    return path


def blocks_of(three: Path) -> dict[str, Any]:
    return {
        "methods": ["same", "fedavg"],
        "network": {"name": "two-layers", "between": 5},
        "task": {"name": "scaled", "times": 2, "loss": "dice"},
        "plugins": [str(three)],
    }


def test_all_kinds_of_a_file_are_in_the_plan(make_plan: Callable[..., Plan], three: Path):
    plan = make_plan(**blocks_of(three))
    sha256 = hashlib.sha256(three.read_bytes()).hexdigest()
    assert plan.plugins == dict.fromkeys(["same", "network two-layers", "task scaled"], sha256)
    facts = json.loads(json.dumps(plan.to_json()))
    assert facts["experiment"]["network"]["between"] == 5
    assert facts["experiment"]["task"]["times"] == 2
    again = Plan.from_json(facts)
    assert again.hash == plan.hash
    assert again.context(again.jobs[0], again.sites).network.arguments == {"between": 5}
    other = make_plan(**blocks_of(three) | {"task": {"name": "scaled", "loss": "dice"}})
    assert other.hash != plan.hash


@pytest.mark.parametrize("engine", ["inprocess", "processes"])
def test_all_kinds_of_a_file_train_on_every_engine(
    make_plan: Callable[..., Plan], three: Path, tmp_path: Path, engine: str
):
    plan = make_plan(**blocks_of(three), engine={"name": engine, "workers": 1})
    Run(plan, tmp_path / "run").go()
    last = "seed0/checkpoints/last/global.safetensors"
    ends = [Weights.load(tmp_path / "run" / name / last) for name in ("same", "fedavg")]
    assert ends[0].equals(ends[1])
    plain = make_plan(**blocks_of(three) | {"task": {"name": "segmentation", "loss": "dice"}})
    start = plain.method(plain.jobs[0]).start()["global"]
    assert start.equals(plan.method(plan.jobs[0]).start()["global"])
    assert not start.equals(ends[0])


WRONG_KINDS: dict[str, tuple[str, str, list[str]]] = {
    "a network's first arguments": (
        "in_channels, outputs, between",
        "outputs, between",
        ["network two-layers: two_layers begins with (outputs, between)", "in_channels"],
    ),
    "a network's norm": ("between=3", 'norm="batch"', ["network two-layers: norm = None"]),
    "a network's name": ('"two-layers"', '"two.layers"', ["network 'two.layers': a name is"]),
    "a taken network": ('"two-layers"', '"small"', ["network small: konsil.networks.class"]),
    "a taken task": ('"scaled"', '"segmentation"', ["konsil.tasks.segmentation has it already"]),
    "no task": (
        "Scaled(Segmentation)",
        "Scaled",
        ["Scaled is not a subclass of Task"],
    ),
    "no targets": (
        "    Settings = ScaledSettings",
        '    targets = "boxes"',
        ["task scaled: Scaled.targets must be one of masks, classes"],
    ),
}


@pytest.mark.parametrize(("old", "new", "words"), WRONG_KINDS.values(), ids=WRONG_KINDS)
def test_a_network_or_task_that_cannot_be_used_is_refused(
    three: Path, old: str, new: str, words: list[str]
):
    assert old in THREE
    three.write_text(THREE.replace(old, new))
    with pytest.raises(ConfigError) as error:
        load_plugins([three])
    assert str(error.value).startswith(f"{three}, line ")
    for word in words:
        assert word in str(error.value)
    assert not any(registry.names_from(m) for registry in REGISTRIES.values() for m in plugins())


def test_a_tasks_and_a_networks_own_settings_are_checked(
    make_plan: Callable[..., Plan], three: Path
):
    blocks = blocks_of(three)
    with pytest.raises(ConfigError, match=r"task: .*\n  times = 'many': must be a number"):
        make_plan(**blocks | {"task": {"name": "scaled", "times": "many"}})
    with pytest.raises(ConfigError, match=r"task\.time: unknown key; did you mean times\?"):
        make_plan(**blocks | {"task": {"name": "scaled", "time": 2}})
    with pytest.raises(ConfigError, match=r"network\.betwen: two-layers has no such setting; did"):
        make_plan(**blocks | {"network": {"name": "two-layers", "betwen": 2}})
    with pytest.raises(ConfigError, match=r"'two-layers': cannot be built with these arguments"):
        make_plan(**blocks | {"network": {"name": "two-layers", "between": "some"}})


# Whole runs, as real processes


def test_both_engines_give_the_same_and_a_changed_file_is_not_resumed(
    file: Path, plugin: Path, tmp_path: Path
):
    folders = {}
    for engine in ("inprocess", "processes"):
        folders[engine] = tmp_path / engine
        arguments = [file, "--plugin", plugin, "--out", folders[engine]]
        done = konsil("run", *arguments, "--set", f"engine.name={engine}")
        assert done.returncode == 0, done.stderr
    one, two = ((f / "results.csv").read_bytes() for f in folders.values())
    assert one == two
    assert b"half" in one

    folder = folders["inprocess"]
    settings = read_plan(folder)["experiment"]["methods"]
    assert settings == [{"name": "half", "label": "half", "share": 0.25}]
    moved = plugin.rename(tmp_path / "elsewhere.py")
    again = konsil("run", file, "--plugin", moved, "--out", folder, "--resume")
    assert again.returncode == 0, again.stderr
    moved.write_text(HALF + "# changed\n")
    changed = konsil("run", file, "--plugin", moved, "--out", folder, "--resume")
    assert changed.returncode == 1
    assert "another plan (plugins.half differ)" in changed.stderr
    moved.unlink()
    shown = konsil("show", folder)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "half" in shown.stdout


def test_workers_that_find_another_content_say_so(
    make_plan: Callable[..., Plan], plugin: Path, tmp_path: Path
):
    plan = make_plan(methods=["half"], plugins=[str(plugin)], engine={"name": "processes"})
    plugin.write_text(HALF + "# changed\n")
    engine = ProcessEngine(plan, tmp_path / "run")
    try:
        with pytest.raises(RoundFailed, match=r"my-half\.py: this plugin has changed since"):
            toy.train(plan, tmp_path / "run", engine=engine)
    finally:
        engine.close()


def test_mistakes_are_one_message_and_come_before_the_images(file: Path, tmp_path: Path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("x = 1 / 0\n")
    arguments = [file, "--plugin", wrong, "--out", tmp_path / "run"]
    done = konsil("run", *arguments, "--set", "federation.folder=/nowhere")
    assert done.returncode == 1
    assert done.stderr == f"error: {wrong}, line 1: ZeroDivisionError: division by zero\n"


def test_plugins_are_listed(plugin: Path):
    done = konsil("methods", "half", "--plugin", plugin)
    assert done.returncode == 0, done.stderr
    for words in ("half: nobody, 2024", "Halved steps.", "share = 0.5", "above 0 to 1"):
        assert words in done.stdout


def test_files_are_found_by_content_without_running_them(tmp_path: Path):
    """The same content twice, another one, one that cannot be read, and one that would fail."""
    for name, text in (("a", "raise SystemExit"), ("b", "raise SystemExit"), ("c", "x = 1")):
        (tmp_path / f"{name}.py").write_text(text)
    paths = [tmp_path / name for name in ("gone.py", "c.py", "a.py", "b.py", "notes.txt")]
    sha256 = hashlib.sha256(b"raise SystemExit").hexdigest()
    assert with_contents(paths, [sha256, "0" * 64]) == {sha256: tmp_path / "a.py"}
    assert with_contents(paths, []) == {}

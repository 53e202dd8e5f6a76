from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from konsil.config import (
    Experiment,
    MethodConfig,
    NetworkConfig,
    TrainingConfig,
    check_experiment,
    read_experiment,
)
from konsil.errors import ConfigError
from konsil.federation.plan import Plan, load_choices
from konsil.ingredients.method import method_settings

SMALLEST: dict[str, Any] = {
    "federation": {"synthetic": "retina"},
    "methods": ["fedavg"],
    "rounds": 2,
}


def refusal(**blocks: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_experiment(SMALLEST | blocks, "my.yaml")
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump(SMALLEST))
    return path


def test_the_smallest_file_is_enough():
    e = check_experiment(SMALLEST, "my.yaml")
    assert (e.task.name, e.network, e.seeds) == ("segmentation", NetworkConfig(), [0])
    assert e.methods == [MethodConfig(name="fedavg")]


def test_short_forms_of_methods_and_seeds():
    e = check_experiment(SMALLEST | {"methods": "fedavg", "seeds": 3}, "my.yaml")
    assert ([m.title for m in e.methods], e.seeds) == (["fedavg"], [3])
    fedsm = {"name": "fedsm", "label": "FedSM-.5", "lambda": 0.5}
    e = check_experiment(SMALLEST | {"methods": [fedsm, "fedavg"]}, "my.yaml")
    assert [m.title for m in e.methods] == ["FedSM-.5", "fedavg"]
    assert e.methods[0].settings == {"lambda": 0.5}


# Every refusal names the file, the key's path, the value, and what is allowed.
REFUSED = {
    "unknown key": ({"rouns": 3}, ["rouns: unknown key", "did you mean rounds?", "training"]),
    "unknown key below": (
        {"training": {"learning_rate": 1}},
        ["training.learning_rate: unknown key; allowed here:", "lr"],
    ),
    "missing": ({"federation": {}}, ["federation: give exactly one of synthetic", "found none"]),
    "two sources": (
        {"federation": {"synthetic": "retina", "csv": "x.csv"}},
        ["federation: give exactly one of", "found synthetic and csv"],
    ),
    "block": (
        {"federation": "retina"},
        ["federation = 'retina': must be a block of keys; allowed: ", "synthetic"],
    ),
    "no block": ({"training": None}, ["training = None: must be a block of keys", "lr"]),
    "literal": (
        {"federation": {"synthetic": "brain"}},
        ["federation.synthetic = 'brain': must be 'retina', 'prostate' or 'pathology'"],
    ),
    "numbers as literals": (
        {"federation": {"synthetic": "retina", "channels": 2}},
        ["federation.channels = 2: must be 1 or 3"],
    ),
    "too small": (
        {"federation": {"synthetic": "retina", "image_size": 8}},
        ["federation.image_size = 8: must be greater than or equal to 16"],
    ),
    "no number": ({"rounds": "many"}, ["rounds = 'many': must be a whole number"]),
    "half a round": ({"rounds": 2.5}, ["rounds = 2.5: must be a whole number"]),
    "no round": ({"rounds": 0}, ["rounds = 0: must be greater than or equal to 1"]),
    "nothing": ({"rounds": None}, ["rounds = None: must be a whole number"]),
    "a switch for a number": ({"rounds": True}, ["rounds = True: must not be true or false"]),
    "no switch": (
        {"task": {"normalise": "perhaps"}},
        ["task.normalise = 'perhaps': must be true or false"],
    ),
    "rate": ({"training": {"lr": 0}}, ["training.lr = 0: must be greater than 0"]),
    "infinite rate": (
        {"training": {"lr": float("inf")}},
        ["training.lr = inf: must be a finite number"],
    ),
    "betas": (
        {"training": {"betas": [0.9, 1.0]}},
        ["training.betas = [0.9, 1.0]: must be two numbers from 0 to below 1"],
    ),
    "one beta": ({"training": {"betas": [0.9]}}, ["training.betas.1: missing", "too short"]),
    "momentum": ({"training": {"momentum": 1}}, ["training.momentum = 1: must be less than 1"]),
    "fractions": (
        {"federation": {"synthetic": "retina", "split": [0.5, 0.5, 0.5]}},
        ["federation.split = [0.5, 0.5, 0.5]: ", "positive and sum to 1"],
    ),
    "images of a folder": (
        {"federation": {"folder": "x", "images": {"north": 3}}},
        ["federation.images: ", "synthetic only"],
    ),
    "count": (
        {"federation": {"synthetic": "retina", "images": {"aster": "few"}}},
        ["federation.images.aster = 'few': must be a whole number"],
    ),
    "path": ({"federation": {"folder": 3}}, ["federation.folder = 3: must be a path"]),
    "no methods": ({"methods": []}, ["methods = []: must have at least 1 item"]),
    "method without name": ({"methods": [{"lambda": 1}]}, ["methods.0.name: missing"]),
    "method as number": (
        {"methods": [3]},
        ["methods.0 = 3: must be a block of keys; allowed: label, name, training"],
    ),
    "label": (
        {"methods": [{"name": "fedsm", "label": "a/b"}]},
        ["methods.0.label = 'a/b': must be letters, digits"],
    ),
    "label of the folder above": (
        {"methods": [{"name": "fedsm", "label": ".."}]},
        ["methods.0.label = '..': must not begin with a dot"],
    ),
    "rate of a method": (
        {"methods": ["local", {"name": "fedavg", "training": {"lr": -1}}]},
        ["methods.fedavg.training.lr = -1: must be greater than 0"],
    ),
    "unknown key of a method's training": (
        {"methods": {"name": "fedavg", "label": "b", "training": {"learning_rate": 1}}},
        ["methods.b.training.learning_rate: unknown key; allowed here:", "lr"],
    ),
    "a number for a method's training": (
        {"methods": [{"name": "fedavg", "training": 3}]},
        ["methods.fedavg.training = 3: must be a block of keys; allowed: augment", "lr"],
    ),
    "a switch in a method's training": (
        {"methods": [{"name": "fedavg", "training": {"lr": True}}]},
        ["methods.fedavg.training.lr = True: must not be true or false"],
    ),
    "training of nobody": (
        {"methods": [{"training": {"lr": 0}}]},
        ["methods.0.name: missing", "methods.0.training.lr = 0: must be greater than 0"],
    ),
    "titles": ({"methods": ["fedavg", "fedavg"]}, ["methods: fedavg stands twice", "label"]),
    "no seeds": ({"seeds": []}, ["seeds = []: must have at least 1 item"]),
    "seeds twice": ({"seeds": [1, 1]}, ["seeds = [1, 1]: every seed once"]),
    "seed": ({"seeds": [1, "b"]}, ["seeds.1 = 'b': must be a whole number"]),
    "name": ({"name": "a b"}, ["name = 'a b': must be letters, digits"]),
    "background": (
        {"task": {"structures": {"disc": [0, 1]}}},
        ["task.structures.disc = [0, 1]: ", "0 is background"],
    ),
    "one class": (
        {"task": {"name": "classification", "classes": ["a", "a"]}},
        ["task.classes = ['a', 'a']: at least two different names"],
    ),
    "no path of a class": (
        {"network": {"target": "SegResNet"}},
        ["network.target = 'SegResNet': must be the path of a class, package.module.Class"],
    ),
    "a name and a path": (
        {"network": {"name": "unet", "target": "torch.nn.Linear"}},
        ["network: give a name or a target, not both"],
    ),
    "device": ({"compute": {"device": "tpu"}}, ["compute.device = 'tpu': must be cpu, cuda"]),
    "engine": (
        {"engine": {"name": "grid"}},
        ["engine.name = 'grid': must be 'inprocess' or 'processes'"],
    ),
    "absences": (
        {"server": {"absences": {"north": 3}}},
        ["server.absences.north = 3: must be a list"],
    ),
}


# What is chosen by name is checked when plugins are loaded, and before any image is read.
UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "task": (
        {"task": {"name": "detection"}},
        "task.name: unknown task 'detection'; there are classification, segmentation",
    ),
    "key of the task": (
        {"task": {"los": "dice"}},
        "task.los: unknown key; did you mean loss? allowed here: loss, name, normalise, structures",
    ),
    "loss": (
        {"task": {"loss": "cross_entropy"}},
        "task: this cannot be meant:\n  loss = 'cross_entropy': must be 'dice' or 'dice_ce'",
    ),
    "loss of classes": (
        {"task": {"name": "classification", "loss": "dice"}},
        "task: this cannot be meant:\n  loss = 'dice': must be 'cross_entropy'",
    ),
    "classes": (
        {"task": {"classes": ["a", "b"]}},
        "task.classes: segmentation learns from masks; give structures",
    ),
    "structures": (
        {"task": {"name": "classification", "structures": {"disc": [1]}}},
        "task.structures: classification learns from classes; give classes",
    ),
    "network": (
        {"network": {"name": "unet3"}},
        "network.name: unknown network 'unet3'; there are features, resnet18, small, unet, "
        "unet_classic, unet_resenc, vgg11, vgg11_pooled",
    ),
    "network of another task": (
        {"network": {"name": "resnet18"}},
        "network.name = 'resnet18': not for a task of masks; choose one of unet, unet_classic, "
        "unet_resenc",
    ),
    "key of the network": (
        {"network": {"name": "unet", "withd": 2}},
        "network.withd: unet has no such setting; did you mean width? allowed here: name, norm, "
        "width",
    ),
    "width": (
        {"network": {"width": 0}},
        "network.width = 0: must be a whole number, at least 1",
    ),
    "a switch for a width": (
        {"network": {"width": True}},
        "network.width = True: must be a whole number, at least 1",
    ),
    "norm": (
        {"network": {"norm": "layer"}},
        "network.norm = 'layer': one of instance, instance_affine, batch, group",
    ),
    "size": (
        {"federation": {"synthetic": "retina", "image_size": 40}},
        "federation.image_size = 40: unet makes images 16 times smaller; take a multiple of 16, "
        "at least 32",
    ),
    "method": ({"methods": ["fedmagic"]}, "methods: unknown method 'fedmagic'; there are apfl, "),
}


@pytest.mark.parametrize(("blocks", "expected"), UNFIT.values(), ids=UNFIT)
def test_an_unfit_choice_is_refused_before_images_are_read(blocks: dict[str, Any], expected: str):
    experiment = check_experiment(SMALLEST | blocks, "my.yaml")
    with pytest.raises(ConfigError) as caught:
        load_choices(experiment)
    assert str(caught.value).startswith(expected)


def test_the_usual_network_follows_what_the_task_learns_from(
    make_plan: Callable[..., Plan], shades: Path
):
    blocks = {"federation": {"folder": str(shades)}, "task": {"name": "classification"}}
    plain = make_plan(**blocks, network={}).resolved()
    assert plain["network"] == {"name": "resnet18", "norm": None, "width": None}
    assert plain["task"]["loss"] == "cross_entropy"
    assert make_plan(network={}).resolved()["network"]["name"] == "unet"


@pytest.mark.parametrize(("blocks", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_is_explained(blocks: dict[str, Any], expected: list[str]):
    message = refusal(**blocks)
    assert message.startswith("my.yaml: this cannot be meant:\n  ")
    for words in expected:
        assert words in message
    for jargon in ("Config", "Input", "pydantic", "validation, not", "type=", "<class"):
        assert jargon not in message


def test_every_mistake_is_listed_one_a_line():
    message = refusal(rounds=0, rouns=3, training={"lr": -1, "batch_size": "x"})
    assert len(message.splitlines()) == 5
    for key in ("rounds = 0", "rouns", "training.lr = -1", "training.batch_size = 'x'"):
        assert f"\n  {key}: " in message


# Files


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none\.yaml: no such experiment file"):
        read_experiment(tmp_path / "none.yaml")


def test_a_folder_is_no_file(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_experiment(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"rounds: [1", "not valid YAML: line 1"),
        (b"a: 1\nrounds: 3: 4\n", "not valid YAML: line 2: mapping values are not allowed here"),
        (b"- fedavg\n- fedsm\n", "this experiment file holds no mapping of keys"),
        (b"", "holds no mapping of keys"),
        (b"rounds: 3\nname: \xff\n", "cannot be read"),
    ],
)
def test_a_file_that_is_no_experiment(tmp_path: Path, content: bytes, expected: str):
    path = tmp_path / "my.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_experiment(path)
    assert "my.yaml: " in str(caught.value)
    assert expected in str(caught.value)


def test_folders_may_use_variables_and_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("IMAGES", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    federation = {"folder": "$IMAGES/eyes", "cache": "~/cache"}
    e = check_experiment(SMALLEST | {"federation": federation}, "my.yaml")
    assert e.federation.folder == tmp_path / "eyes"
    assert e.federation.cache_folder == tmp_path / "home" / "cache"


# --set


def overridden(file: Path, *overrides: str) -> Experiment:
    return read_experiment(file, list(overrides))


def test_overrides_reach_every_level(file: Path):
    e = overridden(
        file,
        "rounds=7",
        "training.lr=1e-4",
        "training.betas=[0.8, 0.9]",
        "task.structures.disc=[1, 2]",
        "seeds=[1, 2]",
        "seeds.1=5",
        "federation.image_size=32",
        "name=a-b",
    )
    assert (e.rounds, e.training.lr, e.training.betas) == (7, 1e-4, (0.8, 0.9))
    assert (e.task.structures, e.seeds) == ({"disc": [1, 2]}, [1, 5])
    assert (e.federation.image_size, e.name) == (32, "a-b")


def test_overrides_find_methods_by_name_by_label_and_by_number(file: Path):
    e = overridden(
        file,
        "methods=[fedavg, fedsm, {name: fedsm, label: half}]",
        "methods.fedsm.lambda=0.9",
        "methods.half.lambda=0.5",
        "methods.0.optimizer_state=reset",
    )
    assert [m.settings for m in e.methods] == [
        {"optimizer_state": "reset"},
        {"lambda": 0.9},
        {"lambda": 0.5},
    ]
    assert overridden(file, "methods.fedavg=local").methods[0].name == "local"


def test_overrides_reach_a_methods_training(file: Path):
    e = overridden(file, "methods.fedavg.training.lr=0.5", "methods.fedavg.training.warmup=2")
    own = e.methods[0].training
    assert (own.lr, own.warmup, own.model_fields_set) == (0.5, 2, {"lr", "warmup"})
    assert e.methods[0].settings == {}
    with pytest.raises(ConfigError, match=r"methods\.fedavg\.training\.lr = -1: must be greater"):
        overridden(file, "methods.fedavg.training.lr=-1")


def test_training_laid_over_training():
    usual = TrainingConfig(lr=0.5, warmup=2)
    assert TrainingConfig().laid_over(usual) == usual
    own = TrainingConfig(lr=1e-3, batch_size=4)  # a default that is written counts
    assert own.laid_over(usual) == TrainingConfig(lr=1e-3, warmup=2, batch_size=4)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rounds", "write key=value, such as --set rounds=10"),
        ("=3", "write key=value"),
        ("rounds=[", "not valid YAML"),
        ("rounds.deep=3", "rounds has no keys below it"),
        ("rounds.very.deep=3", "rounds has no keys below it"),
        ("federation.synthetic.x=1", "federation.synthetic has no keys below it"),
        ("methods.fedsm.lambda=0.5", "no entry fedsm; there are fedavg"),
        ("methods.7.lambda=0.5", "no entry 7; there are fedavg"),
    ],
)
def test_an_override_that_cannot_be_meant(file: Path, override: str, expected: str):
    with pytest.raises(ConfigError) as caught:
        overridden(file, override)
    assert str(caught.value).startswith(f"--set {override}: ")
    assert expected in str(caught.value)


def test_an_override_is_checked_like_the_file(file: Path):
    with pytest.raises(ConfigError, match=r"training\.lr = -1: must be greater than 0"):
        overridden(file, "training.lr=-1")
    with pytest.raises(ConfigError, match=r"training\.rate: unknown key"):
        overridden(file, "training.rate.deep=3")


# The methods' own settings


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (
            {"name": "fedsm", "lamda": 0.5},
            ["methods.fedsm: ", "lamda: unknown key; did you mean lambda?", "selector_lr"],
        ),
        ({"name": "fedsm", "lambda": "much"}, ["lambda = 'much': must be a number"]),
        (
            {"name": "fedsm", "label": "mine", "selector_lr": -1},
            ["methods.mine: ", "selector_lr = -1: must be greater than 0"],
        ),
        ({"name": "fedsoup", "start": 2}, ["start = 2: must be less than or equal to 1"]),
        (
            {"name": "fedavg", "optimizer_state": "forget"},
            ["optimizer_state = 'forget': must be 'persist', 'reset' or 'average'"],
        ),
        ({"name": "local", "lambda": 1}, ["lambda: unknown key"]),
        ({"name": "fedmagic"}, ["unknown method 'fedmagic'", "fedavg, ", "fedsm, "]),
    ],
)
def test_a_methods_settings_are_checked(method: dict[str, Any], expected: list[str]):
    with pytest.raises(ConfigError) as caught:
        method_settings(MethodConfig(**method))
    for words in expected:
        assert words in str(caught.value)


@pytest.mark.parametrize("value", [0.4, 1.01, -1])
def test_lambda_outside_its_range_states_the_range(make_plan: Callable[..., Plan], value: float):
    with pytest.raises(ConfigError) as caught:
        make_plan(methods=[{"name": "fedsm", "lambda": value}])
    for words in ("methods.fedsm.lambda", f"= {value}", "2 sites", "[0.5, 1]", "extrapolation"):
        assert words in str(caught.value)
    make_plan(methods=[{"name": "fedsm", "lambda": value, "allow_extrapolation": True}])


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ({"methods": ["fedmagic"]}, ["unknown method 'fedmagic'"]),
        ({"server": {"absences": {"west": [1]}}}, ["server.absences.west", "north, south"]),
        ({"server": {"min_sites": 3}}, ["server.min_sites = 3", "2 sites"]),
        ({"network": {"name": "unet", "width": 2, "norm": "batch"}}, []),
    ],
)
def test_what_does_not_fit_the_federation(
    make_plan: Callable[..., Plan], blocks: dict[str, Any], expected: list[str]
):
    if not expected:
        make_plan(**blocks)
        return
    with pytest.raises(ConfigError) as caught:
        make_plan(**blocks)
    for words in expected:
        assert words in str(caught.value)


def test_an_image_size_that_the_network_cannot_halve(make_plan: Callable[..., Plan], squares: Path):
    with pytest.raises(ConfigError) as caught:
        make_plan(federation={"folder": str(squares), "image_size": 40})
    for words in ("federation.image_size = 40", "unet", "multiple of 16", "at least 32"):
        assert words in str(caught.value)


def test_a_width_is_for_u_nets(make_plan: Callable[..., Plan], shades: Path):
    with pytest.raises(ConfigError, match=r"network\.width: resnet18 has no such setting"):
        make_plan(
            federation={"folder": str(shades), "image_size": 64},
            task={"name": "classification"},
            network={"width": 2},
        )


# --overlay


OF_A_FOLDER = {
    "name": "eyes",
    "federation": {"file": "eyes", "sites": ["a", "b"], "channels": 1, "image_size": 256},
    "training": {"lr": 0.5, "betas": [0.8, 0.9]},
    "methods": ["fedavg", {"name": "fedsm", "lambda": 0.7}, {"name": "fedsm", "label": "half"}],
    "rounds": 150,
    "seeds": [0, 1, 2],
}


def overlaid(folder: Path, *overlays: dict[str, Any], overrides: Sequence[str] = ()) -> Experiment:
    """OF_A_FOLDER under files with these keys."""
    paths = [folder / f"over{number}.yaml" for number in range(len(overlays))]
    for path, keys in zip(paths, overlays, strict=True):
        path.write_text(yaml.safe_dump(keys))
    return read_experiment(OF_A_FOLDER, overrides, overlays=paths)


def test_an_overlay_merges_blocks_and_replaces_lists(tmp_path: Path):
    e = overlaid(
        tmp_path, {"training": {"lr": 0.1, "betas": [0.1, 0.2]}, "seeds": [7], "rounds": 3}
    )
    assert (e.training.lr, e.training.betas, e.seeds, e.rounds) == (0.1, (0.1, 0.2), [7], 3)
    assert (e.name, e.federation.file, e.federation.image_size) == ("eyes", Path("eyes"), 256)
    assert overlaid(tmp_path, {"training": {"lr": 0.1}}).training.betas == (0.8, 0.9)


def test_null_in_an_overlay_takes_a_key_away(tmp_path: Path):
    e = overlaid(tmp_path, {"training": {"lr": None}, "seeds": None, "task": {"classes": None}})
    assert e.training.model_fields_set == {"betas"}
    assert (e.training.lr, e.seeds, e.task.classes) == (1e-3, [0], None)


def test_an_overlay_with_a_source_replaces_the_source_and_what_is_said_of_its_images(
    tmp_path: Path,
):
    e = overlaid(tmp_path, {"federation": {"synthetic": "retina", "images": {"elm": 3}}})
    assert (e.federation.synthetic, e.federation.file, e.federation.sites) == ("retina", None, None)
    assert e.federation.model_fields_set == {"synthetic", "images", "image_size"}
    assert e.federation.image_size == 256  # not of the images: stays
    back = overlaid(
        tmp_path,
        {"federation": {"synthetic": "retina", "images": {"elm": 3}}},
        {"federation": {"folder": "mine", "sites": ["c"]}},
    )
    assert (back.federation.folder, back.federation.sites) == (Path("mine"), ["c"])
    assert back.federation.images is None
    same = overlaid(tmp_path, {"federation": {"image_size": 32}})
    assert (same.federation.file, same.federation.sites) == (Path("eyes"), ["a", "b"])


def test_methods_in_an_overlay_by_name_or_all_anew(tmp_path: Path):
    own = {"half": {"lambda": 0.5}, "fedavg": {"training": {"lr": 0.2}}, "fedsm": None}
    found = overlaid(tmp_path, {"methods": own}).methods
    assert [(m.title, m.settings) for m in found] == [("fedavg", {}), ("half", {"lambda": 0.5})]
    assert found[0].training.lr == 0.2
    merged = overlaid(tmp_path, {"methods": {"fedsm": {"routing": "auto"}}}).methods[1]
    assert merged.settings == {"lambda": 0.7, "routing": "auto"}
    assert [m.name for m in overlaid(tmp_path, {"methods": ["local"]}).methods] == ["local"]


def test_overlays_come_in_their_order_and_before_set(tmp_path: Path):
    e = overlaid(tmp_path, {"rounds": 1, "seeds": [1]}, {"rounds": 2}, overrides=["seeds=[5]"])
    assert (e.rounds, e.seeds) == (2, [5])


def test_an_overlay_that_cannot_be_meant(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none\.yaml: no such overlay file"):
        read_experiment(OF_A_FOLDER, overlays=[tmp_path / "none.yaml"])
    with pytest.raises(ConfigError, match=r"with .*over0\.yaml: this .*\n  round: unknown key"):
        overlaid(tmp_path, {"round": 3})
    with pytest.raises(ConfigError, match=r"--overlay .*over0\.yaml: no entry moon; there are"):
        overlaid(tmp_path, {"methods": {"moon": {"mu": 1}}})

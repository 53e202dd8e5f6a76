import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from konsil.data.image_with_masks import open_with_masks
from konsil.data.readers import Percentiles
from konsil.data.reading import ImageReading
from konsil.data.recipe import Reading
from konsil.data.sources import Item
from konsil.errors import DataError, StateError
from konsil.networks import NetworkSpec, build_network
from konsil.supermodel import GLOBAL, SELECTOR, Facts, SuperModel
from konsil.supermodel.rules import Threshold, to_json
from konsil.weights import Weights

SITES = ["north", "south"]
SURE = {"rule": "threshold", "gamma": 0.0}
NETWORK = NetworkSpec("unet", 1, 1, 32, width=2)
SELECTING = NetworkSpec("small", 1, 2, 32)
# A batch and an image alone are summed in other orders, and norm layers enlarge what that leaves
# (to 7e-6 on one processor); two models differ by about 1.
CLOSE = 1e-3


def weights_of(spec: NetworkSpec, seed: int) -> Weights:
    torch.manual_seed(seed)
    return Weights.of(build_network(spec))


def sure_of(logits: list[float]) -> Weights:
    """A selector that says the same of every image."""
    weights = weights_of(SELECTING, 0)
    weights.flat[-2 * 128 - 2 : -2] = 0
    weights.flat[-2:] = torch.tensor(logits)
    return weights


def super_model(
    gamma: float = 0.5, network: NetworkSpec = NETWORK, **models: Weights
) -> SuperModel:
    usual = {name: weights_of(network, n) for n, name in enumerate((GLOBAL, *SITES))}
    usual[SELECTOR] = weights_of(SELECTING, 7)
    routing = to_json(Threshold(gamma))
    facts = Facts("segmentation", ["disc"], SITES, network.to_json(), SELECTING.to_json(), routing)
    return SuperModel(facts, usual | models)


def images(count: int = 6) -> Tensor:
    return torch.rand(count, 1, 32, 32, generator=torch.Generator().manual_seed(0))


# Routing (Algorithm 2)


def test_the_surest_site_above_gamma_answers():
    """A softmax of (0, ln 3) is (1/4, 3/4): the second site, as long as gamma is below 3/4."""
    x = images(1)
    model = super_model(selector=sure_of([0.0, 3.0]))
    route = model.route(x)
    expected = 1 / (1 + torch.exp(torch.tensor(-3.0)))
    assert route.probabilities.shape == (1, 2)
    assert route.confidence.item() == pytest.approx(expected.item(), abs=1e-6)
    assert route.site.tolist() == [1]
    for gamma, who in ((0.5, "south"), (0.95, "south"), (0.96, GLOBAL), (1.0, GLOBAL)):
        answer = model.with_gamma(gamma).answer(x)
        assert torch.equal(answer.logits, model.logits_of(who, x))
        assert answer.route.specialist.tolist() == [who != GLOBAL]
    other = super_model(selector=sure_of([3.0, 0.0]))
    assert torch.equal(other.answer(x).logits, other.logits_of("north", x))


def test_a_saturated_selector_does_not_pass_gamma_1():
    model = super_model(gamma=1.0, selector=sure_of([0.0, 200.0]))
    answer = model.answer(images())
    assert (answer.route.confidence == 1.0).all()  # exactly: float32 has no room beside it
    assert not answer.route.specialist.any()
    assert torch.equal(answer.logits, model.logits_of(GLOBAL, images()))


def test_gamma_0_always_asks_a_specialist():
    model = super_model(gamma=0.0)
    assert model.answer(images()).route.specialist.all()


def test_the_threshold_is_strict():
    model = super_model(selector=sure_of([0.0, 0.0]))  # exactly one half each
    assert not model.with_gamma(0.5).answer(images(1)).route.specialist.any()
    assert model.with_gamma(0.499).answer(images(1)).route.specialist.all()


def undecided() -> tuple[SuperModel, Tensor]:
    """A model and images of which every one of the three models answers some."""
    x = torch.cat([images(6), images(6) * 0.2, 1 - images(6) * 0.1])
    selector = weights_of(SELECTING, 7)
    selector.flat[-2 * 128 - 2 :] *= 40
    draft = super_model(gamma=0.0, selector=selector)
    logits, _ = draft.selector(x)
    apart = (logits[:, 1] - logits[:, 0]).detach().sort().values
    selector.flat[-1] -= apart[8:10].mean()  # half-way between two: no image is a tie
    draft = super_model(gamma=0.0, selector=selector)
    sorted_ = draft.route(x).confidence.sort().values  # between two: no image on the threshold
    return draft.with_gamma(sorted_[8:10].mean().item()), x


def test_every_image_is_answered_by_the_model_that_was_chosen_for_it():
    model, x = undecided()
    answer = model.answer(x)
    chosen = [
        SITES[site] if asked else GLOBAL
        for site, asked in zip(answer.route.site, answer.route.specialist, strict=True)
    ]
    assert set(chosen) == {GLOBAL, *SITES}
    for place, name in enumerate(chosen):
        alone = model.logits_of(name, x[place : place + 1])[0]
        assert torch.allclose(answer.logits[place], alone, atol=CLOSE)
        assert torch.allclose(model.answer(x[place : place + 1]).logits[0], alone, atol=CLOSE)


def test_the_order_of_images_and_of_sites_changes_no_answer():
    model, x = undecided()
    turned = model.answer(x.flip(0))
    assert torch.allclose(turned.logits.flip(0), model.answer(x).logits, atol=CLOSE)
    selector = model.models[SELECTOR].clone()
    for name in ("net.head.weight", "net.head.bias"):
        selector[name].copy_(selector[name].flip(0).clone())
    facts = Facts(**{**vars(model.facts), "sites": SITES[::-1]})
    other = SuperModel(facts, model.models | {SELECTOR: selector})
    assert torch.allclose(other.answer(x).logits, model.answer(x).logits, atol=CLOSE)
    names = [[m.facts.sites[i] for i in m.route(x).site] for m in (model, other)]
    assert names[0] == names[1]


def test_another_gamma_leaves_the_first_model_as_it_was():
    model = super_model(gamma=0.3)
    assert model.with_gamma(0.9).rule.gamma == 0.9
    assert model.rule.gamma == 0.3


def test_a_model_without_one_of_its_specialists_is_refused():
    model = super_model()
    for missing in (GLOBAL, SELECTOR, "south"):
        rest = {name: w for name, w in model.models.items() if name != missing}
        with pytest.raises(StateError, match=f"no weights for {missing}"):
            SuperModel(model.facts, rest)


# The folder


def test_a_saved_model_answers_as_before(tmp_path: Path):
    model, x = undecided()
    model.save(tmp_path / "model")
    loaded = SuperModel.load(tmp_path / "model")
    assert loaded.facts == model.facts
    assert all(loaded.models[name].equals(w) for name, w in model.models.items())
    assert torch.equal(loaded.answer(x).logits, model.answer(x).logits)


def test_names_of_sites_need_not_be_names_of_files(tmp_path: Path):
    sites = ["Köln/Süd", "a b", "a_b", ".."]
    selecting = NetworkSpec("small", 1, 4, 32)
    models = {name: weights_of(NETWORK, n) for n, name in enumerate((GLOBAL, *sites))}
    models[SELECTOR] = weights_of(selecting, 9)
    facts = Facts("segmentation", ["d"], sites, NETWORK.to_json(), selecting.to_json(), SURE)
    SuperModel(facts, models).save(tmp_path / "model")
    loaded = SuperModel.load(tmp_path / "model")
    assert all(loaded.models[name].equals(w) for name, w in models.items())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_saving_again_replaces_the_folder(tmp_path: Path):
    super_model(gamma=0.3).save(tmp_path)
    super_model(gamma=0.6).save(tmp_path)
    assert SuperModel.load(tmp_path).rule.gamma == 0.6


def edit(folder: Path, **changes: object) -> None:
    path = folder / "model.json"
    facts = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in facts.items() if v is not None}))


def of_file(folder: Path, **changes: object) -> None:
    """Say something else of the file of south's specialist."""
    files = json.loads((folder / "model.json").read_text())["files"]
    edit(folder, files=files | {"south": files["south"] | changes})


def souths(folder: Path) -> Path:
    return next(folder.glob("*south*"))


def link_out(folder: Path) -> None:
    path = souths(folder)
    (folder / "elsewhere").mkdir()
    path.rename(folder / "elsewhere" / "model")
    path.symlink_to(folder / "elsewhere" / "model")


def folder_for_file(folder: Path) -> None:
    souths(folder).unlink()
    (folder / json.loads((folder / "model.json").read_text())["files"]["south"]["file"]).mkdir()


def flip_a_bit(folder: Path) -> None:
    content = bytearray(souths(folder).read_bytes())
    content[-1] ^= 1
    souths(folder).write_bytes(content)


def no_quick_checksum(folder: Path) -> None:
    facts = json.loads((folder / "model.json").read_text())
    for entry in facts["files"].values():
        del entry["xxh3"]
    (folder / "model.json").write_text(json.dumps(facts))
    SuperModel.load(folder)
    flip_a_bit(folder)


def swap_files(folder: Path) -> None:
    north, south = next(folder.glob("*north*")), souths(folder)
    content = north.read_bytes()
    north.write_bytes(south.read_bytes())
    south.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no model.json": (lambda f: (f / "model.json").unlink(), "not a super model's folder"),
    "cut model.json": (lambda f: (f / "model.json").write_text('{"gam'), "not a super model's"),
    "a list": (lambda f: (f / "model.json").write_text("[]"), "not a super model's folder"),
    "another format": (lambda f: edit(f, format=4), "format 4, this Konsil reads 1 to 3"),
    "no format": (lambda f: edit(f, format=None), "not a super model's folder"),
    "another key": (lambda f: edit(f, shoe_size=43), "not a super model's folder"),
    "no rule": (lambda f: edit(f, routing=None), "not a super model's folder"),
    "a rule of another version": (
        lambda f: edit(f, routing={"rule": "oracle"}),
        "rule: one of threshold, utility, blend, argmax, ensemble, fixed",
    ),
    "a threshold above 1": (
        lambda f: edit(f, routing={"rule": "threshold", "gamma": 1.5}),
        "gamma = 1.5: from 0 to 1",
    ),
    "a cold selector": (lambda f: edit(f, temperature=0.0), "temperature = 0.0: a number above 0"),
    "files as text": (lambda f: edit(f, files="000"), "not a super model's folder"),
    "a network of another version": (
        lambda f: edit(f, network={"name": "unet", "depth": 9}),
        "not a specification of this version",
    ),
    "readings of another site": (
        lambda f: edit(f, reading={"west": {}}),
        "reading: of west, and not of every site",
    ),
    "not an object": (lambda f: edit(f, network="unet"), "not a specification of this version"),
    "deeper than anything": (
        lambda f: (f / "model.json").write_text("[" * 100_000),
        "not a super model's folder",
    ),
    "a model.json of a gigabyte": (
        lambda f: os.truncate(f / "model.json", 1 << 30),
        "larger than 16 MB",
    ),
    "a link for model.json": (
        lambda f: ((f / "model.json").rename(f / "x"), (f / "model.json").symlink_to("x")),
        "a link; a super model's folder holds plain files",
    ),
    "a path above": (lambda f: of_file(f, file="../north.safetensors"), "lie in its folder"),
    "a path from the root": (lambda f: of_file(f, file="/etc/passwd"), "lie in its folder"),
    "another kind of file": (lambda f: of_file(f, file="model.json"), "end in .safetensors"),
    "no file name": (lambda f: of_file(f, file=7), "lie in its folder"),
    "a link out of the folder": (link_out, "a link; a super model's folder holds plain files"),
    "a folder for a file": (folder_for_file, "no file; a super model's folder holds plain files"),
    "one bit": (flip_a_bit, "model.json was written with (its xxh3 is another)"),
    "one bit, where there is only a sha256": (no_quick_checksum, "(its sha256 is another)"),
    "two sites' files changed places": (swap_files, "damaged, or another file"),
    "a network of terabytes": (
        lambda f: edit(f, network=NETWORK.to_json() | {"width": 100_000}),
        "weights of another network than model.json says",
    ),
    "images of terabytes": (
        lambda f: edit(f, network=NETWORK.to_json() | {"image_size": 1 << 20}),
        "image_size = 1048576: 1 to 8192",
    ),
    "weights gone": (lambda f: next(f.glob("*south*")).unlink(), "south.safetensors"),
    "weights cut": (lambda f: next(f.glob("*south*")).write_bytes(b"12345678"), "south.safetens"),
    "a site without weights": (lambda f: edit(f, sites=[*SITES, "west"]), "no weights for west"),
}


@pytest.mark.parametrize(("damage", "expected"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_folder_is_refused(
    tmp_path: Path, damage: Callable[[Path], object], expected: str
):
    super_model().save(tmp_path)
    damage(tmp_path)
    with pytest.raises(StateError) as caught:
        SuperModel.load(tmp_path).answer(images(1))
    assert expected in str(caught.value)


def test_weights_of_another_network_are_refused(tmp_path: Path):
    wide = weights_of(NetworkSpec("unet", 1, 1, 32, width=4), 0)
    with pytest.raises(StateError, match="another network"):
        super_model(north=wide, selector=sure_of([9.0, 0.0])).answer(images(1))


def test_a_super_model_runs_without_the_training_code(tmp_path: Path):
    network = replace(NETWORK, name="unet_classic")
    super_model(network=network).save(tmp_path)
    script = f"""
import sys, torch
from pathlib import Path
from konsil.supermodel import SuperModel
torch.set_num_threads(1)
SuperModel.load(Path({str(tmp_path)!r})).answer(torch.rand(2, 1, 32, 32))
training = ["method", "methods", "server", "site", "host", "engines", "runner", "learner", "config",
            "data"]
print([name for name in training if "konsil." + name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_site_that_keeps_its_specialist_is_answered_by_the_global_model(tmp_path: Path):
    """South's images go to the global model, north's to north's; also after saving."""
    model, x = undecided()
    whole = model.with_gamma(0.0)
    assert "south" in [whole.answering[i] for i in whole.route(x).site.tolist()]
    given = {name: weights for name, weights in whole.models.items() if name != "south"}
    model = SuperModel(replace(whole.facts, withheld=["south"]), given)
    model.save(tmp_path / "model")
    for one in (model, SuperModel.load(tmp_path / "model")):
        route = one.route(x)
        assert torch.equal(route.site, whole.route(x).site)
        chosen = [one.answering[i] for i in route.site.tolist()]
        assert set(chosen) <= {"global", *given}
        assert route.specialist.tolist() == [name != "global" for name in chosen]
        for place, name in enumerate(chosen):
            alone = whole.logits_of(name, x[place : place + 1])[0]
            assert torch.allclose(one.answer(x).logits[place], alone, atol=CLOSE)


# Networks and tasks of one's own


def rewritten(folder: Path, **changes: object) -> None:
    """Change keys of model.json; None takes one away."""
    facts = json.loads((folder / "model.json").read_text()) | changes
    kept = {key: value for key, value in facts.items() if value is not None}
    (folder / "model.json").write_text(json.dumps(kept))


def as_before_checksums(folder: Path) -> None:
    """Format 2: names of files without a suffix, and nothing of readings, scores, provenance."""
    files = json.loads((folder / "model.json").read_text())["files"]
    stems = {name: entry["file"].removesuffix(".safetensors") for name, entry in files.items()}
    rewritten(folder, files=stems, format=2, reading=None, scores=None, provenance=None)


def test_a_folder_of_format_2_is_read(tmp_path: Path):
    model = super_model()
    model.save(tmp_path)
    as_before_checksums(tmp_path)
    again = SuperModel.load(tmp_path)
    assert again.facts == model.facts
    assert again.reading() == ImageReading()
    again.save(tmp_path)  # and is of format 3 when it is saved again
    assert json.loads((tmp_path / "model.json").read_text())["format"] == 3


def test_a_folder_of_konsil_0_1_is_read(tmp_path: Path):
    """Then the rule was a name, with the threshold beside it."""
    model = super_model(gamma=0.3)
    model.save(tmp_path)
    as_before_checksums(tmp_path)
    old = {"temperature": None, "limit": None, "format": 1, "gamma": 0.3, "routing": "threshold"}
    rewritten(tmp_path, **old)
    again = SuperModel.load(tmp_path)
    assert again.rule == Threshold(0.3)
    assert torch.equal(again.answer(images()).logits, model.answer(images()).logits)
    rewritten(tmp_path, routing="argmax")
    assert SuperModel.load(tmp_path).rule.name == "argmax"


@pytest.mark.parametrize(
    ("task", "targets"), [("segmentation", "masks"), ("classification", "classes")]
)
def test_a_folder_from_before_there_were_targets_is_read(tmp_path: Path, task: str, targets: str):
    super_model().save(tmp_path)
    rewritten(tmp_path, task=task, targets=None)
    assert SuperModel.load(tmp_path).facts.targets == targets


def test_a_task_of_ones_own_needs_no_plugin(tmp_path: Path):
    super_model().save(tmp_path)
    rewritten(tmp_path, task="lesions", targets="masks")
    assert SuperModel.load(tmp_path).facts.targets == "masks"
    rewritten(tmp_path, targets="boxes")
    with pytest.raises(StateError, match="targets = 'boxes': one of masks, classes"):
        SuperModel.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nobodys", "unknown network 'nobodys'"),
        ("nowhere_at_all.Net", "nowhere_at_all cannot be imported"),
        ("subprocess.run", "it is no class of networks"),
        ("collections.Counter", "it is no class of networks"),
    ],
)
def test_a_network_that_is_not_here_is_named_at_once(tmp_path: Path, name: str, why: str):
    super_model().save(tmp_path)
    rewritten(tmp_path, network=NETWORK.to_json() | {"name": name})
    with pytest.raises(StateError) as caught:
        SuperModel.load(tmp_path)
    for words in (str(tmp_path), why, "must be installed", "load_plugins([FILE.py])"):
        assert words in str(caught.value)


def test_a_network_by_its_path_is_saved_and_loaded(tmp_path: Path):
    arguments = {"init_filters": 8, "blocks_down": [1, 1], "blocks_up": [1]}
    spec = NetworkSpec("monai.networks.nets.SegResNet", 1, 1, 32, arguments=arguments)
    models = {name: weights_of(spec, n) for n, name in enumerate((GLOBAL, *SITES))}
    models[SELECTOR] = weights_of(SELECTING, 7)
    facts = Facts("segmentation", ["disc"], SITES, spec.to_json(), SELECTING.to_json(), SURE)
    model, x = SuperModel(facts, models), torch.rand(3, 1, 32, 32)
    model.save(tmp_path)
    again = SuperModel.load(tmp_path)
    assert again.facts == facts
    assert torch.equal(again.answer(x).logits, model.answer(x).logits)


# How files are read


WINDOW = {"window": [-100.0, 300.0], "view": "coronal", "channel": 1, "series": "T2.*"}


def reading(**sites: dict[str, object]) -> SuperModel:
    return super_model().changed(reading=sites)


def test_a_model_says_how_files_are_read(tmp_path: Path):
    reading(north=WINDOW, south=WINDOW).save(tmp_path)
    model = SuperModel.load(tmp_path)
    assert model.reading() == ImageReading((-100.0, 300.0), "coronal", 1, "T2.*")


def test_sites_that_read_differently_are_asked_for_by_name():
    model = reading(north=WINDOW, south={"window": {"percentiles": [1.0, 99.0]}})
    assert model.reading("south") == ImageReading(Percentiles(1, 99))
    with pytest.raises(DataError) as caught:
        model.reading()
    said = str(caught.value)
    assert "north: window [-100.0, 300.0], view coronal, channel 1, series T2.*" in said
    assert "say as which site's" in said
    with pytest.raises(DataError, match="west: no site of this model; it has north, south"):
        model.reading("west")


def test_a_picture_is_read_through_the_window_of_training(tmp_path: Path):
    """20 to 220 becomes 0 to 255; below and above is cut off."""
    values = np.array([[0, 20, 120, 220, 255]] * 5, np.uint8)
    Image.fromarray(values).save(tmp_path / "x.png")
    plain, windowed = super_model(), {"window": [20.0, 220.0]}
    model = reading(north=windowed, south={})
    size = {"network": NETWORK.to_json() | {"image_size": 5}}
    seen = model.changed(**size).read(tmp_path / "x.png", site="north")[0, 0, 0]
    assert (seen * 255).round().tolist() == [0, 0, 128, 255, 255]
    seen = plain.changed(**size).read(tmp_path / "x.png")[0, 0, 0]
    assert (seen * 255).round().tolist() == [0, 20, 120, 220, 255]


def test_colours_of_16_bit_are_read_as_in_training(tmp_path: Path):
    """Of 0x01ff Pillow would keep 1; all of it is 2 of 255."""
    import SimpleITK as sitk

    wide = np.full((32, 32, 3), 0x01FF, np.uint16)
    sitk.WriteImage(sitk.GetImageFromArray(wide, isVector=True), str(tmp_path / "x.png"))
    network = NetworkSpec("unet", 3, 1, 32, width=2)
    models = {name: weights_of(network, n) for n, name in enumerate((GLOBAL, *SITES))}
    model = super_model(network=network, **models)
    assert (model.read(tmp_path / "x.png") * 255).unique().tolist() == [2.0]
    trained = open_with_masks(tmp_path, Item("north", "x.png", "", "p"), Reading()).image(0, 3, 32)
    assert torch.equal(model.read(tmp_path / "x.png")[0] * 255, torch.from_numpy(trained).float())


# Without a selector: what other methods leave


def plain(routing: dict[str, object], *names: str) -> SuperModel:
    models = {name: weights_of(NETWORK, n) for n, name in enumerate((GLOBAL, *SITES))}
    facts = Facts("segmentation", ["disc"], SITES, NETWORK.to_json(), {}, routing)
    withheld = [site for site in SITES if site not in names]
    given = {name: weights for name, weights in models.items() if name in names}
    return SuperModel(replace(facts, withheld=withheld), given)


GLOBAL_ALONE = {"rule": "fixed", "model": 0}


def test_one_model_answers_everything(tmp_path: Path):
    plain(GLOBAL_ALONE, GLOBAL).save(tmp_path)
    model, x = SuperModel.load(tmp_path), images(3)
    answer = model.answer(x)
    assert torch.equal(answer.logits, model.logits_of(GLOBAL, x))
    assert model.asked(answer.route) == [GLOBAL] * 3
    assert answer.route.probabilities.isnan().all()  # nobody has looked
    assert answer.route.site.tolist() == [-1] * 3
    assert not answer.route.unfamiliar.any()
    with pytest.raises(DataError, match="north: no model of that name here; there are global"):
        model.logits_of("north", x)


def test_a_sites_own_model_is_asked_by_name():
    model, x = plain(GLOBAL_ALONE, GLOBAL, *SITES), images(2)
    assert torch.equal(model.answer(x).logits, model.logits_of(GLOBAL, x))
    assert not torch.equal(model.logits_of("south", x), model.logits_of(GLOBAL, x))


@pytest.mark.parametrize("names", [["north", "south"], ["south"]])
def test_sites_alone_answer_together(tmp_path: Path, names: list[str]):
    """Without a global model: the mean of probabilities, of those whose model is here."""
    plain({"rule": "even"}, *names).save(tmp_path)
    model, x = SuperModel.load(tmp_path), images(2)
    mean = sum(model.logits_of(name, x).sigmoid() for name in names) / len(names)
    torch.testing.assert_close(model.answer(x).logits.sigmoid(), mean)
    assert model.asked(model.route(x)) == [" + ".join(names)] * 2


def test_whom_to_ask_needs_somebody_who_says_so():
    with pytest.raises(ValueError, match="routing: threshold asks a selector, and there is none"):
        plain(SURE, GLOBAL)
    with pytest.raises(StateError, match="no weights for global"):
        plain(GLOBAL_ALONE, *SITES)
    with pytest.raises(StateError, match="no weights for global"):
        plain({"rule": "even"})

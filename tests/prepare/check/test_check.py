"""The facts, the warnings and the words of a check."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from rich.console import Console

from konsil.prepare.check import check_federation
from konsil.prepare.check.show import print_check
from tests.data import volume_files as files

TWO_SITES = """
    structures: {disc: [128, 255], cup: [255]}
    sites:
      a: {images: a/images/*.png, labels: a/masks/*.png}
      b: {images: b/images/*.png, labels: b/masks/*.png}
"""
OF_PATIENTS = TWO_SITES + r"    patient: ^(.+)_\d$" + "\n"


def kinds(result):
    return [note.kind for note in result.warnings]


def text_of(result, kind):
    [note] = [note for note in result.warnings if note.kind == kind]
    return note.text


@pytest.fixture
def pictures(build):
    build.pairs("a", 20)
    build.pairs("b", 20, value=128)
    for i in range(20):
        build.mask(f"a/masks/p{i}.png", 128 if i % 2 else 255)
    return build


# --- facts --------------------------------------------------------------------------------------


def test_facts_of_pictures(pictures):
    pictures.image("b/images/p3.png", size=(40, 30))
    pictures.mask("b/masks/p3.png", value=128, size=(40, 30))
    result = check_federation(pictures.manifest(TWO_SITES))
    a, b = result.sites["a"], result.sites["b"]
    assert (a.images, a.volumes, a.patients, a.patients_known) == (20, 0, 20, False)
    assert (a.size, a.smallest, a.largest) == ((20, 16),) * 3
    assert (b.size, b.smallest, b.largest) == ((20, 16), (20, 16), (40, 30))
    assert a.formats == {"PNG": 20}
    assert a.pixels == {"8-bit colour": 20}
    assert (a.low, a.high) == (0, 255)
    assert a.values == {"128": 10 * 160, "255": 10 * 160}
    assert a.areas == {"disc": 0.5, "cup": 0.25}
    assert a.without == {"disc": 0, "cup": 10}
    assert b.areas == {"disc": 0.5, "cup": 0}
    assert a.spacing is None
    assert result.labels == ("disc", "cup")


def test_splits_are_those_that_training_draws(build):
    for site in "ab":
        for patient in range(9):
            for visit in range(1 + patient % 3):
                build.image(f"{site}/images/p{patient}_{visit}.png")
                build.mask(f"{site}/masks/p{patient}_{visit}.png")
    path = build.manifest(OF_PATIENTS + "    split: {train: 0.4, val: 0.3, test: 0.3, seed: 3}\n")
    result = check_federation(path)
    federation = build.open(file=path)
    for site, own in result.sites.items():
        assert {s: n["images"] for s, n in own.splits.items()} == federation.counts[site]
        assert {s: n["patients"] for s, n in own.splits.items()} == federation.patients[site]
    drawn = {(i.site, i.image): i.split for i in federation.items}
    assert {(i.site, i.image): i.split for i in result.images} == drawn


def test_colours_are_written_as_colours(build):
    for i in range(6):
        build.image(f"a/images/{i}.png", size=(4, 4))
        mask = np.zeros((4, 4, 3), np.uint8)
        mask[:2] = 255, 0, 0
        build.array(f"a/masks/{i}.png", mask)
    path = build.manifest(
        """
        structures: {cup: ["#ff0000"]}
        sites: {a: {images: a/images/*.png, labels: a/masks/*.png}}
        """
    )
    assert check_federation(path).sites["a"].values == {"#ff0000": 6 * 8}


def test_warnings_of_training_are_warnings_of_the_check(pictures):
    for i in range(20):
        pictures.array(f"b/images/p{i}.png", np.full((16, 20), 4000 + i, np.uint16))
    path = pictures.manifest(TWO_SITES)
    result = check_federation(path)
    assert kinds(result)[:2] == ["missing structure", "dark images"]
    assert [note.text for note in result.warnings][:2] == pictures.open(file=path).warnings
    assert "window: [0, 4019]" in text_of(result, "dark images")


def test_json_is_plain(pictures):
    shutil.copy(pictures.root / "a/images/p0.png", pictures.root / "b/images/p0.png")
    (pictures.root / "a/images/p1.png").write_bytes(b"")
    result = check_federation(pictures.manifest(TWO_SITES))
    content = json.loads(json.dumps(result.to_json()))
    assert content["ok"] is False
    assert content["sites"]["a"]["images"] == 19
    assert content["errors"][0]["places"] == ["a/images/p1.png (empty file)"]
    assert {"kind", "site", "text"} == set(content["warnings"][0])
    [copy] = content["copies"]
    assert copy["exact"] is True
    assert [image["image"] for image in copy["images"]] == ["a/images/p0.png", "b/images/p0.png"]


# --- copies -------------------------------------------------------------------------------------


def textures(build, site, count=12):
    """Images with something to see on them; noise does not survive a JPEG."""
    for i in range(count):
        coarse = np.random.default_rng([ord(site), i]).integers(0, 256, (12, 12), dtype=np.uint8)
        large = Image.fromarray(coarse).resize((96, 96), Image.Resampling.BICUBIC)
        build.array(f"{site}/images/p{i}_0.png", np.asarray(large))
        build.mask(f"{site}/masks/p{i}_0.png", size=(96, 96))


@pytest.fixture
def textured(build):
    textures(build, "a")
    textures(build, "b")
    return build


def drawn(result, site, split):
    return next(i for i in result.images if (i.site, i.split) == (site, split))


def copy_of(build, source, target, change=lambda image: image):
    """A changed copy of an image; its mask stays."""
    changed = change(Image.open(build.root / source))
    changed.save(build.root / target)
    mask = build.root / target.replace("images", "masks")
    Image.open(mask).resize(changed.size, Image.Resampling.NEAREST).save(mask)


def test_no_copies_where_there_are_none(textured):
    result = check_federation(textured.manifest(OF_PATIENTS))
    assert result.copies == ()
    assert not [kind for kind in kinds(result) if "cop" in kind]


CHANGES = {
    "resized": lambda image: image.resize((80, 80)),
    "brightened": lambda image: ImageEnhance.Brightness(image).enhance(1.1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_near_copies_in_another_split(textured, change):
    path = textured.manifest(OF_PATIENTS)
    before = check_federation(path)
    train, test = drawn(before, "a", "train"), drawn(before, "a", "test")
    copy_of(textured, train.image, test.image, CHANGES[change])
    result = check_federation(path)
    [copy] = result.copies
    assert {copy.first.image, copy.second.image} == {train.image, test.image}
    assert copy.similarity > 0.9
    text = text_of(result, "copies in different splits")
    assert "1 image is almost the same as one in another split" in text
    assert train.image in text
    assert test.image in text
    assert not [note for note in textured.open(file=path).warnings if "almost" in note]


def test_reencoded_copy_at_another_site_in_the_same_split(textured):
    path = textured.manifest(OF_PATIENTS.replace("b/images/*.png", '"b/images/*.{png,jpg}"'))
    before = check_federation(path)
    here, there = drawn(before, "a", "train"), drawn(before, "b", "train")
    (textured.root / there.image).unlink()
    target = textured.root / there.image.replace(".png", ".jpg")
    Image.open(textured.root / here.image).save(target, quality=70)
    text = text_of(check_federation(path), "copies at several sites")
    assert f"{here.image} (a) and {there.image.replace('.png', '.jpg')} (b)" in text


def test_exact_copies_are_told_once_and_by_place(textured):
    path = textured.manifest(OF_PATIENTS)
    before = check_federation(path)
    first, second, *_ = (i for i in before.images if (i.site, i.split) == ("a", "train"))
    shutil.copy(textured.root / first.image, textured.root / second.image)
    result = check_federation(path)
    assert [copy.similarity for copy in result.copies] == [None]
    text = text_of(result, "copies in one split")
    assert text.startswith("1 image is the same, byte for byte, as another one of the same site")
    assert "copies with different labels" not in kinds(result)


def test_exact_copies_with_two_masks_contradict_each_other(textured):
    path = textured.manifest(OF_PATIENTS)
    shutil.copy(textured.root / "a/images/p0_0.png", textured.root / "b/images/p0_0.png")
    textured.mask("b/masks/p0_0.png", value=128, size=(96, 96))
    text = text_of(check_federation(path), "copies with different labels")
    assert "a/images/p0_0.png (a) and b/images/p0_0.png (b)" in text


def test_images_of_one_patient_may_be_alike(textured):
    copy_of(textured, "a/images/p0_0.png", "a/images/p1_0.png", CHANGES["brightened"])
    for folder in ("images", "masks"):
        (textured.root / f"a/{folder}/p1_0.png").rename(textured.root / f"a/{folder}/p0_1.png")
    assert check_federation(textured.manifest(OF_PATIENTS)).copies == ()
    assert len(check_federation(textured.manifest(TWO_SITES)).copies) == 1


def test_near_copies_of_volumes_are_told_by_file(build):
    shape, affine = files.grid()
    mask = np.zeros(shape, np.uint8)
    mask[1:3, 1:4, 1:5] = 1
    for patient in range(4):
        image = files.noise(shape, patient if patient < 3 else 0)
        image[0, 0, 0] += patient  # other bytes
        files.write_nifti(build.root / f"a/images/p{patient}.nii.gz", image, affine)
        files.write_nifti(build.root / f"a/masks/p{patient}.nii.gz", mask, affine)
    path = build.manifest("sites: {a: {images: a/images/*.nii.gz, labels: a/masks/*.nii.gz}}")
    [copy] = check_federation(path).copies
    assert (copy.first.image, copy.second.image) == ("a/images/p0.nii.gz", "a/images/p3.nii.gz")
    assert copy.first.plane == copy.second.plane == 1


# --- what is odd --------------------------------------------------------------------------------


def test_sites_of_very_different_spacing(build):
    for site, scale in (("a", (0.5, 0.5, 3.0)), ("b", (0.9, 0.9, 3.0)), ("c", (0.6, 0.6, 1.0))):
        affine = np.diag([*scale, 1.0])
        for patient in range(3):
            image = files.noise((8, 8, 4), patient + ord(site))
            files.write_nifti(build.root / f"{site}/images/p{patient}.nii", image, affine)
            mask = np.ones((8, 8, 4), np.uint8)
            files.write_nifti(build.root / f"{site}/masks/p{patient}.nii", mask, affine)
    sites = ", ".join(f"{s}: {{images: {s}/images/*, labels: {s}/masks/*}}" for s in "abc")
    result = check_federation(build.manifest(f"sites: {{{sites}}}"))
    assert result.sites["b"].spacing == (3.0, 0.9, 0.9)
    pixels = text_of(result, "different pixel spacing")
    assert pixels.startswith("pixels are 0.5 mm apart at a and 0.9 mm at b")
    slices = text_of(result, "different slice spacing")
    assert slices.startswith("slices are 1 mm apart at c and 3 mm at")


def test_pixels_of_several_kinds(pictures):
    pictures.array("a/images/p3.png", np.full((16, 20), 9, np.uint8))
    text = text_of(check_federation(pictures.manifest(TWO_SITES)), "mixed pixel types")
    assert "19 8-bit colour, 1 8-bit grey" in text


def test_a_window_that_leaves_nothing(pictures):
    path = pictures.manifest(TWO_SITES + "    window: [300, 400]\n")
    result = check_federation(path)
    notes = [note for note in result.warnings if note.kind == "almost black or white"]
    assert [note.site for note in notes] == ["a", "b"]
    assert "100% of all pixels" in notes[0].text
    assert "0 to 255" in notes[0].text


def test_a_few_empty_masks_may_be_forgotten(pictures):
    pictures.mask("a/masks/p7.png", value=0)
    result = check_federation(pictures.manifest(TWO_SITES))
    assert "1 of 20 images (a/images/p7.png)" in text_of(result, "few empty masks")
    for i in range(8):
        pictures.mask(f"a/masks/p{i}.png", value=0)
    result = check_federation(pictures.manifest(TWO_SITES))
    assert "few empty masks" not in kinds(result)
    assert result.sites["a"].unmarked == 8


# --- on a terminal ------------------------------------------------------------------------------


def printed(result, width=80):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_check(console, result)
    return console.export_text()


def test_the_terminal_shows_facts_and_a_closing_line(pictures):
    shown = printed(check_federation(pictures.manifest(TWO_SITES)))
    assert "20 x 16" in shown
    assert "50.0%" in shown
    assert "missing on 10" in shown
    assert shown.rstrip().endswith("nothing stands in the way of training, with 1 warning")


def test_errors_stand_before_warnings(pictures):
    (pictures.root / "b/images/p1.png").write_bytes(b"")
    shown = printed(check_federation(pictures.manifest(TWO_SITES)))
    lines = shown.splitlines()
    error = next(n for n, line in enumerate(lines) if line.startswith("error: image that cannot"))
    warning = next(n for n, line in enumerate(lines) if line.startswith("warning: site b: cup"))
    assert error < warning
    assert "    b/images/p1.png (empty file)" in lines[error + 1]
    assert lines[error + 2].startswith("    -> save it again")
    assert lines[-1] == "1 error and 1 warning: training would refuse this federation"


def test_brackets_are_no_markup_and_long_names_fold(build):
    site = "[red]" + "long-name-" * 6
    build.pairs(site, 6)
    path = build.manifest(
        f"sites: {{{json.dumps(site)}: {{images: '*/images/*.png', labels: '*/masks/*.png'}}}}"
    )
    shown = printed(check_federation(path))
    assert "[red]long-name-" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_file_that_cannot_be_read_prints_one_error(build):
    shown = printed(check_federation(build.root))
    assert "konsil data init" in shown
    assert shown.rstrip().endswith("1 error: training would refuse this federation")


# --- real data ----------------------------------------------------------------------------------

REAL = {
    "prostate_mri": (
        r"structures: {prostate: [255]}" "\nchannels: 1\n" r"patient: ^(.+)_\d+$",
        1171,
    ),
    "fundus_disc_cup": ("structures: {disc: [128, 255], cup: [255]}", 1072),
}


@pytest.mark.parametrize("name", REAL)
def test_real_hospitals_have_no_copies_and_no_errors(shared_data, tmp_path, name):
    top, count = REAL[name]
    sites = [folder.name for folder in (shared_data / name).iterdir() if folder.is_dir()]
    for site in sites:
        (tmp_path / site).symlink_to(shared_data / name / site)
    blocks = "".join(
        f"  {site}: {{images: {site}/images/*.jpg, labels: {site}/masks/*.png}}\n" for site in sites
    )
    (tmp_path / "federation.yaml").write_text(f"{top}\nsites:\n{blocks}")
    result = check_federation(tmp_path)
    assert result.ok
    assert result.warnings == ()
    assert sum(own.images for own in result.sites.values()) == count

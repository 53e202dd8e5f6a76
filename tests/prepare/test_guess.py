"""`konsil data init` on folders as people have them. What it writes must open as it is."""

import json
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml

from konsil.data.manifest import read_manifest
from konsil.errors import DataError, KonsilError
from konsil.prepare.guess import write_first_file
from konsil.prepare.guess.pairing import affixes
from konsil.prepare.guess.rules import (
    PATIENTS as PATIENT_NAMES,
)
from konsil.prepare.guess.rules import (
    RULES,
    class_order,
    joined,
    role_of,
    says,
    words,
)
from tests.data.volume_files import (
    grid,
    noise,
    write_itk,
    write_nifti,
    write_pictures,
    write_segmentation,
    write_series,
)

SITES = ("north", "south")
PATIENTS = ("P01", "P02", "P03", "P04")


class Written:
    """The file that init wrote, and the federation that comes of it."""

    def __init__(self, build, task=None, **given):
        self.first = write_first_file(build.root, task, **given)
        self.text = self.first.path.read_text(encoding="utf-8")
        self.content = yaml.safe_load(self.text)
        self.sites = self.content["sites"]
        self.to_do = "\n".join(self.first.to_do)
        task = self.content["task"]
        self.federation = build.open(
            task={"name": task}, file=self.first.path, sites=sorted(self.sites)
        )
        self.items = self.federation.items

    @property
    def images(self):
        return Counter(item.site for item in self.items)

    @property
    def patients(self):
        return {(item.site, item.patient) for item in self.items}


def mask_of(path: str, value: int = 255) -> np.ndarray:
    """A mask with a block inside, whose place depends on the name."""
    pixels = np.zeros((16, 20), dtype=np.uint8)
    shift = sum(map(ord, path)) % 4
    pixels[4 : 8 + shift, 5 : 9 + shift] = value
    return pixels


def write_pairs(build, image: str, mask: str, values=(255,), **choices) -> None:
    """An image and a mask for every site and number; {site}, {i} and {split} are filled in."""
    splits = choices.get("splits", ("train",))
    for site in choices.get("sites", SITES):
        for i in range(choices.get("count", 6)):
            names = {"site": site, "i": f"{i:02d}", "split": splits[i % len(splits)]}
            build.image(image.format(**names))
            path = mask.format(**names)
            build.array(path, mask_of(path, values[i % len(values)]))


# --- pictures with masks ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "mask", "images", "labels"),
    [
        ("{site}/images/c{i}.jpg", "{site}/masks/c{i}.png", "images/*.jpg", "masks/*.png"),
        ("{site}/img/c{i}.png", "{site}/gt/c{i}_mask.png", "img/*.png", "gt/*_mask.png"),
        ("{site}/Scans/c{i}.png", "{site}/Ground_Truth/c{i}.bmp", "Scans/*.png", None),
        ("{site}/c{i}.png", "{site}/c{i}_mask.png", "*.png", "*_mask.png"),
        ("{site}/c{i}.png", "{site}/c{i}_segmentation.png", "*.png", "*_segmentation.png"),
        ("{site}/c{i}_img.png", "{site}/c{i}_seg.png", "*_img.png", "*_seg.png"),
        ("{site}/img_{i}.png", "{site}/label_{i}.png", "img_*.png", "label_*.png"),
        ("{site}/fundus/{i}.png", "{site}/annotations/{i}.png", "fundus/*.png", None),
        ("images/{site}/c{i}.png", "masks/{site}/c{i}.png", None, None),
        ("all/{site}/images/c{i}.png", "all/{site}/masks/c{i}.png", None, None),
    ],
)
def test_masks_beside_images(build, image, mask, images, labels):
    write_pairs(build, image, mask)
    written = Written(build)
    assert written.images == {"north": 6, "south": 6}
    if images is not None:
        assert written.sites["north"]["images"] == f"north/{images}"
    if labels is not None:
        assert written.sites["south"]["labels"] == f"south/{labels}"
    assert written.content["task"] == "segmentation"
    assert written.content["structures"] == {"foreground": [255]}
    for item in written.items:
        assert re.findall(r"\d+", item.image) == re.findall(r"\d+", item.label)


def test_one_site_without_folders_for_sites(build):
    write_pairs(build, "images/c{i}.png", "masks/c{i}.png", sites=[""])
    written = Written(build)
    assert written.images == {"federation": 6}  # named after the folder
    assert written.sites["federation"]["images"] == "images/*.png"
    assert "one site only" in written.to_do


def test_flat_pictures_are_not_taken_for_masks_of_one_another(build):
    """Classes of drawings: the same names, few values on both sides."""
    for site in SITES:
        for name in ("ill", "well"):
            for i in range(5):
                build.array(f"{site}/{name}/{i}.png", mask_of(f"{name}{i}"))
    written = Written(build)
    assert written.content["classes"] == ["ill", "well"]
    assert written.images == {"north": 10, "south": 10}


def test_several_suffixes(build):
    for i in range(6):
        build.image(f"north/images/c{i}.{'png' if i % 2 else 'JPG'}")
        build.array(f"north/masks/c{i}.png", mask_of(str(i)))
    written = Written(build)
    assert written.sites["north"]["images"] == "north/images/*{.JPG,.png}"
    assert written.images == {"north": 6}


@pytest.mark.parametrize(
    ("disc", "cup"),
    [
        ("{site}/masks/disc/c{i}.png", "{site}/masks/cup/c{i}.png"),
        ("{site}/disc_masks/c{i}.png", "{site}/cup_masks/c{i}.png"),
        ("{site}/masks/c{i}_disc.png", "{site}/masks/c{i}_cup.png"),
        ("{site}/images/c{i}_disc_mask.png", "{site}/images/c{i}_cup_mask.png"),
        ("{site}/images/c{i}_disc.png", "{site}/images/c{i}_cup.png"),
    ],
)
def test_a_mask_file_for_each_structure(build, disc, cup):
    write_pairs(build, "{site}/images/c{i}.png", disc)
    write_pairs(build, "{site}/images/c{i}.png", cup)
    written = Written(build)
    assert set(written.sites["north"]["labels"]) == {"disc", "cup"}
    assert set(written.content["structures"]) == {"disc", "cup"}
    assert set(written.federation.labels) == {"disc", "cup"}
    assert "check the names cup, disc" in written.to_do


def test_masks_of_several_people_are_pointed_out(build):
    for reader in (1, 2, 3):
        write_pairs(build, "{site}/images/c{i}.png", f"{{site}}/masks/c{{i}}_expert{reader}.png")
    written = Written(build)
    assert list(written.sites["north"]["labels"]) == ["expert1", "expert2", "expert3"]
    assert "people who drew the same structure, keep the pattern of one" in written.to_do


def test_images_without_a_mask_are_named(build):
    write_pairs(build, "{site}/images/c{i}.png", "{site}/masks/c{i}.png")
    build.image("north/images/alone.png")
    first = write_first_file(build.root)
    problem = next(line for line in first.to_do if "image without a mask" in line)
    assert "north/images/alone.png" in problem


def test_a_site_without_masks_is_left_out_and_said(build):
    write_pairs(build, "{site}/images/c{i}.png", "{site}/masks/c{i}.png", sites=[*SITES, "west"])
    build.image("bare/images/x.png")
    written = Written(build)
    assert set(written.sites) == {"north", "south", "west"}
    assert "bare was left out, for it has no masks: bare/images/x.png" in written.to_do


# --- what masks hold ----------------------------------------------------------------------------


def test_values_become_structures_with_names_to_edit(build):
    write_pairs(build, "{site}/images/c{i}.png", "{site}/masks/c{i}.png", values=(128, 255))
    written = Written(build)
    assert written.content["structures"] == {"structure_1": [128], "structure_2": [255]}
    assert "# Found 128, 255 in 12 of 12 masks." in written.text
    assert "structures: give their names; found 128, 255" in written.to_do


def test_sites_that_write_other_values(build):
    write_pairs(build, "{site}/images/c{i}.png", "{site}/masks/c{i}.png", (1, 2), sites=["north"])
    write_pairs(
        build, "{site}/images/c{i}.png", "{site}/masks/c{i}.png", (128, 255), sites=["south"]
    )
    written = Written(build)
    assert "structures" not in written.content
    assert written.sites["north"]["structures"] == {"structure_1": [1], "structure_2": [2]}
    assert written.sites["south"]["structures"] == {"structure_1": [128], "structure_2": [255]}


def test_one_value_a_site(build):
    write_pairs(build, "{site}/images/c{i}.png", "{site}/masks/c{i}.png", (1,), sites=["north"])
    write_pairs(build, "{site}/images/c{i}.png", "{site}/masks/c{i}.png", sites=["south"])
    assert Written(build).content["structures"] == {"foreground": [1, 255]}


def test_white_background(build):
    """REFUGE's way: 255 is background, 128 the rim, 0 the cup."""
    for i in range(6):
        pixels = np.full((16, 20), 255, np.uint8)
        pixels[4:12, 4:12] = 128
        pixels[6:9, 6:9] = 0
        build.image(f"north/images/c{i}.png")
        build.array(f"north/masks/c{i}.png", pixels)
    written = Written(build)
    assert written.content["background"] == 255
    assert written.content["structures"] == {"structure_1": [0], "structure_2": [128]}


def test_coloured_masks(build):
    for i in range(6):
        pixels = np.zeros((16, 20, 3), np.uint8)
        pixels[4:8, 4:8] = (255, 0, 0)
        pixels[9:12, 9:12] = (0, 255, 0)
        build.image(f"north/images/c{i}.png")
        build.array(f"north/masks/c{i}.png", pixels)
    written = Written(build)
    assert written.content["structures"] == {"structure_1": ["#00ff00"], "structure_2": ["#ff0000"]}
    assert len(written.items) == 6


def write_coloured(build, site: str, *colours) -> None:
    for i in range(6):
        pixels = np.zeros((16, 20, 3), np.uint8)
        for k, colour in enumerate(colours):
            pixels[4 * k + 2 : 4 * k + 5, 4:8] = colour
        build.image(f"{site}/images/c{i}.png")
        build.array(f"{site}/masks/c{i}.png", pixels)


def test_a_coloured_site_among_grey_ones(build):
    """`one` and `part` have fewer values than there are structures."""
    grey = {"one": (255,), "two": (1, 2), "part": (2,)}
    for site, values in grey.items():
        write_pairs(build, "{site}/images/c{i}.png", "{site}/masks/c{i}.png", values, sites=[site])
    write_coloured(build, "red", (255, 0, 0), (0, 255, 0))
    written = Written(build)
    assert "structures" not in written.content
    assert {name: list(site["structures"].values()) for name, site in written.sites.items()} == {
        "red": [["#00ff00"], ["#ff0000"]],
        "two": [[1], [2]],
    }
    for name, values in (("one", "255"), ("part", "2")):
        assert f"{name} was left out, for its masks hold {values} and" in written.to_do
        assert f"{name} was left out, for its masks hold {values} and" in written.text


def test_one_colour_and_one_value(build):
    write_coloured(build, "red", (255, 0, 0))
    write_pairs(build, "{site}/images/c{i}.png", "{site}/masks/c{i}.png")
    written = Written(build)
    assert written.sites["red"]["structures"] == {"foreground": ["#ff0000"]}
    assert written.sites["north"]["structures"] == {"foreground": [255]}


def test_masks_saved_as_jpeg_are_refused_in_words(build):
    rng = np.random.default_rng(0)
    for i in range(4):
        build.image(f"north/images/c{i}.png")
        pixels = mask_of(str(i)).astype(int) + rng.integers(0, 40, (16, 20))
        build.array(f"north/masks/c{i}.png", pixels.clip(0, 255).astype(np.uint8))
    first = write_first_file(build.root)
    assert any("save masks as PNG" in line for line in first.to_do)


# --- colour and depth ---------------------------------------------------------------------------


def test_grey_pictures_have_one_channel(build):
    for i in range(6):
        build.array(
            f"north/images/c{i}.png",
            np.random.default_rng(i).integers(0, 256, (16, 20), dtype=np.uint8),
        )
        build.array(f"north/masks/c{i}.png", mask_of(str(i)))
    assert Written(build).content["channels"] == 1


def test_twelve_bits_in_sixteen_get_a_window(build):
    for i in range(6):
        pixels = np.random.default_rng(i).integers(0, 3000, (16, 20)).astype(np.uint16)
        build.array(f"north/images/c{i}.png", pixels)
        build.array(f"north/masks/c{i}.png", mask_of(str(i)))
    written = Written(build)
    assert written.content["window"] == [0, 4095]
    assert not any("16-bit" in note for note in written.federation.warnings)


# --- classes ------------------------------------------------------------------------------------


def test_one_folder_a_class(build):
    for site in SITES:
        build.classes(site, tumour=5, normal=6)
    written = Written(build)
    assert written.content["classes"] == ["normal", "tumour"]  # the positive one last
    assert written.sites["north"] == {"images": "north/*/*.png", "labels": "folder"}
    assert written.images == {"north": 11, "south": 11}
    assert "north: 11 images (6 normal, 5 tumour)" in written.first.found


def test_classes_of_one_site(build):
    build.classes(".", tumour=5, normal=6)
    written = Written(build)
    assert written.content["classes"] == ["normal", "tumour"]
    assert list(written.sites) == ["federation"]


def test_folders_that_may_be_classes_or_sites(build):
    build.classes(".", aachen=5, berlin=6)
    written = Written(build)
    assert written.content["classes"] == ["aachen", "berlin"]
    assert "the folders aachen, berlin are taken for classes: are they sites?" in written.to_do


def test_patients_above_classes(build):
    for site in SITES:
        for patient in PATIENTS:
            build.classes(f"{site}/{patient}", tumour=2, normal=2)
    written = Written(build)
    assert written.images == {"north": 16, "south": 16}
    assert written.patients == {(site, p) for site in SITES for p in PATIENTS}


def test_numbered_patients_above_classes_are_no_sites(build):
    """The layout of IDC's patches."""
    for patient in range(8861, 8869):
        build.classes(str(patient), **{"0": 2, "1": 2})
    written = Written(build)
    assert written.images == {"federation": 32}
    assert written.patients == {("federation", str(p)) for p in range(8861, 8869)}


def test_masks_that_lie_elsewhere_are_named_by_a_classification(build):
    """REFUGE as it is downloaded: its masks lie in no site's folder."""
    for split in ("Training400", "Validation400"):
        build.classes(split, **{"Glaucoma": 4, "Non-Glaucoma": 4})
    build.array("Disc_Cup_Masks/Glaucoma/g0001.bmp", mask_of("g0001"))
    written = Written(build)
    assert written.content["classes"] == ["Non-Glaucoma", "Glaucoma"]
    unused = "not used, because nothing goes with it: Disc_Cup_Masks/Glaucoma/g0001.bmp"
    assert unused in written.to_do
    assert unused in written.text  # what is left out stands in the file
    assert "was left out, for it has no masks" not in written.text


def test_classes_in_a_table_of_names(build):
    rows = []
    for site in SITES:
        for i in range(9):
            build.image(f"{site}/images/{site}{i}.png")
            rows.append(f"{site},{site}{i},{i % 2},{60 + i}")
    build.table(*rows, header="hospital,name,diagnosis,age", name="index.csv")
    written = Written(build)
    assert written.content["classes"] == {"class_0": [0], "class_1": [1]}
    assert written.sites["north"]["list"] == {
        "file": "index.csv",
        "where": {"hospital": "north"},
        "image": "north/images/{name}.png",
        "label": "diagnosis",
    }
    assert Counter(item.label for item in written.items) == {"class_0": 10, "class_1": 8}
    assert "give class_0, class_1 their names" in written.to_do


# --- patients -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "patients", "pattern"),
    [
        ("anna{p}_{s:02d}", 4, r"^(.+)_\d+$"),
        ("Case{p:02d}-{s}", 4, r"^(.+)-\d+$"),
        ("P{p}_slice{s:03d}", 4, None),
        ("sub-{p:02d}_ses-{s}_T2w", 4, r"^(sub-[A-Za-z0-9]+)_"),
        ("patient_{p:03d}_node_{s}_x_7", 4, None),
        ("P{p}_visit{s}_ax", 4, None),
        ("{p:03d}{s_eye}", 4, None),
        ("im_{n:03d}", 12, None),  # numbers of images, not of patients
        ("{n:03d}", 12, None),
    ],
)
def test_patients_from_names(build, name, patients, pattern):
    slices = 2 if "eye" in name else 3
    for p in range(4):
        for s in range(slices):
            stem = name.format(p=p, s=s, n=3 * p + s, s_eye=("OD", "OS")[s % 2])
            build.image(f"north/images/{stem}.png")
            build.array(f"north/masks/{stem}.png", mask_of(stem))
    written = Written(build)
    assert len(written.patients) == patients
    if pattern is not None:
        assert written.content["patient"] == pattern
    if patients == 4:
        assert "check the pattern; with it north/images/" in written.to_do
    else:
        assert "patient" not in written.content
        assert "every file counts as its own" in written.to_do


def test_names_that_repeat_the_class_are_no_patients(build):
    for name in ("grade1", "grade2", "grade3", "grade4"):
        for i in range(4):
            build.image(f"north/{name}/{name}_{i}.png")
    assert "patient" not in Written(build).content


def test_patients_of_a_table_confirm_the_pattern(build):
    """The first pattern that would do says P1_a; the table says P1."""
    rows = []
    for p in range(4):
        for s in range(4):
            stem = f"P{p}_{'ab'[s // 2]}_{s % 2}"
            build.image(f"north/images/{stem}.png")
            build.array(f"north/masks/{stem}.png", mask_of(stem))
            rows.append(f"{stem}.png,P{p}")
    build.table(*rows, header="file,PatientID", name="north/list.csv")
    written = Written(build)
    assert written.patients == {("north", f"P{p}") for p in range(4)}
    assert "# Agrees with the patients in north/list.csv." in written.text


def test_patients_that_only_a_table_knows(build):
    rows = []
    for site in SITES:
        for i in range(8):
            build.image(f"{site}/images/{site}x{i}.png")
            build.array(f"{site}/masks/{site}x{i}.png", mask_of(str(i)))
            rows.append(f"{site},{site}x{i},{'ABCD'[i % 4]}")
    build.table(*rows, header="site,name,patient", name="index.csv")
    written = Written(build)
    assert written.sites["south"]["list"]["label"] == "south/masks/{name}.png"
    assert written.patients == {(site, p) for site in SITES for p in "ABCD"}
    assert "north: the patients are in index.csv, not in file names" in written.first.found


def test_folders_of_patients(build):
    for site in SITES:
        for patient in PATIENTS:
            for i in range(3):
                build.image(f"{site}/images/{patient}/{i}.png")
                build.array(f"{site}/masks/{patient}/{i}.png", mask_of(f"{patient}{i}"))
    written = Written(build)
    assert written.sites["north"]["images"] == "north/images/*/*.png"
    assert written.content["patient"] == "^[^/]+/[^/]+/([^/]+)/"
    assert written.patients == {(site, p) for site in SITES for p in PATIENTS}


# --- splits -------------------------------------------------------------------------------------


def test_folders_called_train_and_test(build):
    write_pairs(
        build,
        "{site}/{split}/images/c{i}.png",
        "{site}/{split}/masks/c{i}.png",
        splits=("train", "train", "val", "test"),
        count=12,
    )
    written = Written(build)
    assert written.content["split"] == {"file": "federation-splits.csv"}
    assert written.federation.counts["north"] == {"train": 6, "val": 3, "test": 3}
    assert all(f"/{item.split}/" in item.image for item in written.items)


def test_validation_that_folders_leave_out_is_cut_from_train(build):
    write_pairs(
        build,
        "{split}/{site}/images/c{i}.png",
        "{split}/{site}/masks/c{i}.png",
        splits=("training", "training", "testing"),
        count=12,
    )
    counts = Written(build).federation.counts["south"]
    assert counts["test"] == 4
    assert counts["val"] > 0
    assert counts["train"] + counts["val"] == 8


def test_folders_that_divide_a_patient_are_not_followed(build):
    for i in range(12):
        split = ("train", "val", "test")[i % 3]
        build.image(f"north/{split}/images/P{i // 3}_{i}.png")
        build.array(f"north/{split}/masks/P{i // 3}_{i}.png", mask_of(str(i)))
    written = Written(build)
    assert "file" not in written.content["split"]
    assert "patient in more than one split" in written.to_do
    assert not (build.root / "federation-splits.csv").exists()


# --- volumes ------------------------------------------------------------------------------------


def volume(number: int, view_axes=(0, 1, 2)):
    """Noise and a mask with a block of 1 and a block of 2, on a grid of 4 x 5 x 6."""
    shape, affine = grid(view_axes)
    mask = np.zeros(shape, np.uint8)
    mask[1:3, 1:3, 2] = 1
    mask[1:3, 1:3, 3] = 2
    return noise(shape, number), mask, affine


@pytest.mark.parametrize(
    ("image", "mask", "suffix"),
    [
        ("{site}/imagesTr/{p}", "{site}/labelsTr/{p}", ".nii.gz"),
        ("{site}/imagesTr/{p}_0000", "{site}/labelsTr/{p}", ".nii.gz"),
        ("{site}/{p}", "{site}/{p}_segmentation", ".mhd"),
        ("{site}/{p}/T2", "{site}/{p}/mask", ".nrrd"),
        ("{site}/{p}/{p}_t2", "{site}/{p}/{p}_seg", ".nii"),
        ("{site}/scans/{p}", "{site}/seg/{p}_label", ".mha"),
    ],
)
def test_volumes(build, image, mask, suffix):
    for site in SITES:
        for number, patient in enumerate(PATIENTS):
            array, values, affine = volume(number)
            write = write_nifti if ".nii" in suffix else write_itk
            for pattern, voxels in ((image, array), (mask, values)):
                path = pattern.format(site=site, p=patient) + suffix
                write(build.root / path, voxels, affine)
    written = Written(build)
    assert written.content["structures"] == {"structure_1": [1], "structure_2": [2]}
    assert written.content["channels"] == 1
    assert written.content["slices"] == {"view": "axial", "which": "labelled", "every": 1}
    assert written.content["window"] == {"percentiles": [0.5, 99.5]}
    assert written.images == {"north": 8, "south": 8}  # two labelled slices of four volumes
    assert len(written.patients) == 8
    assert "north: 4 volumes" in "\n".join(written.first.found)


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("{site}/images/case{i}", "{site}/labels/case{i}"),
        ("{site}/imagesTr/p{i}_0000", "{site}/labelsTr/p{i}"),
    ],
)
def test_sites_that_number_their_few_volumes_alike(build, image, mask):
    for site in "ABC":
        for i in range(4):
            array, values, affine = volume(i)
            for pattern, voxels in ((image, array), (mask, values)):
                path = pattern.format(site=site, i=i) + ".nii.gz"
                write_nifti(build.root / path, voxels, affine)
    written = Written(build)
    assert written.images == {"A": 8, "B": 8, "C": 8}  # two labelled slices of four volumes
    assert written.content["structures"] == {"structure_1": [1], "structure_2": [2]}


def test_numbered_contrasts_of_a_patient_make_no_sites(build):
    for number, patient in enumerate(PATIENTS):
        array, values, affine = volume(number)
        for name in ("t2_1", "t2_2"):
            write_nifti(build.root / f"{patient}/images/{name}.nii.gz", array, affine)
        write_nifti(build.root / f"{patient}/masks/t2_1.nii.gz", values, affine)
    assert list(Written(build).sites) == ["federation"]


def test_contrasts_named_after_their_patient(build):
    """The layout of BraTS."""
    for number in range(4):
        array, values, affine = volume(number)
        stem = f"BraTS20_{number:03d}/BraTS20_{number:03d}"
        for name in ("flair", "t1", "t2"):
            write_nifti(build.root / f"{stem}_{name}.nii.gz", array, affine)
        write_nifti(build.root / f"{stem}_seg.nii.gz", values, affine)
    written = Written(build)
    assert written.sites == {"federation": {"images": "*/*_t2.nii.gz", "labels": "*/*_seg.nii.gz"}}
    assert len(written.patients) == 4
    assert "BraTS20_000/BraTS20_000_flair.nii.gz" in written.text


def test_the_decathlon_names_its_labels(build):
    """dataset.json, a test part without labels, two volumes a file."""
    shape, affine = grid()
    for i in range(4):
        array, values, _ = volume(i)
        path = build.root / f"imagesTr/prostate_{i:02d}.nii.gz"
        write_nifti(path, np.stack([array, array + 1], axis=-1), affine)
        write_nifti(build.root / f"labelsTr/prostate_{i:02d}.nii.gz", values, affine)
    write_nifti(build.root / "imagesTs/prostate_09.nii.gz", noise((*shape, 2)), affine)
    labels = {"labels": {"0": "background", "1": "PZ", "2": "TZ"}}
    (build.root / "dataset.json").write_text(json.dumps(labels))
    written = Written(build)
    assert written.content["structures"] == {"PZ": [1], "TZ": [2]}
    assert written.content["channel"] == 0
    assert "images without labels, not used: imagesTs/prostate_09.nii.gz" in written.to_do
    assert "check `channel`" in written.to_do


def test_thick_slices_choose_the_view(build):
    """SPACING is 3 mm from feet to head: turned so that the thick side runs to the front."""
    for i in range(3):
        shape = (4, 5, 6)
        affine = np.diag([0.5, 3.0, 0.5, 1.0])
        mask = np.zeros(shape, np.uint8)
        mask[1:3, 2, 1:3] = 1
        write_nifti(build.root / f"images/P{i}.nii.gz", noise(shape, i), affine)
        write_nifti(build.root / f"masks/P{i}.nii.gz", mask, affine)
    assert Written(build).content["slices"]["view"] == "coronal"


def test_ct_gets_a_word_about_windows(build):
    array, mask, affine = volume(0)
    for i in range(3):
        write_nifti(build.root / f"images/P{i}.nii.gz", array.astype(np.int16) - 2000, affine)
        write_nifti(build.root / f"masks/P{i}.nii.gz", mask, affine)
    assert "federation: looks like CT: a window in Hounsfield units" in Written(build).to_do


def test_a_folder_of_dicom_slices_a_patient(build):
    for number, patient in enumerate(PATIENTS):
        array, mask, affine = volume(number)
        write_series(build.root / f"north/{patient}/T2", array, affine)
        write_series(build.root / f"north/{patient}/ADC", array, affine, "ADC", name="{:03d}")
        write_nifti(build.root / f"north/{patient}/prostate_mask.nii.gz", mask, affine)
    written = Written(build)
    assert written.sites["north"]["images"] == "north/*/T2"
    assert written.sites["north"]["labels"] == "north/*/prostate_mask.nii.gz"
    assert written.patients == {("north", p) for p in PATIENTS}
    assert "not used, because nothing goes with it: north/P01/ADC" in written.to_do


def test_series_beside_the_folder_of_their_masks(build):
    for number, patient in enumerate(PATIENTS):
        array, mask, affine = volume(number)
        write_series(build.root / f"north/{patient}", array, affine)
        write_nifti(build.root / f"north/masks/{patient}.nii.gz", mask, affine)
    written = Written(build)
    assert written.sites["north"] == {"images": "north/P*", "labels": "north/masks/P*.nii.gz"}
    assert len(written.patients) == 4


def test_dicom_segmentations_and_several_series_in_a_folder(build):
    for number, patient in enumerate(PATIENTS):
        array, mask, affine = volume(number)
        folder = build.root / f"north/{patient}"
        write_series(folder, array, affine, "t2_tse_tra", name="a{:03d}.dcm")
        segments = {1: mask == 1, 2: mask == 2}
        write_segmentation(build.root / f"masks/{patient}.dcm", folder, segments)
        write_series(folder, array, affine, "localizer", name="b{:03d}.dcm")
        (build.root / f"masks/{patient}.dcm").rename(folder / "seg.dcm")
    written = Written(build)
    site = written.sites["north"]
    assert site == {"images": "north/*", "labels": "north/*/seg.dcm"}
    assert written.content["series"] == "^t2_tse_tra$"
    assert written.content["structures"] == {"segment 1": [1], "segment 2": [2]}
    assert "check `series`" in written.to_do
    assert written.images == {"north": 8}


def test_pictures_as_masks_of_a_series(build):
    for number, patient in enumerate(PATIENTS):
        array, mask, affine = volume(number)
        write_series(build.root / f"north/{patient}/scan", array, affine)
        write_pictures(build.root / f"north/{patient}/masks", mask, lambda k: f"{k + 1:03d}.png")
    written = Written(build)
    assert written.sites["north"] == {"images": "north/*/scan", "labels": "north/*/masks"}
    assert written.images == {"north": 8}


# --- lists --------------------------------------------------------------------------------------


def test_a_table_of_paths_for_all_sites(build):
    rows = []
    for i in range(12):
        build.image(f"a/{i}.png")
        build.array(f"b/{i}.png", mask_of(str(i)))
        rows.append(f"{SITES[i % 2]},a/{i}.png,b/{i}.png,{i // 4}")
    build.table(*rows, header="center,picture,mask,subject", name="all.csv")
    written = Written(build)
    assert written.sites["north"]["list"] == {
        "file": "all.csv",
        "where": {"center": "north"},
        "image": "picture",
        "label": "mask",
        "patient": "subject",
    }
    assert len(written.patients) == 6


def test_a_table_of_paths_and_classes(build):
    rows = []
    for i in range(9):
        build.image(f"north/x/{i}.png")
        rows.append(f"x/{i}.png,{('healthy', 'ill')[i % 2]}")
    build.table(*rows, header="path,label", name="north/list.csv")
    written = Written(build)
    assert written.content["classes"] == ["healthy", "ill"]
    assert written.sites["north"]["list"]["file"] == "north/list.csv"
    assert written.images == {"north": 9}


# --- as a person says ---------------------------------------------------------------------------


def test_patterns_that_a_person_gives(build):
    """Names that no rule knows; the mask's stars are the image's."""
    write_pairs(build, "data/{site}/pix/c{i}.png", "data/{site}/vess/c{i}_manual1.png")
    given = {"images": "data/{site}/pix/*.png", "masks": ["data/{site}/vess/*_manual1.png"]}
    written = Written(build, **given)
    assert written.sites["north"] == {
        "images": "data/north/pix/*.png",
        "labels": "data/north/vess/*_manual1.png",
    }
    assert written.images == {"north": 6, "south": 6}
    assert written.content["structures"] == {"foreground": [255]}


def test_a_pattern_for_each_structure_and_no_site(build):
    for name in ("one", "two"):
        write_pairs(build, "c{i}.png", f"{name}/{{i}}.png", sites=[""])
    written = Written(build, images="c*.png", masks=["disc=one/*.png", "cup=two/*.png"])
    assert list(written.sites) == ["federation"]
    assert written.sites["federation"]["labels"] == {"disc": "one/*.png", "cup": "two/*.png"}
    assert set(written.federation.labels) == {"disc", "cup"}


def test_a_pattern_for_images_in_folders_of_classes(build):
    for site in SITES:
        build.classes(f"{site}/train", a=4, b=5)
        build.image(f"{site}/photos/x.png")
    given = {"task": "classification", "images": "{site}/train/*/*.png"}
    written = Written(build, **given)
    assert written.content["classes"] == ["a", "b"]
    assert written.images == {"north": 9, "south": 9}


def test_patterns_for_series_and_folders_of_masks(build):
    for number, patient in enumerate(PATIENTS):
        array, mask, affine = volume(number)
        write_series(build.root / f"{patient}/x", array, affine)
        write_pictures(build.root / f"{patient}/y", mask, lambda k: f"{k + 1:03d}.png")
    written = Written(build, images="*/x", masks=["*/y"])
    assert written.images == {"federation": 8}
    assert written.content["slices"]["view"] == "axial"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"masks": ["*.png"]}, "--images GLOB is missing"),
        ({"images": "*.png"}, "--masks GLOB is missing.*--task classification"),
        ({"images": "{site}/*.jpg", "masks": ["{site}/*.png"]}, "matches nothing below"),
        ({"images": "{site}/images/*.png", "masks": ["masks/*.png"]}, "{site} stands in all of"),
        (
            {"images": "{site}/images/*.png", "masks": ["{site}/gt/*.png"]},
            "--masks north/gt/.*: matches no image below",
        ),
        ({"images": "../*.png", "masks": ["*/masks/*.png"]}, "stay in its folder"),
        (
            {"images": "{site}/images/*.png", "masks": ["a=x/*.png", "y/*.png"]},
            "several need a structure each",
        ),
        ({"images": "images/{site}.png", "masks": ["masks/{site}.png"]}, "a folder's name"),
    ],
)
def test_patterns_that_lead_nowhere(build, given, message):
    build.pairs("north")
    with pytest.raises(KonsilError, match=message):
        write_first_file(build.root, **given)
    assert not (build.root / "federation.yaml").exists()


# --- what cannot be done ------------------------------------------------------------------------


def test_what_is_there_is_not_replaced(build):
    build.pairs("north")
    path = build.manifest("task: segmentation\n")
    with pytest.raises(DataError, match=r"is there already.*--overwrite"):
        write_first_file(build.root)
    assert path.read_text() == "task: segmentation\n"
    write_first_file(build.root, overwrite=True)
    assert read_manifest(path).content.sites.keys() == {"north"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(build):
    build.pairs("north")
    build.root.chmod(0o555)
    with pytest.raises(DataError, match="ln -s"):
        write_first_file(build.root)


def test_a_disk_that_refuses(build, monkeypatch):
    build.pairs("north")

    def refuse(path, text):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("konsil.prepare.guess.write_text", refuse)
    with pytest.raises(DataError, match=r"Read-only file system.*ln -s .*/\* federation/"):
        write_first_file(build.root)


def test_loose_images_are_not_understood(build):
    for i in range(5):
        build.image(f"x{i}.png")
    with pytest.raises(DataError, match="was not understood") as error:
        write_first_file(build.root)
    assert "    x0.png" in str(error.value)
    assert not (build.root / "federation.yaml").exists()


def test_the_other_task_is_not_there(build):
    build.classes("north", ill=4, normal=4)
    with pytest.raises(DataError, match="for segmentation was not understood"):
        write_first_file(build.root, task="segmentation")
    with pytest.raises(DataError, match="one of segmentation, classification"):
        write_first_file(build.root, task="regression")


def test_a_folder_without_images(build):
    (build.root / "slides.svs").write_bytes(b"x")
    with pytest.raises(DataError, match=r"no images below this folder. Found: slides.svs"):
        write_first_file(build.root)
    with pytest.raises(DataError, match="no such folder"):
        write_first_file(build.root / "nowhere")


def test_what_is_left_alone_is_said(build):
    build.pairs("north")
    build.pairs("south")
    (build.root / "north" / "contours.roi").write_bytes(b"x")
    (build.root / "south" / "images" / "gone.png").symlink_to("/nowhere")
    (build.root / "south" / "up").symlink_to(build.root)  # a loop is not followed
    to_do = "\n".join(write_first_file(build.root).to_do)
    assert "files that are not read (.roi): north/contours.roi" in to_do
    assert "links that lead nowhere: south/images/gone.png" in to_do


# --- parts --------------------------------------------------------------------------------------


def test_beginnings_and_endings_that_names_share():
    stems = [f"case{i}_{name}" for i in range(1, 12) for name in ("disc", "cup")]
    assert {("", "_disc"), ("", "_cup"), ("case", "")} <= set(affixes(stems))


def test_a_number_is_not_the_beginning_of_another():
    assert ("", "0") not in affixes(["10", "20"])
    assert ("", "_mask") in affixes(["1_mask", "10_mask"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.words)
def test_every_rule_fits_its_example(rule):
    parts = rule.example.split("/")
    own = set(rule.words.split())
    assert any(says(rule.role, part) and own & {joined(part), *words(part)} for part in parts)


@pytest.mark.parametrize(("pattern", "example"), PATIENT_NAMES)
def test_every_pattern_for_patients_fits_its_example(pattern, example):
    first = next(p for p, _ in PATIENT_NAMES if re.search(p, example))
    assert first == pattern


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("Masks", "mask"),
        ("GroundTruth", "mask"),
        ("disc_labels", "mask"),
        ("labelsTr", "mask"),
        ("IMAGES", "image"),
        ("T2 axial", "image"),
        ("Training", "split"),
        ("north", ""),
        ("segmented_by_anna", "mask"),
        ("imagine", ""),
    ],
)
def test_what_folders_are_called(name, role):
    assert role_of(name) == role


def test_the_positive_class_is_last():
    assert class_order({"glaucoma", "normal"}) == ["normal", "glaucoma"]
    assert class_order({"tumour", "no tumour"}) == ["no tumour", "tumour"]
    assert class_order({"a", "b"}) == ["a", "b"]


# --- real data ----------------------------------------------------------------------------------


@pytest.fixture
def linked(shared_data, build):
    """A folder of links to a folder of real data, which is not ours to write to."""

    def link(name):
        for entry in (shared_data / name).iterdir():
            (build.root / entry.name).symlink_to(entry)
        return build

    return link


def test_real_prostate(linked, shared_data):
    import csv

    written = Written(linked("prostate_mri"))
    assert written.images == {
        "promise12_bidmc": 187,
        "promise12_hk": 158,
        "promise12_runmc": 167,
        "promise12_ucl": 179,
        "prostatex": 480,
    }
    with (shared_data / "prostate_mri" / "index.csv").open() as file:
        rows = list(csv.DictReader(file))
    truth = {(row["site"], row["name"], row["patient"]) for row in rows}
    assert {(i.site, Path(i.image).stem, i.patient) for i in written.items} == truth
    assert written.content["structures"] == {"foreground": [255]}
    assert written.content["channels"] == 1


def test_real_discs_and_cups(linked):
    written = Written(linked("fundus_disc_cup"))
    assert written.images == {"drishti_gs1": 101, "origa": 650, "refuge_train": 321}
    assert written.content["structures"] == {"structure_1": [128], "structure_2": [255]}
    assert written.content["channels"] == 3
    assert len(written.patients) == 1072


def test_real_glaucoma(linked):
    written = Written(linked("fundus_glaucoma"))
    assert written.content["classes"] == ["normal", "glaucoma"]
    assert Counter((i.site, i.label) for i in written.items) == {
        ("acrima", "glaucoma"): 396,
        ("acrima", "normal"): 309,
        ("drishti_gs1", "glaucoma"): 70,
        ("drishti_gs1", "normal"): 31,
        ("origa", "glaucoma"): 168,
        ("origa", "normal"): 482,
        ("refuge_train", "glaucoma"): 32,
        ("refuge_train", "normal"): 289,
    }
    assert len(written.patients) == 1777

"""Bad input: the check and training say the same, with the file's name and the cure."""

import io

import numpy as np
import pytest
from PIL import Image

from konsil.errors import DataError
from konsil.prepare.check import check_federation
from tests.data import volume_files as files

PICTURES = """
    {top}
    sites:
      a: {{images: a/images/*.png, labels: a/masks/*.png}}
      b: {{images: b/images/*.png, labels: b/masks/*.png}}
"""
VOLUMES = r"""
    structures: {gland: [1]}
    channels: 1
    sites: {a: {images: a/*/T2, labels: a/*/mask.nii.gz}}
"""
STRUCTURES = "structures: {disc: [128, 255], cup: [255]}"


def refused(build, manifest, place, *words, what, task="segmentation"):
    """Both the check and training name the kind, the place and the cure; the check's error."""
    result = check_federation(manifest)
    assert not result.ok
    problems = [problem for problem in result.errors if what in problem.what]
    assert len(problems) == 1, result.errors
    [problem] = problems
    text = f"{problem.what} {' '.join(problem.places)} {problem.cure}"
    with pytest.raises(DataError) as caught:
        build.open({"name": task}, file=manifest)
    for word in (place, *words):
        assert word in text
        assert word in str(caught.value)
    assert problem.what in str(caught.value)
    return problem


@pytest.fixture
def pictures(build):
    build.pairs("a", 8)
    build.pairs("b", 8)
    return build


def manifest(build, top=STRUCTURES):
    return build.manifest(PICTURES.format(top=top))


# --- pictures -----------------------------------------------------------------------------------


def test_truncated_image(pictures):
    path = pictures.root / "a/images/p3.png"
    path.write_bytes(path.read_bytes()[:-200])
    problem = refused(
        pictures, manifest(pictures), "a/images/p3.png", "save it again", what="cannot be read"
    )
    assert problem.places == ("a/images/p3.png (image file is truncated)",)


def test_every_bad_file_is_found_and_the_others_are_still_looked_at(pictures):
    for name in ("a/images/p1.png", "a/masks/p2.png", "b/images/p7.png"):
        (pictures.root / name).write_bytes(b"")
    result = check_federation(manifest(pictures))
    [problem] = result.errors
    assert [place.split()[0] for place in problem.places] == [
        "a/images/p1.png",
        "a/masks/p2.png",
        "b/images/p7.png",
    ]
    assert [own.images for own in result.sites.values()] == [6, 7]


def test_mask_without_image(pictures):
    (pictures.root / "a/images/p3.png").unlink()
    refused(
        pictures,
        manifest(pictures),
        "a/masks/p3.png",
        "put its image where sites.a.images looks, or take the mask away",
        what="mask without an image",
    )


def test_image_without_mask(pictures):
    (pictures.root / "a/masks/p3.png").unlink()
    refused(
        pictures,
        manifest(pictures),
        "a/images/p3.png",
        "put its mask where sites.a.labels looks",
        what="image without a mask",
    )


def test_mask_of_another_size(pictures):
    pictures.mask("b/masks/p5.png", size=(20, 15))
    refused(
        pictures,
        manifest(pictures),
        "b/masks/p5.png (mask 20 x 15, image 20 x 16)",
        "export both alike",
        what="mask of another size",
    )


def test_value_outside_the_mapping(pictures):
    pictures.mask("a/masks/p3.png", value=7)
    refused(
        pictures,
        manifest(pictures),
        "a/masks/p3.png (value 7)",
        "structures is {disc: [128, 255], cup: [255]}, and 0 is background",
        what="mask value that structures in federation.yaml does not mention",
    )


def test_several_values_that_nobody_explains(pictures):
    pictures.mask("b/masks/p3.png", value=7)
    problem = refused(
        pictures,
        manifest(pictures, top=""),
        "b: 7, 255",
        "structures: {first: [7], second: [255]}",
        what="masks with several values, and structures in federation.yaml does not say",
    )
    assert problem.places == ("a: 255", "b: 7, 255")


def test_structures_in_files_of_their_own_may_be_marked_by_any_value(build):
    for site, value in (("a", 255), ("b", 1)):
        for i in range(8):
            build.image(f"{site}/images/p{i}.png")
            build.mask(f"{site}/disc/p{i}.png", value)
    sites = ", ".join(
        f"{s}: {{images: {s}/images/*.png, labels: {{disc: {s}/disc/*.png}}}}" for s in "ab"
    )
    path = build.manifest(f"structures: [disc]\nsites: {{{sites}}}")
    assert check_federation(path).ok
    assert build.open(file=path).labels == ["disc"]


def test_gif_under_another_name(pictures):
    content = io.BytesIO()
    Image.new("L", (20, 16)).save(content, "GIF")
    (pictures.root / "a/images/p3.png").write_bytes(content.getvalue())
    refused(
        pictures,
        manifest(pictures),
        "a/images/p3.png (its content is GIF)",
        "save it again as PNG",
        what="image that cannot be read",
    )


def test_web_page_instead_of_a_mask(pictures):
    (pictures.root / "b/masks/p0.png").write_text("<!DOCTYPE html><p>Please log in")
    refused(
        pictures,
        manifest(pictures),
        "b/masks/p0.png (its content is a web page)",
        what="image that cannot be read",
    )


def test_mask_that_is_a_jpeg_under_another_name(pictures):
    path = pictures.root / "a/masks/p3.png"
    Image.open(path).save(path, "JPEG")
    refused(
        pictures,
        manifest(pictures),
        "a/masks/p3.png",
        "export the masks again, as PNG",
        what="mask that is a JPEG, whatever its name says",
    )


def test_image_that_is_a_jpeg_under_another_name_is_a_warning(pictures):
    path = pictures.root / "a/images/p3.png"
    Image.open(path).save(path, "JPEG")
    result = check_federation(manifest(pictures))
    assert result.ok
    [note] = [n for n in result.warnings if n.kind == "another format than the name says"]
    assert note.site == "a"
    assert "by content a/images/p3.png is JPEG" in note.text
    assert sum(pictures.open(file=manifest(pictures)).counts["a"].values()) == 8


def test_link_to_nowhere(pictures):
    path = pictures.root / "a/images/p3.png"
    path.unlink()
    path.symlink_to(pictures.root / "gone.png")
    refused(
        pictures,
        manifest(pictures),
        "a/images/p3.png",
        "mend the link or take it away",
        what="link that leads nowhere",
    )


def test_path_outside_the_folder_in_a_csv(pictures):
    pictures.image("../outside.png")
    rows = [f"images/p{i}.png,masks/p{i}.png" for i in range(8)]
    pictures.table(*rows, "../../outside.png,masks/p0.png", header="image,label", name="a/list.csv")
    refused(
        pictures,
        pictures.manifest("sites: {a: {list: a/list.csv}}"),
        "../outside.png",
        "stay in the federation's folder",
        what="path that leaves the federation's folder",
    )


def test_list_that_is_not_there_hides_no_other_mistake(pictures):
    (pictures.root / "b/images/p7.png").write_bytes(b"")
    path = pictures.manifest(
        "sites: {a: {list: a/list.csv}, b: {images: b/images/*.png, labels: b/masks/*.png}}"
    )
    unreadable, missing = check_federation(path).errors
    assert unreadable.places == ("b/images/p7.png (empty file)",)
    assert "a/list.csv: no such file" in missing.what


def test_patients_of_one_id_at_two_sites_are_a_warning(build):
    for site in "ab":
        for patient in ("anna", "bert", f"own-{site}"):
            for visit in (1, 2, 3):
                build.image(f"{site}/images/{patient}_{visit}.png")
                build.mask(f"{site}/masks/{patient}_{visit}.png")
    path = manifest(build, r"patient: ^(.+)_\d$")
    result = check_federation(path)
    assert result.ok
    [note] = [n for n in result.warnings if n.kind == "patient ids at several sites"]
    assert "2 patient ids" in note.text
    assert "anna at a (a/images/anna_1.png) and b (b/images/anna_1.png)" in note.text
    assert "keep them at one site" in note.text
    assert note.text in build.open(file=path).warnings


def test_too_few_patients(build):
    build.pairs("a", 8)
    build.pairs("b", 2)
    refused(
        build,
        manifest(build),
        "site b: 2 patient(s) with 2 image(s)",
        "Add patients, merge the site",
        what="a site needs at least three patients",
    )
    facts = check_federation(manifest(build)).sites
    assert facts["b"].splits is None
    assert facts["a"].splits is not None


def test_site_without_files(pictures):
    path = pictures.manifest("sites: {a: {images: z/*.png, labels: a/masks/*.png}}")
    refused(pictures, path, "z/*.png", "mend sites.a.images", what="pattern that matches no image")


# --- classes ------------------------------------------------------------------------------------

CLASSES = """
    task: classification
    {top}
    sites:
      a: {{images: a/*/*.png, labels: folder}}
      b: {{images: b/*/*.png, labels: folder}}
"""


def test_site_of_one_class_is_a_warning(build):
    build.classes("a", normal=20, tumour=20)
    build.classes("b", normal=20)
    path = build.manifest(CLASSES.format(top=""))
    result = check_federation(path)
    assert result.ok
    [note] = [n for n in result.warnings if n.kind == "one class"]
    assert note.site == "b"
    assert "only the class normal" in note.text
    assert "add images of the other class" in note.text
    assert note.text in build.open({"name": "classification"}, file=path).warnings
    assert result.sites["b"].classes == {"normal": 20, "tumour": 0}


def test_one_class_at_all_sites(build):
    build.classes("a", normal=4)
    build.classes("b", normal=4)
    path = build.manifest(CLASSES.format(top=""))
    refused(
        build,
        path,
        "only the class normal at all sites",
        what="a classification needs two",
        task="classification",
    )


def test_class_that_the_file_does_not_name(build):
    build.classes("a", normal=4, tumour=4)
    build.classes("b", normal=4, tumor=4)
    path = build.manifest(CLASSES.format(top="classes: [normal, tumour]"))
    refused(build, path, "tumor at site b", what="unknown class", task="classification")


# --- volumes ------------------------------------------------------------------------------------


@pytest.fixture
def volumes(build):
    """Four patients of one DICOM series and a NIfTI mask each, slices 2 and 3 of 6 labelled."""
    shape, affine = files.grid()
    mask = np.zeros(shape, np.uint8)
    mask[1:3, 1:4, 2:4] = 1
    for patient in range(4):
        folder = build.root / f"a/p{patient}"
        files.write_series(folder / "T2", files.noise(shape, patient), affine)
        files.write_nifti(folder / "mask.nii.gz", mask, affine)
    return build


def test_volumes_without_a_mistake(volumes):
    path = volumes.manifest(VOLUMES)
    result = check_federation(path)
    assert result.ok
    own = result.sites["a"]
    assert (own.images, own.volumes, own.patients) == (8, 4, 4)
    counts = volumes.open(file=path).counts["a"]
    assert {split: own.splits[split]["images"] for split in own.splits} == counts


def test_series_with_a_missing_slice(volumes):
    (volumes.root / "a/p2/T2/IM003.dcm").unlink()
    refused(
        volumes,
        volumes.manifest(VOLUMES),
        "a/p2/T2",
        "IM002.dcm",
        "IM004.dcm",
        what="missing slice",
    )


def test_mixed_series(volumes):
    shape, affine = files.grid()
    files.write_series(
        volumes.root / "a/p1/T2", files.noise(shape, 9), affine, "localizer", name="L{:03d}.dcm"
    )
    problem = refused(
        volumes, volumes.manifest(VOLUMES), "a/p1/T2", "series", "localizer", what="series"
    )
    assert "federation.yaml" in problem.cure
    chosen = volumes.manifest(VOLUMES + "    series: ^T2\n")
    assert check_federation(chosen).ok


def test_empty_volume(volumes):
    shape, affine = files.grid()
    files.write_series(volumes.root / "a/p3/T2", np.zeros(shape, np.uint16), affine)
    refused(
        volumes,
        volumes.manifest(VOLUMES),
        "a/p3/T2",
        "every voxel 0",
        "export it again",
        what="empty volume",
    )


def test_mask_volume_of_another_shape(volumes):
    _, affine = files.grid()
    files.write_nifti(volumes.root / "a/p0/mask.nii.gz", np.ones((4, 5, 5), np.uint8), affine)
    refused(volumes, volumes.manifest(VOLUMES), "a/p0/mask.nii.gz", what="mask of another")


def test_volume_that_is_not_what_its_name_says(volumes):
    path = volumes.root / "a/p0/mask.nii.gz"
    path.write_bytes(b"this is no gzip")
    refused(volumes, volumes.manifest(VOLUMES), "a/p0/mask.nii.gz", what="cannot be read")


def test_volume_without_a_labelled_slice(volumes):
    shape, affine = files.grid()
    files.write_nifti(volumes.root / "a/p0/mask.nii.gz", np.zeros(shape, np.uint8), affine)
    refused(
        volumes,
        volumes.manifest(VOLUMES),
        "a/p0/T2",
        "slices: {which: all}",
        what="volume without a labelled slice",
    )
    assert check_federation(volumes.manifest(VOLUMES + "    slices: {which: all}\n")).ok


def test_no_name_of_a_patient_is_shown(volumes):
    (volumes.root / "a/p2/T2/IM003.dcm").unlink()
    text = str(check_federation(volumes.manifest(VOLUMES)).to_json())
    for secret in files.PATIENT:
        assert secret not in text


# --- the file itself ----------------------------------------------------------------------------


def test_file_that_cannot_be_meant(pictures):
    result = check_federation(pictures.manifest("sites: {a: {images: x}}"))
    [problem] = result.errors
    assert "sites.a" in problem.what
    assert "labels" in problem.what
    assert result.sites == {}


def test_folder_without_a_file(pictures):
    [problem] = check_federation(pictures.root).errors
    assert "konsil data init" in problem.what


def test_unknown_site(pictures):
    [problem] = check_federation(manifest(pictures), ["a", "z"]).errors
    assert "names z, which is not there" in problem.what


def test_only_the_wanted_sites_are_opened(pictures):
    (pictures.root / "b/images/p7.png").write_bytes(b"")
    result = check_federation(manifest(pictures), ["a"])
    assert result.ok
    assert list(result.sites) == ["a"]

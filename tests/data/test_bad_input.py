"""Everything wrong with a federation is said before round 1, by name and with the cure."""

import numpy as np
import pytest
from PIL import Image

from konsil.errors import ConfigError, DataError

CLASSIFICATION = {"name": "classification"}


def refused(build, *words, error=DataError, **options):
    """The message of the refusal, which must hold all the words."""
    with pytest.raises(error) as caught:
        build.open(**options)
    message = str(caught.value)
    for word in words:
        assert word in message, message
    return message


@pytest.fixture
def site(build):
    build.pairs("a", 8)
    return build


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"this is no image", None])
def test_unreadable_image(site, content):
    path = site.root / "a/images/p3.png"
    path.write_bytes(path.read_bytes()[:100] if content is None else content)
    refused(site, "image that cannot be read", "a/images/p3.png", "save it again")


def test_unreadable_mask(site):
    (site.root / "a/masks/p3.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    refused(site, "cannot be read", "a/masks/p3.png")


def test_gif_in_disguise(site):
    Image.new("L", (20, 16)).save(site.root / "a/images/p3.gif")
    (site.root / "a/images/p3.gif").rename(site.root / "a/images/p3.png")
    refused(site, "cannot be read", "a/images/p3.png")


def test_several_frames(site):
    frames = [Image.new("L", (20, 16), k) for k in range(3)]
    (site.root / "a/images/p3.png").unlink()
    frames[0].save(site.root / "a/images/p3.tif", save_all=True, append_images=frames[1:])
    refused(site, "more than one frame", "a/images/p3.tif (3 frames)")


def test_floating_point_image(site):
    (site.root / "a/images/p3.png").unlink()
    site.array("a/images/p3.tif", np.zeros((16, 20), np.float32))
    refused(site, "floating-point", "a/images/p3.tif", "8 or 16 bit")


def test_mask_of_another_size(site):
    site.mask("a/masks/p3.png", size=(16, 20))
    refused(site, "mask of another size", "a/masks/p3.png (mask 16 x 20, image 20 x 16)")


def test_coloured_mask(site):
    site.image("a/masks/p3.png")
    refused(site, "coloured mask", "a/masks/p3.png", "greyscale")


def test_image_without_mask_and_mask_without_image(site):
    (site.root / "a/masks/p3.png").unlink()
    (site.root / "a/images/p5.png").unlink()
    refused(
        site, "image without a mask", "a/images/p3.png", "mask without an image", "a/masks/p5.png"
    )


def test_only_the_first_five_are_shown_with_a_count(build):
    build.pairs("a", 12)
    for i in range(9):
        (build.root / f"a/masks/p{i}.png").unlink()
    message = refused(build, "image without a mask (9 times)", "and 4 more")
    assert message.count("a/images/") == 5


def test_two_images_of_one_name(site):
    Image.open(site.root / "a/images/p3.png").save(site.root / "a/images/p3.jpg")
    refused(site, "two files of one name", "a/images/p3.jpg and a/images/p3.png")


def test_link_that_leads_nowhere(site):
    path = site.root / "a/images/p3.png"
    path.unlink()
    path.symlink_to(site.root / "gone.png")
    refused(site, "link that leads nowhere", "a/images/p3.png")


def test_link_to_a_file_is_followed(site):
    path = site.root / "a/images/p3.png"
    elsewhere = path.rename(site.root.parent / "kept_elsewhere.png")
    path.symlink_to(elsewhere)
    assert sum(site.open().counts["a"].values()) == 8


# --- mask values --------------------------------------------------------------------------------


def test_unknown_mask_value(site):
    site.mask("a/masks/p3.png", value=7)
    refused(
        site,
        "a/masks/p3.png (value 7)",
        "{disc: [128, 255], cup: [255]}",
        task={"structures": {"disc": [128, 255], "cup": [255]}},
    )


def test_several_values_without_structures(site):
    site.pairs("b", 4, value=128)
    refused(site, "a: 255", "b: 128", "task.structures: {first: [128], second: [255]}")
    assert site.open(sites=["b"]).labels == ["foreground"]
    assert site.open({"structures": {"x": [128, 255]}}).labels == ["x"]


# --- sites and layouts --------------------------------------------------------------------------


def test_missing_folder(build):
    refused(build, "no such folder", "nowhere", folder=build.root / "nowhere")


def test_empty_folder(build):
    refused(build, "empty", "one folder a site")


def test_folder_that_is_no_site(site):
    (site.root / "docs").mkdir()
    (site.root / "docs/read.me").write_text("hello")
    refused(site, "no site", "docs (it holds .me)", "federation.sites")


def test_empty_site(site):
    (site.root / "b/images").mkdir(parents=True)
    (site.root / "b/masks").mkdir()
    refused(site, "holds no images", "\n    b\n")


def test_site_of_unread_formats_names_them(site):
    (site.root / "b/images").mkdir(parents=True)
    (site.root / "b/images/x.dcm").write_bytes(b"dicom")
    refused(site, "b (it holds .dcm)", "PNG, JPEG, BMP or TIFF")


def test_one_image_site(site):
    site.pairs("b", 1)
    refused(site, "site b", "at least three patients", "federation.sites")


def test_two_patients_with_many_images(build):
    for i in range(8):
        build.image(f"a/images/p{i % 2}_{i}.png")
        build.mask(f"a/masks/p{i % 2}_{i}.png")
    refused(build, "site a: 2 patient(s) with 8 image(s)", patient_pattern=r"^(.+)_\d+$")


def test_mixed_layouts(site):
    site.classes("b", normal=4, tumour=4)
    refused(site, "not laid out for segmentation", "b (it has normal/, tumour/)")
    refused(site, "not laid out for classification", "a (it has", task=CLASSIFICATION)


def test_class_folder_beside_images_and_masks(site):
    site.image("a/normal/1.png")
    refused(site, "folder beside images/ and masks/", "a/normal")


def test_loose_images(site):
    site.image("a/loose.png")
    refused(site, "image outside the folders of its site", "a/loose.png")


def test_folder_inside_images(site):
    site.image("a/images/deeper/x.png")
    refused(site, "folder where images are expected", "a/images/deeper")


def test_unknown_site_in_the_experiment(site):
    refused(site, "names b, which is not there", "found: a", sites=["a", "b"])


@pytest.mark.parametrize("sites", [[], ["a", "a"]])
def test_sites_named_twice_or_not_at_all(site, sites):
    refused(site, "federation.sites", "each once", sites=sites)


@pytest.mark.parametrize("name", ["global", "client_average"])
def test_reserved_site_names(build, name):
    build.pairs(name, 4)
    refused(build, "reserved name", name)


def test_unknown_class(build):
    build.classes("a", normal=4, tumour=4)
    build.classes("b", normal=4, tumor=4)
    task = {**CLASSIFICATION, "classes": ["normal", "tumour"]}
    refused(build, "unknown class", "tumor at site b", task=task)


def test_one_class_everywhere(build):
    build.classes("a", normal=4)
    refused(build, "only the class normal", "needs two", task=CLASSIFICATION)


# --- patients -----------------------------------------------------------------------------------


def test_name_that_the_pattern_does_not_match(site):
    refused(site, "patient_pattern does not match", "a/images/p0.png", patient_pattern=r"^(.+)_\d$")


@pytest.mark.parametrize("pattern", ["(", "^p.$"])
def test_pattern_that_cannot_be_meant(site, pattern):
    refused(site, "federation.patient_pattern", error=ConfigError, patient_pattern=pattern)


# --- CSV ----------------------------------------------------------------------------------------


ROWS = [f"a,a/images/p{i}.png,a/masks/p{i}.png" for i in range(8)]


def refused_table(site, *words, rows=ROWS, header="site,image,label", **options):
    return refused(site, *words, csv=site.table(*rows, header=header), **options)


def test_missing_csv(site):
    refused(site, "no such file", "nowhere.csv", csv=site.root / "nowhere.csv")


def test_csv_that_is_no_text(site):
    refused(site, "cannot be read as CSV", "p0.png", csv=site.root / "a/images/p0.png")


def test_csv_without_a_column(site):
    refused_table(site, "column label is missing", "found: site, image, mask",
                  header="site,image,mask")  # fmt: skip


def test_empty_csv(site):
    refused_table(site, "empty", rows=[])
    (site.root / "blank.csv").write_text("")
    refused(site, "an empty file", csv=site.root / "blank.csv")


def test_csv_with_an_empty_cell(site):
    refused_table(site, "empty cell", "line 10: image", rows=[*ROWS, "a,,a/masks/p0.png"])
    refused_table(site, "empty cell", "line 10: image", "line 10: label", rows=[*ROWS, "a"])
    refused_table(site, "empty cell", "line 10: site", rows=[*ROWS, ",a/images/p0.png,x"])


def test_csv_with_a_missing_file(site):
    refused_table(site, "missing file", "a/images/gone.png",
                  rows=[*ROWS, "a,a/images/gone.png,a/masks/p0.png"])  # fmt: skip


@pytest.mark.parametrize("path", ["../outside.png", "a/../../outside.png", "/etc/hostname"])
def test_csv_path_that_leaves_the_folder(site, path):
    site.image("../outside.png")
    refused_table(site, "leaves the federation", rows=[*ROWS, f"a,{path},a/masks/p0.png"])
    refused_table(
        site, "leaves the federation's folder", rows=[*ROWS[1:], f"a,a/images/p0.png,{path}"]
    )


def test_csv_with_an_image_twice(site):
    refused_table(site, "listed twice", "a/images/p0.png", rows=[*ROWS, ROWS[0]])
    twice = "a,a/./images/p0.png,a/masks/p0.png"
    refused_table(site, "listed twice", "a/images/p0.png", rows=[*ROWS, twice])


def test_csv_with_an_image_at_two_sites(site):
    rows = [*ROWS, *(row.replace("a,", "b,", 1) for row in ROWS)]
    refused_table(site, "listed twice", "a/images/p0.png", rows=rows)


def test_csv_with_an_unknown_site_in_the_experiment(site):
    refused_table(site, "names z, which is not there", sites=["z"])


def test_csv_with_a_site_that_is_no_folder_name(site):
    rows = [row.replace("a,", "../a,", 1) for row in ROWS]
    refused_table(site, "cannot be used", "'../a'", rows=rows)


def test_csv_with_an_unknown_split(site):
    rows = [f"{row},morning" for row in ROWS]
    refused_table(site, "unknown split", "line 2: morning", "train, val, test",
                  rows=rows, header="site,image,label,split")  # fmt: skip


def test_csv_with_a_patient_in_two_splits(site):
    splits = ["train", "val", "test", "train"] * 2
    rows = [
        f"{row},x{i // 2},{split}" for i, (row, split) in enumerate(zip(ROWS, splits, strict=True))
    ]
    refused_table(site, "more than one split", "x0 of a: train, val",
                  rows=rows, header="site,image,label,patient,split")  # fmt: skip


def test_csv_with_an_empty_split(site):
    rows = [f"{row},{'val' if i else 'train'}" for i, row in enumerate(ROWS)]
    # what is not given is cut from train, where one patient cannot be divided
    refused_table(site, "site a: 1 patient(s)", rows=rows, header="site,image,label,split")

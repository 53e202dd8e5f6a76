"""Drishti-GS1, REFUGE and RIM-ONE: miniatures of the real layouts, and every pixel of the masks."""

import numpy as np
import pytest
from PIL import Image

from konsil import data
from konsil.errors import DataError
from konsil.prepare.importers.rim_one import outline_points
from tests.prepare.importers.miniatures import CUP, DISC, SIZE, Download, ellipse, rim_and_cup


def values_of(federation, site):
    """Pixels of disc and of cup that training sees at a site, summed over its images."""
    training = data.training_data(federation.folder, [site])
    return training.train.targets.sum(dim=(0, 2, 3)).tolist()


# --- REFUGE ---------------------------------------------------------------------------------------


def test_refuge(refuge):
    report = refuge.take("refuge")
    assert [(row.what, row.made, row.paper) for row in report.rows] == [("images", 10, 800)]
    assert "1,200" in report.text()  # why the counts differ
    np.testing.assert_array_equal(refuge.made("refuge/masks/v0002.png"), rim_and_cup())
    copied = (refuge.dest / "refuge/images/v0002.jpg").read_bytes()
    assert copied == (refuge.root / "REFUGE-Validation400/V0002.jpg").read_bytes()
    federation = refuge.opened()
    assert federation.labels == ["disc", "cup"]
    assert len(federation.items) == 10
    disc, cup = values_of(federation, "refuge")
    assert disc > cup > 0


def test_refuges_own_parts(refuge):
    report = refuge.take("refuge", splits="given")
    made = {row.what: (row.made, row.paper) for row in report.rows}
    assert made["train"] == (4, 400)
    assert made["val"] == (3, 200)
    assert made["test"] == (3, 200)
    splits = {item.image: item.split for item in refuge.opened().items}
    assert splits["refuge/images/n0001.jpg"] == "train"
    assert splits["refuge/images/v0003.jpg"] == "val"
    assert splits["refuge/images/t0003.jpg"] == "test"


def test_a_mask_with_a_strange_value(refuge):
    mask = np.asarray(Image.open(refuge.root / "REFUGE-Test-GT/Disc_Cup_Masks/G/T0001.bmp"))
    strange = np.where(mask == 128, 127, mask).astype(np.uint8)
    refuge.write("REFUGE-Test-GT/Disc_Cup_Masks/G/T0001.bmp", strange)
    with pytest.raises(
        DataError, match=r"does not know.*\n.*T0001.bmp: 127.*\n.*128 \(rim"
    ) as error:
        refuge.take("refuge")
    assert "Test400/T0001.jpg" in str(error.value)
    assert refuge.files() == []


def test_colours_and_palettes_are_greys(refuge):
    """The same greys, once as RGB and once behind a palette whose indices are 0, 1 and 2."""
    greys = np.array([255, 128, 0], np.uint8)[rim_and_cup()]
    refuge.write("Annotation-Training400/Disc_Cup_Masks/Glaucoma/g0001.bmp", np.dstack([greys] * 3))
    palette = Image.fromarray(rim_and_cup(), "P")
    palette.putpalette([255] * 3 + [128] * 3 + [0] * 3)
    palette.save(refuge.root / "Annotation-Training400/Disc_Cup_Masks/Glaucoma/g0002.bmp")
    refuge.take("refuge")
    np.testing.assert_array_equal(refuge.made("refuge/masks/g0001.png"), rim_and_cup())
    np.testing.assert_array_equal(refuge.made("refuge/masks/g0002.png"), rim_and_cup())


def test_crop_around_the_disc(refuge):
    """The disc is 30 wide and 28 high; 1.5 times 30 is 45, centred at (27, 24)."""
    pixels = np.asarray(Image.open(refuge.root / "Test400/T0002.jpg"))
    refuge.take("refuge", crop=1.5)
    np.testing.assert_array_equal(refuge.made("refuge/images/t0002.png"), pixels[1:46, 4:49])
    np.testing.assert_array_equal(refuge.made("refuge/masks/t0002.png"), rim_and_cup()[1:46, 4:49])
    assert len(refuge.opened().items) == 10


def test_a_crop_stays_in_the_picture(refuge):
    """Three times 30 is more than the picture's 48 rows: the largest square is taken."""
    refuge.take("refuge", crop=3)
    assert refuge.made("refuge/masks/t0002.png").shape == (48, 48)
    np.testing.assert_array_equal(refuge.made("refuge/masks/t0002.png"), rim_and_cup()[:, 3:51])


# --- Drishti-GS1 ----------------------------------------------------------------------------------


@pytest.fixture
def drishti(download: Download) -> Download:
    """Four experts agree on DISC and CUP; around them three, further out two."""
    for number in range(1, 10):
        part, truth = ("Training", "GT") if number > 3 else ("Test", "Test_GT")
        name = f"drishtiGS_{number:03}"
        download.picture(f"Drishti-GS1_files/{part}/Images/{name}.png")
        for kind, box in (("ODseg", DISC), ("cupseg", CUP)):
            soft = np.zeros(SIZE[::-1], np.uint8)
            for experts, value in ((2, 128), (1, 191), (0, 255)):
                grown = (box[0] - experts, box[1] - experts, box[2] + experts, box[3] + experts)
                soft[ellipse(grown)] = value
            folder = f"Drishti-GS1_files/{part}/{truth}/{name}"
            download.write(f"{folder}/SoftMap/{name}_{kind}Softmap.png", soft)
        download.text(f"Drishti-GS1_files/{part}/{truth}/{name}/AvgBoundary/{name}_OD.txt", "1 2")
    return download


def test_drishti_takes_what_three_of_four_experts_marked(drishti):
    report = drishti.take("drishti-gs1")
    assert [(row.made, row.paper) for row in report.rows] == [(9, 101)]
    expected = rim_and_cup((11, 9, 42, 38), (19, 17, 34, 32))  # one pixel more all around
    np.testing.assert_array_equal(drishti.made("drishti_gs1/masks/drishtigs_005.png"), expected)
    assert values_of(drishti.opened(), "drishti_gs1")[1] > 0


def test_drishtis_own_parts_get_a_validation_part(drishti):
    """Six to train and three to test are published: a third of the six validates."""
    drishti.take("drishti-gs1", splits="given")
    splits = {item.image[-7:-4]: item.split for item in drishti.opened().items}
    assert [splits[f"00{n}"] for n in (1, 2, 3)] == ["test"] * 3
    assert sorted(splits[f"00{n}"] for n in range(4, 10)) == ["train"] * 4 + ["val"] * 2
    again = dict(splits)
    drishti.take("drishti-gs1", splits="given", overwrite=True)
    assert {item.image[-7:-4]: item.split for item in drishti.opened().items} == again


def test_drishti_without_the_test_part(drishti):
    for path in (drishti.root / "Drishti-GS1_files/Test").rglob("*.png"):
        path.unlink()
    with pytest.raises(DataError, match=r"own split cannot be made out .*splits: drawn"):
        drishti.take("drishti-gs1", splits="given")
    assert len(drishti.take("drishti-gs1").rows) == 1


def test_drishti_with_a_missing_soft_map(drishti):
    folder = drishti.root / "Drishti-GS1_files/Training/GT/drishtiGS_007/SoftMap"
    (folder / "drishtiGS_007_cupsegSoftmap.png").unlink()
    with pytest.raises(DataError, match=r"without a soft map of the cup:\n.*Images/drishtiGS_007"):
        drishti.take("drishti-gs1")


# --- RIM-ONE --------------------------------------------------------------------------------------

TALL = (SIZE[0], 80)  # one view of release 3 is taller than wide
TALL_MASK = rim_and_cup(size=TALL)


@pytest.fixture
def release_3(download: Download) -> Download:
    ill = "Glaucoma and suspects"
    for folder, name in (("Healthy", "N-1-L"), ("Healthy", "N-2-R"), (ill, "S-3-R")):
        download.picture(f"RIM-ONE r3/{folder}/Stereo Images/{name}.jpg", (2 * TALL[0], TALL[1]))
        for kind, inside in (("Disc", TALL_MASK > 0), ("Cup", TALL_MASK > 1)):
            mask = inside.astype(np.uint8) * 255
            for masks, end in (("Average_masks", "Avg"), ("Expert1_masks", "exp1")):
                download.write(f"RIM-ONE r3/{folder}/{masks}/{name}-{kind}-{end}.png", mask)
    return download


def test_release_3_is_the_left_view(release_3):
    stereo = np.asarray(Image.open(release_3.root / "RIM-ONE r3/Healthy/Stereo Images/N-2-R.jpg"))
    report = release_3.take("rim-one")
    assert [(row.made, row.paper) for row in report.rows] == [(3, 159)]
    np.testing.assert_array_equal(release_3.made("rim_one/images/n-2-r.png"), stereo[:, : TALL[0]])
    np.testing.assert_array_equal(release_3.made("rim_one/masks/s-3-r.png"), TALL_MASK)


def test_release_3_with_masks_of_both_views(release_3):
    wide = np.zeros((TALL[1], 2 * TALL[0]), np.uint8)
    for kind, inside in (("Disc", TALL_MASK > 0), ("Cup", TALL_MASK > 1)):
        wide[:, : TALL[0]] = inside * 255
        release_3.write(f"RIM-ONE r3/Healthy/Average_masks/N-1-L-{kind}-Avg.png", wide)
    release_3.take("rim-one")
    np.testing.assert_array_equal(release_3.made("rim_one/masks/n-1-l.png"), TALL_MASK)


@pytest.fixture
def release_dl(download: Download) -> Download:
    """All pictures twice, as in the archive: divided by hospital and at random."""
    for number in range(6):
        name, kind = f"r{1 + number % 3}_Im{number:03}", "normal" if number % 2 else "glaucoma"
        part = "test_set" if number < 2 else "training_set"
        for division in ("by_hospital", "randomly"):
            where = f"RIM-ONE_DL_images/partitioned_{division}/{part}/{kind}/{name}.png"
            download.picture(where)
        for structure, inside in (("Disc", ellipse(DISC)), ("Cup", ellipse(CUP))):
            download.write(
                f"RIM-ONE_DL_reference_segmentations/{kind}/{name}-1-{structure}-T.png",
                inside.astype(np.uint8) * 255,
            )
    return download


def test_release_dl(release_dl):
    release_dl.take("rim-one", splits="given")
    np.testing.assert_array_equal(release_dl.made("rim_one/masks/r2_im001.png"), rim_and_cup())
    original = release_dl.root / "RIM-ONE_DL_images/partitioned_by_hospital/test_set/normal"
    copied = (release_dl.dest / "rim_one/images/r2_im001.png").read_bytes()
    assert copied == (original / "r2_Im001.png").read_bytes()
    splits = [item.split for item in sorted(release_dl.opened().items, key=lambda i: i.image[-7:])]
    assert splits[:2] == ["test", "test"]
    assert sorted(splits[2:]) == ["train", "train", "train", "val"]


def test_release_2_fills_the_outline(download):
    """Sixteen points on a circle of radius 15 around (30, 24), after the centre itself."""
    angles = np.arange(16) * np.pi / 8
    points = np.stack([30 + 15 * np.cos(angles), 24 + 15 * np.sin(angles)], axis=1)
    numbers = [30, 24, *points.round(2).ravel()]
    for number in (1, 2, 256):
        folder = "Normal" if number < 256 else "Glaucoma and glaucoma suspicious"
        download.picture(f"{folder}/Im{number:03}.jpg")
        text = "\r\n".join(["Reference points", *map(str, numbers), "Ellipse parameters", "30"])
        download.text(f"{folder}/Im{number:03}-gs.txt", text)
    report = download.take("rim-one")
    assert "release 3; release 1 has 169" in report.text()
    mask = download.made("rim_one/masks/im256.png")
    y, x = np.mgrid[: SIZE[1], : SIZE[0]]
    distance = np.hypot(x - 30, y - 24)
    assert (mask[distance < 14.2] == 1).all()
    assert (mask[distance > 16.5] == 0).all()  # pixels that the line touches count
    federation = download.opened()
    assert federation.labels == ["disc"]  # this release has no cup


def test_an_outline_that_is_none(download):
    path = download.text("Normal/Im001-gs.txt", "Reference points\n1\n2\n3\n")
    with pytest.raises(Exception, match="not understood") as error:
        outline_points(path)
    assert "3 numbers" in str(error.value)


def test_release_1_takes_the_majority_of_five_experts(download):
    for folder in ("Normal", "Deep"):
        for number in (1, 2):
            download.picture(f"{folder}/Im{number:03}.bmp")
            for expert in range(1, 6):
                box = (12, 10, 40 + expert, 37)  # the third expert is the median
                mask = ellipse(box).astype(np.uint8) * 255
                download.write(f"{folder}/Im{number:03}-exp{expert}.bmp", mask)
    download.take("rim-one")
    at_least_three = sum(ellipse((12, 10, 40 + expert, 37)) for expert in range(1, 6)) >= 3
    np.testing.assert_array_equal(download.made("rim_one/masks/deep_im002.png"), at_least_three)
    assert len(download.opened().items) == 4


def test_two_releases_need_a_choice(release_3, release_dl):
    with pytest.raises(DataError, match="releases r3 and dl, which share pictures"):
        release_3.take("rim-one")
    with pytest.raises(DataError, match="no sign of release r2"):
        release_3.take("rim-one", release="r2")


def test_a_folder_of_disc_and_cup_takes_no_release_without_cup(refuge):
    refuge.take("refuge")
    refuge.root = refuge.root.parent / "another"
    refuge.root.mkdir()
    refuge.picture("Normal/Im001.bmp")
    refuge.write("Normal/Im001-exp1.bmp", ellipse(DISC).astype(np.uint8) * 255)
    with pytest.raises(DataError, match="of disc, cup, and rim-one is a segmentation of disc;"):
        refuge.take("rim-one")


# --- several imports into one folder --------------------------------------------------------------


def test_one_federation_of_several_imports(refuge, tmp_path):
    refuge.take("refuge", splits="given")
    (tmp_path / "more").mkdir()
    other = Download(tmp_path / "more")
    for number in range(1, 5):
        name = f"drishtiGS_{number:03}"
        other.picture(f"Test/Images/{name}.png")
        for kind, inside in (("ODseg", ellipse(DISC)), ("cupseg", ellipse(CUP))):
            soft = inside.astype(np.uint8) * 255
            other.write(f"Test/Test_GT/{name}/SoftMap/{name}_{kind}Softmap.png", soft)
    other.dest = refuge.dest
    other.take("drishti-gs1")
    federation = refuge.opened()
    assert {item.site for item in federation.items} == {"refuge", "drishti_gs1"}
    given = {item.image: item.split for item in federation.items}
    assert given["refuge/images/v0003.jpg"] == "val"
    assert all(given.values())

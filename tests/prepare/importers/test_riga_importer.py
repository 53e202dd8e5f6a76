"""RIGA: from lines drawn into copies of a picture to the majority of six graders."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from konsil.errors import DataError
from konsil.prepare.importers.base import LeftOut
from konsil.prepare.importers.riga import outlined
from tests.prepare.importers.miniatures import Download, ellipse, rim_and_cup

SIZE = (120, 96)
DISC, CUP = (24, 20, 82, 74), (40, 36, 66, 60)
BLUE = (10, 10, 250)


def draw(pixels, *boxes, start=0, end=360, width=1):
    """A grader's copy: the picture with the outlines of ellipses, or arcs of them."""
    copy = Image.fromarray(pixels)
    for box in boxes:
        if (start, end) == (0, 360):
            ImageDraw.Draw(copy).ellipse(box, outline=BLUE, width=width)
        else:
            ImageDraw.Draw(copy).arc(box, start, end, fill=BLUE, width=width)
    return np.asarray(copy)


class Riga(Download):
    def outlined(self, folder, number, graders=6, suffix="tif", prime="image{}prime", **how):
        """A picture and the copies of its graders, who all agree."""
        pixels = self.picture(f"{folder}/{prime.format(number)}.{suffix}", SIZE)
        for grader in range(1, graders + 1):
            copy = draw(pixels, DISC, CUP)
            self.write(f"{folder}/image{number}-{grader}.{suffix}", copy, **how)
        return pixels


@pytest.fixture
def riga(tmp_path) -> Riga:
    return Riga(tmp_path)


def test_the_three_sources_become_three_sites(riga):
    for number in (1, 2, 3):
        riga.outlined("MESSIDOR/MESSIDOR", number)
        riga.outlined("Magrabia/MagrabiFemale", number)
        riga.outlined("BinRushed/BinRushed2", number)
    riga.outlined("Magrabia/MagrabiaMale", 1)
    report = riga.take("riga")
    made = {row.site: (row.made, row.paper) for row in report.rows}
    assert made == {
        "riga_binrushed": (3, 195),
        "riga_magrabia": (4, 94),
        "riga_messidor": (3, 460),
    }
    expected = rim_and_cup(DISC, CUP, SIZE)
    name = "riga_messidor/masks/MESSIDOR_image2.png"
    np.testing.assert_array_equal(riga.made(name), expected)
    copied = riga.dest / "riga_magrabia/images/MagrabiaMale_image1.tif"
    original = riga.root / "Magrabia/MagrabiaMale/image1prime.tif"
    assert copied.read_bytes() == original.read_bytes()
    federation = riga.opened()
    assert federation.labels == ["disc", "cup"]
    assert len(federation.items) == 10


def test_what_more_than_half_of_the_graders_marked(riga):
    """Discs end in columns 80 to 85: four of six reach column 82, three 83."""
    pixels = riga.picture("MESSIDOR/image1prime.tif", SIZE)
    for grader in range(6):
        copy = draw(pixels, (24, 20, 80 + grader, 74), CUP)
        riga.write(f"MESSIDOR/image1-{grader + 1}.tif", copy)
    riga.take("riga")
    votes = sum(ellipse((24, 20, 80 + grader, 74), SIZE).astype(int) for grader in range(6))
    disc = riga.made("riga_messidor/masks/MESSIDOR_image1.png") > 0
    np.testing.assert_array_equal(disc, votes > 3)
    row = disc[47]
    assert row[82]
    assert not row[83]


def test_lines_survive_jpeg(riga):
    """BinRushed is compressed, picture and copies alike."""
    pixels = np.full((SIZE[1], SIZE[0], 3), (150, 80, 40), np.uint8)
    riga.write("BinRushed3/image1prime.jpg", pixels, quality=90)
    for grader in range(1, 7):
        copy = draw(pixels, DISC, CUP, width=2)
        riga.write(f"BinRushed3/image1-{grader}.jpg", copy, quality=90)
    report = riga.take("riga")
    assert not [note for note in report.notes if "grader" in note]
    mask = riga.made("riga_binrushed/masks/BinRushed3_image1.png")
    for value, box in ((1, DISC), (2, CUP)):  # compression smears a line by two pixels at most
        assert (mask[ellipse(box, SIZE)] >= value).all()
        smeared = (box[0] - 2, box[1] - 2, box[2] + 2, box[3] + 2)
        assert (mask[~ellipse(smeared, SIZE)] < value).all()


def test_graders_who_cannot_be_used_are_reported(riga):
    pixels = riga.outlined("MESSIDOR", 1)
    riga.write("MESSIDOR/image1-1.tif", pixels)  # nothing drawn
    riga.write("MESSIDOR/image1-2.tif", draw(draw(pixels, CUP), DISC, start=0, end=300))
    riga.write("MESSIDOR/image1-3.tif", draw(pixels, DISC))  # no cup
    (riga.root / "MESSIDOR/image1-4.tif").unlink()
    riga.write("MESSIDOR/image1-5.tif", pixels[:-2])
    report = riga.take("riga")
    note = next(note for note in report.notes if "image1prime" in note)
    assert "grader 4 (no file)" in note
    assert "grader 1 (no line)" in note
    assert "grader 2 (1 closed and 1 open lines instead of 2 closed ones)" in note
    assert "grader 3 (1 closed and 0 open" in note
    assert "grader 5 (another size than the picture)" in note
    assert note.endswith("1 of 6 graders remain")
    mask = riga.made("riga_messidor/masks/MESSIDOR_image1.png")
    np.testing.assert_array_equal(mask, rim_and_cup(DISC, CUP, SIZE))


def test_a_picture_without_a_usable_grader_is_left_out(riga):
    riga.outlined("MESSIDOR", 1)
    pixels = riga.outlined("MESSIDOR", 2)
    for grader in range(1, 7):
        riga.write(f"MESSIDOR/image2-{grader}.tif", pixels)
    report = riga.take("riga")
    assert report.rows[0].made == 1
    assert any("image2prime.tif: left out: no grader is usable" in note for note in report.notes)
    assert not (riga.dest / "riga_messidor/images/MESSIDOR_image2.tif").exists()


def test_the_magrabia_picture_without_a_prime(riga):
    """As published: image48 has copies only, MagrabiaMale begins its first grader's with Image."""
    pixels = riga.outlined("MagrabiaMale", 1)
    (riga.root / "MagrabiaMale/image1-1.tif").rename(riga.root / "MagrabiaMale/Image1-1.tif")
    riga.write("MagrabiFemale/image48-1.tif", pixels)
    report = riga.take("riga")
    assert report.rows[0].made == 1
    assert any("no picture without lines (image48prime)" in note for note in report.notes)
    assert any("leaves the paper's 94" in note for note in report.notes)
    assert not any("grader" in note for note in report.notes)


def test_the_corrected_folder_replaces_the_first(riga):
    riga.outlined("BinRushed/BinRushed1-Corrected", 1)
    riga.outlined("BinRushed/BinRushed1", 1)
    report = riga.take("riga")
    assert report.rows[0].made == 1
    assert any("the corrected folder replaces BinRushed1" in note for note in report.notes)


def test_a_picture_without_copies(riga):
    riga.outlined("MESSIDOR", 1)
    riga.outlined("MESSIDOR", 2, graders=0)
    with pytest.raises(DataError, match=r"without a grader's copy:\n.*MESSIDOR/image2prime.tif"):
        riga.take("riga")


def test_a_later_source_joins_the_earlier(riga):
    riga.outlined("MESSIDOR", 1)
    riga.take("riga")
    (riga.root / "MESSIDOR").rename(riga.root.parent / "MESSIDOR")
    riga.outlined("Magrabia/MagrabiaMale", 1)
    riga.take("riga")
    assert {"riga_magrabia", "riga_messidor"} <= {path.name for path in riga.dest.iterdir()}


# --- lines alone ----------------------------------------------------------------------------------


def lines_of(*boxes, **how):
    return draw(np.zeros((SIZE[1], SIZE[0], 3), np.uint8), *boxes, **how).any(axis=2)


def test_a_gap_of_two_pixels_is_bridged():
    lines = lines_of(DISC, CUP)
    assert lines[20, 52:54].all()
    lines[20, 52:54] = False
    disc, cup = outlined(lines)
    whole = ellipse(DISC, SIZE)
    assert (disc != whole).sum() <= 4  # the gap itself
    np.testing.assert_array_equal(cup, ellipse(CUP, SIZE))


def test_an_open_line_beside_two_closed_ones():
    """Whose disc it is cannot be told."""
    lines = lines_of((40, 36, 66, 60), (46, 42, 60, 54)) | lines_of(DISC, start=0, end=270)
    with pytest.raises(LeftOut, match="2 closed and 1 open"):
        outlined(lines)


def test_specks_do_not_matter():
    lines = lines_of(DISC, CUP)
    lines[5:7, 5:8] = True
    lines[90, 110] = True
    disc, _ = outlined(lines)
    np.testing.assert_array_equal(disc, ellipse(DISC, SIZE))


@pytest.mark.parametrize(
    ("boxes", "why"),
    [
        ([(10, 10, 40, 40), (60, 40, 90, 70)], "neither line is inside the other"),
        ([DISC, CUP, (90, 10, 110, 30)], "3 closed and 0 open"),
        ([DISC, (24, 36, 50, 60)], "1 closed and 0 open"),  # the cup touches the disc
    ],
)
def test_lines_that_say_nothing(boxes, why):
    with pytest.raises(LeftOut, match=why):
        outlined(lines_of(*boxes))

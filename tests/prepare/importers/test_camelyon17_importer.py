"""Camelyon17-WILDS: hospitals by `center`, patients whole, a random subset by seed."""

from collections import Counter

import pytest

from konsil.errors import ConfigError, DataError
from tests.prepare.importers.miniatures import Download

HEADER = ",patient,node,x_coord,y_coord,tumor,slide,center,split"


@pytest.fixture
def camelyon(download: Download) -> Download:
    """Five hospitals with four patients each, four patches of each patient, half of them tumour.

    The column `node` would give other sites: every patient has the nodes 0 and 1.
    """
    rows, number = [HEADER], 0
    for centre in range(5):
        for patient in range(4):
            for patch in range(4):
                who, node, tumor = f"{20 * centre + patient:03}", patch // 2, patch % 2
                slide = f"patient_{who}_node_{node}"
                name = f"patch_{slide}_x_{patch}_y_7.png"
                download.picture(f"camelyon17_v1.0/patches/{slide}/{name}", (8, 8))
                rows.append(f"{number},{who},{node},{patch},7,{tumor},{number // 2},{centre},0")
                number += 1
    download.text("camelyon17_v1.0/metadata.csv", "\n".join(rows) + "\n")
    return download


def test_sites_are_hospitals(camelyon):
    report = camelyon.take("camelyon17")
    assert [(row.site, row.made, row.paper) for row in report.rows] == [
        (f"hospital_{centre}", 16, 920) for centre in range(5)
    ]
    name = "patch_patient_041_node_1_x_3_y_7.png"
    copied = camelyon.dest / f"hospital_2/tumour/{name}"
    original = camelyon.root / f"camelyon17_v1.0/patches/patient_041_node_1/{name}"
    assert copied.read_bytes() == original.read_bytes()
    assert sum("paper took 920" in note for note in report.notes) == 1  # once, not for each site


def test_patients_are_on_one_side(camelyon):
    camelyon.take("camelyon17")
    federation = camelyon.opened("classification")
    assert federation.labels == ["normal", "tumour"]
    sides = {}
    for item in federation.items:
        sides.setdefault(item.patient, set()).add(item.split)
    assert len(sides) == 20
    assert all(len(side) == 1 for side in sides.values())


def test_a_random_subset_by_seed(camelyon):
    def chosen(seed):
        camelyon.take("camelyon17", images=40, seed=seed, overwrite=True)
        return {name for name in camelyon.files() if name.endswith(".png")}

    first = chosen(0)
    groups = Counter(name.rsplit("/", 1)[0] for name in first)
    assert groups == {f"hospital_{c}/{k}": 4 for c in range(5) for k in ("normal", "tumour")}
    assert chosen(0) == first
    assert chosen(1) != first


@pytest.mark.parametrize("images", [9, 81])
def test_a_subset_that_cannot_be(camelyon, images):
    with pytest.raises(DataError, match=rf"images = {images}: .* ask for 10 to 80"):
        camelyon.take("camelyon17", images=images)


def test_links_instead_of_copies(camelyon):
    camelyon.take("camelyon17", link=True)
    name = "patch_patient_000_node_0_x_0_y_7.png"
    original = camelyon.root / f"camelyon17_v1.0/patches/patient_000_node_0/{name}"
    assert (camelyon.dest / f"hospital_0/normal/{name}").samefile(original)


def test_a_missing_patch(camelyon):
    (camelyon.root / "camelyon17_v1.0/patches/patient_021_node_1/"
     "patch_patient_021_node_1_x_2_y_7.png").unlink()  # fmt: skip
    with pytest.raises(DataError, match=r"missing image:\n.*patient_021_node_1_x_2"):
        camelyon.take("camelyon17")
    assert camelyon.files() == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("center", "hospital", "the column center is missing"),
        ("0,000,0,0,7,0,0,0,0", "0,000,0,0,7,0,0,9,0", r"unknown value:\n.*: 9, 0"),
        ("0,000,0,0,7,0,0,0,0", "0,000,0,0,7,0,0,1,0", r"patient of two hospitals.*:\n.*000: "),
    ],
)
def test_a_table_that_is_wrong(camelyon, old, new, message):
    table = camelyon.root / "camelyon17_v1.0/metadata.csv"
    table.write_text(table.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        camelyon.take("camelyon17")


def test_no_table(download):
    download.picture("patches/a.png")
    with pytest.raises(DataError, match=r"no metadata.csv was found\n.*\n +metadata.csv +with"):
        download.take("camelyon17")


def test_an_option_of_another_data_set(camelyon):
    with pytest.raises(ConfigError, match=r"crop = 2 is no option .* images, seed, link"):
        camelyon.take("camelyon17", crop=2)

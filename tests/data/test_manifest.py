"""The federation file: what it says, what it refuses, and what it leads to."""

import json

import numpy as np
import pytest

from konsil import data
from konsil.data.manifest import read_manifest
from konsil.data.patterns import Pattern
from konsil.data.readers import Percentiles, to_eight_bit
from konsil.errors import ConfigError, DataError

TWO_SITES = """
    structures: {disc: [128, 255], cup: [255]}
    sites:
      a: {images: a/images/*.png, labels: a/masks/*.png}
      b: {images: b/images/*.png, labels: b/masks/*.png}
"""


def test_the_same_federation_as_the_plain_folder(build):
    """Same files, same splits, same arrays: one cache entry."""
    build.pairs("a", 8)
    build.pairs("b", 8)
    path = build.manifest(TWO_SITES)
    by_file = build.open(file=path)
    by_folder = build.open({"structures": {"disc": [128, 255], "cup": [255]}}, sites=["a", "b"])
    assert by_file.fingerprint == by_folder.fingerprint
    assert by_file.labels == ["disc", "cup"]
    assert build.open(file=build.root).fingerprint == by_file.fingerprint  # the folder will do


def test_a_site_may_say_otherwise(build):
    """One site writes 1 and 2, the other 128 and 255; both mean rim and cup."""
    for site, rim, cup in (("a", 128, 255), ("b", 1, 2)):
        for i in range(4):
            build.image(f"{site}/images/{i}.png", size=(16, 16))
            values = np.zeros((16, 16), np.uint8)
            values[:6], values[:2] = rim, cup
            build.array(f"{site}/masks/{i}.png", values)
    path = build.manifest(
        """
        structures: {disc: [128, 255], cup: [255]}
        sites:
          a: {images: a/images/*.png, labels: a/masks/*.png}
          b:
            images: b/images/*.png
            labels: b/masks/*.png
            structures: {cup: [2], disc: [1, 2]}     # another order changes nothing
        """
    )
    federation = build.open(file=path)
    for site in "ab":
        targets = data.training_data(federation.folder, [site]).train.targets
        assert targets.sum(dim=(2, 3)).tolist() == [[96, 32]] * len(targets)


def test_one_file_a_structure_and_another_background(build):
    for i in range(4):
        build.image(f"a/{i}.png", size=(16, 16))
        disc = np.full((16, 16), 255, np.uint8)
        disc[:8] = 0
        cup = np.full((16, 16), 255, np.uint8)
        cup[:4] = 0
        build.array(f"a/disc/{i}_OD.png", disc)
        build.array(f"a/cup/{i}_OC.png", cup)
    path = build.manifest(
        """
        structures: [disc, cup]
        background: 255
        sites:
          a: {images: a/*.png, labels: {cup: a/cup/*_OC.png, disc: a/disc/*_OD.png}}
        """
    )
    federation = build.open(file=path)
    targets = data.training_data(federation.folder, ["a"]).train.targets
    assert targets.sum(dim=(2, 3)).tolist() == [[128, 64]] * 2
    masks = {item.image: item.masks for item in federation.items}
    assert masks["a/0.png"] == (("disc", "a/disc/0_OD.png"), ("cup", "a/cup/0_OC.png"))
    federation.write_splits(build.root / "splits.csv")
    assert "disc=a/disc/0_OD.png cup=a/cup/0_OC.png" in (build.root / "splits.csv").read_text()


def test_coloured_masks(build):
    for i in range(4):
        build.image(f"a/images/{i}.png", size=(16, 16))
        colours = np.zeros((16, 16, 3), np.uint8)
        colours[:6], colours[:2] = (0, 255, 0), (255, 0, 16)
        build.array(f"a/masks/{i}.png", colours)
    text = """
        structures: {disc: ["#00ff00", "#FF0010"], cup: ["#ff0010"]}
        sites: {a: {images: a/images/*.png, labels: a/masks/*.png}}
    """
    federation = build.open(file=build.manifest(text))
    targets = data.training_data(federation.folder, ["a"]).train.targets
    assert targets.sum(dim=(2, 3)).tolist() == [[96, 32]] * 2
    with pytest.raises(DataError, match=r"a/masks/0.png \(value #ff0010\)"):
        build.open(file=build.manifest(text.replace(', "#FF0010"', "").replace("0010", "0011")))


def test_windows(build):
    """Values 1000 to 2000 of a 16-bit image become 0 to 255."""
    ramp = np.linspace(1000, 2000, 16).astype(np.uint16)
    for i in range(4):
        build.array(f"a/images/{i}.png", np.tile(ramp, (16, 1)))
        build.mask(f"a/masks/{i}.png", size=(16, 16))
    sites = "sites: {a: {images: a/images/*.png, labels: a/masks/*.png}}\nchannels: 1\n"
    wanted = np.rint((ramp - 1000.0) * 255 / 1000)
    for window in ("[1000, 2000]", "{percentiles: [0, 100]}"):
        federation = build.open(file=build.manifest(f"window: {window}\n" + sites))
        [row] = {tuple(r) for r in federation_rows(federation)}
        assert np.abs(np.array(row) - wanted).max() <= 1
    full = build.open(file=build.manifest("window: full\n" + sites))
    assert max(federation_rows(full)[0]) == round(2000 * 255 / 65535)
    notes = build.open(file=build.manifest(sites)).warnings
    assert [note for note in notes if "keep few greys" in note]


def federation_rows(federation):
    images = data.training_data(federation.folder, ["a"]).train.images
    return images[:, 0, 3].tolist()


def test_eight_bit_by_hand():
    values = np.array([[-5, 0, 50, 100, 400]], np.int16)
    assert to_eight_bit(values, (0, 100)).tolist() == [[0, 0, 128, 255, 255]]
    assert to_eight_bit(values, Percentiles(0, 100)).tolist() == [[0, 3, 35, 66, 255]]
    assert to_eight_bit(np.full((2, 2), 7, np.int16), Percentiles(1, 99)).tolist() == [[0, 0]] * 2
    mostly_dark = np.zeros(1000)
    mostly_dark[0] = 9  # both percentiles are 0: the whole range is used instead
    assert to_eight_bit(mostly_dark, Percentiles(1, 99)).max() == 255


# --- patterns -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.png", [("x.png", ("x",))]),
        ("a/*/im_*.png", [("a/1/im_7.png", ("1", "7")), ("a/2/im_8.png", ("2", "8"))]),
        ("**/im_7.png", [("a/1/im_7.png", ("a/1/",))]),
        ("**/*.png", [("a/1/im_7.png", ("a/1/", "im_7")), ("a/2/im_8.png", ("a/2/", "im_8")),
                      ("x.png", ("", "x"))]),
        ("a/*", [("a/1", ("1",)), ("a/2", ("2",))]),
        ("x.{jpg,png}", [("x.png", ())]),
        ("?.png", [("x.png", ("x",))]),
        ("./x.png", [("x.png", ())]),
        ("nowhere/*.png", []),
        ("a.*", []),
    ],
)  # fmt: skip
def test_patterns(tmp_path, pattern, found):
    for name in ("x.png", "a/1/im_7.png", "a/2/im_8.png", ".hidden.png", "a/.x/im_9.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list(Pattern(pattern, "images").find(tmp_path)) == found


def test_a_link_in_a_circle_ends(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").touch()
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    assert list(Pattern("**/*.png", "images").find(tmp_path)) == [("a/x.png", ("a/", "x"))]


@pytest.mark.parametrize("pattern", ["../x/*.png", "/data/*.png", "a/../../x.png"])
def test_patterns_stay_inside(pattern):
    with pytest.raises(ConfigError, match="stay in its folder"):
        Pattern(pattern, "sites.a.images")


def test_pairs_by_what_the_stars_stand_for(build):
    """The patient's folder and the number agree; with one star the last counts."""
    for patient in ("anna", "bert", "carl"):
        for i in (1, 2):
            build.image(f"a/{patient}/im_{i}.png")
            build.mask(f"masks/{patient}-{i}.png", value=i)
    path = build.manifest(
        """
        structures: {one: [1], two: [2]}
        patient: a/([^/]+)/
        sites: {a: {images: a/*/im_*.png, labels: masks/*-*.png}}
        """
    )
    items = build.open(file=path).items
    assert {(item.patient, item.label) for item in items} == {
        (p, f"masks/{p}-{i}.png") for p in ("anna", "bert", "carl") for i in (1, 2)
    }
    assert all(item.label[-5] == item.image[-5] for item in items)


# --- lists ----------------------------------------------------------------------------------------


def test_one_table_for_several_sites(build):
    """WILDS' way: a column for the hospital, paths from a template, labels as numbers."""
    rows = []
    for center in (0, 1):
        for i in range(6):
            build.image(f"patches/p{center}{i}/x_{i}.png")
            rows.append(f"{center},p{center}{i},{i},{i % 2}")
    build.table(*rows, header="center,patient,x,tumor", name="metadata.csv")
    path = build.manifest(
        """
        task: classification
        classes: {normal: [0], tumor: [1]}
        sites:
          east: &rows
            list:
              file: metadata.csv
              where: {center: 0}
              image: patches/{patient}/x_{x}.png
              label: tumor
              patient: patient
          west:
            list: {file: metadata.csv, where: {center: 1}, image: "patches/{patient}/x_{x}.png", label: tumor}
        """  # noqa: E501
    )
    federation = build.open({"name": "classification"}, file=path)
    assert federation.labels == ["normal", "tumor"]
    assert {item.site: item.image.split("/")[1][1] for item in federation.items} == {
        "east": "0",
        "west": "1",
    }
    assert all(item.label == ("normal", "tumor")[int(item.image[-5]) % 2]
               for item in federation.items)  # fmt: skip


def test_a_datalist_with_its_own_parts(build):
    """training and test are given, validation is cut from training, unlabelled entries are not."""
    build.pairs("a", 12)
    pairs = [{"image": f"images/p{i}.png", "label": f"masks/p{i}.png"} for i in range(12)]
    content = {"name": "x", "training": pairs[:9], "test": [*pairs[9:], "images/unknown.png"]}
    (build.root / "a" / "datalist.json").write_text(json.dumps(content))
    path = build.manifest("sites: {a: {list: a/datalist.json}}")
    federation = build.open(file=path)
    assert federation.counts == {"a": {"train": 6, "val": 3, "test": 3}}
    test = {item.image for item in federation.items if item.split == "test"}
    assert test == {f"a/images/p{i}.png" for i in (9, 10, 11)}
    assert federation.warnings[0] == "site a: 1 entries without a label left out"


def test_splits_from_a_file_and_from_the_experiment(build):
    build.pairs("a", 8)
    text = "sites: {a: {images: a/images/*.png, labels: a/masks/*.png}}\n"
    drawn = build.open(file=build.manifest(text + "split: {seed: 3}\n"))
    drawn.write_splits(build.root / "splits.csv")
    given = build.open(file=build.manifest(text + "split: {file: splits.csv, seed: 8}\n"))
    assert given.fingerprint == drawn.fingerprint
    other = build.open(file=build.manifest(text + "split: {seed: 3}\n"), split_seed=4)
    assert other.fingerprint != drawn.fingerprint
    assert other.fingerprint == build.open(split_seed=4).fingerprint


def test_a_patient_on_two_sides_of_a_given_split(build):
    build.pairs("a", 4)
    rows = [f"images/p{i}.png,masks/p{i}.png,P{i // 2},{s}"
            for i, s in enumerate(("train", "test", "val", "val"))]  # fmt: skip
    build.table(*rows, header="image,label,patient,split", name="a/list.csv")
    with pytest.raises(DataError, match="patient in more than one split"):
        build.open(file=build.manifest("sites: {a: {list: a/list.csv}}"))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sites: {}", "sites"),
        ("sites: {a: {images: x/*.png}}", "sites.a.labels: missing"),
        ("sites: {a: {labels: x/*.png}}", "give either images"),
        ("sites: {a: {images: x, labels: y, list: z.csv}}", "give either images"),
        ("structures: {disc: [0, 1]}\nsites: {a: {list: z.csv}}", "0 is the background"),
        ("structures: {disc: [red]}\nsites: {a: {list: z.csv}}", 'a colour such as "#ff0000"'),
        ("classes: [x, y]\nsites: {a: {list: z.csv}}", "they belong to task: classification"),
        ("window: [9, 3]\nsites: {a: {list: z.csv}}", "the smaller first"),
        ("window: {percentiles: [9, 103]}\nsites: {a: {list: z.csv}}", "from 0 to 100"),
        ("split: {train: 0.9}\nsites: {a: {list: z.csv}}", "sum to 1"),
        ("slices: {view: oblique}\nsites: {a: {list: z.csv}}", "axial"),
        ("pattern: x\nsites: {a: {list: z.csv}}", "pattern: unknown key; did you mean patient?"),
        ("sites:\n  a: {list: z.csv}\n  a: {list: y.csv}", "the key a stands twice"),
        ("series: '['\nsites: {a: {list: z.csv}}", "not a regular expression"),
        ("structures: {x: [1]}\nsites: {a: {list: z.csv, structures: {y: [1]}}}", "the same names"),
        ("structures: [x, y]\nsites: {a: {images: i, labels: {x: m}}}", "patterns for x"),
    ],
)
def test_refused(build, text, said):
    with pytest.raises(ConfigError) as caught:
        read_manifest(build.manifest(text))
    assert said in str(caught.value)
    assert "federation.yaml" in str(caught.value)


def test_a_folder_without_a_file(build):
    with pytest.raises(DataError, match="konsil data init"):
        read_manifest(build.root)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"name": "classification"}, "set task.name to segmentation"),
        ({"structures": {"x": [1]}}, "leave task.structures out"),
    ],
)
def test_the_experiment_must_fit_the_file(build, task, said):
    build.pairs("a", 4)
    path = build.manifest("sites: {a: {images: a/images/*.png, labels: a/masks/*.png}}")
    with pytest.raises(DataError, match=said):
        build.open(task, file=path)


def test_a_pattern_for_patients_belongs_into_the_file(build):
    with pytest.raises(ValueError, match="stands in the federation file"):
        build.open(file=build.root, patient_pattern="(x)")


def test_mistakes_of_patterns_are_told_together(build):
    build.pairs("a", 4)
    build.image("a/images/alone.png")
    build.mask("a/masks/widow.png")
    (build.root / "a/images/gone.png").symlink_to("nowhere.png")
    (build.root / "a/images/notes.txt").write_text("x")
    path = build.manifest(
        """
        sites:
          a: {images: a/images/*, labels: a/masks/*}
          b: {images: b/*.png, labels: b/masks/*.png}
        """
    )
    # a star that stands for the suffix as well pairs whole names
    with pytest.raises(DataError) as caught:
        build.open(file=path)
    text = str(caught.value)
    for expected in (
        "image without a mask:\n    a/images/alone.png",
        "mask without an image:\n    a/masks/widow.png",
        "link that leads nowhere:\n    a/images/gone.png",
        "file that is no image by its name:\n    a/images/notes.txt",
        "pattern that matches no image:\n    b/*.png",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("../x.png,masks/p0.png", "path that leaves the federation's folder"),
        ("/etc/x.png,masks/p0.png", "path that leaves the federation's folder"),
        ("images/p9.png,masks/p0.png", "missing file"),
        ("images/p0.png,", "row with an empty cell"),
        ("images/p1.png,masks/p0.png", "image listed twice"),
        ("images/link.png,masks/p0.png", "link that leads nowhere"),
    ],
)
def test_mistakes_of_lists(build, row, said):
    build.pairs("a", 4)
    (build.root / "a/images/link.png").symlink_to("nowhere.png")
    good = [f"images/p{i}.png,masks/p{i}.png" for i in range(1, 4)]
    build.table(*good, row.replace("../", "../../"), header="image,label", name="a/list.csv")
    with pytest.raises(DataError, match=said):
        build.open(file=build.manifest("sites: {a: {list: a/list.csv}}"))


def test_labels_outside_the_classes(build):
    build.classes("a", normal=4, tumour=4, other=1)
    text = "task: classification\n{}sites: {{a: {{images: a/*/*.png, labels: folder}}}}"
    for classes in ("classes: [normal, tumour]\n", "classes: {n: [normal], t: [tumour]}\n"):
        path = build.manifest(text.format(classes))
        with pytest.raises(DataError, match="other"):
            build.open({"name": "classification"}, file=path)


def test_one_id_at_two_sites_is_told(build):
    for site in ("a", "b"):
        for patient in ("anna", "bert", site):
            build.image(f"{site}/images/{patient}_1.png")
            build.mask(f"{site}/masks/{patient}_1.png")
    text = TWO_SITES.replace("structures: {disc: [128, 255], cup: [255]}", r"patient: ^(.+)_\d$")
    [*_, note] = build.open(file=build.manifest(text)).warnings
    assert note.startswith("2 patient ids occur at several sites, such as anna at a (a/images/anna")
    numbered = build.open(file=build.manifest(text.replace(r"patient: ^(.+)_\d$", ""))).warnings
    assert not [note for note in numbered if "patient ids" in note]

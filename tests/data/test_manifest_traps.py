"""Federation files that look right and would train on wrong labels: each is refused, or mended."""

import json

import numpy as np
import pytest
import SimpleITK as sitk

from konsil import data
from konsil.data.manifest import plain_label, read_manifest
from konsil.data.patterns import Pattern
from konsil.data.recipe import digest
from konsil.errors import ConfigError, DataError
from konsil.prepare.check import check_federation


def by_structure(build, site, count=4):
    """Disc masks cover half, cup masks a quarter."""
    for i in range(count):
        build.image(f"{site}/im/{i}.png", size=(16, 16))
        for name, rows in (("disc", 8), ("cup", 4)):
            values = np.zeros((16, 16), np.uint8)
            values[:rows] = 255
            build.array(f"{site}/{name}/{i}.png", values)


def areas(federation, site):
    targets = data.training_data(federation.folder, [site]).train.targets
    return (targets.sum(dim=(0, 2, 3)) / len(targets)).tolist()


def test_the_order_of_patterns_does_not_swap_structures(build):
    for site in ("n", "s"):
        by_structure(build, site)
    path = build.manifest(
        """
        sites:
          n: {images: n/im/*.png, labels: {disc: n/disc/*.png, cup: n/cup/*.png}}
          s: {images: s/im/*.png, labels: {cup: s/cup/*.png, disc: s/disc/*.png}}
        """
    )
    federation = build.open(file=path)
    assert federation.labels == ["disc", "cup"]
    assert areas(federation, "n") == areas(federation, "s") == [128, 64]


def test_a_datalist_pairs_by_name(build):
    by_structure(build, "s")
    entries = [
        {"image": f"im/{i}.png", "label": {"cup": f"cup/{i}.png", "disc": f"disc/{i}.png"}}
        for i in range(4)
    ]
    (build.root / "s" / "list.json").write_text(json.dumps({"training": entries}))
    good = "structures: [disc, cup]\nsites: {s: {list: s/list.json}}"
    assert areas(build.open(file=build.manifest(good)), "s") == [128, 64]
    for text in ("sites: {s: {list: s/list.json}}", good.replace("cup", "foo")):
        with pytest.raises(DataError, match="labels of other structures"):
            build.open(file=build.manifest(text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            """
            structures: [disc, cup]
            sites: {a: {images: a/images/*.png, labels: a/masks/*.png}}
            """,
            "say which values are which structure",
        ),
        (
            """
            sites:
              a: {images: a/*.png, labels: a/m/*.png, structures: {disc: [1, 2], cup: [2]}}
              b: {images: b/*.png, labels: b/m/*.png}
            """,
            "sites.b: its masks are one file an image",
        ),
        (
            """
            sites:
              a: {images: a/*.png, labels: {disc: a/d/*.png, cup: a/c/*.png}}
              b: {images: b/*.png, labels: b/m/*.png}
            """,
            "sites.b: its masks are one file an image",
        ),
        (
            """
            sites:
              a: {images: a/*.png, labels: {disc: a/d/*.png}}
              b: {images: b/*.png, labels: {cup: b/m/*.png}}
            """,
            "every site has the same names",
        ),
        ("background: white\nsites: {a: {list: x.csv}}", "a colour such as"),
        (
            "task: classification\nclasses: {a: [0, 1], b: ['1.0']}\nsites: {a: {list: x.csv}}",
            "1: a label belongs to one class",
        ),
        (
            "task: classification\nclasses: {a: [no], b: [yes]}\nsites: {a: {list: x.csv}}",
            "put it into quotes",
        ),
        ("sites: {a: {list: {file: x.csv, where: {use: yes}}}}", "put it into quotes"),
        ("sites: {a: {imagse: x, labels: y}}", "did you mean images?"),
    ],
)
def test_refused_before_anything_is_opened(build, text, said):
    with pytest.raises(ConfigError) as caught:
        read_manifest(build.manifest(text))
    assert said in str(caught.value)


def test_a_list_of_single_masks_for_several_structures(build):
    build.pairs("a", 4)
    rows = [f"images/p{i}.png,masks/p{i}.png" for i in range(4)]
    build.table(*rows, header="image,label", name="a/list.csv")
    path = build.manifest("structures: [disc, cup]\nsites: {a: {list: a/list.csv}}")
    with pytest.raises(DataError, match="one mask for several structures"):
        build.open(file=path)
    assert not check_federation(path).ok


def test_a_background_at_the_top_counts_for_every_site(build):
    """REFUGE writes 0 for the cup, 128 for the rim and 255 around them."""
    for i in range(4):
        build.image(f"a/images/{i}.png", size=(16, 16))
        values = np.full((16, 16), 255, np.uint8)
        values[:8], values[:4] = 128, 0
        build.array(f"a/masks/{i}.png", values)
    path = build.manifest(
        """
        background: 255
        sites:
          a: {images: a/images/*.png, labels: a/masks/*.png, structures: {disc: [0, 128], cup: [0]}}
        """
    )
    assert areas(build.open(file=path), "a") == [128, 64]


@pytest.mark.parametrize("labels", ["a/masks/p0.png", "a/masks/*.png"])
def test_one_mask_does_not_serve_two_images(build, labels):
    build.pairs("a", 4)
    build.pairs("b", 4)
    path = build.manifest(f"sites: {{x: {{images: '*/images/*.png', labels: '{labels}'}}}}")
    with pytest.raises(DataError, match="one mask for two images"):
        build.open(file=path)


def test_sixteen_bits_a_colour(build):
    """12 of 16 bits used: with a window nothing is lost, without one it is said."""
    ramp = np.linspace(0, 4095, 16).astype(np.uint16)
    pixels = np.repeat(np.tile(ramp, (16, 1))[..., None], 3, axis=2)
    for i in range(4):
        path = build.root / f"a/images/{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        sitk.WriteImage(sitk.GetImageFromArray(pixels, isVector=True), str(path))
        build.mask(f"a/masks/{i}.png", size=(16, 16))
    sites = "sites: {a: {images: a/images/*.png, labels: a/masks/*.png}}\n"
    federation = build.open(file=build.manifest("window: [0, 4095]\n" + sites))
    images = data.training_data(federation.folder, ["a"]).train.images
    wanted = np.rint(ramp * (255 / 4095))
    assert np.abs(images[0, :, 3].numpy() - wanted).max() <= 1
    notes = build.open(file=build.manifest(sites)).warnings
    assert [note for note in notes if "keep few greys" in note]


def test_names_in_a_folder_are_part_of_its_digest(tmp_path):
    """Slices may be paired by their names: to rename one changes what is learned."""
    folder = tmp_path / "masks"
    folder.mkdir()
    (folder / "a_1.png").write_bytes(b"one")
    (folder / "b_2.png").write_bytes(b"two")
    before = digest(folder)
    (folder / "a_1.png").rename(folder / "a_2.png")
    (folder / "b_2.png").rename(folder / "b_1.png")
    assert digest(folder) != before


def test_a_site_without_training_images(build):
    build.pairs("a", 6)
    pairs = [{"image": f"images/p{i}.png", "label": f"masks/p{i}.png"} for i in range(6)]
    content = {"validation": pairs[:3], "test": pairs[3:]}
    (build.root / "a" / "list.json").write_text(json.dumps(content))
    path = build.manifest("sites: {a: {list: a/list.json}}")
    with pytest.raises(DataError, match="site a: no image in train"):
        build.open(file=path)
    assert not check_federation(path).ok


def test_rows_of_splits_that_contradict(build):
    build.pairs("a", 4)
    rows = ["a,a/images/p0.png,train", "a,a/images/p0.png,test", "a,a/images/p9.png,val"]
    rows += [f"a,a/images/p{i}.png,{s}" for i, s in ((1, "train"), (2, "val"), (3, "test"))]
    build.table(*rows, header="site,image,split", name="splits.csv")
    text = "split: {file: splits.csv}\nsites: {a: {images: a/images/*.png, labels: a/masks/*.png}}"
    with pytest.raises(DataError) as caught:
        build.open(file=build.manifest(text))
    assert "image with two splits" in str(caught.value)
    assert "split of an image that is not there:\n    a: a/images/p9.png" in str(caught.value)


@pytest.mark.parametrize("entry", [3, ["a", "b"], None])
def test_entries_of_a_datalist_that_are_none(build, entry):
    (build.root / "list.json").write_text(json.dumps({"training": [entry]}))
    with pytest.raises(DataError, match=r"an entry looks like|no entries"):
        build.open(file=build.manifest("sites: {a: {list: list.json}}"))


def test_slices_are_overruled_key_by_key(build):
    path = build.manifest(
        """
        slices: {view: coronal, which: all}
        sites: {a: {list: x.csv, slices: {every: 2}}, b: {list: x.csv}}
        """
    )
    manifest = read_manifest(path)
    assert manifest.site("a").slices.model_dump() == {"view": "coronal", "which": "all", "every": 2}
    assert manifest.site("b").slices.every == 1


def test_names_from_a_mac_and_final_slashes(tmp_path):
    (tmp_path / "Mu\u0308ller").mkdir()
    assert list(Pattern("*/", "images").find(tmp_path)) == [("Mu\u0308ller", ("M\u00fcller",))]


@pytest.mark.parametrize(
    ("label", "plain"), [(1, "1"), ("1.0", "1"), (1.5, "1.5"), (" x ", "x"), ("v1.0", "v1.0")]
)
def test_numbers_as_labels(label, plain):
    assert plain_label(label) == plain

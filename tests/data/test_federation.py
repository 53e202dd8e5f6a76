import csv
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from konsil import data
from konsil.data import Images, readers
from konsil.data.synthetic import FEDERATIONS
from konsil.errors import DataError

CLASSIFICATION = {"name": "classification"}
DISC_AND_CUP = {"structures": {"disc": [128, 255], "cup": [255]}}


def test_folder_of_images_and_masks(build):
    build.pairs("north", 8)
    build.pairs("east", 12)
    federation = build.open()
    assert federation.sites == ["east", "north"]
    assert federation.labels == ["foreground"]
    assert federation.channels == 3
    assert federation.counts == {
        "east": {"train": 6, "val": 3, "test": 3},
        "north": {"train": 4, "val": 2, "test": 2},
    }
    assert federation.patients == federation.counts
    view = data.training_data(federation.folder, ["north"])
    assert view.train.images.shape == (4, 3, 16, 16)
    assert view.train.images.dtype == torch.uint8
    assert view.train.targets.shape == (4, 1, 16, 16)
    assert data.test_images(federation.folder, "east").images.shape == (3, 3, 16, 16)


def test_sites_are_kept_in_the_order_of_the_experiment(build):
    for site in ("a", "b", "c"):
        build.pairs(site)
    (build.root / "no_site").mkdir()  # not asked for, so not in the way
    assert build.open(sites=["c", "a"]).sites == ["c", "a"]


def test_hidden_and_foreign_files_are_ignored(build):
    build.pairs("a")
    before = build.open().fingerprint
    for name in ("index.csv", "a/.DS_Store", "a/images/Thumbs.db", "a/masks/.hidden.png"):
        (build.root / name).write_bytes(b"no image")
    (build.root / ".git").mkdir()
    assert build.open().fingerprint == before


def test_suffixes_of_image_and_mask_may_differ(build):
    build.pairs("a", 4)
    for i in range(4):
        Image.open(build.root / f"a/images/p{i}.png").save(build.root / f"a/images/p{i}.JPG")
        (build.root / f"a/images/p{i}.png").unlink()
    assert sum(build.open().counts["a"].values()) == 4


def test_pixels_and_planes_are_those_of_the_files(build):
    """At the images' own size nothing is resampled: the arrays are the files."""
    for i in range(4):
        build.image(f"a/images/{i}.png", size=(16, 16))
        values = np.zeros((16, 16), np.uint8)
        values[: i + 2] = 128
        values[: i + 1] = 255
        build.array(f"a/masks/{i}.png", values)
    federation = build.open(DISC_AND_CUP)
    images = {item.image: item for item in federation.items}
    train = [name for name, item in images.items() if item.split == "train"]
    view = data.training_data(federation.folder, ["a"]).train
    for row, name in enumerate(train):
        pixels = np.asarray(Image.open(build.root / name))
        assert np.array_equal(view.images[row].permute(1, 2, 0).numpy(), pixels)
        i = int(name[-5])
        assert view.targets[row].sum(dim=(1, 2)).tolist() == [16 * (i + 2), 16 * (i + 1)]


def test_masks_are_resized_by_nearest_neighbour():
    mask = np.arange(16, dtype=np.uint8).reshape(4, 4)
    small = readers.shrink(mask, 2)
    assert small.tolist() == [[5, 7], [13, 15]]
    assert readers.marked(small, (5, 15), 0).tolist() == [[True, False], [False, True]]
    assert readers.marked(small, None, 0).all()
    up = readers.shrink(np.array([[0, 9]], np.uint8), 4)
    assert up.tolist() == [[0, 0, 9, 9]] * 4


def test_images_are_averaged_when_they_shrink(tmp_path):
    board = np.indices((64, 64)).sum(axis=0) % 2 * 255
    Image.fromarray(board.astype(np.uint8)).save(tmp_path / "board.png")
    picture = readers.read_picture((tmp_path / "board.png").read_bytes())
    assert abs(readers.fit(picture, 1, 16)[:, 1:-1, 1:-1].astype(float) - 127.5).max() < 3


def test_sixteen_bit_grey_is_scaled_linearly(tmp_path):
    wide = np.full((16, 16), 65535, np.uint16)
    wide[:4], wide[4:8] = 0, 257 * 100
    for name in ("wide.png", "wide.tif"):
        Image.fromarray(wide).save(tmp_path / name)
        picture = readers.read_picture((tmp_path / name).read_bytes())
        assert readers.intensities(picture).max() == 65535
        eight = readers.fit(readers.eight_bit(picture, None), 1, 16)
        assert eight[0, :, 0].tolist() == [0] * 4 + [100] * 4 + [255] * 8


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA"])
def test_masks_of_several_modes(tmp_path, mode):
    values = np.zeros((8, 8), np.uint8)
    values[:3] = 255
    Image.fromarray(values).convert(mode).save(tmp_path / "mask.png")
    mask = readers.read_mask((tmp_path / "mask.png").read_bytes())
    assert readers.mask_values(mask) == {0: 40, 255: 24}
    assert (mask != 0).sum() == 24


def test_palette_masks_give_their_index(tmp_path):
    picture = Image.fromarray(np.array([[0, 1], [2, 2]], np.uint8), mode="P")
    picture.putpalette([0, 0, 0, 250, 0, 0, 0, 250, 0])
    picture.save(tmp_path / "mask.png")
    mask = readers.read_mask((tmp_path / "mask.png").read_bytes())
    assert mask.tolist() == [[0, 1], [2, 2]]


def test_one_channel(build):
    build.pairs("a", 4)
    federation = build.open(channels=1)
    assert federation.channels == 1
    assert data.training_data(federation.folder, ["a"]).train.images.shape == (2, 1, 16, 16)


def test_classification(build):
    build.classes("a", normal=8, tumour=8)
    build.classes("b", normal=12, tumour=4)
    federation = build.open(CLASSIFICATION)
    assert federation.labels == ["normal", "tumour"]
    view = data.training_data(federation.folder, ["b"]).train
    assert view.targets.dtype == torch.int64
    assert view.targets.tolist() == [0] * 6 + [1] * 2
    swapped = build.open({**CLASSIFICATION, "classes": ["tumour", "normal"]})
    assert swapped.labels == ["tumour", "normal"]
    assert data.training_data(swapped.folder, ["b"]).train.targets.tolist() == [1] * 6 + [0] * 2
    assert swapped.fingerprint != federation.fingerprint


def test_batch_is_float_in_unit_range():
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1)
    masks = Images(images, torch.ones(3, 2, 1, 1, dtype=torch.uint8))
    x, y = masks.batch(torch.tensor([2, 1]))
    assert x.flatten().tolist() == [1.0, pytest.approx(0.2)]
    assert x.dtype == y.dtype == torch.float32
    assert y.shape == (2, 2, 1, 1)
    x, y = Images(images, torch.tensor([5, 6, 7])).batch(torch.tensor([2, 0]))
    assert y.tolist() == [7, 5]
    assert y.dtype == torch.int64
    assert images.flatten().tolist() == [0, 51, 255]


def test_pooled_keeps_the_given_order(build):
    build.pairs("a", 4)
    build.pairs("b", 4)
    folder = build.open().folder
    pool = data.training_data(folder, ["b", "a"])
    alone = [data.training_data(folder, [site]) for site in ("b", "a")]
    assert torch.equal(pool.train.images, torch.cat([view.train.images for view in alone]))
    assert torch.equal(pool.val.targets, torch.cat([view.val.targets for view in alone]))
    assert len(pool.train) == 4


def test_training_never_opens_a_test_file(build):
    build.pairs("a")
    folder = build.open().folder
    shutil.rmtree(folder / "a" / "test")
    view = data.training_data(folder, ["a"])
    assert len(view.train) == 4
    assert len(view.val) == 2
    assert set(vars(view)) == {"train", "val"}
    assert all(
        isinstance(t, torch.Tensor) for part in (view.train, view.val) for t in vars(part).values()
    )


def test_training_cannot_change_the_cache(build):
    build.pairs("a")
    folder = build.open().folder
    view = data.training_data(folder, ["a"]).train
    before = view.images.clone()
    view.images.zero_()
    assert torch.equal(data.training_data(folder, ["a"]).train.images, before)


def test_csv_gives_the_same_as_the_folder(build):
    build.pairs("a")
    build.pairs("b")
    rows = [f"{s},{s}/images/p{i}.png,{s}/masks/p{i}.png,p{i}" for i in range(8) for s in "ba"]
    path = build.table(*rows, header="site,image,label,patient")
    assert build.open(csv=path).fingerprint == build.open().fingerprint


def test_written_splits_are_read_again(build, tmp_path):
    build.pairs("a")
    federation = build.open(split_seed=3)
    federation.write_splits(build.root / "splits.csv")
    with (build.root / "splits.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["site", "image", "label", "patient", "split"]
    assert len(rows) == 8
    assert not [p for p in build.root.iterdir() if p.name.startswith(".")]
    again = build.open(csv=build.root / "splits.csv", split_seed=99)
    assert again.fingerprint == federation.fingerprint
    assert again.counts == federation.counts


def test_csv_splits_are_taken_as_they_are(build):
    build.pairs("a", 4)
    splits = ["test", "train", "val", "test"]
    rows = [f"a,a/images/p{i}.png,a/masks/p{i}.png,{s}" for i, s in enumerate(splits)]
    federation = build.open(csv=build.table(*rows, header="site,image,label,split"))
    assert federation.counts == {"a": {"train": 1, "val": 1, "test": 2}}


def test_what_a_csv_does_not_give_is_cut_from_train(build):
    build.pairs("a", 8)
    rows = [
        f"a,a/images/p{i}.png,a/masks/p{i}.png,{'test' if i < 2 else 'training'}" for i in range(8)
    ]
    federation = build.open(csv=build.table(*rows, header="site,image,label,split"))
    assert federation.counts["a"] == {"train": 4, "val": 2, "test": 2}


def test_spaces_at_the_ends_of_folder_names_are_kept(build):
    build.classes(" a", **{" ill": 4, "well ": 4})
    federation = build.open(CLASSIFICATION)
    assert (federation.sites, federation.labels) == ([" a"], [" ill", "well "])


def test_csv_classification_with_extra_columns_and_byte_order_mark(build):
    build.classes("a", normal=4, tumour=4)
    rows = [f"x, a/{c}/{i}.png, {c}, 63" for c in ("normal", "tumour") for i in range(4)]
    path = build.table(*rows, header="\ufeffsite, image, label, age")
    federation = build.open(CLASSIFICATION, csv=path)
    assert federation.sites == ["x"]
    assert federation.labels == ["normal", "tumour"]


def test_warnings(build):
    build.classes("mixed", normal=40, tumour=40)
    build.classes("healthy", normal=40)
    build.classes("rare", normal=40, tumour=1)
    build.classes("small", normal=6, tumour=6)
    notes = build.open(CLASSIFICATION).warnings
    assert not [note for note in notes if "mixed" in note]
    assert [note for note in notes if "healthy" in note] == [
        "site healthy: only the class normal; AUC is left out for it. A model cannot learn the "
        "difference there: add images of the other class or leave the site out"
    ]
    assert len([note for note in notes if "rare" in note and "AUC is left out there" in note]) == 2
    assert len([note for note in notes if "small" in note and "chance" in note]) == 2


def test_warning_of_empty_masks_also_from_the_cache(build):
    build.pairs("a", 20, value=0)
    build.pairs("b", 20)
    for _ in range(2):
        [note] = build.open().warnings
        assert note.startswith("site a: every mask is empty: mend the masks")
    first, second = build.open({"structures": {"disc": [128, 255], "cup": [128]}}).warnings
    assert first == note
    assert second.startswith("site b: cup in no mask: mend the masks")


def test_warning_of_dark_sixteen_bit_images(build):
    for i in range(20):
        build.array(f"a/images/{i}.png", np.full((16, 16), 4000 + i, np.uint16))
        build.mask(f"a/masks/{i}.png", size=(16, 16))
    [note] = build.open(channels=1).warnings
    assert "4019 of 65535" in note


def test_warning_of_the_same_picture_in_two_splits(build):
    build.pairs("a", 20)
    items = build.open().items
    [train] = [i for i in items if i.split == "train"][:1]
    [test] = [i for i in items if i.split == "test"][:1]
    shutil.copy(build.root / train.image, build.root / test.image)
    [note] = build.open().warnings
    assert train.image in note
    assert test.image in note


def test_synthetic_fills_in_what_the_experiment_leaves_out(build):
    own = FEDERATIONS["prostate"]
    counts = dict.fromkeys(sorted(own.images)[:2], 3)
    federation = build.open(synthetic="prostate", images=counts)
    assert federation.sites == sorted(counts)
    assert federation.channels == own.channels == 1
    assert federation.labels == list(own.structures)
    assert sum(federation.patients[federation.sites[0]].values()) == 3
    written = list((build.cache / "synthetic").glob("[!.]*"))
    assert [path.name.split("-")[0] for path in written] == ["prostate"]
    assert build.open(synthetic="prostate", images=counts).fingerprint == federation.fingerprint
    assert list((build.cache / "synthetic").glob("[!.]*")) == written
    assert build.open(synthetic="prostate", images=counts, channels=3).channels == 3


def test_synthetic_of_the_other_task_is_refused(build):
    with pytest.raises(DataError, match=r"set task\.name to classification"):
        build.open(synthetic="pathology")


@pytest.mark.parametrize(
    ("name", "federation", "task", "images", "patients"),
    [
        (
            "prostate_mri",
            {"patient_pattern": r"^(.+)_\d+$", "channels": 1},
            {"structures": {"prostate": [255]}},
            {"promise12_bidmc": 187, "promise12_hk": 158, "promise12_runmc": 167,
             "promise12_ucl": 179, "prostatex": 480},
            {"promise12_bidmc": 9, "promise12_hk": 12, "promise12_runmc": 12,
             "promise12_ucl": 13, "prostatex": 60},
        ),
        (
            "fundus_disc_cup",
            {},
            DISC_AND_CUP,
            {"drishti_gs1": 101, "origa": 650, "refuge_train": 321},
            {"drishti_gs1": 101, "origa": 650, "refuge_train": 321},
        ),
        (
            "fundus_glaucoma",
            {},
            CLASSIFICATION,
            {"acrima": 705, "drishti_gs1": 101, "origa": 650, "refuge_train": 321},
            {"acrima": 705, "drishti_gs1": 101, "origa": 650, "refuge_train": 321},
        ),
    ],
)  # fmt: skip
def test_real_data(build, shared_data, name, federation, task, images, patients):
    opened = build.open(task, folder=shared_data / name, **federation)
    assert {s: sum(n.values()) for s, n in opened.counts.items()} == images
    assert {s: sum(n.values()) for s, n in opened.patients.items()} == patients
    for site, count in opened.counts.items():
        share = np.array(list(count.values())) / images[site]
        assert np.abs(share - (0.5, 0.25, 0.25)).max() < 0.03, site
    view = data.training_data(opened.folder, opened.sites)
    x, y = view.train.batch(torch.arange(8))
    assert x.shape == (8, opened.channels, 16, 16)
    assert 0.05 < x.mean() < 0.95
    if y.ndim == 4:
        assert y.mean() > 0.01


def test_what_people_do_before_training_does_without_torch():
    rooms = "konsil.data, konsil.prepare.check, konsil.prepare.preview, konsil.prepare.importers"
    code = f"import sys, {rooms}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

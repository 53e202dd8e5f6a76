"""Sites with volumes of three formats and odd orientations, as one federation of slices."""

import numpy as np
import pytest

from konsil import data
from konsil.data.volumes import from_planes, planes, read_volume
from konsil.errors import DataError
from tests.data import volume_files as files

PATIENTS = 4
MANIFEST = """
    structures: {gland: [1, 2], core: [2]}
    channels: 1
    window: [0, 255]
    patient: "[^/]+/([^/]+)/"
    sites:
      dicom: {images: dicom/*/T2, labels: dicom/*/seg.dcm}
      meta: {images: meta/*/image.mhd, labels: meta/*/mask.mhd}
      nifti: {images: nifti/*/image.nii.gz, labels: nifti/*/mask.nii.gz}
"""


def world(patient: int) -> tuple[np.ndarray, np.ndarray]:
    """Image and mask over right, front, head: two of six axial slices are labelled."""
    image = np.random.default_rng(patient).integers(0, 256, files.WORLD).astype(np.uint16)
    mask = np.zeros(files.WORLD, np.uint8)
    mask[1:3, 1:4, 2:4] = 1
    mask[1, 2, 3] = 2
    return image, mask


def on_grid(array: np.ndarray, axes: tuple[int, ...], signs: tuple[int, ...]) -> np.ndarray:
    """An array over the world as a grid stores it."""
    stored = array.transpose(axes)
    return np.flip(stored, [a for a, sign in enumerate(signs) if sign < 0])


@pytest.fixture
def volumes(build):
    """The same four patients at every site, stored differently."""
    for patient in range(PATIENTS):
        image, mask = world(patient)
        for site, axes, signs in (
            ("nifti", (2, 0, 1), (1, -1, 1)),
            ("meta", (1, 0, 2), (-1, -1, -1)),
            ("dicom", (0, 1, 2), (-1, -1, 1)),
        ):
            _, affine = files.grid(axes, signs)
            stored, marked = on_grid(image, axes, signs), on_grid(mask, axes, signs)
            folder = build.root / site / f"P{patient}"
            if site == "nifti":
                files.write_nifti(folder / "image.nii.gz", stored, affine)
                files.write_nifti(folder / "mask.nii.gz", marked, affine)
            elif site == "meta":
                files.write_itk(folder / "image.mhd", stored, affine)
                files.write_itk(folder / "mask.mhd", marked, affine)
            else:
                files.write_series(folder / "T2", stored, affine)
                segments = {n: marked == n for n in (1, 2)}
                files.write_segmentation(folder / "seg.dcm", folder / "T2", segments)
    return build


def arrays(federation, site):
    view = data.training_data(federation.folder, [site]).train
    return view.images.numpy(), view.targets.numpy()


def test_every_format_gives_the_same_images(volumes):
    """Orientation and format are the scanner's business: the network sees one convention."""
    federation = volumes.open(file=volumes.manifest(MANIFEST))
    assert federation.sites == ["dicom", "meta", "nifti"]
    assert federation.counts["dicom"] == {"train": 4, "val": 2, "test": 2}  # two slices a patient
    assert federation.patients["dicom"] == {"train": 2, "val": 1, "test": 1}
    by_patient = {}
    for site in federation.sites:
        items = [i for i in federation.items if i.site == site and i.split == "train"]
        images, targets = arrays(federation, site)
        for item, image, target in zip(items, images, targets, strict=True):
            seen = (image.tobytes(), target.tobytes())
            assert by_patient.setdefault((item.patient, item.plane), seen) == seen
    assert {plane for _, plane in by_patient} == {2, 3}


def test_the_pixels_by_hand(volumes):
    """Axial slice 3, from the feet: rows from front to back, columns from the patient's right."""
    text = MANIFEST.replace('"[^/]+/([^/]+)/"', '"/P([^/]+)/"')
    federation = volumes.open(file=volumes.manifest(text), image_size=20, sites=["nifti"])
    items = [i for i in federation.items if i.split == "train"]
    row = next(k for k, i in enumerate(items) if i.plane == 3)
    image, mask = world(int(items[row].patient))
    images, targets = arrays(federation, "nifti")
    upright = image[::-1, ::-1, 3].T
    # 20 = 4 columns of 5 pixels = 5 rows of 4 pixels: every voxel is a block
    blocks = targets[row][:, ::4, ::5]
    marked = mask[::-1, ::-1, 3].T
    assert np.array_equal(blocks[0], marked > 0)
    assert np.array_equal(blocks[1], marked == 2)
    assert np.abs(images[row][0, 2::4, 2::5].astype(int) - upright).max() < 60  # antialiased


@pytest.mark.parametrize(
    ("slices", "count"),
    [
        ("{which: labelled}", 2),
        ("{which: all}", 6),
        ("{which: all, every: 4}", 2),
        ("{view: coronal, which: labelled}", 3),
        ("{view: sagittal, which: all}", 4),
    ],
)
def test_which_slices(volumes, slices, count):
    text = MANIFEST + f"    slices: {slices}\n"
    federation = volumes.open(file=volumes.manifest(text), sites=["nifti"])
    assert sum(federation.counts["nifti"].values()) == PATIENTS * count


def test_slices_go_together_again(volumes):
    """What a model says of slices becomes a volume that lies where the image lies."""
    for name in ("nifti/P0/image.nii.gz", "meta/P0/image.mhd", "dicom/P0/T2"):
        volume = read_volume(volumes.root / name)
        for view in ("axial", "coronal", "sagittal"):
            slices = planes(volume.array, volume.affine, view)
            again = from_planes(slices, volume.affine, view)
            assert np.array_equal(again, volume.array)


def test_a_volume_is_opened_once_to_find_its_slices(volumes, monkeypatch):
    path = volumes.manifest(MANIFEST)
    first = volumes.open(file=path)
    opened = []
    monkeypatch.setattr("konsil.data.decode.open_with_masks", lambda *a: opened.append(a))
    again = volumes.open(file=path)
    assert not opened
    assert again.items == first.items


def test_the_fingerprint_knows_slices_and_readings(volumes):
    prints = {
        volumes.open(file=volumes.manifest(MANIFEST + extra), sites=["nifti"]).fingerprint
        for extra in ("", "    slices: {every: 2}\n", "    slices: {view: coronal}\n")
    }
    prints.add(
        volumes.open(
            file=volumes.manifest(MANIFEST.replace("[0, 255]", "[0, 256]")), sites=["nifti"]
        ).fingerprint
    )
    assert len(prints) == 4


def test_a_volume_whose_mask_is_empty(volumes):
    path = volumes.root / "nifti/P1/mask.nii.gz"
    _, affine = files.grid((2, 0, 1), (1, -1, 1))
    files.write_nifti(path, np.zeros((6, 4, 5), np.uint8), affine)
    with pytest.raises(DataError, match=r"volume without a labelled slice:\n +nifti/P1/image"):
        volumes.open(file=volumes.manifest(MANIFEST))


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        (
            "nifti/P1/image.nii.gz",
            lambda path: path.write_bytes(path.read_bytes()[:90]),
            "nifti/P1",
        ),
        ("meta/P2/image.raw", lambda path: path.unlink(), "meta/P2/image.mhd"),
        ("dicom/P0/T2/IM003.dcm", lambda path: path.write_bytes(b"x"), "dicom/P0/T2"),
        ("dicom/P0/T2/IM003.dcm", lambda path: path.unlink(), "dicom/P0/T2"),
    ],
)
def test_damaged_volumes_are_named(volumes, name, damage, said):
    damage(volumes.root / name)
    with pytest.raises(DataError) as caught:
        volumes.open(file=volumes.manifest(MANIFEST))
    assert said in str(caught.value)
    assert "-> " in str(caught.value)
    assert not [word for word in files.PATIENT if word in str(caught.value)]

"""The prostate importers, each on a miniature of its real layout written by the real libraries."""

import csv
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
import yaml
from pydicom import dcmread

from konsil.config import FederationConfig, TaskConfig
from konsil.data import open_federation
from konsil.data.findings import BadFile
from konsil.data.volumes.grid import Volume
from konsil.errors import ConfigError, DataError
from konsil.prepare.importers import IMPORTERS, Options, import_dataset
from konsil.prepare.importers.volumes import lay_on
from tests.data.volume_files import write_itk, write_nifti, write_segmentation, write_series

SHAPE = (8, 10, 6)
AFFINE = np.array(  # an axial series: columns to the left, rows to the back, slices to the head
    [[-0.5, 0, 0, 12.0], [0, -0.75, 0, 20.0], [0, 0, 3.0, -40.0], [0, 0, 0, 1]]
)
PAPER = {
    "i2cvb": (19, 291),
    "msd-prostate": (32, 864),
    "nci-isbi-3t": (35, 881),
    "nci-isbi-dx": (35, 673),
    "promise12": (50, 1227),
    "prostatex": (99, 2293),
}


def scan(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 900, SHAPE).astype(np.int16)


def zones() -> np.ndarray:
    """Three labelled slices: 1 on two of them, 2 on two, and nowhere symmetric."""
    mask = np.zeros(SHAPE, np.uint8)
    mask[1:5, 2:6, 1:3] = 1
    mask[3:6, 4:9, 2:4] = 2
    return mask


def bring(name: str, source: Path, dest: Path, **options):
    return import_dataset(name, source, dest, Options(**options))


def made(dest: Path, site: str, case: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Image, mask and affine that were written; both files say the same affine."""
    image = nibabel.load(dest / site / "images" / f"{case}.nii.gz")
    mask = nibabel.load(dest / site / "masks" / f"{case}.nii.gz")
    np.testing.assert_array_equal(image.affine, mask.affine)
    return np.asarray(image.dataobj), np.asarray(mask.dataobj), image.affine


def federation(dest: Path) -> dict:
    return yaml.safe_load((dest / "federation.yaml").read_text())


def opening(dest: Path):
    config = FederationConfig(
        file=dest / "federation.yaml", image_size=16, cache=dest.with_name("cache")
    )
    return open_federation(config, TaskConfig())


def counts(report) -> dict[tuple[str, str], tuple[int, int | None]]:
    return {(row.site, row.what): (row.made, row.paper) for row in report.rows}


def refused(name: str, source: Path, dest: Path, *words: str, **options) -> str:
    with pytest.raises(DataError) as caught:
        bring(name, source, dest, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert not (dest / "federation.yaml").exists()
    return str(caught.value)


# --- miniatures -----------------------------------------------------------------------------------


def msd(root: Path, cases=("00", "01", "02"), channels=("T2", "ADC")) -> Path:
    task = root / "Task05_Prostate"
    for case in cases:
        parts = {"T2": scan(int(case)), "ADC": scan(900 + int(case))}
        both = np.stack([parts[channel] for channel in channels], axis=3)
        write_nifti(task / f"imagesTr/prostate_{case}.nii.gz", both, AFFINE)
        write_nifti(task / f"labelsTr/prostate_{case}.nii.gz", zones(), AFFINE)
    write_nifti(task / "imagesTs/prostate_03.nii.gz", both, AFFINE)
    (task / "imagesTr/._prostate_00.nii.gz").write_bytes(b"left by an archive")
    modality = {str(number): channel for number, channel in enumerate(channels)}
    (task / "dataset.json").write_text(json.dumps({"modality": modality}))
    return root


def promise12(root: Path, cases=(0, 1, 13, 25, 38)) -> Path:
    for case in cases:
        part = root / f"TrainingData_Part{1 + case // 20}"
        write_itk(part / f"Case{case:02d}.mhd", scan(2000 + case), AFFINE)
        gland = (zones() > 0).astype(np.int8)
        write_itk(part / f"Case{case:02d}_segmentation.mhd", gland, AFFINE)
    write_itk(root / "TestData/Case00.mhd", scan(99), AFFINE)
    return root


def i2cvb(root: Path) -> Path:
    for scanner, numbers in {"GE": (1036, 1041), "Siemens": (384, 410)}.items():
        for number in numbers:
            patient = root / scanner / f"Patient {number}"
            write_series(patient / "T2W", scan(number), AFFINE)
            gland = (255 * (zones() > 0)).astype(np.uint8)
            write_series(patient / "GT" / "prostate", gland, AFFINE)
            write_series(patient / "GT" / "pz", gland, AFFINE)
            write_series(patient / "DWI", scan(number + 1), AFFINE)
    return root


def nci(root: Path, prefix: str, collection: str) -> Path:
    parts = {"Training": "01", "Leaderboard": "02", "Test": "03"}
    for seed, (part, number) in enumerate(parts.items()):
        case = f"{prefix}-{number}-0001"
        nci_image(root, collection, case, nci_seed(prefix, seed))
        ending = "_truth" if part == "Test" else ""
        nrrd(root / f"labels/NCI-ISBI 2013 - {part}/{part}/{case}{ending}.nrrd")
    return root


def nci_seed(prefix: str, seed: int) -> int:
    return seed + (50 if prefix == "ProstateDx" else 60)


def nci_image(root: Path, collection: str, case: str, seed: int = 0) -> Path:
    folder = root / "manifest-1" / collection / case / "05-1999-MRI" / "4.000000-t2tsetra-1"
    return write_series(folder, scan(seed), AFFINE)


def nrrd(path: Path, mask: np.ndarray | None = None, affine: np.ndarray = AFFINE) -> Path:
    """Rows stored upwards, as the challenge's labels are: the header says so."""
    mask = zones() if mask is None else mask
    flip = np.eye(4)
    flip[1, 1], flip[1, 3] = -1, mask.shape[1] - 1
    return write_itk(path, mask[:, ::-1], affine @ flip)


def prostatex(root: Path, cases=("0004", "0007", "0009"), urethra_slice: int = 5) -> Path:
    for case in cases:
        study = root / "manifest-9/PROSTATEx" / f"ProstateX-{case}" / "07-2011-prostaat"
        write_series(study / "3.000000-t2tsesag-1", scan(1), AFFINE, "t2_tse_sag")
        t2 = write_series(study / "5.000000-t2tsetra-2", scan(int(case)), AFFINE, "t2_tse_tra")
        urethra = np.zeros(SHAPE, bool)
        urethra[0, 0, [2, urethra_slice]] = True
        segments = {1: zones() == 1, 2: zones() == 2, 3: urethra}
        path = study / "300.000000-Segmentation-3/1-1.dcm"
        write_segmentation(path, t2, segments)
        name_segment(path, 3, "Distal prostatic urethra")
    return root


def name_segment(path: Path, number: int, label: str) -> None:
    data = dcmread(path)
    data.SegmentSequence[number - 1].SegmentLabel = label
    data.save_as(path)


def prostatex_masks(root: Path, cases=("0000", "0001", "0002"), images: bool = True) -> Path:
    folder = root / "PROSTATEx_masks-master/Files/prostate"
    for case in cases:
        gland = (zones() > 0).astype(np.uint8)
        write_nifti(folder / f"mask_prostate/ProstateX-{case}.nii.gz", gland, AFFINE)
        if images:
            name = f"ProstateX-{case}_t2_tse_tra_4.nii.gz"
            write_nifti(folder / "Images" / name, scan(int(case)), AFFINE)
    (folder / "image_list.csv").write_text(
        "T2\n" + "".join(f"ProstateX-{case}_t2_tse_tra_4\n" for case in cases)
    )
    return root


# --- what comes of them ---------------------------------------------------------------------------


def test_every_importer_states_what_a_person_must_know():
    known = IMPORTERS.all()
    for name, (cases, slices) in PAPER.items():
        importer = known[name]
        site = importer.sites[0]
        assert importer.paper[site] == {"cases": cases, "labelled slices": slices}
        assert importer.head["structures"] == {"prostate": [1]}
        assert importer.licence
        assert importer.home in importer.describe()
        assert importer.layout.strip().splitlines()[0] in importer.describe()
        assert "published recipe makes" in importer.differs[site]


def test_msd_takes_t2_and_joins_the_zones(tmp_path):
    report = bring("msd-prostate", msd(tmp_path / "src"), tmp_path / "out")
    image, mask, affine = made(tmp_path / "out", "msd", "prostate_01")
    np.testing.assert_array_equal(image, scan(1))
    assert image.dtype == np.int16
    np.testing.assert_array_equal(affine, AFFINE)
    np.testing.assert_array_equal(mask, zones() > 0)
    assert mask.dtype == np.uint8
    assert counts(report) == {
        ("msd", "cases"): (3, 32),
        ("msd", "labelled slices"): (9, 864),
    }
    assert "32 cases with 475 labelled slices" in report.text()
    assert federation(tmp_path / "out") == {
        "task": "segmentation",
        "structures": {"prostate": [1]},
        "channels": 1,
        "slices": {"view": "axial", "which": "labelled"},
        "sites": {"msd": {"images": "msd/images/*.nii.gz", "labels": "msd/masks/*.nii.gz"}},
    }


def test_msd_finds_the_t2_channel_in_dataset_json(tmp_path):
    bring("msd-prostate", msd(tmp_path / "src", channels=("ADC", "T2")), tmp_path / "out")
    image, _, _ = made(tmp_path / "out", "msd", "prostate_02")
    np.testing.assert_array_equal(image, scan(2))


def test_promise12_is_one_site_and_leaves_the_test_part_alone(tmp_path):
    report = bring("promise12", promise12(tmp_path / "src"), tmp_path / "out")
    assert counts(report)["promise12", "cases"] == (5, 50)
    image, mask, affine = made(tmp_path / "out", "promise12", "Case00")
    np.testing.assert_array_equal(image, scan(2000))
    np.testing.assert_array_equal(mask, zones() > 0)
    np.testing.assert_allclose(affine, AFFINE, atol=1e-6)


def test_promise12_by_centre(tmp_path):
    bring("promise12", promise12(tmp_path / "src"), tmp_path / "out", centres=True)
    cases = {
        site: [path.name[:6] for path in sorted((tmp_path / "out" / site / "images").iterdir())]
        for site in federation(tmp_path / "out")["sites"]
    }
    assert cases == {
        "promise12_bidmc": ["Case00"],
        "promise12_ucl": ["Case01"],
        "promise12_runmc": ["Case13", "Case25"],
        "promise12_hk": ["Case38"],
    }


def test_promise12_centres_are_disjoint_and_complete():
    from konsil.prepare.importers.promise12 import CENTRES

    numbers = sorted(number for block in CENTRES.values() for number in block)
    assert numbers == list(range(50))
    assert {name: len(block) for name, block in CENTRES.items()} == {
        "bidmc": 12,
        "hk": 12,
        "runmc": 13,
        "ucl": 13,
    }


def test_i2cvb_joins_both_scanners(tmp_path):
    report = bring("i2cvb", i2cvb(tmp_path / "src"), tmp_path / "out")
    assert counts(report) == {
        ("i2cvb", "cases"): (4, 19),
        ("i2cvb", "labelled slices"): (12, 291),
    }
    image, mask, affine = made(tmp_path / "out", "i2cvb", "Patient_384")
    np.testing.assert_array_equal(image, scan(384))
    np.testing.assert_array_equal(mask, zones() > 0)
    np.testing.assert_allclose(affine, AFFINE, atol=1e-6)


def test_i2cvb_by_scanner(tmp_path):
    source = i2cvb(tmp_path / "src")
    bring("i2cvb", source, tmp_path / "out", centres=True)
    assert list(federation(tmp_path / "out")["sites"]) == ["i2cvb_ge", "i2cvb_siemens"]
    (source / "GE").rename(source / "general")
    refused("i2cvb", source, tmp_path / "two", "unknown scanner", "Patient 1036", centres=True)


def test_i2cvb_leaves_out_the_case_whose_ground_truth_lacks_a_slice(tmp_path):
    source = i2cvb(tmp_path / "src")
    (source / "Siemens/Patient 410").rename(source / "Siemens/Patient 428260")
    (source / "Siemens/Patient 428260/GT/prostate/IM003.dcm").unlink()
    report = bring("i2cvb", source, tmp_path / "out")
    assert counts(report)["i2cvb", "cases"] == (3, 19)
    assert "Patient 428260/T2W: left out" in report.text()
    assert not list((tmp_path / "out").rglob("*428260*"))

    (source / "GE/Patient 1036/GT/prostate/IM003.dcm").unlink()
    refused("i2cvb", source, tmp_path / "two", "missing slice", "Patient 1036/GT/prostate")


@pytest.mark.parametrize(
    ("name", "prefix", "collection", "site"),
    [
        ("nci-isbi-3t", "Prostate3T", "Prostate-3T", "nci_isbi_3t"),
        ("nci-isbi-dx", "ProstateDx", "PROSTATE-DIAGNOSIS", "nci_isbi_dx"),
    ],
)
def test_nci_isbi_turns_the_labels_onto_the_series(tmp_path, name, prefix, collection, site):
    source = nci(tmp_path / "src", prefix, collection)
    nci(source, "Prostate3T" if prefix == "ProstateDx" else "ProstateDx", "the other half")
    report = bring(name, source, tmp_path / "out")
    assert counts(report)[site, "cases"] == (3, 35)
    assert counts(report)[site, "labelled slices"] == (9, PAPER[name][1])
    for seed, number in enumerate(("01", "02", "03")):
        image, mask, _ = made(tmp_path / "out", site, f"{prefix}-{number}-0001")
        np.testing.assert_array_equal(image, scan(nci_seed(prefix, seed)))
        np.testing.assert_array_equal(mask, zones() > 0)
    assert list(federation(tmp_path / "out")["sites"]) == [site]


def test_nci_isbi_prefers_a_corrected_label_and_names_unlabelled_cases(tmp_path):
    source = nci(tmp_path / "src", "ProstateDx", "PROSTATE-DIAGNOSIS")
    corrected = np.zeros(SHAPE, np.uint8)
    corrected[2, 3, 4] = 2
    folder = source / "labels/NCI-ISBI 2013 - Training/Training"
    nrrd(folder / "ProstateDx-01-0001_correctedLabels.nrrd", corrected)
    nci_image(source, "PROSTATE-DIAGNOSIS", "ProstateDx-01-0099")
    report = bring("nci-isbi-dx", source, tmp_path / "out")
    _, mask, _ = made(tmp_path / "out", "nci_isbi_dx", "ProstateDx-01-0001")
    np.testing.assert_array_equal(np.argwhere(mask), [[2, 3, 4]])
    left = [note for note in report.notes if "left out" in note]
    assert len(left) == 1
    assert "ProstateDx-01-0099" in left[0]


def test_nci_isbi_keeps_the_challenges_split(tmp_path):
    source = nci(tmp_path / "src", "Prostate3T", "Prostate-3T")
    bring("nci-isbi-3t", source, tmp_path / "out", splits="given")
    listed = tmp_path / "out" / federation(tmp_path / "out")["sites"]["nci_isbi_3t"]["list"]
    with listed.open() as file:
        parts = {Path(row["image"]).name[:18]: row["split"] for row in csv.DictReader(file)}
    assert parts == {
        "Prostate3T-01-0001": "train",
        "Prostate3T-02-0001": "val",
        "Prostate3T-03-0001": "test",
    }
    assert opening(tmp_path / "out").counts == {"nci_isbi_3t": {"train": 3, "val": 3, "test": 3}}

    nrrd(source / "elsewhere/Prostate3T-01-0002.nrrd")
    nci_image(source, "Prostate-3T", "Prostate3T-01-0002")
    refused("nci-isbi-3t", source, tmp_path / "two", "unknown part", "elsewhere", splits="given")


def test_a_label_of_fewer_slices_is_placed_by_its_position(tmp_path):
    """As ProstateDx-01-0055: 23 of 34 slices."""
    source = nci(tmp_path / "src", "ProstateDx", "PROSTATE-DIAGNOSIS")
    part = AFFINE.copy()
    part[2, 3] += 3.0  # begins at the image's slice 1
    path = source / "labels/NCI-ISBI 2013 - Training/Training/ProstateDx-01-0001.nrrd"
    nrrd(path, zones()[:, :, 1:4], part)
    report = bring("nci-isbi-dx", source, tmp_path / "out")
    _, mask, _ = made(tmp_path / "out", "nci_isbi_dx", "ProstateDx-01-0001")
    np.testing.assert_array_equal(mask, zones() > 0)
    assert "mask of 8 x 10 x 3 on an image of 8 x 10 x 6 voxels" in report.text()


def test_a_label_with_another_slice_spacing_is_laid_on_slice_by_slice(tmp_path):
    source = nci(tmp_path / "src", "ProstateDx", "PROSTATE-DIAGNOSIS")
    thick = AFFINE.copy()
    thick[2, 2] = 3.6
    path = source / "labels/NCI-ISBI 2013 - Training/Training/ProstateDx-01-0001.nrrd"
    nrrd(path, None, thick)
    report = bring("nci-isbi-dx", source, tmp_path / "out")
    _, mask, affine = made(tmp_path / "out", "nci_isbi_dx", "ProstateDx-01-0001")
    np.testing.assert_array_equal(mask, zones() > 0)
    np.testing.assert_allclose(affine, AFFINE, atol=1e-6)
    assert "up to 3.0 mm off; laid on voxel by voxel" in report.text()  # 5 gaps of 0.6 mm


def test_prostatex_zones_become_the_prostate(tmp_path):
    source = prostatex(tmp_path / "src")
    report = bring("prostatex", source, tmp_path / "out")
    image, mask, _ = made(tmp_path / "out", "prostatex", "ProstateX-0007")
    np.testing.assert_array_equal(image, scan(7))  # the series the segmentation was drawn on
    expected = zones() > 0
    expected[0, 0, 2] = True  # urethra beside other zones; alone on slice 5 it is not the prostate
    np.testing.assert_array_equal(mask, expected)
    assert counts(report) == {
        ("prostatex", "cases"): (3, 99),
        ("prostatex", "labelled slices"): (9, 2293),
    }


def test_prostatex_whole_glands_with_images_as_nifti_or_dicom(tmp_path):
    source = prostatex_masks(tmp_path / "src")
    lesions = source / "PROSTATEx_masks-master/Files/lesions"
    write_nifti(lesions / "Images/T2/ProstateX-0001_t2_tse_tra_9.nii.gz", scan(77), AFFINE)
    (lesions / "Image_list.csv").write_text("T2,ADC\nProstateX-0001_t2_tse_tra_9,\n")
    images = source / "PROSTATEx_masks-master/Files/prostate/Images"
    (images / "ProstateX-0002_t2_tse_tra_4.nii.gz").unlink()
    study = source / "manifest-1/PROSTATEx/ProstateX-0002/study"
    write_series(study / "4.000000-t2tsetra-1", scan(2), AFFINE)
    write_series(study / "14.000000-t2tsetra-2", scan(14), AFFINE)
    bring("prostatex", source, tmp_path / "out")
    for case in (0, 1, 2):
        image, mask, _ = made(tmp_path / "out", "prostatex", f"ProstateX-{case:04d}")
        np.testing.assert_array_equal(image, scan(case))
        np.testing.assert_array_equal(mask, zones() > 0)


def test_prostatex_asks_which_release(tmp_path):
    source = prostatex_masks(prostatex(tmp_path / "src"))
    refused("prostatex", source, tmp_path / "out", "both releases", "release: zones")
    report = bring("prostatex", source, tmp_path / "zones", release="zones")
    assert counts(report)["prostatex", "cases"][0] == 3
    names = [p.name for p in sorted((tmp_path / "zones/prostatex/images").iterdir())]
    assert names[0] == "ProstateX-0004.nii.gz"
    with pytest.raises(ConfigError, match="zones and gland"):
        bring("prostatex", source, tmp_path / "out", release="r3")
    only = prostatex(tmp_path / "only")
    refused("prostatex", only, tmp_path / "out", "no masks of the release gland", release="gland")


def test_six_imports_make_one_federation_that_can_be_trained_on(tmp_path):
    out = tmp_path / "out"
    for name, source in {
        "msd-prostate": msd(tmp_path / "msd"),
        "promise12": promise12(tmp_path / "promise12"),
        "i2cvb": i2cvb(tmp_path / "i2cvb"),
        "nci-isbi-3t": nci(tmp_path / "nci", "Prostate3T", "Prostate-3T"),
        "nci-isbi-dx": nci(tmp_path / "nci", "ProstateDx", "PROSTATE-DIAGNOSIS"),
        "prostatex": prostatex(tmp_path / "prostatex"),
    }.items():
        bring(name, source, out)
    opened = opening(out)
    assert {site: sum(parts.values()) for site, parts in opened.counts.items()} == {
        "i2cvb": 12,
        "msd": 9,
        "nci_isbi_3t": 9,
        "nci_isbi_dx": 9,
        "promise12": 15,
        "prostatex": 9,
    }
    assert {site: sum(parts.values()) for site, parts in opened.patients.items()} == {
        "i2cvb": 4,
        "msd": 3,
        "nci_isbi_3t": 3,
        "nci_isbi_dx": 3,
        "promise12": 5,
        "prostatex": 3,
    }
    assert opened.labels == ["prostate"]
    record = json.loads((out / "imported/prostatex.json").read_text())
    assert record["licence"].startswith("masks: zones CC BY 3.0")


# --- what cannot be used --------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(PAPER))
def test_a_wrong_folder_is_answered_with_the_layout(tmp_path, name):
    (tmp_path / "src/holiday").mkdir(parents=True)
    (tmp_path / "src/holiday/beach.jpg").write_bytes(b"sun")
    text = refused(name, tmp_path / "src", tmp_path / "out", "holiday/: 1 file(s)", "beach.jpg")
    assert IMPORTERS.all()[name].layout.strip().splitlines()[0] in text


def test_images_and_masks_that_do_not_pair(tmp_path):
    source = msd(tmp_path / "msd")
    (source / "Task05_Prostate/labelsTr/prostate_01.nii.gz").unlink()
    refused("msd-prostate", source, tmp_path / "out", "without a mask", "imagesTr/prostate_01")

    source = promise12(tmp_path / "promise12")
    (source / "TrainingData_Part1/Case13.mhd").unlink()
    (source / "TrainingData_Part2/Case25_segmentation.mhd").unlink()
    refused(
        "promise12",
        source,
        tmp_path / "out",
        "mask without an image:\n    TrainingData_Part1/Case13_segmentation.mhd",
        "image without a mask:\n    TrainingData_Part2/Case25.mhd",
    )

    source = nci(tmp_path / "nci", "ProstateDx", "PROSTATE-DIAGNOSIS")
    nrrd(source / "labels/Training/ProstateDx-01-0002.nrrd")
    refused("nci-isbi-dx", source, tmp_path / "out", "label without an image", "01-0002.nrrd")

    source = prostatex_masks(tmp_path / "masks", images=False)
    refused("prostatex", source, tmp_path / "out", "mask without its image (3 times)", "0002.nii")


def test_masks_with_strange_values_and_files_that_are_cut_off(tmp_path):
    source = msd(tmp_path / "msd")
    task = source / "Task05_Prostate"
    write_nifti(task / "labelsTr/prostate_00.nii.gz", 3 * zones(), AFFINE)
    image = task / "imagesTr/prostate_01.nii.gz"
    image.write_bytes(image.read_bytes()[:200])
    refused(
        "msd-prostate",
        source,
        tmp_path / "out",
        "values that the data set does not know",
        "labelsTr/prostate_00.nii.gz: 3, 6",
        "cannot be read",
        "imagesTr/prostate_01.nii.gz",
    )
    assert not (tmp_path / "out/msd").exists()


def test_an_empty_mask_is_refused(tmp_path):
    source = prostatex(tmp_path / "src", cases=("0004",))
    path, series = next(source.rglob("1-1.dcm")), next(source.rglob("5.000000-t2tsetra-2"))
    write_segmentation(path, series, {1: zones() > 0})
    name_segment(path, 1, "Urethra")  # and nothing of the prostate
    refused("prostatex", source, tmp_path / "out", "empty mask", "ProstateX-0004")

    source = msd(tmp_path / "msd")
    label = source / "Task05_Prostate/labelsTr/prostate_00.nii.gz"
    write_nifti(label, 0 * zones(), AFFINE)
    refused("msd-prostate", source, tmp_path / "out", "empty", "labelsTr/prostate_00.nii.gz")


def test_a_case_of_several_series_or_segmentations_is_named(tmp_path):
    source = nci(tmp_path / "nci", "Prostate3T", "Prostate-3T")
    study = source / "manifest-1/Prostate-3T/Prostate3T-01-0001/05-1999-MRI"
    write_series(study / "7.000000-dwi-9", scan(9), AFFINE)
    refused("nci-isbi-3t", source, tmp_path / "out", "several series", "7.000000-dwi-9")

    source = prostatex(tmp_path / "px", cases=("0004",))
    study = next(source.rglob("07-2011-prostaat"))
    write_segmentation(study / "9-HiRes/1-1.dcm", study / "5.000000-t2tsetra-2", {1: zones() > 0})
    refused("prostatex", source, tmp_path / "out", "several segmentations", "9-HiRes/1-1.dcm")


def test_a_segmentation_without_its_series_is_named(tmp_path):
    source = prostatex(tmp_path / "px", cases=("0004",))
    for file in next(source.rglob("5.000000-t2tsetra-2")).iterdir():
        file.unlink()
    refused("prostatex", source, tmp_path / "out", "segmentation without its image", "1-1.dcm")


def test_dataset_json_without_t2(tmp_path):
    source = msd(tmp_path / "msd")
    (source / "Task05_Prostate/dataset.json").write_text('{"modality": {"0": "CT"}}')
    refused("msd-prostate", source, tmp_path / "out", "names no T2 channel", "dataset.json")


# --- a mask on its image --------------------------------------------------------------------------


def test_lay_on_turns_exactly_what_lies_right():
    permuted = zones().transpose(2, 0, 1)[::-1]
    affine = AFFINE @ np.array([[0, 1, 0, 0], [0, 0, 1, 0], [-1, 0, 0, 5], [0, 0, 0, 1.0]])
    values, note = lay_on(Volume(permuted, affine), Volume(scan(), AFFINE))
    np.testing.assert_array_equal(values, zones())
    assert note == ""


def test_lay_on_takes_the_nearest_of_finer_voxels():
    image = Volume(np.arange(4).reshape(4, 1, 1), np.diag([2.0, 2, 2, 1]))
    fine = Volume(np.array([0, 0, 1, 1, 1, 0, 0, 0]).reshape(8, 1, 1), np.diag([1.0, 2, 2, 1]))
    values, note = lay_on(fine, image)  # the image's voxels are the mask's 0, 2, 4 and 6
    np.testing.assert_array_equal(values[:, 0, 0], [0, 1, 1, 0])
    assert "placed by its position" in note


def test_lay_on_refuses_what_reaches_beyond_or_lies_elsewhere():
    image = Volume(scan(), AFFINE)
    beyond = AFFINE.copy()
    beyond[2, 3] += 15.0  # begins at slice 5, the last one: 16 voxels fit, 27 and 15 do not
    with pytest.raises(BadFile, match="reaches beyond") as caught:
        lay_on(Volume(zones()[:, :, 1:4], beyond), image)
    assert caught.value.detail == "42 of 58 voxels outside"
    with pytest.raises(BadFile, match="lies elsewhere"):
        lay_on(Volume(zones(), np.diag([0.5, 0.75, 3.0, 1.0])), image)

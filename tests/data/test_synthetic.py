import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from konsil.config import SYNTHETIC
from konsil.data.synthetic import FEDERATIONS, write_federation
from konsil.data.synthetic.brush import cloud, stream
from konsil.errors import DataError

SMALL = {"retina": 20, "prostate": 3, "pathology": 18}


@pytest.fixture(scope="module", params=list(FEDERATIONS))
def written(request, tmp_path_factory):
    """(federation, folder) with a few images of every site."""
    federation = FEDERATIONS[request.param]
    folder = tmp_path_factory.mktemp(federation.name)
    counts = dict.fromkeys(federation.images, SMALL[federation.name])
    write_federation(federation.name, folder, counts)
    return federation, folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.png")}


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


def pictures(site: Path) -> list[Path]:
    return [path for path in sorted(site.rglob("*.png")) if path.parent.name != "masks"]


def statistics(path: Path) -> np.ndarray:
    values = np.atleast_3d(pixels(path) / 255.0)
    values = values.reshape(-1, values.shape[-1])
    return np.concatenate([values.mean(0), values.std(0), *np.percentile(values, [5, 50, 95], 0)])


def test_the_experiment_file_knows_the_same_federations():
    assert tuple(FEDERATIONS) == SYNTHETIC


def test_every_run_writes_the_same_bytes(written, tmp_path):
    federation, folder = written
    site = list(federation.images)[1]
    write_federation(federation.name, tmp_path, {site: SMALL[federation.name]})
    assert contents(tmp_path / site) == contents(folder / site)


def test_a_picture_does_not_depend_on_how_many_are_written(written, tmp_path):
    federation, folder = written
    site = next(iter(federation.images))
    write_federation(federation.name, tmp_path, {site: 2})
    few, many = contents(tmp_path / site), contents(folder / site)
    assert 0 < len(few) < len(many)
    assert few.items() <= many.items()
    assert [p.name for p in tmp_path.iterdir()] == [site]


def test_pictures_differ_within_and_between_sites(written):
    federation, folder = written
    every = [path.read_bytes() for site in federation.images for path in pictures(folder / site)]
    assert len(set(every)) == len(every)


def test_pictures_show_something_in_the_promised_channels(written):
    federation, folder = written
    for site in federation.images:
        for path in pictures(folder / site):
            picture = pixels(path)
            assert picture.dtype == np.uint8
            assert picture.std() > 5, path
            assert picture.ndim == (3 if federation.channels == 3 else 2)


def test_every_image_has_its_mask_with_the_promised_values(written):
    federation, folder = written
    if federation.structures is None:
        pytest.skip("a classification federation has no masks")
    allowed = {0} | {value for values in federation.structures.values() for value in values}
    for site in federation.images:
        images, masks = (
            sorted((folder / site / kind).glob("*.png")) for kind in ("images", "masks")
        )
        assert [p.name for p in images] == [p.name for p in masks]
        for image, mask in zip(images, masks, strict=True):
            labels = pixels(mask)
            assert labels.shape == pixels(image).shape[:2]
            assert set(np.unique(labels)) == allowed, mask


def test_the_cup_lies_inside_the_disc_behind_a_rim(written):
    federation, folder = written
    if federation.name != "retina":
        pytest.skip("cups are the retina's")
    for site in federation.images:
        for path in (folder / site / "masks").glob("*.png"):
            labels = np.pad(pixels(path), 1)
            cup = labels == 255
            for axis, step in ((0, 1), (0, -1), (1, 1), (1, -1)):
                assert (np.roll(labels, step, axis)[cup] > 0).all(), path


def test_annotators_draw_the_cup_in_their_own_way(written):
    """birch draws small cups, fir large ones: the share of the disc shows it."""
    federation, folder = written
    if federation.name != "retina":
        pytest.skip("cups are the retina's")

    def share(site: str) -> float:
        masks = [pixels(path) for path in (folder / site / "masks").glob("*.png")]
        return float(np.mean([(m == 255).sum() / (m > 0).sum() for m in masks]))

    assert share("birch") < share("aster") < share("fir")


def test_stems_name_the_patient_and_slices_are_contiguous(written):
    federation, folder = written
    if federation.patient_pattern is None:
        pytest.skip("an image is a patient")
    for site in federation.images:
        numbers = defaultdict(list)
        for path in pictures(folder / site):
            patient = re.search(federation.patient_pattern, path.stem).group(1)
            numbers[patient].append(int(path.stem.removeprefix(f"{patient}_")))
        assert len(numbers) == 3
        for found in numbers.values():
            assert sorted(found) == list(range(len(found)))
            assert len(found) == 6 if federation.classes else 8 <= len(found) <= 14


def test_a_volume_grows_from_the_apex_and_its_slices_are_one_anatomy(written):
    federation, folder = written
    if federation.name != "prostate":
        pytest.skip("volumes are the prostate's")
    masks = [pixels(p) > 0 for p in sorted((folder / "alder" / "masks").glob("p000_*.png"))]
    assert masks[0].sum() < masks[len(masks) // 2].sum()
    for lower, upper in pairwise(masks):
        assert (lower & upper).sum() > 0.8 * min(lower.sum(), upper.sum())


def test_classes_are_balanced_at_every_site(written):
    federation, folder = written
    if federation.classes is None:
        pytest.skip("a segmentation federation has no classes")
    for site in federation.images:
        assert sorted(p.name for p in (folder / site).iterdir()) == sorted(federation.classes)
        counts = [len(list((folder / site / name).iterdir())) for name in federation.classes]
        assert counts == [9, 9]


def test_intensity_statistics_betray_the_site(written):
    """Real sites do so too: balanced accuracy about 0.8 over five or six of them."""
    federation, folder = written
    paths = [(site, path) for site in federation.images for path in pictures(folder / site)]
    sites = [site for site, _ in paths]
    patients = [f"{site}{path.stem.split('_')[0]}" for site, path in paths]
    features = np.stack([statistics(path) for _, path in paths])
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    guessed = cross_val_predict(model, features, sites, groups=patients, cv=GroupKFold(3))
    chance = 1 / len(federation.images)
    least = {"retina": 3.5, "prostate": 1.8, "pathology": 2.5}[federation.name]
    assert balanced_accuracy_score(sites, guessed) > least * chance


def test_an_unknown_federation_names_the_known_ones(tmp_path):
    with pytest.raises(DataError, match="retina, prostate, pathology"):
        write_federation("knee", tmp_path)


def test_an_unknown_site_names_the_known_ones(tmp_path):
    with pytest.raises(DataError, match=r"'oak'.*aster, birch, cedar"):
        write_federation("retina", tmp_path, {"aster": 1, "oak": 1})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("count", [0, -3])
def test_a_site_without_images_is_refused(tmp_path, count):
    with pytest.raises(DataError, match=r"'birch'.*at least 1"):
        write_federation("retina", tmp_path, {"birch": count})


def test_sites_are_unequal_in_size():
    for federation in FEDERATIONS.values():
        counts = federation.images.values()
        assert max(counts) >= 3 * min(counts)


def test_streams_are_the_same_on_every_machine_and_differ_by_name():
    assert stream("retina", "aster", 0).integers(0, 1000, 4).tolist() == [320, 913, 655, 579]
    assert stream("retina", "aster", 1).random() != stream("retina", "aster", 11).random()


def test_clouds_have_unit_variance_and_the_asked_smoothness():
    rng = np.random.default_rng(0)
    clouds = np.stack([cloud(rng, (48, 4.0), (48, 4.0)) for _ in range(300)])
    assert np.allclose(clouds.mean(axis=0), 0, atol=0.25)
    assert np.allclose(clouds.std(axis=0), 1, atol=0.2)
    # Bumps of width sigma give the autocorrelation exp(-d^2 / (4 sigma^2)): exp(-1) at 2 sigma.
    assert np.isclose((clouds[..., 8:] * clouds[..., :-8]).mean(), np.exp(-1), atol=0.05)

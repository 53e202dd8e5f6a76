"""What programs get: the same as `konsil predict`, in JSON or as files."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image
from pydicom import dcmread

from konsil.data.volumes import read_volume
from konsil.networks import NetworkSpec
from konsil.supermodel import SuperModel
from tests.cli.test_experiments import called
from tests.serve.conftest import serving
from tests.supermodel.test_segment_volume import SITES, SIZE, super_model

WHO = ["auto", "global", *SITES]


@pytest.fixture(scope="module")
def predicted(model, ward, tmp_path_factory):
    out = tmp_path_factory.mktemp("predicted") / "out"
    assert called("predict", model, ward, "-o", out, "--compare").code == 0
    return out


@pytest.mark.parametrize("name", ["photo.png", "v.nii.gz"])
def test_masks_are_those_of_the_command_byte_for_byte(served, ward, predicted, name):
    assert served.mask(ward / name) == (predicted / "masks" / name).read_bytes()
    for who in WHO[1:]:
        expected = (predicted / "compare" / who / name).read_bytes()
        assert served.mask(ward / name, ask=who) == expected
    answer = served.predict(ward / name, include=["mask"]).json()
    assert answer["mask"]["name"] == name
    assert base64.b64decode(answer["mask"]["base64"]) == served.mask(ward / name)


def test_a_series_comes_as_its_slices_and_goes_as_a_dicom_seg(served, ward, predicted):
    slices = sorted((ward / "T2").iterdir())
    data = served.mask(*reversed(slices))
    ours, theirs = dcmread(io.BytesIO(data)), dcmread(predicted / "masks" / "T2.dcm")
    assert ours.Modality == "SEG"
    np.testing.assert_array_equal(ours.pixel_array, theirs.pixel_array)
    answer = served.predict(*slices).json()
    assert (answer["file"], answer["kind"], len(answer["planes"])) == ("series", "volume", 4)


def test_an_answer_says_what_the_object_says(served, model, ward):
    found = SuperModel.load(model).predict(ward / "v.nii.gz")[0]
    answer = served.predict(ward / "v.nii.gz", include=["images", "overlays"]).json()
    assert [plane["asked"] for plane in answer["planes"]] == found.asked
    assert (answer["rows"], answer["columns"]) == found.size
    for number, plane in enumerate(answer["planes"]):
        likes = found.route.probabilities[number].tolist()
        assert plane["likes"] == pytest.approx(dict(zip(SITES, likes, strict=True)), abs=1e-5)
        assert plane["confidence"] == pytest.approx(max(likes), abs=1e-5)
        shares = found.masks()[number].mean(axis=(1, 2))
        assert list(plane["shares"].values()) == pytest.approx(shares, abs=1e-5)
        overlay = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["overlays"][number]))))
        np.testing.assert_array_equal(overlay, found.values()[number])
        shown = Image.open(io.BytesIO(base64.b64decode(answer["images"][number])))
        np.testing.assert_array_equal(np.asarray(shown), np.asarray(found.opened.pictures[number]))


def test_large_pictures_are_shown_smaller(served, tmp_path):
    path = tmp_path / "large.png"
    Image.new("L", (3000, 1500), 70).save(path)
    answer = served.predict(path, include=["images", "overlays", "mask"]).json()
    for name in ("images", "overlays"):
        assert Image.open(io.BytesIO(base64.b64decode(answer[name][0]))).size == (1024, 512)
    mask = Image.open(io.BytesIO(base64.b64decode(answer["mask"]["base64"])))
    assert mask.size == (3000, 1500)


def test_what_is_served_is_said(served):
    model = served.client.get("/api/models").json()["models"][0]
    assert (model["name"], model["ask"], model["sites"]) == ("model", WHO, list(SITES))
    assert [one["value"] for one in model["labels"]] == [1, 2]
    health = served.client.get("/api/health").json()
    assert (health["status"], health["workers"], health["questions"]) == ("ok", 1, 0)


def test_a_file_is_read_as_one_says(served, ward, model, tmp_path):
    path = ward / "v.nii.gz"
    out = tmp_path / "out"
    words = "--view", "coronal", "--window", "300,400"
    assert called("predict", model, path, "-o", out, *words).code == 0
    expected = (out / "masks" / "v.nii.gz").read_bytes()
    assert served.mask(path, view="coronal", window="300,400") == expected
    assert served.mask(path, view="coronal") != expected
    answer = served.predict(path, view="coronal").json()
    assert len(answer["planes"]) == read_volume(path).shape[1]


@pytest.mark.parametrize(
    ("form", "status", "words"),
    [
        ({"ask": "west"}, 422, "west: nobody of that name"),
        ({"site": "west"}, 422, "west: no site of this model"),
        ({"view": "round"}, 422, "view"),
        ({"window": "9,1"}, 422, "window"),
        ({"channel": "-1"}, 422, "channel"),
    ],
)
def test_what_cannot_be_meant_is_said(served, ward, form, status, words):
    answer = served.predict(ward / "v.nii.gz", **form)
    assert answer.status_code == status
    assert words in answer.json()["detail"]
    assert "/tmp" not in answer.text


def test_one_image_at_a_time(served, ward, tmp_path):
    several = served.predict(ward / "photo.png", ward / "v.nii.gz")
    assert several.status_code == 422
    assert "2 images at once (photo.png, v.nii.gz)" in several.json()["detail"]
    twice = served.predict(ward / "photo.png", ward / "photo.png")
    assert "two files of this name" in twice.json()["detail"]
    text = tmp_path / "letter.txt"
    text.write_text("dear colleague")
    assert "letter.txt: not a picture" in served.predict(text).json()["detail"]


def test_classes_are_told_apart(tmp_path, ward):
    super_model(task="classification", network=NetworkSpec("small", 1, 2, SIZE)).save(
        tmp_path / "model"
    )
    with serving(tmp_path / "model", "--workers", 1) as server:
        answer = server.predict(ward / "photo.png", include=["mask", "overlays"]).json()
        plane = answer["planes"][0]
        assert plane["label"] in plane["classes"]
        assert plane["sure"] == pytest.approx(max(plane["classes"].values()))
        assert sum(plane["classes"].values()) == pytest.approx(1, abs=1e-5)
        assert (answer["mask"], answer["overlays"]) == (None, [])
        refused = server.client.post("/api/mask", files={"files": ("a.png", b"")})
        assert refused.status_code == 422
        assert "draws no masks" in server.client.post(
            "/api/mask", files={"files": ("photo.png", (ward / "photo.png").read_bytes())}
        ).text  # fmt: skip


def test_what_cannot_be_served_is_said_before_anybody_listens(model, tmp_path):
    assert "no such folder" in called("serve", tmp_path / "none").err
    facts = json.loads((model / "model.json").read_text())
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "model.json").write_text(json.dumps(facts))
    done = called("serve", folder, "--port", "0")
    assert done.code == 1
    assert "cannot serve" in done.err
    with serving(model, "--workers", 1) as server:
        port = server.url.rpartition(":")[2]
        taken = called("serve", model, "--port", port)
        assert taken.code == 1
        assert "choose another --port" in taken.err

"""What 3D Slicer's extension asks for, by plain HTTP and by MONAI Label's own client."""

import json
import subprocess
import sys
from email.parser import BytesParser
from email.policy import HTTP
from pathlib import Path

import pytest

from tests.cli.test_experiments import called
from tests.serve.conftest import serving
from tests.supermodel.test_segment_volume import SITES

WHO = ["auto", "global", *SITES]
CLIENT = "monailabel==0.8.5"


def parts(answer):
    """Of a multipart answer: name -> (file's name, content)."""
    head = f"Content-Type: {answer.headers['content-type']}\r\n\r\n".encode()
    message = BytesParser(policy=HTTP).parsebytes(head + answer.content)
    return {
        part.get_param("name", header="content-disposition"): (
            part.get_filename(),
            part.get_payload(decode=True),
        )
        for part in message.iter_parts()
    }


def infer(server, who, path, **query):
    with open(path, "rb") as file:
        name = f"/home/somebody/{path.name}"  # as MONAI Label's client says it
        return server.client.post(
            f"/infer/{who}", params=query, data={"params": "{}"}, files={"file": (name, file)}
        )


def test_everybody_who_can_be_asked_is_a_model(served):
    info = served.client.get("/info/").json()
    assert list(info["models"]) == WHO
    one = info["models"]["auto"]
    assert (one["type"], one["labels"]) == ("segmentation", {"disc": 1, "cup": 2})
    assert (info["trainers"], info["strategies"]) == ({}, {})


@pytest.mark.parametrize("who", WHO)
def test_the_mask_is_that_of_the_command(served, ward, who):
    found = parts(infer(served, who, ward / "v.nii.gz"))
    assert found["image"] == ("v.nii.gz", served.mask(ward / "v.nii.gz", ask=who))
    params = json.loads(found["params"][1])
    assert params["label_names"] == {"disc": 1, "cup": 2}
    assert len(params["asked"]) == 5
    assert infer(served, who, ward / "v.nii.gz", output="json").json() == params
    image = infer(served, who, ward / "v.nii.gz", output="image")
    assert image.content == found["image"][1]


def test_a_session_is_asked_more_than_once_and_forgotten(served, ward):
    upload = {"files": ("v.nii.gz", (ward / "v.nii.gz").read_bytes())}
    name = served.client.put("/session/", files=upload).json()["session_id"]
    assert served.client.get(f"/session/{name}").json()["image"] == "v.nii.gz"
    for _ in range(2):
        found = served.client.post("/infer/auto", params={"session_id": name})
        assert parts(found)["image"][1] == served.mask(ward / "v.nii.gz")
    assert served.client.delete(f"/session/{name}").status_code == 200
    for path in (f"/session/{name}", "/session/never"):
        assert served.client.get(path).status_code == 404
    asked = served.client.post("/infer/auto", params={"session_id": name})
    assert asked.status_code == 404


def test_sessions_take_only_so_much_room(model, ward, tmp_path):
    """The oldest goes when there are too many; each after its time."""
    kept = tmp_path / "kept"
    kept.mkdir()
    upload = {"files": ("v.nii.gz", (ward / "v.nii.gz").read_bytes())}
    with serving(model, "--workers", 1, TMPDIR=str(kept)) as server:
        names = [server.client.put("/session/", files=upload).json() for _ in range(9)]
        open_ = [server.client.get(f"/session/{one['session_id']}").status_code for one in names]
        assert open_ == [404] + [200] * 8
        assert len(list(kept.rglob("v.nii.gz"))) == 8
        short = server.client.put("/session/", params={"expiry": 1}, files=upload).json()
        assert short["session_info"]["expiry"] <= 1
    assert list(kept.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "query", "form", "status"),
    [
        ("/infer/west", {}, {}, 404),
        ("/infer/auto", {}, {}, 422),
        ("/infer/auto", {}, {"params": "no json"}, 422),
        ("/infer/auto", {"output": "poem"}, {}, 422),
    ],
)
def test_what_cannot_be_asked_is_said(served, path, query, form, status):
    answer = served.client.post(path, params=query, data={"params": "{}"} | form)
    assert answer.status_code == status
    assert answer.json()["detail"]


@pytest.mark.slow
def test_monai_labels_own_client_gets_the_same_mask(model, ward, tmp_path):
    """In an environment of its own, as it comes from the package index."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "own")], check=True)
    python = tmp_path / "own" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "--no-deps", CLIENT], check=True)  # without the server's gigabytes
    subprocess.run([*install, "requests"], check=True)
    out = tmp_path / "out"
    assert called("predict", model, ward / "v.nii.gz", "-o", out).code == 0
    expected = (out / "masks" / "v.nii.gz").read_bytes()
    script = Path(__file__).with_name("monailabel_client.py")
    with serving(model, "--workers", 1, KONSIL_TOKEN="sesame") as server:
        command = [python, script, server.url, tmp_path, "sesame", ward / "v.nii.gz", "auto"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["models"] == WHO
    assert said["valid"] is True
    assert Path(said["file"]).name == "v.nii.gz"
    assert bytes.fromhex(said["first"]) == bytes.fromhex(said["second"]) == expected

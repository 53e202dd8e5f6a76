"""What `konsil evaluate` promises a hospital that took no part: bits, silence, no names."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from pyarrow import parquet

from konsil.config import check_experiment
from konsil.data import Federation, open_federation
from konsil.evaluation.scores import FILE, read_scores
from konsil.federation.plan import Plan
from konsil.federation.runner import Run
from konsil.testing import SIZE, write_shades, write_squares
from tests.cli.test_experiments import called
from tests.data.volume_files import grid, write_nifti

SITES = {"north": 8, "south": 12}
NAMES = ("Mueller", "Anna", "Klinikum")


def write_volumes(root: Path) -> None:
    """Eight patients a site, with three marked slices each; the marked part is brighter."""
    shape, affine = grid()
    for place, site in enumerate(SITES):
        for patient in range(8):
            rng = np.random.default_rng([place, patient])
            mask = np.zeros(shape, np.uint8)
            mask[1:3, 1:4, 2:5] = 1
            image = rng.integers(40 * place, 100 + 40 * place, shape) + 90 * mask
            folder = root / site / f"P{patient}"
            write_nifti(folder / "image.nii.gz", image.astype(np.uint16), affine)
            write_nifti(folder / "mask.nii.gz", mask, affine)


# kind -> writer, head of the federation file, block of a site, blocks of the experiment
KINDS = {
    "pictures": (
        lambda root: write_squares(root, SITES),
        "structures: {square: [255]}\nchannels: 1\n",
        "{images: SITE/images/*.png, labels: SITE/masks/*.png}",
        {"network": {"name": "unet", "width": 2}},
    ),
    "classes": (
        lambda root: write_shades(root, SITES),
        "task: classification\nclasses: [healthy, ill]\nchannels: 1\n",
        "{images: SITE/*/*.png, labels: folder}",
        {"network": {"name": "small"}, "task": {"name": "classification"}},
    ),
    "volumes": (
        write_volumes,
        'structures: {gland: [1]}\nchannels: 1\nwindow: [0, 255]\npatient: "[^/]+/([^/]+)/"\n',
        "{images: SITE/*/image.nii.gz, labels: SITE/*/mask.nii.gz}",
        {"network": {"name": "unet", "width": 2}},
    ),
}


def described(root: Path, kind: str) -> Path:
    _, head, block, _ = KINDS[kind]
    sites = "".join(f"  {site}: {block.replace('SITE', site)}\n" for site in SITES)
    (root / "federation.yaml").write_text(f"{head}sites:\n{sites}")
    return root / "federation.yaml"


@pytest.fixture(scope="module", params=list(KINDS))
def trained(request, tmp_path_factory) -> tuple[str, Path, Federation, Path]:
    """A federation file, its data, and a run on them."""
    root = tmp_path_factory.mktemp("data")
    write, _, _, blocks = KINDS[request.param]
    write(root)
    raw = {
        "name": "tiny",
        "federation": {"file": str(described(root, request.param)), "image_size": SIZE},
        "training": {"batch_size": 3},
        "methods": ["fedsm"],
        "rounds": 1,
    }
    e = check_experiment(raw | blocks, "test")
    federation = open_federation(e.federation, e.task)
    folder = tmp_path_factory.mktemp("runs") / "run"
    run = Run(Plan.of(e, federation), folder)
    run.prepare(False, federation.write_splits)
    run.go()
    return request.param, root, federation, folder


def of_the_run(folder: Path) -> list[dict]:
    return [row for row in read_scores(folder / FILE).to_pylist() if row["role"] == "super"]


def evaluated(model: Path, data: Path, out: Path, *more: str) -> list[dict]:
    done = called("evaluate", model, "--data", data, "--out", out, *more)
    assert done.code == 0, done.err
    rows = read_scores(out / FILE).to_pylist()
    return [{k: v for k, v in row.items() if not k.startswith("own_")} for row in rows]


def test_the_test_rows_of_the_run_bit_for_bit(trained, tmp_path):
    """Every column of every test image: scores, the selector, who answered, patients' numbers."""
    _, root, _, run = trained
    rows = evaluated(run, root, tmp_path / "out", "--split", "test")
    assert rows == of_the_run(run)
    assert len({row["patient"] for row in rows}) > 1


def elsewhere(kind: str, root: Path, federation: Federation, to: Path) -> None:
    """The test images alone, under the names of a patient, in the same order."""
    names: dict[str, str] = {}
    for item in federation.items:
        if item.split != "test":
            continue
        files = [item.image, *([item.label] if kind != "classes" else [])]
        for name in files:
            site, *_ = Path(name).parts
            key = str(Path(name).parent if kind == "volumes" else f"{site}/{Path(name).stem}")
            number = names.setdefault(key, f"Mueller_Anna_{len(names):03d}")
            own = Path(name).parts[1:-1] if kind != "volumes" else ()
            leaf = Path(name).name if kind == "volumes" else f"{number}.png"
            place = (number,) if kind == "volumes" else own
            target = to.joinpath(site, *place, leaf)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, target)
    described(to, kind)


@pytest.fixture
def moved(trained, tmp_path) -> tuple[Path, Path]:
    kind, root, federation, run = trained
    elsewhere(kind, root, federation, tmp_path / "Klinikum")
    return run, tmp_path / "Klinikum"


def test_the_same_images_elsewhere_are_the_same_bits(moved, tmp_path):
    run, data = moved
    model = tmp_path / "handed-over"  # without the run
    shutil.copytree(run / "fedsm/seed0/supermodel", model)
    assert evaluated(model, data, tmp_path / "out") == of_the_run(run)


def test_nothing_that_is_left_names_a_file_or_a_patient(moved, tmp_path):
    run, data = moved
    done = called("evaluate", run, "--data", data, "--out", tmp_path / "out")
    said = called("evaluate", run, "--data", data, "--json")
    assert any(name in str(p) for p in data.rglob("*") for name in NAMES)  # they are there
    left = {p.name: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert {"report.json", "summary.md", FILE, "evaluation.png", "evaluation.svg"} == set(left)
    # what is packed in the columns, too
    left["rows"] = str(parquet.read_table(tmp_path / "out" / FILE).to_pylist()).encode()
    left |= {"printed": (done.out + done.err).encode(), "json": (said.out + said.err).encode()}
    words = (*NAMES, str(data), str(data.parent.parent), ".nii", "P0")
    leaks = [(n, w) for n, text in left.items() for w in words if w.encode() in text]
    assert [leak for leak in leaks if leak != ("printed", str(data.parent.parent))] == []


NO_NETWORK = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto",
                 "socket.gethostbyname", "urllib.Request"):
        print("NETWORK:", event, arguments, file=sys.stderr)
        raise PermissionError(f"no network here: {event}")

sys.addaudithook(refuse)
if sys.argv[1] == "try":
    import socket
    socket.create_connection(("127.0.0.1", 9))
from konsil.cli import main
main()
"""


def cut_off(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`konsil` in a process of its own whose sockets reach nobody."""
    command = [sys.executable, "-c", NO_NETWORK, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)


@pytest.mark.parametrize("trained", ["pictures"], indirect=True)
def test_it_needs_no_network(moved, tmp_path):
    run, data = moved
    tried = cut_off("try")
    assert "NETWORK: socket." in tried.stderr  # whoever asks is refused, and seen
    done = cut_off("evaluate", run, "--data", data, "--out", tmp_path / "out")
    assert (done.returncode, "NETWORK" in done.stderr) == (0, False), done.stderr
    assert (tmp_path / "out" / "report.json").exists()


@pytest.mark.parametrize("trained", ["pictures"], indirect=True)
def test_it_needs_no_network_in_a_namespace_without_one(moved, tmp_path):
    """Not even what Python does not see: the kernel has no network for it."""
    alone = ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("no network namespace can be made here")
    run, data = moved
    call = [sys.executable, "-m", "konsil", "evaluate", run, "--data", data]
    done = subprocess.run([*alone, *map(str, call), "--out", str(tmp_path / "out")],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.json").exists()


# --- what the report says -------------------------------------------------------------------------


@pytest.mark.parametrize("trained", ["volumes"], indirect=True)
def test_the_report_has_all_that_is_said_of_test_images(trained, tmp_path):
    _, root, federation, run = trained
    out = tmp_path / "out"
    evaluated(run, root, out, "--split", "test")
    said = json.loads((out / "report.json").read_text())
    facts = json.loads((run / "fedsm/seed0/supermodel/model.json").read_text())
    for one in said["sites"]:
        site, told = one["site"], facts["scores"]["test"]["super"][one["site"]]
        assert (one["images"], one["patients"]) == (
            federation.counts[site]["test"], federation.patients[site]["test"])  # fmt: skip
        for metric in ("dice", "hd95", "surface_dice"):
            assert one["scores"][metric] == told[metric]
        # the intervals of the model's own folder are of the same patients
        assert one["intervals"]["dice"] == facts["intervals"]["test"]["super"][site]["dice"]
        assert "volume_dice" in one["scores"]
        assert one["own_size"]["dice"] > 0
        assert sum(one["asked"].values()) == one["images"]
        hospitals = one["beside_its_own"]["hospitals"]
        assert hospitals[site]["value"] == told["dice"]
        assert set(one["alone"]) == {"global", "north", "south"}
    summary = (out / "summary.md").read_text()
    assert "as well as its own hospitals'?" in summary
    assert "in the mean of 2" in summary
    assert (out / "figures" / "evaluation.svg").exists()


@pytest.mark.parametrize("trained", ["classes"], indirect=True)
def test_one_model_alone_and_a_method_without_a_selector(trained, tmp_path):
    _, root, _, run = trained
    rows = evaluated(run, root, tmp_path / "one", "--split", "test", "--ask", "global")
    found = [row for row in read_scores(run / FILE).to_pylist() if row["role"] == "global"]
    names = ("site", "image", "patient", "accuracy", "target", "score", "confidence")
    assert [[r[n] for n in names] for r in rows] == [[r[n] for n in names] for r in found]
    report = json.loads((tmp_path / "one" / "report.json").read_text())
    assert {"auc", "balanced_accuracy", "calibration_error"} <= set(report["sites"][0]["scores"])
    raw = yaml.safe_load((run / "plan.yaml").read_text())["experiment"]
    raw["methods"] = ["fedavg"]
    e = check_experiment({k: raw[k] for k in ("name", "federation", "task", "network", "training",
                                              "methods", "rounds")}, "test")  # fmt: skip
    plain = tmp_path / "plain"
    federation = open_federation(e.federation, e.task)
    other = Run(Plan.of(e, federation), plain)
    other.prepare(False, federation.write_splits)
    other.go()
    rows = evaluated(plain, root, tmp_path / "two", "--split", "test")
    expected = read_scores(plain / FILE).to_pylist()
    assert [r["score"] for r in rows] == [r["score"] for r in expected]
    assert {r["asked"] for r in rows} == {"global"}


@pytest.mark.parametrize("trained", ["classes"], indirect=True)
def test_what_is_refused(trained, tmp_path):
    _, root, _, run = trained
    evaluated(run, root, tmp_path / "out", "--split", "val")
    for more, why in (
        (
            ["--out", tmp_path / "out"],
            "has a report already; choose another folder, or --overwrite",
        ),
        (["--split", "tests"], "--split tests: train, val or test"),
    ):
        done = called("evaluate", run, "--data", root, *more)
        assert (done.code, why in done.err) == (1, True), done.err
    evaluated(run, root, tmp_path / "out", "--overwrite")

"""What holds for every importer: all or nothing, no overwriting, and errors that help."""

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
import yaml

from konsil.errors import ConfigError, DataError
from konsil.prepare.importers import IMPORTERS, Options, import_dataset
from tests.prepare.importers.miniatures import rim_and_cup

RETINA = ("drishti-gs1", "refuge", "riga", "rim-one")


def test_every_importer_states_what_a_person_needs():
    found = IMPORTERS.all()
    assert {*RETINA, "camelyon17"} <= set(found)
    for name, importer in found.items():
        text = importer.describe()
        assert name == importer.name
        for stated in (importer.title, importer.licence, importer.home, importer.certainty):
            assert stated
            assert stated in text
        assert importer.layout.strip().splitlines()[0] in text
        assert importer.paper
        assert set(importer.paper) <= set(importer.sites)


def test_the_retina_sets_have_the_papers_total():
    """Table 1 of FedSM: 905 + 453 + 451 images at six sites."""
    counts = [site["images"] for name in RETINA for site in IMPORTERS.all()[name].paper.values()]
    assert len(counts) == 6
    assert sum(counts) == 905 + 453 + 451


def test_listing_importers_loads_no_heavy_library():
    """Of what `konsil data import` lists; what konsil.data itself loads is another matter."""
    code = (
        "import sys, konsil.data; before = set(sys.modules); "
        "from konsil.prepare.importers import IMPORTERS; IMPORTERS.all(); "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(new & {'scipy', 'SimpleITK', 'nibabel', 'pydicom', 'highdicom', 'monai'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_an_unknown_name(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown importer .fundus.; there are .*refuge"):
        import_dataset("fundus", tmp_path, tmp_path / "out")


@pytest.mark.parametrize("name", RETINA)
def test_a_wrong_folder_shows_the_layout_and_what_was_found(download, name):
    download.picture("holiday/beach 1.png")
    with pytest.raises(DataError) as error:
        download.take(name)
    message = str(error.value)
    assert IMPORTERS.all()[name].layout.strip().splitlines()[0].strip() in message
    assert "holiday/: 1 file(s), such as beach 1.png" in message
    assert download.files() == []


def test_no_folder_and_an_empty_one(download):
    with pytest.raises(DataError, match="nothing: the folder is empty"):
        download.take("refuge")
    download.root.rmdir()
    with pytest.raises(DataError, match="no such folder; give the folder that refuge is in"):
        download.take("refuge")


def test_an_image_that_the_layout_does_not_explain(refuge):
    refuge.picture("Training400/AMD/A0001.jpg")
    with pytest.raises(DataError, match=r"does not explain:\n.*Training400/AMD/A0001.jpg"):
        refuge.take("refuge")


def test_an_image_without_a_mask_and_a_mask_without_an_image(refuge):
    (refuge.root / "Test400/T0003.jpg").unlink()
    (refuge.root / "REFUGE-Test-GT/Disc_Cup_Masks/G/T0001.bmp").unlink()
    with pytest.raises(DataError) as error:
        refuge.take("refuge")
    assert "image without a mask:\n    Test400/T0001.jpg" in str(error.value)
    assert "mask without an image:\n    REFUGE-Test-GT/Disc_Cup_Masks/G/T0003" in str(error.value)


def test_unpacked_twice(refuge):
    refuge.picture("copy/Test400/T0001.jpg")
    with pytest.raises(DataError, match=r"twice:\n +Test400/T0001.jpg and copy/Test400/"):
        refuge.take("refuge")


def test_what_unpacking_leaves_is_no_image(refuge):
    refuge.picture("__MACOSX/Test400/T0001.jpg")
    refuge.text("Test400/.hidden.jpg", "")
    refuge.text("Test400/Thumbs.db", "")
    assert refuge.take("refuge").rows[0].made == 10


def test_files_that_cannot_be_read(refuge):
    """Each is named; a truncated picture is found by `konsil data check`, which decodes it."""
    refuge.text("Test400/T0001.jpg", "no picture at all")
    mask = refuge.root / "REFUGE-Test-GT/Disc_Cup_Masks/G/T0002.bmp"
    mask.write_bytes(mask.read_bytes()[:400])
    refuge.write("REFUGE-Test-GT/Disc_Cup_Masks/G/T0003.bmp", np.zeros((4, 4), np.uint8))
    empty = np.full(rim_and_cup().shape, 255, np.uint8)
    refuge.write("REFUGE-Validation400-GT/Disc_Cup_Masks/V0001.bmp", empty)
    with pytest.raises(DataError) as error:
        refuge.take("refuge")
    message = str(error.value)
    assert "T0001.jpg (not PNG, JPEG, BMP or TIFF)" in message
    assert "T0002.bmp: " in message
    assert "mask 4 x 4, image 60 x 48" in message
    assert "mask without an optic disc:\n    REFUGE-Validation400/V0001.jpg" in message
    assert refuge.files() == []


# --- all or nothing -------------------------------------------------------------------------------


def test_a_site_is_not_overwritten_unless_asked(refuge):
    refuge.take("refuge")
    before = (refuge.dest / "federation.yaml").read_text()
    with pytest.raises(DataError, match="imported already; import with overwrite"):
        refuge.take("refuge")
    (refuge.dest / "refuge/images/mine.jpg").write_bytes(b"")
    refuge.take("refuge", overwrite=True)
    assert "refuge/images/mine.jpg" not in refuge.files()
    assert (refuge.dest / "federation.yaml").read_text() == before


def test_a_failed_overwrite_leaves_the_old_site(refuge):
    refuge.take("refuge")
    before = {name: (refuge.dest / name).read_bytes() for name in refuge.files()}
    refuge.text("Test400/T0001.jpg", "no picture at all")
    with pytest.raises(DataError):
        refuge.take("refuge", overwrite=True)
    assert {name: (refuge.dest / name).read_bytes() for name in refuge.files()} == before


def test_somebody_elses_folder_is_in_the_way(refuge):
    (refuge.dest / "refuge").mkdir(parents=True)
    (refuge.dest / "refuge/thesis.txt").write_text("mine")
    with pytest.raises(DataError, match="is in the way"):
        refuge.take("refuge", overwrite=True)
    assert refuge.files() == ["refuge/thesis.txt"]


def in_a_child(work):
    """Run it in a process of its own; how the process ended."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60)
    return child.exitcode


@pytest.mark.parametrize(
    "step",
    ["write_text", "_put_in_place", "yaml.safe_dump"],
    ids=["sites built", "recorded", "renamed"],
)
def test_a_killed_import_is_repeated(refuge, monkeypatch, step):
    """Killed at each step of publishing: no site counts, and the next import makes it whole."""

    def killed():
        name = f"konsil.prepare.importers.write.{step}"
        monkeypatch.setattr(name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        refuge.take("refuge")

    assert in_a_child(killed) == -signal.SIGKILL
    assert list(refuge.dest.rglob("*.png"))  # it had begun
    assert not (refuge.dest / "federation.yaml").exists()
    refuge.take("refuge")
    assert len(refuge.opened().items) == 10
    assert not list(refuge.dest.glob(".*"))


def test_a_full_disk_leaves_nothing(refuge):
    """A limit on the size of files stands for the disk: pictures are larger."""
    ours, theirs = multiprocessing.Pipe()

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            refuge.take("refuge")
        except DataError as error:
            theirs.send(str(error))

    assert in_a_child(work) == 0
    assert "File too large; nothing was imported. Make room" in ours.recv()
    assert refuge.files() == []


def test_a_destination_that_cannot_be(refuge):
    with pytest.raises(DataError, match="lies inside"):
        import_dataset("refuge", refuge.root, refuge.root / "out")
    refuge.dest.write_text("a file")
    with pytest.raises(DataError, match="is a file; name a folder"):
        refuge.take("refuge")


# --- what is written beside the sites -------------------------------------------------------------


def test_the_record_of_an_import(refuge):
    refuge.take("refuge", crop=2)
    record = json.loads((refuge.dest / "imported/refuge.json").read_text())
    assert record["licence"] == IMPORTERS.all()["refuge"].licence
    site = record["sites"]["refuge"]
    assert site["counts"] == [{"site": "refuge", "what": "images", "made": 10, "paper": 800}]
    assert site["source"] == str(refuge.root.resolve())
    assert site["options"] == {"crop": 2}
    assert site["date"].startswith("20")


def test_what_a_person_changed_stays(refuge):
    """Their own site with other mask values, and their own fractions."""
    own = {
        "structures": {"disc": [128, 255], "cup": [255]},
        "split": {"train": 0.6, "val": 0.2, "test": 0.2},
        "sites": {"home": {"images": "home/images/*.png", "labels": "home/masks/*.png"}},
    }
    refuge.dest.mkdir()
    (refuge.dest / "federation.yaml").write_text(yaml.safe_dump(own))
    refuge.take("refuge")
    content = yaml.safe_load((refuge.dest / "federation.yaml").read_text())
    assert content["split"] == own["split"]
    assert content["sites"]["home"] == own["sites"]["home"]
    assert content["structures"] == own["structures"]
    assert content["sites"]["refuge"]["structures"] == {"disc": [1, 2], "cup": [2]}
    assert len(refuge.opened(sites=["refuge"]).items) == 10


def test_a_federation_of_another_task(refuge):
    refuge.dest.mkdir()
    site = {"images": "a/*/*.png", "labels": "folder"}
    content = {"task": "classification", "classes": ["no", "yes"], "sites": {"a": site}}
    (refuge.dest / "federation.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(DataError, match="is a classification of no, yes, and refuge is a segmen"):
        refuge.take("refuge")


def test_progress_is_told(refuge):
    told = []
    import_dataset("refuge", refuge.root, refuge.dest, report=lambda *step: told.append(step))
    assert told == [("refuge", done, 10) for done in range(1, 11)]


def test_options_that_were_given():
    assert Options().given() == {}
    assert Options(crop=1.5, seed=3).given() == {"crop": 1.5, "seed": 3}

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from konsil import data
from konsil.config import usual_cache
from konsil.data import cache, recipe
from konsil.data.synthetic import FEDERATIONS
from konsil.errors import DataError


def entry_files(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def in_cache(folder: Path) -> list[Path]:
    """What lies in a cache, the marks of those who use it left out."""
    return [path for path in folder.iterdir() if path.name != cache.MARKS]


def decoded(build, **options):
    """How many images a run decodes."""
    seen = []
    build.open(report=lambda site, done, total: seen.append((site, done, total)), **options)
    return seen


def test_second_run_decodes_nothing(build):
    build.pairs("a", 4)
    build.pairs("b", 5)
    seen = decoded(build)
    assert seen == [("a", i, 4) for i in range(1, 5)] + [("b", i, 5) for i in range(1, 6)]
    assert decoded(build) == []


def test_layout_of_an_entry(build):
    build.pairs("a", 4)
    folder = build.open().folder
    arrays = {
        f"a/{split}/{n}.npy" for split in ("train", "val", "test") for n in ("images", "targets")
    }
    assert set(entry_files(folder)) == arrays | {"federation.json"}
    assert folder.parent == build.cache


def test_fingerprint_is_independent_of_place_and_cache(build, tmp_path):
    build.pairs("a", 4)
    here = build.open()
    moved = shutil.copytree(build.root, tmp_path / "elsewhere")
    for path in moved.rglob("*"):
        os.utime(path, (1, 1))
    there = build.open(folder=moved, cache=tmp_path / "other_cache")
    assert there.fingerprint == here.fingerprint
    assert there.folder.name == here.folder.name
    assert len(here.fingerprint) == 64


def test_fingerprint_changes_with_whatever_changes_numbers(build):
    build.pairs("a", 12)
    build.pairs("b", 12)
    prints = [
        build.open().fingerprint,
        build.open(image_size=32).fingerprint,
        build.open(channels=1).fingerprint,
        build.open(split_seed=1).fingerprint,
        build.open(split=(0.6, 0.2, 0.2)).fingerprint,
        build.open(sites=["b", "a"]).fingerprint,
        build.open({"structures": {"x": [255]}}).fingerprint,
        build.open({"structures": {"y": [255]}}).fingerprint,
    ]
    build.mask("a/masks/p3.png", value=0)
    prints.append(build.open().fingerprint)
    build.image("a/images/p3.png", size=(20, 17))
    build.mask("a/masks/p3.png", size=(20, 17))
    prints.append(build.open().fingerprint)
    assert len(set(prints)) == len(prints)


def test_a_change_that_keeps_size_and_date_is_seen(build):
    build.pairs("a", 4)
    path = build.array("a/images/p0.png", np.full((16, 20, 3), 10, np.uint8))
    before, dates = build.open(), path.stat()
    build.array("a/images/p0.png", np.full((16, 20, 3), 11, np.uint8))
    os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    assert path.stat().st_size == dates.st_size
    assert build.open().fingerprint != before.fingerprint


@pytest.mark.parametrize("threads", [1, 7])
def test_threads_change_nothing(build, monkeypatch, threads):
    build.pairs("a", 30)
    files = entry_files(build.open().folder)
    monkeypatch.setattr(recipe, "THREADS", threads)
    again = build.open(cache=build.cache / "again")
    assert entry_files(again.folder) == files


def damage_truncate(folder):
    path = folder / "a" / "test" / "images.npy"
    path.write_bytes(path.read_bytes()[:-1])


def damage_remove(folder):
    (folder / "a" / "val" / "targets.npy").unlink()


def damage_manifest(folder):
    (folder / "federation.json").write_text('{"facts": {"a"')


def damage_manifest_type(folder):
    (folder / "federation.json").write_text("[]")


def damage_all(folder):
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize(
    "damage", [damage_truncate, damage_remove, damage_manifest, damage_manifest_type, damage_all]
)
def test_a_damaged_entry_is_rebuilt(build, damage):
    build.pairs("a", 6)
    folder = build.open().folder
    whole = entry_files(folder)
    damage(folder)
    assert len(decoded(build)) == 6
    assert entry_files(folder) == whole
    assert [path.name for path in in_cache(build.cache)] == [folder.name]


def test_opening_a_damaged_array_is_a_clear_error(build):
    build.pairs("a", 6)
    folder = build.open().folder
    damage_truncate(folder)
    with pytest.raises(DataError, match=r"images\.npy.*cannot be opened.*rebuilds"):
        data.test_images(folder, "a")
    with pytest.raises(DataError, match="cannot be opened"):
        data.training_data(folder, ["nobody"])


def test_many_runs_build_one_entry_at_the_same_time(build):
    build.pairs("a", 20)
    found, errors, decodings = [], [], []

    def run():
        try:
            found.append(build.open(report=lambda *done: decodings.append(done)))
        except Exception as error:
            errors.append(error)

    runs = [threading.Thread(target=run) for _ in range(6)]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()
    assert not errors
    assert len({federation.folder for federation in found}) == 1
    assert len(decodings) == 20  # one builds, the others wait
    assert [path.name for path in in_cache(build.cache)] == [found[0].folder.name]
    assert cache.facts_if_whole(found[0].folder) is not None


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from konsil.config import FederationConfig, TaskConfig
    from konsil.data import open_federation
    def die(site, done, total):
        if done == 5:
            os.kill(os.getpid(), signal.SIGKILL)
    open_federation(
        FederationConfig(folder=Path(sys.argv[1]), cache=Path(sys.argv[2]), image_size=16),
        TaskConfig(), die)
"""


def test_a_kill_while_decoding_leaves_no_entry(build):
    build.pairs("a", 8)
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(build.root), str(build.cache)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    [left] = in_cache(build.cache)
    assert left.name.startswith(cache.BUILDING)
    decoded(build, image_size=32)
    assert not left.exists()  # the next run that builds anything sweeps it
    assert len(decoded(build)) == 8


def test_an_error_leaves_nothing_behind(build):
    build.pairs("a", 8)
    build.mask("a/masks/p3.png", size=(5, 5))
    with pytest.raises(DataError):
        build.open()
    assert list(build.cache.iterdir()) == []


def test_a_cache_that_cannot_be_written(build):
    build.pairs("a", 8)
    build.cache.write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"the cache cannot be written.*KONSIL_CACHE"):
        build.open()


def test_synthetic_federation_that_lost_files_is_written_again(build):
    counts = {min(FEDERATIONS["retina"].images): 4}
    before = build.open(synthetic="retina", images=counts).fingerprint
    [folder] = in_cache(build.cache / "synthetic")
    for path in list(folder.rglob("*.png"))[:2]:
        path.unlink()
    assert build.open(synthetic="retina", images=counts).fingerprint == before


def test_manifest_states_sizes(build):
    build.pairs("a", 4)
    folder = build.open().folder
    manifest = json.loads((folder / "federation.json").read_text())
    assert manifest["files"]["a/train/images.npy"] == 128 + 2 * 3 * 16 * 16


def test_the_usual_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KONSIL_CACHE", str(tmp_path / "here"))
    assert usual_cache() == tmp_path / "here"
    monkeypatch.delenv("KONSIL_CACHE")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert usual_cache() == tmp_path / "konsil"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert usual_cache() == Path.home() / ".cache" / "konsil"

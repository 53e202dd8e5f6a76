"""The cache is never larger than it may be, and nobody loses what it uses."""

import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from konsil import data
from konsil.data import cache
from konsil.data.cache import entries, folder_once, remove
from konsil.data.decode import bytes_of
from konsil.data.recipe import Recipe
from konsil.data.synthetic import FEDERATIONS
from konsil.errors import DataError

MB = 10**6
ROOM = cache.MANIFEST_BYTES  # reserved beside the size
processes = multiprocessing.get_context("fork")


def put(root, name, size=MB, limit=None, reserve=None, pause=lambda: None):
    """An entry of one file, which this process then uses."""

    def fill(folder):
        with (folder / "bytes").open("wb") as file:
            for _ in range(10):
                file.write(bytes(size // 10))
                file.flush()
                pause()
        return {"name": name}

    return folder_once(root / name, fill, size=size if reserve is None else reserve, limit=limit)


def start(function, *args, **kwargs):
    """In a process of its own, which lets go of what it uses when it ends."""
    process = processes.Process(target=function, args=args, kwargs=kwargs, daemon=True)
    process.start()
    return process


def elsewhere(function, *args, **kwargs):
    process = start(function, *args, **kwargs)
    process.join()
    assert process.exitcode == 0


def unused(root, *names, size=MB):
    """Entries that no process uses, the first unused for the longest time."""
    for place, name in enumerate(names):
        elsewhere(put, root, name, size)
        last_use = time.time() - 1000 + place
        os.utime(root / name / cache.MANIFEST, (last_use, last_use))


def names(root):
    return {entry.name for entry in entries(root)}


def in_cache(root):
    """What lies there, the marks of those who use it left out."""
    return [path.name for path in root.iterdir() if path.name != cache.MARKS]


def total(root):
    return sum(entry.bytes for entry in entries(root))


def fails(message, function, *args, **kwargs):
    """In a process of its own."""

    def run():
        with pytest.raises(DataError, match=message):
            function(*args, **kwargs)

    elsewhere(run)


def test_the_least_recently_used_goes_first(tmp_path):
    unused(tmp_path, "a", "b", "c")
    elsewhere(put, tmp_path, "a")  # a hit is a use
    put(tmp_path, "d", limit=4 * MB)
    assert names(tmp_path) == {"a", "c", "d"}
    put(tmp_path, "e", 2 * MB, limit=4 * MB)
    assert names(tmp_path) == {"d", "e"}
    assert total(tmp_path) < 4 * MB


def test_nothing_goes_while_there_is_room(tmp_path):
    unused(tmp_path, "a", "b")
    put(tmp_path, "c", limit=total(tmp_path) + MB + ROOM)
    assert names(tmp_path) == {"a", "b", "c"}


def test_what_is_in_use_stays_and_the_error_says_all(tmp_path):
    put(tmp_path, "mine")
    unused(tmp_path, "a")
    filled = []
    message = (
        rf"{tmp_path}: no room in the cache: 1\.6 MB needed, .* free on the disk, at most 2\.5 MB "
        r"allowed, 1\.0 MB in use by runs; .*federation\.cache_limit .*KONSIL_CACHE_LIMIT.*"
        r"KONSIL_CACHE.*federation\.image_size"
    )
    with pytest.raises(DataError, match=message):
        put(tmp_path, "new", MB * 3 // 2, limit=MB * 5 // 2, pause=lambda: filled.append(1))
    assert not filled  # refused before anything was decoded
    assert names(tmp_path) == {"mine", "a"}  # nothing removed in vain
    assert (tmp_path / "mine" / "bytes").exists()


def test_more_than_is_ever_allowed_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"1\.0 MB allowed"):
        put(tmp_path, "a", limit=MB)
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_disk_has_is_refused_before_anything_is_written(tmp_path):
    too_much = shutil.disk_usage(tmp_path).total + 1
    filled = []
    with pytest.raises(DataError, match=r"no room .*needed.*free on the disk, without limit"):
        put(tmp_path, "a", reserve=too_much, pause=lambda: filled.append(1))
    assert not filled
    assert list(tmp_path.iterdir()) == []


def test_what_becomes_larger_than_reserved_is_refused_or_given_room(tmp_path):
    unused(tmp_path, "a")
    with pytest.raises(DataError, match="more was written than was reserved"):
        put(tmp_path, "new", 2 * MB, limit=MB * 3 // 2, reserve=MB // 10)
    assert names(tmp_path) == {"a"}
    put(tmp_path, "new", 2 * MB, limit=MB * 5 // 2, reserve=MB // 10)
    assert names(tmp_path) == {"new"}


def test_an_entry_under_construction_counts_in_full(tmp_path):
    began, go_on = processes.Event(), processes.Event()

    def pause():
        began.set()
        go_on.wait(30)

    other = start(put, tmp_path, "slow", pause=pause)
    began.wait(30)
    [building] = entries(tmp_path)
    assert (building.bytes, building.in_use, building.whole) == (MB + ROOM, True, False)
    assert building.written < MB
    with pytest.raises(DataError, match="no room"):
        put(tmp_path, "mine", limit=2 * MB)
    assert remove(tmp_path) == []
    put(tmp_path, "mine", limit=3 * MB)
    go_on.set()
    other.join()
    assert other.exitcode == 0
    assert names(tmp_path) == {"slow", "mine"}


def test_what_a_killed_run_left_is_swept_and_does_not_count(tmp_path):
    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    other = start(put, tmp_path, "killed", pause=die)
    other.join()
    assert other.exitcode == -signal.SIGKILL
    [left] = entries(tmp_path)
    assert not left.in_use
    assert not left.whole
    put(tmp_path, "mine", limit=MB + ROOM)
    assert in_cache(tmp_path) == ["mine"]


def test_a_run_waits_for_the_one_that_builds_the_same(tmp_path):
    """Six processes; and if the one that builds dies, the next takes over."""
    fills = processes.Value("i", 0)
    first = processes.Value("i", 1)

    def pause():
        with first:
            mine, first.value = first.value, 0
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        with fills:
            fills.value += 1
        time.sleep(0.01)

    runs = [start(put, tmp_path, "same", limit=MB * 3 // 2, pause=pause) for _ in range(6)]
    for run in runs:
        run.join()
    assert sorted(run.exitcode for run in runs) == [-signal.SIGKILL, 0, 0, 0, 0, 0]
    assert fills.value == 10
    assert in_cache(tmp_path) == ["same"]


def test_many_make_room_at_the_same_time(tmp_path):
    """The cache holds three of eight; the total never exceeds the limit, nobody loses its own."""
    limit = 3 * (MB + ROOM)
    unused(tmp_path, "old", "older")
    together = processes.Barrier(9)
    checked = processes.Barrier(9)

    def run(name):
        together.wait(30)
        try:
            put(tmp_path, name, limit=limit, pause=lambda: time.sleep(0.002))
            done = True
        except DataError:
            done = False
        checked.wait(30)
        assert cache.facts_if_whole(tmp_path / name) == ({"name": name} if done else None)
        os._exit(0 if done else 3)

    runs = [start(run, f"new{number}") for number in range(8)]
    together.wait(30)
    while checked.n_waiting < 8:
        assert total(tmp_path) <= limit
    checked.wait(30)
    for process in runs:
        process.join()
    assert sorted(process.exitcode for process in runs) == [0] * 3 + [3] * 5
    assert len(names(tmp_path)) == 3
    assert names(tmp_path).isdisjoint({"old", "older"})


def test_a_process_that_opened_images_keeps_their_entry(build):
    """As a worker of the engine does, which never opened the federation itself."""
    build.pairs("a", 6)
    opened, go_on = processes.Event(), processes.Event()
    box = processes.Queue()
    elsewhere(lambda: box.put(build.open().folder))
    folder = box.get()

    def work():
        images = data.training_data(folder, ["a"]).train
        opened.set()
        go_on.wait(30)
        assert len(images) == 3

    worker = start(work)
    opened.wait(30)
    assert [entry.in_use for entry in entries(build.cache)] == [True]
    assert remove(build.cache) == []
    go_on.set()
    worker.join()
    assert worker.exitcode == 0
    assert [entry.name for entry in remove(build.cache)] == [folder.name]
    assert list(build.cache.iterdir()) == []


def test_listing_and_removing(tmp_path):
    assert entries(tmp_path / "nowhere") == []
    assert remove(tmp_path / "nowhere") == []
    unused(tmp_path, "a", "b", "c", size=1000)
    put(tmp_path, "mine", 2000)
    listed = entries(tmp_path)
    assert [(e.name, e.in_use, e.whole) for e in listed] == [
        ("a", False, True),
        ("b", False, True),
        ("c", False, True),
        ("mine", True, True),
    ]
    manifest = (tmp_path / "a" / cache.MANIFEST).stat()
    assert listed[0].bytes == 1000 + manifest.st_size
    assert listed[0].last_use == manifest.st_mtime
    assert [entry.name for entry in remove(tmp_path)] == ["a", "b", "c"]
    assert names(tmp_path) == {"mine"}


def test_the_marks_of_processes_that_ended_are_swept(tmp_path):
    for _ in range(3):
        elsewhere(put, tmp_path, "a")
    put(tmp_path, "a")
    assert len(list((tmp_path / cache.MARKS / "a").iterdir())) == 1
    elsewhere(put, tmp_path, "b")
    assert [entry.name for entry in remove(tmp_path)] == ["b"]
    assert [path.name for path in (tmp_path / cache.MARKS).iterdir()] == ["a"]


def test_an_entry_that_this_process_used_is_rebuilt_after_another_died_at_it(tmp_path):
    """What is left of the dead must not be taken for something that is still being built."""

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    put(tmp_path, "a")
    shutil.rmtree(tmp_path / "a")
    start(put, tmp_path, "a", pause=die).join()
    assert in_cache(tmp_path) == [f"{cache.BUILDING}a"]
    put(tmp_path, "a")
    assert in_cache(tmp_path) == ["a"]


def test_what_is_not_konsils_is_left_alone(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").write_bytes(bytes(5 * MB))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / cache.MANIFEST).write_text('{"sites": []}')
    (tmp_path / "link").symlink_to(tmp_path / "thesis")
    put(tmp_path, "a", limit=MB + ROOM)
    assert names(tmp_path) == {"a"}
    assert set(in_cache(tmp_path)) == {"thesis", "other", "link", "a"}


def test_synthetic_federations_are_entries_too(build):
    counts = {min(FEDERATIONS["retina"].images): 4}
    elsewhere(build.open, synthetic="retina", images=counts)
    listed = {entry.name.split("/")[0]: entry for entry in entries(build.cache)}
    assert len(listed) == 2
    assert listed["synthetic"].name.startswith("synthetic/retina-")
    assert listed["synthetic"].written > 10_000
    assert not any(entry.in_use for entry in listed.values())
    put(build.cache, "large", limit=MB + ROOM)
    assert names(build.cache) == {"large"}
    again = build.open(synthetic="retina", images=counts)
    assert len(data.training_data(again.folder, again.sites).train) == 2
    assert len(names(build.cache)) == 3
    assert all(entry.in_use for entry in entries(build.cache))


HEADER = 128  # of each of the two arrays of each of the three parts of a site


@pytest.mark.parametrize("structures", [1, 2])
def test_the_size_of_arrays_is_known_before(build, structures):
    build.pairs("a", 6)
    build.pairs("b", 5)
    named = tuple((f"s{number}", [255]) for number in range(structures))
    opened = build.open({"structures": dict(named)}, channels=1)
    written = sum(path.stat().st_size for path in opened.folder.rglob("*.npy"))
    assert written == bytes_of(Recipe(1, 16, structures=named), 11) + 2 * 6 * HEADER


def test_the_size_of_arrays_of_a_classification(build):
    build.classes("a", ill=4, well=5)
    opened = build.open({"name": "classification"})
    written = sum(path.stat().st_size for path in opened.folder.rglob("*.npy"))
    assert written == bytes_of(Recipe(3, 16, classes=("ill", "well")), 9) + 6 * HEADER


def test_a_federation_that_is_too_large_is_refused_before_it_is_decoded(build):
    build.pairs("a", 6)
    needed = 6 * 4 * 16 * 16
    decoded = []
    with pytest.raises(DataError, match=r"no room in the cache: 71\.7 kB needed"):
        build.open(cache_limit=needed + ROOM - 1, report=lambda *done: decoded.append(done))
    assert not decoded
    assert list(build.cache.glob("[!.]*/*/*/*.npy")) == []
    build.open(cache_limit=needed + ROOM)


# --- a disk that fills up while an entry is written ---------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB, where the system lets a test have one."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("this system does not let a test mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_small_disk_is_seen_before_and_makes_room(small_disk):
    fails(r"no room in the cache: 3\.1 MB needed, 2\.1 MB free", put, small_disk, "a", 3 * MB)
    unused(small_disk, "a")
    put(small_disk, "b", MB * 3 // 2)
    assert names(small_disk) == {"b"}


def test_a_disk_that_fills_up_in_the_middle(small_disk):
    message = rf"{small_disk}: the cache cannot be written \(No space left on device\); make room"
    fails(message, put, small_disk, "a", 3 * MB, reserve=0)
    assert list(small_disk.iterdir()) == []


def test_a_federation_on_a_disk_that_fills_up(build, small_disk):
    for number in range(40):
        build.image(f"a/images/p{number}.png")
        build.mask(f"a/masks/p{number}.png")
    cache_folder = small_disk / "cache"
    (small_disk / "other").write_bytes(bytes(MB))
    fails(r"cannot be written|no room", build.open, image_size=128, cache=cache_folder)
    assert list(cache_folder.iterdir()) == []


def test_a_file_that_may_not_grow(tmp_path: Path):
    """The same without a mount: the system refuses to let a file become larger."""

    def run():
        resource.setrlimit(resource.RLIMIT_FSIZE, (MB // 2, MB // 2))
        with pytest.raises(DataError, match=rf"{tmp_path}: the cache cannot be written \(File too"):
            put(tmp_path, "a")

    elsewhere(run)
    assert list(tmp_path.iterdir()) == []

import multiprocessing
import os
import signal

import pytest

from konsil.files import locked, remove_parts, replacing, store_once, take_lock, write_text

processes = multiprocessing.get_context("fork")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_nothing_is_seen_of_a_file_until_it_is_whole(tmp_path):
    path = tmp_path / "deep" / "file"
    with replacing(path, durable=True) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"


def test_what_a_kill_left_is_swept_away(tmp_path):
    write_text(tmp_path / "file", "whole")
    (tmp_path / ".file.123.part").write_text("hal")
    remove_parts(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_equal_files_lie_on_the_disk_once(tmp_path):
    contents = {"a/x.bin": b"one", "b/x.bin": b"one", "b/y.bin": b"two", "b/z.txt": b"one"}
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    for _ in range(2):  # the second time there is nothing to do
        store_once(tmp_path, "*.bin")
        assert {n: (tmp_path / n).read_bytes() for n in contents} == contents
        assert (tmp_path / "a/x.bin").samefile(tmp_path / "b/x.bin")
        assert len({(tmp_path / n).stat().st_ino for n in contents}) == 3  # text was not asked for
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 4
    with replacing(tmp_path / "a/x.bin") as file:  # a name that is replaced leaves the other
        file.write(b"new")
    assert (tmp_path / "b/x.bin").read_bytes() == b"one"


def test_a_disk_without_links_keeps_the_copies(tmp_path, monkeypatch):
    def refused(*names):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refused)
    for name in ("x", "y"):
        (tmp_path / name).write_bytes(b"same")
    store_once(tmp_path, "*")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"x": b"same", "y": b"same"}


def count_up(folder, times):
    for _ in range(times):
        with locked(folder):
            number = int((folder / "number").read_text())
            (folder / "number").write_text(str(number + 1))


def test_one_process_at_a_time_works_in_a_locked_folder(tmp_path):
    (tmp_path / "number").write_text("0")
    workers = [processes.Process(target=count_up, args=(tmp_path, 50)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (tmp_path / "number").read_text() == "200"
    assert [p.name for p in tmp_path.iterdir()] == ["number"]  # no file of the lock is left


def hold(path, box):
    lock = take_lock(path)
    box.put(lock is not None)
    signal.pause()


def test_a_lock_goes_with_its_process_even_if_it_is_killed(tmp_path):
    box = processes.Queue()
    holder = processes.Process(target=hold, args=(tmp_path / "lock", box), daemon=True)
    holder.start()
    assert box.get()
    assert take_lock(tmp_path / "lock") is None
    assert take_lock(tmp_path / "lock", patience=0.05) is None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert take_lock(tmp_path / "lock", patience=30) is not None


def test_a_lock_that_is_forgotten_is_free(tmp_path):
    lock = take_lock(tmp_path / "lock")
    assert take_lock(tmp_path / "lock") is None
    lock.close()
    assert take_lock(tmp_path / "lock") is not None

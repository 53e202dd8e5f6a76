import pytest

from konsil.files import remove_parts, replacing, write_text


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

"""Hostile uploads: each is refused within the limits, and the server is as well as before."""

import contextlib
import gzip
import os
import signal
import socket
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest
from PIL import Image

from konsil.serve.limits import MB
from konsil.serve.server import Address, bound
from tests.data.volume_files import grid, noise, write_nifti, write_series
from tests.serve.conftest import PATIENCE, serving, uploads

UPLOAD_MB, MEMORY_MB, SECONDS = 20, 700, 20


@pytest.fixture(scope="module")
def limited(model):
    options = "--upload", UPLOAD_MB, "--memory", MEMORY_MB, "--seconds", SECONDS
    with serving(model, "--workers", 1, "--waiting", 3, *options) as server:
        yield server


def well(server, ward):
    """It answers as it should."""
    until = time.monotonic() + PATIENCE
    while server.client.get("/api/health").json()["status"] != "ok":
        assert time.monotonic() < until
        time.sleep(0.1)
    return server.predict(ward / "photo.png").status_code == 200


def png(width, height, data=b""):
    """A PNG that claims to be so large."""

    def chunk(name, body):
        check = struct.pack(">I", zlib.crc32(name + body))
        return struct.pack(">I", len(body)) + name + body + check

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def nifti_bomb(folder):
    """A few kilobytes that claim 10 GB, and have a few GB of zeros packed into them."""
    path = write_nifti(folder / "small.nii", np.zeros((2, 2, 2), np.int16), grid()[1])
    head = bytearray(path.read_bytes()[:352])
    head[40:56] = struct.pack("<8h", 3, 2000, 2000, 1250, 1, 1, 1, 1)
    path.unlink()
    bomb = folder / "bomb.nii.gz"
    with gzip.open(bomb, "wb", compresslevel=9) as file:
        file.write(bytes(head))
        for _ in range(2000):
            file.write(bytes(MB))
    return bomb


def hostile(folder):
    """Name, files."""
    big = folder / "big.png"
    big.write_bytes(png(60_000, 60_000, zlib.compress(bytes(60_000))))
    bomb = folder / "bomb.png"
    bomb.write_bytes(png(13_000, 13_000, zlib.compress(bytes(13_000 * 13_001), 9)))
    cut = folder / "cut.nii.gz"
    cut.write_bytes(
        write_nifti(folder / "v.nii.gz", noise((20, 24, 9)), grid()[1]).read_bytes()[:900]
    )
    (folder / "text.png").write_bytes(b"<html>not a picture</html>")
    (folder / "empty.nii").write_bytes(b"")
    series = write_series(folder / "T2", noise((20, 24, 2)), grid()[1], SeriesNumber=1)
    one = sorted(series.iterdir())[0]
    data = bytearray(one.read_bytes())
    data[200:600] = os.urandom(400)
    (folder / "torn.dcm").write_bytes(data)
    (folder / "huge.nrrd").write_bytes(
        b"NRRD0004\ntype: short\ndimension: 3\nsizes: 30000 30000 900\nencoding: raw\n"
        b"endian: little\nspace: left-posterior-superior\n"
        b"space directions: (1,0,0) (0,1,0) (0,0,1)\nspace origin: (0,0,0)\n\n" + bytes(100)
    )
    nifti_bomb(folder)
    return ("big.png", "bomb.png", "cut.nii.gz", "text.png", "empty.nii", "torn.dcm",
            "huge.nrrd", "bomb.nii.gz")  # fmt: skip


def test_hostile_files_are_refused_and_leave_nothing(limited, ward, tmp_path):
    names = hostile(tmp_path)
    for name in names:  # whatever opens such files is loaded now
        refused(limited, tmp_path / name)
        assert well(limited, ward), name
    before = limited.memory()
    for name in names:
        refused(limited, tmp_path / name)
    assert well(limited, ward)
    assert limited.memory() < before + 60 * MB


def refused(server, file):
    """In a sentence, in time, and without a word about the server."""
    began = time.monotonic()
    answer = server.predict(file)
    allowed = {413, 422, 503}
    assert answer.status_code in allowed, (file.name, answer.text)
    assert time.monotonic() - began < SECONDS + 10, file.name
    assert "Traceback" not in answer.text
    assert "/tmp" not in answer.text, file.name


def test_memory_has_a_limit(limited, ward, tmp_path):
    """A picture within Pillow's own limit that would take a gigabyte as numbers."""
    Image.new("RGB", (13_000, 13_000)).save(tmp_path / "wide.png")
    answer = limited.predict(tmp_path / "wide.png", include=["images", "overlays"])
    assert answer.status_code == 413, answer.text
    assert "memory" in answer.json()["detail"]
    assert well(limited, ward)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a\\b.png", ".hidden.png", "x" * 300 + ".png"]
)
def test_a_path_is_no_name(limited, ward, name):
    data = (ward / "photo.png").read_bytes()
    answer = limited.client.post("/api/predict", files=[("files", (name, data))])
    assert answer.status_code == 400
    assert "must be plain" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"{}", "application/json"),
        (b"\x00" * 1000, "multipart/form-data"),
        (b"--x\r\nbroken", "multipart/form-data; boundary=x"),
        (b"hello", "text/plain"),
    ],
)
def test_another_content_type_is_refused(limited, content, kind):
    answer = limited.client.post("/api/predict", content=content, headers={"content-type": kind})
    assert answer.status_code in (400, 415, 422)
    assert answer.json()["detail"]


def test_what_claims_to_be_large_is_refused_before_it_comes(limited):
    answer = said(limited, b"Content-Length: 10000000000\r\n", b"")
    assert b" 413 " in answer.splitlines()[0]


def test_what_grows_without_saying_so_is_cut_off(limited):
    """Chunks without a length in advance: cut off where the limit is."""
    part = b"--x\r\nContent-Disposition: form-data; name=files; filename=a.png\r\n\r\n"
    chunk = bytes(MB)
    body = b"%x\r\n%s\r\n" % (len(part), part)
    body += (b"%x\r\n%s\r\n" % (len(chunk), chunk)) * (UPLOAD_MB + 2)
    answer = said(limited, b"Transfer-Encoding: chunked\r\n", body)
    assert b" 413 " in answer.splitlines()[0]


def said(server, header, body):
    """What the server says to a request of bytes."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE) as line:
        head = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        kind = b"Content-Type: multipart/form-data; boundary=x\r\n"
        line.sendall(head + kind + header + b"\r\n")
        with contextlib.suppress(ConnectionError):  # it has heard enough
            line.sendall(body)
        found = b""
        while b"\r\n\r\n" not in found:
            more = line.recv(1 << 16)
            if not more:
                break
            found += more
        return found


def test_too_many_at_once_are_sent_away(limited, ward):
    def one(_):
        return limited.predict(ward / "v.nii.gz").status_code

    with ThreadPoolExecutor(100) as crowd:
        found = list(crowd.map(one, range(100)))
    assert set(found) <= {200, 503}
    assert found.count(200) >= 4  # those who found room
    assert well(limited, ward)


def test_who_takes_too_long_is_ended_and_replaced(model, ward):
    with serving(model, "--workers", 1, "--seconds", 2) as server:
        assert well(server, ward)
        worker = server.workers()[0]
        os.kill(worker, signal.SIGSTOP)
        answer = server.predict(ward / "photo.png")
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert "more than 2 s" in answer.json()["detail"]
        assert not psutil.pid_exists(worker)
        assert well(server, ward)
        os.kill(server.workers()[0], signal.SIGKILL)
        died = server.predict(ward / "photo.png")
        assert died.status_code == 422
        assert "is it damaged" in died.json()["detail"]
        assert well(server, ward)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 130  # as shells have it


def test_nothing_is_kept(model, ward, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    with serving(model, "--workers", 1, TMPDIR=str(kept)) as server:
        server.predict(ward / "v.nii.gz", include=["mask"])
        server.client.post("/api/predict", files=uploads(ward / "v.nii.gz"), data={"ask": "nobody"})
        left = [path for path in kept.rglob("*") if path.is_file()]
        assert left == []
        home = next(kept.glob("konsil-serve-*"))
        assert home.stat().st_mode & 0o777 == 0o700
    assert list(kept.iterdir()) == []


def test_strangers_need_a_token(model, ward, tmp_path):
    file = tmp_path / "token"
    file.write_text("open sesame\n")
    with serving(model, "--workers", 1, "--token-file", file) as server:
        assert server.token == "open sesame"
        assert server.client.get("/").status_code == 200
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic open sesame"},
        ):
            refused = server.client.get("/api/models", headers=headers)
            assert refused.status_code == 401
            assert server.client.post("/api/predict", headers=headers).status_code == 401
            assert server.client.get("/info/", headers=headers).status_code == 401
        known = {"authorization": "Bearer open sesame"}
        assert server.client.get("/api/models", headers=known).status_code == 200
        answer = server.client.post(
            "/api/predict", files=uploads(ward / "photo.png"), headers=known
        )
        assert answer.status_code == 200


def test_beyond_this_machine_a_token_is_made(model):
    with serving(model, "--workers", 1, "--host", "0.0.0.0") as server:
        assert len(server.token) > 20
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert server.client.get(f"{url}/api/models").status_code == 401


def test_pages_of_others_may_not_ask(served):
    for headers, status in (
        ({"host": "evil.example"}, 400),
        ({"origin": "http://evil.example"}, 403),
        ({"host": "localhost"}, 200),
        ({"origin": served.url}, 200),
    ):
        assert served.client.get("/api/models", headers=headers).status_code == status
    policy = served.client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy


def test_an_answer_does_not_wait_for_the_client_to_confirm_its_head():
    """Without TCP_NODELAY every answer takes 40 ms longer; who is accepted inherits it."""
    with bound(Address(port=0)) as listener:
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

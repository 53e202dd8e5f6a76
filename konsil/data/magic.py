"""What a file is by its first bytes, whatever its name says."""

from __future__ import annotations

# Where a mark stands, the mark, and what it means. Web pages and pointers are what a download
# leaves that went wrong.
MARKS = (
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (0, b"\xff\xd8\xff", "JPEG"),
    (0, b"BM", "BMP"),
    (0, b"II*\x00", "TIFF"),
    (0, b"MM\x00*", "TIFF"),
    (0, b"GIF8", "GIF"),
    (8, b"WEBP", "WebP"),
    (4, b"ftypheic", "HEIC"),
    (4, b"ftypavif", "AVIF"),
    (0, b"\x00\x00\x00\x0cjP", "JPEG 2000"),
    (0, b"%PDF", "PDF"),
    (128, b"DICM", "DICOM"),
    (344, b"n+1\x00", "NIfTI"),
    (0, b"NRRD", "NRRD"),
    (0, b"\x1f\x8b", "gzip"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"version https://git-lfs", "a pointer of Git LFS"),
    (0, b"<!DOCTYPE", "a web page"),
    (0, b"<html", "a web page"),
    (0, b"\x93NUMPY", "a NumPy array"),
)


def what_it_is(data: bytes) -> str | None:
    """The format of a file that begins like this, if it is one that people mix up."""
    for start, mark, name in MARKS:
        if data[start : start + len(mark)] == mark:
            return name
    return None

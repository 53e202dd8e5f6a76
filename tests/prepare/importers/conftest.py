"""Miniatures that several tests import."""

from pathlib import Path

import numpy as np
import pytest

from tests.prepare.importers.miniatures import Download, rim_and_cup


@pytest.fixture
def download(tmp_path: Path) -> Download:
    return Download(tmp_path)


@pytest.fixture
def refuge(download: Download) -> Download:
    """REFUGE with four training pictures, three to validate and three to test."""
    for part, folder, masks, names in (
        ("Training400/Glaucoma", "Annotation-Training400", "Glaucoma", ["g0001", "g0002"]),
        ("Training400/Non-Glaucoma", "Annotation-Training400", "Non-Glaucoma", ["n0001", "n0002"]),
        ("REFUGE-Validation400", "REFUGE-Validation400-GT", ".", ["V0001", "V0002", "V0003"]),
        ("Test400", "REFUGE-Test-GT", "G", ["T0001", "T0002", "T0003"]),
    ):
        for name in names:
            download.picture(f"{part}/{name}.jpg")
            values = np.array([255, 128, 0], np.uint8)[rim_and_cup()]
            download.write(f"{folder}/Disc_Cup_Masks/{masks}/{name}.bmp", values)
    return download

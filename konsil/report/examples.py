"""A few test images of a finished run as files, to ask its super model about."""

import shutil
from pathlib import Path

from konsil.config import Experiment
from konsil.data import open_federation
from konsil.data.origin import find_source
from konsil.files import replacing

A_SITE = 2  # images


def write_examples(experiment: Experiment, folder: Path) -> None:
    """Copies of the first test images of every site, as their files are."""
    root = find_source(experiment.federation, experiment.task).root
    federation = open_federation(experiment.federation, experiment.task)
    for site in federation.sites:
        tests = [one for one in federation.items if (one.site, one.split) == (site, "test")]
        for number, item in enumerate(tests[:A_SITE], 1):
            file = root / item.image
            with replacing(folder / f"{site}-{number}{file.suffix}") as copy, open(file, "rb") as f:
                shutil.copyfileobj(f, copy)

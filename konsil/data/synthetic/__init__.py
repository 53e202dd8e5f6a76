"""Three built-in federations, painted rather than photographed, written as ordinary folders.

Nobody's images, and yet every site is a plausible hospital: docs/synthetic.md states the model and
each site's parameters. Picture i of a site is the same whatever else is written.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from konsil.data.synthetic import pathology, prostate, retina
from konsil.data.synthetic.brush import Bytes
from konsil.errors import DataError

_PATIENT_AND_NUMBER = r"^(.+)_\d+$"


@dataclass(frozen=True)
class SyntheticFederation:
    """What an experiment needs to know about a built-in federation."""

    name: str
    images: dict[str, int]  # site -> default number of images (prostate: of patients)
    channels: int
    structures: dict[str, list[int]] | None  # structure -> its mask values
    classes: list[str] | None
    patient_pattern: str | None  # on a file's stem, group 1 = patient; None: an image, a patient
    # The files of item `index` of a site: path below the site's folder, picture.
    paint: Callable[[str, int], Iterator[tuple[str, Bytes]]]


FEDERATIONS: dict[str, SyntheticFederation] = {
    "retina": SyntheticFederation(
        name="retina",
        images={name: site.images for name, site in retina.SITES.items()},
        channels=3,
        structures={"disc": [retina.RIM, retina.CUP], "cup": [retina.CUP]},
        classes=None,
        patient_pattern=None,
        paint=retina.files,
    ),
    "prostate": SyntheticFederation(
        name="prostate",
        images={name: site.images for name, site in prostate.SITES.items()},
        channels=1,
        structures={"prostate": [prostate.PROSTATE]},
        classes=None,
        patient_pattern=_PATIENT_AND_NUMBER,
        paint=prostate.files,
    ),
    "pathology": SyntheticFederation(
        name="pathology",
        images={name: site.images for name, site in pathology.SITES.items()},
        channels=3,
        structures=None,
        classes=pathology.CLASSES,
        patient_pattern=_PATIENT_AND_NUMBER,
        paint=pathology.files,
    ),
}


def _counts(federation: SyntheticFederation, images: dict[str, int] | None) -> dict[str, int]:
    counts = federation.images if images is None else images
    for site, count in counts.items():
        if site not in federation.images:
            known = ", ".join(federation.images)
            raise DataError(f"synthetic {federation.name} has no site {site!r}; it has {known}")
        if count < 1:
            raise DataError(
                f"synthetic {federation.name}, site {site!r}: {count} images asked for; "
                "give at least 1, or leave the site out"
            )
    return counts


def write_federation(name: str, folder: Path, images: dict[str, int] | None = None) -> None:
    """Write a built-in federation as a folder federation, one folder a site.

    A site holds `images/` and `masks/` with equal stems, or one folder a class. `images` gives
    the number of images (prostate: patients) of the sites wanted; default: every site, as built in.
    """
    if name not in FEDERATIONS:
        raise DataError(f"no synthetic federation {name!r}; there are {', '.join(FEDERATIONS)}")
    federation = FEDERATIONS[name]
    counts = _counts(federation, images)
    # The pictures' matrices are small: more BLAS threads cost time and could change last bits.
    with threadpool_limits(1, user_api="blas"):
        for site, count in counts.items():
            for index in range(count):
                for path, picture in federation.paint(site, index):
                    target = folder / site / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(picture).save(target, compress_level=1)

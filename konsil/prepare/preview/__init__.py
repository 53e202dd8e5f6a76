"""`konsil data preview`: one page that shows what training will see, and how sites differ."""

from collections.abc import Sequence
from pathlib import Path

from konsil.errors import DataError
from konsil.files import write_text
from konsil.prepare.check import check_federation
from konsil.prepare.check.look import Report
from konsil.prepare.preview.page import render
from konsil.prepare.preview.sheets import draw_sheets
from konsil.prepare.preview.shift import measure_shift

__all__ = ["write_preview"]


def write_preview(
    path: Path,
    out: Path,
    sites: Sequence[str] | None = None,
    images: int = 24,
    seed: int = 0,
    report: Report | None = None,
) -> Path:
    """Write one HTML file about a federation file (or the one in a folder); where it was written.

    `images` pictures of each site are shown, chosen by `seed`. `report(what, done, total)` is
    called as files are opened. The page holds images of patients, but no file name and no id.
    Raises DataError if there is nothing to show.
    """
    result = check_federation(path, sites, report)
    if not result.seen:
        reasons = "; ".join(problem.what for problem in result.errors) or "no images"
        raise DataError(f"{path}: nothing to show: {reasons}. `konsil data check` says more")
    shift = measure_shift(result.seen, seed)
    try:
        write_text(out, render(result, shift, draw_sheets(result, images, seed, report)))
    except OSError as error:
        raise DataError(
            f"{out}: cannot be written ({error.strerror}); choose another place by --out"
        ) from None
    return out

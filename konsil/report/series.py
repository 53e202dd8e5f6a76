"""What tables and figures compare: a method's answers in one role, and their mean over seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import stdev

from konsil.evaluation.results import Row, Series

YARDSTICK = "centralized"  # the role that needs pooled images: shown, but not in the competition
ALONE = "local"  # the role that needs no federation at all
METRIC_NAMES = {
    "dice": "Dice",
    "volume_dice": "volume Dice",
    "auc": "AUC",
    "hd95": "95 % Hausdorff distance",
    "surface_dice": "surface Dice",
    "f1": "F1",
}


def metric_name(metric: str) -> str:
    """A metric as people write it; `dice_cup` is the Dice of the cup."""
    known = next((n for n in METRIC_NAMES if metric == n or metric.startswith(f"{n}_")), "")
    rest = metric.removeprefix(known).replace("_", " ").strip()
    return f"{METRIC_NAMES.get(known, '')} {rest}".strip()


def capital(metric: str) -> str:
    """Its name where a sentence or a title begins."""
    name = metric_name(metric)
    return name[:1].upper() + name[1:]


@dataclass(frozen=True)
class Estimate:
    """The values of all seeds and the 95 % confidence interval of their mean."""

    by_seed: dict[int, float]

    @property
    def values(self) -> list[float]:
        """The numbers themselves, one a seed."""
        return list(self.by_seed.values())

    @property
    def mean(self) -> float:
        """The mean over all seeds."""
        return sum(self.values) / len(self.values)

    @property
    def half_width(self) -> float | None:
        """t(0.975, n - 1) s / sqrt(n), Student's interval of the mean; one seed has none."""
        n = len(self.by_seed)
        if n == 1:
            return None
        # Here and not above: a tenth of a second of import that one seed does not need.
        from scipy.special import stdtrit

        return float(stdtrit(n - 1, 0.975)) * stdev(self.values) / sqrt(n)

    @property
    def short(self) -> str:
        """The mean as a text, without its interval."""
        return f"{self.mean:.3f}"

    @property
    def full(self) -> str:
        """The mean with its interval."""
        half_width = self.half_width
        return self.short if half_width is None else f"{self.short} ± {half_width:.3f}"


Estimates = dict[Series, dict[str, Estimate]]  # a site, client_average or global -> estimate


def estimates_of(rows: Iterable[Row], metric: str, split: str, columns: Sequence[str]) -> Estimates:
    """The lines in the order of the rows; a column without a value is left out."""
    values: dict[Series, dict[str, dict[int, float]]] = {}
    for row in rows:
        if (row.metric, row.split) == (metric, split):
            cells = values.setdefault(Series(row.method, row.role), {})
            cells.setdefault(row.site, {})[row.seed] = row.value
    return {
        series: {c: Estimate(cells[c]) for c in columns if c in cells}
        for series, cells in values.items()
    }

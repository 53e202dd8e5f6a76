"""What must hold for every method of the registry, whoever adds one."""

from collections.abc import Callable

import pytest

from konsil.ingredients.method import METHODS
from konsil.testing import CHECKS, Trial
from konsil.testing.checks import ROUNDS, SITES

NAMES = sorted(METHODS.all())
SETTINGS = {
    "fedsoup": {"start": 0.3},  # early enough for a soup in a short run
}
Trials = Callable[[str], Trial]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    """method -> its trial: what checks share is trained once."""
    folder, made = tmp_path_factory.mktemp("trials"), {}

    def of(name: str) -> Trial:
        if name not in made:
            made[name] = Trial(name, folder, SETTINGS.get(name))
        return made[name]

    return of


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", NAMES)
def test_every_method(trial: Trials, name: str, check: str):
    CHECKS[check](trial(name))


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_the_experiments_learning_rate(trial: Trials, name: str):
    """Whatever is not the selector's. A plugin's definition may want another."""
    method = trial(name).method
    learners = [t for t in method.networks().values() if t.spec == method.context.network]
    assert [t.lr for t in learners] == [None] * len(learners) != []


def test_batches_are_compared_in_every_round_of_every_site(trial: Trials):
    seen = trial("fedavg").reference.batches
    assert set(seen) == {(site, number) for site in SITES for number in range(1, ROUNDS + 1)}
    assert len(set(seen.values())) == len(seen)

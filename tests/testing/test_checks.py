"""The checks of `konsil.testing` find what they are about, and let nothing else fail."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from konsil import Method, MethodSettings, Parts, Site, Upload, Weights, method, testing
from konsil.errors import ConfigError
from konsil.ingredients.method import METHODS


class Settings(MethodSettings):
    mistake: Literal[
        "none", "stands still", "remembers", "favours the first", "constant", "picky",
        "own start", "few batches", "one task",
    ] = "none"  # fmt: skip


class Mistaken(Method):
    """FedAvg, but for one mistake."""

    Settings = Settings

    def start(self) -> dict[str, Weights]:
        usual = super().start()
        return {"global": usual["global"] * 0.5} if self.has("own start") else usual

    def has(self, mistake: str) -> bool:
        return self.settings.mistake == mistake

    def local(self, site: Site, shared: Parts) -> Upload:
        w = self.trained(site, shared)
        calls = self.calls = getattr(self, "calls", 0) + 1  # what lasts on the method object
        if self.has("stands still"):
            w = shared["global"]
        if self.has("constant"):
            w = Weights.zeros(w.layout)
        if self.has("remembers") or (self.has("favours the first") and calls % 2):
            w = w * (1 + 1e-3 * calls)
        if self.has("picky") and site.notes.get("round", 0) != site.round - 1:
            raise RuntimeError("it was away")
        site.notes["round"] = site.round
        return Upload().add("global", w, weight=site.images)

    def trained(self, site: Site, shared: Parts) -> Weights:
        model = site.learner("global", shared["global"])
        if self.has("one task") and site.task.name != "segmentation":
            raise RuntimeError("masks only")
        if not self.has("few batches"):
            return site.train(model).weights()
        for x, y in list(site.batches())[:1] if site.round > 1 else site.batches("mine"):
            model.step(site.task.loss(model(x), y))
        return model.weights()


@pytest.fixture(scope="module", autouse=True)
def mistaken() -> Iterator[None]:
    method("mistaken", paper="none")(Mistaken)
    yield
    METHODS.remove("mistaken")


@pytest.mark.parametrize(
    ("check", "mistake", "words"),
    [
        ("learns", "stands still", "global does not learn"),
        ("resumes", "remembers", "resumed, a run gives other bits"),
        ("another_seed", "constant", "another seed gives the same bits"),
        ("any_order", "favours the first", "replies in another order give other bits"),
        ("missing_site", "picky", "it was away"),
        ("one_site", "one task", "masks only"),
        ("equal_start", "own start", "global begins with other weights"),
        ("equal_batches", "few batches", "trains on other batches than FedAvg"),
    ],
)
def test_a_mistake_is_found_by_the_check_that_is_about_it(check: str, mistake: str, words: str):
    with pytest.raises((AssertionError, RuntimeError), match=words):
        testing.check_method("mistaken", only=[check], mistake=mistake)
    assert testing.check_method("mistaken", only=[check]) == [check]


def test_every_method_of_a_file_is_checked(tmp_path: Path):
    file = tmp_path / "two.py"
    local = "    def local(self, site, shared):\n        raise RuntimeError(self.name)\n"
    file.write_text(
        "from konsil import Method, method\n"
        "@method('checked-first', paper='none')\n"
        "class First(Method):\n    def start(self):\n        return super().start()\n" + local +
        "@method('checked-second', paper='none')\n"
        "class Second(First):\n    def start(self):\n"
        "        return {'global': super().start()['global'] * 0}\n"
    )  # fmt: skip
    with pytest.raises(AssertionError, match="checked-second: global begins with other weights"):
        testing.check_method(file, only=["equal_start"])
    for name in ("checked-first", "checked-second"):
        METHODS.remove(name)


def test_an_unknown_method_is_refused_by_name():
    with pytest.raises(ConfigError, match="unknown method 'fedmagic'"):
        testing.check_method("fedmagic", only=["equal_start"])
    with pytest.raises(ConfigError, match=r"no_such\.py: no such plugin file"):
        testing.check_method("no_such.py")


def test_the_linear_federations_are_the_packages_own_arithmetic():
    """One SGD step of a model of three numbers at each of two sites, by hand."""
    data = {"a": testing.points([[255, 0]], [1]), "b": testing.points([[0, 255]], [0])}
    federation = testing.Linear("fedavg", data)
    after = federation.round({"global": federation.weights(0.5, -0.5, 0.1)})["global"]
    # a: error 0.6 - 1 = -0.4, gradient 2 * -0.4 * (1, 0, 1); b: error -0.4, gradient (0, 1, 1)
    expected = [0.5 + 0.1 * 0.8 / 2, -0.5 + 0.1 * 0.8 / 2, 0.1 + 0.1 * 0.8]
    assert after.flat.tolist() == pytest.approx(expected, rel=1e-6)

"""What `konsil methods` says of a method is what the method says of itself."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pydantic import Field
from rich.console import Console

from konsil.errors import ConfigError
from konsil.ingredients.context import MethodSettings, TrainedNetwork, Upload
from konsil.ingredients.method import METHODS, Method, method
from konsil.report.method_facts import facts_of, listing
from konsil.report.methods import known_listing, print_methods, sources_hash


@pytest.fixture
def odd() -> Iterator[type[Method]]:
    """A method that shows every kind of setting, and cannot be made without one of them."""

    class OddSettings(MethodSettings):
        """Nothing is FedAvg."""

        must: int = Field(ge=1, le=9)
        lambda_: float | None = Field(None, alias="lambda", gt=0, description="the same as lr")
        names: list[str] = Field(default_factory=lambda: ["a"], description="of friends")
        switch: bool = True

    @method("odd", paper="nobody, 2024")
    class Odd(Method):
        """An odd method.

        With a second paragraph.
        """

        Settings = OddSettings
        needs = "individual"
        travels = "three times as much in the last round"

        def networks(self) -> dict[str, TrainedNetwork]:
            return {"global": TrainedNetwork(self.context.network, "average")}

        def work(self) -> float:
            return 5 / 3

        def local(self, site, shared):
            return Upload()

    yield Odd
    METHODS.remove("odd")


def printed(capsys: pytest.CaptureFixture[str], *arguments, width: int = 80) -> str:
    print_methods(Console(width=width), *arguments, plugged=arguments[:1] == ("odd",))
    return capsys.readouterr().out


def test_every_method_is_listed_within_80_columns(capsys):
    text = printed(capsys)
    for name, cls in METHODS.all().items():
        assert re.search(rf"^{re.escape(name)} ", text, re.MULTILINE)
        assert cls.paper in text
        for key, field in cls.Settings.model_fields.items():
            assert f"  {field.alias or key} = " in text
    assert max(map(len, text.splitlines())) <= 80


def test_traffic_and_work_are_computed():
    fedavg = facts_of(METHODS.all()["fedavg"])
    assert (fedavg.gets, fedavg.sends, fedavg.work) == (1, 1, 1)
    local = facts_of(METHODS.all()["local"])
    assert (local.gets, local.sends, local.work) == (0, 0, 1)
    pooled = facts_of(METHODS.all()["centralized"])
    assert (pooled.gets, pooled.sends, pooled.needs) == (None, None, "images")
    fedsm = facts_of(METHODS.all()["fedsm"])
    assert (fedsm.gets, fedsm.sends) == (2, 2)  # two models; the selector is solved after training
    assert fedsm.models == ["global", "personal", "super"]


def test_moments_that_travel_are_counted(odd):
    odd.Settings = MethodSettings
    facts = facts_of(odd)
    assert facts.gets == facts.sends == pytest.approx(3, abs=0.01)  # Adam has two moments
    assert facts.work == 5 / 3


def test_the_kinds_of_settings(odd, capsys):
    text = printed(capsys, "odd")
    for words in (
        "odd: nobody, 2024",
        "With a second paragraph.",
        "What `konsil methods` says of a method is what the method says of itself.",
        "each model",
        "odd: three times as much in the last round",
        "must: missing",  # its numbers need the setting
        "Nothing is FedAvg.",
    ):
        assert words in text
    grid = [" ".join(line.split()) for line in text.splitlines()]
    assert "must = (required) a whole number from 1 to 9" in grid
    assert "lambda = null above 0; null: the same as lr" in grid
    assert 'names = ["a"] a list; of friends' in grid
    assert "switch = true true, false" in grid


def test_literal_values_and_aliases_are_shown(capsys):
    text = printed(capsys, "fedprox")
    assert re.search(r"coupling = coupled +coupled, decoupled", text)
    assert "h_k(w; w_g) = F_k(w) + (mu / 2) ||w - w_g||^2" in " ".join(text.split())
    assert re.search(r"lambda = 0\.1 +at least 0", printed(capsys, "ditto"))


def test_json_is_for_machines(capsys):
    found = {f["name"]: f for f in json.loads(printed(capsys, None, True, width=20))}
    assert list(found) == list(METHODS.all())
    assert found["fedavg"]["gets"] == 1
    [setting] = found["fedavg"]["settings"]
    assert setting["default"] == "persist"
    assert setting["allowed"] == "persist, reset, average"
    [one] = json.loads(printed(capsys, "fedsm", True))
    assert one == found["fedsm"]


def test_what_was_said_once_is_known(tmp_path):
    """The second time no library that trains is imported, and all is as it was."""
    code = """
import sys
from rich.console import Console
from konsil.report.methods import print_methods
for arguments in ([None], [None, True], ["fedsm"]):
    print_methods(Console(width=80), *arguments)
print(sorted({"torch", "numpy"} & set(sys.modules)), file=sys.stderr)
"""
    environment = {**os.environ, "KONSIL_CACHE": str(tmp_path)}
    done = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        for _ in range(2)
    ]
    assert [d.stderr.strip() for d in done] == ["['numpy', 'torch']", "[]"]
    assert done[0].stdout == done[1].stdout


def test_the_cache_is_asked_for_these_very_sources(tmp_path, monkeypatch):
    monkeypatch.setenv("KONSIL_CACHE", str(tmp_path))
    known = known_listing()
    assert known == listing()
    [file] = (tmp_path / "methods").iterdir()
    assert file.stem == sources_hash()
    file.write_text("{ torn")
    assert known_listing() == known  # asked again, and written again
    assert json.loads(file.read_text())["size"] == known.size
    monkeypatch.setattr("konsil.report.methods.LIBRARIES", ("torch",))
    assert sources_hash() != file.stem


def test_an_unknown_method_is_refused_by_name(capsys):
    with pytest.raises(ConfigError, match="unknown method 'fedavk'"):
        printed(capsys, "fedavk")

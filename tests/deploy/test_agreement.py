"""Server and sites come to one plan, and train like any other run."""

import hashlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import direct
import pytest
import torch
from deployments import in_process, weights_at_the_server

from konsil import __version__
from konsil.deploy.coordinator import coordinate, without_places
from konsil.deploy.policy import Policy, fewest_in_a_mean, read_policy
from konsil.deploy.site_client import SiteClient
from konsil.errors import ConfigError, KonsilError, RoundFailed, RunError
from konsil.evaluation.scores import read_scores
from konsil.federation.messages import Reply
from konsil.federation.runner import read_plan
from konsil.ingredients.method import METHODS
from konsil.networks import NetworkSpec, build_network
from konsil.registry import PREFIX, REGISTRIES
from konsil.report.figures import draw_figures
from konsil.weights import Weights

SITES = ["north", "south"]


def what_all_know(facts: dict) -> dict:
    """Of model.json what a run between hospitals says like one in a process.

    A plan's fingerprint is there of every site's own, and sites' models may stay with them.
    """
    stays = ("plan", "files", "withheld")
    return {key: value for key, value in facts.items() if key not in stays}


@pytest.mark.parametrize("method", ["fedavg", "fedsm", "fedsoup", "scaffold", "fedsm-extra"])
def test_the_same_bits_as_in_process(experiment, outlines, tmp_path, monkeypatch, method):
    if method == "fedsm":
        monkeypatch.setattr("konsil.deploy.coordinator.draw_figures", draw_figures)
    e = experiment(methods=[method], rounds=3, **outlines)
    direct.deploy(e, tmp_path, SITES)
    alone = in_process(e, tmp_path / "alone")
    assert (tmp_path / "run" / "results.csv").read_bytes() == (alone / "results.csv").read_bytes()
    assert weights_at_the_server(tmp_path / "run") == weights_at_the_server(alone)
    scores = [folder / "scores.parquet" for folder in (tmp_path / "run", alone)]
    assert scores[0].read_bytes() == scores[1].read_bytes()
    assert set(read_scores(scores[0]).column("patient").to_pylist()) == {0, 1, 2}
    for told in alone.rglob("model.json"):  # how its files are read, too
        there = json.loads((tmp_path / "run" / told.relative_to(alone)).read_text())
        here = json.loads(told.read_text())
        assert what_all_know(there) == what_all_know(here)
        cards = [(f / "MODEL_CARD.md").read_text().splitlines() for f in
                 (told.parent, tmp_path / "run" / told.relative_to(alone).parent)]  # fmt: skip
        if not there["withheld"]:
            here, there_ = ([line for line in card if "| plan |" not in line] for card in cards)
            assert here == there_
        assert there["withheld"] == ([] if method.startswith("fedsm") else list(SITES))
    assert json.loads((tmp_path / "run" / "outcome.json").read_text())["state"] == "finished"
    assert (tmp_path / "run" / "figures" / "curves.png").exists() == (method == "fedsm")
    for site in SITES:  # what a further round would have needed is gone, the site's model is not
        folder = tmp_path / "clients" / site
        assert not list(folder.rglob("state.safetensors"))
        if method in ("fedsm", "fedsoup"):
            assert list(folder.rglob("best/personal.safetensors"))


def test_classification_finds_the_classes_of_all_sites(experiment, tmp_path):
    e = experiment(methods=["fedavg"], rounds=1)
    direct.deploy(e, tmp_path, SITES)
    alone = in_process(e, tmp_path / "alone")
    assert (tmp_path / "run" / "results.csv").read_bytes() == (alone / "results.csv").read_bytes()


def test_a_run_goes_on_after_everybody_was_stopped(experiment, tmp_path):
    """The coordinator loses a site in round 2; new clients and a new coordinator go on."""
    e = experiment(methods=["fedsm"], rounds=3)
    link = direct.DirectLink(direct.clients(e, tmp_path, SITES))
    send = link.send

    def cut(topic, sites, message, deadline=None):
        requests = sum(topic == "request" for topic, *_ in link.passed)
        if topic == "request" and requests >= 6:
            link.gone = {"south"}
        yield from send(topic, sites, message, deadline)

    link.send = cut
    with pytest.raises(RoundFailed, match="south: not connected"):
        coordinate(without_places(e), SITES, link, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "outcome.json").read_text())["state"] == "waiting"
    direct.deploy(e, tmp_path, SITES)
    alone = in_process(e, tmp_path / "alone")
    assert weights_at_the_server(tmp_path / "run") == weights_at_the_server(alone)


def test_a_new_run_of_a_stopped_runs_plan(experiment, tmp_path):
    """The same experiment under another name begins anew; the stopped one goes on as it was."""
    e = experiment(methods=["fedsm"], rounds=3)
    link = direct.DirectLink(direct.clients(e, tmp_path, SITES))
    send = link.send

    def cut(topic, sites, message, deadline=None):
        if sum(topic == "request" for topic, *_ in link.passed) >= 8:
            link.gone = {"south"}
        yield from send(topic, sites, message, deadline)

    link.send = cut
    with pytest.raises(RoundFailed, match="south: not connected"):
        coordinate(without_places(e), SITES, link, tmp_path / "run")
    again = direct.DirectLink(link.clients)
    coordinate(without_places(e), SITES, again, tmp_path / "another")
    coordinate(without_places(e), SITES, again, tmp_path / "run")
    assert weights_at_the_server(tmp_path / "another") == weights_at_the_server(tmp_path / "run")


@pytest.mark.parametrize("method", ["fedsm", "fedsoup", "scaffold"])
def test_a_late_answer_is_an_absence(experiment, tmp_path, method):
    """South computes round 2, and its answer comes after the deadline: no trace of it is left."""
    e = experiment(methods=[method], rounds=4, server={"min_sites": 1, "deadline": 60})
    link = direct.DirectLink(direct.clients(e, tmp_path, SITES))
    send = link.send

    def slow(topic, sites, message, deadline=None):
        requests = sum(topic == "request" for topic, *_ in link.passed)
        link.slow = {"south"} if requests == 2 * len(SITES) else set()  # a question and an answer
        yield from send(topic, sites, message, deadline)

    link.send = slow
    coordinate(without_places(e), SITES, link, tmp_path / "run")
    absent = experiment(
        methods=[method], rounds=4, server={"min_sites": 1, "absences": {"south": [2]}}
    )
    alone = in_process(absent, tmp_path / "alone")
    assert weights_at_the_server(tmp_path / "run") == weights_at_the_server(alone)
    assert (tmp_path / "run" / "results.csv").read_bytes() == (alone / "results.csv").read_bytes()
    [late] = trail(tmp_path / "run", "too late")
    assert (late["site"], late["round"], late["kind"]) == ("south", 2, "round")


TEXTS = (".jsonl", ".json", ".yaml", ".csv", ".log")


@pytest.fixture
def named(shades, tmp_path):
    """The shades with telling names: every file is of a patient called Anna Mueller."""
    folder = tmp_path / "named"
    for path in shades.rglob("*.png"):
        copy = folder / path.relative_to(shades).with_name(f"Mueller_Anna_{path.name}")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return folder


def test_nothing_of_an_image_leaves(experiment, named, tmp_path):
    """No file's name, no patient, no path: neither in messages nor in the server's logs."""
    e = experiment(methods=["fedsm"], federation={"folder": str(named), "image_size": 32})
    link = direct.deploy(e, tmp_path, SITES)
    spoken = b"\n".join(payload for _, _, payload in link.passed)
    logs = b"\n".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.suffix in TEXTS)
    for secret in (b"Mueller", b"Anna", str(named).encode(), b".png"):
        assert secret not in spoken
        assert secret not in logs


def test_what_goes_wrong_at_a_site_stays_there(experiment, shades, tmp_path):
    """A damaged image: the server learns that the data cannot be opened, the site's log which."""
    broken = tmp_path / "broken"
    shutil.copytree(shades, broken)
    (broken / "south" / "ill" / "003.png").write_bytes(b"x")
    e = experiment(federation={"folder": str(broken), "image_size": 32})
    with pytest.raises(RoundFailed) as caught:
        direct.deploy(e, tmp_path, SITES)
    assert "south: its data cannot be opened; the details are in the site's own log" in str(
        caught.value
    )
    assert "003" not in str(caught.value)
    assert "003.png" in (tmp_path / "clients" / "south" / "audit.jsonl").read_text()
    assert "003.png" not in (tmp_path / "run" / "audit.jsonl").read_text()


BROKEN = {
    "slices": "sites: {north: {images: 'Mueller/*.png', labels: 'x/{}.png', slices: Mueller}}",
    "pattern": "sites: {north: {images: '*.png', labels: 'm/*.png', patient: '(Mueller'}}",
    "a way up": "sites: {north: {images: '../Mueller/*.png', labels: 'm/*.png'}}",
    "no images": "sites: {north: {images: 'Mueller/*.png', labels: 'm/*.png'}}",
    "another site": "sites: {Mueller: {images: '*.png', labels: 'm/*.png'}}",
    "a key": "sites: {north: {Mueller: 1}}",
    "half a file": "sites: [Mueller",
    "no file": None,
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("topic", ["greet", "open"])
def test_nothing_of_a_broken_federation_file_leaves(experiment, tmp_path, broken, topic):
    """Neither where it lies nor what stands in it; the site's own log has both."""
    study = tmp_path / "Mueller_study"
    study.mkdir()
    if BROKEN[broken] is not None:
        (study / "federation.yaml").write_text(BROKEN[broken])
    client = SiteClient("north", {"file": str(study)}, Policy(), tmp_path / "state")
    sent = {**without_places(experiment()), "federation": {"image_size": 32}}
    asked = {"experiment": sent, "version": __version__, "sites": SITES, "labels": ["disc"]}
    answer = client.answer(topic, json.dumps(asked).encode()).decode()
    assert answer[:1] == "R"
    assert answer.endswith("; the details are in the site's own log")
    for secret in ("Mueller", str(tmp_path), "federation.yaml", ".png"):
        assert secret not in answer
    assert "Mueller" in (tmp_path / "state" / "audit.jsonl").read_text()


def test_a_server_does_not_say_where_a_site_keeps_its_images(experiment, tmp_path):
    e = experiment()
    client = direct.clients(e, tmp_path, SITES)["north"]
    sent = without_places(e)
    sent["federation"] |= {"cache": str(tmp_path / "public"), "cache_limit": 1, "csv": "other.csv"}
    mine = client.data.experiment(sent, []).federation
    assert (mine.cache, mine.cache_limit, mine.csv) == (None, None, None)
    assert (mine.folder, mine.image_size) == (e.federation.folder, e.federation.image_size)
    answer = client.answer(
        "open", json.dumps({"experiment": sent, "labels": ["healthy", "ill"]}).encode()
    )
    assert answer[:1] == b"A"
    assert not (tmp_path / "public").exists()


def test_a_site_chooses_its_cache(experiment, shades, tmp_path):
    own = {"folder": str(shades), "cache": str(tmp_path / "mine")}
    client = SiteClient("north", own, Policy(), tmp_path / "state")
    mine = client.data.experiment(without_places(experiment()), [])
    assert mine.federation.cache == tmp_path / "mine"


# --- plugins ------------------------------------------------------------------------------------


PLUGIN = """
from konsil.ingredients.method import method
from konsil.methods.fedavg import FedAvg

@method("{name}", paper="nobody, 2024")
class Mine(FedAvg):
    pass
"""


@pytest.fixture
def plugins(tmp_path):
    """Two files with a method each; what is loaded is gone after the test."""
    folder = tmp_path / "secret-plugins"
    folder.mkdir()
    for name in ("wanted", "unwanted"):
        (folder / f"{name}.py").write_text(PLUGIN.format(name=name))
    yield folder
    forget_plugins()


def forget_plugins():
    for module in [m for m in sys.modules if m.startswith(PREFIX)]:
        for registry in REGISTRIES.values():
            registry.forget(module)
        del sys.modules[module]


def test_a_site_runs_the_plans_plugins_and_no_other(experiment, plugins, tmp_path):
    e = experiment(methods=["wanted"], rounds=1)
    wanted = plugins / "wanted.py"
    own = [plugins / "gone.py", plugins / "unwanted.py", wanted]
    link = direct.DirectLink(
        direct.clients(
            e, tmp_path, SITES, {"south": Policy(plugins=own), "north": Policy(plugins=[wanted])}
        )
    )
    coordinate(without_places(e), SITES, link, tmp_path / "run", plugins=[wanted])
    assert json.loads((tmp_path / "run" / "outcome.json").read_text())["state"] == "finished"
    assert "unwanted" not in METHODS.all()


@pytest.mark.parametrize("own", [[], ["unwanted.py"], ["gone.py"]])
def test_a_plugin_that_a_site_has_not_read_is_refused(experiment, plugins, tmp_path, own):
    e = experiment(methods=["wanted"], rounds=1)
    wanted = plugins / "wanted.py"
    policies = {"south": Policy(plugins=[plugins / name for name in own])}
    link = direct.DirectLink(
        direct.clients(e, tmp_path, SITES, {"north": Policy(plugins=[wanted])} | policies)
    )
    with pytest.raises(RoundFailed) as caught:
        coordinate(without_places(e), SITES, link, tmp_path / "run", plugins=[wanted])
    sha256 = hashlib.sha256(wanted.read_bytes()).hexdigest()
    assert (
        f"south: refused: method wanted: the plan has it from a plugin with the sha256 {sha256}"
        in str(caught.value)
    )
    assert "into `plugins` of the policy" in str(caught.value)
    assert "secret-plugins" not in str(caught.value)


TASK_AND_NETWORK = """
from torch import nn

from konsil.networks import network
from konsil.tasks import task
from konsil.tasks.segmentation import Segmentation

@task("mine")
class Mine(Segmentation):
    pass

@network("one-layer", segments=True)
def one_layer(in_channels, outputs):
    return nn.Conv2d(in_channels, outputs, 3, padding=1)
"""


class ForgetfulLink(direct.DirectLink):
    """Every site is asked in a process that has loaded nothing yet."""

    def send(self, topic, sites, message, deadline=None):
        for site in sites:
            if topic in ("greet", "open", "agree"):
                forget_plugins()
            yield from super().send(topic, [site], message, deadline)


def test_a_site_loads_the_task_before_it_looks_at_its_images(
    experiment, outlines, plugins, tmp_path
):
    file = plugins / "wanted.py"
    file.write_text(TASK_AND_NETWORK)
    mine = {"task": {"name": "mine"}, "network": {"name": "one-layer"}}
    e = experiment(rounds=1, **outlines | mine)
    policies = dict.fromkeys(SITES, Policy(plugins=[file]))
    link = ForgetfulLink(direct.clients(e, tmp_path, SITES, policies))
    forget_plugins()
    coordinate(without_places(e), SITES, link, tmp_path / "run", plugins=[file])
    assert json.loads((tmp_path / "run" / "outcome.json").read_text())["state"] == "finished"
    assert sorted(read_plan(tmp_path / "run")["plugins"]) == ["network one-layer", "task mine"]
    forget_plugins()
    link = ForgetfulLink(direct.clients(e, tmp_path / "other", SITES, {"north": policies["north"]}))
    with pytest.raises(RoundFailed, match=r"south: refused: (network|task) [\w-]+: the plan has"):
        coordinate(without_places(e), SITES, link, tmp_path / "again", plugins=[file])


# --- a pretrained start -------------------------------------------------------------------------


@pytest.fixture
def begins(tmp_path):
    """A file to begin with, which every party has under a name of its own."""
    torch.manual_seed(1234)
    own = {party: tmp_path / "secret-files" / f"{party}.safetensors" for party in (*SITES, "lead")}
    own["lead"].parent.mkdir()
    spec = NetworkSpec("small", 3, 2, 32, normalise=True)
    Weights.of(build_network(spec)).save(own["lead"])
    for site in SITES:
        shutil.copy(own["lead"], own[site])
    return own


def test_a_pretrained_start_gives_the_same_bits_as_in_process(experiment, begins, tmp_path):
    network = {"name": "small", "initial": str(begins["lead"])}
    e = experiment(methods=["local", "fedavg"], rounds=1, network=network)
    policies = {site: Policy(plugins=[tmp_path / "gone", begins[site]]) for site in SITES}
    link = direct.DirectLink(direct.clients(e, tmp_path, SITES, policies))
    sent = without_places(e)
    alone = in_process(e, tmp_path / "alone")
    server = begins["lead"].rename(tmp_path / "server.safetensors")
    coordinate(sent, SITES, link, tmp_path / "run", plugins=[server])
    assert (tmp_path / "run" / "results.csv").read_bytes() == (alone / "results.csv").read_bytes()
    assert weights_at_the_server(tmp_path / "run") == weights_at_the_server(alone)
    for _, _, message in link.passed:
        assert b"secret-files" not in message
        assert b"server.safetensors" not in message


@pytest.mark.parametrize("lacking", ["south", "server"])
def test_a_party_without_the_file_to_begin_with_says_so(experiment, begins, tmp_path, lacking):
    e = experiment(rounds=1, network={"name": "small", "initial": str(begins["lead"])})
    sent, sha256 = without_places(e), hashlib.sha256(begins["lead"].read_bytes()).hexdigest()
    if lacking in begins:
        (Weights.load(begins[lacking]) * 2.0).save(begins[lacking])
    policies = {site: Policy(plugins=[begins[site]]) for site in SITES}
    link = direct.DirectLink(direct.clients(e, tmp_path, SITES, policies))
    own = [] if lacking == "server" else [begins["lead"]]
    with pytest.raises(KonsilError) as caught:
        coordinate(sent, SITES, link, tmp_path / "run", plugins=own)
    assert f"network.initial: none of the files here has the sha256 {sha256}" in str(caught.value)
    assert ("south: refused" in str(caught.value)) == (lacking == "south")
    assert "north: refused" not in str(caught.value)
    assert "secret-files" not in str(caught.value)


SEGRESNET = {
    "target": "monai.networks.nets.SegResNet",
    "init_filters": 8,
    "blocks_down": [1, 1],
    "blocks_up": [1],
}


def test_a_network_by_its_path_is_trained_between_sites(experiment, outlines, tmp_path):
    e = experiment(rounds=1, **outlines | {"network": SEGRESNET})
    link = direct.DirectLink(direct.clients(e, tmp_path, SITES))
    coordinate(without_places(e), SITES, link, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "outcome.json").read_text())["state"] == "finished"


@pytest.mark.parametrize(
    ("allowed", "said"),
    [
        ([], "allows none"),
        (["torch.nn", "monai.net"], "allows torch.nn, monai.net"),
    ],
)
def test_a_path_that_a_sites_policy_does_not_allow_is_refused(experiment, tmp_path, allowed, said):
    e = experiment(rounds=1, network=SEGRESNET)
    policies = {"south": Policy(network_targets=allowed)}
    link = direct.DirectLink(direct.clients(e, tmp_path, SITES, policies))
    with pytest.raises(RoundFailed) as caught:
        coordinate(without_places(e), SITES, link, tmp_path / "run")
    assert f"south: refused: network.target = {SEGRESNET['target']}: " in str(caught.value)
    assert said in str(caught.value)
    exact = Policy(network_targets=[SEGRESNET["target"]])
    exact.check_network(SEGRESNET["target"])
    exact.check_network(None)


# --- policies -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Policy(methods=["fedsm"]), "method fedavg: this site's policy allows fedsm"),
        (Policy(max_payload="10 KB"), "max_payload of this site's policy is 10 KB"),
        (Policy(min_training_images=50), "asks for at least 50"),
        (Policy(min_sites_in_mean=3), "a mean may be of 2 sites"),
    ],
)
def test_a_policy_refuses(experiment, tmp_path, policy, said):
    with pytest.raises(RoundFailed) as caught:
        direct.deploy(experiment(), tmp_path, SITES, {"south": policy})
    assert said in str(caught.value)
    assert "south" in str(caught.value)
    assert said in (tmp_path / "clients" / "south" / "audit.jsonl").read_text()


@pytest.mark.parametrize(
    ("server", "fewest"),
    [
        ({}, 2),
        ({"min_sites": 1}, 1),
        ({"absences": {"south": [2]}}, 1),
        ({"absences": {"south": [3]}}, 2),  # there is no round 3
        ({"absences": {"south": [1], "north": [2]}}, 1),
        ({"absences": {"south": [1, 1]}}, 1),
        ({"absences": {"south": [1], "north": [1]}}, 1),  # nobody: that round fails
        ({"absences": {"south": [1]}, "min_sites": 2}, 2),  # that round fails
        ({"fraction": 0.5}, 1),
        ({"fraction": 0.6}, 2),
    ],
)
def test_the_fewest_sites_in_a_mean(make_plan, server, fewest):
    assert fewest_in_a_mean(make_plan(server=server)) == fewest


def test_absences_count_for_the_policy(experiment, tmp_path):
    """South is away: the mean would be north's own model."""
    e = experiment(server={"absences": {"south": [1]}})
    with pytest.raises(RoundFailed, match=r"north: refused: .*a mean may be of 1 sites"):
        direct.deploy(e, tmp_path, SITES, {"north": Policy(min_sites_in_mean=2)})


def test_images_are_not_moved_to_one_place(experiment, tmp_path):
    with pytest.raises(RoundFailed, match="it would move images to one place"):
        direct.deploy(experiment(methods=["centralized"]), tmp_path, SITES)


def test_a_site_keeps_its_specialist(experiment, tmp_path):
    """The super model answers for it with the global model; the site still has its own."""
    e = experiment(methods=["fedsm"])
    direct.deploy(e, tmp_path, SITES, {"south": Policy(hand_out_specialist=False)})
    folder = tmp_path / "run" / "fedsm" / "seed0" / "supermodel"
    facts = json.loads((folder / "model.json").read_text())
    assert facts["withheld"] == ["south"]
    assert set(facts["files"]) == {"global", "selector", "novelty", "north"}
    assert list((tmp_path / "clients" / "south").rglob("best/personal.safetensors"))
    with pytest.raises(RoundFailed, match="hand_out_specialist: false"):
        direct.deploy(
            experiment(methods=["fedsm-extra"]),
            tmp_path / "extra",
            SITES,
            {"south": Policy(hand_out_specialist=False)},
        )


def test_only_means_leave(experiment, outlines, tmp_path):
    e = experiment(methods=["fedavg"], **outlines)
    link = direct.deploy(e, tmp_path, SITES, {site: Policy(scores="means") for site in SITES})
    alone = in_process(e, tmp_path / "alone")
    assert rounded(tmp_path / "run") == rounded(alone)
    for word in (b'"columns"', b'"patients"'):
        assert not [p for t, _, p in link.passed if t == "request" and word in p]
    (folder,) = (path.parent for path in (tmp_path / "run").rglob("model.json"))
    assert json.loads((folder / "model.json").read_text())["intervals"] == {}
    assert "There are no intervals" in (folder / "MODEL_CARD.md").read_text()


def rounded(folder: Path) -> list[list[str]]:
    rows = [line.split(",") for line in (folder / "results.csv").read_text().splitlines()[1:]]
    return [[f"{float(c):.9f}" if "." in c else c for c in row] for row in rows]


def test_a_changed_plan_is_refused(experiment, tmp_path):
    link = direct.deploy(experiment(), tmp_path, SITES)
    [plan] = {p for t, s, p in link.passed if t == "agree" and s == "north" and p[:1] == b"{"}
    client = link.clients["north"]
    assert client.answer("agree", plan)[:1] == b"A"
    for old, new in ((b'"rounds":2', b'"rounds":3'), (b'"lr":0.001', b'"lr":0.002')):
        assert old in plan
        answer = client.answer("agree", plan.replace(old, new))
        assert answer[:1] == b"R"
        assert b"it was changed on its way" in answer
    [request, *_] = [p for t, s, p in link.passed if t == "request" and s == "north"]
    for place in (30, len(request) // 2, len(request) - 3):
        damaged = bytearray(request)
        damaged[place] ^= 1
        assert client.answer("request", bytes(damaged))[:1] == b"R"
    other = direct.deploy(experiment(rounds=1), tmp_path / "other", SITES)
    [stranger, *_] = [p for t, s, p in other.passed if t == "request" and s == "north"]
    assert b"this site has not agreed to it" in client.answer("request", stranger)


def interrupted(e, tmp_path) -> direct.DirectLink:
    """A run whose sites are gone after round 1."""
    link = direct.DirectLink(direct.clients(e, tmp_path, SITES))
    send = link.send

    def cut(topic, sites, message, deadline=None):
        if sum(topic == "request" for topic, *_ in link.passed) >= 2 * len(SITES):
            link.gone = set(SITES)
        yield from send(topic, sites, message, deadline)

    link.send = cut
    with pytest.raises(RoundFailed):
        coordinate(without_places(e), SITES, link, tmp_path / "run")
    return direct.DirectLink(link.clients)


def test_a_plan_that_was_changed_at_the_server_goes_no_further(experiment, tmp_path):
    e = experiment(rounds=2)
    link = interrupted(e, tmp_path)
    path = tmp_path / "run" / "plan.yaml"
    path.write_text(path.read_text().replace("rounds: 2", "rounds: 3"))
    with pytest.raises(RunError, match=r"plan\.yaml was changed: it is of plan [0-9a-f]{16}"):
        coordinate(without_places(e), SITES, link, tmp_path / "run")
    assert link.passed == []
    assert json.loads((tmp_path / "run" / "outcome.json").read_text())["state"] == "failed"


def test_a_run_that_an_older_server_began_goes_no_further(experiment, tmp_path):
    e = experiment(rounds=2)
    link = interrupted(e, tmp_path)
    path = tmp_path / "run" / "plan.yaml"
    path.write_text(path.read_text().replace(f"version: {__version__}", "version: 0.1.0"))
    with pytest.raises(RunError, match=r"this run was begun by Konsil 0\.1\.0, this is Konsil"):
        coordinate(without_places(e), SITES, link, tmp_path / "run")
    assert link.passed == []


def test_a_run_that_has_begun_keeps_its_plan(experiment, tmp_path):
    """A server that shows another plan, with the right hash, under the name of a known run."""
    link = interrupted(experiment(rounds=2), tmp_path)
    shutil.rmtree(tmp_path / "run")
    changed = without_places(experiment(rounds=3))
    with pytest.raises(RoundFailed, match="north: refused: run run: this site agreed to plan"):
        coordinate(changed, SITES, link, tmp_path / "run")
    coordinate(changed, SITES, link, tmp_path / "another")


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (lambda reply: replace(reply, site="north").to_bytes(), "an answer in the name of north"),
        (lambda reply: reply.to_bytes()[:-8], "damaged"),
        (lambda reply: b"", "not a Konsil message"),
    ],
)
def test_a_site_that_lies_harms_nobody_but_itself(experiment, tmp_path, forge, why):
    e = experiment(rounds=2, server={"min_sites": 1})
    link = direct.DirectLink(direct.clients(e, tmp_path, SITES))
    honest = link.clients["south"].answer

    def lie(topic, payload):
        answer = honest(topic, payload)
        if topic == "request" and (reply := Reply.from_bytes(answer[1:])).kind == "round":
            return b"A" + forge(reply)
        return answer

    link.clients["south"].answer = lie
    coordinate(without_places(e), SITES, link, tmp_path / "run")
    trail = [json.loads(x) for x in (tmp_path / "run" / "audit.jsonl").read_text().splitlines()]
    missing = [x for x in trail if x["event"] == "missing"]
    assert [x["site"] for x in missing] == ["south", "south"]
    assert all(why in x["reason"] for x in missing)
    absent = experiment(rounds=2, server={"min_sites": 1, "absences": {"south": [1, 2]}})
    assert weights_at_the_server(tmp_path / "run") == weights_at_the_server(
        in_process(absent, tmp_path / "alone")
    )


def test_audit_trails_of_both_sides_agree(experiment, tmp_path):
    direct.deploy(experiment(), tmp_path, SITES)
    ours = trail(tmp_path / "run", "received")
    theirs = [e for s in SITES for e in trail(tmp_path / "clients" / s, "sent")]
    assert {e["sha256"] for e in ours} == {e["sha256"] for e in theirs}
    assert {"site", "kind", "round", "parts", "bytes", "time", "party"} <= set(ours[0])
    assert ours[0]["parts"]["global"]["norm"] > 0


def trail(folder: Path, event: str) -> list[dict]:
    events = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    return [e for e in events if e["event"] == event and "sha256" in e]


@pytest.mark.parametrize("text", ["methods: 3", "max_payload: much", "metods: [fedavg]"])
def test_a_policy_that_cannot_be_meant(tmp_path, text):
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"policy\.yaml"):
        read_policy(path)

"""What must hold for every method of the registry, whoever adds one."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from methods import toy

from konsil.errors import RoundFailed
from konsil.federation.engines.inprocess import InProcessEngine
from konsil.federation.runner import Run
from konsil.federation.site_worker import site_folder
from konsil.federation.state import SiteState, StateFiles
from konsil.ingredients.method import METHODS
from konsil.ingredients.site import Site
from konsil.methods.fedsm_extra import TwoPhases
from konsil.registry import load_plugins

# KONSIL_PLUGINS=my_method.py holds your own methods to this, instead of Konsil's.
PLUGINS = load_plugins(p for p in os.environ.get("KONSIL_PLUGINS", "").split(os.pathsep) if p)
NAMES = sorted(PLUGINS or METHODS.all())
ROUNDS = 3
SETTINGS = {
    "fedsoup": {"start": 0.3},  # early enough for a soup in a short run
}
SMALL = {"name": "small"}
CLASSIFICATION = {"name": "classification", "normalise": False}  # brightness is the class


def configured(name: str) -> list[dict]:
    return [{"name": name, **SETTINGS.get(name, {})}]


def few_rounds(name: str) -> int:
    """One, or as many as it takes to see both phases."""
    return 3 if issubclass(METHODS.all()[name], TwoPhases) else 1


def everything(plan, folder) -> tuple[toy.Record, dict[str, SiteState]]:
    """What training left: the server's record and every site's state."""
    record = toy.server(plan, folder).record
    sites = plan.method(plan.jobs[0]).context.sites
    return record, {site: toy.state_of(plan, folder, site) for site in sites}


def same(a, b) -> bool:
    """Bit for bit, at the server and at every site."""
    (record, states), (other, others) = a, b
    sections = all(
        toy.same_parts(getattr(states[s], section), getattr(others[s], section))
        for s in states
        for section in SiteState.SECTIONS
    )
    notes = all(states[s].notes == others[s].notes for s in states)
    return sections and notes and toy.same_record(record, other)


@contextmanager
def batches_noted() -> Iterator[dict[tuple[str, int], str]]:
    """(site, round) -> a digest of every batch that training got."""
    digests: dict[tuple[str, int], str] = {}
    usual = Site.indexed_batches

    def note(self, images, purpose="", epochs=None):
        digest = hashlib.sha256()
        for index, x, y in usual(self, images, purpose, epochs):
            digest.update(x.numpy().tobytes() + y.numpy().tobytes())
            yield index, x, y
        if not purpose:  # further batches, which a method's definition asks for, have one
            digests[self.name, self.round] = digest.hexdigest()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Site, "indexed_batches", note)
        yield digests


@pytest.fixture(scope="module")
def reference(squares, tmp_path_factory):
    """method -> plan, what an undisturbed run left, the batches it saw."""
    done = {}

    def of(name):
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            plan = toy.plan_of(squares, methods=configured(name), rounds=ROUNDS)
            with batches_noted() as batches:
                toy.train(plan, folder)
            done[name] = (plan, everything(plan, folder), batches)
        return done[name]

    return of


@pytest.mark.parametrize("name", NAMES)
def test_it_learns(make_plan, tmp_path, name):
    training = {"batch_size": 2, "lr": 1e-2}
    plan = make_plan(methods=configured(name), rounds=6, training=training)
    record = toy.train(plan, tmp_path)
    cls = METHODS.all()[name]
    roles = (*cls.shared_roles, *cls.private_roles)
    start = record.history[0]["means"]
    first = min(start[role] for role in roles if role in start)  # some appear only at the end
    for role in roles:
        scores = [h["means"][role] for h in record.history if role in h["means"]]
        assert max(scores[-2:]) > first + 0.1, scores


@pytest.mark.parametrize("name", NAMES)
def test_stopped_and_resumed_it_gives_the_same_bits(reference, tmp_path, name):
    """Same seed, same bits: and a new process that goes on from the disk counts as the same."""
    plan, undisturbed, _ = reference(name)
    for stop in (1, 2):
        server = toy.server(plan, tmp_path)
        for number in range(server.record.round + 1, stop + 1):
            server._round(number)
        del server
    toy.train(plan, tmp_path)
    assert same(everything(plan, tmp_path), undisturbed)


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_gives_other_bits(make_plan, reference, tmp_path, name):
    _, (record, states), _ = reference(name)
    plan = make_plan(methods=configured(name), rounds=1, seeds=[1])
    other = toy.train(plan, tmp_path)
    state = SiteState.load(
        site_folder(tmp_path / plan.jobs[0].name, next(iter(states))) / StateFiles.NAMES[0],
        plan.hash,
    )
    mine, theirs = next(iter(states.values())).last or record.shared, state.last or other.shared
    assert all(not mine[part].equals(theirs[part]) for part in mine)


@pytest.mark.parametrize("name", NAMES)
def test_replies_in_any_order_give_the_same_bits(reference, tmp_path, name):
    plan, undisturbed, _ = reference(name)
    toy.train(plan, tmp_path, engine=toy.Shuffled(InProcessEngine(plan, tmp_path), seed=5))
    assert same(everything(plan, tmp_path), undisturbed)


@pytest.mark.parametrize("name", NAMES)
def test_a_site_may_miss_a_round(make_plan, tmp_path, name):
    plan = make_plan(
        methods=configured(name), rounds=3, server={"absences": {"north": [2]}, "min_sites": 1}
    )
    rows = toy.whole_run(plan, tmp_path)
    assert {r.site for r in rows} >= {"north", "south"}


@pytest.mark.parametrize("norm", ["batch", "instance", "group"])
@pytest.mark.parametrize("name", NAMES)
def test_every_norm_layer(make_plan, tmp_path, name, norm):
    network = {"name": "unet", "width": 2, "norm": norm}
    plan = make_plan(methods=configured(name), rounds=few_rounds(name), network=network)
    toy.train(plan, tmp_path)
    record, states = everything(plan, tmp_path)
    parts = [*record.shared.values(), *(w for s in states.values() for w in s.last.values())]
    assert all(bool(part.flat.isfinite().all()) for part in parts)


@pytest.mark.parametrize("name", NAMES)
def test_classification_of_one_site(shades, tmp_path, name):
    """The other task, and a federation of one."""
    federation = {"folder": str(shades), "image_size": 32, "sites": ["north"]}
    plan = toy.plan_of(
        shades, federation=federation, task=CLASSIFICATION, network=SMALL,
        rounds=few_rounds(name), methods=configured(name),
    )  # fmt: skip
    rows = toy.whole_run(plan, tmp_path)
    assert {r.metric for r in rows} >= {"accuracy", "auc"}
    assert all(0 <= r.value <= 1 for r in rows)


@pytest.mark.parametrize("name", NAMES)
def test_classification_of_two_sites(shades, tmp_path, name):
    plan = toy.plan_of(
        shades, task=CLASSIFICATION, network=SMALL, rounds=6, methods=configured(name),
        training={"batch_size": 2, "lr": 1e-3},
    )  # fmt: skip
    record = toy.train(plan, tmp_path)
    cls = METHODS.all()[name]
    role = (*cls.shared_roles, *cls.private_roles)[0]
    assert max(h["means"][role] for h in record.history) > 0.7


@pytest.mark.parametrize("name", NAMES)
def test_state_serialises(reference, tmp_path, name):
    plan, (_, states), _ = reference(name)
    for site, state in states.items():
        first, second = tmp_path / f"{site}.1", tmp_path / f"{site}.2"
        state.save(first, plan.hash, durable=False)
        SiteState.load(first, plan.hash).save(second, plan.hash, durable=False)
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_no_test_image_is_read_before_evaluation(make_plan, tmp_path, name):
    """The test arrays are not there: training, selection and the last validation do not notice."""
    plan = make_plan(methods=configured(name), rounds=1 + few_rounds(name))
    blind = toy.private_cache(plan, tmp_path / "cache")
    for folder in blind.data_folder.glob("*/test"):
        shutil.rmtree(folder)
    run = Run(blind, tmp_path / "run")
    run.prepare(False, lambda path: None)
    with pytest.raises(RoundFailed, match=r"did not answer in evaluate.*test/images\.npy"):
        run.go()
    assert toy.server(blind, tmp_path / "run").record.finished
    assert not (tmp_path / "run" / "results.csv").exists()


@pytest.mark.parametrize("name", NAMES)
def test_every_method_begins_with_the_same_weights_and_rate(make_plan, name):
    """Whatever is not the selector's: an equal start, and the experiment's learning rate."""
    plan = make_plan(methods=[name])
    method = plan.method(plan.jobs[0])
    initial = method.context.initial(method.context.network)
    models = {"global", "personal", "centralized"}  # or a part of one, if the rest stays at a site
    for part in (part for part_name, part in method.start().items() if part_name in models):
        assert part.equals(initial.only({e.name for e in part.layout.entries}))
    learners = [t for t in method.networks().values() if t.spec == method.context.network]
    if name not in PLUGINS:  # whose definition may want another
        assert [t.lr for t in learners] == [None] * len(learners) != []


def test_every_method_sees_the_same_batches(reference):
    """Methods are compared on equal terms: same images in the same order in the same batches."""
    federated = [name for name in NAMES if not METHODS.all()[name].pooled]
    seen = {name: reference(name)[2] for name in {"fedavg", *federated}}
    expected = {(s, r) for s in ("north", "south") for r in range(1, ROUNDS + 1)}
    assert set(seen["fedavg"]) == expected
    for name, batches in seen.items():
        if issubclass(METHODS.all()[name], TwoPhases):  # no images while models are handed in
            assert set(batches) == {(s, r) for s, r in expected if r != 2}
            assert all(batches[place] == seen["fedavg"][place] for place in batches)
        else:
            assert batches == seen["fedavg"], name

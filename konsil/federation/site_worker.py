"""What answers requests on behalf of sites: the same code under every engine."""

from collections.abc import Callable
from functools import lru_cache
from math import isfinite
from pathlib import Path

from konsil.data import test_images, training_data
from konsil.errors import StateError
from konsil.evaluation.routing import calibration, described, routed_columns, rule_scores
from konsil.evaluation.scores import Patients, patients_in
from konsil.federation.compression import pack_upload
from konsil.federation.compute import prepare_process
from konsil.federation.keeping import kept
from konsil.federation.messages import (
    MEANS,
    Body,
    CalibrateReply,
    CalibrateRequest,
    Checkpoint,
    CollectReply,
    CollectRequest,
    CompareReply,
    CompareRequest,
    DescribeReply,
    DescribeRequest,
    EvaluateReply,
    EvaluateRequest,
    Reply,
    Request,
    RoundReply,
    RoundRequest,
    head_part,
)
from konsil.federation.plan import Plan
from konsil.federation.state import SiteState, StateFiles
from konsil.files import locked
from konsil.ingredients.context import Shared, Upload
from konsil.ingredients.method import Method
from konsil.ingredients.site import Networks, Site
from konsil.randomness import global_stream
from konsil.supermodel import SELECTOR, SiteSelector, SuperModel
from konsil.supermodel.rules import from_json
from konsil.weights import Parts, Weights

# Whose images stay mapped from round to round. Mapped pages count as this process's memory, so
# with hundreds of sites it would seem to hold all their images; to open them again costs little.
OPEN_SITES = 32


class SiteWorker:
    """Hosts any of a plan's sites. Their state lies in each site's own folder, nowhere else."""

    def __init__(
        self, plan: Plan, run_folder: Path, device: str = "", patients: Patients | None = None
    ) -> None:
        """`device`: this site's own, where it differs from the plan's; `patients`: by number, of
        its test images; by default as `splits.csv` in the run's folder says.
        """
        self.plan, self._patients = plan, patients
        self.run_folder = run_folder
        compute = plan.experiment.compute
        self.compute = compute.model_copy(update={"device": device}) if device else compute
        prepare_process(self.compute)
        self._job = ""
        self._method: Method
        self._networks: Networks
        open_data = lru_cache(OPEN_SITES)
        self.training_data = open_data(lambda s: training_data(plan.data_folder, plan.members(s)))

    def handle(self, request: Request) -> Reply:
        """Answer one request; asking again gives the same answer and trains nothing twice."""
        refused = f"site {request.site}, round {request.round}: refused, the request is of"
        if request.plan != self.plan.hash:
            agreed = f"this site agreed to {self.plan.hash}"
            raise StateError(f"{refused} plan {request.plan}, {agreed}")
        answers: dict[str, Callable[[Request], Reply]] = {
            "round": self._round,
            "finish": self._round,
            "collect": self._collect,
            "describe": self._describe,
            "calibrate": self._calibrate,
            "compare": self._compare,
            "evaluate": self._evaluate,
        }
        # Before any folder is made: a job's name is a folder's, and only the plan gives names.
        jobs = [job.name for job in self.plan.jobs]
        for what, asked, known in (("job", request.job, jobs), ("kind", request.kind, answers)):
            if asked not in known:
                raise StateError(f"{refused} {what} {asked!r}, the plan has {', '.join(known)}")
        self._begin(request.job)
        return answers[request.kind](request)

    def _round(self, request: Request) -> Reply:
        # A killed coordinator's worker may still be at work on this very round: wait for it
        # instead of racing it, and find the round done.
        states = self._states(request)
        with locked(states.folder):
            return self._do_once(request, states)

    def _do_once(self, request: Request, states: StateFiles) -> Reply:
        asked = request.body_as(RoundRequest)
        state = states.now()
        if state.round == request.round:
            return _reply(request, state.reply, state.upload)
        # A server that was brought back from before its last record asks for an earlier round.
        if state.round > request.round and not states.was_after(asked.after):
            raise StateError(
                f"site {request.site}: asked for round {request.round}, but its state is at round "
                f"{state.round}; this run folder is mixed with another run's"
            )
        state = states.after(asked.after, state)
        site = self._site(request, state)
        method, shared = self._method, Shared(request.parts, asked.notes)
        with global_stream(method.context.seed, request.site, request.round, "local"):
            method.receive(site, shared)
            measures = self._validate(site, shared, state, request.kind) if asked.validation else {}
            upload = Upload()
            if request.kind == "round":
                upload = method.local(site, shared)
                site.finish_learners(upload)
        check_finite(site, upload)
        if (coding := self.plan.experiment.server.coding) is not None:
            pack_upload(upload, request.parts, state.private, coding)
        images = site.validation_images if asked.validation else 0
        said = {"measures": measures, "images": images, "weights": upload.weights}
        state.reply = RoundReply.read(said)  # a score that is not finite is found here
        state.upload, state.round = upload.parts, request.round
        if request.kind == "finish":
            _hand_out(state, states.folder)
        states.save(state, self.plan.experiment.engine.durable)
        return _reply(request, state.reply, state.upload)

    def _validate(
        self, site: Site, shared: Shared, state: SiteState, kind: str
    ) -> dict[str, float]:
        """Means over the validation images of what the site received, and its private best."""
        method = self._method
        measures: dict[str, float] = {}
        for role, received in method.answers(site, shared).items():
            weights = site.localised(role, received)  # as the site runs them, and hands them out
            measures[role] = site.score(weights)
            if role in method.private_roles:
                if kind == "finish":
                    state.last[role] = weights
                if method.eligible(site.round):
                    scores = state.scores.setdefault(role, [])
                    scores.append(measures[role])
                    best, training = state.best.get(role), method.context.training
                    state.best[role] = kept(training, best, weights, scores)
        return measures | method.measures(site, shared)

    def _collect(self, request: Request) -> Reply:
        """The site's specialist, to be put into the super model."""
        asked = request.body_as(CollectRequest)
        specialist = self._private(request, "personal", asked.checkpoint)
        return _reply(request, CollectReply(), {"personal": specialist})

    def _describe(self, request: Request) -> Reply:
        """Means of what the selector sees of the training images, and of their products."""
        asked, images = request.body_as(DescribeRequest), self.training_data(request.site).train
        selector = SiteSelector(asked.selector, request.parts[SELECTOR], self.compute.device)
        means = described(selector, images, self.plan.sites.index(request.site), self.plan.sites)
        return _reply(request, DescribeReply(images=len(images)), {MEANS: means})

    def _calibrate(self, request: Request) -> Reply:
        """Sums over the validation images: how far the selector and each answer can be trusted."""
        asked, val = request.body_as(CalibrateRequest), self.training_data(request.site).val
        parts = dict(request.parts)
        heads = [parts.pop(head_part(place)) for place in range(asked.heads)]
        model = SuperModel.from_parts(asked.model, parts, self.compute.device)
        layers = [(head["weight"], head["bias"]) for head in heads]
        place, task = self.plan.sites.index(request.site), self._method.context.task
        sums = calibration(model, layers, val, task, place)
        return _reply(request, CalibrateReply.read({"images": len(val), **vars(sums)}))

    def _compare(self, request: Request) -> Reply:
        """Sums of validation scores for every rule: enough to choose one, and no more."""
        asked, val = request.body_as(CompareRequest), self.training_data(request.site).val
        model = SuperModel.from_parts(asked.model, request.parts, self.compute.device)
        rules = [from_json(rule, len(self.plan.sites)) for rule in asked.rules]
        sums = rule_scores(model, rules, val, self._method.context.task)
        return _reply(request, CompareReply.read({"images": len(val), "sums": sums}))

    def _evaluate(self, request: Request) -> Reply:
        """Per-image values of one role on one split, without names of images."""
        asked, task = request.body_as(EvaluateRequest), self._method.context.task
        detailed = asked.detailed
        if asked.split == "test":
            images = test_images(self.plan.data_folder, request.site)
        else:
            images = self.training_data(request.site).val
        if asked.model is not None:
            model = SuperModel.from_parts(asked.model, request.parts, self.compute.device)
            columns = routed_columns(model, images, task, request.site, detailed)
        else:
            answering = self._answering(request, asked)
            of = request.site, asked.split
            columns = self._networks.columns(of, answering, images, detailed)
        plain = {name: values.tolist() for name, values in columns.items()}
        said = {"images": len(images), "columns": plain}
        said |= {"patients": self._patients_at(request.site)} if detailed else {}
        return _reply(request, EvaluateReply.read(said))

    def _patients_at(self, site: str) -> list[int]:
        """The patients of its test images by number; empty if nobody has said."""
        if self._patients is None:
            self._patients = patients_in(self.run_folder / "splits.csv")
        return list(self._patients.get(site, ()))

    def _answering(self, request: Request, asked: EvaluateRequest) -> Weights:
        if asked.role not in request.parts:
            return self._private(request, asked.role, asked.checkpoint)
        site = self._site(request, self._states(request).latest())
        return site.localised(asked.role, request.parts[asked.role])

    def _private(self, request: Request, role: str, checkpoint: Checkpoint) -> Weights:
        state = self._states(request).latest()
        models = state.best if checkpoint == "best" else state.last
        if role not in models:
            raise StateError(f"site {request.site}: it has no {role} model; it took no part")
        return models[role]

    def _site(self, request: Request, state: SiteState) -> Site:
        data = self.training_data(request.site)
        return Site(request.site, request.round, self._networks, data, state, request.parts)

    def _begin(self, job: str) -> None:
        """The method and the networks of this job; those of the job before make room for them."""
        if job != self._job:
            self._method = self.plan.method(self.plan.job(job))
            self._networks = Networks(self._method.context, self._method.networks(), self.compute)
            self._job = job

    def _states(self, request: Request) -> StateFiles:
        return StateFiles(site_folder(self.run_folder / request.job, request.site), self.plan.hash)


def _hand_out(state: SiteState, folder: Path) -> None:
    """The site's own models as files in its own folder, for the site to use."""
    for checkpoint, models in (("best", state.best), ("last", state.last)):
        for role, weights in models.items():
            (folder / checkpoint).mkdir(parents=True, exist_ok=True)
            weights.save(folder / checkpoint / f"{role}.safetensors")


def check_finite(site: Site, upload: Upload) -> None:
    """Training that has diverged is an error of this round, not a state to carry on with."""
    for name, weights in (*site.private.items(), *upload.parts.items()):
        if not isfinite(float(weights.flat.norm())):
            raise StateError(
                f"site {site.name}, round {site.round}: training diverged ({name} is not finite); "
                "its state stays at the round before; lower training.lr"
            )


def site_folder(job_folder: Path, site: str) -> Path:
    """A site's own folder: its private state stays there."""
    return job_folder / "sites" / site


def _reply(request: Request, body: Body, parts: Parts | None = None) -> Reply:
    address = request.kind, request.job, request.site, request.round, request.plan
    return Reply(*address, body, parts or {})

"""The super model is put together: specialists are collected, validation chooses whom to ask.

The sites are asked four things, in this order: their specialist; means over their training images
of what the selector sees; how far the selector and every answer can be trusted on their validation
images; and how good each rule would be there. All but the specialists are sums over images. What
comes is held against the plan.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

import torch

from konsil.evaluation.routing import choose_calibration, choose_rule, rules_of, table_of
from konsil.federation.intake import check_parts
from konsil.federation.messages import (
    MEANS,
    BadMessage,
    CalibrateReply,
    CalibrateRequest,
    Checkpoint,
    CollectReply,
    CollectRequest,
    CompareReply,
    CompareRequest,
    DescribeReply,
    DescribeRequest,
    Reply,
    check_images,
    head_part,
)
from konsil.federation.questions import Questions
from konsil.federation.server import Record
from konsil.supermodel import GLOBAL, NOVELTY, SELECTOR, Facts, SiteSelector, SuperModel
from konsil.supermodel.discriminant import head_of, linear_discriminant, means_layout, wrong_means
from konsil.supermodel.novelty import choose_limit, novelty_of
from konsil.supermodel.rules import NAMES_MODELS, Fixed, to_json
from konsil.weights import Layout, WeightedMean, Weights

SPECIALIST = "personal"
SHRINKAGES = (0.01, 0.05, 0.2, 0.5)  # of a selector that is solved: validation images choose
Table = list[list[float]]


class Assembly(Questions):
    """Puts the super model of a finished job together."""

    def super_model(self, record: Record, checkpoint: Checkpoint) -> SuperModel | None:
        """Of the models of a checkpoint; None if the method has none."""
        if not self.method.super_model:
            return None
        shared = self.shared(record, checkpoint)
        models = {GLOBAL: shared[GLOBAL], SELECTOR: self.method.selector.weights(shared)}
        layout, asked = shared[GLOBAL].layout, CollectRequest(checkpoint=checkpoint)
        specialists = self.ask("collect", {}, asked, lambda r: self._specialist(r, layout))
        models |= {site: model for site, model in specialists.items() if model is not None}
        # where a site's policy keeps it, the global model stands in
        withheld = sorted(site for site, model in specialists.items() if model is None)
        draft = SuperModel(replace(self.facts(), withheld=withheld), models)
        if self.method.names_models:
            return draft
        described = self.method.describes
        return self._ruled(*self._calibrated(draft) if described else (draft, []))

    def facts(self) -> Facts:
        """What is known of the super model before validation images have chosen."""
        return Facts(
            task=self.task.name,
            targets=self.task.targets,
            labels=list(self.plan.labels),
            sites=list(self.plan.sites),
            network=self.method.context.network.to_json(),
            selector=self.method.selector.spec.to_json(),
            routing=to_json(NAMES_MODELS.get(self.method.routing, Fixed())),
            plan=self.plan.hash,
        )

    def _specialist(self, reply: Reply, layout: Layout) -> Weights | None:
        """The specialist that a site hands out; None if its policy keeps it."""
        if reply.body_as(CollectReply).withheld:
            return None
        check_parts(reply.parts, {SPECIALIST: layout}, self.plan.experiment.server.max_rms)
        return reply.parts[SPECIALIST]

    def _calibrated(self, draft: SuperModel) -> tuple[SuperModel, Table]:
        """With what validation tells of the selector, and a table of every answer's scores."""
        means = self._described(draft)
        shrinkages = SHRINKAGES if self.method.selector.solved_after else ()
        heads = [linear_discriminant(draft.models[SELECTOR], means, s) for s in shrinkages]
        models = {**draft.models, NOVELTY: novelty_of(means)}
        said, images = self._calibrations(SuperModel(draft.facts, models), heads), self._images()
        head, temperature = choose_calibration({s: r.surprise for s, r in said.items()}, images)
        if heads:
            models[SELECTOR] = heads[head]
        limit = choose_limit({s: r.above for s, r in said.items()}, images)
        table = table_of({s: r.scores for s, r in said.items()}, images)
        if not self.method.calibrates:
            return SuperModel(draft.facts, models), table
        facts = replace(draft.facts, temperature=temperature, limit=limit)
        return SuperModel(facts, models), table

    def _described(self, draft: SuperModel) -> Weights:
        """Means over all training images of what the selector sees, by site."""
        layout = self.means_layout(draft.models[SELECTOR])
        images = {site: self.plan.images(site, "train") for site in self.plan.sites}

        def read(reply: Reply) -> Weights:
            check_images(reply.body_as(DescribeReply).images, images[reply.site])
            check_parts(reply.parts, {MEANS: layout}, self.plan.experiment.server.max_rms)
            own = [self.plan.sites.index(reply.site)]
            wrong = wrong_means(reply.parts[MEANS], images[reply.site], own)
            if wrong:
                raise BadMessage(f"{MEANS}: {wrong}")
            return reply.parts[MEANS]

        selector = {SELECTOR: draft.models[SELECTOR]}
        asked = DescribeRequest(selector=draft.facts.selector)
        mean = WeightedMean(layout)  # in float64: what is solved from it magnifies its rounding
        for site, part in self.ask("describe", selector, asked, read).items():
            mean.add(part, images[site])
        return mean.result()

    def means_layout(self, selector: Weights) -> Layout:
        """The form of a site's description, which a blank image tells."""
        spec = self.method.selector.spec
        blank = torch.zeros(1, spec.in_channels, spec.image_size, spec.image_size)
        _, features = SiteSelector(spec.to_json(), selector)(blank)
        return means_layout(len(self.plan.sites), features.shape[1])

    def _images(self) -> dict[str, int]:
        """Validation images of every site."""
        return {site: self.plan.images(site, "val") for site in self.plan.sites}

    def _calibrations(
        self, model: SuperModel, heads: Sequence[Weights]
    ) -> dict[str, CalibrateReply]:
        images, sites = self._images(), len(self.plan.sites)

        def read(reply: Reply) -> CalibrateReply:
            said = reply.body_as(CalibrateReply)
            said.check(len(heads), sites, images[reply.site])
            return said

        parts = {head_part(place): head_of(head) for place, head in enumerate(heads)}
        asked = CalibrateRequest(model=asdict(model.facts), heads=len(heads))
        return self.ask("calibrate", {**model.models, **parts}, asked, read)

    def _ruled(self, model: SuperModel, table: Table) -> SuperModel:
        """With the rule that is best on validation images, and never below the global model."""
        rules, images = rules_of(self.method.routing, table), self._images()

        def read(reply: Reply) -> list[float]:
            said = reply.body_as(CompareReply)
            said.check(len(rules), images[reply.site])
            return said.sums

        asked = CompareRequest(model=asdict(model.facts), rules=[to_json(rule) for rule in rules])
        sums = self.ask("compare", model.models, asked, read)
        return model.with_rule(choose_rule(rules, sums, images))

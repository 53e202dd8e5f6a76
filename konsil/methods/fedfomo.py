"""FedFomo (Zhang et al., ICLR 2021, Eq. 4-6): each site weighs the others' models for itself.

A site receives the last models of `models` others and mixes them with its own by

    weight_n ~ max(0, (L(old) - L(n)) / ||w_n - old||),   normalised to sum 1,

where `old` is its model before its last local training and L the loss on its validation images:
how much a model helps for each step towards it. If none helps, the site keeps its own. With
models = 0, and in a federation of one, it is local training.

Deviations from the published code, all on purpose: L is the loss on the validation split (the
code took training images, and held some out in vain), the site's own model is always among the
candidates, and norm statistics are recomputed after every mixture.
"""

from math import isfinite

import torch
from pydantic import Field
from torch import Tensor

from konsil.ingredients.context import Means, MethodSettings, Shared, Upload
from konsil.ingredients.method import Method, method
from konsil.ingredients.piece import Personal, Piece
from konsil.ingredients.site import Site
from konsil.randomness import generator
from konsil.weights import Layout, Parts, Weights, mix

SMALLEST_DISTANCE = 1e-5  # of the published code: two models may be the same
MODEL, KEPT = "model.", "server.model."
AFFINITY, ROUND = "server.affinity", "server.round"  # notes: by site, a number a site; the last


class FedFomoSettings(MethodSettings):
    """models = 0 is local training."""

    models: int | None = Field(None, ge=0, description="all other sites'")  # M
    epsilon: float = Field(0.3, ge=0, le=1)  # share of the M that is drawn and not chosen


@method("fedfomo", paper="Zhang et al., ICLR 2021, Eq. 4-6")
class FedFomo(Method):
    """One model a site: a mixture of the models that lower its own validation loss."""

    Settings = FedFomoSettings
    needs = "individual"

    def pieces(self) -> list[Piece]:
        return [Personal()]

    def work(self) -> float:
        """FedAvg's, and the losses of the received models, the own and the old one."""
        others = len(self.context.sites) - 1
        received = others if self.settings.models is None else min(self.settings.models, others)
        return 1 + self.context.validation_work(received + 2 if received else 0)

    def start(self) -> dict[str, Weights]:
        """The server keeps every site's last model."""
        model = self.context.initial(self.context.network)
        return {KEPT + site: model for site in self.context.sites}

    def uploads(self, shared: Shared) -> dict[str, Layout]:
        """The site's model, and how useful it found the others'."""
        model = shared[KEPT + self.context.sites[0]]
        return {"model": model.layout, "affinity": row(len(self.context.sites))}

    def merge(self, shared: Shared, means: Means) -> Shared:
        """The last model of each site, absent ones too; what each thinks adds up. No mean."""
        rows = {site: self.affinity(site, shared) for site in self.context.sites}
        rows |= {site: rows[site] + up["affinity"].flat for site, up in means.individual.items()}
        models = {KEPT + site: upload["model"] for site, upload in means.individual.items()}
        added = {site: values.tolist() for site, values in rows.items()}
        return shared.updated(models, {AFFINITY: added, ROUND: means.round})

    def affinity(self, site: str, shared: Shared) -> Tensor:
        """What a site has thought of each site's models so far, float32 as it was sent."""
        nothing = [0.0] * len(self.context.sites)
        return torch.tensor(shared.notes.get(AFFINITY, {}).get(site, nothing), dtype=torch.float32)

    def sent(self, site: str, shared: Shared) -> Shared:
        """The models of M others: some drawn, the rest those that helped this site most."""
        others = [name for name in self.context.sites if name != site]
        if self.settings.models is not None and self.settings.models < len(others):
            others = self.chosen(site, shared)
        return Shared({MODEL + name: shared[KEPT + name] for name in others})

    def chosen(self, site: str, shared: Shared) -> list[str]:
        """Epsilon-greedy for each of the M; in roster order, so that sums are too."""
        random = generator(self.context.seed, site, shared.notes.get(ROUND, 0), "fedfomo")
        values = self.affinity(site, shared).tolist()
        affinity = dict(zip(self.context.sites, values, strict=True))
        left = [name for name in self.context.sites if name != site]
        while len(left) > len(affinity) - 1 - self.settings.models:
            drawn = left[int(torch.randint(len(left), (), generator=random))]
            explore = float(torch.rand((), generator=random)) < self.settings.epsilon
            left.remove(drawn if explore else max(left, key=affinity.__getitem__))
        return [name for name in self.context.sites if name != site and name not in left]

    def receive(self, site: Site, shared: Shared) -> None:
        """Eq. 4-6: weigh the received models and the own one, and mix them."""
        if "personal" not in site.private:  # a newcomer: old and own are the initial model
            site.private["personal"] = self.context.initial(self.context.network)
        own = site.private["personal"]
        candidates = {
            n.removeprefix(MODEL): site.localised("personal", w) for n, w in shared.items()
        }
        if candidates:  # alone there is nothing to weigh
            candidates[site.name] = own
            useful = self.usefulness(site, site.private.get("old", own), candidates)
            site.notes["usefulness"] = useful
            site.private["personal"] = self.mixture(site, candidates, useful)

    def mixture(self, site: Site, candidates: Parts, useful: dict[str, float]) -> Weights:
        """Eq. 5-6: what helps, in proportion. Own weights alone stay as they are, to the bit."""
        helpful = {name: value for name, value in useful.items() if value > 0}
        if not set(helpful) - {site.name}:
            return candidates[site.name]
        total = sum(helpful.values())
        mixed = mix([(value / total, candidates[name]) for name, value in helpful.items()])
        return site.recalibrated(mixed)

    def usefulness(self, site: Site, old: Weights, candidates: Parts) -> dict[str, float]:
        """Eq. 4 for each candidate: what it takes off the loss, for the way from the old model."""
        before = site.validation_loss(old)
        values = {
            name: (before - site.validation_loss(model))
            / ((model - old).norm() + SMALLEST_DISTANCE)
            for name, model in candidates.items()
        }
        return {name: value if isfinite(value) else 0.0 for name, value in values.items()}

    def local(self, site: Site, shared: Shared) -> Upload:
        """Train the mixture further."""
        site.private["old"] = site.private["personal"]
        upload = super().local(site, shared).add("model", site.private["personal"], weight=1)
        useful = site.notes.get("usefulness", {})
        values = torch.tensor([useful.get(name, 0.0) for name in self.context.sites])
        return upload.add("affinity", Weights(row(len(values)), values.float()), weight=1)


def row(size: int) -> Layout:
    """The layout of one number a site."""
    return Layout.build([("affinity", (size,), "trainable", "body")])

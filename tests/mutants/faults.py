"""Deliberate faults in methods and ingredients, each of which a test must notice.

A fault is a name, a text that its file holds exactly once, and what stands there instead. A
method's faults are run against its own test file; where that is not enough, TESTS says against
which.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

TESTS = {
    "ingredients/finetune.py": ("ingredients/test_finetune.py", "methods/test_fedbabu.py"),
    "ingredients/partition.py": ("ingredients/test_partition.py", "methods/test_fedbn.py"),
    "ingredients/piece.py": (
        "methods/test_fedavg.py",
        "methods/test_fedper.py",
        "methods/test_fedbabu.py",
        "methods/test_fedprox.py",
        "methods/test_fedavgm.py",
        "methods/test_ditto.py",
    ),
    "ingredients/proximal.py": ("methods/test_fedprox.py", "methods/test_ditto.py"),
    "ingredients/server_optimizer.py": (
        "methods/test_fedavgm.py",
        "methods/test_fedadam.py",
        "methods/test_scaffold.py",
    ),
    "ingredients/site.py": (
        "ingredients/test_site.py",
        "ingredients/test_local_statistics.py",
        "methods/test_fedavg.py",
        "methods/test_fedsm.py",
    ),
    "ingredients/learner.py": ("ingredients/test_learner.py",),
    "ingredients/softpull.py": (
        "ingredients/test_softpull.py",
        "methods/test_fedsm_server_optimizer.py",
        "methods/test_fedsm.py",
    ),
    "ingredients/soup.py": ("methods/test_fedavg_swa.py", "methods/test_fedsm_soup.py"),
    "methods/discriminant.py": ("methods/test_discriminant.py", "methods/test_selector.py"),
    "methods/fedsm.py": (
        "methods/test_fedsm_server_optimizer.py",
        "methods/test_fedsm.py",
        "methods/test_fedsm_personalisers.py",
    ),
    "methods/fedyogi.py": ("methods/test_fedadam.py",),
    "methods/selector.py": ("methods/test_fedsm.py", "methods/test_selector.py"),
}

# file -> (name, old text, new text)
FAULTS: dict[str, list[tuple[str, str, str]]] = {
    "methods/apfl.py": [
        ("alpha is ignored", 'get("alpha", self.settings.alpha)', 'get("alpha", 0.5)'),
        ("always adaptive", "if self.settings.adaptive:", "if True:"),
        ("alpha_lr is ignored", "self.settings.alpha_lr or ", ""),
        ("alpha climbs", "a - rate * grad", "a + rate * grad"),
        ("alpha is forgotten", 'self.site.notes["alpha"] = self.alpha', "pass"),
        ("gradient at v", "torch.lerp(w, v, a)", "v"),
        ("v's gradient without a", "self.v.grad.mul_(a)", "pass"),
        ("v steps after w", '[*self.personal(), Averaged("global")]',
         '[Averaged("global"), *self.personal()]'),
        ("answers with v", "{\"personal\": vbar.with_statistics_of(v)}", '{"personal": v}'),
    ],
    "methods/centralized.py": [("images are not pooled", "pooled = True", "pooled = False")],
    "methods/discriminant.py": [
        ("products are not centred", "products / total - torch.outer(overall, overall)",
         "products / total"),
        ("between sites counts as within", "within -= (centres.T * weights) @ centres", "pass"),
        ("offset without the overall mean", "(centres / 2 + overall)", "(centres / 2)"),
        ("no shrinkage", "(1 - SHRINKAGE) * correlation + SHRINKAGE *",
         "(1 - 0.0) * correlation + 0.0 *"),
        ("unseen sites may be chosen", "bias.fill_(UNSEEN)", "bias.fill_(0.0)"),
        ("any share is believed", "not exact:", "False:"),
    ],
    "methods/ditto.py": [
        ("coupling is ignored", "self.settings.lambda_, self.settings.coupling",
         "self.settings.lambda_"),
        ("lambda is ignored", "Pull(self.settings.lambda_,", "Pull(0.1,"),
        ("anchor is where v began", 'shared["global"].trainable.to(self.v.device)',
         "self.v.parameters.clone()"),
        ("anchor moves with v", 'shared["global"].trainable.to(self.v.device)',
         "self.v.parameters"),
    ],
    "methods/fedadam.py": [
        ("server_lr is ignored", "self.optimizer(s.server_lr,", "self.optimizer(0.01,"),
        ("beta1 is ignored", "s.beta1,", "0.9,"),
        ("beta2 is ignored", "s.beta2,", "0.99,"),
        ("tau is ignored", "s.tau)", "1e-3)"),
        ("optimizer_state is ignored", "self.settings.optimizer_state, server", "server"),
        ("no optimiser at the server", ", server=self.server()", ""),
    ],
    "methods/fedavg.py": [
        ("optimizer_state is ignored", '"global", self.settings.optimizer_state', '"global"'),
    ],
    "methods/fedavg_swa.py": [
        ("share is ignored", "self.settings.share)", "0.25)"),
        ("the best of one round answers", "best_by = ()", "pass"),
    ],
    "methods/fedavgm.py": [
        ("momentum is ignored", "ServerMomentum(self.settings.momentum,", "ServerMomentum(0.9,"),
        ("server_lr is ignored", "self.settings.server_lr)", "1.0)"),
        ("optimizer_state is ignored", "self.settings.optimizer_state, server", "server"),
    ],
    "methods/fedbabu.py": [
        ("finetune_lr is ignored", "s.finetune_lr, only=", "only="),
        ("finetune_epochs is ignored", "s.finetune_epochs,", "5,"),
        ("finetune is ignored", 'head if s.finetune == "head" else None', "None"),
        ("head is ignored", "head=s.head", 'head="last"'),
        ("the head is trained", "trains_own=False", "trains_own=True"),
    ],
    "methods/fedbn.py": [
        ("scale and shift travel", "AveragedButNorms(norm_entries)",
         "AveragedButNorms(lambda layout: norm_entries(layout.only("
         "{e.name for e in layout.entries if e.kind != 'trainable'})))"),
    ],
    "methods/fedfomo.py": [
        ("models is ignored", "self.settings.models < len(others)", "False"),
        ("epsilon is ignored", "< self.settings.epsilon", "< 0.3"),
        ("not per step", "/ ((model - old).norm() + SMALLEST_DISTANCE)", "/ 1.0"),
        ("harm counts as help", "if value > 0}", "}"),
        ("old is stale", 'site.private["old"] = site.private["personal"]',
         'site.private.setdefault("old", site.private["personal"])'),
        ("old is the own model", 'site.private.get("old", own)', "own"),
        ("affinities do not add up", 'rows[site] + up["affinity"].flat', 'up["affinity"].flat'),
        ("statistics are not recomputed", "return site.recalibrated(mixed)", "return mixed"),
        ("own model is no candidate", "candidates[site.name] = own\n",
         "candidates.setdefault(site.name, site.private.get('old', own))\n"),
    ],
    "methods/fedper.py": [("head is ignored", "head=self.settings.head", 'head="last"')],
    "methods/fedprox.py": [
        ("mu is ignored", "Pull(self.settings.mu,", "Pull(0.01,"),
        ("coupling is ignored", "self.settings.mu, self.settings.coupling", "self.settings.mu"),
    ],
    "methods/fedrep.py": [
        ("head moments are reset", "TrainedNetwork(self.context.network, only=self.own)",
         'TrainedNetwork(self.context.network, "reset", only=self.own)'),
        ("head_epochs is ignored", "epochs=self.head_epochs)", "epochs=1)"),
        ("head is ignored", "partial(head_entries, head=head)",
         'partial(head_entries, head="last")'),
        ("the head is not fitted", "site.private[self.kept] = head.weights().only(self.own)",
         "pass"),
        ("the head follows the body's batches", "trains_own=False", "trains_own=True"),
    ],
    "methods/fedsm.py": [
        ("personal state of optimisers for the global model", '"global", s.global_optimizer_state',
         '"global", s.personal_optimizer_state'),
        ("global_optimizer_state is ignored", '"global", s.global_optimizer_state',
         '"global", "persist"'),
        ("selector is ignored", "kind(policy, s.selector,", "kind(policy, None,"),
        ("selector_lr is ignored", "s.selector_lr,", "None,"),
        ("selector_optimizer is ignored", "SELECTORS[s.selector_optimizer]",
         'SELECTORS["average_moments"]'),
        ("no server optimiser for specialists", "context, state, self.optimizer())",
         "context, state)"),
        ("no server optimiser for the global model", ", server=self.optimizer()", ""),
        ("personaliser is ignored", "if given == SOFTPULL:", "if True:"),
        ("lambda of a personaliser is swallowed", 'self.settings.personaliser == SOFTPULL or',
         "True or"),
    ],
    "methods/fedsm_ensemble.py": [
        ("logits for shares", "mixture(site, softmax(w_s(x), dim=1), x)\n            w_s",
         "mixture(site, w_s(x), x)\n            w_s"),
        ("models in another order", '["global", *map(frozen, self.context.sites)]',
         '[*map(frozen, self.context.sites), "global"]'),
        ("selector not by images", "w_s.weights(), weight=site.images", "w_s.weights(), weight=1"),
    ],
    "methods/fedsm_extra.py": [
        ("selector_share is ignored", "round(rounds * self.settings.selector_share)",
         "round(rounds / 3)"),
        ("labels_from is ignored for labels", "labels.{self.settings.labels_from}", "labels.train"),
        ("labels_from is ignored for images",
         "images = site.validation if held_out else site.training", "images = site.training"),
        ("the worst model is the label", "losses.argmin(dim=0)", "losses.argmax(dim=0)"),
        ("weighted by training images", "send(upload, len(images),", "send(upload, site.images,"),
        ("an absent site's specialist is the global model", "given.get(s, means[HANDED_IN])",
         'given.get(s, shared["global"])'),
        ("every round's models may be the best", "return round > self.first_phase + 1 or",
         "return True or"),
        ("personalisers go on after their phase", "replace(context, rounds=self.first_phase)",
         "context"),
    ],
    "methods/fedsm_soup.py": [
        ("soup is ignored", "s.soup_share, s.soup)", 's.soup_share, "greedy")'),
        ("soup_share is ignored by sites", "SiteSoup(self.models, s.soup_share,",
         "SiteSoup(self.models, 0.25,"),
        ("soup_share is ignored by the server", 'LateMean("global", s.soup_share)',
         'LateMean("global", 0.25)'),
        ("none is ignored", 's.soup == "none"', "False"),
    ],
    "methods/fedsoup.py": [
        ("start is ignored", "1 - self.settings.start", "0.25"),
        ("ties is ignored", 'if self.settings.ties == "accept" else candidate > current', ""),
        ("recompute_statistics is ignored",
         "site.recalibrated(mean) if self.settings.recompute_statistics else mean",
         "site.recalibrated(mean)"),
        ("optimizer_state is ignored", '"global", self.settings.optimizer_state', '"global"'),
        ("soup forgets its size", 'site.notes["soup_size"] = m + 1',
         'site.notes["soup_size"] = 1'),
        ("a soup without this round's model", "running_mean(soup, m, theta_g)",
         "running_mean(soup, m, soup)"),
        ("sends what was not patched", 'add("global", theta_l,', 'add("global", theta_g,'),
    ],
    "methods/fedyogi.py": [("is FedAdam", "optimizer = ServerYogi", "pass")],
    "methods/ft.py": [
        ("epochs is ignored", "self.settings.epochs,", "5,"),
        ("lr is ignored", ", self.settings.lr)", ")"),
    ],
    "methods/local.py": [
        ("begins anew every round", 'if "local" not in site.private:', "if True:"),
        ("does not keep what it trained", 'site.private["local"] = model.weights()', "pass"),
    ],
    "methods/moon.py": [
        ("mu is ignored", "+ self.settings.mu * contrast", "+ contrast"),
        ("tau is ignored", "z_prev, self.settings.tau)", "z_prev, 0.5)"),
        ("drawn to the last own", "softplus((b - a) / tau)", "softplus((a - b) / tau)"),
        ("the last own is stale", 'site.private["previous"] = model.weights()',
         'site.private.setdefault("previous", model.weights())'),
        ("statistics of others in the contrast", 'w_g = site.localised("global", shared["global"])',
         'w_g = shared["global"]'),
    ],
    "methods/perfedavg.py": [
        ("Hessian where the round began", "w, delta = self.w.parameters,",
         "w, delta = self.began,"),
        ("Hessian at a step further", "w, delta = self.w.parameters,",
         "w, delta = self.w.parameters - self.settings.inner_lr * d,"),
        ("delta is ignored", "self.settings.delta / length", "1e-3 / length"),
        ("delta is not a length", "self.settings.delta / length", "self.settings.delta"),
        ("Hessian on B2", "self.hessian_times(d, next(self.hessian))",
         "self.hessian_times(d, (x, y))"),
        ("variant is ignored", 'if self.settings.variant == "hessian_free":', "if False:"),
        ("inner step on B2", "self.gradient_aside(w, next(self.inner))",
         "self.gradient_aside(w, (x, y))"),
        ("inner_lr is ignored", "alpha, w = self.settings.inner_lr,", "alpha, w = 0.01,"),
        ("adapts by the experiment's lr", "alpha=self.settings.inner_lr)",
         "alpha=self.context.training.lr)"),
        ("statistics of B1 and B3 count", "with self.w.statistics_kept():", "if True:"),
        ("adapt_steps is ignored", "steps = self.settings.adapt_steps", "steps = 1"),
    ],
    "methods/pfedme.py": [
        ("lambda is ignored by theta", "Pull(settings.lambda_)", "Pull(5.0)"),
        ("lambda is ignored by w", "alpha=self.settings.lambda_)", "alpha=5.0)"),
        ("inner_steps is ignored", "range(self.settings.inner_steps)", "range(5)"),
        ("inner_lr is ignored", '"reset", self.settings.inner_lr)', '"reset")'),
        ("theta's moments persist", '"reset", self.settings.inner_lr)',
         '"persist", self.settings.inner_lr)'),
        ("beta is ignored", "beta = self.settings.beta", "beta = 1.0"),
        ("theta goes on from its last round", 'site.learner("theta", shared[self.part])',
         'site.learner("theta", site.private.get("theta", shared[self.part]))'),
        ("w goes away from theta", "w - self.theta.parameters", "self.theta.parameters - w"),
        ("statistics of an untrained w", ".with_statistics_of(theta)", ""),
    ],
    "methods/scaffold.py": [
        ("wrong sign", "(c - c_k).trainable", "(c_k - c).trainable"),
        ("control from corrected gradients", "total.add_(y.grad)\n        y.grad.add_(correction)",
         "y.grad.add_(correction)\n        total.add_(y.grad)"),
        ("correction is ignored",
         'by_gradient if self.settings.correction == "gradient" else by_direction', "by_gradient"),
        ("server_lr is ignored", "self.settings.server_lr)", "1.0)"),
        ("freeze_controls is ignored", "c_k if self.settings.freeze_controls else new", "new"),
        ("absent sites lose their share of c", "(answered, means", "(1.0, means"),
        ("sends the control, not its change", 'site.private["control"] - c_k',
         'site.private["control"]'),
        ("option II without the correction", "(steps * y.lr) - correction", "(steps * y.lr)"),
        ("stale control", 'site.private.get("control", Weights.zeros(c.layout))',
         "Weights.zeros(c.layout)"),
    ],
    "methods/selector.py": [
        ("every site is the first", "torch.full((len(x),), site.index",
         "torch.full((len(x),), 0"),
        ("gradients are not summed", 'labels, reduction="sum")', "labels)"),
        ("mean gradient is not divided", "self.w_s.gradient() * (1 / images)",
         "self.w_s.gradient() * 1.0"),
        ("selector_lr is ignored at the server", "lr = self.lr or training.lr", "lr = training.lr"),
        ("betas are ignored at the server", "lr=lr, betas=betas)", "lr=lr)"),
        ("Adam at the server forgets", "shared[SELECTOR], shared[SERVER_MOMENTS],",
         "shared[SELECTOR], Weights.zeros(shared[SERVER_MOMENTS].layout),"),
        ("absent sites are forgotten", "shared[SERVER_MEANS] + means[IMAGE_MEANS]",
         "means[IMAGE_MEANS]"),
        ("wrong means are taken", 'return wrong and f"{IMAGE_MEANS}: {wrong}"', 'return ""'),
        ("moments stay at the site", '"average_moments": (Selector, "average")',
         '"average_moments": (Selector, "persist")'),
    ],
    "methods/silobn.py": [
        ("scale and shift stay", "AveragedButNorms(norm_statistics)",
         "AveragedButNorms(lambda layout: "
         "frozenset(e.name for e in layout.entries if e.group == 'norm'))"),
    ],
    "ingredients/finetune.py": [
        ("epochs ends the search one early", "range(1, epochs + 1)", "range(1, epochs)"),
        ("the last is kept", "if score > best_score:", "if True:"),
        ("the latest of equals", "if score > best_score:", "if score >= best_score:"),
        ("all is trained", "None if self.only is None else self.only(self.model.initial.layout)",
         "None"),
        ("moments go on", '(self.context.network, "reset", self.lr, only)',
         '(self.context.network, "persist", self.lr, only)'),
        ("lr is ignored", '"reset", self.lr, only)', '"reset", None, only)'),
        ("in every round", "if site.round > self.context.rounds:", "if True:"),
        ("every epoch has the same order", 'f"fine-tuning {epoch}"', '"fine-tuning"'),
    ],
    "ingredients/learner.py": [
        ("gradients are left from before",
         "self.bound.grad.zero_()\n        self.bound.net.train()",
         "self.bound.net.train()"),
        ("moments are left from before", "self.optimizer.state.clear()", "pass"),
        ("lr is ignored", "self.lr = lr or training.lr", "self.lr = training.lr"),
        ("weight_decay is ignored by Adam",
         "betas=training.betas, weight_decay=training.weight_decay", "betas=training.betas"),
        ("betas are ignored", "betas=training.betas, ", ""),
        ("momentum is ignored", "momentum=training.momentum", "momentum=0.0"),
        ("values are not put back", "self.parameters.copy_(own)", "pass"),
        ("statistics are not put back", "buffer.copy_(before)", "pass"),
        ("an exponential mean of statistics", "layer.momentum = None  #", "pass  #"),
        ("all is trained", "trainable.intersection(names)", "trainable"),
    ],
    "ingredients/partition.py": [
        ("statistics of norm layers travel", 'if e.group == "norm")',
         'if e.group == "norm" and e.kind == "trainable")'),
        ("no warning", "[] if self.own else [warning]", "[]"),
        ("the last layer whatever is asked", "re.search(head, name) is not None", "last"),
        ("a head of everything is taken", "if not 0 < len(found) < everything:",
         "if not 0 < len(found):"),
    ],
    "ingredients/piece.py": [
        ("trains_own is ignored", "None if self.trains_own else self.others", "None"),
        ("step is ignored", "self.step(self.w, self.site.task.loss(self.w(x), y), self.began)",
         "plain_step(self.w, self.site.task.loss(self.w(x), y), self.began)"),
        ("the anchor moves", "self.began = self.w.parameters.clone()",
         "self.began = self.w.parameters"),
        ("own entries are not kept", "self.site.private[self.kept] = trained.only(self.own)",
         "pass"),
        ("own entries are begun anew", "site.private.setdefault(self.kept,",
         "site.private.__setitem__(self.kept,"),
        ("all sites count alike", "trained, weight=self.site.images)", "trained, weight=1)"),
        ("the optimiser's policy is ignored", "(self.context.network, self.optimizer, only=only)",
         "(self.context.network, only=only)"),
        ("the server's optimiser is not asked",
         "if self.server:\n            self.server.merge",
         "if False:\n            self.server.merge"),
        ("a personal model begun anew", 'site.private.setdefault("personal", shared["global"])',
         'site.private["personal"] = shared["global"]'),
        ("a personal model is not kept", 'self.site.private["personal"] = self.v.weights()',
         "pass"),
    ],
    "ingredients/proximal.py": [
        ("pushes away", "model.grad.add_(model.parameters - anchor, alpha=self.mu)",
         "model.grad.sub_(model.parameters - anchor, alpha=self.mu)"),
        ("decoupled without the rate", "alpha=model.lr * self.mu", "alpha=self.mu"),
        ("decoupled from after the step",
         "model.apply()\n        if away is not None:",
         "model.apply()\n        if away is not None:\n"
         "            away = model.parameters - anchor"),
    ],
    "ingredients/server_optimizer.py": [
        ("momentum with the wrong sign", "(-self.eta * self.beta, v)", "(self.eta * self.beta, v)"),
        ("velocity forgets", "mix([(self.beta, v), (1.0, w), (-1.0, mean)])",
         "mix([(1.0, w), (-1.0, mean)])"),
        ("v begins at 0", 'self.tau**2 if moment == "v" else 0.0', "0.0"),
        ("bias correction", "self.eta * m / (v.sqrt()",
         "self.eta * m / (1 - self.beta1) / (v.sqrt()"),
        ("delta is not squared", "delta.square())", "delta.abs())"),
        ("tau inside the root", "(v.sqrt() + self.tau)", "(v + self.tau).sqrt()"),
        ("Yogi with the other sign", "(v - squares).sign()", "(squares - v).sign()"),
        ("statistics stay", "means[part].replaced(stepped)", "shared[part].replaced(stepped)"),
        ("moments travel", 'f"{SERVER_ONLY}{part}.{moment}"', 'f"{part}.{moment}"'),
    ],
    "ingredients/site.py": [
        ("moments persist whatever the policy",
         '{"persist": self.private, "average": self._shared, "reset": {}}',
         '{"persist": self.private, "average": self.private, "reset": self.private}'),
        ("moments are never kept", 'if policy == "persist":', "if False:"),
        ("moments count alike", "upload.weights.get(name, self.images)", "1.0"),
        ("statistics of others", "weights if own is None else weights.with_statistics_of(own)",
         "weights"),
        ("the order of every round alike", "(self.context.seed, self.name, self.round,",
         "(self.context.seed, self.name,"),
        ("purposes share an order", "*([purpose] if purpose else [])", "*[]"),
        ("epochs share an order", '"order", epoch)', '"order")'),
        ("local_epochs is ignored", "training.local_epochs if epochs is None else epochs",
         "1 if epochs is None else epochs"),
    ],
    "ingredients/softpull.py": [
        ("lambda for lambda'", "(sites * lambda_ - 1) / (sites - 1)", "lambda_"),
        ("pulled the wrong way", "mix([(share, own), (1 - share, mean)]",
         "mix([(1 - share, own), (share, mean)]"),
        ("specialists count by images", 'self.site.private["personal"], weight=1)',
         'self.site.private["personal"], weight=self.site.images)'),
        ("lambda_guard is ignored", 'guarded=settings.lambda_guard == "cross-fit"',
         "guarded=True"),
        ("allow_extrapolation is ignored", "and not extrapolate:", "and True:"),
        ("personal_optimizer_state is ignored",
         "SoftPull(share, optimizer,",
         "SoftPull(share,"),
        ("the server's optimiser is not asked", "if self.server:\n            self.server.merge",
         "if False:\n            self.server.merge"),
        ("no smoothing of the line search", "SMOOTHING * now + (1 - SMOOTHING) * wanted",
         "wanted"),
        ("no smoothing of shrinkage", "SMOOTHING * old + (1 - SMOOTHING) * found", "found"),
        ("each half chooses for itself", "halves[0][chosen[1]].sum() + halves[1][chosen[0]].sum()",
         "halves[0][chosen[0]].sum() + halves[1][chosen[1]].sum()"),
        ("candidates with others' statistics", 'site.localised("personal", pulled)', "pulled"),
        ("no Spearman and Brown", "2 * cosine / (1 + cosine)", "cosine"),
        ("rho without the sizes", "(update**2 - own) / between", "update**2 / between"),
        ("correlation of all epochs", "self.marks = (0, epoch // 2, epoch)",
         "self.marks = (0, epoch, 2 * epoch)"),
        ("absent sites count in rho",
         "own /= sum(self.context.share(site) for site in means.sites)", "own /= 1.0"),
    ],
    "ingredients/soup.py": [
        ("one round later", "+ 1e-9) + 1", "+ 1e-9) + 2"),
        ("the last model answers", "new[self.part] = new[self.kept]", "pass"),
        ("not a running mean", "running_mean(shared.get(self.kept, model), averaged, model)",
         "running_mean(shared.get(self.kept, model), 1, model)"),
        ("training goes on from the soup",
         "if means.round == self.context.rounds:", "if True:"),
        ("every model enters", 'self.entry == "all" or', "True or"),
        ("all is ignored", 'self.entry == "all" or ', ""),
        ("soup forgets its size", 'tasted, size + 1', "tasted, 1"),
        ("the soup's statistics are not recomputed",
         "site.recalibrated(running_mean(soup or model, size, model))",
         "running_mean(soup or model, size, model)"),
        ("the soup does not answer", 'soup = site.private.get("soup")\n        return',
         "soup = None\n        return"),
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One of them, and the tests that must notice it."""

    file: str  # within konsil/
    name: str
    old: str
    new: str

    @property
    def tests(self) -> tuple[str, ...]:
        """Within tests/."""
        return TESTS.get(self.file, (f"methods/test_{Path(self.file).stem}.py",))

    def put_into(self, text: str) -> str:
        """The file's text with the fault in it."""
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self}: its old text is there {text.count(self.old)} times, not once"
            )
        return text.replace(self.old, self.new)

    def __str__(self) -> str:
        return f"konsil/{self.file}: {self.name}"


def all_faults() -> list[Fault]:
    """Every fault, in the order of the list."""
    return [Fault(file, *fault) for file, faults in FAULTS.items() for fault in faults]

"""The resolved plan, as it is printed before round 1."""

import re
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from konsil.config import ComputeConfig
from konsil.federation.compression import Coding, packed_layouts
from konsil.federation.plan import Plan, own_training
from konsil.ingredients.method import Method
from konsil.tasks import task_settings

SPLITS = ("train", "val", "test")
SIDES = {"left", "right"}
BETWEEN_WORDS = re.compile(r"[^a-z]+")  # what parts the words of a label


def print_plan(console: Console, plan: Plan, warnings: Sequence[str] = ()) -> None:
    """Sites, settings, what travels, what the server sees."""
    e = plan.experiment
    methods = {job.method: plan.method(job) for job in plan.jobs[:: len(e.seeds)]}
    console.print(headline(plan), highlight=False)
    for line in own_training_lines(plan):
        console.print(line, highlight=False, markup=False)
    console.print(sites_table(plan))
    console.print(traffic_table(methods, e.server.coding))
    notes = [*warnings, *(f"{t}: {w}" for t, m in methods.items() for w in m.warnings())]
    if e.server.deadline and e.engine.name == "inprocess":
        notes.append("server.deadline means nothing to the inprocess engine")
    notes += mirrored(plan) + beginning(plan)
    for note in notes:
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False)


def headline(plan: Plan) -> str:
    """The settings of every method that has none of its own, in three lines."""
    e, t = plan.experiment, plan.training_of(plan.experiment.training)
    strength = "" if t.augment == "none" else f" x {t.augment_strength:.2g}"
    beta = e.server.momentum_among(len(plan.sites))
    pushed = f", the server's momentum {beta:.2g}" if beta else ""
    falling = "" if t.schedule == "constant" else f", {t.schedule}"
    normalise = "per-image normalisation" if e.task.normalise else "no normalisation"
    size = e.federation.image_size
    chosen = plan.resolved()["network"]
    network = chosen.get("target") or chosen["name"]
    settings = "".join(f", {k} {v}" for k, v in task_settings(e.task).model_dump().items())
    engine = e.engine.name + (f", {e.engine.workers} workers" if e.engine.workers else "")
    return (
        f"[bold]{e.name}[/]  plan {plan.hash}\n"
        f"{e.task.name} of {escape(', '.join(plan.labels))} with {network}{escape(settings)}, "
        f"{size} x {size} x {plan.channels}, {normalise}, "
        f"augmentation {t.augment}{strength}\n"
        f"{e.rounds} rounds of {t.local_epochs} local epoch(s), batch {t.batch_size}, "
        f"{t.optimizer} {t.lr:g}{falling}{pushed}, seeds {', '.join(map(str, e.seeds))}; {engine}, "
        f"{e.compute.device}, {e.compute.threads} thread(s) a site{other_ways(plan)}"
    )


def other_ways(plan: Plan) -> str:
    """In what other than the plain way a site computes."""
    plain, own = ComputeConfig(), plan.experiment.compute
    keys = ("precision", "memory_format")
    return "".join(f", {getattr(own, k)}" for k in keys if getattr(own, k) != getattr(plain, k))


def own_training_lines(plan: Plan) -> Iterator[str]:
    """A line for every method whose local work is not that of the headline."""
    for method in plan.experiment.methods:
        own = own_training(plan.experiment, method)
        if own:
            yield f"{method.title}'s own: " + ", ".join(f"{k} {v}" for k, v in own.items())


def mirrored(plan: Plan) -> list[str]:
    """Labels of one side that flips would teach to stand on the other; nothing without flips."""
    settings = (plan.training(job) for job in plan.jobs)
    flips = any(t.augment != "none" and t.augment_flips != "none" for t in settings)
    sided = [label for label in plan.labels if set(BETWEEN_WORDS.split(label.lower())) & SIDES]
    if not (flips and sided):
        return []
    return [
        f"images are flipped from left to right while they train, and {' and '.join(sided)} "
        "with them: say --set training.augment_flips=none if the two sides must be told apart"
    ]


def beginning(plan: Plan) -> list[str]:
    """With which file the network begins, and what of it does not fit; nothing without one."""
    if plan.pretrained is None:
        return []
    context = plan.context(plan.jobs[0], plan.sites)
    said = [f"the network begins with {plan.pretrained}"]
    reshaped = plan.pretrained.reshaped(context.drawn(context.network).layout)
    if reshaped:
        said.append(
            f"{plan.pretrained.path.name} is of another number of outputs than "
            f"{context.network.outputs}: {', '.join(reshaped)} begin at random"
        )
    return said


def sites_table(plan: Plan) -> Table:
    """Sites with their numbers of images."""
    table = Table("site", *(f"{s} images" for s in SPLITS), title="Sites", title_justify="left")
    for site in plan.sites:
        table.add_row(site, *(str(plan.counts[site][s]) for s in SPLITS))
    table.add_section()
    totals = [str(sum(plan.counts[site][s] for site in plan.sites)) for s in SPLITS]
    table.add_row("all", *totals)
    return table


def traffic_table(methods: dict[str, Method], coding: Coding | None = None) -> Table:
    """What a site receives and sends in a round, and what the server sees of it."""
    table = Table(
        "method", "parts, in values", "a site receives", "sends", "the server sees",
        title="One round", title_justify="left",
    )  # fmt: skip
    for title, method in methods.items():
        initial = method.initial_parts()
        received = method.sent(method.context.sites[0], initial)
        down = {n: p.layout.size for n, p in received.items()}
        uploads = method.uploads(initial)
        up = {n: lay.size for n, lay in uploads.items()}
        sizes = {n: lay.size for n, lay in packed_layouts(uploads, received, coding).items()}
        parts = ", ".join(f"{n} {_count(v)}" for n, v in {**down, **up}.items()) or "-"
        traffic = ("-", "-") if method.pooled else (_bytes(down), _bytes(sizes))
        table.add_row(title, parts, *traffic, sees(method, list(up)))
    return table


def sees(method: Method, uploads: list[str]) -> str:
    """In words, what the server learns."""
    if method.pooled:
        return "all images: between hospitals this is not possible"
    if not uploads:
        return "validation scores only"
    single = method.needs == "individual"
    text = f"each site's {', '.join(uploads)}"
    text += ", and it needs them one by one" if single else "; it keeps their means"
    if method.super_model:
        text += "; at the end each site's specialist"
    if method.describes:
        text += ", means of what the selector sees of its images, scores of every model"
    if method.travels:
        text += f"; {method.travels}"
    return text + "; validation scores"


def _count(values: int) -> str:
    return f"{values / 1e6:.2f} M" if values >= 1e5 else f"{values / 1e3:.1f} k"


def _bytes(parts: dict[str, int]) -> str:
    size = 4 * sum(parts.values())
    return f"{size / 1e6:.2f} MB" if size else "nothing"

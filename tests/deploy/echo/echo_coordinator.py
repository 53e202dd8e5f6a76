"""A coordinator that sends what the experiment says, and writes down what comes back."""

import hashlib
import json
import resource
import time
from functools import partial

from konsil.deploy.sessions import Outcome
from konsil.errors import KonsilError
from konsil.federation.messages import Failure


def content(site: str, number: int, size: int) -> bytes:
    """Bytes that nobody else gets."""
    seed = hashlib.sha256(f"{site} {number}".encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def of_size(site: str, number: int, sizes: dict[str, int]) -> bytes:
    return content(site, number, sizes[site])


def peak() -> int:
    """The most megabytes that this process has ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 10**6


def coordinate(experiment, roster, link, folder, observers=(), plugins=()):
    folder.mkdir(parents=True, exist_ok=True)
    Outcome.forget(folder)
    for number, step in enumerate(experiment["steps"]):
        if step.get("once") and (folder / f"{number}.json").exists():
            continue
        if "fail" in step:
            Outcome("failed", step["fail"]).write(folder)
            raise KonsilError(step["fail"])
        sizes = step.get("sizes", dict.fromkeys(roster, 100))
        message = partial(of_size, number=number, sizes=sizes)  # made when it is asked for
        sums = {s: hashlib.sha256(message(s)).hexdigest() for s in sizes}
        begun, answers = time.monotonic(), []
        for site, answer in link.send(step["topic"], list(sizes), message, step.get("deadline")):
            failed = isinstance(answer, Failure)
            answers.append([site, answer.reason if failed else hashlib.sha256(answer).hexdigest()])
            del answer
        facts = {
            "answers": answers,
            "expected": sums,
            "seconds": time.monotonic() - begun,
            "peak": peak(),
        }
        (folder / f"{number}.json").write_text(json.dumps(facts))
        for observer in observers:
            observer({"event": "step", "number": number})
    Outcome("finished").write(folder)

"""A process that opens strangers' files and asks the super model about them.

A file may be made to crash or to bloat whoever opens it: here that costs one process, which has a
limit of memory, and which the pool ends when it takes too long. Run as a command it works on the
pipe whose descriptor it is given.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from konsil.errors import KonsilError
from konsil.serve.limits import MB
from konsil.serve.messages import Question, Reply

if TYPE_CHECKING:
    from konsil.supermodel import SuperModel

STATUS = Path("/proc/self/status")  # Linux alone has it; elsewhere memory has no limit
OUT_OF_MEMORY = ("can't allocate memory", "bad_alloc", "cannot allocate", "Unable to allocate")


def main() -> None:
    """Say what the model is, then answer until the pipe is closed."""
    connection = Connection(int(sys.argv[1]))
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):  # the server has gone
        setup = json.loads(connection.recv_bytes())
        try:
            model, described = prepared(setup)
        except KonsilError as error:
            connection.send_bytes(Reply.problem(500, str(error)).to_bytes())
            return
        connection.send_bytes(Reply(200, described).to_bytes())
        limit_memory(setup["memory_mb"] * MB)
        gc.freeze()  # what is there now stays: torch's many objects are not looked at again
        while True:
            reply = answered(model, Question.from_bytes(connection.recv_bytes()))
            connection.send_bytes(reply.to_bytes())


def prepared(setup: dict[str, Any]) -> tuple[SuperModel, bytes]:
    """The model, ready to answer, and what everybody may know of it as JSON."""
    import torch

    from konsil.federation.compute import keep_freed_memory
    from konsil.registry import load_plugins
    from konsil.serve.answers import describe
    from konsil.supermodel import SuperModel

    torch.set_num_threads(setup["threads"])
    keep_freed_memory()
    load_plugins([Path(path) for path in setup["plugins"]])
    model = SuperModel.load(Path(setup["model"]), setup["device"])
    facts = describe(model, setup["name"], setup["upload_mb"])
    size, channels = facts.image_size, facts.channels
    model.answer(torch.zeros(1, channels, size, size))  # networks are built before the limit
    return model, facts.model_dump_json().encode()


def limit_memory(more: int) -> None:
    """From now on this process may take so many bytes more; the kernel refuses what is beyond."""
    with suppress(OSError):
        lines = STATUS.read_text().splitlines()
        used = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (used + more, used + more))


def answered(model: SuperModel, question: Question) -> Reply:
    """The reply to a question, whatever goes wrong with it."""
    from konsil.serve.answers import reply_to

    try:
        return reply_to(model, question)
    except KonsilError as error:
        return Reply.problem(422, str(error).replace(f"{question.folder}/", ""))
    except MemoryError:
        return too_large()
    except Exception as error:
        if any(words in str(error) for words in OUT_OF_MEMORY):
            return too_large()
        traceback.print_exc()  # for who runs the server; a client learns nothing of it
        return Reply.problem(500, "the server could not answer; its log says why", spent=True)


def too_large() -> Reply:
    """What needs more memory than it may have; who knows what is left of the heap."""
    return Reply.problem(413, "to open this takes more memory than one question may", spent=True)


if __name__ == "__main__":
    main()

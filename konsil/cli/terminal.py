"""What all commands write to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

console = Console()
problems = Console(stderr=True)
INTERRUPTED = 130  # exit code, as shells have it
Report = Callable[[str, int, int], None]  # what, how many are done, of how many


def say(text: str) -> None:
    """Text as it is: no markup, no colours of numbers, no broken paths."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def progress() -> Iterator[Report]:
    """A bar for each thing reported, on the error stream, so that --json stays clean."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=problems,
        transient=True,
        disable=not problems.is_terminal,
    )
    with bar:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield report

"""What all commands write to."""

from rich.console import Console

console = Console()
problems = Console(stderr=True)
INTERRUPTED = 130  # exit code, as shells have it


def say(text: str) -> None:
    """Text as it is: no markup, no colours of numbers, no broken paths."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)

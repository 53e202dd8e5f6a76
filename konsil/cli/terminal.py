"""What all commands write to."""

from rich.console import Console

console = Console()
problems = Console(stderr=True)
INTERRUPTED = 130  # exit code, as shells have it

"""What a person sees while a run goes on: rounds, sites, validation, time left."""

import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class ProgressBar:
    """Bars on a terminal; a line every tenth of a job where there is none."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            TextColumn("{task.fields[news]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self.bars.add_task("", visible=False, news="")
        self._job, self._means = "", ""
        self._first, self._rounds, self._began = 0, 0, 0.0

    def __call__(self, event: dict[str, Any]) -> None:
        """Show one event, if it is one to be shown."""
        show = getattr(self, f"_{event['event']}", None)
        if show is not None:
            show(event)

    def start(self) -> None:
        """Begin to draw on the terminal."""
        self.bars.start()

    def close(self) -> None:
        """Stop drawing, and leave the last line."""
        self.bars.stop()

    def _job_started(self, event: dict[str, Any]) -> None:
        self._job, self._means = event["job"], ""
        self._first, self._rounds, self._began = event["done"], event["rounds"], time.monotonic()
        self.bars.reset(
            self._task, description=self._job, total=self._rounds, completed=self._first,
            visible=True, news="",
        )  # fmt: skip

    def _site_done(self, event: dict[str, Any]) -> None:
        self.bars.update(self._task, news=f"{self._means} [dim]{escape(event['site'])}[/]")

    def _validated(self, event: dict[str, Any]) -> None:
        self._means = "  ".join(f"{name} {value:.3f}" for name, value in event["means"].items())

    def _round_done(self, event: dict[str, Any]) -> None:
        self.bars.update(self._task, completed=event["round"], news=self._means)
        tenth = max(1, self._rounds // 10)
        if not self.console.is_terminal and event["round"] % tenth == 0:
            done = event["round"] - self._first
            left = (time.monotonic() - self._began) / done * (self._rounds - event["round"])
            self.console.print(
                f"{self._job}: round {event['round']}/{self._rounds}, "
                f"about {left:.0f} s left; validation: {self._means}",
                highlight=False,
            )

    def _site_missing(self, event: dict[str, Any]) -> None:
        where = f"{self._job}, round {event['round']}"
        self.say(f"{where}: {event['site']} is missing: {event['reason']}", "yellow")

    def _upload_refused(self, event: dict[str, Any]) -> None:
        self.say(event["reason"], "red")

    def say(self, text: str, style: str = "") -> None:
        """Whatever an error said, as it is: brackets in it are no markup."""
        self.console.print(Text(text, style), soft_wrap=True)

    def _examining(self, event: dict[str, Any]) -> None:
        self.bars.update(self._task, news=f"evaluating the {event['checkpoint']} checkpoints")

    def _job_failed(self, event: dict[str, Any]) -> None:
        self.say(event["reason"], "yellow")

    def _job_done(self, event: dict[str, Any]) -> None:
        scores = ", ".join(f"{role} {value:.3f}" for role, value in event["score"].items())
        line = f"{event['job']}: done in {event['seconds']:.0f} s; validation {scores}"
        self.console.print(line, highlight=False)

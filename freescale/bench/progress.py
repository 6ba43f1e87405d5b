"""How far a run is, on stderr: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from freescale.bench.config import RunConfig

_LINES = 10  # in all, where there is no terminal


@contextlib.contextmanager
def progress(config: RunConfig, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Yields what `launch` calls with the number of steps done and expected (0: not known yet)."""
    console = Console(stderr=True)
    if quiet:
        yield lambda done, expected: None
    elif console.is_terminal:
        with _bar(config, console) as update:
            yield update
    else:
        yield _Lines(config)


@contextlib.contextmanager
def _bar(config: RunConfig, console: Console) -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(f"{config.preset} · starting {config.ranks} ranks", total=None)

        def update(done: int, expected: int) -> None:
            what = "training steps" if done else f"starting {config.ranks} ranks"
            shown.update(task, completed=done, total=expected or None, description=f"{config.preset} · {what}")

        yield update


class _Lines:
    def __init__(self, config: RunConfig) -> None:
        self._preset, self._said, self._began_s = config.preset, 0, 0.0
        self._began_at = 0

    def __call__(self, done: int, expected: int) -> None:
        if not done:
            return
        if not self._began_s:
            self._began_s, self._began_at = time.monotonic(), done
        tenths = _LINES * done // expected if expected else 0
        if tenths <= self._said or done == self._began_at:
            return
        self._said = tenths
        left_s = (time.monotonic() - self._began_s) / (done - self._began_at) * max(0, expected - done)
        click.echo(f"{self._preset}: {done} of {expected} steps, about {left_s / 60:.1f} min left", err=True)

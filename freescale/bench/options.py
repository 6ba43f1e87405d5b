"""Options that every verb has which starts a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from freescale.balance.policies import POLICIES
from freescale.bench.config import RunConfig
from freescale.bench.session import in_torchrun
from freescale.errors import FreeScaleError

DEFAULT = RunConfig()
Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--ranks", type=int, help=f"Ranks to start on this host.  [default: {DEFAULT.ranks}]"),
    click.option("--warmup", default=DEFAULT.warmup_steps, show_default=True, help="Untimed steps before those."),
    click.option("--profiled-steps", default=DEFAULT.profiled_steps, show_default=True, help="Steps in each trace."),
    click.option("--seed", default=DEFAULT.seed, show_default=True, help="Of batches, weights and the order of arms."),
    click.option("--data", type=click.Path(exists=True, dir_okay=False), help="Interaction log to train on."),
    click.option("--column", "columns", multiple=True, metavar="MEANING=NAME", help="Column of --data, e.g. user=uid."),
    click.option("--device", type=click.Choice(["cpu", "cuda"]), default=DEFAULT.device, show_default=True),
    click.option(
        "--policy", type=click.Choice(POLICIES), default=DEFAULT.policy, show_default=True, help="Of the balance layer."
    ),
    click.option("--collision-rate", type=float, help="Share of a batch's item rows that the batch before used too."),
    click.option("--link-gbps", type=float, help="Emulate a link of this bandwidth per rank; marks the run emulated."),
    click.option("--link-latency-us", default=DEFAULT.link_latency_us, show_default=True, help="Latency of that link."),
    click.option(
        "--out", default="runs", show_default=True, type=click.Path(file_okay=False), help="Where runs are kept."
    ),
    click.option(
        "--stall-timeout",
        default=DEFAULT.stall_timeout_s,
        show_default=True,
        help="Seconds of silence that end the run.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print report.json, and nothing else, on stdout."),
)


def run_options(command: Command) -> Command:
    """Decorate a command with them; the values that `config_of` takes go to it as `**options`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def config_of(
    ranks: int | None, warmup: int, columns: tuple[str, ...], stall_timeout: float, **fields: Any
) -> RunConfig:
    """The configuration that the options ask for; `fields` go into it by name."""
    return RunConfig(
        ranks=_world_size(ranks),
        warmup_steps=warmup,
        columns=_parse_columns(columns),
        stall_timeout_s=stall_timeout,
        **fields,
    )


def _world_size(ranks: int | None) -> int:
    if not in_torchrun():
        return DEFAULT.ranks if ranks is None else ranks
    world_size = int(os.environ["WORLD_SIZE"])
    if ranks not in (None, world_size):
        raise FreeScaleError(f"ranks: {ranks}, but torchrun started {world_size}; leave --ranks out")
    return world_size


def _parse_columns(columns: tuple[str, ...]) -> dict[str, str]:
    pairs = [column.partition("=") for column in columns]
    for column, (meaning, _, name) in zip(columns, pairs, strict=True):
        if not meaning or not name:
            raise FreeScaleError(f"column: {column!r}, expected MEANING=NAME, for example user=uid")
    return {meaning: name for meaning, _, name in pairs}

"""Measure what each layer is worth: every combination of the three, and the reference a second time.

PRESET is a workload (see `freescale-bench workloads`). The eight combinations of balance, overlap and smfree and an A/A
copy of the reference take turns in randomized blocks on the same batches from the same state, inside one launch. The
report gives each layer's Shapley value with its interval, alone and last, interactions, and which layer removed which
bubble. Without --blocks and --budget-min it takes 12 blocks, or as many as fit into 13 minutes.

A run that was stopped goes on with --resume RUN: it loses the turn that it was in.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from freescale.bench.arms import BASELINE, SDD, ablation_arms
from freescale.bench.config import DEFAULT_PRESET
from freescale.bench.options import DEFAULT, config_of, run_options
from freescale.bench.session import begin, describe, resume
from freescale.errors import FreeScaleError

DEFAULT_BLOCKS, DEFAULT_BUDGET_MIN = 12, 13.0
_MOST_BLOCKS = 10_000  # no budget is long enough for more
_WITH_RESUME = {"resumed", "budget_min", "as_json", "force"}


@click.command("ablate", help=__doc__)
@click.argument("preset", default=DEFAULT_PRESET)
@click.option(
    "--baseline",
    type=click.Choice(["blocking", "sdd"]),
    default="blocking",
    show_default=True,
    help="What layers are added to; on top of sdd, every arm exchanges IDs a step ahead.",
)
@click.option("--steps", default=DEFAULT.steps, show_default=True, help="Timed steps of an arm in a block.")
@click.option("--blocks", type=int, help="Randomized rounds of all arms; with --budget-min, at most so many.")
@click.option("--budget-min", type=float, help="Minutes to spend: as many blocks as fit.")
@click.option(
    "--resume", "resumed", type=click.Path(path_type=Path), metavar="RUN", help="Go on with a run that was stopped."
)
@click.option("--force", is_flag=True, help="Resume although machine or versions are others than before.")
@run_options
@click.pass_context
def command(
    context: click.Context,
    preset: str,
    baseline: str,
    blocks: int | None,
    budget_min: float | None,
    resumed: Path | None,
    force: bool,
    out: str,
    as_json: bool,
    **options: Any,
) -> None:
    if resumed is not None:
        _refuse_with_resume(context)
        resume(resumed, budget_min, as_json, force)
        return
    if force:
        raise click.UsageError("--force goes with --resume")
    if blocks is None and budget_min is None:
        blocks, budget_min = DEFAULT_BLOCKS, DEFAULT_BUDGET_MIN
    try:
        reference = SDD if baseline == "sdd" else BASELINE
        config = config_of(
            preset=preset, arms=(), blocks=_MOST_BLOCKS if blocks is None else blocks, budget_min=budget_min, **options
        )
        cannot_act = {"balance": "one rank has nobody to share with"} if config.ranks == 1 else {}
        config, workload = describe(replace(config, arms=ablation_arms(reference, without=cannot_act)))
    except FreeScaleError as error:
        raise click.UsageError(str(error)) from error
    begin(config, workload, Path(out), as_json, cannot_act)


def _refuse_with_resume(context: click.Context) -> None:
    """A resumed run is what it was started as."""
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    other = [parameter for parameter in context.command.params if parameter.name in set(given) - _WITH_RESUME]
    if other:
        names = ", ".join(parameter.opts[0] for parameter in other)
        raise click.UsageError(f"--resume goes on with the run as it was started; leave out {names}")

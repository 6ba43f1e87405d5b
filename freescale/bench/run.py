"""Run a workload on real ranks, one arm against another, and say what it showed.

PRESET is a workload (see `freescale-bench workloads`). The arms take turns in randomized blocks on the same batches
from the same state; timed steps run without a profiler, and a separate pass records what the time went into.

Started by torchrun, the command takes part as one rank of many hosts; rank 0 writes the run directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from freescale.bench.arms import parse_arms
from freescale.bench.config import DEFAULT_PRESET
from freescale.bench.options import DEFAULT, config_of, run_options
from freescale.bench.session import begin, describe
from freescale.errors import FreeScaleError


@click.command("run", help=__doc__)
@click.argument("preset", default=DEFAULT_PRESET)
@click.option(
    "--arms", default=",".join(DEFAULT.arms), show_default=True, help="Arms; the others are compared with the first."
)
@click.option("--steps", default=DEFAULT.steps, show_default=True, help="Timed steps of an arm in a block.")
@click.option("--blocks", default=DEFAULT.blocks, show_default=True, help="Randomized rounds of all arms.")
@run_options
def command(arms: str, out: str, as_json: bool, **options: Any) -> None:
    try:
        config = config_of(arms=tuple(arm.name for arm in parse_arms(arms)), **options)
        config, workload = describe(config)
    except FreeScaleError as error:
        raise click.UsageError(str(error)) from error
    begin(config, workload, Path(out), as_json)

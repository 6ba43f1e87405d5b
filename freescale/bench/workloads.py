"""List the workloads that `run` knows, and the history-length distributions behind them.

`--data FILE` of `run` trains the same models on an interaction log instead of generated batches.
"""

from __future__ import annotations

import json
from typing import Any

import click


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
def command(as_json: bool) -> None:
    listing = _listing()
    click.echo(json.dumps(listing, indent=2) if as_json else _text(listing))


def _listing() -> dict[str, Any]:
    from workloads import lengths, registry  # imports torch: only when the verb is used

    distributions = {}
    for name in lengths.NAMES:
        distribution = lengths.named(name)
        distributions[name] = {
            "shape": distribution.shape,
            "spread": round(distribution.spread, 4),
            "median": distribution.median,
            "mean": round(distribution.mean(), 1),
            "min": distribution.minimum,
            "max": distribution.cap,
            "source": distribution.source,
        }
    presets = {name: registry.build(config, seed=0).describe() for name, config in registry.PRESETS.items()}
    return {"default": registry.DEFAULT_PRESET, "presets": presets, "lengths": distributions}


def _text(listing: dict[str, Any]) -> str:
    lines = ["Workloads (PRESET of `freescale-bench run`)"]
    for name, preset in listing["presets"].items():
        history, candidates, model = preset["history"], preset["candidates"], preset["model"]
        tables = ", ".join(f"{table} {spec['rows']:,} × {spec['dim']}" for table, spec in preset["tables"].items())
        lines += [
            "",
            f"  {name}" + (" (default)" if name == listing["default"] else ""),
            f"    {preset['samples_per_rank']} samples per rank, {candidates['min']} to {candidates['max']} candidates",
            f"    histories {history['distribution']}: median {history['median']:,.0f}, mean {history['mean']:,.0f}, "
            f"{history['min']:,} to {history['max']:,} events",
            f"    HSTU: {model['layers']} layers of {model['dim']}, {model['heads']} heads",
            f"    tables: {tables}",
            f"    item IDs Zipf {preset['zipf_exponent']:g}, collision rate {preset['requested_collision_rate']}",
        ]
    lines += ["", "History lengths"]
    for name, distribution in listing["lengths"].items():
        lines += [
            "",
            f"  {name}: {distribution['shape']}, spread {distribution['spread']:g}, median "
            f"{distribution['median']:,.0f}, mean {distribution['mean']:,.0f}, {distribution['min']:,} to "
            f"{distribution['max']:,} events",
            f"    {distribution['source']}",
        ]
    return "\n".join(lines)

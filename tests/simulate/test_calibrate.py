"""Calibration: from measured rows to constants, given back exactly where they were planted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from freescale.bench import calibrate
from freescale.errors import FreeScaleError
from freescale.simulate.cluster import parse
from freescale.simulate.cost import PIECES

ISSUE_NS, LATENCY_NS, NS_PER_BYTE = 20_000, 300_000, 0.7


def planted_rows() -> list[dict]:
    """Rows of a machine on which every piece costs 3 ns per unit and 50 µs each."""
    rng = np.random.default_rng(0)
    rows = []
    for piece, units in PIECES.items():
        for _ in range(30):
            amounts = {unit: float(rng.integers(1_000, 1_000_000)) for unit in units}
            issue = ISSUE_NS if piece in ("distribute", "tell", "read", "give", "split", "announce", "move") else 0
            rows.append({"piece": piece, "amounts": amounts, "ns": 50_000 + 3 * sum(amounts.values()) + issue})
    for nbytes in (1e3, 1e5, 1e6, 1e7):
        size = {"nbytes": nbytes}
        rows += [
            {"piece": "gloo", "amounts": size, "ns": ISSUE_NS + LATENCY_NS + NS_PER_BYTE * nbytes},
            {"piece": "gloo_issue", "amounts": size, "ns": ISSUE_NS},
            {"piece": "gloo_reduce", "amounts": size, "ns": ISSUE_NS + LATENCY_NS + 2 * NS_PER_BYTE * nbytes},
            {"piece": "shared", "amounts": size, "ns": ISSUE_NS + 5_000 + 0.1 * nbytes},
            {"piece": "shared_issue", "amounts": size, "ns": 10_000 + 0.1 * nbytes},
        ]
    rows.append({"piece": "bucket", "amounts": {"nbytes": 1 << 17}, "ns": 7_000})
    rows.append({"piece": "alone", "amounts": {}, "ns": 400 * 1_000})
    rows.append({"piece": "beside", "amounts": {"times": 100.0}, "ns": 100 * 1_250})
    return rows


def test_costs_that_were_planted_are_found_again() -> None:
    constants, pieces, errors = calibrate.fit(planted_rows())
    for piece, units in PIECES.items():
        assert pieces[piece]["each"] == pytest.approx(50_000, rel=1e-3)
        assert [pieces[piece][unit] for unit in units] == pytest.approx([3.0] * len(units), rel=1e-3)
    assert max(errors.values()) < 0.1
    assert constants["gloo_ns_per_byte"] == pytest.approx(NS_PER_BYTE)
    assert constants["gloo_reduce_ns_per_byte"] == pytest.approx(2 * NS_PER_BYTE)
    assert constants["gloo_latency_us"] == pytest.approx(LATENCY_NS / 1e3)
    assert constants["issue_us"] == ISSUE_NS / 1e3
    assert constants["shared_ns_per_byte"] == pytest.approx(0.1)
    assert constants["gloo_core_share"] == pytest.approx(0.2)


def test_the_file_it_writes_is_a_cluster() -> None:
    constants, pieces, errors = calibrate.fit(planted_rows())
    written = parse(calibrate.as_toml(constants, pieces, errors, 2, "hstu-tiny"), "this-machine.toml")
    assert written.device == "cpu"
    assert written["gloo_core_share"] == pytest.approx(constants["gloo_core_share"], rel=1e-5)
    assert set(written.pieces) == set(PIECES)
    assert all(source.startswith("measured") for source in written.sources.values())


def test_a_piece_that_was_not_measured_is_named() -> None:
    rows = [row for row in planted_rows() if row["piece"] != "update"]
    with pytest.raises(FreeScaleError, match="nothing was measured of update"):
        calibrate.fit(rows)


@pytest.mark.parametrize(
    ("arguments", "message"), [(["--ranks", "1"], "ranks: 1"), (["--presets", "x"], "no workload")]
)
def test_wrong_usage_is_said_before_anything_is_measured(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(calibrate.command, arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.multiprocess
def test_a_calibration_of_two_ranks_can_be_simulated_with(tmp_path) -> None:
    out = tmp_path / "here.toml"
    arguments = ["--presets", "hstu-tiny", "--batches", "4", "--out", str(out), "--json"]
    result = CliRunner().invoke(calibrate.command, arguments)
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.output)["pieces"]) == set(PIECES)
    from freescale.bench.simulate import command

    arguments = ["hstu-tiny", "--cluster", str(out), "--ranks", "2", "--blocks", "2", "--steps", "2"]
    simulated = CliRunner().invoke(command, [*arguments, "--out", str(tmp_path / "runs"), "--json"])
    assert simulated.exit_code == 0, simulated.output
    report = json.loads(simulated.output)
    assert report["provenance"] == "simulated"
    assert report["arms"]["baseline"]["step_ms"]["median"] > 0

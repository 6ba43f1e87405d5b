"""Calibration: constants that were planted are found again, what is written can be read, and what failed is named."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from freescale.bench import calibrate
from freescale.bench.calibration_fit import STEP_PIECES, fit
from freescale.errors import FreeScaleError
from freescale.simulate.cluster import parse
from freescale.simulate.cost import PIECES

RANKS = 2
ISSUE_NS, LATENCY_NS, NS_PER_BYTE, REST_NS = 20_000, 300_000, 0.7, 2_000_000
ISSUING = ("distribute", "tell", "read", "give", "split", "announce", "move")


def planted_rows(wall_noise: float = 0.0) -> list[dict[str, Any]]:
    """Rows of a machine on which every piece costs 3 ns per unit and 50 µs each, 4 ns per unit under the profiler."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for number in range(30):
        for rank in range(RANKS):
            of_step = 0
            slower = np.exp(wall_noise * rng.standard_normal())
            for profiled in (False, True):
                place = {"preset": "p", "batch": number, "whole": True, "lanes": "gloo", "profiled": profiled}
                for piece, units in PIECES.items():
                    if piece == "rest":
                        continue
                    amounts = {unit: float(rng.integers(1_000, 1_000_000)) for unit in units}
                    issue = ISSUE_NS if piece in ISSUING else 0
                    cpu_ns = 50_000 + (4 if profiled else 3) * sum(amounts.values()) + issue
                    of_step += cpu_ns if piece in STEP_PIECES and not profiled else 0
                    row = {"piece": piece, "rank": rank, "ordinal": number, "start_ns": 0, "amounts": amounts}
                    rows.append({**row, "ns": cpu_ns * slower, "cpu_ns": cpu_ns, **place})
            step = {"piece": "step", "rank": rank, "ordinal": number, "start_ns": 0, "amounts": {}}
            place = {"preset": "p", "batch": number, "whole": True}
            rows.append({**step, "ns": 0, "cpu_ns": of_step + REST_NS + 3 * ISSUE_NS, **place})
    return rows + planted_exchanges()


def planted_exchanges() -> list[dict[str, Any]]:
    """Exchanges for which rank 1 is a millisecond late, and what they do to the compute beside them."""
    rows: list[dict[str, Any]] = []
    for ordinal, nbytes in enumerate((1e3, 1e5, 1e6, 1e7)):
        gloo_ns = ISSUE_NS + LATENCY_NS + NS_PER_BYTE * nbytes
        shared_ns = 15_000 + 0.3 * nbytes
        lasting = {
            "gloo exchange": gloo_ns,
            "gloo": gloo_ns,
            "gloo_reduce": gloo_ns + NS_PER_BYTE * nbytes,
            "shared_memory exchange": shared_ns,
            "shared": shared_ns,
        }
        for rank in range(RANKS):
            late = 1_000_000 * rank
            common = {"rank": rank, "ordinal": ordinal, "start_ns": late, "amounts": {"nbytes": nbytes}}
            for piece, ns in lasting.items():
                rows.append({"piece": piece, "ns": ns + 1_000_000 - late, "cpu_ns": 0, **common})
            under = {**common, "ordinal": ordinal + 100, "profiled": True}
            rows.append({"piece": "gloo exchange", "ns": 2 * gloo_ns + 1_000_000 - late, "cpu_ns": 0, **under})
            rows.append({"piece": "gloo_issue", "ns": 90_000, "cpu_ns": ISSUE_NS, **common})
            rows.append({"piece": "shared_issue", "ns": 90_000, "cpu_ns": 10_000 + 0.1 * nbytes, **common})
    common = {"rank": 0, "ordinal": 0, "start_ns": 0, "cpu_ns": 0}
    rows.append({"piece": "alone", "ns": 400 * 1_000, "amounts": {}, **common})
    rows.append({"piece": "beside", "ns": 100 * 1_250, "amounts": {"times": 100.0}, **common})
    return rows


def test_costs_that_were_planted_are_found_again() -> None:
    found = fit(planted_rows())
    for piece, units in PIECES.items():
        if piece == "rest":
            continue
        for pieces, ns in ((found.pieces, 3.0), (found.profiled, 4.0)):
            assert pieces[piece]["each"] == pytest.approx(50_000, rel=1e-3)
            assert [pieces[piece][unit] for unit in units] == pytest.approx([ns] * len(units), rel=1e-3)
    assert found.pieces["rest"] == {"each": pytest.approx(REST_NS)}
    assert max(found.errors_pct.values()) < 0.1
    assert found.wall_pct == pytest.approx(0, abs=0.01)
    constants = found.constants
    assert constants["gloo_ns_per_byte"] == pytest.approx(NS_PER_BYTE)
    assert constants["gloo_reduce_ns_per_byte"] == pytest.approx(2 * NS_PER_BYTE)
    assert constants["gloo_latency_us"] == pytest.approx(LATENCY_NS / 1e3)
    assert constants["profiled_gloo_ns_per_byte"] == pytest.approx(2 * NS_PER_BYTE)
    assert constants["issue_us"] == ISSUE_NS / 1e3
    assert constants["shared_issue_us"] == pytest.approx(10)
    assert constants["shared_latency_us"] == pytest.approx(5)
    assert constants["shared_ns_per_byte"] == pytest.approx(0.1)
    assert constants["shared_fetch_ns_per_byte"] == pytest.approx(0.2)
    assert constants["gloo_core_share"] == pytest.approx(0.2)
    assert constants["jitter"] == pytest.approx(0, abs=1e-3)


def test_noise_that_was_planted_in_the_wall_time_of_each_rank_is_found_again() -> None:
    assert fit(planted_rows(wall_noise=0.2)).constants["jitter"] == pytest.approx(0.2, rel=0.4)


def test_what_disturbed_a_batch_once_of_three_times_changes_nothing() -> None:
    calm = [row for row in planted_rows() if row["piece"] in PIECES]
    disturbed = [{**row, "cpu_ns": row["cpu_ns"] * 9} for row in calm]
    others = [row for row in planted_rows() if row["piece"] not in PIECES]
    assert fit([*disturbed, *calm, *calm, *others]).pieces == fit([*calm, *others]).pieces


def test_the_file_it_writes_is_a_cluster() -> None:
    found = fit(planted_rows())
    written = parse(calibrate.as_toml(found, 2, "hstu-tiny"), "this-machine.toml")
    assert written.device == "cpu"
    assert written["gloo_core_share"] == pytest.approx(found.constants["gloo_core_share"], rel=1e-5)
    assert set(written.pieces) == set(written.profiled) == set(PIECES)
    assert all(source.startswith("measured") for source in written.sources.values())
    profiled = written.under_the_profiler
    assert profiled.pieces == written.profiled
    assert profiled["gloo_ns_per_byte"] == pytest.approx(2 * NS_PER_BYTE)
    assert profiled["gloo_core_share"] == written["gloo_core_share"]


def test_a_piece_that_was_not_measured_is_named() -> None:
    rows = [row for row in planted_rows() if row["piece"] != "update"]
    with pytest.raises(FreeScaleError, match="nothing was measured of update"):
        fit(rows)


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

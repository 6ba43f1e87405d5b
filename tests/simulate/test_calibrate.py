"""Calibration: constants that were planted are found again, what is written can be read, and what failed is named."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from freescale.bench import calibrate
from freescale.bench.calibration_fit import IN_TURNS, STEP_PIECES, fit
from freescale.errors import FreeScaleError
from freescale.simulate.cluster import parse
from freescale.simulate.cost import PIECES

RANKS = 2
CALL_NS, CALL_BESIDE_NS, LATENCY_NS, NS_PER_BYTE, REST_NS = 20_000, 45_000, 300_000, 0.7, 2_000_000
ISSUING = ("distribute", "read", "give", "split", "announce", "move")


def planted_rows(noise: float = 0.0) -> list[dict[str, Any]]:
    """Rows of a machine on which every piece costs 3 ns per unit and 50 µs each; under the profiler 4 ns per unit, of
    which a quarter are pauses."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for number in range(30):
        for rank in range(RANKS):
            slower = np.exp(noise * rng.standard_normal())
            for profiled in (False, True):
                of_step = 0
                place = {"preset": "p", "batch": number, "whole": True, "profiled": profiled}
                where = {"rank": rank, "ordinal": number, "start_ns": 0}
                for piece, units in PIECES.items():
                    if piece == "rest":
                        continue
                    in_turn = piece in IN_TURNS
                    amounts = {unit: float(rng.integers(1_000, 1_000_000)) for unit in units}
                    work_ns = 50_000 + (4 if profiled else 3) * sum(amounts.values())
                    work_ns *= slower if in_turn else 1
                    call_ns = CALL_BESIDE_NS if in_turn else CALL_NS if piece in ISSUING else 0
                    of_step += (work_ns + (0 if profiled else call_ns)) if piece in STEP_PIECES else 0
                    took = {"ns": work_ns + call_ns, "cpu_ns": work_ns + call_ns}
                    took |= {"busy_ns": work_ns, "pause_ns": work_ns / 4} if profiled else {}
                    how = {"turn": "baseline"} if in_turn else {"lanes": "gloo"}
                    rows.append({"piece": piece, "amounts": amounts, **where, **took, **place, **how})
                took = {"ns": 0, "cpu_ns": of_step + REST_NS + CALL_BESIDE_NS}
                took |= {"busy_ns": of_step + REST_NS, "pause_ns": of_step / 4 + REST_NS / 2} if profiled else {}
                rows.append({"piece": "step", "amounts": {}, **where, **took, **place, "turn": "baseline"})
    return rows + planted_exchanges() + planted_calls()


def planted_calls() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for turn, lane, ns in (
        (None, "ids", CALL_NS),
        ("baseline", "bulk", 30_000),
        ("baseline", "ids", 30_000),
        ("baseline", "data", CALL_BESIDE_NS),
    ):
        row = {"piece": f"gloo call {lane}", "rank": 0, "ordinal": 0, "start_ns": 0, "ns": 9 * ns, "cpu_ns": ns}
        rows.append({**row, "amounts": {"nbytes": 8.0}, "profiled": False, **({"turn": turn} if turn else {})})
    return rows


def planted_exchanges() -> list[dict[str, Any]]:
    """Exchanges for which rank 1 is a millisecond late, what the traces show of some, and what they do to compute."""
    rows: list[dict[str, Any]] = []
    for ordinal, nbytes in enumerate((1e3, 1e5, 1e6, 1e7)):
        gloo_ns = CALL_NS + LATENCY_NS + NS_PER_BYTE * nbytes
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
            rows.append({"piece": "shared_issue", "ns": 90_000, "cpu_ns": 10_000 + 0.1 * nbytes, **common})
    for rank, nbytes, late in ((0, 1e4, 0.5), (1, 3e4, 1.5)):  # a mean of 1: half the calls take half as long
        seen = (
            ("baseline", "bulk", 100_000, 100_000 + 400_000 * late + 2 * NS_PER_BYTE * nbytes, 0),
            ("baseline", "data", 200_000, 0, 1_200_000 * late + 200_000 + NS_PER_BYTE * nbytes),
            ("overlap", "ids", 200_000, 0, 1_200_000 * late + 200_000 + NS_PER_BYTE * nbytes),
            ("baseline", "dense", 200_000, 200_000 + 900_000 * late + 2 * NS_PER_BYTE * nbytes, 0),
            ("smfree", "bulk", 60_000 * late + 0.2 * nbytes, 60_000 * late + 0.2 * nbytes + 80_000, 0),
        )
        for arm, group, issue_ns, exposed_ns, transfer_ns in seen:
            row = {"piece": "recorded", "arm": arm, "group": group, "rank": rank, "amounts": {}, "nbytes": nbytes}
            rows.append({**row, "issue_ns": issue_ns, "exposed_ns": exposed_ns, "transfer_ns": transfer_ns})
        rows += [
            {**row, "arm": arm}
            for row in rows
            if row["piece"] == "recorded" and row["rank"] == rank and row["group"] == "dense"
            for arm in ("overlap", "smfree")
        ]
    common = {"rank": 0, "ordinal": 0, "start_ns": 0, "cpu_ns": 0}
    rows += [{"piece": "pause", "rank": rank, "amounts": {}, "ns": 4_000 + 2_000 * rank} for rank in range(RANKS)]
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
        assert found.pauses[piece] == pytest.approx(0.25)
    assert found.pieces["rest"] == {"each": pytest.approx(REST_NS)}
    assert found.profiled["rest"] == {"each": pytest.approx(REST_NS)}
    assert found.pauses["rest"] == pytest.approx(0.5)
    assert max(found.errors_pct.values()) < 0.1
    assert found.wall_pct == pytest.approx(0, abs=0.01)
    constants = found.constants
    assert constants["gloo_ns_per_byte"] == pytest.approx(NS_PER_BYTE)
    assert constants["gloo_reduce_ns_per_byte"] == pytest.approx(2 * NS_PER_BYTE)
    assert constants["gloo_latency_us"] == pytest.approx(LATENCY_NS / 1e3)
    assert constants["profiled_gloo_ns_per_byte"] == pytest.approx(2 * NS_PER_BYTE)
    assert constants["issue_us"] == 30
    assert constants["issue_beside_us"] == CALL_BESIDE_NS / 1e3
    assert constants["shared_issue_us"] == pytest.approx(10)
    assert constants["shared_latency_us"] == pytest.approx(5)
    assert constants["shared_ns_per_byte"] == pytest.approx(0.1)
    assert constants["shared_fetch_ns_per_byte"] == pytest.approx(0.2)
    assert constants["gloo_core_share"] == pytest.approx(0.2)
    assert constants["pause_us"] == pytest.approx(5)
    assert constants["jitter"] < 5e-3  # of the fit
    assert constants["profiled_jitter"] < 5e-3


def test_what_exchanges_cost_where_they_occur_is_a_mean_of_what_the_traces_show() -> None:
    constants = fit(planted_rows()).constants
    assert constants["profiled_issue_us"] == pytest.approx(100)
    assert constants["profiled_issue_beside_us"] == pytest.approx(200)
    assert constants["profiled_gloo_latency_us"] == pytest.approx(400)  # exposed, less its call and its bytes
    assert constants["gloo_beside_latency_us"] == pytest.approx(1_200)
    assert constants["gloo_reduce_latency_us"] == pytest.approx(900)
    assert constants["profiled_shared_latency_us"] == pytest.approx(80)
    shared_ns = constants["profiled_shared_issue_us"] * 1e3 + constants["profiled_shared_ns_per_byte"] * 2e4
    assert shared_ns == pytest.approx(60_000 + 0.2 * 2e4)


def test_noise_that_was_planted_in_forward_and_backward_of_each_rank_is_found_again() -> None:
    constants = fit(planted_rows(noise=0.2)).constants
    assert constants["jitter"] == pytest.approx(0.2, rel=0.3)
    assert constants["profiled_jitter"] == pytest.approx(0.2, rel=0.3)


def test_what_disturbed_a_batch_once_of_three_times_changes_nothing() -> None:
    calm = [row for row in planted_rows() if row["piece"] in PIECES]
    disturbed = [{**row, **{name: row[name] * 9 for name in ("cpu_ns", "busy_ns") if name in row}} for row in calm]
    others = [row for row in planted_rows() if row["piece"] not in PIECES]
    expected, found = fit([*calm, *others]), fit([*disturbed, *calm, *calm, *others])
    assert (found.pieces, found.profiled) == (expected.pieces, expected.profiled)


def test_the_file_it_writes_is_a_cluster() -> None:
    found = fit(planted_rows())
    written = parse(calibrate.as_toml(found, 2, "hstu-tiny"), "this-machine.toml")
    assert written.device == "cpu"
    assert written["gloo_core_share"] == pytest.approx(found.constants["gloo_core_share"], rel=1e-5)
    assert set(written.pieces) == set(written.profiled) == set(PIECES)
    assert written.pauses == pytest.approx(found.pauses)
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


def test_rows_of_several_calibrations_are_kept_apart_by_batch_and_ordinal() -> None:
    row = {"piece": "step", "batch": 3, "ordinal": 5}
    first, second = (calibrate._numbered(row, number) for number in (0, 1))
    assert (first["batch"], first["ordinal"]) == (3, 5)
    assert first["batch"] != second["batch"]
    assert first["ordinal"] != second["ordinal"]
    assert (first["calibration"], second["calibration"]) == (0, 1)


def test_a_file_that_calibrate_did_not_keep_is_refused_before_anything_is_measured(tmp_path) -> None:
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("not json\n")
    with pytest.raises(FreeScaleError, match=r"wrong\.jsonl: not written by calibrate --keep"):
        calibrate._kept(wrong, 2)
    wrong.write_text(json.dumps({"rank": 0, "calibration": 0}) + "\n")
    with pytest.raises(FreeScaleError, match="of 1 ranks, not 2"):
        calibrate._kept(wrong, 2)


@pytest.mark.multiprocess
def test_a_calibration_of_two_ranks_can_be_simulated_with(tmp_path) -> None:
    out = tmp_path / "here.toml"
    kept = tmp_path / "kept.jsonl"
    arguments = ["--presets", "hstu-tiny", "--batches", "4", "--out", str(out), "--keep", str(kept), "--json"]
    result = CliRunner().invoke(calibrate.command, arguments)
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.output)["pieces"]) == set(PIECES)
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert {row["calibration"] for row in rows} == {0}
    assert calibrate.as_toml(fit(rows), 2, "hstu-tiny").split("[pieces")[1:] == out.read_text().split("[pieces")[1:]
    from freescale.bench.simulate import command

    arguments = ["hstu-tiny", "--cluster", str(out), "--ranks", "2", "--blocks", "2", "--steps", "2"]
    simulated = CliRunner().invoke(command, [*arguments, "--out", str(tmp_path / "runs"), "--json"])
    assert simulated.exit_code == 0, simulated.output
    report = json.loads(simulated.output)
    assert report["provenance"] == "simulated"
    assert report["arms"]["baseline"]["step_ms"]["median"] > 0

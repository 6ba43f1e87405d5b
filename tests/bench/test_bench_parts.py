"""Arms, configuration and heartbeats refuse what makes no sense, and say what would."""

from __future__ import annotations

from pathlib import Path

import pytest

from freescale.bench.arms import parse_arms
from freescale.bench.config import RunConfig
from freescale.bench.heartbeat import Beat, Heartbeats, hung_ranks
from freescale.errors import FreeScaleError


def test_arms_are_kept_in_order_with_their_layers() -> None:
    arms = parse_arms("balance, baseline,sdd,overlap+balance,freescale")
    assert [(arm.name, arm.layers) for arm in arms] == [
        ("balance", ["balance"]),
        ("baseline", []),
        ("sdd", []),
        ("overlap+balance", ["balance", "overlap"]),
        ("freescale", ["balance", "overlap", "smfree"]),
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("baseline,turbo", "arms: 'turbo' does not exist; choose from baseline, sdd, balance, overlap, smfree, "),
        ("baseline+overlap", "arms: 'baseline+overlap' does not exist"),
        ("", "arms: none given; for example --arms baseline,balance"),
        ("balance,baseline,balance", "arms: balance given twice; name each arm once"),
    ],
)
def test_arms_that_do_not_exist_are_refused(names: str, message: str) -> None:
    with pytest.raises(FreeScaleError) as error:
        parse_arms(names)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("ranks", 0, "ranks: 0, must be at least 1"),
        ("blocks", 0, "blocks: 0, must be at least 1"),
        ("warmup_steps", -1, "warmup_steps: -1, must be at least 0"),
        ("stall_timeout_s", 1, "stall_timeout_s: 1, must be at least 5"),
        ("device", "tpu", "device: 'tpu', must be cpu or cuda"),
    ],
)
def test_configuration_names_field_value_and_range(field: str, value: object, message: str) -> None:
    with pytest.raises(FreeScaleError) as error:
        RunConfig(**{field: value})  # type: ignore[arg-type]
    assert str(error.value) == message


def test_configuration_survives_the_way_to_the_ranks(tmp_path: Path) -> None:
    config = RunConfig(arms=("balance",), columns={"user": "uid"}, seed=7, data="log.csv")
    config.save(tmp_path / "config.json")
    assert RunConfig.load(tmp_path / "config.json") == config


def test_heartbeats_of_one_process_are_read_by_another_mapping(tmp_path: Path) -> None:
    writer, reader = (Heartbeats(tmp_path / "page", 2) for _ in range(2))
    writer.start(1)
    writer.beat(1)
    writer.beat(1, step_done=True)
    silent, alive = reader.read()
    assert silent == Beat(0, 0, 0, 0)
    assert (alive.steps_done, alive.beats) == (1, 3)
    assert alive.pid > 0


def test_the_rank_that_hangs_is_told_from_those_that_wait_for_it() -> None:
    beats = [Beat(1, 5, 20, 9), Beat(2, 5, 18, 3), Beat(3, 5, 20, 8)]
    none, last, first = [False] * 3, [False, False, True], [True, False, False]
    assert hung_ranks(beats, stopped=none, busy=none) == [1]
    assert hung_ranks(beats, stopped=none, busy=last) == [2]
    assert hung_ranks(beats, stopped=first, busy=last) == [0]
    assert hung_ranks([Beat(1, 5, 20, 1), Beat(2, 5, 20, 2)], [False] * 2, [False] * 2) == [0, 1]

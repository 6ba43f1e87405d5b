"""`select` takes the best path that exists, says why in one line, and names what is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from freescale.bench.doctor import command
from freescale.comm.peers import Host
from freescale.comm.select import ON_A_GPU, TRANSPORTS, RankReport, Topology, paths, report_here, select, survey
from freescale.errors import FreeScaleError

NOTHING = dict.fromkeys(TRANSPORTS, "")
HERE, CONTAINER, THERE = Host("node-a", "1", "pid:[1]"), Host("node-a", "1", "pid:[2]"), Host("node-b", "2", "pid:[1]")


def topology(*hosts: Host, **lacks: str) -> Topology:
    return Topology(tuple(RankReport(host, NOTHING | lacks) for host in hosts))


def test_cpu_ranks_of_one_host_share_memory() -> None:
    chosen = select("cpu", topology(HERE, HERE))
    assert chosen.name == "shared_memory"
    assert chosen.line.startswith("shared_memory: one copy through memory")
    assert "\n" not in chosen.line


def test_cpu_ranks_of_two_hosts_fall_back_to_the_process_group_and_shared_memory_says_why() -> None:
    apart = topology(HERE, HERE, THERE)
    assert select("cpu", apart).name == "process_group"
    with pytest.raises(FreeScaleError, match="shared_memory needs all ranks on one host, these are on 2"):
        select("cpu", apart, "shared_memory")


def test_ranks_in_two_containers_of_a_host_are_told_apart() -> None:
    with pytest.raises(FreeScaleError, match="one container, these are in several of node-a"):
        select("cpu", topology(HERE, CONTAINER), "shared_memory")


def test_gpus_of_one_host_use_copy_engines_and_say_that_nobody_has_tried() -> None:
    chosen = select("cuda", topology(HERE, HERE))
    assert chosen.name == "copy_engine"
    assert chosen.line.endswith("(unverified: has not run on a GPU yet)") or ON_A_GPU["copy_engine"]


def test_gpus_of_two_hosts_stage_through_them() -> None:
    chosen = select("cuda", topology(HERE, THERE))
    assert chosen.name == "host_staged"
    assert "gloo between hosts" in chosen.why


def test_what_one_rank_lacks_is_named_with_the_rank() -> None:
    mixed = Topology((RankReport(HERE, NOTHING), RankReport(HERE, NOTHING | {"copy_engine": "no NVLink here"})))
    assert select("cuda", mixed).name == "host_staged"
    with pytest.raises(FreeScaleError, match="rank 1: no NVLink here"):
        select("cuda", mixed, "copy_engine")


def test_an_unknown_transport_is_answered_with_the_known_ones() -> None:
    with pytest.raises(FreeScaleError, match="'rdma' is none of shared_memory, copy_engine"):
        select("cpu", topology(HERE), "rdma")


def test_every_transport_is_judged_once_in_one_line() -> None:
    for device in ("cpu", "cuda"):
        judged = paths(device, topology(HERE, THERE, shared_memory="not Linux"))
        assert sorted(path.name for path in judged) == sorted(TRANSPORTS)
        assert all(len(path.line.splitlines()) == 1 for path in judged)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_gpu_paths_name_the_gpu() -> None:
    lacks = report_here("cuda").lacks
    for name in ("copy_engine", "zero_cta", "host_staged", "process_group"):
        assert "torch sees none" in lacks[name]


def _survey_and_open(rank: int, world_size: int) -> tuple[str, int, list[str]]:
    surveyed = survey("cpu")
    chosen = select("cpu", surveyed)
    lanes = chosen.open(["bulk", "urgent"])
    total = int(lanes["urgent"].all_gather(torch.tensor([rank])).wait().sum())
    for lane in lanes.values():
        lane.close()
    return chosen.name, total, surveyed.hosts


@pytest.mark.multiprocess
def test_ranks_survey_each_other_and_open_what_was_chosen(run_ranks: Any) -> None:
    for name, total, hosts in run_ranks(_survey_and_open, 3):
        assert name == "shared_memory"
        assert total == 3
        assert len(hosts) == 1


def test_doctor_names_every_path_and_prints_nothing_but_json_when_asked() -> None:
    text = CliRunner().invoke(command, [])
    assert text.exit_code == 0
    for name in TRANSPORTS:
        assert name in text.output
    findings = json.loads(CliRunner().invoke(command, ["--json"]).output)
    assert findings["devices"]["cpu"]["use"] == "shared_memory"
    assert {"cores", "memory", "/dev/shm", "driver", "NVLink domain", "torch"} <= set(findings["facts"])
    for path in findings["devices"]["cpu"]["paths"]:
        assert path["why"], path

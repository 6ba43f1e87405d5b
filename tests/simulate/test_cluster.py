"""Cluster and scenario files: every constant has a source and a range; what is wrong is named with its place."""

from __future__ import annotations

from importlib.resources import files

import pytest

from freescale.errors import FreeScaleError
from freescale.simulate import cluster, scenario


def text_of(name: str) -> str:
    return files("freescale.simulate").joinpath(f"clusters/{name}.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", cluster.PACKAGED)
def test_every_constant_of_a_packaged_cluster_has_a_source(name: str) -> None:
    loaded = cluster.load(name)
    assert set(loaded.values) == set(cluster.RANGES) == set(loaded.sources)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("value = 989", "value = -1"), r"constants\.tflop_per_s: -1, expected a number from 0\.0001 to 100000"),
        (('source = "NVIDIA H100 SXM datasheet: HBM3"', 'source = " "'), r"memory_gb_per_s: no source"),
        (("jitter =", "jittre ="), r"constants\.jitter: missing"),
        (('device = "cuda"', 'device = "tpu"'), r"device: 'tpu', expected cuda or cpu"),
        (('name = "h100-ib"', "name = 3"), r"name: missing, expected a text"),
        (("[constants]", "[constants"), r"not valid TOML"),
    ],
)
def test_a_wrong_cluster_file_is_named_with_field_and_range(change: tuple[str, str], message: str) -> None:
    text = text_of("h100-ib")
    assert change[0] in text
    with pytest.raises(FreeScaleError, match=message) as error:
        cluster.parse(text.replace(*change), "my.toml")
    assert "my.toml" in str(error.value)


def test_swept_constants_are_checked_and_called_swept() -> None:
    swept = cluster.load("h100-ib").with_values({"nic_gb_per_s": 5})
    assert swept["nic_gb_per_s"] == 5
    assert swept.sources["nic_gb_per_s"] == "swept"
    with pytest.raises(FreeScaleError, match=r"cluster\.nccl_sm_share: 2, expected a number from 0 to 0\.95"):
        swept.with_values({"nccl_sm_share": 2})
    with pytest.raises(FreeScaleError, match="no such constant"):
        swept.with_values({"speed": 2})


def test_an_unknown_cluster_or_one_not_measured_says_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FreeScaleError, match=r"neither a \.toml file nor one of h100-ib"):
        cluster.load("b200")
    with pytest.raises(FreeScaleError, match="freescale-bench calibrate"):
        cluster.load("this-machine")


@pytest.mark.parametrize("name", scenario.names())
def test_packaged_scenarios_say_what_they_assume(name: str) -> None:
    loaded = scenario.load(name)
    assert loaded.assumed
    assert scenario.points(loaded.sweep)
    cluster.load(loaded.settings["cluster"])


def test_a_sweep_is_every_combination() -> None:
    sweep = scenario.parse_sweep(["ranks=8,16", "workload.collision_rate=0.1,none"])
    assert len(scenario.points(sweep)) == 4
    assert scenario.points(sweep)[-1] == {"ranks": 16, "workload.collision_rate": None}
    with pytest.raises(FreeScaleError, match="expected KEY=A,B,C"):
        scenario.parse_sweep(["ranks"])


def test_a_cluster_says_how_far_its_simulations_were_off() -> None:
    assert "its error is not known" in cluster.load("h100-ib").accuracy
    text = text_of("h100-ib")
    compared = cluster.parse(
        text + '[fidelity."baseline"]\nstep = 4.2\nstraggler = 31\n[fidelity."a+b"]\nstep = 7\n', "f"
    )
    assert compared.fidelity == {"baseline": {"step": 4.2, "straggler": 31.0}, "a+b": {"step": 7.0}}
    assert compared.accuracy.endswith("worst of 2 arms: step 7 %, straggler 31 %")
    with pytest.raises(FreeScaleError, match=r"fidelity\.baseline\.step: 'x', expected a number from 0 on"):
        cluster.parse(text + '[fidelity."baseline"]\nstep = "x"\n', "f")
    with pytest.raises(FreeScaleError, match=r"pieces: expected tables, \[pieces.NAME\]"):
        cluster.parse(text + "[pieces]\nbegin = 3\n", "f")

"""Runs are found, opened and, above all, not opened when a name points elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer.errors import AnalyzerError
from dashboard.data import RunStore, open_run
from dashboard.pages import links


def test_runs_are_listed_newest_first_damaged_ones_too(runs_root: Path, names: dict[str, str]) -> None:
    listed = [run.name for run in RunStore(runs_root).runs()]
    assert listed == sorted(names.values(), reverse=True)


def test_a_single_run_directory_shows_that_run_alone(runs_root: Path, names: dict[str, str]) -> None:
    store = RunStore(runs_root / names["plain"])
    assert [run.name for run in store.runs()] == [names["plain"]]
    assert store.open(names["plain"]).complete
    with pytest.raises(AnalyzerError, match="No run named"):
        store.open(names["eight"])


def test_a_missing_folder_is_one_line_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(AnalyzerError, match="no such folder; make a run first"):
        RunStore(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["..", ".", "", "../runs", "/etc", "a/../b", "%2e%2e", "..\\..", "\x00"])
def test_names_that_are_paths_open_nothing(runs_root: Path, name: str) -> None:
    with pytest.raises(AnalyzerError, match="No run named"):
        RunStore(runs_root).open(name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(max_size=40))
def test_only_names_in_the_folder_open(runs_root: Path, name: str) -> None:
    if name not in os.listdir(runs_root):
        with pytest.raises(AnalyzerError, match="No run named"):
            RunStore(runs_root).open(name)


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path, rundirs: ModuleType) -> None:
    rundirs.write_run(tmp_path / "elsewhere", "secret")
    root = tmp_path / "runs"
    rundirs.write_run(root, "mine")
    (root / "link").symlink_to(tmp_path / "elsewhere" / "secret")
    store = RunStore(root)
    assert [run.name for run in store.runs()] == ["mine"]
    with pytest.raises(AnalyzerError, match="No run named"):
        store.open("link")


@given(st.text(min_size=1, max_size=30).filter(lambda name: "/" not in name and name.isprintable()))
def test_links_lead_back_to_the_name_they_were_made_from(name: str) -> None:
    path, _, search = links.run_link(name, "timeline", arm=name).partition("?")
    address = links.parse(path, f"?{search}")
    assert (address.run, address.page, address.query) == (name, "timeline", {"arm": name})


@pytest.mark.parametrize("path", ["/nothing", "/run", "/run/a/b/c", "/assets/x"])
def test_other_addresses_are_no_page(path: str) -> None:
    assert links.parse(path, None).page is None


def test_a_run_that_changes_is_read_again(tmp_path: Path, rundirs: ModuleType) -> None:
    path = rundirs.write_run(tmp_path, "run", analysed=False)
    store = RunStore(tmp_path)
    assert not store.open("run").analysed
    rundirs.write_run(tmp_path, "run")
    assert store.open("run").analysed
    assert store.open("run") is store.open("run")
    assert path.is_dir()


def test_a_column_that_is_missing_is_named(tmp_path: Path, rundirs: ModuleType) -> None:
    path = rundirs.write_run(tmp_path, "run")
    run = open_run(path)
    run.steps.drop(columns="wait_ms").to_parquet(path / "steps.parquet")
    with pytest.raises(AnalyzerError, match=r"steps\.parquet: no column 'wait_ms'"):
        _ = open_run(path).steps


def test_a_run_that_died_says_which_rank_and_why(runs_root: Path, names: dict[str, str]) -> None:
    run = RunStore(runs_root).open(names["died"])
    assert not run.complete
    assert run.why_incomplete == "rank 1: killed by signal 9 (SIGKILL)"


def test_the_rank_that_died_is_named_once(tmp_path: Path, rundirs: ModuleType) -> None:
    failure = {"rank": 1, "reason": "rank 1 was killed by SIGKILL", "log_tail": ""}
    assert open_run(rundirs.write_run(tmp_path, "run", failure=failure)).why_incomplete == failure["reason"]


def test_provenance_that_is_not_known_never_passes_for_measured(tmp_path: Path, rundirs: ModuleType) -> None:
    assert open_run(rundirs.write_run(tmp_path, "run", provenance="guessed")).provenance == "unknown"


def test_the_arm_in_focus_is_the_last_compared_unless_asked(runs_root: Path, names: dict[str, str]) -> None:
    run = RunStore(runs_root).open(names["eight"])
    assert run.focus() == "balance+overlap"
    assert run.focus("balance") == "balance"
    assert run.focus("no such arm") == "balance+overlap"
    assert run.versus("balance") == "baseline"
    assert run.versus("baseline") is None

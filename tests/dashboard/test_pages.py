"""Every page renders, says what is wrong when it cannot, and loads nothing from another machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dash import no_update
from dash.development.base_component import Component
from plotly.utils import PlotlyJSONEncoder

from dashboard.app import create_app, drawn, exhibit_of, page
from dashboard.data import RunStore
from dashboard.pages.links import parse, run_link


def walk(content: Any) -> Iterator[Any]:
    """Every component and text of a page."""
    if isinstance(content, (list, tuple)):
        for item in content:
            yield from walk(item)
    elif content is not None:
        yield content
        if isinstance(content, Component):
            yield from walk(getattr(content, "children", None))


def text_of(content: Any) -> str:
    return " ".join(item for item in walk(content) if isinstance(item, str))


def show(root: Path, path: str, search: str = "") -> tuple[Any, str]:
    return page(RunStore(root), parse(path, search))


def by_id(content: Any, name: str) -> Any:
    return next(item for item in walk(content) if getattr(item, "id", None) == name)


@pytest.fixture
def client(runs_root: Path) -> Any:
    return create_app(RunStore(runs_root)).server.test_client()


@pytest.mark.parametrize("which", ["plain", "eight", "died", "large", "evil", "raw"])
def test_the_overview_renders_for_every_kind_of_run(which: str, runs_root: Path, names: dict[str, str]) -> None:
    content, title = show(runs_root, run_link(names[which]))
    assert title.startswith(names[which])
    assert by_id(content, "headline")
    json.dumps(content, cls=PlotlyJSONEncoder)


def test_the_overview_shows_the_reports_numbers(runs_root: Path, names: dict[str, str]) -> None:
    report = json.loads((runs_root / names["plain"] / "report.json").read_text())
    content, _ = show(runs_root, run_link(names["plain"]))
    assert by_id(content, "headline").children == report["headline"]
    assert by_id(content, "figure-speedup").children == f"{report['compare']['balance']['speedup']['value']:.2f}×"
    assert by_id(content, "figure-step-ms").children == f"{report['arms']['balance']['step_ms']['median']:.0f}\u00a0ms"
    assert by_id(content, "figure-bubble-pct").children == f"{report['arms']['balance']['bubble_pct']:.1f}\u00a0%"


def test_a_deep_link_puts_an_arm_in_focus(runs_root: Path, names: dict[str, str]) -> None:
    report = json.loads((runs_root / names["eight"] / "report.json").read_text())
    for arm in ("sdd", "balance"):
        content, _ = show(runs_root, run_link(names["eight"]), f"?arm={arm}")
        assert by_id(content, "figure-speedup").children == f"{report['compare'][arm]['speedup']['value']:.2f}×"
        assert f"{arm} against baseline" in text_of(content)


def test_a_comparison_that_could_not_be_made_is_a_dash(tmp_path: Path, rundirs: ModuleType) -> None:
    path = rundirs.write_run(tmp_path, "run")
    compare = {
        "speedup": {"value": None, "ci95": None},
        "loss_parity": {"max_abs": None, "max_rel": None, "bit_exact": None},
        "verdict": "inconclusive",
    }
    nothing = {"median": None, "ci95": None, "min": None, "n": 0}
    change_report(path, "balance", compare, step_ms=nothing, compute_ms=None)
    content, _ = show(tmp_path, run_link("run"))
    assert "Inconclusive" in text_of(content)
    assert not re.search(r"\b(nan|NaN|None)\b", text_of(content))


def change_report(path: Path, arm: str, compare: dict[str, Any] | None = None, **values: Any) -> None:
    report = json.loads((path / "report.json").read_text())
    report["arms"][arm] |= values
    if compare:
        report["compare"][arm] |= compare
    (path / "report.json").write_text(json.dumps(report))


def test_a_fast_wrong_arm_gets_no_speedup(tmp_path: Path, rundirs: ModuleType) -> None:
    path = rundirs.write_run(tmp_path, "run")
    change_report(path, "balance", {"verdict": "wrong", "loss_parity": {"max_rel": 0.01, "bit_exact": False}})
    content, _ = show(tmp_path, run_link("run"))
    assert by_id(content, "figure-speedup").children == "–"
    assert "above 1.0×10⁻⁵" in text_of(content)
    listed, _ = show(tmp_path, "/")
    assert by_id(listed, "runs").rowData[0]["speedup"] is None


def test_an_inconclusive_speedup_is_not_shown_off(tmp_path: Path, rundirs: ModuleType) -> None:
    path = rundirs.write_run(tmp_path, "run")
    change_report(path, "balance", {"verdict": "inconclusive", "blocks_needed": 16})
    content, _ = show(tmp_path, run_link("run"))
    assert by_id(content, "figure-speedup").className == "tile-value doubtful"
    assert "Speedup, inconclusive" in text_of(content)
    assert "about 16 blocks would settle it" in text_of(content)
    listed, _ = show(tmp_path, "/")
    assert by_id(listed, "runs").rowData[0]["speedup"] is None


def test_a_split_that_cannot_be_trusted_is_not_shown(tmp_path: Path, rundirs: ModuleType) -> None:
    path = rundirs.write_run(tmp_path, "run")
    change_report(path, "balance", straggler_pct=None, exposed_comm_ms=None, exposed_total_ms=31.0)
    content, _ = show(tmp_path, run_link("run"))
    assert by_id(content, "figure-exposed-total-ms").children == "31.0\u00a0ms"
    assert not any(getattr(item, "id", None) == "figure-straggler-pct" for item in walk(content))
    assert "In balance, waiting could not be told from transfer" in text_of(content)
    heat = exhibit_of(RunStore(tmp_path), {"run": "run", "exhibit": "rank-steps", "choices": {"arm": "balance"}})
    assert heat is not None
    assert "straggler" not in dict(heat.options["measure"])


def test_a_change_is_signed_and_so_is_its_interval(tmp_path: Path, rundirs: ModuleType) -> None:
    path = rundirs.write_run(tmp_path, "run")
    change_report(path, "balance", {"bubble_reduction_pct": {"value": 21.0, "ci95": [-3.0, 27.0]}})
    content, _ = show(tmp_path, run_link("run"))
    assert "−21.0\u00a0%, 95\u00a0% CI −27.0\u00a0% to 3.0\u00a0%" in text_of(content)


@pytest.mark.parametrize("which", ["died", "raw"])
def test_a_run_without_a_report_still_shows_its_step_times(which: str, runs_root: Path, names: dict[str, str]) -> None:
    content, _ = show(runs_root, run_link(names[which]))
    assert by_id(content, "step-time")
    assert "No verdict" in text_of(content)


def test_an_unknown_run_says_so_and_leads_back(runs_root: Path) -> None:
    content, _ = show(runs_root, "/run/no-such-run")
    assert "No run named 'no-such-run'" in text_of(content)
    assert any(getattr(item, "href", None) == "/" for item in walk(content))


def test_a_damaged_run_says_what_is_damaged(runs_root: Path, names: dict[str, str]) -> None:
    content, _ = show(runs_root, run_link(names["broken"]))
    assert "not readable JSON" in text_of(content)


@pytest.mark.parametrize("path", ["/nothing", "/run/../../etc/passwd", "/run/%2e%2e/x", "/run/..%2f..%2fetc"])
def test_other_addresses_are_a_clear_page(runs_root: Path, path: str) -> None:
    content, _ = show(runs_root, path)
    assert by_id(content, "trouble")


def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    content, _ = show(tmp_path, "/")
    assert "freescale-bench run" in text_of(content)


def test_the_list_has_every_run_with_its_verdict_or_the_reason(runs_root: Path, names: dict[str, str]) -> None:
    content, _ = show(runs_root, "/")
    rows = {row["name"]: row for row in by_id(content, "runs").rowData}
    assert rows.keys() == set(names.values())
    assert rows[names["plain"]]["verdict"] == "▲ Improvement"
    assert rows[names["plain"]]["href"] == run_link(names["plain"])
    assert rows[names["died"]]["headline"] == "rank 1: killed by signal 9 (SIGKILL)"
    assert rows[names["died"]]["state"] == "incomplete"
    assert "not readable JSON" in rows[names["broken"]]["headline"]
    assert rows[names["large"]]["provenance"] == "simulated"


def test_provenance_is_beside_every_figure(runs_root: Path, names: dict[str, str]) -> None:
    content, _ = show(runs_root, run_link(names["large"]))
    sources = [item.children for item in walk(content) if getattr(item, "className", None) == "source"]
    assert len(sources) == 6
    assert all(source.startswith("simulated") for source in sources)


def test_the_app_loads_everything_from_itself(client: Any) -> None:
    answer = client.get("/")
    index = answer.get_data(as_text=True)
    loaded = re.findall(r'(?:src|href)="([^"]+)"', index)
    assert loaded
    assert all(address.startswith("/") and not address.startswith("//") for address in loaded)
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert "http" not in answer.headers["Content-Security-Policy"]
    assert '"serve_locally": false' not in index


def test_every_script_the_page_names_is_served(client: Any) -> None:
    index = client.get("/").get_data(as_text=True)
    for address in re.findall(r'(?:src|href)="([^"]+)"', index):
        assert client.get(address).status_code == 200, address


def test_a_choice_of_a_card_decides_its_figure(runs_root: Path, names: dict[str, str]) -> None:
    state = {"run": names["plain"], "exhibit": "arm-split", "choices": {"unit": "pct"}}
    exhibit = exhibit_of(RunStore(runs_root), state)
    assert exhibit is not None
    assert exhibit.figure.layout.xaxis.range == (0, 100)


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        {"run": ["list"], "exhibit": "arm-split", "choices": {}},
        {"run": "PLAIN", "exhibit": "__init__", "choices": {}},
        {"run": "PLAIN", "exhibit": ["list"], "choices": {}},
        {"run": "PLAIN", "exhibit": "arm-split", "choices": None},
    ],
)
def test_a_forged_choice_draws_nothing(runs_root: Path, names: dict[str, str], state: Any) -> None:
    if isinstance(state, dict) and state.get("run") == "PLAIN":
        state = {**state, "run": names["plain"]}
    assert drawn(RunStore(runs_root), state) == (no_update,) * 4


def test_a_card_of_a_run_that_is_gone_says_so(runs_root: Path) -> None:
    state = {"run": "../elsewhere", "exhibit": "arm-split", "choices": {}}
    assert "No run named '../elsewhere'" in drawn(RunStore(runs_root), state)[1]

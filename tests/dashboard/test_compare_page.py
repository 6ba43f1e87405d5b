"""The Compare page: the gate first, then the analyzer's numbers; whatever cannot be compared says why."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dash.development.base_component import Component

import analyzer
from dashboard.app import page
from dashboard.data import RunStore
from dashboard.pages.links import compare_link, parse


def walk(content: Any) -> list[Any]:
    if isinstance(content, (list, tuple)):
        return [inner for item in content for inner in walk(item)]
    if isinstance(content, Component):
        return [content, *walk(getattr(content, "children", None))]
    return [] if content is None else [content]


def text_of(content: Any) -> str:
    return " ".join(item for item in walk(content) if isinstance(item, str))


def by_id(content: Any, name: Any) -> Any:
    return next(item for item in walk(content) if getattr(item, "id", None) == name)


def show(root: Path, a: str = "", b: str = "", *, force: bool = False) -> Any:
    path, _, search = compare_link(a, b, force=force).partition("?")
    content, title = page(RunStore(root), parse(path, f"?{search}"))
    assert title.startswith("Compare")
    return content


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, ablation_rundirs: ModuleType) -> Path:
    root = tmp_path_factory.mktemp("pair")
    ablation_rundirs.write_ablation(root, "first", blocks=4, profiled=False)
    ablation_rundirs.write_ablation(root, "second", blocks=4, profiled=False, seed=1)
    ablation_rundirs.write_ablation(root, "wider", blocks=4, profiled=False, seed=1, world_size=4)
    ablation_rundirs.write_ablation(root, "named", blocks=4, profiled=False, workload="hstu-small")
    return root


def test_the_numbers_are_the_analyzers(pair: Path) -> None:
    content = show(pair, "first", "second")
    found = analyzer.compare(pair / "first", pair / "second")
    assert by_id(content, "headline").children == found.headline
    figure = by_id(content, {"type": "figure-data", "key": "compare"}).data
    speed, relative = figure["data"]
    assert list(speed["x"]) == [arm["speedup"]["value"] for arm in found.arms.values()]
    assert list(relative["x"]) == [arm["relative"]["value"] for arm in found.arms.values()]
    text = text_of(content)
    full = found.arms["freescale"]["speedup"]
    assert f"{full['value']:.3f}× ({full['ci95'][0]:.3f} – {full['ci95'][1]:.3f})" in text
    assert all(note in text for note in found.notes)
    assert "are the same in both" in by_id(content, "gate").children


def test_runs_that_differ_stop_at_the_gate_unless_told_otherwise(pair: Path) -> None:
    gate = show(pair, "first", "wider")
    assert "Not comparable" in text_of(gate)
    assert "world_size" in text_of(by_id(gate, "gate"))
    assert not any(getattr(item, "id", None) == "headline" for item in walk(gate))
    link = next(item for item in walk(gate) if "force=1" in str(getattr(item, "href", "")))
    path, _, search = link.href.partition("?")
    forced, _ = page(RunStore(pair), parse(path, f"?{search}"))
    assert by_id(forced, "headline").children == "Not comparable: world_size differs."
    assert "world_size" in text_of(by_id(forced, "gate"))
    assert by_id(forced, "compare") is not None


def test_without_two_runs_it_asks_for_them(pair: Path, tmp_path: Path, ablation_rundirs: ModuleType) -> None:
    content = show(pair, "first")
    assert "Choose two runs" in text_of(content)
    assert by_id(content, "compare-a").value == "first"
    assert by_id(content, "compare-b").value is None
    assert by_id(content, "compare-b").data == ["wider", "second", "named", "first"]
    ablation_rundirs.write_ablation(tmp_path, "only", blocks=2, profiled=False)
    assert "only one run here" in text_of(show(tmp_path))


@pytest.mark.parametrize("other", ["no-such-run", "../first", "/etc/passwd"])
def test_a_run_that_is_not_there_is_named(pair: Path, other: str) -> None:
    content = show(pair, "first", other)
    assert f"No run named {other!r}" in text_of(by_id(content, "trouble"))


def test_a_workload_that_is_only_a_name_is_compared_as_one(pair: Path) -> None:
    found = analyzer.compare(pair / "named", pair / "first")
    assert found.comparable
    assert "are the same in both" in text_of(show(pair, "named", "first"))


def test_every_kind_of_run_is_answered(runs_root: Path, names: dict[str, str]) -> None:
    for other in names.values():
        content = show(runs_root, names["plain"], other, force=True)
        assert by_id(content, "trouble" if "broken" in other else "compare-a") is not None

"""Compare: two runs of the folder. First whether that makes sense, then how fast each arm is in one and the other."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from analyzer import compare
from analyzer.errors import AnalyzerError
from dashboard import sections
from dashboard.data import Run, RunStore
from dashboard.exhibits.compare import speeds
from dashboard.pages.cards import still
from dashboard.pages.links import compare_link, run_link

SAME = "Workload, ranks, machine, provenance and the length of a turn are the same in both."


def layout(store: RunStore, query: dict[str, str]) -> list[Any]:
    """Components of the page. `?a=` and `?b=` name the runs; `?force=1` compares runs that differ."""
    names = [run.name for run in store.runs()]
    a, b = query.get("a"), query.get("b")
    content = [
        html.Header(html.H1("Compare"), className="page-head"),
        html.Section([_side(store, "A", a, names), _side(store, "B", b, names)], className="card pair"),
    ]
    if a and b:
        try:
            return content + _result(store.open(a), store.open(b), query.get("force") == "1")
        except AnalyzerError as error:
            return [*content, _notice("These runs cannot be compared", str(error))]
    hint = "Choose two runs: A is what B is measured against." if len(names) > 1 else "There is only one run here."
    return [*content, html.P(hint, className="muted", id="hint")]


def _side(store: RunStore, side: str, chosen: str | None, names: list[str]) -> Any:
    label = f"{side}, {'what is compared with' if side == 'A' else 'what is compared'}"
    picker = dmc.Select(
        id=f"compare-{side.lower()}",
        label=label,
        data=names,
        value=chosen if chosen in names else None,
        placeholder="Choose a run",
        searchable=True,
        size="sm",
    )
    facts: list[Any] = []
    if chosen:
        try:
            run = store.open(chosen)
            said = sections.joined(
                run.workload, sections.setting(run), run.manifest.get("created_utc"), separator=" · "
            )
            facts = [
                html.P([sections.provenance_badge(run), f" {said}"]),
                html.P(dcc.Link("Open this run", href=run_link(run.name))),
            ]
        except AnalyzerError as error:
            facts = [html.P(str(error))]
    return html.Div([picker, *facts])


def _result(a: Run, b: Run, force: bool) -> list[Any]:
    found = compare(a.directory.path, b.directory.path)
    gate: Any = html.P(SAME, className="muted", id="gate")
    if not found.comparable:
        all_the_same = dcc.Link("Compare all the same", href=compare_link(a.name, b.name, force=True))
        gate = html.Section(
            [
                html.H2("Not comparable"),
                html.P("These decide how long a step takes, and differ:"),
                _differences(found.differences),
                None if force else html.P(all_the_same),
            ],
            className="notice notice-warn",
            id="gate",
        )
        if not force:
            return [gate]
    notes = html.Section([html.H2("Notes"), html.Ul([html.Li(note) for note in found.notes], className="warnings")])
    return [gate, html.H2(found.headline, className="headline long", id="headline"), still(speeds(a, b, found)), notes]


def _differences(differences: list[dict[str, Any]]) -> Any:
    head = html.Tr([html.Th(title, scope="col") for title in ("", "A", "B")])
    body = [
        html.Tr([html.Th(item["field"], scope="row"), html.Td(_said(item["a"])), html.Td(_said(item["b"]))])
        for item in differences
    ]
    return html.Div(html.Table([html.Thead(head), html.Tbody(body)], className="data"), className="scroll")


def _said(value: Any) -> str:
    return "not stated" if value is None else str(value)


def _notice(title: str, detail: str) -> Any:
    return html.Section([html.H2(title), html.P(detail)], className="notice notice-warn", id="trouble")

"""The app: one address bar, one page area, and three callbacks that serve every card of every page.

Everything it needs is served from here, and a content security policy forbids the browser to fetch anything from
anywhere else, so it works without a network and nothing about a run leaves the machine.
"""

from __future__ import annotations

import json
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from flask import Response

from analyzer.errors import AnalyzerError
from dashboard import exhibits, sections, tables, theme
from dashboard.data import Run, RunStore
from dashboard.exhibits.timeline import traced_arms
from dashboard.figures.canvas import message
from dashboard.pages import ablation, collectives, compare, overview, runs, stragglers, timeline
from dashboard.pages.cards import grid, part
from dashboard.pages.links import COMPARE, Address, compare_link, parse, run_link
from dashboard.pages.messages import trouble

NAME = "FreeScale bench"
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
PAGES = {"": overview, "ablation": ablation, "timeline": timeline, "stragglers": stragglers, "collectives": collectives}
BEFORE_PAINT = (
    "(()=>{let m;try{m=localStorage.getItem('freescale-mode')}catch{}"
    "window.freescaleMode=m||(matchMedia('(prefers-color-scheme: dark)').matches?'dark':'light');"
    "document.documentElement.dataset.mantineColorScheme=window.freescaleMode})()"
)


def create_app(store: RunStore) -> Dash:
    """The Dash app over a folder of runs. It reads the folder on every page load, so new runs appear by themselves."""
    app = Dash(
        "dashboard",
        title=NAME,
        update_title="",
        serve_locally=True,
        suppress_callback_exceptions=True,
        enable_mcp=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
        index_string=_index(),
    )
    app.layout = _frame()
    _register(app, store)

    @app.server.after_request
    def _forbid_elsewhere(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    return app


def offered(run: Run) -> list[str]:
    """Keys of the pages a run has data for."""
    collectives, tokens = len(run.collectives) > 0, "tokens" in run.steps.columns
    traces = bool(traced_arms(run))
    return [
        "",
        *(["ablation"] if run.attribution else []),
        *(["timeline"] if traces else []),
        *(["stragglers"] if collectives or tokens else []),
        *(["collectives"] if collectives else []),
    ]


def page(store: RunStore, address: Address) -> tuple[Any, str]:
    """The components and the title of the page at an address. Whatever cannot be shown says why."""
    if address.page is None:
        return trouble("There is no such page", "The address is none of this app's."), NAME
    if address.page == COMPARE and address.run is None:
        return compare.layout(store, address.query), f"Compare · {NAME}"
    if address.run is None:
        return runs.layout(store), NAME
    try:
        run = store.open(address.run)
    except AnalyzerError as error:
        return trouble("This run cannot be opened", str(error)), NAME
    if address.page not in PAGES:
        return trouble("There is no such page", f"{run.name} has no page {address.page!r}."), NAME
    try:
        content = PAGES[address.page].layout(run, address.query)
        if not content:
            return trouble(f"No {PAGES[address.page].LABEL}", f"{run.name} recorded nothing to show here."), NAME
        return [*_top_of(run, address), *content], f"{run.name} · {NAME}"
    except AnalyzerError as error:
        return trouble("This run cannot be read", str(error)), NAME


def _frame() -> Any:
    top = html.Header(
        [
            dcc.Link(NAME, href="/", className="wordmark"),
            html.Span(className="spacer"),
            dcc.Link("Compare", href=compare_link(), className="top-link"),
            html.Button("Light / dark", id="flip", className="quiet-button", n_clicks=0),
        ],
        className="top",
    )
    return dmc.MantineProvider(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="mode"),
            dcc.Store(id="title"),
            html.Div(id="titled", hidden=True),
            top,
            html.Main(id="page"),
        ],
        id="provider",
        theme={"fontFamily": theme.FONT, "primaryColor": "indigo", "defaultRadius": "md"},
    )


def _top_of(run: Run, address: Address) -> list[Any]:
    """Where one is, and the pages this run has."""
    crumbs = [dcc.Link("Runs", href="/"), html.Span("/"), html.Span(run.name, title=run.name)]
    arm = {"arm": address.query["arm"]} if address.query.get("arm") in run.arms else {}
    tabs = [
        dcc.Link(PAGES[key].LABEL, href=run_link(run.name, key, **arm), className="here" if key == address.page else "")
        for key in offered(run)
    ]
    parts: list[Any] = [html.Nav(crumbs, className="crumbs")]
    tabs.append(dcc.Link("Compare…", href=compare_link(run.name)))
    parts.append(html.Nav(tabs, className="tabs"))
    if address.page and address.page != "ablation":  # which begins with its verdict, as the Overview does
        parts.append(sections.page_head(run, PAGES[address.page].LABEL))
    return parts


def _register(app: Dash, store: RunStore) -> None:
    def client(name: str) -> ClientsideFunction:
        return ClientsideFunction("freescale", name)

    app.clientside_callback(
        client("flip"),
        Output("mode", "data"),
        Output("provider", "forceColorScheme"),
        Input("flip", "n_clicks"),
        State("mode", "data"),
    )
    app.clientside_callback(
        client("search"), Output("runs-found", "children"), Input("runs-search", "value"), prevent_initial_call=True
    )
    app.clientside_callback(client("title"), Output("titled", "children"), Input("title", "data"))
    app.clientside_callback(
        client("draw"),
        Output(part("graph", MATCH), "figure"),
        Output(part("graph", MATCH), "style"),
        Input(part("figure-data", MATCH), "data"),
        Input("mode", "data"),
    )
    app.clientside_callback(
        client("choose"),
        Output(part("choices", MATCH), "data"),
        Input(part("control", MATCH, name=ALL), "value"),
        State(part("control", MATCH, name=ALL), "id"),
        State(part("choices", MATCH), "data"),
        prevent_initial_call=True,
    )

    @app.callback(Output("page", "children"), Output("title", "data"), Input("url", "pathname"), Input("url", "search"))
    def _route(pathname: str | None, search: str | None) -> tuple[Any, str]:
        return page(store, parse(pathname, search))

    @app.callback(
        Output("url", "search"),
        Input("compare-a", "value"),
        Input("compare-b", "value"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def _choose_runs(a: str | None, b: str | None, search: str | None) -> Any:
        shown = parse(f"/{COMPARE}", search).query
        same = (shown.get("a"), shown.get("b")) == (a, b)
        return no_update if same else compare_link(a or "", b or "").removeprefix(f"/{COMPARE}")

    @app.callback(*_drawn_parts(), Input(part("choices", MATCH), "data"), prevent_initial_call=True)
    def _redraw(state: Any) -> Any:
        return drawn(store, state)

    @app.callback(
        *_drawn_parts(allow_duplicate=True),
        Input(part("late", MATCH), "n_intervals"),
        State(part("choices", MATCH), "data"),
        prevent_initial_call=True,
    )
    def _draw_late(_: int, state: Any) -> Any:
        return drawn(store, state)

    @app.callback(
        Output(part("table", MATCH), "children"),
        Output(part("table-button", MATCH), "aria-pressed"),
        Input(part("table-button", MATCH), "n_clicks"),
        Input(part("choices", MATCH), "data"),
        prevent_initial_call=True,
    )
    def _table(clicks: int, state: Any) -> Any:
        if clicks % 2 == 0:
            return None, "false"
        try:
            exhibit = exhibit_of(store, state)
        except AnalyzerError as error:
            return html.P(str(error)), "true"
        return (grid(exhibit.table), "true") if exhibit else (None, "false")


def _drawn_parts(*, allow_duplicate: bool = False) -> list[Output]:
    pairs = (("figure-data", "data"), ("note", "children"), ("legend", "children"), ("source", "children"))
    return [Output(part(kind, MATCH), name, allow_duplicate=allow_duplicate) for kind, name in pairs]


def drawn(store: RunStore, state: Any) -> tuple[Any, Any, Any, Any]:
    """What a card shows for its choices: figure, note, legend, source. What cannot be read is said in the note."""
    try:
        exhibit = exhibit_of(store, state)
    except AnalyzerError as error:
        return message("Cannot be drawn").to_plotly_json(), str(error), None, ""
    if exhibit is None:
        return no_update, no_update, no_update, no_update
    return exhibit.figure.to_plotly_json(), exhibit.reading, tables.legend(exhibit.legend), exhibit.source


def exhibit_of(store: RunStore, state: Any) -> exhibits.Exhibit | None:
    """The exhibit a card's store describes; None when the store describes none.

    The store comes from the browser: every part of it is checked.

    Raises:
        AnalyzerError: no such run, or a file of it cannot be read.
    """
    parts = state if isinstance(state, dict) else {}
    name, key, choices = parts.get("run"), parts.get("exhibit"), parts.get("choices")
    if not (isinstance(name, str) and isinstance(key, str) and isinstance(choices, dict)):
        return None
    texts = {str(option): value for option, value in choices.items() if isinstance(value, str)}
    return exhibits.build(key, store.open(name), texts) if key in exhibits.BUILDERS else None


def _index() -> str:
    templates = json.dumps({mode: theme.template(mode) for mode in theme.MODES})
    return (
        '<!DOCTYPE html><html lang="en"><head>{%metas%}<title>{%title%}</title>{%favicon%}'
        f"<script>{BEFORE_PAINT};window.freescaleTemplates={templates}</script>"
        f"<style>{theme.css_variables()}</style>"
        "{%css%}</head><body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body></html>"
    )

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
from dashboard import exhibits, theme
from dashboard.data import Run, RunStore
from dashboard.pages import overview, runs
from dashboard.pages.cards import grid, part
from dashboard.pages.links import Address, parse
from dashboard.pages.messages import trouble

NAME = "FreeScale bench"
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
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


def page(store: RunStore, address: Address) -> tuple[Any, str]:
    """The components and the title of the page at an address. Whatever cannot be shown says why."""
    if address.page is None:
        return trouble("There is no such page", "The address is none of this app's."), NAME
    if address.run is None:
        return runs.layout(store), NAME
    try:
        run = store.open(address.run)
    except AnalyzerError as error:
        return trouble("This run cannot be opened", str(error)), NAME
    layouts = {"": overview.layout}
    if address.page not in layouts:
        return trouble("There is no such page", f"{run.name} has no page {address.page!r}."), NAME
    try:
        content = layouts[address.page](run, address.query)
    except AnalyzerError as error:
        return trouble("This run cannot be read", str(error)), NAME
    return [_crumbs(run), *content], f"{run.name} · {NAME}"


def _frame() -> Any:
    top = html.Header(
        [
            dcc.Link(NAME, href="/", className="wordmark"),
            html.Span(className="spacer"),
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


def _crumbs(run: Run) -> Any:
    return html.Nav(
        [dcc.Link("Runs", href="/"), html.Span("/"), html.Span(run.name, title=run.name)], className="crumbs"
    )


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
        Output(part("figure-data", MATCH), "data"),
        Output(part("note", MATCH), "children"),
        Output(part("source", MATCH), "children"),
        Input(part("choices", MATCH), "data"),
        prevent_initial_call=True,
    )
    def _redraw(state: dict[str, Any]) -> Any:
        exhibit = exhibit_of(store, state)
        if exhibit is None:
            return no_update, no_update, no_update
        return exhibit.figure.to_plotly_json(), exhibit.note, exhibit.source

    @app.callback(
        Output(part("table", MATCH), "children"),
        Output(part("table-button", MATCH), "aria-pressed"),
        Input(part("table-button", MATCH), "n_clicks"),
        Input(part("choices", MATCH), "data"),
        prevent_initial_call=True,
    )
    def _table(clicks: int, state: dict[str, Any]) -> Any:
        exhibit = exhibit_of(store, state) if clicks % 2 else None
        return (grid(exhibit.table), "true") if exhibit else (None, "false")


def exhibit_of(store: RunStore, state: Any) -> exhibits.Exhibit | None:
    """The exhibit a card's store describes. The store comes from the browser: every part of it is checked."""
    parts = state if isinstance(state, dict) else {}
    name, key, choices = parts.get("run"), parts.get("exhibit"), parts.get("choices")
    if not (isinstance(name, str) and isinstance(key, str) and isinstance(choices, dict)):
        return None
    texts = {str(option): value for option, value in choices.items() if isinstance(value, str)}
    try:
        return exhibits.build(key, store.open(name), texts) if key in exhibits.BUILDERS else None
    except AnalyzerError:
        return None


def _index() -> str:
    templates = json.dumps({mode: theme.template(mode) for mode in theme.MODES})
    return (
        '<!DOCTYPE html><html lang="en"><head>{%metas%}<title>{%title%}</title>{%favicon%}'
        f"<script>{BEFORE_PAINT};window.freescaleTemplates={templates}</script>"
        f"<style>{theme.css_variables()}</style>"
        "{%css%}</head><body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body></html>"
    )

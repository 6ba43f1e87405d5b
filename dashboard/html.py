"""The HTML report: one file with everything in it, for mail, archive, print and phone. It opens without a network.

plotly.js is inside once, gzipped (4.8 MB would leave no room for figures), and unpacked by the browser; a content
security policy forbids the page to load anything at all. Every figure has its table in the page as plain HTML, so
that a browser without scripts still shows every number.
"""

from __future__ import annotations

import base64
import gzip
import html
import itertools
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

from dash import html as tags
from plotly.offline import get_plotlyjs

from dashboard import attribution, exhibits, notices, sections, tables, theme
from dashboard.data import Run
from dashboard.exhibit import Exhibit
from dashboard.figures.canvas import CONFIG
from dashboard.static import to_html

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
TABLE_ROWS = 512
ARMS = "Arm by arm"
CHAPTERS = (("Stragglers", exhibits.STRAGGLERS), ("Collectives", exhibits.COLLECTIVES))

Variants = dict[str, Exhibit]


def write_report(run: Run, arm: str | None = None) -> str:
    """The whole report as HTML text.

    Args:
        run: complete or not; what was not measured is left out, and the page says why.
        arm: the arm in focus; the last compared one when None or unknown.

    Raises:
        AnalyzerError: a file of the run is damaged.
    """
    focus = run.focus(arm)
    figures: dict[str, dict[str, Any]] = {}
    layers = _chapter(exhibits.ABLATION, run, focus, figures)
    # an ablation has its own plot of the blocks, free of what a block did to all of its arms
    arms = [key for key in exhibits.OVERVIEW if not (layers and key == "paired-blocks")]
    overview = _chapter(arms, run, focus, figures)
    rest = [(title, _chapter(keys, run, focus, figures)) for title, keys in CHAPTERS]
    body = [
        tags.Header(
            [
                tags.Span("FreeScale bench", className="wordmark"),
                tags.Button("Light / dark", id="mode", className="quiet-button"),
            ],
            className="top",
        ),
        tags.Main(
            [
                sections.hero(run, focus),
                notices.incomplete(run),
                tags.Noscript(
                    tags.P(
                        "The charts need JavaScript; the tables below each of them hold the same numbers.",
                        className="notice notice-warn",
                    )
                ),
                tags.P(id="no-charts", hidden=True, className="notice notice-warn"),
                *([attribution.key_figures(run), attribution.doubts(run)] if run.attribution else []),
                *layers,
                tags.H2(ARMS, className="chapter") if layers else None,
                sections.key_figures(run, focus),
                sections.arms_card(run, focus),
                *overview,
                *(part for title, cards in rest if cards for part in (tags.H2(title, className="chapter"), *cards)),
                notices.warnings(run),
                notices.method(run),
            ]
        ),
    ]
    return _page(f"{run.name} · FreeScale bench", to_html(body), figures)


def _chapter(keys: Sequence[str], run: Run, focus: str | None, figures: dict[str, dict[str, Any]]) -> list[Any]:
    """Cards of the exhibits that the run has data for, in a grid; nothing when it has data for none. Their figures go
    into `figures`."""
    cards = []
    for key in keys:
        variants = dict(_variants(key, run, focus))
        if variants:
            figures[key] = {name: json.loads(exhibit.figure.to_json()) for name, exhibit in variants.items()}
            cards.append(_card(variants))
    return [tags.Section(cards, className="cards")] if cards else []


def _variants(key: str, run: Run, focus: str | None) -> Iterator[tuple[str, Exhibit]]:
    """Every choice a reader can make, the default first; of the arms, the one in focus and its reference."""
    start = {"arm": focus} if key in exhibits.OVERVIEW else {}
    default = exhibits.build(key, run, start)
    if default is None:
        return
    yield _variant_name(default), default
    kept = {focus, run.versus(focus)}
    options = [
        [(name, value) for value, _ in values if name != "arm" or value in kept]
        for name, values in default.options.items()
    ]
    for chosen in itertools.product(*options):
        exhibit = exhibits.build(key, run, {**start, **dict(chosen)})
        if exhibit is not None and _variant_name(exhibit) != _variant_name(default):
            yield _variant_name(exhibit), exhibit


def _variant_name(exhibit: Exhibit) -> str:
    return json.dumps([exhibit.choices[name] for name in exhibit.options])


def _card(variants: Variants) -> Any:
    first = next(iter(variants.values()))
    offered: dict[str, dict[str, str]] = {}
    for exhibit in variants.values():
        for name, values in exhibit.options.items():
            offered.setdefault(name, {})[exhibit.choices[name]] = dict(values)[exhibit.choices[name]]
    controls = [_select(name, labels, first.choices[name]) for name, labels in offered.items() if len(labels) > 1]
    height = first.figure.layout.height
    return tags.Article(
        [
            tags.Div(
                [tags.H2(first.title), tags.Div(controls, className="controls") if controls else None],
                className="card-head",
            ),
            *(
                tags.P(exhibit.reading, className="note", hidden=exhibit is not first, **_data(variant=name))
                for name, exhibit in variants.items()
            ),
            tables.legend(first.legend),
            tags.Div(
                className="chart",
                style={"minHeight": f"{height}px"},
                role="img",
                **_data(figure=first.key),
            ),
            *(_behind(name, exhibit, exhibit is not first) for name, exhibit in variants.items()),
        ],
        className=tables.card_class(first),
        id=first.key,
        **_data(options=json.dumps(list(first.options))),
    )


def _behind(name: str, exhibit: Exhibit, hidden: bool) -> Any:
    """Source line and table of one variant; the script shows the ones of the variant on display."""
    return tags.Div(
        [
            tags.P(exhibit.source, className="source"),
            tags.Details([tags.Summary("Table"), tables.plain_table(exhibit.table, TABLE_ROWS)]),
        ],
        hidden=hidden,
        **_data(variant=name),
    )


def _select(name: str, labels: dict[str, str], chosen: str) -> Any:
    entries = [tags.Option(label, value=value, selected=value == chosen) for value, label in labels.items()]
    return tags.Label([name.capitalize(), tags.Select(entries, **_data(choice=name))])


def _data(**values: str) -> dict[str, Any]:
    return {f"data-{name}": value for name, value in values.items()}


def _page(title: str, body: str, figures: dict[str, Any]) -> str:
    style = theme.css_variables() + _file("assets/freescale.css")
    payload = {"figures": figures, "templates": {mode: theme.template(mode) for mode in theme.MODES}, "config": CONFIG}
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head>"
        f'<body class="report">{body}'
        f'<script type="application/json" id="figures">{_json_for_script(payload)}</script>'
        f'<script type="text/plain" id="plotly-gz">{_plotly_packed()}</script>'
        f"<script>{_file('report.js')}</script></body></html>\n"
    )


@lru_cache(maxsize=1)
def _plotly_packed() -> str:
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)).decode()


def _json_for_script(value: Any) -> str:
    """JSON that cannot end its own script element, whatever names are in it."""
    return (
        json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    )


def _file(name: str) -> str:
    return resources.files("dashboard").joinpath(name).read_text(encoding="utf-8")

"""The parts of a page that are words and numbers: verdict, key figures, arms, warnings, provenance.

Built from `dash.html` only, so that `dashboard.static` can write the same parts into the one-file report. React and
`static` both escape text, so names are passed as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dash import html

from dashboard import formats, theme
from dashboard.data import UNKNOWN, Run

Component = Any
ARM_COLUMNS: tuple[tuple[str, str, bool], ...] = (
    ("Arm", "", False),
    ("Step time", "median, 95 % CI", True),
    ("Speedup", "95 % CI", True),
    ("Samples/s", "", True),
    ("Bubble", "", True),
    ("Straggler", "", True),
    ("Exposed comm.", "", True),
    ("Imbalance", "max / mean", True),
    ("Loss", "largest rel. diff.", True),
    ("Verdict", "", False),
)
TIMED_AND_PROFILED = "step time, speedup, samples/s and loss from timed steps; the rest from profiled steps"


def badge(text: str, tone: str = "plain", title: str = "") -> Component:
    return html.Span(text, className=f"badge badge-{tone}", title=title or None)


def provenance_badge(run: Run) -> Component:
    """measured, emulated or simulated, marked so that only a measurement looks plain."""
    tone = {"measured": "good", "emulated": "warn", "simulated": "warn"}.get(run.provenance, "bad")
    return badge(
        run.provenance,
        tone,
        theme.PROVENANCE.get(run.provenance, "the manifest does not say where these numbers are from"),
    )


def verdict_badge(name: str | None) -> Component:
    verdict = theme.verdict(name)
    return html.Span(
        [html.Span(verdict.mark, className="mark", **_aria(hidden="true")), verdict.label],
        className=f"verdict verdict-{verdict.tone}",
    )


def hero(run: Run, arm: str | None) -> Component:
    """Verdict first: one sentence, large; above it what was run, below it what would make one doubt it."""
    overline = [html.Span(run.workload, className="strong"), html.Span(setting(run)), provenance_badge(run)]
    if not run.complete:
        overline.append(badge("incomplete", "bad", run.why_incomplete))
    comparison = run.comparison(arm) if arm else {}
    children: list[Component] = [html.Div(overline, className="overline")]
    if comparison:
        children.append(
            html.Div(
                [
                    verdict_badge(comparison.get("verdict")),
                    html.Span(f"{arm} against {comparison.get('versus')}", className="muted"),
                ],
                className="verdict-line",
            )
        )
    children.append(html.H1(headline(run), className="headline", id="headline"))
    if run.warnings:
        plural = "s" if len(run.warnings) > 1 else ""
        children.append(
            html.P(
                html.A(f"{len(run.warnings)} warning{plural} to read before you rely on this", href="#warnings"),
                className="hero-note",
            )
        )
    return html.Section(children, className="hero")


def key_figures(run: Run, arm: str | None) -> Component | None:
    """The numbers of one arm, each beside its reference's; None when the run has none."""
    values = run.arm(arm) if arm else {}
    if not arm or not values:
        return None
    versus = run.versus(arm)
    reference = run.arm(versus) if versus else {}
    comparison = run.comparison(arm)
    tiles: list[Component] = []
    speedup = comparison.get("speedup") or {}
    if formats.exists(speedup.get("value")):
        tiles.append(
            _tile(
                "Speedup",
                formats.times(speedup["value"]),
                formats.between(speedup, formats.times),
                f"against {versus}",
                "speedup",
            )
        )
    step = values.get("step_ms") or {}
    if formats.exists(step.get("median")):
        before = (reference.get("step_ms") or {}).get("median")
        tiles.append(
            _tile(
                "Step time",
                formats.ms(step["median"]),
                formats.between(step, formats.ms),
                _before(formats.ms(before), versus),
                "step-ms",
            )
        )
    for key, label, write, detail in (
        ("bubble_pct", "Bubble", formats.percent, "of the profiled step"),
        ("straggler_pct", "Straggler", formats.percent, "of the profiled step"),
        ("exposed_comm_ms", "Exposed comm.", formats.ms, "per profiled step"),
    ):
        if formats.exists(values.get(key)):
            tiles.append(
                _tile(
                    label, write(values[key]), detail, _before(write(reference.get(key)), versus), key.replace("_", "-")
                )
            )
    parity = comparison.get("loss_parity")
    if isinstance(parity, dict):
        tiles.append(_parity_tile(parity, versus))
    return html.Section(tiles, className="tiles", **_aria(label=f"Key figures of {arm}")) if tiles else None


def arms_card(run: Run, focus: str | None, link: Callable[[str], Component] | None = None) -> Component | None:
    """Every arm with its numbers and its verdict; None when the report has no arms.

    Args:
        link: writes an arm's name as a link to the page with that arm in focus.
    """
    arms = [arm for arm in run.arms if run.arm(arm)]
    if not arms:
        return None
    header = html.Tr(
        [
            html.Th([title, html.Small(sub)] if sub else title, scope="col", className="num" if numeric else "")
            for title, sub, numeric in ARM_COLUMNS
        ]
    )
    body = [_arm_row(run, arm, arm == focus and len(arms) > 2, link) for arm in arms]
    return html.Section(
        [
            html.H2("Arms"),
            html.Div(html.Table([html.Thead(header), html.Tbody(body)], className="data arms"), className="scroll"),
            html.P(f"{run.provenance} · {TIMED_AND_PROFILED}", className="source"),
        ],
        className="card",
    )


def arm_numbers(run: Run, arm: str) -> list[str]:
    """The numbers of one arm as text, in the order of ARM_COLUMNS between its name and its verdict.

    A line break stands between a number and its interval.
    """
    values, comparison = run.arm(arm), run.comparison(arm)
    step, speedup = mapping(values.get("step_ms")), mapping(comparison.get("speedup"))
    parity = mapping(comparison.get("loss_parity"))
    return [
        f"{formats.ms(step.get('median'))}\n{formats.span(step)}",
        f"{formats.times(speedup.get('value'))}\n{formats.span(speedup, formats.times)}",
        formats.number(values.get("samples_per_s")),
        formats.percent(values.get("bubble_pct")),
        formats.percent(values.get("straggler_pct")),
        formats.ms(values.get("exposed_comm_ms")),
        formats.times(values.get("imbalance")),
        "bit-exact" if parity.get("bit_exact") is True else formats.scientific(parity.get("max_rel")),
    ]


def _arm_row(run: Run, arm: str, marked: bool, link: Callable[[str], Component] | None) -> Component:
    comparison = run.comparison(arm)
    verdict = verdict_badge(comparison.get("verdict")) if comparison else html.Span("reference", className="muted")
    cells = []
    for text in arm_numbers(run, arm):
        main, _, interval = text.partition("\n")
        cells.append(html.Td([main, html.Small(interval)] if interval else main, className="num"))
    name = html.Th(link(arm) if link and comparison else arm, scope="row")
    return html.Tr([name, *cells, html.Td(verdict)], className="marked" if marked else "")


def _tile(label: str, value: str, detail: str, before: str, key: str) -> Component:
    return html.Div(
        [
            html.Div(label, className="tile-label"),
            html.Div(value, className="tile-value", id=f"figure-{key}"),
            html.Div(detail, className="tile-detail"),
            html.Div(before, className="tile-detail"),
        ],
        className="tile",
    )


def _parity_tile(parity: dict[str, Any], versus: str | None) -> Component:
    if parity.get("bit_exact") is True:
        return _tile("Loss", "bit-exact", "same loss at every step", f"as {versus}", "parity")
    relative = parity.get("max_rel")
    within = formats.exists(relative) and relative <= formats.LOSS_PARITY_BOUND
    detail = "largest relative difference" + ("" if within else f", above {formats.LOSS_PARITY_BOUND:.0e}")
    return _tile("Loss parity", formats.scientific(relative), detail, f"against {versus}", "parity")


def _before(value: str, versus: str | None) -> str:
    return f"{value} in {versus}" if versus and value != formats.MISSING else ""


def _aria(**values: str) -> dict[str, Any]:
    return {f"aria-{name}": value for name, value in values.items()}


def setting(run: Run) -> str:
    """2 ranks · gloo · cpu."""
    ranks = f"{formats.count(run.world_size)} rank{'' if run.world_size == 1 else 's'}" if run.world_size else ""
    return joined(ranks, run.manifest.get("backend"), run.manifest.get("device"), separator=" · ")


def headline(run: Run) -> str:
    """The verdict, or why there is none."""
    if run.headline:
        return run.headline
    if not run.complete:
        return "No verdict: the run is not complete"
    return "No verdict yet: the run has not been analysed" if not run.analysed else "No verdict"


def joined(*parts: Any, separator: str = ", ") -> str:
    return separator.join(str(part) for part in parts if part not in (None, "", UNKNOWN))


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

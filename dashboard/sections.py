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
LONG_HEADLINE = 80  # characters; a sentence longer than this is set smaller
ARM_COLUMNS: tuple[tuple[str, str, bool], ...] = (
    ("Arm", "", False),
    ("Verdict", "", False),
    ("Step time", "median, 95 % CI", True),
    ("Speedup", "95 % CI", True),
    ("Samples/s", "", True),
    ("Bubble", "", True),
    ("Straggler", "", True),
    ("Exposed comm.", "with waiting", True),
    ("Imbalance", "max / mean", True),
    ("Loss", "largest rel. diff.", True),
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
        [html.Span(verdict.mark, className="mark", **aria(hidden="true")), verdict.label],
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
    words = headline(run)
    size = "headline long" if len(words) > LONG_HEADLINE else "headline"
    children.append(html.H1(formats.unbroken(words), className=size, id="headline"))
    if run.warnings:
        plural = "s" if len(run.warnings) > 1 else ""
        children.append(
            html.P(
                html.A(f"{len(run.warnings)} warning{plural} to read before you rely on this", href="#warnings"),
                className="hero-note",
            )
        )
    return html.Section(children, className="hero")


def page_head(run: Run, title: str) -> Component:
    """The head of a page that is not the Overview."""
    facts = [html.Span(run.workload, className="strong"), html.Span(setting(run)), provenance_badge(run)]
    return html.Header([html.H1(title), html.Div(facts, className="overline")], className="page-head")


def key_figures(run: Run, arm: str | None) -> Component | None:
    """The numbers of one arm, each beside its reference's; None when the run has none."""
    if not arm or not run.arm(arm):
        return None
    shown = (_speedup(run, arm), _step_time(run, arm), *_shares(run, arm), _parity(run, arm))
    tiles = [one for one in shown if one]
    return html.Section(tiles, className="tiles", **aria(label=f"Key figures of {arm}")) if tiles else None


def _speedup(run: Run, arm: str) -> Component | None:
    comparison = run.comparison(arm)
    speedup = mapping(comparison.get("speedup"))
    if comparison.get("verdict") == "wrong":
        return tile("speedup", "Speedup", formats.MISSING, "not counted: its losses are not the reference's")
    if not formats.exists(speedup.get("value")):
        return None
    value, interval = formats.times(speedup["value"]), formats.between(speedup, formats.times)
    if comparison.get("verdict") != "inconclusive":
        return tile("speedup", "Speedup", value, interval, f"against {comparison.get('versus')}")
    needed = comparison.get("blocks_needed")
    cure = f"about {formats.count(needed)} blocks would settle it" if formats.exists(needed) else ""
    return tile("speedup", "Speedup, inconclusive", value, interval, cure, doubtful=True)


def _step_time(run: Run, arm: str) -> Component | None:
    step = mapping(run.arm(arm).get("step_ms"))
    if not formats.exists(step.get("median")):
        return None
    versus = run.versus(arm)
    before = mapping(run.arm(versus).get("step_ms")).get("median") if versus else None
    interval = formats.between(step, formats.ms)
    return tile("step-ms", "Step time", formats.ms(step["median"]), interval, _before(formats.ms(before), versus))


def _shares(run: Run, arm: str) -> list[Component]:
    """Bubble, straggler and exposed communication; the last two as one where they could not be told apart."""
    parts: list[tuple[str, str, Callable[[Any], str], str | None]] = [
        ("bubble_pct", "Bubble", formats.percent, "bubble_reduction_pct"),
        ("straggler_pct", "Straggler", formats.percent, None),
        ("exposed_comm_ms", "Exposed comm.", formats.ms, None),
    ]
    if not run.is_split(arm):
        parts[1:] = [("exposed_total_ms", "Exposed, with waiting", formats.ms, "exposed_reduction_pct")]
    versus = run.versus(arm)
    tiles = []
    for key, label, write, reduction in parts:
        if formats.exists(run.arm(arm).get(key)):
            before = _before(write(run.arm(versus).get(key)), versus) if versus else ""
            change = _change(run.comparison(arm).get(reduction)) if reduction else ""
            unit = "per profiled step" if key.endswith("_ms") else "of the profiled step"
            tiles.append(tile(key.replace("_", "-"), label, write(run.arm(arm)[key]), before or unit, change))
    return tiles


def _change(reduction: Any) -> str:
    """A reduction as a signed change: "−21.0 %, 95 % CI −27.0 to −15.0 %"; "" when there is none."""
    value = mapping(reduction).get("value")
    if not formats.exists(value):
        return ""
    bounds = formats.interval(reduction)
    interval = (
        f"95\u00a0% CI {formats.percent(-bounds[1])} to {formats.percent(-bounds[0])}" if bounds else "no interval"
    )
    return f"{formats.percent(-value)}, {interval}"


def _parity(run: Run, arm: str) -> Component | None:
    parity, versus = run.comparison(arm).get("loss_parity"), run.versus(arm)
    if not isinstance(parity, dict):
        return None
    if parity.get("bit_exact") is True:
        return tile("parity", "Loss", "bit-exact", "the same loss at every step", f"as {versus}")
    relative = parity.get("max_rel")
    if not formats.exists(relative):
        return None
    beyond = f", above {formats.scientific(formats.LOSS_PARITY_BOUND)}" if relative > formats.LOSS_PARITY_BOUND else ""
    detail = f"largest relative difference{beyond}"
    return tile("parity", "Loss parity", formats.scientific(relative), detail, f"against {versus}")


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
    """The numbers of one arm as text, in the order of ARM_COLUMNS after its name and its verdict.

    A line break stands between a number and its interval.
    """
    values, comparison = run.arm(arm), run.comparison(arm)
    step, speedup = mapping(values.get("step_ms")), mapping(comparison.get("speedup"))
    if comparison.get("verdict") == "wrong":
        speedup = {}  # how fast a wrong arm is, is no result
    parity = mapping(comparison.get("loss_parity"))
    exposed, total = values.get("exposed_comm_ms"), values.get("exposed_total_ms")
    return [
        f"{formats.ms(step.get('median'))}\n{formats.span(step)}",
        f"{formats.times(speedup.get('value'))}\n{formats.span(speedup, formats.times)}",
        formats.number(values.get("samples_per_s")),
        formats.percent(values.get("bubble_pct")),
        formats.percent(values.get("straggler_pct")),
        f"{formats.ms(exposed)}\n{formats.ms(total) if formats.exists(total) else ''}",
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
    return html.Tr([name, html.Td(verdict), *cells], className="marked" if marked else "")


def tile(key: str, label: str, value: str, *details: Any, doubtful: bool = False) -> Component:
    """One key figure, named `figure-<key>`; details that are empty are left out."""
    return html.Div(
        [
            html.Div(label, className="tile-label"),
            html.Div(value, className="tile-value doubtful" if doubtful else "tile-value", id=f"figure-{key}"),
            *(html.Div(detail, className="tile-detail") for detail in details if detail),
        ],
        className="tile",
    )


def _before(value: str, versus: str | None) -> str:
    return f"{value} in {versus}" if versus and value != formats.MISSING else ""


def aria(**values: str) -> dict[str, Any]:
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

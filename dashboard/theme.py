"""The one place for class names, labels and colours: every chart, table, page and report takes them from here.

Class and arm colours are the same in light and in dark. The five class colours stand out from both backgrounds and,
under each of the three kinds of colour blindness, from one another (tests/dashboard/test_theme.py measures both).
Whatever does depend on the mode (text, grid, backgrounds) is in a plotly template and in CSS variables, so a figure is
drawn once and only its template is swapped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["light", "dark"]
MODES: tuple[Mode, Mode] = ("light", "dark")


@dataclass(frozen=True)
class Class:
    """One of the five classes every instant of a step belongs to (docs: metrics)."""

    key: str
    label: str
    colour: str
    meaning: str

    @property
    def column(self) -> str:
        """Its column in bubbles.parquet."""
        return f"{self.key}_ns"


CLASSES: tuple[Class, ...] = (
    Class("compute", "Compute", "#4089DB", "a compute interval is active"),
    Class("straggler", "Straggler", "#B43918", "waiting in a collective for its last rank to arrive"),
    Class("exposed_comm", "Exposed communication", "#E29607", "in a collective after its last rank arrived"),
    Class("exposed_copy", "Exposed copy", "#863D76", "in a copy that is no part of a collective"),
    Class("host", "Host", "#A4A7AA", "nothing is active: launch, Python, data loading"),
)
BY_KEY: dict[str, Class] = {item.key: item for item in CLASSES}

BASELINE_COLOUR = "#9AA1AC"
ARM_COLOURS: tuple[str, ...] = ("#0E7C72", "#7E3FA8", "#C6A377", "#3F62A0", "#D66DE6", "#6F7A1C", "#AA2D2D", "#DE8A34")
REFERENCE_ARMS = ("baseline", "baseline-aa", "sdd", "sdd-aa")
LAYER_COLOURS: dict[str, str] = dict(zip(("balance", "overlap", "smfree"), ARM_COLOURS, strict=False))


@dataclass(frozen=True)
class Verdict:
    """How a verdict is worded and marked: never by colour alone."""

    label: str
    mark: str
    tone: str


VERDICTS: dict[str, Verdict] = {
    "improvement": Verdict("Improvement", "▲", "good"),
    "neutral": Verdict("Neutral", "■", "plain"),
    "regression": Verdict("Regression", "▼", "bad"),
    "inconclusive": Verdict("Inconclusive", "?", "plain"),
    "wrong": Verdict("Wrong result", "✕", "wrong"),
    "cannot act": Verdict("Cannot act", "–", "plain"),
    "not measured": Verdict("Not measured", "–", "plain"),
    "synergy": Verdict("Synergy", "▲", "good"),
    "redundant": Verdict("Redundant", "▼", "bad"),
    "not seen": Verdict("Not seen", "?", "plain"),
}

PROVENANCE: dict[str, str] = {
    "measured": "real ranks, timed on the machine named below",
    "emulated": "real ranks, over a link slowed down on purpose",
    "simulated": "predicted by the simulator, nothing was run",
}

FONT = 'ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
MONO = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", "DejaVu Sans Mono", monospace'

# Everything that differs between light and dark. Names become CSS variables (`ink` → `--ink`).
TOKENS: dict[Mode, dict[str, str]] = {
    "light": {
        "page": "#F6F7F9",
        "surface": "#FFFFFF",
        "raised": "#F1F3F6",
        "ink": "#14181F",
        "muted": "#59626F",
        "line": "#DFE3E9",
        "grid": "#E9ECF1",
        "accent": "#2B59C3",
        "good": "#0B7466",
        "bad": "#B8430B",
        "wrong": "#A3124F",
        "plain": "#59626F",
        "warn-bg": "#FFF7E6",
        "warn-line": "#E8C77A",
        "shadow": "0 1px 2px rgba(20, 24, 31, 0.05)",
    },
    "dark": {
        "page": "#0F1216",
        "surface": "#171B21",
        "raised": "#1F242C",
        "ink": "#E8EBF0",
        "muted": "#9BA5B3",
        "line": "#2A313B",
        "grid": "#252B34",
        "accent": "#8FB0FF",
        "good": "#4CC9B4",
        "bad": "#FF9A62",
        "wrong": "#FF7FB0",
        "plain": "#9BA5B3",
        "warn-bg": "#262013",
        "warn-line": "#6E5A22",
        "shadow": "none",
    },
}


def arm_colours(arms: Iterable[str]) -> dict[str, str]:
    """A colour per arm: grey for the reference arms, the layer's for an arm of one layer, the others in order."""
    colours: dict[str, str] = {}
    others = [*ARM_COLOURS[len(LAYER_COLOURS) :], *LAYER_COLOURS.values()]
    for arm in dict.fromkeys(arms):
        if arm in REFERENCE_ARMS:
            colours[arm] = BASELINE_COLOUR
        elif (layer := arm.removeprefix("sdd+")) in LAYER_COLOURS:
            colours[arm] = LAYER_COLOURS[layer]
        else:
            colours[arm] = others[0]
            others.append(others.pop(0))
    return colours


def layer_colour(layer: str) -> str:
    """The colour of a layer wherever it stands for itself; grey for one this version does not know."""
    return LAYER_COLOURS.get(layer, BASELINE_COLOUR)


def verdict(name: str | None) -> Verdict:
    """How to show a verdict; one this version does not know keeps its own name and no tone."""
    return VERDICTS.get(name or "", Verdict(name or "No verdict", "·", "plain"))


def ramp(colour: str) -> list[list[Any]]:
    """A one-hue colour scale that fades into whatever background it lies on, for heatmaps in light and dark alike."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    stops = (0.0, 0.25, 0.5, 0.75, 1.0)
    return [[stop, f"rgba({red},{green},{blue},{0.06 + 0.94 * stop:.3f})"] for stop in stops]


def plain(text: object) -> str:
    """Untrusted text for a plotly title, label or hover: plotly would otherwise read it as markup."""
    return html.escape(str(text), quote=False)


def template(mode: Mode) -> dict[str, Any]:
    """The plotly template of a mode; figures carry none, whoever shows them puts this one in."""
    token = TOKENS[mode]
    small = {"color": token["muted"], "size": 12}
    axis = {
        "gridcolor": token["grid"],
        "linecolor": token["line"],
        "zerolinecolor": token["line"],
        "tickcolor": "rgba(0,0,0,0)",
        "tickfont": small,
        "title": {"font": small, "standoff": 8},
        "ticks": "outside",
        "ticklen": 6,
        "automargin": True,
        "zeroline": False,
    }
    clear = "rgba(0,0,0,0)"
    return {
        "layout": {
            "paper_bgcolor": clear,
            "plot_bgcolor": clear,
            "font": {"family": FONT, "color": token["ink"], "size": 13},
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {
                "bgcolor": token["surface"],
                "bordercolor": token["line"],
                "font": {"color": token["ink"], "family": FONT, "size": 13},
                "align": "left",
            },
            "showlegend": False,
            "margin": {"l": 8, "r": 12, "t": 10, "b": 8},
            "modebar": {"bgcolor": clear, "color": token["muted"], "activecolor": token["ink"]},
            "annotationdefaults": {"font": small, "showarrow": False},
            "shapedefaults": {"line": {"color": token["muted"], "width": 1}},
            "coloraxis": {
                "colorbar": {"outlinewidth": 0, "thickness": 12, "tickfont": small, "title": {"font": small}}
            },
        },
        "data": {
            "bar": [
                {
                    "type": "bar",
                    "marker": {"line": {"color": token["surface"], "width": 1}},
                    "error_x": {"color": token["ink"]},
                }
            ],
            "scatter": [
                {"type": "scatter", "error_x": {"color": token["ink"]}, "error_y": {"color": token["ink"]}},
            ],
        },
    }


def css_variables() -> str:
    """CSS declaring every colour above: class colours once, tokens per mode (`data-mantine-color-scheme` on <html>)."""
    fixed = "".join(f"--{item.key.replace('_', '-')}:{item.colour};" for item in CLASSES)
    blocks = [f":root{{{fixed}--font:{FONT};--mono:{MONO};}}"]
    for mode in MODES:
        tokens = "".join(f"--{name}:{value};" for name, value in TOKENS[mode].items())
        selector = ":root" if mode == "light" else ':root[data-mantine-color-scheme="dark"]'
        blocks.append(f"{selector}{{{tokens}color-scheme:{mode};}}")
    return "".join(blocks)

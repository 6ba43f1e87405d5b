"""Dash components written as static HTML, so that a page section is composed once and shown in both places.

Only `dash.html` elements are accepted: anything else needs React, and a report has none. All text is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from dash import html as dash_html
from dash.development.base_component import Component

VOID = frozenset({"br", "hr", "img", "input", "meta", "link", "wbr", "col"})
ATTRIBUTES = {"className": "class", "htmlFor": "for", "colSpan": "colspan", "rowSpan": "rowspan"}
_ELEMENTS = frozenset(dash_html.__all__)


def to_html(content: Any) -> str:
    """One component, text, number, or any nesting of lists of them, as HTML text. None and False write nothing.

    Raises:
        TypeError: a component that is not from `dash.html` (a mistake of the programmer, not of the user).
    """
    if content is None or content is False:
        return ""
    if isinstance(content, Component):
        return _element(content)
    if isinstance(content, Iterable) and not isinstance(content, str):
        return "".join(to_html(item) for item in content)
    return html.escape(str(content))


def _element(component: Component) -> str:
    name = type(component).__name__
    if type(component).__module__.split(".")[:2] != ["dash", "html"] or name not in _ELEMENTS:
        raise TypeError(f"{type(component).__module__}.{name} has no static form; use dash.html")
    tag = name.lower()
    properties = {key: value for key, value in component.to_plotly_json()["props"].items() if key != "children"}
    opening = f"<{tag}{''.join(_attribute(key, value) for key, value in properties.items())}>"
    return opening if tag in VOID else f"{opening}{to_html(getattr(component, 'children', None))}</{tag}>"


def _attribute(key: str, value: Any) -> str:
    if value is None or value is False or value == "":
        return ""
    if key == "style":
        value = ";".join(f"{_kebab(name)}:{item}" for name, item in value.items())
    name = ATTRIBUTES.get(key, key)
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'


def _kebab(name: str) -> str:
    return name if name.startswith("--") else "".join(f"-{char.lower()}" if char.isupper() else char for char in name)

"""Traces in, verdicts out: Timelines, bubbles, causes and reports. Never imports torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analyzer.analysis import Report, analyze
    from analyzer.comparison import Comparison, compare
    from analyzer.errors import AnalyzerError
    from analyzer.timeline import Timeline
    from analyzer.trace import read_trace

__all__ = ["AnalyzerError", "Comparison", "Report", "Timeline", "analyze", "compare", "read_trace"]

# Imported when asked for: a command that prints an error, or only reads traces, need not wait for pandas.
_HOMES = {
    "AnalyzerError": "errors",
    "Comparison": "comparison",
    "Report": "analysis",
    "Timeline": "timeline",
    "analyze": "analysis",
    "compare": "comparison",
    "read_trace": "trace",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

"""Traces in, verdicts out: Timelines, bubbles, causes and reports. Never imports torch."""

from analyzer.analysis import Report, analyze
from analyzer.comparison import Comparison, compare
from analyzer.errors import AnalyzerError
from analyzer.timeline import Timeline
from analyzer.trace import read_trace

__all__ = ["AnalyzerError", "Comparison", "Report", "Timeline", "analyze", "compare", "read_trace"]

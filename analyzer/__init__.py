"""Traces in, verdicts out: Timelines, bubbles, causes and reports. Never imports torch."""

from analyzer.analysis import Report, analyze
from analyzer.errors import AnalyzerError
from analyzer.timeline import Timeline
from analyzer.trace import read_trace

__all__ = ["AnalyzerError", "Report", "Timeline", "analyze", "read_trace"]

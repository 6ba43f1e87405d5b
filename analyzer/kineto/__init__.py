"""The one place that reads Kineto JSON: a file in, columns of events out.

The text is decoded in pieces, and of each event only the fields that are used; no document tree is ever built.
"""

from analyzer.kineto.read import read_events
from analyzer.kineto.table import CollectiveArgs, Events

__all__ = ["CollectiveArgs", "Events", "read_events"]

"""The one exception type of the analysis side; the command line prints it as a single line, without a traceback."""


class AnalyzerError(Exception):
    """A trace, a run directory or an option cannot be used. The message names the file, the place and the cure."""

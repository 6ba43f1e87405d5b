"""The one exception type of the training side; the command line prints it as a single line, without a traceback."""


class FreeScaleError(Exception):
    """Something the user can put right. The message names the field, file or rank, and the cure."""

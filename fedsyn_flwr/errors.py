"""The one exception a user may cause."""


class UserError(ValueError):
    """A mistake in the configuration, the data or the command line.

    The message is a single line: what is wrong, which value, what to do. It is shown as it is,
    without a traceback.
    """

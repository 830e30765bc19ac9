"""What can go wrong between a stream and its reader."""


class PrefetchError(RuntimeError):
    """Base of the errors that this library raises itself.

    An error of the wrapped stream is never one of these: it reaches the
    reader as it was raised.

    """


class PrefetchTimeout(PrefetchError):
    """A reader waited longer than its `timeout`; nothing was lost."""


class PrefetchWarning(UserWarning):
    """A run that goes on, but perhaps not as its user thinks."""

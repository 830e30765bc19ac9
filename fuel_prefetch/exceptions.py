"""What can go wrong between a stream and its reader."""
import pickle

# What may be compared without a surprise.
PLAIN = (int, float, type(u''), bytes)


class PrefetchError(RuntimeError):
    """Base of the errors that this library raises itself.

    An error of the wrapped stream is never one of these: it reaches the
    reader as it was raised.

    """


class PrefetchTimeout(PrefetchError):
    """Something took longer than the stream's `timeout`; nothing was lost.

    A reader waited for a batch, or for an epoch to begin; or the batch that
    was being read didn't come in time for a pickle or a reset.

    """


class WorkerDied(PrefetchError):
    """A process or machine that worked on an item is gone."""


class WorkerError(PrefetchError):
    """A mapping's error that could not be brought over from its process.

    Its type, message and traceback are in the text.

    """


class PrefetchWarning(UserWarning):
    """A run that goes on, but perhaps not as its user thinks."""


def survives_pickling(error):
    """Whether an error comes out of a pickle as what it was.

    Many can be pickled but not loaded, as their constructor wants other
    arguments than those that they keep.

    """
    try:
        loaded = pickle.loads(pickle.dumps(error, 2))
        # On 2.7 an error may be of a class that derives from nothing.
        args, others = [getattr(one, 'args', ()) for one in (loaded, error)]
        return loaded.__class__ is error.__class__ and (
            len(args) == len(others)) and all(
                type(one) is type(other) and
                (one == other or not isinstance(one, PLAIN))
                for one, other in zip(args, others))
    except Exception:  # an error's own code may fail in any way
        return False

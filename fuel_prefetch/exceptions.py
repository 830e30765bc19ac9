"""What can go wrong between a stream and its reader."""
import io
import pickle
import sys
import traceback

import six
from six.moves import copyreg

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


class RemoteError(PrefetchError):
    """An error of a stream that a server reads.

    It is also one of the builtin type that the original is one of, so that
    ``except ValueError`` catches it where that would have caught the
    original.

    Attributes
    ----------
    type_name, message, traceback : str
        Of the original.

    """
    def __init__(self, details):
        self._details = details
        self.type_name = details['type']
        self.message = details['message']
        self.traceback = details['traceback']
        if details['args'] is not None:
            self.args = details['args']

    def __str__(self):
        return str('{}: {}\n\n{}').format(
            self.type_name, self.message, self.traceback)

    def __reduce__(self):
        return remote_error, (self._details,)


def remote_error(details):
    """Return the :class:`RemoteError` that the details of another make.

    Parameters
    ----------
    details : dict
        What :func:`fuel_prefetch.wire.pack_error` puts there.

    Raises
    ------
    ValueError
        If they are none.

    """
    texts = 'type', 'message', 'traceback', 'builtin'
    args = details.get('args')
    if not all(isinstance(details.get(name), six.string_types)
               for name in texts) or (
                   not isinstance(args, (tuple, type(None)))):
        raise ValueError('no details of an error')
    details = dict({name: six.ensure_str(details[name], 'utf-8', 'replace')
                    for name in texts}, args=args)
    builtin = getattr(six.moves.builtins, details['builtin'], None)
    bases = RemoteError,
    # Nobody may end this process from afar, so no SystemExit; and none of
    # the two that mean the end of something.
    if isinstance(builtin, type) and issubclass(builtin, Exception) and (
            builtin.__name__ not in ('StopIteration', 'StopAsyncIteration')
            and not issubclass(RemoteError, builtin)):
        bases += builtin,
    kind = type('RemoteError', bases, {'__module__': __name__})
    for make, made in [(bases[-1].__new__, kind),  # an OSError only by its own
                       (RemoteError.__new__, kind),  # a MemoryError not
                       (RemoteError.__new__, RemoteError)]:  # a group neither
        try:
            error = make(made)
            break
        except TypeError:
            pass
    error.__init__(details)
    if isinstance(error, EnvironmentError) and args and len(args) > 1:
        error.errno, error.strerror = args[:2]
    return error


class PrefetchWarning(UserWarning):
    """A run that goes on, but perhaps not as its user thinks."""


def dump_error(error):
    """Return a pickle of an error, made as its class says.

    Libraries that send errors about (Dask's does) change for the whole
    process how they are pickled, so that a ``FileNotFoundError`` comes out as
    another one.

    """
    file_ = io.BytesIO()
    pickler = pickle.Pickler(file_, 2)
    # Before 3.3 that is an attribute that nobody reads.
    pickler.dispatch_table = {
        kind: reduce for kind, reduce in copyreg.dispatch_table.items()
        if not (isinstance(kind, type) and issubclass(kind, BaseException))}
    pickler.dump(error)
    return file_.getvalue()


def survives_pickling(error, dump=lambda error: pickle.dumps(error, 2)):
    """Whether an error comes out of a pickle as what it was.

    Many can be pickled but not loaded, as their constructor wants other
    arguments than those that they keep.

    """
    try:
        loaded = pickle.loads(dump(error))
        # On 2.7 an error may be of a class that derives from nothing.
        args, others = [getattr(one, 'args', ()) for one in (loaded, error)]
        return loaded.__class__ is error.__class__ and (
            len(args) == len(others)) and all(
                type(one) is type(other) and
                (one == other or not isinstance(one, PLAIN))
                for one, other in zip(args, others))
    except Exception:  # an error's own code may fail in any way
        return False


def call_elsewhere(what, function, *args):
    """Call a function in another process, from where errors are pickled.

    One that would not come out of its pickle as what it was, by which a pool
    could be broken, becomes a :class:`WorkerError` that says of what it is.

    """
    try:
        return function(*args)
    except BaseException as error:
        if survives_pickling(error):
            raise
        text = traceback.format_exc()
    raise WorkerError('{} failed with an error that cannot be pickled:\n'
                      '{}'.format(what, text))


# 2.7 keeps a handled error until the function returns.
forget_error = getattr(sys, 'exc_clear', lambda: None)

"""Iterators that are computed ahead of their readers, without Fuel."""
from __future__ import absolute_import, division, print_function

import functools
import sys

import six

from fuel_prefetch.arguments import bound_of
from fuel_prefetch.inspection import Inspection
from fuel_prefetch.worker import Prefetcher, Source

WRAPPERS = staticmethod, classmethod  # not callable before Python 3.10


class BackgroundGenerator(object):
    """Computes the items of an iterable ahead of time in a thread.

    It starts at once: the first items are computed before they are asked
    for. Items, order, errors and the end are those of the iterable.

    Parameters
    ----------
    generator : iterable
        What to compute ahead, most often a generator. Leave it to this one:
        it is iterated over in the thread.
    max_prefetch : int, optional
        Most items held ready; one more may be under way. Defaults to 1;
        ``None`` or -1 set no bound.

    Raises
    ------
    TypeError
        If `generator` is not iterable.
    ValueError
        If `max_prefetch` is neither a positive integer nor ``None`` nor -1.
    BaseException
        What ``iter(generator)`` raises.

    Notes
    -----
    An error is an item: it comes after those that preceded it, with the
    traceback of where it happened, and nothing is computed past it until the
    next item is asked for. The end stays the end.

    The thread ends with the iterable, with :meth:`close` and when nobody
    refers to this object any more. Then a generator is closed as well, on
    that thread. Several threads may take items; each goes to one of them.

    """
    _argument = 'generator'  # its name, for messages

    def __init__(self, generator, max_prefetch=1):
        if not (hasattr(generator, '__iter__') or
                hasattr(generator, '__getitem__')):
            raise TypeError('{} must be iterable, got {!r}'.format(
                self._argument, generator))
        self.max_prefetch = max_prefetch
        self._prefetcher = Prefetcher(self._bound_of(max_prefetch),
                                      name=type(self).__name__)
        self._source = self._make_source(generator, self._prefetcher.counters)
        self._channel = self._prefetcher.begin(self._source)

    def _bound_of(self, max_prefetch):
        return bound_of('max_prefetch', max_prefetch)

    def _make_source(self, generator, counters):
        return GeneratorSource(generator,
                               Inspection(counters, describe=_describe))

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self._channel.get()
        except StopIteration:
            self._prefetcher.settle(self._channel)
            raise

    next = __next__  # for 2.7

    def __len__(self):
        """Return the length of the iterable, where it has one."""
        return len(self._source.generator)

    def __bool__(self):
        return True  # without a length too

    __nonzero__ = __bool__

    @property
    def stats(self):
        """A :class:`~fuel_prefetch.stats.Stats` of this moment."""
        return self._prefetcher.snapshot()

    def close(self, timeout=5.0):
        """Stop computing ahead, and close the generator.

        Whoever asks for an item gets a :class:`.PrefetchError` from now on,
        unless all have been taken. Closing twice does nothing more.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for the item under way. Defaults to 5; ``None``
            waits as long as it takes.

        Raises
        ------
        BaseException
            What the generator raised as it was closed.

        """
        self._prefetcher.close(self._source, self._source.raise_error,
                               timeout)

    def send(self, value):
        """Raise TypeError: the generator is ahead of what is sent to it."""
        raise TypeError('nothing can be sent to a generator that is computed '
                        'ahead, got {!r}'.format(value))

    def throw(self, *args):
        """Raise TypeError: the generator is ahead of what is thrown."""
        raise TypeError('nothing can be thrown into a generator that is '
                        'computed ahead, got {!r}'.format(args))

    def __reduce_ex__(self, protocol):
        raise TypeError('a {} can be neither pickled nor copied'.format(
            type(self).__name__))

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()


class GeneratorSource(Source):
    """An iterable, as the worker sees it.

    Parameters
    ----------
    generator : iterable
        The iterable.
    prepare : callable
        As in :class:`.Source`.

    """
    def __init__(self, generator, prepare):
        super(GeneratorSource, self).__init__()
        self.generator = generator
        self.prepare = prepare
        self._error = None

    def open_iterator(self):
        return iter(self.generator)

    def release(self):
        iterator, self.iterator = self.iterator, None
        try:
            getattr(iterator, 'close', tuple)()
        except BaseException:
            self._error = sys.exc_info()

    def raise_error(self):
        """Raise what the generator raised as it was closed, once."""
        error, self._error = self._error, None
        if error is not None:
            try:
                six.reraise(*error)
            finally:
                del error


def background(max_prefetch=1):
    """Have a function return a :class:`BackgroundGenerator`.

    A decorator for functions and methods that return an iterable, most often
    for generator functions. All of these work::

        @background
        @background()
        @background(max_prefetch=5)

    Parameters
    ----------
    max_prefetch : int, optional
        As in :class:`BackgroundGenerator`. Defaults to 1.

    """
    if callable(max_prefetch) or isinstance(max_prefetch, WRAPPERS):
        return background()(max_prefetch)  # it is the function itself
    bound_of('max_prefetch', max_prefetch)

    def decorate(function):
        if isinstance(function, WRAPPERS):
            return type(function)(decorate(function.__func__))
        if not callable(function):
            raise TypeError('background decorates a function, got {!r}'.format(
                function))

        @functools.wraps(function, [
            name for name in functools.WRAPPER_ASSIGNMENTS
            if hasattr(function, name)])
        def wrapper(*args, **kwargs):
            return BackgroundGenerator(function(*args, **kwargs), max_prefetch)
        return wrapper
    return decorate


def _describe(index):
    return ('an item comes in the same memory as one that is not used yet; if '
            'the generator fills one array again and again, that item was '
            'overwritten: yield copies')

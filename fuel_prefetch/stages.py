"""The stages of a stream, and where its time goes among them."""
from __future__ import absolute_import, division, print_function

import contextlib
import inspect
import sys
import threading
import time

import six
from fuel.transformers import Mapping, MultiProcessing

from fuel_prefetch.transformers import ParallelMapping
from fuel_prefetch.waiting import monotonic

# CPU seconds of the thread; of the process where there are no others.
if hasattr(time, 'thread_time'):
    cpu_time = time.thread_time
elif hasattr(time, 'clock_gettime'):  # 3.6
    def cpu_time():
        return time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)
else:  # 2.7
    cpu_time = time.clock

# The lock is tried so often, and given away for so long: see `LockProbe`.
TRY_EVERY = .01
GIVEN_AWAY = .001
FEWEST_TRIES = 5


class Stage(object):
    """One stream of a chain, and what it took for itself.

    Parameters
    ----------
    stream : :class:`~fuel.streams.AbstractDataStream`
        The stream.
    depth : int
        How many streams with several children it is read through.
    branches : bool, optional
        Whether it is a child of the last of these. Defaults to ``False``.

    Attributes
    ----------
    seconds, cpu : float
        Time and CPU time spent in it, but not in what it reads.
    left : float
        When it was left last.
    lock_tries, lock_waits : int
        How often another thread wanted the interpreter's lock meanwhile, and
        how often that had to wait.

    """
    def __init__(self, stream, depth, branches=False):
        self.stream = stream
        self.depth = depth
        self.branches = branches
        self.seconds = self.cpu = self.left = 0.
        self.lock_tries = self.lock_waits = 0

    @property
    def name(self):
        """Its class, and what its work is given by."""
        kind = type(self.stream).__name__
        work = getattr(self.stream, 'mapping', None)
        if work is None:
            work = getattr(self.stream, 'predicate', None)
        if work is not None:
            return '{} ({})'.format(kind, name_of(work))
        dataset = getattr(self.stream, 'dataset', None)
        if dataset is not None:
            return '{} ({})'.format(kind, type(dataset).__name__)
        return kind

    @property
    def mapping(self):
        """The function that workers could call, or ``None``."""
        if type(self.stream) in (Mapping, ParallelMapping):
            return self.stream.mapping

    @property
    def kind(self):
        """What it does with its time.

        `'waits'` where it has the processor for less than half of it; else
        `'keeps the lock'` or `'releases the lock'`, the interpreter's, by
        half of the tries, or `'computes'` where these were too few.

        """
        if self.cpu < .5 * self.seconds:
            return 'waits'
        if self.lock_tries < FEWEST_TRIES:
            return 'computes'
        return ('keeps the lock' if self.lock_waits >= .5 * self.lock_tries
                else 'releases the lock')


def name_of(function):
    return getattr(function, '__name__', type(function).__name__)


def children_of(stream):
    """Return the streams that a stream reads, as far as can be told.

    They are looked for in its attributes, and in lists and the like there.
    What is read in another process isn't seen.

    """
    if isinstance(stream, MultiProcessing) or (
            getattr(stream, 'backend', None) == 'process'):
        return []
    found = []
    for _, value in sorted(getattr(stream, '__dict__', {}).items()):
        if isinstance(value, dict):
            value = list(value.values())
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if _is_stream(one) and not any(one is other for other in found):
                found.append(one)
    return found


def _is_stream(value):
    return not inspect.isclass(value) and all(
        callable(getattr(value, name, None))
        for name in ('get_epoch_iterator', 'get_data'))


@contextlib.contextmanager
def replaced(streams, old, new):
    """Have the readers of a stream read another one instead, for a while."""
    undo = []

    def replace(value):
        if value is old:
            return new
        if isinstance(value, dict):
            return dict((name, replace(one)) for name, one in value.items())
        if type(value) in (list, tuple):
            return type(value)(replace(one) for one in value)
        return value

    try:
        for stream in streams:
            if stream is not old and any(
                    child is old for child in children_of(stream)):
                names = vars(stream)
                undo.append((names, names.copy()))
                for name, value in undo[-1][1].items():
                    if replace(value) is not value:
                        names[name] = replace(value)
        yield
    finally:
        for names, before in undo:
            names.update(before)


class Stages(object):
    """The stages of a chain, while their time is taken.

    In each thread the stage that was entered last has the time, until it
    is left or another is entered from it. To be used in a `with` statement:
    meanwhile the streams have `get_epoch_iterator` and `get_data` of ours,
    which do just what their own do.

    Parameters
    ----------
    stream : :class:`~fuel.streams.AbstractDataStream`
        The end of the chain from which a reader reads it.

    """
    def __init__(self, stream):
        self.all = []
        self.current = None  # in the thread that made this
        self._main = threading.current_thread()
        self._local = threading.local()
        self._undo = []
        self._collect(stream, 0)

    def _collect(self, stream, depth, branches=False):
        if not any(stage.stream is stream for stage in self.all):
            self.all.append(Stage(stream, depth, branches))
            children = children_of(stream)
            for child in children:
                several = len(children) > 1
                self._collect(child, depth + several, several)

    def __enter__(self):
        try:
            for stage in self.all:
                self._replace(stage, 'get_epoch_iterator', TimedIterator)
                self._replace(stage, 'get_data', lambda data, *_: data)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info):
        while self._undo:
            names, name, before = self._undo.pop()
            names.pop(name)
            names.update(before)

    def _replace(self, stage, name, wrap):
        names = getattr(stage.stream, '__dict__', None)
        if names is None:  # so it counts as a part of its reader
            return
        method = getattr(stage.stream, name)

        def timed(*args, **kwargs):
            with self.within(stage):
                result = method(*args, **kwargs)
            return wrap(result, self, stage)

        self._undo.append(
            (names, name, {name: names[name]} if name in names else {}))
        names[name] = timed

    @contextlib.contextmanager
    def within(self, stage):
        """Have a stage's time taken by the code in a `with` statement."""
        self.switch(stage)
        try:
            yield
        finally:
            self.switch(None)

    def switch(self, stage):
        """Enter a stage, or leave the latest one if it is ``None``."""
        local = self._local
        try:
            stack = local.stack
        except AttributeError:
            stack = local.stack = []
        now, cpu = monotonic(), cpu_time()
        if stack:
            stack[-1].seconds += now - local.since
            stack[-1].cpu += cpu - local.cpu
            stack[-1].left = now
        if stage is None:
            stack.pop()
        else:
            stack.append(stage)
        local.since, local.cpu = now, cpu
        if threading.current_thread() is self._main:
            self.current = stack[-1] if stack else None


class TimedIterator(six.Iterator):
    """An epoch iterator, in a stage whose time is taken."""
    def __init__(self, iterator, stages, stage):
        self._iterator = iterator
        self._stages = stages
        self._stage = stage

    def __iter__(self):
        return self

    def __next__(self):
        self._stages.switch(self._stage)
        try:
            return next(self._iterator)
        finally:
            self._stages.switch(None)

    def __getattr__(self, name):
        return getattr(self._iterator, name)


class LockProbe(object):
    """A thread that finds out which stages keep the interpreter's lock.

    A hundred times a second or less it gives the lock away for a millisecond.
    Where it then gets it back more than a quarter of the switch interval late,
    the stage that was at work kept it. For a `with` statement. On 2.7, which
    has no such interval, it does nothing.

    """
    def __init__(self, stages):
        self.stages = stages
        self._done = threading.Event()
        self._thread = threading.Thread(
            target=self._try, name='fuel_prefetch: lock probe')
        self._thread.daemon = True

    def __enter__(self):
        if hasattr(sys, 'getswitchinterval'):
            self._thread.start()
        return self

    def __exit__(self, *exc_info):
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _try(self):
        late = .25 * sys.getswitchinterval() + GIVEN_AWAY
        while not self._done.wait(TRY_EVERY - GIVEN_AWAY):
            stage, start = self.stages.current, monotonic()
            time.sleep(GIVEN_AWAY)
            back = monotonic()
            if stage is not None:
                count_try(stage, stage is self.stages.current, back - start,
                          stage.left - start, late)


def count_try(stage, at_work, taken, stayed, late):
    """Count a try to get the lock back from a stage.

    Parameters
    ----------
    stage : :class:`Stage`
        Which one it was that was at work at the beginning.
    at_work : bool
        Whether it still is.
    taken : float
        How long it took to get the lock.
    stayed : float
        How long the stage was at work from then on, if it isn't.
    late : float
        What is late.

    """
    # One that was left early says nothing, as its end frees the lock.
    if at_work or stayed > late:
        stage.lock_tries += 1
        stage.lock_waits += taken > late

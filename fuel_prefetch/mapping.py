"""A function applied to many items at once, on several workers."""
from __future__ import absolute_import, division, print_function

import threading
import weakref
from collections import deque

import numpy
import six
from concurrent.futures import Future, ThreadPoolExecutor

from fuel_prefetch.arguments import bound_of, check, check_flag, is_count
from fuel_prefetch.channel import Failure, Pending
from fuel_prefetch.exceptions import WorkerDied, call_elsewhere
from fuel_prefetch.generators import BackgroundGenerator, GeneratorSource
from fuel_prefetch.inspection import Inspection
from fuel_prefetch.old_pools import submit
from fuel_prefetch.pool import ThreadPool
from fuel_prefetch.waiting import Gate, process_token

# What executors raise when a worker was lost, by name: concurrent.futures (in
# two places, by version), loky, Dask.
DEATHS = {'BrokenExecutor', 'BrokenProcessPool', 'TerminatedWorkerError',
          'KilledWorker'}


def parallel_map(function, iterable, workers=2, max_prefetch=None,
                 ordered=True, executor=None):
    """Apply a function to the items of an iterable, on several workers.

    It starts at once, ahead of what is asked for. One thread reads the
    iterable, in order.

    Parameters
    ----------
    function : callable
        Called with one item.
    iterable : iterable
        The items; they need not end.
    workers : int, optional
        Threads to call the function in. Defaults to 2.
    max_prefetch : int, optional
        Most items read ahead of those that were taken: waiting, under way
        or ready. Defaults to twice the workers; -1 sets no bound.
    ordered : bool, optional
        Whether results come in the order of the items, rather than as they
        get ready. Defaults to ``True``.
    executor : ``concurrent.futures.Executor``, optional
        Who calls the function. It is not shut down. Defaults to threads of
        its own. With another one `workers` says how many calls it can have
        under way, for the default of `max_prefetch`.

    Returns
    -------
    results : :class:`.ParallelMap`
        An iterator over the results, to be used like a
        :class:`.BackgroundGenerator`.

    Raises
    ------
    TypeError, ValueError
        If an argument can't be what it is, with its name and value.

    Notes
    -----
    An error of the function comes in the place of its result, and one of
    the iterable in the place of its item; what follows may be taken after
    either. A ``StopIteration`` that leaves the function is an error, a
    ``RuntimeError`` with the StopIteration as its cause.

    """
    return ParallelMap(function, iterable, workers, max_prefetch, ordered,
                       executor)


class ParallelMap(BackgroundGenerator):
    """An iterator over results: see :func:`.parallel_map`."""
    _argument = 'iterable'

    def __init__(self, function, iterable, workers=2, max_prefetch=None,
                 ordered=True, executor=None):
        check_call('function', function)
        self._calls = Calls(workers, ordered, executor)
        self._calls.function = function
        super(ParallelMap, self).__init__(iterable, max_prefetch)

    def _bound_of(self, max_prefetch):
        return bound_of_calls('max_prefetch', max_prefetch,
                              self._calls.workers)

    def _make_source(self, generator, counters):
        return GeneratorSource(
            generator, Submission(self._calls, Inspection(
                counters, describe=_describe)))

    def close(self, timeout=5.0):
        """Stop, and cancel what is not under way yet.

        As for :class:`.BackgroundGenerator`. Calls under way come to their
        end, without being waited for.

        """
        try:
            super(ParallelMap, self).close(timeout)
        finally:
            self._calls.shut_down()


def _describe(index):
    return ('an item comes in the same memory as one that is not used yet; if '
            'the iterable fills one array again and again, that item was '
            'overwritten: have it give copies')


def check_call(name, function):
    if not callable(function):
        raise TypeError('{} must be callable, got {!r}'.format(name, function))


def bound_of_calls(name, value, workers):
    """Return how many items may be held, one more being in hand."""
    bound = 2 * workers if value is None else bound_of(name, value)
    return None if bound is None else bound - 1


class Calls(object):
    """The calls of a function, and who makes them.

    Parameters
    ----------
    workers, ordered, executor
        As in :func:`.parallel_map`.
    seed : int, optional
        If given, the function is called with a second argument, a random
        state for the seed, the epoch and the number of the item in it.

    Attributes
    ----------
    function : callable
        The function.

    """
    def __init__(self, workers, ordered=True, executor=None, seed=None):
        check('workers', workers, 'be a positive integer', is_count(workers))
        check_flag('ordered', ordered)
        check('executor', executor, 'be a concurrent.futures.Executor or None',
              executor is None or callable(getattr(executor, 'submit', None)))
        self.function = None
        self.workers = workers
        self.ordered = ordered
        self.executor = executor
        self.seed = seed
        self.epoch = -1
        self.number = 0
        self._pool = None
        self._process = None  # whose pool it is
        self._window = None

    def begin(self):
        """Begin an epoch, in the thread that is going to submit its calls."""
        self.epoch += 1
        self.number = 0
        self._window = None
        self._pool = None  # the next has the settings of this thread

    def submit(self, item):
        """Return a pending result of the function's call with `item`."""
        place = None
        if self.seed is not None:
            place = self.seed, self.epoch, self.number
        self.number += 1
        return self.resubmit(item, place)

    def resubmit(self, item, place):
        """Return the same, for a given epoch and number."""
        executor = self.executor
        if executor is None:
            # The threads of a pool stay behind in a fork.
            if self._pool is None or self._process != process_token():
                self._process = process_token()
                self._pool = ThreadPool(self.workers)
            executor = self._pool
        # Threads need not know whether an error can be pickled.
        call = (_call if isinstance(executor, (ThreadPool, ThreadPoolExecutor))
                else _call_elsewhere)
        try:
            future = submit(executor, call, self.function, item, place)
        except Exception as error:
            if _is_death(error):
                six.raise_from(_death(error), error)
            raise
        return self._in_place(Task(item, place, future))

    def resume(self, saved):
        """Return what :meth:`Task.save` saved, under way again."""
        if 'result' not in saved:
            return self.resubmit(saved['item'], saved['place'])
        future = Future()
        future.set_result(saved['result'])
        return self._in_place(Task(None, None, future))

    def _in_place(self, task):
        if self.ordered:
            return task
        if self._window is None:
            self._window = Window()
        return self._window.add(task)

    def shut_down(self):
        """Let the threads of its own end, without waiting for them."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(False)

    def save(self):
        """Return in plain objects what a random state depends on."""
        return {'epoch': self.epoch, 'number': self.number}

    def load(self, saved):
        """Go on from there, if it is known."""
        if saved is not None:
            self.epoch, self.number = saved['epoch'], saved['number']


def _call(function, item, place):
    try:
        if place is None:
            return function(item)
        return function(item, numpy.random.RandomState(list(place)))
    except StopIteration as error:
        # It would be taken for the end.
        six.raise_from(
            RuntimeError('StopIteration was raised by the mapping'), error)


def _call_elsewhere(*call):
    return call_elsewhere('the mapping', _call, *call)


def _is_death(error):
    """Whether an executor's error says that a worker was lost."""
    return any(kind.__name__ in DEATHS for kind in type(error).__mro__)


def _death(error):
    return WorkerDied('a worker died: {}'.format(error))


class Task(Pending):
    """A call that was submitted, with its item for a pickle.

    When nobody refers to it any more the call is cancelled.

    """
    token = claimant = None  # see `Window`

    def __init__(self, item, place, future):
        self.item = item
        self.place = place
        self.future = future
        self.gate = gate = Gate()
        # A future that referred to this would keep it alive.
        future.add_done_callback(lambda _: gate.open())

    def take(self):
        return self if self.future.done() else None

    def deliver(self):
        # The future refers to the error, which is going to refer to this
        # frame, and this frame must not refer to the future then.
        future, self.future = self.future, None
        try:
            return future.result()
        except Exception as error:
            if _is_death(error):
                six.raise_from(_death(error), error)
            raise
        finally:
            future = None

    def save(self):
        future = self.future
        if future.done() and not future.cancelled() and (
                future.exception() is None):
            return {'result': future.result()}
        # An error comes again with the call.
        return {'item': self.item, 'place': self.place}

    def __del__(self):
        if self.future is not None:
            self.future.cancel()


class Window(object):
    """The calls of an epoch whose results come as they get ready.

    Each has a token in the channel. A token stands for one result, whichever
    is first. So as one is delivered in the place of another, the other's
    call changes over to its token, and those in the channel are at any time
    those that are still to be delivered.

    """
    def __init__(self):
        self.gate = Gate()
        self._done = deque()  # weak references: a dropped one is forgotten
        self._lock = threading.Lock()

    def add(self, task):
        token = Token(self, task)
        task.token = weakref.ref(token)
        done, gate, reference = self._done, self.gate, weakref.ref(task)

        def finish(_):
            done.append(reference)
            gate.open()
        task.future.add_done_callback(finish)
        return token

    # Ctrl-C may come between any two steps. Then the token goes back into the
    # channel, and whoever takes it makes all of them once more.
    def take(self, token):
        with self._lock:
            if token.taken is None and not self._claim(token):
                return None
            task = token.taken
            other = task.token and task.token()
            if other is not None and other is not token and (
                    token.task is not None):
                other.task = token.task
                token.task.token = weakref.ref(other)
            task.token = None
            token.task = None
            if self._done:
                self.gate.open()  # for another reader
            return task

    def _claim(self, token):
        while self._done:
            task = self._done[0]()
            claimant = task and task.claimant and task.claimant()
            if task is None or task.token is None or (
                    claimant is not None and claimant.taken is task):
                self._done.popleft()
                continue
            task.claimant = weakref.ref(token)
            token.taken = task
            return True
        return False


class Token(Pending):
    """Stands for one of the results of a window, whichever is first."""
    def __init__(self, window, task):
        self.window = window
        self.gate = window.gate
        self.task = task  # whose result is to come
        self.taken = None  # whose result came

    def take(self):
        return self.window.take(self)

    def save(self):
        return (self.taken or self.task).save()


class Submission(object):
    """Prepares an item by submitting the call with it.

    Parameters
    ----------
    calls : :class:`Calls`
        The calls.
    inspection : :class:`.Inspection`
        Counts the items, as they go in.
    make_ready : callable, optional
        Called before each call is submitted.

    """
    def __init__(self, calls, inspection, make_ready=lambda: None):
        self.calls = calls
        self.inspection = inspection
        self.make_ready = make_ready

    def restart(self):
        """Forget the memory of the items so far."""
        self.inspection.restart()

    def __call__(self, item, waiting):
        """Return the entry of an item, as an inspection does."""
        notice, item, nbytes = self.inspection(item, waiting)
        self.make_ready()
        return self.calls.submit(item), notice, nbytes

    def load_notice(self, saved):
        """Return an entry's notice as it was before it was saved."""
        if 'traceback' in saved:
            return Failure.load(saved)
        self.make_ready()
        return self.calls.resume(saved)

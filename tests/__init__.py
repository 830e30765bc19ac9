"""Tests of fuel_prefetch, and what they have in common."""
from __future__ import absolute_import, division, print_function

import gc
import os
import signal
import sys
import threading
import traceback
import unittest
import warnings

import fuel_prefetch  # noqa: F401  (before anything of Fuel's)
from fuel.datasets import IterableDataset
from fuel.streams import AbstractDataStream, DataStream

from fuel_prefetch.waiting import monotonic

# Seconds after which a hang is a failure. No test waits for this to pass.
DEADLINE = 10.


def stacks():
    """Return the stack of every thread, as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return '\n'.join(
        '{}:\n{}'.format(names.get(ident, ident),
                         ''.join(traceback.format_stack(frame)))
        for ident, frame in sys._current_frames().items())


def wait_until(condition, timeout=DEADLINE):
    """Wait until `condition` holds; return whether it does.

    For what gives no notification, such as the end of a thread that nobody
    joins. Everything else in the tests waits for an event.

    """
    deadline = monotonic() + timeout
    pause = threading.Event()
    while not condition():
        if monotonic() > deadline:
            return False
        pause.wait(.002)
    return True


class ConcurrentTestCase(unittest.TestCase):
    """A test case that leaves no thread behind, and doesn't hang."""
    def setUp(self):
        before = set(threading.enumerate())

        def check():
            gc.collect()
            self.assertTrue(
                wait_until(lambda: set(threading.enumerate()) <= before),
                'threads were left over:\n' + stacks())
        self.addCleanup(check)

    def start(self, function, *args):
        """Call `function` in a thread; see :meth:`join`."""
        thread = Caller(function, args)
        thread.start()
        return thread

    def join(self, thread):
        """Return what the thread's function returned, or raise what it did."""
        thread.join(DEADLINE)
        if thread.is_alive():
            self.fail('a thread hangs:\n' + stacks())
        if thread.error is not None:
            raise thread.error
        return thread.result

    def in_child(self, function):
        """Return the exit code that `function` returns in a fork.

        It is 1 if that raises, and ``None`` if it hangs.

        """
        with warnings.catch_warnings():
            # Python 3.12 and newer warn of any fork beside threads.
            warnings.simplefilter('ignore', DeprecationWarning)
            child = os.fork()
        if not child:
            code = 1
            try:
                code = function()
            finally:
                os._exit(code)
        codes = []

        def wait():
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                codes.append(os.WEXITSTATUS(status) if os.WIFEXITED(status)
                             else -os.WTERMSIG(status))
            return done
        if wait_until(wait):
            return codes[0]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    def within(self, seconds, function, *args):
        """Call `function` in a thread; fail if it takes longer."""
        thread = self.start(function, *args)
        thread.join(seconds)
        if thread.is_alive():
            self.fail('took more than {} s:\n{}'.format(seconds, stacks()))
        return self.join(thread)


class Caller(threading.Thread):
    """A thread that keeps what its function returned or raised."""
    def __init__(self, function, args):
        super(Caller, self).__init__()
        self.daemon = True  # a hang must not keep the test run from ending
        self.function, self.args = function, args
        self.result = self.error = None

    def run(self):
        try:
            self.result = self.function(*self.args)
        except BaseException as error:
            self.error = error
        finally:
            del self.function, self.args


class Gated(object):
    """An iterator that gives an item for each permit, and says when asked.

    Parameters
    ----------
    items : iterable
        What to give. An exception instance marked by :class:`Raise` is
        raised in its place.

    """
    def __init__(self, items):
        self.items = iter(items)
        self.asked = 0
        self._condition = threading.Condition()
        self._permits = 0

    def __iter__(self):
        return self

    def __next__(self):
        with self._condition:
            self.asked += 1
            self._condition.notify_all()
            while not self._permits:
                self._condition.wait(DEADLINE)
            self._permits -= 1
        item = next(self.items)
        if isinstance(item, Raise):
            raise item.error
        return item

    next = __next__

    def permit(self, count=1):
        """Let `count` more items through."""
        with self._condition:
            self._permits += count
            self._condition.notify_all()

    def wait_asked(self, count):
        """Wait until it was asked `count` times in all."""
        with self._condition:
            deadline = monotonic() + DEADLINE
            while self.asked < count:
                if monotonic() > deadline:
                    raise AssertionError('asked {} times, not {}'.format(
                        self.asked, count))
                self._condition.wait(.05)


class Raise(object):
    """Stands for an error in a list of items."""
    def __init__(self, error):
        self.error = error


class IteratorStream(AbstractDataStream):
    """A stream whose epochs are the iterators that a function returns.

    It records each call, in which thread, and whether two ever overlapped.

    """
    sources = ('data',)

    def __init__(self, make_iterator, produces_examples=True, **kwargs):
        super(IteratorStream, self).__init__(**kwargs)
        self.produces_examples = produces_examples
        self.make_iterator = make_iterator
        self.calls = []
        self.threads = []
        self.overlaps = 0
        self._busy = threading.Lock()
        self.iterator = None

    def _call(self, name, function):
        if not self._busy.acquire(False):
            self.overlaps += 1
            return function()
        try:
            self.calls.append(name)
            self.threads.append(threading.current_thread())
            return function()
        finally:
            self._busy.release()

    def get_epoch_iterator(self, **kwargs):
        self.iterator = None
        self.iterator = self._call('get_epoch_iterator', self.make_iterator)
        return super(IteratorStream, self).get_epoch_iterator(**kwargs)

    def get_data(self, request=None):
        return self._call('get_data', lambda: next(self.iterator))

    def reset(self):
        self._call('reset', lambda: None)

    def next_epoch(self):
        self._call('next_epoch', lambda: None)

    def close(self):
        # Closing may come while a read is under way: it is what frees it.
        self.calls.append('close')


def numbers(count):
    """Return a Fuel stream of the examples `(0,)` to `(count - 1,)`."""
    return DataStream(IterableDataset(range(count)))

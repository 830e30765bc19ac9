"""Tests of fuel_prefetch, and what they have in common."""
from __future__ import absolute_import, division, print_function

import errno
import fcntl
import gc
import itertools
import mmap
import multiprocessing
import os
import select
import signal
import sys
import tempfile
import threading
import traceback
import unittest
import warnings
import weakref

import fuel_prefetch  # noqa: F401  (before anything of Fuel's)
from fuel.datasets import IterableDataset
from fuel.streams import AbstractDataStream, DataStream

from fuel_prefetch import BackgroundDataStream, PrefetchTimeout
from fuel_prefetch.waiting import deadline_of, monotonic, time_left

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts what runs in the background like this, and so would be
    # the processes that are interrupted here.
    signal.signal(signal.SIGINT, signal.default_int_handler)

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
    """A test case that leaves nothing behind, and doesn't hang."""
    def setUp(self):
        if hasattr(gc, 'freeze') and not gc.get_freeze_count():
            # All that the tests import need not be searched for garbage, a
            # tenth of a second each time. Python 3.7 and newer can do that.
            gc.collect()
            gc.freeze()
        threads = set(threading.enumerate())
        processes = set(multiprocessing.active_children())

        def check():
            gc.collect()
            self.assertTrue(
                wait_until(lambda: set(threading.enumerate()) <= threads),
                'threads were left over:\n' + stacks())
            self.assertTrue(
                wait_until(lambda: set(multiprocessing.active_children()) <=
                           processes), 'processes were left over')
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


class ContractTestCase(ConcurrentTestCase):
    """What holds for every backend.

    The cases here are of a thread; those of a process are made of them by
    :mod:`tests.test_process_contract`.

    """
    backend = 'thread'
    in_hand = 1  # most batches that are read, and neither held nor taken

    def ahead(self, data_stream, **kwargs):
        return BackgroundDataStream(data_stream, backend=self.backend,
                                    **kwargs)

    def wrap(self, data_stream, **kwargs):
        stream = self.ahead(data_stream, **kwargs)
        self.addCleanup(stream.close)
        return stream

    def most_held(self, max_store):
        """Return how many batches are in a full store."""
        return max_store

    def assertSameError(self, error, original):
        self.assertIs(error, original)

    def patiently(self, function, *args):
        """Call `function` until it doesn't time out, which loses nothing."""
        deadline = deadline_of(DEADLINE)
        while True:
            try:
                return function(*args)
            except PrefetchTimeout:
                if not time_left(deadline):
                    raise


def thread_only(reason):
    """Mark a test that has no meaning, or another one, for a process."""
    def mark(function):
        function.thread_only = reason
        return function
    return mark


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


class Shared(object):
    """What this process and those that are forked from it have in common.

    A pickle or copy of it is the thing itself. Nothing here takes a lock, as
    one would be left behind by a process that is killed.

    """
    _all = weakref.WeakValueDictionary()
    _count = itertools.count()

    def __init__(self):
        self._descriptors = []
        self._key = os.getpid(), next(self._count)
        self._all[self._key] = self

    def __reduce_ex__(self, protocol):
        return find_shared, (self._key,)

    def __del__(self, close=os.close):
        for descriptor in self._descriptors:
            close(descriptor)


def find_shared(key):
    return Shared._all[key]


class Journal(Shared):
    """Lines of text in the order in which they were written, by anybody."""
    def __init__(self):
        super(Journal, self).__init__()
        descriptor, path = tempfile.mkstemp()
        os.close(descriptor)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND)
        self._descriptors.append(self._file)
        os.unlink(path)

    def append(self, line):
        os.write(self._file, line.encode() + b'\n')

    def __iter__(self):
        size = os.fstat(self._file).st_size
        content = mmap.mmap(self._file, size, prot=mmap.PROT_READ)[
            :] if size else b''
        return iter(content.decode().splitlines())

    def __len__(self):
        return sum(1 for _ in self)

    def __bool__(self):
        return True

    __nonzero__ = __bool__


class Permits(Shared):
    """Permits that some give and others use up, one at a time."""
    def __init__(self):
        super(Permits, self).__init__()
        self._descriptors.extend(os.pipe())
        for descriptor in self._descriptors:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_NONBLOCK)

    def give(self, count=1):
        os.write(self._descriptors[1], count * b'.')

    def take(self, timeout=None):
        """Wait for a permit and use it up; return whether one came."""
        while self.wait(timeout):
            try:
                return bool(os.read(self._descriptors[0], 1))
            except OSError as error:  # another one was quicker
                if error.errno != errno.EAGAIN:
                    raise
        return False

    def wait(self, timeout=None):
        """Wait until there is a permit; return whether there is."""
        deadline = deadline_of(timeout)
        poller = select.poll()
        poller.register(self._descriptors[0], select.POLLIN)
        while True:
            left = time_left(deadline)
            try:
                return bool(poller.poll(None if left is None else 1000 * left))
            except select.error as error:  # on 2.7
                if error.args[0] != errno.EINTR:
                    raise


class Event(Permits):
    """As :class:`threading.Event`."""
    def set(self):
        self.give()

    def clear(self):
        while self.take(0):
            pass


class Gated(object):
    """An iterator that gives an item for each permit, and says when asked.

    It may be read in another process than it is permitted in.

    Parameters
    ----------
    items : iterable
        What to give. An exception instance marked by :class:`Raise` is
        raised in its place.

    """
    def __init__(self, items):
        self.items = list(items)
        self.permits = Permits()
        self._asked = Journal()

    @property
    def asked(self):
        return len(self._asked)

    def __iter__(self):
        return self

    def __next__(self):
        self._asked.append('')
        self.permits.take()
        if not self.items:
            raise StopIteration
        item = self.items.pop(0)
        if isinstance(item, Raise):
            raise item.error
        return item

    next = __next__

    def permit(self, count=1):
        """Let `count` more items through."""
        self.permits.give(count)

    def wait_asked(self, count):
        """Wait until it was asked `count` times in all."""
        if not wait_until(lambda: self.asked >= count):
            raise AssertionError('asked {} times, not {}'.format(
                self.asked, count))


class Raise(object):
    """Stands for an error in a list of items."""
    def __init__(self, error):
        self.error = error


class IteratorStream(AbstractDataStream):
    """A stream whose epochs are the iterators that a function returns.

    It records each call, where it was made, and whether two ever overlapped,
    also those on its copies in other processes.

    """
    sources = ('data',)

    def __init__(self, make_iterator, produces_examples=True, **kwargs):
        super(IteratorStream, self).__init__(**kwargs)
        self.produces_examples = produces_examples
        self.make_iterator = make_iterator
        self.journal = Journal()
        self.iterator = None

    def _call(self, name, function):
        self._note('begin', name)
        try:
            return function()
        finally:
            self._note('end', name)

    def _note(self, *words):
        self.journal.append('\t'.join(words + Place.here()))

    @property
    def _notes(self):
        return [(words[0], words[1], Place(*words[2:])) for words in [
            line.split('\t') for line in self.journal]]

    @property
    def calls(self):
        """Names of the calls.

        A stream that is read in another process is closed there, and then
        its copy here, which is one call.

        """
        notes = [(name, place.process) for kind, name, place in self._notes
                 if kind == 'begin']
        return [name for number, (name, process) in enumerate(notes)
                if not (name == 'close' and number and
                        notes[number - 1][0] == 'close' and
                        notes[number - 1][1] != process)]

    @property
    def readers(self):
        """Where the calls were made."""
        return [place for kind, name, place in self._notes
                if kind == 'begin' and name != 'close']

    @property
    def overlaps(self):
        """How many calls were made during another one."""
        overlaps = running = 0
        for kind, name, _ in self._notes:
            # Closing may come while a read is under way: it is what frees it.
            if name != 'close':
                overlaps += kind == 'begin' and running > 0
                running += 1 if kind == 'begin' else -1
        return overlaps

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
        self._call('close', lambda: None)


class Place(object):
    """A thread of this or another process."""
    def __init__(self, process, thread, name):
        self.process, self.thread, self.name = int(process), int(thread), name

    @staticmethod
    def here():
        """Return the arguments for this one, as text."""
        thread = threading.current_thread()
        return (str(os.getpid()), str(thread.ident),
                multiprocessing.current_process().name + ', ' + thread.name)

    def __eq__(self, other):
        return vars(self) == vars(other)

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash((self.process, self.thread))

    @property
    def alive(self):
        """Whether the thread, or the other process, is there still."""
        if self.process == os.getpid():
            return any(thread.ident == self.thread
                       for thread in threading.enumerate())
        return any(child.pid == self.process
                   for child in multiprocessing.active_children())


def numbers(count):
    """Return a Fuel stream of the examples `(0,)` to `(count - 1,)`."""
    return DataStream(IterableDataset(range(count)))

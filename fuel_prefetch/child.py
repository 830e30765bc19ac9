"""What runs in the process that reads a stream for another one."""
from __future__ import absolute_import, division, print_function

import os
import random
import select
import signal
import stat
import sys
import threading
import time
import traceback

import numpy
import six
from six.moves import cPickle as pickle

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from fuel_prefetch.channel import Failure
from fuel_prefetch.exceptions import (
    PrefetchError, WorkerError, dump_error, survives_pickling)
from fuel_prefetch.link import (
    CALL, CALLS, COUNT, DONE, FAILED, ITEM, READY, RELEASE, ChildEnd,
    Disconnected)
from fuel_prefetch.waiting import monotonic

# Bytes of the largest pickle of a stream that is kept of one that is closed.
MOST_KEPT = 2 ** 26

ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR  # O_ACCMODE, for 2.7

# Seconds between two looks whether the parent wants something, where batches
# come faster; and what is left of the process when the parent is gone.
LOOK_AFTER = .0005
GRACE = 3.


def serve(sockets, origin, settings):
    """Read a stream as its parent says, until that closes the connection.

    Parameters
    ----------
    sockets : tuple
        One end of :func:`.link.pair`.
    origin : tuple, bytes or None
        The stream and the iterator of the epoch under way, or ``None``; or
        a pickle of both. ``None`` if that is sent.
    settings : dict
        ``'seeds'``: an integer for NumPy's global random state, and one for
        Python's. ``'errors'``: NumPy's handling of floating-point errors.
        ``'forked'``: whether this process is a copy of its parent.
        ``'held'``: a lock that its one thread holds since then, or ``None``.

    """
    _leave_signals_to_parent()
    if settings['forked']:
        _own_files()
    if settings['held'] is not None:
        settings['held'].release()
    numpy.seterr(**settings['errors'])
    for_numpy, for_python = settings['seeds']
    numpy.random.seed([for_numpy >> shift & 0xffffffff
                       for shift in range(0, 256, 32)])
    random.seed(for_python)
    try:
        link = ChildEnd(sockets)
        _watch(link)
        Producer(link).run(origin)
    except Disconnected:
        pass  # the parent has closed the connection, or is gone


def _leave_signals_to_parent():
    # Ctrl-C goes to all processes of a terminal; the parent decides. What
    # else it handles in Python is meant for it alone.
    for number in range(1, signal.NSIG):
        if number != signal.SIGINT and callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    if hasattr(signal, 'pthread_sigmask'):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _own_files():
    """Give this process its own place in each file that it inherited.

    A file that was opened before a fork has one position for both processes.
    Where one of them reads, the other's next read would come from elsewhere.

    """
    try:
        names = os.listdir('/proc/self/fd')
    except OSError:  # not Linux
        return
    for name in names:
        number = int(name)
        try:
            flags = fcntl.fcntl(number, fcntl.F_GETFL)
            if number < 3 or not stat.S_ISREG(os.fstat(number).st_mode) or (
                    flags & ACCESS == os.O_WRONLY or
                    flags & os.O_APPEND):
                continue
            descriptor_flags = fcntl.fcntl(number, fcntl.F_GETFD)
            own = os.open('/proc/self/fd/' + name, flags & ACCESS)
            os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(own, number)
            os.close(own)
            fcntl.fcntl(number, fcntl.F_SETFD, descriptor_flags)
        except (OSError, IOError):  # closed since, or not to be opened
            pass


def _watch(link):
    """End this process soon after its parent, even if a read never ends."""
    parent = os.getppid()
    poller = select.poll()
    poller.register(link.fileno(), 0)  # which reports the other end's closing

    def watch():
        # The other end may be open in another process still.
        while os.getppid() == parent and not poller.poll(1000):
            pass
        time.sleep(GRACE)
        os._exit(1)

    thread = threading.Thread(target=watch, name='fuel_prefetch: watch')
    thread.daemon = True
    thread.start()


class Producer(object):
    """Reads a stream, one thing at a time.

    ::

        RESTING <--> READING

    It is READING while it owes batches that were granted. What it says else,
    an error, an end or an answer, leaves it RESTING, so that nothing is read
    which the parent, knowing of that, may not want. A grant from before the
    parent knew bears an old number, and is void. An epoch comes with a first
    grant, so that it is read from at once.

    """
    def __init__(self, link):
        self.link = link
        self.stream = self.iterator = None
        self.number = 0  # of what was said else
        self.made = 0  # batches since then
        self.opening = 0  # granted since then, as an epoch was opened

    def run(self, origin):
        try:
            if origin is None:
                _, _, origin = self.link.receive()
            if isinstance(origin, bytes):
                origin = pickle.loads(origin)
            self.stream, self.iterator = origin
        except Disconnected:
            raise
        except BaseException:
            self._answer(None, failure_of(sys.exc_info()))
            return
        del origin
        self.link.send(READY)
        looked = monotonic()
        while True:
            grant = number, count = self.link.grant
            if number != self.number:
                count = self.opening
            if self.iterator is None or count == self.made:
                message = self.link.receive(grant)
            else:
                now = monotonic()
                if now - looked < LOOK_AFTER or not self.link.has_message():
                    self._read()
                    continue
                looked = now
                message = self.link.receive()
            if message is not None:
                self._obey(*message)

    def _read(self):
        self.made = (self.made + 1) % COUNT
        try:
            batch = next(self.iterator)
        except:  # noqa: E722 (SystemExit too, and 2.7's old-style errors)
            failure = failure_of(sys.exc_info())
        else:
            try:
                self.link.send_data(ITEM, batch)
                return
            except Disconnected:
                raise
            except BaseException:  # it can't be pickled, or has no room
                failure = failure_of(sys.exc_info())
            batch = None
        self._say(FAILED, failure)

    def _say(self, kind, value):
        self.number += 1
        self.made = self.opening = 0
        self.link.send_data(kind, value, self.number)

    def _answer(self, value=None, failure=None):
        self._say(DONE, (failure, value))

    def _obey(self, kind, number, body):
        if kind == RELEASE:
            self.iterator = None
        elif kind == CALL:
            try:
                args = pickle.loads(body)
                value = getattr(self, CALLS[number])(*args)
                self._answer(value)
                if CALLS[number] == 'open':
                    self.opening, = args
            except Disconnected:
                raise
            except:  # noqa: E722 (no room for the answer included)
                self._answer(failure=failure_of(sys.exc_info()))

    def open(self, grant):
        """Begin an epoch, of which `grant` batches may be read at once."""
        self.iterator = None  # gone before the next one is made
        self.iterator = self.stream.get_epoch_iterator()

    def rest(self):
        """Do nothing but to answer."""

    def change(self, changes):
        """Set attributes that were set in the parent."""
        make_changes(self.stream, changes)

    def reset(self):
        self.iterator = Resumed.unwrap(self.iterator, True)
        self.stream.reset()

    def next_epoch(self):
        self.iterator = Resumed.unwrap(self.iterator, True)
        self.stream.next_epoch()

    def save(self):
        """Return a pickle of the stream and the iterator."""
        return pickle.dumps((self.stream, Resumed.unwrap(self.iterator)),
                            pickle.HIGHEST_PROTOCOL)

    def close(self):
        """Close the stream; return a pickle of it, if it has a small one."""
        self.iterator = None
        self.stream.close()
        kept = Limited(MOST_KEPT)
        try:
            pickle.Pickler(kept, pickle.HIGHEST_PROTOCOL).dump(
                (self.stream, None))
        except Exception:  # it can't be pickled, or not in that size
            return None
        return b''.join(kept.parts)


def make_changes(stream, changes):
    """Set attributes of a stream and of what it consists of.

    Parameters
    ----------
    stream : :class:`~fuel.streams.AbstractDataStream`
        The stream.
    changes : list
        For each its object's path from the stream, its name, and a tuple
        with the value; one without a value stands for its removal.

    """
    for path, name, value in changes:
        found = stream
        for step in path:
            found = (found[step] if isinstance(step, int)
                     else getattr(found, step))
        if value:
            vars(found)[name], = value
        else:
            vars(found).pop(name, None)


class Limited(object):
    """A file that takes so many bytes and no more."""
    def __init__(self, most):
        self.most = most
        self.parts = []

    def write(self, data):
        self.most -= len(data)
        if self.most < 0:
            raise PrefetchError('too large')
        self.parts.append(bytes(data))


class Resumed(six.Iterator):
    """Gives what a process had read ahead, then what an iterator gives.

    It stands for that iterator in a pickle.

    Parameters
    ----------
    entries : list
        For each batch, ``(None, batch)``; for an error, or the end, what
        :meth:`.Failure.save` made of it and ``None``.
    iterator : iterator
        What comes afterwards.

    """
    def __init__(self, entries, iterator):
        self.entries = entries
        self.iterator = iterator

    def __iter__(self):
        return self

    def __next__(self):
        if not self.entries:
            return next(self.iterator)
        failure, batch = self.entries.pop(0)
        if failure is not None:
            Failure.load(failure).deliver()
        return batch

    @staticmethod
    def unwrap(iterator, drop=False):
        """Return what is left of one of these, or any other as it is.

        With `drop`, what had been read ahead is dropped.

        """
        while isinstance(iterator, Resumed) and (
                drop or not iterator.entries):
            iterator = iterator.iterator
        return iterator


def failure_of(exc_info):
    """Return an error in plain objects, so that the parent can raise it.

    Returns
    -------
    failure : tuple
        A pickle of the error, or of what stands for one that would not come
        out of it as what it was; and the traceback.

    """
    error = exc_info[1]
    if isinstance(error, StopIteration):
        text = ''
        if not error.args or not survives_pickling(error, dump_error):
            return _END
    else:
        text = ''.join(traceback.format_exception(*exc_info))
    if not survives_pickling(error, dump_error):
        error = WorkerError('the stream failed with an error that cannot be '
                            'pickled:\n' + text)
    return dump_error(error), text


_END = dump_error(StopIteration()), ''

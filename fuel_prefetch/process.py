"""A process that reads a stream, seen from the one that wants the batches."""
from __future__ import absolute_import, division, print_function

import hashlib
import itertools
import multiprocessing
import os
import random
import signal
import sys
import threading
import weakref
from collections import deque
from contextlib import contextmanager
from multiprocessing.util import Finalize

import numpy
import six
from six.moves import cPickle as pickle

from fuel.datasets import Dataset

from fuel_prefetch import link
from fuel_prefetch.channel import Failure
from fuel_prefetch.child import Resumed, make_changes, serve
from fuel_prefetch.exceptions import (
    PrefetchError, PrefetchTimeout, WorkerDied, WorkerError)
from fuel_prefetch.inspection import Inspection, nbytes
from fuel_prefetch.waiting import (
    Gate, deadline_of, process_token, time_left)
from fuel_prefetch.worker import Source, send_workers_away, time_to_close

# Seconds between two looks at whether the process still lives. They are
# needed only where its end of the connection is open in another process.
LOOK_AFTER = .5

# Seconds that a process has to leave by itself when nobody wants it any more.
PATIENCE = .5

# Most batches that are under way from one process to the other.
MOST_UNDER_WAY = 16

# Most ready batches that lie in shared memory; others are copied from there.
MOST_SHARED = 64

_starts = itertools.count()

_children = weakref.WeakSet()


class Child(six.Iterator):
    """The handle of a process that reads a stream, and an iterator.

    The process starts when something is first wanted of it. It ends with the
    handle, or with this process.

    ::

        NEW --> STARTED --> READY --> DEAD
                        --> DEAD

    Until it is READY the process has done nothing with the stream.

    Parameters
    ----------
    origin : tuple or bytes
        As in :func:`.child.serve`.
    context : multiprocessing context
        Starts the process.
    name : str
        Of the process.

    Attributes
    ----------
    window : int
        Batches that may be under way.
    most : int
        Batches in use, ready ones included, whose memory is shared.
    ready, dead : bool
        See above.

    """
    # One question at a time: `_questions` is held from it to its answer. While
    # that takes long, batches that were read before it are taken in as well:
    # of those who wait for a message one listens, without `_changed`, and then
    # wakes the others. All of it is bound to threads that Ctrl-C doesn't
    # reach, since half a message would be lost.
    def __init__(self, origin, context, name):
        self.origin = origin
        self.context = context
        self.name = name
        self.window = 1
        self.most = 1
        self.ready = self.dead = False
        self.process = None
        self.link = None
        self._token = process_token()
        self._questions = threading.Lock()
        self._changed = threading.Condition(threading.Lock())
        self._listening = False
        self._arrived = deque()  # failure or None, batch
        self._final = False  # the last of them is a failure, or the end
        self._number = 0  # of what was said besides batches
        self._owed = 0
        self._answer = None
        self._before = 0  # of those that arrived, how many did before that
        self._opening = 0  # batches that may follow, unasked
        _children.add(self)

    @property
    def foreign(self):
        """Whether the process is another one's, which was forked since."""
        return self.process is not None and self._token != process_token()

    @property
    def reachable(self):
        """Whether it was started, and is there as far as is known."""
        return not (self.process is None or self.dead or self.foreign)

    # Starting and ending it

    def _start(self):
        if self.process is not None:
            return
        here, there = link.pair()
        end = link.ParentEnd(here)
        forked = _method(self.context) == 'fork'
        origin, pickled = self.origin, None
        if not forked:
            if not isinstance(origin, bytes):
                origin = pickle.dumps(origin, pickle.HIGHEST_PROTOCOL)
            # Python may hang when such a process dies before it has read all
            # of its arguments; so these are short, and this is sent later.
            origin, pickled = None, origin
        with _hdf5_at_rest() as held, _interrupts_held_back():
            process = self.context.Process(
                target=_serve, name=self.name,
                args=(here if forked else (), there, origin, {
                    'seeds': _new_seeds(), 'errors': numpy.geterr(),
                    'forked': forked, 'held': held if forked else None}))
            process.start()
        for socket in there:
            socket.close()
        process._args = ()  # older Pythons keep what was sent
        self.link = end
        self.process = process
        self._token = process_token()
        self.origin = None
        Finalize(self, _end, (self.link, process), exitpriority=10)
        if pickled is not None:
            self._send(link.ORIGIN, 0, pickled)

    def abandon(self):
        """Have the process end, as nobody wants anything more of it.

        A finalizer may call this, in any thread and at any moment.

        """
        if self.process is not None and not self.foreign:
            self.link.close()

    def forget(self):
        """Close what this process has of the connection, after a fork."""
        if self.process is not None:
            self.link.forget()

    def end(self, patience=PATIENCE):
        """End the process, by force if it doesn't leave in time."""
        self.dead = True
        if self.process is not None and not self.foreign:
            _end(self.link, self.process, patience)

    def _died(self):
        """Return the error that says how the process ended."""
        self.dead = True
        process = self.process
        process.join(1)  # its end may take a moment longer
        code = process.exitcode
        if code is None:
            how = 'closed its connection'
        elif code < 0:
            how = 'was killed by signal {}{}'.format(-code, _name(-code))
        else:
            how = 'exited with code {}'.format(code)
        hint = ''
        if not self.ready and _method(self.context) != 'fork':
            hint = ("; it hadn't begun: where processes are spawned, the main "
                    "module must do its work under if __name__ == '__main__'")
        return WorkerDied('the process that reads the stream {}{}'.format(
            how, hint))

    # Messages; `_changed` is held

    def _grant(self, count):
        self._owed += count
        try:
            self.link.grant(self._number, count)
        except link.Disconnected:
            pass

    def _send(self, kind, number=0, body=b''):
        try:
            self.link.send(kind, number, body)
        except link.Disconnected:
            pass  # what there was before the end comes first

    def _fetch(self):
        """Wait for messages, and take them in, or have another one do it."""
        if self._listening:
            self._changed.wait()
            return
        self._listening = True
        self._changed.release()
        try:
            messages = self._listen()
        finally:
            self._changed.acquire()
            self._listening = False
            self._changed.notify_all()
        while messages:
            self._take_in(*messages.popleft())

    def _listen(self):
        """Return the messages that there are, at least one."""
        while True:
            try:
                messages = self.link.receive(LOOK_AFTER)
                if not messages and not self.process.is_alive():
                    # It may have said something since.
                    messages = self.link.receive(0)
                    if not messages:
                        raise self._died()
            except link.Disconnected:
                raise self._died()
            if messages:
                return messages

    def _take_in(self, kind, number, body):
        if kind == link.ITEM:
            self._owed -= 1
            try:
                self._arrived.append(
                    (None, self.link.load_data(body, self.most)))
            except Exception:  # an object that can't be loaded
                self._arrived.append((Failure(sys.exc_info()), None))
        elif kind == link.NEW_SEGMENT:
            try:
                self.link.attach(number, body)
            except link.Disconnected:
                raise self._died()
        elif kind == link.READY:
            self.ready = True
        else:
            self._number = number
            self._owed = 0
            value = self.link.load_data(body, self.most)
            if kind == link.FAILED:
                self._arrived.append((_load(*value), None))
                self._final = True
            else:
                self._before = len(self._arrived)
                self._answer = failure, _ = value
                if failure is None:
                    self._owed = self._opening
                    self.link.note_granted(number, self._opening)

    # On the worker's thread, or another one that Ctrl-C doesn't reach

    def ask(self, name, *args):
        """Have a method called there; return what it returns.

        What was under way before is taken in.

        Parameters
        ----------
        name : str
            One of :data:`.link.CALLS`.
        *args
            What it is called with.

        Raises
        ------
        WorkerDied
            If the process is no more.
        BaseException
            What the method raises.

        """
        with self._questions, self._changed:
            self._start()
            self._answer = None
            self._opening = args[0] if name == 'open' else 0
            self._send(link.CALL, link.CALLS.index(name),
                       pickle.dumps(args, 2))
            while self._answer is None:
                self._fetch()
            failure, value = self._answer
            self._answer = None
        if failure is not None:
            _load(*failure).deliver()
        return value

    def release(self):
        """Let go of the epoch's iterator."""
        if self.reachable:
            with self._changed:
                self._send(link.RELEASE)

    def __iter__(self):
        return self

    def __next__(self):
        arrived = self._arrived
        if not arrived:
            with self._changed:
                self._start()
                while not arrived:
                    if not self._owed:
                        self._grant(max(self.window, 1))
                    self._fetch()
        failure, batch = arrived.popleft()
        if failure is not None:
            self._final = False
            failure.deliver()
        # Looked at twice, as another thread may be at it.
        if 2 * (self.window - len(arrived) - self._owed) >= self.window > 0:
            with self._changed:
                room = self.window - len(arrived) - self._owed
                if not self._final and 2 * room >= self.window:
                    self._grant(room)
        return batch

    # On any thread

    def call(self, name, timeout=None):
        """As :meth:`ask`.

        Raises
        ------
        PrefetchTimeout
            If it takes too long. It goes on.

        """
        asked = Conversation(self.ask, name)
        if not asked.wait(timeout):
            raise PrefetchTimeout('the batch in hand took more than {} '
                                  'seconds'.format(timeout))
        return asked.result()

    def arrived(self):
        """Return what has arrived and was not taken yet."""
        return list(self._arrived)

    def drop(self):
        """Forget what arrived before the latest answer; return its batches.

        What came since belongs to the epoch that it was asked to open.

        """
        arrived = self._arrived
        dropped = [arrived.popleft() for _ in range(
            len(arrived) if self.dead else self._before)]
        self._before = 0
        self._final = bool(arrived) and arrived[-1][0] is not None
        return [batch for failure, batch in dropped if failure is None]


class Conversation(object):
    """A call in a thread of its own, so that Ctrl-C ends only the waiting."""
    def __init__(self, function, *args):
        self._gate = Gate()
        self._done = False
        self._error = self._value = None
        thread = threading.Thread(
            target=self._run, args=(function, args),
            name='fuel_prefetch: conversation')
        thread.daemon = True
        try:
            thread.start()
        except (RuntimeError, threading.ThreadError):
            # None can be had, as in an exit hook on Python 3.12.
            self._run(function, args)

    def _run(self, function, args):
        try:
            self._value = function(*args)
        except BaseException:
            self._error = Failure(sys.exc_info())
        finally:
            self._done = True
            self._gate.open()

    def wait(self, timeout=None):
        deadline = deadline_of(timeout)
        while not self._done:
            if not self._gate.wait(time_left(deadline)):
                return self._done
        return True

    def result(self):
        self.wait()
        if self._error is not None:
            self._error.deliver()
        return self._value


class ProcessSource(Source):
    """The wrapped stream, read by a process, as the worker sees it.

    Where the stream is:

    - HERE: nothing has been asked of it yet, `_origin` holds it;
    - THERE: in the process that `_child` is the handle of;
    - KEPT: it was closed THERE, and `_origin` is a pickle of it;
    - LOST: it was THERE, and the process is gone, or stayed behind in the
      process that this one was forked from; or no pickle could be made.
      `_origin` is ``None``.

    From LOST only :meth:`reset` leads away.

    Parameters
    ----------
    data_stream : :class:`~fuel.streams.AbstractDataStream`
        The wrapped stream. Once it is THERE this one is a copy from before,
        and nothing is read from it.
    counters : :class:`.Counters`
        Where to count.
    max_bytes : int or None
        The store's bound.
    context : multiprocessing context or None
        Starts the process. ``None`` is the platform's own.
    name : str
        Of the process.

    """
    def __init__(self, data_stream, counters, max_bytes, context, name):
        super(ProcessSource, self).__init__()
        self.data_stream = data_stream
        self.counters = counters
        self.max_bytes = max_bytes
        # Each batch comes in memory of its own.
        self.prepare = Inspection(counters, count_all=max_bytes is not None,
                                  describe=None)
        self.context = multiprocessing if context is None else context
        self.name = 'fuel_prefetch: ' + name
        self._origin = data_stream, None
        self._child = None
        self._bindings = None
        self._window = self._most = 1

    def share(self, max_store):
        """Return what is left of the store's bound beside what is under way.

        Together they hold `max_store` and one more, as when a thread has that
        in hand. Several batches are under way, so that many small ones are
        handed over at once; but where bytes are counted, only the one that
        the worker asks for.

        """
        if self.max_bytes is not None:
            self._window = 0
        elif max_store is None:
            self._window = MOST_UNDER_WAY
        else:
            self._window = max(1, min(max_store // 2 + max_store // 8,
                                      MOST_UNDER_WAY))
        # One more is in the worker's hands, one in the reader's, and the
        # memory of one or two is free again without the process knowing.
        self._most = min(max_store or MOST_SHARED, MOST_SHARED) + (
            self._window + 4)
        return max_store and max_store - max(self._window - 1, 0)

    def _reach(self):
        """Return the handle of a process that has the stream, or will have.

        Raises
        ------
        PrefetchError
            If the stream is lost.

        """
        child = self._child
        if child is not None and (child.dead or child.foreign):
            if child.ready or child.foreign:
                self._origin = None
            child = self._child = None
        if child is None:
            if self._origin is None:
                raise PrefetchError(
                    'the process that read the stream is gone, and with it '
                    'how far the stream was; call reset() to begin again '
                    'with the stream as it is in this process')
            child = self._child = Child(self._origin, self.context, self.name)
            if not isinstance(self._origin, bytes):
                self._bindings = _bindings(self.data_stream)
        child.window, child.most = self._window, self._most
        return child

    def _ask(self, name, *args):
        """Have a method of the stream called where it is."""
        child = self._reach()
        if child.ready or isinstance(self._origin, bytes):
            changes = self._find_changes()
            if changes:
                child.ask('change', changes)
        self._bindings = _bindings(self.data_stream)
        value = child.ask(name, *args)
        self._origin = None
        return value

    def _find_changes(self):
        """Return what was changed here and has to be changed there too."""
        changes = []
        before, after = self._bindings, _bindings(self.data_stream)
        for path in sorted(after, key=len):
            old, new = before.get(path, {}), after[path]
            changes += [(path, name, (new[name],)) for name in new
                        if name not in old or old[name] is not new[name]]
            changes += [(path, name, ()) for name in old if name not in new]
        return changes

    # On the worker's thread

    def open_iterator(self):
        # It reads ahead at once, rather than when it is asked for a batch.
        self._ask('open', max(self._window, 1))
        self._count_dropped(self._child.drop())
        return self._child

    def _count_dropped(self, batches):
        for batch in batches:
            _, _, size = self.prepare(batch, ())
            self.counters.batches_dropped += 1
            self.counters.bytes_dropped += size

    def release(self):
        super(ProcessSource, self).release()
        if self._child is not None:
            self._child.release()

    # On the caller's thread, while the worker rests

    def rest(self, timeout=None):
        child = self._child
        if child is not None and child.reachable:
            try:
                child.call('rest', timeout)
            except WorkerDied:
                pass  # who asks it for more is told

    def _interrupt(self, name):
        Conversation(self._ask, name).result()
        self._count_dropped(self._child.drop())

    def reset(self):
        try:
            self._reach()
        except PrefetchError:
            self.data_stream.reset()
            self._origin = self.data_stream, None
        else:
            self._interrupt('reset')

    def next_epoch(self):
        self._interrupt('next_epoch')

    def close(self):
        child = self._child
        if child is not None and child.reachable:
            closing = Conversation(self._ask, 'close')
            if closing.wait(time_to_close()):
                try:
                    self._origin = closing.result()
                except (WorkerDied, MemoryError):  # no room for the pickle
                    self._origin = None
                self._count_dropped(child.drop())
                child.end()
                self._child = None
            else:  # a read that blocks, for ever perhaps
                child.end(0)
        self.data_stream.close()
        self._bindings = _bindings(self.data_stream)

    def abandon(self):
        if self._child is not None:
            self._child.abandon()

    # For a pickle

    def under_way(self):
        child = self._child
        batches = [batch for failure, batch in child.arrived()
                   if failure is None] if child is not None else []
        return len(batches), nbytes(batches)

    def resume(self, iterator):
        self._origin = self.data_stream, iterator
        self.iterator = self._reach()

    def checkpoint(self):
        child = self._child
        if child is None or not child.ready:
            if self._origin is None:
                self._reach()  # which says that it is lost
            if isinstance(self._origin, bytes):
                origin = pickle.loads(self._origin)
                make_changes(origin[0], self._find_changes())
                return origin
            return self._origin
        saved = Conversation(self._ask, 'save').result()
        stream, iterator = pickle.loads(saved)
        arrived = self._child.arrived()
        if arrived:
            iterator = Resumed([(failure and failure.save(), batch)
                                for failure, batch in arrived], iterator)
        return stream, iterator


def _load(pickled, text):
    """Return the :class:`.Failure` that a process reported."""
    try:
        return Failure.load({'error': pickle.loads(pickled),
                             'traceback': text})
    except Exception:  # it could be loaded there, and can't be here
        error = WorkerError('the stream failed with an error that cannot be '
                            'loaded:\n' + text)
        return Failure((WorkerError, error, None))


def _bindings(stream, path=()):
    """Return the attributes of a stream, of those below it, and of theirs.

    Returns
    -------
    bindings : dict
        For the path to each object, a tuple of attribute names and of places
        in a tuple, its attributes. Datasets are left out: they keep for
        themselves what they have looked up.

    """
    bindings = {path: dict(getattr(stream, '__dict__', ()))}
    for name, value in bindings[path].items():
        below = path + (name,)
        if name == 'data_stream':
            bindings.update(_bindings(value, below))
        elif name == 'data_streams':
            for index, part in enumerate(value):
                bindings.update(_bindings(part, below + (index,)))
        elif hasattr(value, '__dict__') and not isinstance(value, Dataset):
            bindings[below] = dict(vars(value))
    return bindings


def _serve(others, *args):
    # An end of the parent's that stayed open would hide that it is gone.
    for end in others:
        end.close()
    for child in list(_children):
        child.forget()
    serve(*args)


def _end(connection, process, patience=PATIENCE):
    connection.close()
    process.join(patience)
    if process.is_alive():
        try:
            os.kill(process.pid, signal.SIGKILL)
        except OSError:  # another thread, that waits for it too, was told
            pass
        process.join()


def _method(context):
    return getattr(context, 'get_start_method', lambda: 'fork')()


def _name(number):
    names = [name for name in dir(signal) if name.startswith('SIG') and
             name[3] != '_' and getattr(signal, name) == number]
    return ' ({})'.format(names[0]) if names else ''


def _new_seeds():
    """Return integers that the two global random states make, and the count.

    Each depends on its own state alone, so that whoever seeds the one
    generator that is used gets the same numbers again.

    """
    _, keys, position = numpy.random.get_state()[:3]
    count = next(_starts)
    return [int(hashlib.sha256(repr(state).encode()).hexdigest(), 16)
            for state in (('numpy', keys.tolist(), position, count),
                          ('python', random.getstate(), count))]


@contextmanager
def _hdf5_at_rest():
    """Hold h5py's lock, so that no other thread is inside HDF5.

    A fork copies that library's state as it is in this moment.

    """
    lock = getattr(sys.modules.get('h5py._objects'), 'phil', None)
    if lock is None:
        yield None
    else:
        with lock:
            yield lock


@contextmanager
def _interrupts_held_back():
    """Let a new process not see Ctrl-C before it has said so itself."""
    if not hasattr(signal, 'pthread_sigmask'):  # 2.7
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# Before the processes are ended, so that no reader takes that for a death.
Finalize(None, send_workers_away, exitpriority=20)

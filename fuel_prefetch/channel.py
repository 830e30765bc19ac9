"""The bounded hand-over of items from a producer to its consumers.

A :class:`Store` is what one producer and its consumers share: how much may
be held ready, and whether the producer should go on, stop or rest. A
:class:`Channel` is one run of items through it, in their order, with exactly
one ending. Each epoch gets a channel of its own, so that an ended one stays
ended and a superseded one can't take what belongs to its successor.

"""
from __future__ import absolute_import, division, print_function

import os
import threading
import traceback
import warnings
import weakref
from collections import deque

import six

from fuel_prefetch.exceptions import (
    PrefetchError, PrefetchTimeout, PrefetchWarning, survives_pickling)
from fuel_prefetch.stats import BLOCKED, PRODUCING, RESTING, Counters
from fuel_prefetch.waiting import (
    Gate, deadline_of, monotonic, process_token, time_left)

# How a channel ends.
ENDED = 'ended'  # the source has no more items
SUPERSEDED = 'superseded'  # a newer channel took its place
CLOSED = 'closed'  # the consumer closed the store
LOST = 'lost'  # the producer is gone, by a fault that is none of the source's
FORKED = 'forked'  # the producer is in the parent process
FORKED_MESSAGE = ('this process was forked in the middle of an epoch; ask for '
                  'a new epoch iterator')
# ... and how a store does without its consumer's word: nobody is left.
ABANDONED = 'abandoned'


_stores = weakref.WeakSet()

# Before 3.7 nobody tells the child of a fork, so it has to look.
FORKS_UNSEEN = not hasattr(os, 'register_at_fork')


def _disown_stores():
    for store in list(_stores):
        store.disown()


if not FORKS_UNSEEN:
    os.register_at_fork(after_in_child=_disown_stores)


class Failure(object):
    """An error on its way to the reader, in the place of an item."""
    def __init__(self, exc_info):
        self.exc_info = exc_info

    def deliver(self):
        """Raise the error as it was raised, and forget it."""
        exc_info, self.exc_info = self.exc_info, None
        try:
            six.reraise(*exc_info)
        finally:
            del exc_info  # a frame that holds its own traceback is a cycle

    def save(self):
        """Return the error in plain objects, for a pickle.

        Its traceback goes along as text. An error that would not come out
        of a pickle as what it was is replaced, rather than that it makes a
        checkpoint impossible or, worse, impossible to load.

        """
        kind, error = self.exc_info[:2]
        text = ''.join(traceback.format_exception(*self.exc_info))
        if not survives_pickling(error):
            error = PrefetchError('an error that could not be pickled: ' +
                                  traceback.format_exception_only(
                                      kind, error)[-1].strip())
        return {'error': error, 'traceback': text}

    @classmethod
    def load(cls, saved):
        """Return what was saved, to be delivered once more."""
        error = saved['error']
        try:
            error.__cause__ = Origin(saved['traceback'])
        except Exception:  # there are errors that nothing may be set on
            pass
        return cls((error.__class__, error, None))


class Pending(object):
    """Stands for an item that is being made, in its place.

    Attributes
    ----------
    gate : :class:`.Gate`
        Opened when the item may be there.

    """
    gate = None

    def take(self):
        """Return what delivers the item, or ``None`` if it isn't there.

        Returns
        -------
        found : object
            Its `deliver` returns the item, or raises what came instead.

        """
        raise NotImplementedError

    def save(self):
        """Return it in plain objects, for a pickle."""
        raise NotImplementedError


class Origin(Exception):
    """Shows, as an error's cause, where it was raised before it was pickled.

    The same is done by ``concurrent.futures`` for an error from another
    process.

    """
    def __str__(self):
        return '\n\n' + self.args[0]


# What the producer is doing is one of
#
#   RUNNING    in the source's code, or on the way from or to it;
#   FULL       waiting for room, with one item in its hands;
#   RESTING    waiting at a boundary between two items, with none in its
#              hands: after a failure until a reader asks for what follows,
#              a channel ahead of the readers, or paused;
#   GONE       it will touch neither the source nor the store again.
#
#   RUNNING <--> FULL      RUNNING <--> RESTING      RUNNING --> GONE
#
# The consumer's side of it:
#
#   OPEN <--> PAUSING --> PAUSED --> ON DEMAND --> OPEN       any --> closed
#
# PAUSED and ON DEMAND mean that the producer is RESTING or GONE. It leaves
# ON DEMAND by the first reader that takes or awaits an item.
#
# Invariants, whenever the lock is free:
# - a channel's items enter while its `_ending` is None, and leave from the
#   other end, one at a time and each once (`deque` sees to that). An item that
#   the producer is about to put as the store is closed comes to no reader;
# - the items held, over all channels, are at most `max_items`, and one more
#   for each of: a failure, an item put down because the store was paused;
# - the bytes held are at most `max_bytes`, or one item's;
# - at most one channel is ahead of the one that the consumer has entered;
# - `_resting` is set only in RESTING, and only the producer, with the lock
#   held and `_pausing` unset, clears it. So `pause` may rely on it.
#
# The lock guards transitions, not the hand-over. That is done with atomic
# operations on a deque, for a lock taken twice for each item costs more than
# all the rest. What makes it right is the order on both sides, as in Dekker's
# algorithm: who waits first says so (`_wants_room`, `_wanted`), then looks
# once more, then sleeps; who changes something first changes it, then looks
# whether somebody waits. One of the two sees the other.
class Store(object):
    """What one producer holds ready for its consumers.

    Parameters
    ----------
    max_items : int, optional
        Most items held ready; no bound if ``None``, the default.
    max_bytes : int, optional
        Most bytes held ready. An empty store accepts any item.
    timeout : float, optional
        Seconds that the consumer's side waits for the producer. No end if
        ``None``, the default.
    counters : :class:`.Counters`, optional
        Where to count.

    """
    def __init__(self, max_items=None, max_bytes=None, timeout=None,
                 counters=None):
        self.max_items = float('inf') if max_items is None else max_items
        self.max_bytes = max_bytes
        self.timeout = timeout
        self.counters = Counters() if counters is None else counters
        self.process = process_token()
        # Re-entrant, since a signal handler may close the store.
        self._lock = threading.RLock()
        self._producer = Gate()  # the producer waits here
        self._control = Gate()  # `enter` and `pause` wait here
        self._exit = Gate()  # `join` waits here
        # The latest two that were begun. Weak, since a cycle would keep their
        # items until it is collected.
        self._references = deque(maxlen=2)
        self._latest_items = ()
        self._ahead = deque()  # published, not entered: (channel, failure)
        self._closed = None
        self._pausing = False
        self._on_demand = False
        self._resting = False
        self._gone = False
        self._bytes = 0
        self._in_hand = None  # bytes of the item that waits for room
        self._open_up()
        _stores.add(self)

    def _open_up(self):
        # Up to `_limit` items `put` need not look any further, and `get` not
        # unless the producer waits for room. Bytes make both look each time.
        # Up to as many as there were once, `put` need not count either.
        self._limit = -1 if self.max_bytes is not None else min(
            self.max_items, self.counters.batches_most_held)
        self._wants_room = self.max_bytes is not None

    # The producer's side

    def begin(self):
        """Begin the next channel, once the one before it was entered.

        Returns
        -------
        channel : :class:`Channel` or None
            ``None`` if the store was closed.

        """
        if not self.rest(lambda: not self._ahead):
            return None
        channel = Channel(self, self._latest_items)
        with self._lock:
            if self._closed:  # in the meantime
                return None
            self._references.append(weakref.ref(channel))
            self._latest_items = channel.items
        return channel

    @property
    def closed(self):
        """Why it was closed, or ``None``."""
        return self._closed

    @property
    def _channels(self):
        channels = [reference() for reference in list(self._references)]
        return [channel for channel in channels if channel is not None]

    def publish(self, channel, exc_info=None):
        """Offer a channel that was begun, or say why it has no items."""
        if exc_info is not None and not issubclass(
                exc_info[0], StopIteration):
            with self._lock:
                self.counters.errors += 1
        self._ahead.append(
            (channel, None if exc_info is None else Failure(exc_info)))
        self._control.open()

    def leave(self):
        """Report that the producer won't touch source or store again."""
        self.counters.turn(None if self._closed in (CLOSED, ABANDONED)
                           else RESTING)
        for channel in self._channels:
            # Nobody reads an abandoned one, but perhaps, as the interpreter
            # exits, a daemon thread, which must not take this for the end.
            if not channel.complete and self._closed != ABANDONED:
                channel.finish(self._closed or LOST)
        if self._closed:
            self._ahead.clear()  # a cycle, as channels know their store
        self._gone = True
        self._control.open()
        self._exit.open()

    def welcome(self):
        """Make ready for a worker that goes on where one has left."""
        with self._lock:
            self._gone = self._resting = False

    def _put_slowly(self, channel, entry):
        nbytes = entry[2]
        if self._limit < self.max_items and self._raise_limit(channel):
            return channel.put(entry)
        self.counters.turn(BLOCKED)
        self._in_hand = nbytes
        while True:
            self._wants_room = True  # a reader takes it back as it wakes us
            if self._closed or self._pausing or (
                    self._has_room(channel, nbytes)):
                break
            self._producer.wait()
        self._wants_room = self.max_bytes is not None
        self.counters.turn(PRODUCING)
        self._in_hand = None
        if self._closed:
            self.counters.batches_dropped += 1
            self.counters.bytes_dropped += nbytes
            return False
        if self.max_bytes is not None:
            with self._lock:
                self._bytes += nbytes
        channel._append(entry)
        if self._limit < 1:  # there may be more than `max_items`
            self._note_held(channel)
        return not self._pausing or self.rest()

    def _raise_limit(self, channel):
        """Let one more be held than ever before, if that was all."""
        if self.max_bytes is not None or (
                len(channel.items) + len(channel._behind) >= self.max_items):
            return False
        with self._lock:
            if self._closed or self._pausing:
                return False
            self._note_held(channel, 1)
            self._open_up()
            if self._closed:  # `abandon` takes no lock
                self._limit = -1
        return True

    def _note_held(self, channel, coming=0):
        held = len(channel.items) + len(channel._behind) + coming
        if held > self.counters.batches_most_held:
            self.counters.batches_most_held = held

    def _has_room(self, channel, nbytes):
        held = len(channel.items) + len(channel._behind)
        if not self.max_items:  # nothing is held, but for who waits already
            return not held and channel._waiting
        return held < self.max_items and (
            self.max_bytes is None or not held or
            self._bytes + nbytes <= self.max_bytes)

    def rest(self, ready=lambda: True):
        """Wait at a boundary until it is time to go on.

        Returns
        -------
        going_on : bool
            Whether to go on, rather than leave a closed store.

        """
        self.counters.turn(RESTING)
        with self._lock:
            self._resting = True
        self._control.open()
        while True:
            with self._lock:
                if self._closed:
                    return False
                if not self._pausing and ready():
                    self._resting = False
                    self.counters.turn(PRODUCING)
                    return True
            self._producer.wait()

    # The consumer's side

    def enter(self):
        """Wait for the next channel; :meth:`entered` says that it is taken.

        Returns
        -------
        channel : :class:`Channel`
            The channel.
        failure : :class:`Failure` or None
            What the source raised instead of beginning.

        Raises
        ------
        PrefetchTimeout
            If none is published in time.
        PrefetchError
            If the store was closed.

        """
        deadline = deadline_of(self.timeout)
        while True:
            gone = self._gone  # looked at first: it publishes, then leaves
            try:
                return self._ahead[0]
            except IndexError:
                pass
            if self._closed:
                raise PrefetchError('the stream was closed')
            if gone:
                raise PrefetchError('the producer ended without a reason')
            self._ask()
            if not self._control.wait(time_left(deadline)):
                raise PrefetchTimeout(
                    'no epoch began within {} seconds'.format(self.timeout))

    def entered(self, channel):
        """Let the producer begin the channel after `channel`.

        In two steps, so that no channel is lost to Ctrl-C in between. Doing
        it again does no harm.

        """
        try:
            if self._ahead[0][0] is channel:
                self._ahead.popleft()
        except IndexError:
            pass
        self._producer.open()

    def pause(self):
        """Have the producer rest, and wait until it does.

        What it has in its hands it puts into the store first, even if
        that is full. It rests until :meth:`resume`.

        Raises
        ------
        PrefetchTimeout
            If it does not in time; then it goes on.

        """
        deadline = deadline_of(self.timeout)
        with self._lock:
            self._pausing, self._on_demand = True, False
            self._limit = -1
        self._producer.open()
        try:
            while not (self._resting or self._gone):
                if not self._control.wait(time_left(deadline)):
                    raise PrefetchTimeout('the batch in hand took more than '
                                          '{} seconds'.format(self.timeout))
        except BaseException:
            self.resume()
            raise

    def resume(self):
        """Let a paused producer go on."""
        with self._lock:
            self._pausing = self._on_demand = False
            if not self._closed:
                self._open_up()
        self._producer.open()

    def resume_on_demand(self):
        """Let a paused producer go on when a reader asks for an item.

        One that waits already is woken to ask again. If this is called by a
        signal handler, in the middle of that wait, it does so afterwards.

        """
        with self._lock:
            self._on_demand = self._wants_room = True
        for channel in self._channels:
            channel._readers.open()
        self._control.open()

    def _take(self, nbytes):
        """Account for an item that was taken, and wake who waits for room.

        Once is enough. Should Ctrl-C come in between, the producer is woken
        by the reader who finds the store empty.

        """
        if self.max_bytes is None:
            self._wants_room = False
        else:
            with self._lock:
                self._bytes -= nbytes
        self._ask()

    def _ask(self):
        """Tell the producer that there is room, or an item awaited."""
        if self._on_demand:
            with self._lock:
                if self._on_demand:  # still: `pause` may have come first
                    self.resume()
        else:
            self._producer.open()

    def close(self, reason=CLOSED):
        """End all channels for `reason` and send the producer away.

        What was read ahead is dropped. The producer is not waited for.

        """
        with self._lock:
            channels = self._channels
            for channel in channels:
                channel.finish(reason)
            self._closed = self._closed or reason
            self._limit = -1
        self._producer.open()
        self._control.open()
        self._ahead.clear()
        for channel in channels:
            channel.seal()
            channel.drop()

    def disown(self):
        """Give up all channels, after a fork.

        The producer is in the other process, and so may be the holder of
        any lock. Handing out what is left would hide that.

        """
        for channel in self._channels:
            if not channel.exhausted:
                channel.items, channel._ending = deque(), FORKED

    def abandon(self):
        """Send the producer away, as nobody is left to read.

        A finalizer may call this, in any thread and at any moment: it
        takes no lock, and leaves dropping the items to the producer.

        """
        self._closed = self._closed or ABANDONED
        self._limit = -1
        self._producer.open()

    @property
    def left(self):
        """Whether the producer has left."""
        return self._gone

    def join(self, timeout=None):
        """Wait until the producer has left; return whether it has."""
        deadline = deadline_of(timeout)
        while not self._gone:
            if not self._exit.wait(time_left(deadline)):
                return self._gone
        self._exit.open()  # for whoever else waits there
        return True

    def snapshot(self):
        """Return :class:`.Stats` of this moment."""
        entries = [entry for channel in self._channels
                   for entry in list(channel.items)
                   if not isinstance(entry[0], Failure)]
        return self.counters.snapshot(
            len(entries), sum(nbytes for _, _, nbytes in entries),
            self._in_hand)

    # For a pickle

    def save(self, channel):
        """Return what there is beside `channel`, in a store that is paused.

        Returns
        -------
        saved : dict
            ``'ahead'``: the channel that was begun after it and why it has
            no items, or ``None``. ``'working'``: whether the producer would
            go on.

        """
        ahead = [(other.save(), failure and failure.save())
                 for other, failure in list(self._ahead)
                 if other is not channel]
        return {'ahead': ahead[0] if ahead else None,
                'working': not self._gone}

    def load(self, saved, load_notice):
        """Hold what was saved, and have the producer rest.

        It rests until :meth:`resume` or :meth:`resume_on_demand`.

        Parameters
        ----------
        saved : dict
            As :meth:`save` made it, and in ``'channel'`` the channel's part.
        load_notice : callable
            Makes a notice of what it was saved as.

        Returns
        -------
        channel : :class:`Channel`
            The one to read.
        unfinished : :class:`Channel` or None
            The one that the producer has to go on with. If ``None``, it
            begins another one.

        """
        self._pausing, self._limit, self._gone = True, -1, True
        latest = channel = Channel.load(self, saved['channel'], load_notice)
        self._references.append(weakref.ref(channel))
        if saved['ahead'] is not None:
            ahead, failure = saved['ahead']
            latest = Channel.load(self, ahead, load_notice, channel.items)
            self._references.append(weakref.ref(latest))
            self._ahead.append((latest, failure and Failure.load(failure)))
        self._latest_items = latest.items
        if self.max_bytes is not None:
            self._bytes = sum(entry[2] for items in (latest._behind,
                                                     latest.items)
                              for entry in items)
        return channel, None if latest.complete else latest


class Sealed(deque):
    """An empty deque. What is appended is kept in `late`, to be dropped."""
    def __init__(self, late):
        super(Sealed, self).__init__()
        self.late = late

    def append(self, entry):
        self.late.append(entry)


class Channel(object):
    """One run of items, and its ending.

    ::

        OPEN --> ENDED       OPEN --> SUPERSEDED | CLOSED | LOST
                 ENDED, with items left --> SUPERSEDED | CLOSED

    Entries are triples: ``None``, a :class:`Failure`, a :class:`Pending` or
    the text of a warning; the item, or the text of a pending one's warning;
    its size in bytes. So any object is fit to be an item.

    Parameters
    ----------
    store : :class:`Store`
        The store whose bounds hold.
    behind : deque
        What is left of the channel before this one; it counts too.

    """
    def __init__(self, store, behind=()):
        self._store = store
        self._behind = behind
        self.items = deque()
        self._waiting = []  # a token for each reader that waits
        self._awaited = []  # what readers took that is pending still
        self._wanted = False  # one waits, and nobody has opened for it yet
        self._readers = Gate()  # which wakes one; that one wakes the next
        self._ending = None
        self._stop_args = ()
        self.failed = False  # nothing is read until what follows is asked for
        self.complete = False  # the producer has come to the end
        self.stopped = False  # and a reader was told so

    # The producer's side

    def put(self, entry):
        """Append an entry, waiting for room; return whether to go on.

        Parameters
        ----------
        entry : tuple
            A notice or ``None``, the item, its size in bytes. The notice is
            the text of a :class:`.PrefetchWarning` for who takes the item.

        """
        store = self._store
        if len(self.items) + len(self._behind) >= store._limit:
            return store._put_slowly(self, entry)
        self.items.append(entry)
        if self._wanted:
            self._wanted = False
            self._readers.open()
            store.counters.look()
        return True

    def fail(self, exc_info):
        """Append an error; then comes :meth:`hold`."""
        if self._store.closed == ABANDONED:
            return  # it may be for that reason, and is nobody's business
        self.failed = True
        with self._store._lock:
            self._store.counters.errors += 1
        self._append((Failure(exc_info), None, 0))

    def hold(self):
        """Wait until a reader asks for what follows a failure.

        Returns
        -------
        going_on : bool
            As :meth:`put`.

        """
        # A reader takes its token back before it takes an item, so a token
        # beside an empty deque is of one that knows of the failure.
        going_on = self._store.rest(lambda: not self.items and self._waiting)
        if going_on:
            self.failed = False
        return going_on

    def end(self, args=()):
        """End the channel; `args` are those of the StopIteration."""
        with self._store._lock:
            self.complete = True
            if self._ending is None:
                self._ending, self._stop_args = ENDED, args
        self._readers.open()

    def _append(self, entry):
        self.items.append(entry)
        self._readers.open()

    # The consumer's side

    @property
    def ending(self):
        """How it ends, or ``None`` while that is open."""
        if FORKS_UNSEEN and self._store.process != process_token():
            self._store.disown()
        return self._ending

    @property
    def exhausted(self):
        """Whether readers get nothing more from it."""
        return self._ending is not None and not self.items

    def get(self):
        """Take the next item.

        Raises
        ------
        StopIteration
            At the end, each time; also if a newer channel has begun.
        PrefetchTimeout
            If there is none in time. Nothing is lost: try again.
        PrefetchError
            If the store was closed, or the process forked since.
        BaseException
            If the source raised it in the place of the item.

        """
        store = self._store
        if FORKS_UNSEEN and store.process != process_token():
            store.disown()
        try:
            entry = self.items.popleft()
        except IndexError:
            entry = None  # what is raised below must not seem to stem from it
        if entry is None:
            entry = self._wait(store.timeout)
        notice, item, nbytes = entry
        if store._wants_room:
            store._take(nbytes)
        if notice is not None:
            return self._heed(notice, item, nbytes)
        return item

    def _heed(self, notice, item, nbytes):
        if isinstance(notice, Failure):
            notice.deliver()
        pending = isinstance(notice, Pending)
        text = item if pending else notice
        if text is not None:
            try:
                # The caller of `next`, three frames up, is who should know.
                warnings.warn(text, PrefetchWarning, stacklevel=4)
            except PrefetchWarning:
                # Warnings are errors in this run. The item must not be lost.
                self._put_back(
                    (notice, None, nbytes) if pending else
                    (None, item, nbytes))
                raise
        if pending:
            found = self._await(notice, nbytes)
            try:
                return found.deliver()
            except Exception:
                with self._store._lock:
                    self._store.counters.errors += 1
                raise
        return item

    def _put_back(self, entry):
        with self._store._lock:
            self._store._bytes += entry[2]
        self.items.appendleft(entry)
        self._readers.open()  # for another reader

    def _await(self, pending, nbytes):
        awaited = pending, nbytes
        started = None
        try:
            self._awaited.append(awaited)
            found = pending.take()
            if found is not None:
                return found
            started = monotonic()
            deadline = deadline_of(self._store.timeout)
            while True:
                found = pending.take()
                if found is not None:
                    return found
                if self._ending not in (None, ENDED):
                    self._stop()
                if not pending.gate.wait(time_left(deadline)):
                    raise PrefetchTimeout('no batch came within {} seconds'
                                          .format(self._store.timeout))
        except BaseException:
            if self._ending in (None, ENDED):
                self._put_back((pending, None, nbytes))
            raise
        finally:
            if awaited in self._awaited:  # unless Ctrl-C came first
                self._awaited.remove(awaited)
            for other, _ in self._awaited[:1]:
                other.gate.open()  # for the next to look, if it's the same
            if started is not None:
                with self._store._lock:
                    self._store.counters.seconds_waiting += (
                        monotonic() - started)

    def _wait(self, timeout):
        if self._ending == FORKED:
            self._stop()  # without the lock, which may never be released
        started = monotonic()
        deadline = deadline_of(timeout)
        token = object()
        try:
            while True:
                try:
                    self._waiting.append(token)
                    while True:
                        self._wanted = True
                        if self.items or self._ending is not None:
                            break
                        self._store._ask()
                        if not (self._readers.wait(time_left(deadline)) or
                                self.items or self._ending):
                            raise PrefetchTimeout('no batch came within {} '
                                                  'seconds'.format(timeout))
                finally:
                    if token in self._waiting:  # unless Ctrl-C came first
                        self._waiting.remove(token)
                    if self._waiting:
                        self._readers.open()  # for the next to look
                try:
                    return self.items.popleft()
                except IndexError:
                    pass
                if self.exhausted:  # else another reader was quicker
                    self._stop()
        finally:
            with self._store._lock:
                self._store.counters.seconds_waiting += monotonic() - started

    def _stop(self):
        if self._ending == CLOSED:
            raise PrefetchError('the stream was closed')
        if self._ending == FORKED:
            raise PrefetchError(FORKED_MESSAGE)
        if self._ending == LOST:
            raise PrefetchError('the producer ended without a reason')
        self.stopped = True
        args, self._stop_args = self._stop_args, ()
        raise StopIteration(*args)

    def finish(self, reason):
        """End the channel for `reason`, unless it has come to its end.

        What it still holds is not for its readers any more.

        """
        with self._store._lock:
            if self._ending is None or self._ending == ENDED and (
                    self.items or self._awaited):
                self._ending = reason
        self._readers.open()
        for pending, _ in list(self._awaited):
            pending.gate.open()

    def seal(self):
        """Show readers nothing of what is put into it from now on.

        The producer may be about to put an item that follows those that are
        dropped now.

        """
        with self._store._lock:
            if not isinstance(self.items, Sealed):
                self.items = Sealed(self.items)

    def drop(self):
        """Drop what the channel holds."""
        items = (self.items.late if isinstance(self.items, Sealed)
                 else self.items)
        entries = []
        with self._store._lock:
            try:
                while True:  # beside readers, who take no lock
                    entries.append(items.popleft())
            except IndexError:
                pass
            nbytes = sum(entry[2] for entry in entries)
            self._store._bytes -= nbytes
            counters = self._store.counters
            counters.bytes_dropped += nbytes
            counters.batches_dropped += sum(
                not isinstance(entry[0], Failure) for entry in entries)
        self._readers.open()
        self._store._ask()
        del entries  # they die without the lock

    def reopen(self):
        """Let a producer put items into an ended channel again."""
        with self._store._lock:
            self._ending = None
            self.complete = False

    # For a pickle. The names are those of every version to come.

    def save(self):
        """Return the channel in plain objects; no one may use it meanwhile."""
        ending = self.ending  # looked at first, as it sees a fork
        # What was read ahead must not be what makes a pickle fail.
        stop_args = self._stop_args
        if not survives_pickling(StopIteration(*stop_args)):
            stop_args = ()
        return {
            # What a reader waits for is not taken yet: a signal handler may
            # be making the pickle.
            'entries': [(pending.save(), None, nbytes)
                        for pending, nbytes in list(self._awaited)] + [
                (notice.save() if isinstance(notice, (Failure, Pending))
                 else notice,
                 item, nbytes) for notice, item, nbytes in list(self.items)],
            'ending': ending, 'stop_args': stop_args, 'failed': self.failed,
            'complete': self.complete, 'stopped': self.stopped}

    @classmethod
    def load(cls, store, saved, load_notice, behind=()):
        """Return a channel of `store` that is as the saved one was.

        What an entry's notice was saved as, `load_notice` makes one of.

        """
        channel = cls(store, behind)
        channel.items.extend(
            (load_notice(notice) if isinstance(notice, dict) else notice,
             item, nbytes) for notice, item, nbytes in saved['entries'])
        channel._ending, channel._stop_args = (saved['ending'],
                                               saved['stop_args'])
        channel.failed = saved['failed']
        channel.complete = saved['complete']
        channel.stopped = saved['stopped']
        return channel

    @classmethod
    def ended(cls, ending):
        """Return a channel that has nothing but its ending."""
        channel = cls(Store())
        channel._ending, channel.complete, channel.stopped = ending, True, True
        return channel

"""The worker that computes items ahead, and the handle that owns it."""
from __future__ import absolute_import, division, print_function

import atexit
import sys
import threading
import weakref

from fuel_prefetch.arguments import check_patience
from fuel_prefetch.channel import (
    CLOSED, SUPERSEDED, Channel, Failure, Store)
from fuel_prefetch.context import inherit
from fuel_prefetch.exceptions import (
    PrefetchError, PrefetchTimeout, forget_error)
from fuel_prefetch.stats import Counters
from fuel_prefetch.waiting import (
    acquire, deadline_of, exit_deadline, process_token, time_left)

_closing = threading.local()  # the deadline of who closes in this thread

_workers = {}  # thread that has not left yet -> its store and source


class Source(object):
    """Where a worker gets its items from.

    Attributes
    ----------
    iterator : iterator or None
        The one that was opened last, for whoever goes on with it.
    prepare : callable
        Maps an item, and what waits in its channel, to the entry for
        :meth:`.Channel.put`. It counts the items: an
        :class:`~fuel_prefetch.inspection.Inspection`.

    """
    prepare = None

    def __init__(self):
        self.iterator = None

    def open_iterator(self):
        """Return an iterator over the items of the next channel.

        This and `prepare` are called on the worker's thread.

        """
        raise NotImplementedError

    def release(self):
        """Let go of an iterator that nobody wants more from.

        On the worker's thread, as some are bound to it.

        """
        self.iterator = None

    # For a source that is read elsewhere

    def rest(self, timeout=None):
        """Wait until nothing is being read, while the worker rests.

        Raises
        ------
        PrefetchTimeout
            If that takes too long.

        """

    def abandon(self):
        """Let the worker leave, as nobody is left who wants anything.

        A finalizer may call this, in any thread and at any moment.

        """

    # For a pickle of what was read ahead

    load_notice = staticmethod(Failure.load)

    def under_way(self):
        """Return how many items were read and not prepared yet; their bytes.

        While it rests.

        """
        return 0, 0

    def resume(self, iterator):
        """Go on with an iterator out of a pickle."""
        self.iterator = iterator

    def save(self):
        """Return in plain objects what the source has to remember."""

    def load(self, saved):
        """Remember what was saved."""

    def open(self):
        self.iterator = None  # gone before the next one is made
        self.iterator = self.open_iterator()


class Prefetcher(object):
    """Reads a source ahead, one run after another.

    Each run has a channel of its own, and unless the runs are read without
    a break, a store and a worker of its own. So this is the one object that
    stays, and the one whose methods may be called by any thread.

    Parameters
    ----------
    max_items, max_bytes, timeout
        As in :class:`.Store`.
    endless : bool, optional
        Whether to begin the next run as soon as one is read to its end.
        Defaults to ``False``.
    name : str, optional
        For the worker's thread.

    Attributes
    ----------
    number : int
        Runs so far, those that didn't begin included.

    """
    # `_lock` is held while the worker is replaced or made to rest, so no
    # two calls on the source overlap. It is re-entrant for the sake of
    # signal handlers. Only `close` does without it if it must, as whoever
    # holds it may be waiting for a read that only closing can free.
    def __init__(self, max_items=None, max_bytes=None, timeout=None,
                 endless=False, name='prefetch'):
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.timeout = timeout
        self.endless = endless
        self.name = name
        self.counters = Counters()
        self._lock = threading.RLock()
        self._process = process_token()
        self._source = None
        self._worker = None
        self._channel = None
        self._latest = None  # the same, but kept when the run is closed
        self._opening = False  # a run was asked for that isn't entered yet
        self._saved = None  # a run out of a pickle, not asked for yet
        self._woken = None, None  # its number and its channel, when it was
        self.number = 0
        self._closed = None  # what was closed last, until it is used again

    def _leave_behind(self):
        """After a fork, forget what stayed in the other process."""
        if self._process != process_token():
            self._process = process_token()
            self._lock = threading.RLock()  # its holder may be there
            self._worker = self._channel = None
            self._opening = False
            self.counters.stop()  # the producer is there too

    def begin(self, source):
        """Begin the next run of `source`; return its channel.

        The run before it is superseded.

        Raises
        ------
        PrefetchTimeout
            If it doesn't begin in time.
        BaseException
            What the source raised on being opened.

        """
        self._refuse_producer()
        self._leave_behind()
        with self._lock:
            if self.endless:
                self._wake()
            else:
                self._discard(SUPERSEDED)
            self._closed = None  # even if it fails, the source was used
            if self._opening and source is self._source and (
                    not self._worker.store.closed):
                # It didn't come in time, or Ctrl-C did. It is had once more
                # rather than lost: the source may have no other.
                self._worker.store.resume()
            elif self._go_ahead(source):
                self._supersede()
                self._opening = True
            else:
                self._stop(SUPERSEDED, self.timeout)
                self._supersede()
                self._source = source
                # Kept before it starts: Ctrl-C may come while it does.
                self._worker = Worker(
                    Store(self.max_items, self.max_bytes, self.timeout,
                          self.counters), source, self.endless, self.name)
                self._worker.start()
                self._opening = True
            store = self._worker.store
            channel, failure = store.enter()
            self._opening = False
            if failure is not None:
                self._stop(SUPERSEDED)
                failure.deliver()
            self._channel = self._latest = channel
            store.entered(channel)
            self.counters.epochs += 1
            self._closed = None  # a `close` that didn't wait came before it
            return channel

    def _supersede(self):
        self.number += 1
        self._channel = self._latest = None

    def _refuse_producer(self):
        """Raise PrefetchError in the thread that would be waited for."""
        worker = self._worker
        if worker is not None and worker.thread is threading.current_thread():
            raise PrefetchError('a stream that is being read ahead was used '
                                'by the stream that it reads')

    def _go_ahead(self, source):
        """Leave a run for the one that the worker begins by itself.

        Returns
        -------
        ahead : bool
            Whether there is such a one. If not, the worker rests.

        """
        channel = self._channel
        if not self.endless or channel is None or source is not self._source:
            return False
        store = self._worker.store
        if store.closed:  # by a `close` that didn't come to its end
            return False
        store.entered(channel)  # if Ctrl-C came before it the first time
        ahead = None
        try:
            if not channel.complete:
                # It must not begin the next run while that is decided.
                store.pause()
                if not channel.complete:
                    # It is left below, so nothing may be under way that the
                    # next run would have to wait for longer than it may.
                    self._rest()
            ahead = channel.complete
            if ahead:
                channel.finish(SUPERSEDED)
                channel.drop()
        finally:
            if ahead is not False:
                store.resume()
        return ahead

    def interrupt(self, call):
        """Return what `call` returns, called while the worker rests.

        What was read ahead is dropped. A run under way goes on, when it is
        asked to, with what its iterator gives then.

        """
        self._refuse_producer()
        self._leave_behind()
        with self._lock:
            self._wake()
            self._closed = None
            worker, channel = self._worker, self._channel
            if channel is None or channel.stopped:
                self._stop(SUPERSEDED, self.timeout)
                self._rest()
                return call()
            try:
                worker.store.pause()
                self._rest()
                # Only now it is settled how far the worker came.
                if self.endless and channel.complete:
                    self._stop(SUPERSEDED, self.timeout)
                    return call()
                channel.drop()
                # What was dropped may rightly come again.
                worker.source.prepare.restart()
                return call()
            finally:
                if channel.complete and not self.endless:
                    # The reader has not seen the end, so there is none yet.
                    worker.join()
                    channel.reopen()
                    worker.start(channel)
                worker.store.resume_on_demand()

    def _rest(self):
        if self._source is not None:
            self._source.rest(self.timeout)

    def close(self, closed, call, timeout=None):
        """End the run under way, and call `call` when the worker has left.

        Parameters
        ----------
        closed : object
            What is closed. A second time in a row it is not.
        call : callable
            What closes the source. It is called even if the worker doesn't
            leave, as it may be what frees it.
        timeout : float or None
            Seconds for all but `call`.

        """
        check_patience(timeout)
        self._leave_behind()
        if self._closed is closed:
            return
        if self.dormant:
            with self._lock:
                self._discard(CLOSED)
        outer = getattr(_closing, 'deadline', None)
        if outer is not None:
            # One of ours is closed by one that reads it, in the time that
            # is left to that one.
            timeout = min(time_left(outer),
                          float('inf') if timeout is None else timeout)
        deadline = deadline_of(timeout)
        # What is left after nine tenths is for a read that closing frees.
        patience = deadline_of(None if timeout is None else .9 * timeout)
        worker = self._worker
        if worker is not None:
            worker.store.close(CLOSED)  # whoever waits is told at once
        locked = acquire(self._lock, time_left(patience))
        try:
            if locked and self._closed is closed:  # by another thread
                return
            worker = self._worker
            left = worker is None or worker.stop(CLOSED, time_left(patience))
            _closing.deadline = deadline
            try:
                call()
                self._closed = closed
            finally:
                _closing.deadline = outer
                self._channel, self._opening = None, False
                if left or worker.stop(CLOSED, time_left(deadline)):
                    self._worker = None
                    self.counters.turn(None)
        finally:
            if locked:
                self._lock.release()

    def settle(self, channel):
        """Wait for the worker of `channel`, which is at its end, to leave."""
        worker = self._worker
        if (channel is self._channel and channel.complete and
                not self.endless and not worker.foreign):
            worker.store.join()
            worker.join()

    def channel_of(self, number):
        """Return the channel of the latest run, or of one out of a pickle.

        Of others there is nothing to be had, so it is ``None``.

        """
        self.awaken()
        if number == self._woken[0]:
            return self._woken[1]
        return self._latest if number == self.number else None

    def snapshot(self):
        """Return :class:`.Stats` of this moment."""
        worker, saved = self._worker, self._saved
        if saved is not None and saved['busy']:
            entries = [entry for channel in (saved['channel'],
                                             (saved['ahead'] or [None])[0])
                       if channel for entry in channel['entries']
                       if not (isinstance(entry[0], dict) and
                               'traceback' in entry[0])]
            return self.counters.snapshot(
                len(entries), sum(nbytes for _, _, nbytes in entries))
        if worker is None or worker.foreign:
            return self.counters.snapshot()
        return worker.store.snapshot()

    def save(self):
        """Return in plain objects what it takes to go on from here.

        From now on the worker rests, until a reader asks for an item: a
        pickle holds the source as well, and is made of that later.

        Returns
        -------
        saved : dict
            The names in it are those of every version to come.

        Raises
        ------
        PrefetchTimeout
            If the item in hand doesn't come in time.

        """
        self._refuse_producer()
        self._leave_behind()
        with self._lock:
            if self._saved is not None:
                return self._saved
            worker, channel, latest = self._worker, self._channel, self._latest
            saved = {'number': self.number, 'channel': None, 'ahead': None,
                     'iterator': None, 'busy': False, 'working': False,
                     'opening': self._opening}
            if self._opening:
                # An epoch that was superseded is the one before it.
                latest = Channel.ended(SUPERSEDED)
            elif channel is None:
                self._stop(SUPERSEDED, self.timeout)
                self._rest()
            if self._opening or channel is not None and (
                    self.endless or not channel.stopped):
                worker.store.pause()
                try:
                    self._rest()
                    saved.update(worker.store.save(channel), busy=True,
                                 iterator=worker.source.iterator)
                    self.counters.count_pickled(worker.store.snapshot(),
                                                *worker.source.under_way())
                finally:
                    worker.store.resume_on_demand()
            if latest is not None:
                saved['channel'] = latest.save()
            saved['source'] = self._source and self._source.save()
            saved['counters'] = self.counters.save()
            return saved

    def restore(self, saved, source):
        """Be ready to go on with a run that was saved, when asked to."""
        self._saved, self._source = saved, source
        self.number = saved['number']
        self.counters.load(saved['counters'])
        if source is not None:
            source.load(saved.get('source'))

    @property
    def dormant(self):
        """Whether a run was restored, and nothing asked of it yet."""
        return self._saved is not None

    def awaken(self):
        """Go on with a run that was restored, if there is one."""
        if self.dormant:
            self._leave_behind()
            with self._lock:
                self._wake()

    def _wake(self):
        saved, source = self._saved, self._source
        if saved is not None and saved['channel'] is not None:
            store = Store(self.max_items, self.max_bytes, self.timeout,
                          self.counters)
            channel, unfinished = store.load(
                saved, source.load_notice if source else Failure.load)
            if saved['busy']:
                # Of an attempt that was interrupted. It rests.
                self._stop(SUPERSEDED)
                source.resume(saved['iterator'])
                self._worker = Worker(store, source, self.endless, self.name)
                if saved['working']:
                    self._worker.start(unfinished)
                store.resume_on_demand()
                self._opening = saved['opening']
                self._channel = None if self._opening else channel
            self._latest = None if saved['opening'] else channel
            self._woken = saved['number'], channel
        self._saved = None  # not before: there may be no thread to be had

    def _discard(self, reason):
        """Give up a run that was restored, without beginning anything."""
        saved = self._saved
        if saved is not None and saved['channel'] is not None:
            ending = saved['channel']['ending']
            if saved['busy'] and (ending is None or
                                  saved['channel']['entries']):
                ending = reason
            self._latest = Channel.ended(ending)
            self._woken = saved['number'], self._latest
            held = self.snapshot()
            self.counters.batches_dropped += held.batches_held
            self.counters.bytes_dropped += held.bytes_held
        self._saved = None

    def _stop(self, reason, timeout=None):
        """End the run under way, and have its worker leave."""
        if self._worker is not None:
            if not self._worker.stop(reason, timeout):
                raise PrefetchTimeout('the batch in hand took more than {} '
                                      'seconds'.format(timeout))
        self._worker = self._channel = None
        self._opening = False


class Worker(object):
    """The handle of a thread that moves items from a source to a store.

    The thread knows the store and the source, never this handle nor who
    owns it. So an owner that is forgotten is collected, its handle with it,
    and that tells the thread to leave.

    Parameters
    ----------
    store : :class:`.Store`
        Where the items go. It serves this worker alone.
    source : :class:`Source`
        Where they come from. It is opened, and its iterator is read, on the
        worker's thread.
    endless : bool, optional
        Whether another run follows each one that ends. Defaults to
        ``False``.
    name : str, optional
        The thread's name.

    """
    def __init__(self, store, source, endless=False, name='prefetch'):
        self.store = store
        self.source = source
        self.endless = endless
        self.name = 'fuel_prefetch: ' + name
        self.thread = None

    def start(self, channel=None):
        """Start the thread.

        Parameters
        ----------
        channel : :class:`.Channel`, optional
            A channel to go on with, reading the iterator that the source
            has already, after an earlier thread has ended.

        """
        store = self.store
        store.welcome()
        # The thread keeps the reference, as the callback needs it alive.
        source = self.source
        forgotten = weakref.ref(self, lambda _: _abandon(store, source))
        thread = threading.Thread(
            target=inherit(_work), name=self.name,
            args=(store, source, self.endless, channel, forgotten))
        thread.daemon = True  # see `send_workers_away`
        try:
            self.thread = thread
            _workers[thread] = store, source
            thread.start()
        except BaseException:
            # No thread is to be had, or Ctrl-C came while it started; then
            # it may be there or not, and leaves if it is.
            store.abandon()
            if not store.join(.5) and not thread.is_alive():
                _workers.pop(thread, None)
                store.leave()
            raise

    @property
    def foreign(self):
        """Whether the thread was left behind by a fork."""
        return self.store.process != process_token()

    def stop(self, reason, timeout=None):
        """Close the store and wait for the thread; return if it has left."""
        if self.foreign:
            return True
        self.store.close(reason)
        if self.thread is None:  # none was needed
            return True
        if self.thread is threading.current_thread():
            return False  # the source itself closes its reader
        if not self.store.join(timeout):
            return False
        if self.thread.ident is not None:
            self.thread.join()  # it has nothing left to do but to end
        self.store.close(reason)  # it may have put down a last item
        return True

    def join(self):
        """Wait for a thread that has left its store to end."""
        if self.thread is not None:
            self.thread.join()


def _abandon(store, source):
    store.abandon()
    if not store.left:
        source.abandon()


def _work(store, source, endless, channel, forgotten):
    try:
        going_on = True
        while going_on:
            if channel is None:
                going_on = _begin(store, source)
            else:
                going_on = (
                    channel.hold() if channel.failed else store.rest()
                ) and transfer(source.iterator, channel, source.prepare)
                channel = None
            if not going_on:
                source.release()
            going_on = going_on and endless
    finally:
        _workers.pop(threading.current_thread(), None)
        store.leave()


def _begin(store, source):
    channel = store.begin()
    if channel is None:
        return False
    try:
        source.open()
    except:  # noqa: E722 (as in `transfer`)
        store.publish(channel, sys.exc_info())
        return False
    store.publish(channel)
    return transfer(source.iterator, channel, source.prepare)


def transfer(iterator, channel, prepare):
    """Move the items of `iterator` into `channel`, errors and end included.

    Returns
    -------
    ended : bool
        Whether it came to the iterator's end, rather than that nobody
        wants more.

    """
    put, waiting = channel.put, channel.items
    while True:
        try:
            item = next(iterator)
            failed = False
        except StopIteration as stop:
            channel.end(stop.args)
            return True
        except:  # noqa: E722 (SystemExit too, and 2.7's old-style errors)
            channel.fail(sys.exc_info())
            failed = True
        if not failed:
            try:
                item = prepare(item, waiting)
            except BaseException:  # an array that can't be copied
                channel.fail(sys.exc_info())
                failed = True
        if failed:
            # While the thread rests it must not be in an `except` clause,
            # as that would keep the error and its frames alive.
            forget_error()
            item = None
            going_on = channel.hold()
        else:
            going_on = put(item)
            item = None  # a slow `next` must not keep the batch alive
        if not going_on:
            return False


def time_to_close():
    """Return the seconds that are left to a `close` in this thread."""
    return time_left(getattr(_closing, 'deadline', None))


@atexit.register
def send_workers_away():
    """Let the workers leave before the interpreter is taken down.

    A thread that comes back from a long read into an interpreter that is
    being taken down could print or crash, so each is given the time to
    leave. One that does not is a daemon, and is left behind.

    Whatever must come after it calls this first.

    """
    deadline = exit_deadline()
    workers = [(thread, store, source)
               for thread, (store, source) in list(_workers.items())
               if store.process == process_token()]
    for _, store, source in workers:
        _abandon(store, source)
    for thread, store, _ in workers:
        if store.join(time_left(deadline)):
            thread.join(time_left(deadline))

"""Pools of processes on old Pythons, which leave a caller waiting for ever.

Before Python 3.7 nobody is told of a call, or of a result, that can't be
pickled; and the backport for 2.7 doesn't notice that a process was killed. The
function :func:`submit` does what an executor's method does, and tells.

"""
from __future__ import absolute_import, division, print_function

import sys
import threading
import time
import weakref

from concurrent.futures import Future, ProcessPoolExecutor
from six.moves import cPickle as pickle

from fuel_prefetch.exceptions import WorkerDied, call_elsewhere

# Seconds between two looks at the processes of a pool.
LOOK_AFTER = .5

_lock = threading.Lock()
_watched = weakref.WeakSet()  # those that have a thread that looks
_broken = weakref.WeakSet()


def submit(executor, function, *args):
    """Return a future of a call, as the executor's own method does.

    Raises
    ------
    WorkerDied
        If the executor has lost a process, on Python 2.7. Later Pythons raise
        an error of their own.
    Exception
        What pickle raises, if the call can't be sent to another process.

    """
    if sys.version_info >= (3, 7) or (
            not isinstance(executor, ProcessPoolExecutor)):
        return executor.submit(function, *args)
    call = pickle.dumps((function, args), pickle.HIGHEST_PROTOCOL)
    if executor in _broken:
        raise WorkerDied('the pool has lost a process')
    future = Unpickled(executor.submit(
        call_elsewhere, 'the call', _call_pickled, call))
    if sys.version_info < (3,):
        with _lock:
            if executor not in _watched:
                _watched.add(executor)
                thread = threading.Thread(
                    target=_watch, args=(weakref.ref(executor),),
                    name='fuel_prefetch: pool')
                thread.daemon = True
                thread.start()
    return future


def _call_pickled(call):
    function, args = pickle.loads(call)
    return pickle.dumps(function(*args), pickle.HIGHEST_PROTOCOL)


class Unpickled(Future):
    """The future of what another future's result is a pickle of."""
    def __init__(self, pickled):
        super(Unpickled, self).__init__()
        self._pickled = pickled
        pickled.add_done_callback(self._finish)

    def cancel(self):
        pickled = self._pickled
        return pickled.cancel() if pickled is not None else (
            super(Unpickled, self).cancel())

    def _finish(self, pickled):
        self._pickled = None
        if pickled.cancelled():
            super(Unpickled, self).cancel()
            self.set_running_or_notify_cancel()
            return
        error = pickled.exception()
        if error is None:
            try:
                self.set_result(pickle.loads(pickled.result()))
                return
            except BaseException as failure:  # it can't be loaded here
                error = failure
        self.set_exception(error)


def _watch(reference):
    """Look whether all processes of a pool live, as long as it has calls."""
    while True:
        time.sleep(LOOK_AFTER)
        executor = reference()
        if executor is None:
            return
        with _lock:
            dead = [] if executor._shutdown_thread else [
                process for process in list(executor._processes)
                if process.exitcode is not None]
            if dead:
                _broken.add(executor)
            if dead or not executor._pending_work_items:
                _watched.discard(executor)
                break
        executor = None
    if dead:
        _break(executor, dead[0].exitcode)


def _break(executor, code):
    """End a pool whose queues may have been left locked, as 3.7 does it."""
    executor._shutdown_thread = True
    executor._call_queue.cancel_join_thread()
    for process in list(executor._processes):
        process.terminate()
        process.join()
    executor._processes.clear()  # nobody is left to be sent the end
    with executor._work_ids.mutex:
        executor._work_ids.queue.clear()
    items = list(executor._pending_work_items.values())
    executor._pending_work_items.clear()
    for item in items:
        if not item.future.done():
            item.future.set_exception(WorkerDied(
                'a worker died: a process of the pool exited with code '
                '{}'.format(code)))
    executor._result_queue.put(None)  # wakes the thread that manages them

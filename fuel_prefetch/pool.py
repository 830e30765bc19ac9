"""Threads that calls are given to, where the user has no executor."""
from __future__ import absolute_import, division, print_function

import atexit
import sys
import threading
from collections import deque

from concurrent.futures import Executor, Future

from fuel_prefetch.context import inherit
from fuel_prefetch.waiting import Gate, exit_deadline, time_left
from fuel_prefetch.worker import send_workers_away

_threads = {}  # thread -> its pool's gate, and the list that says it's ended


class ThreadPool(Executor):
    """An executor whose threads never keep a process from ending.

    That is what ``ThreadPoolExecutor`` does: the end
    of the interpreter waits for all that was submitted to it, or for ever,
    if one call doesn't return. These threads are daemons. They end when the
    pool is shut down, and when nobody refers to it any more.

    Parameters
    ----------
    workers : int
        Most threads. They are started when there is something to do.

    """
    # The threads know the calls and the gate, never the pool. The gate wakes
    # one of them, and that one the next, as long as there are calls.
    def __init__(self, workers):
        self.workers = workers
        self._calls = deque()
        self._gate = Gate()
        self._ended = []  # not empty when it is shut down
        self._threads = []

    def submit(self, function, *args, **kwargs):
        """Return a future of the call."""
        if self._ended:
            raise RuntimeError('the pool was shut down')
        if len(self._threads) < self.workers:
            thread = threading.Thread(
                target=inherit(_work), name='fuel_prefetch: mapping',
                args=(self._calls, self._gate, self._ended))
            thread.daemon = True
            try:
                thread.start()
                self._threads.append(thread)
            except Exception:  # no more threads are to be had
                if not self._threads:
                    raise
        future = Future()
        self._calls.append((future, function, args, kwargs))
        self._gate.open()
        return future

    def shutdown(self, wait=True):
        """Have the threads end after the calls that they are in."""
        self._ended.append(True)
        self._gate.open()
        if wait:
            for thread in self._threads:
                thread.join()

    def __del__(self):
        self.shutdown(False)


def _work(calls, gate, ended):
    thread = threading.current_thread()
    _threads[thread] = gate, ended
    try:
        _make_calls(calls, gate, ended)
    finally:
        _threads.pop(thread, None)


def _make_calls(calls, gate, ended):
    while True:
        try:
            future, function, args, kwargs = calls.popleft()
        except IndexError:
            if ended:
                break
            gate.wait()
            continue
        if calls:
            gate.open()
        if ended:
            future.cancel()  # whoever waits for it is told
        elif future.set_running_or_notify_cancel():
            _run(future, function, args, kwargs)
        del future, function, args, kwargs  # nothing is held while it waits
    gate.open()  # for the next to end


def _run(future, function, args, kwargs):
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        if hasattr(future, 'set_exception_info'):  # the backport for 2.7
            future.set_exception_info(error, sys.exc_info()[2])
        else:
            future.set_exception(error)
        # It refers to the error, whose traceback refers to this frame.
        future = None
    else:
        future.set_result(result)


@atexit.register
def send_threads_away():
    """Let the calls under way come to their end, if they do so in time.

    As for workers, of which none may submit a call any more.

    """
    send_workers_away()
    deadline = exit_deadline()
    threads = list(_threads.items())
    for _, (gate, ended) in threads:
        ended.append(True)
        gate.open()
    for thread, _ in threads:
        thread.join(time_left(deadline))

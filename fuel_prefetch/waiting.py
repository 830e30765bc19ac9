"""What threads wait with, on every Python."""
from __future__ import absolute_import, division, print_function

import os
import threading
import time

import six

# 2.7 has no monotonic clock. There a change of the system's time may
# stretch or cut a timeout that is running.
monotonic = getattr(time, 'monotonic', time.time)


def deadline_of(timeout):
    """Return when `timeout` seconds are over; ``None`` is never."""
    return None if timeout is None else monotonic() + timeout


def time_left(deadline):
    """Return the seconds until `deadline`; ``None`` for no end."""
    return None if deadline is None else max(0, deadline - monotonic())


if hasattr(os, 'register_at_fork'):
    _forks = 0

    def process_token():
        """Return a value that differs between a process and its forks."""
        return _forks

    def _count_fork():
        global _forks
        _forks += 1

    os.register_at_fork(after_in_child=_count_fork)
else:  # 2.7 and 3.6; a system call, so it costs more
    process_token = os.getpid

# Seconds that the end of the interpreter may be held up by what does not
# return, over all streams and servers together.
EXIT_TIMEOUT = 1.
_exits = {}  # a process that is ending -> when these seconds are over


def exit_deadline():
    """Return when this process, which is ending, has waited enough."""
    return _exits.setdefault(process_token(), deadline_of(EXIT_TIMEOUT))


if six.PY3:
    def acquire(lock, timeout=None):
        """Acquire `lock` within `timeout` seconds; return if it was."""
        return lock.acquire(True, -1 if timeout is None else
                            min(timeout, threading.TIMEOUT_MAX))
else:
    def acquire(lock, timeout=None):
        """Acquire `lock` within `timeout` seconds; return if it was."""
        # On 2.7 a blocked `acquire` knows no timeout and can't be
        # interrupted. So the main thread, the one that Ctrl-C interrupts,
        # looks every millisecond; no other thread needs to.
        main = isinstance(threading.current_thread(), threading._MainThread)
        if timeout is None and not main:
            return lock.acquire()
        deadline = deadline_of(timeout)
        while not lock.acquire(False):
            if deadline is not None and monotonic() >= deadline:
                return False
            time.sleep(.001)
        return True


class Gate(object):
    """A wake-up that is remembered: one thread waits, any thread opens.

    It is a lock used as a binary semaphore. An opening that comes before
    the wait is not lost, and :meth:`open` takes nothing that its caller
    could hold already, so a finalizer or a signal handler may call it at
    any moment, even in a thread that is just about to wait. (A condition
    would lose that notification, or need polling to recover from it.)

    Whoever was woken looks again at what it waits for, as an opening may
    be left over from an earlier one. Whoever opens changes the state
    first. Of two openings one may be swallowed by the other, which is
    right: the thread that comes through has yet to look.

    """
    def __init__(self):
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self):
        if self._lock.locked():
            try:
                self._lock.release()
            except threading.ThreadError:  # RuntimeError's alias from 3.3
                pass  # another thread opened it in the meantime

    def wait(self, timeout=None):
        """Wait for an opening and use it up; return whether one came."""
        return acquire(self._lock, timeout)

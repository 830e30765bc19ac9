"""Counters of a stream, and what they say of who waits for whom."""
from __future__ import absolute_import, division, print_function

import os
import sys
import time
from collections import namedtuple

from fuel_prefetch.waiting import monotonic

# What the producer is doing, by the name of the counter that grows meanwhile.
PRODUCING = 'seconds_producing'
BLOCKED = 'seconds_blocked'
RESTING = 'seconds_resting'

# Seconds between two looks at the CPU time, which take some 15 microseconds.
LOOK_EVERY = .02
# Seconds between two tries to get the lock, and for how many it is given away:
# long enough for a reader that was woken just now to begin.
TRY_EVERY = .2
GIVEN_AWAY = .001
NEVER = float('inf')

# New ones come last, and the defaults below are for pickles without them.
FIELDS = [
    'batches_produced', 'batches_taken', 'batches_held', 'batches_most_held',
    'bytes_produced', 'bytes_taken', 'bytes_held',
    'errors', 'epochs',
    PRODUCING, BLOCKED, RESTING, 'seconds_waiting',
    'batches_pickled', 'bytes_pickled',
    'looked_producing', 'cpu_producing', 'cpu_beside', 'core_missing',
    'looked_blocked', 'cpu_blocked', 'lock_tries', 'lock_waits']

# What is not a sum, so that an interval has it as it is at its end.
STATES = {'batches_held', 'batches_most_held', 'bytes_held',
          'batches_pickled', 'bytes_pickled'}

COUNTED = [name for name in FIELDS if name not in (
    'batches_taken', 'batches_held', 'bytes_taken', 'bytes_held')]


class Stats(namedtuple('Stats', FIELDS)):
    """A snapshot of a stream's counters, over all its epochs so far.

    The difference of two, ``later - earlier``, is what happened in between.

    Attributes
    ----------
    batches_produced, batches_taken, batches_held : int
        Batches (examples, where the stream produces examples) that the
        producer has read, the readers have taken, and the store holds.
        What was read ahead and dropped is in the first number alone.
    batches_most_held : int
        The most that the store held at one time.
    bytes_produced, bytes_taken, bytes_held : int
        The same in bytes. Where `max_bytes` is not set only the arrays
        that are sources themselves are counted.
    errors : int
        Errors that came in the place of a batch or an epoch. Those of a
        mapping count when they are taken, the others when they happen.
    epochs : int
        Epochs that readers have begun.
    seconds_producing : float
        Time in which the producer read and transformed.
    seconds_blocked : float
        Time in which the producer waited for room in a full store.
    seconds_resting : float
        Time in which the producer had no epoch to read, from the first one
        on, or was made to rest: after an error and by a pickle. Time after
        ``close`` doesn't count.
    seconds_waiting : float
        Time in which readers waited for a batch, over all of them.
    batches_pickled, bytes_pickled : int
        Batches that had been read ahead when the stream was pickled (or
        copied) in the middle of an epoch the last time, and that are in the
        pickle for that reason; and their bytes. A pickle that could not be
        made counts too.
    looked_producing : float
        Of `seconds_producing`, those in which the CPU time was looked at.
    cpu_producing, cpu_beside : float
        Seconds of CPU time in those: of the producer's thread, and of all
        other threads of the process.
    core_missing : float
        Seconds of those in which the producer's thread could have run, had
        there been a core for it.
    looked_blocked, cpu_blocked : float
        Of `seconds_blocked`, those in which the CPU time was looked at; and
        seconds of CPU time of all other threads in those.
    lock_tries, lock_waits : int
        How often the producer tried when it would get the interpreter's
        lock back, and how often that took a quarter of the switch interval.
        It tries where the CPU time makes one suspect that it has to wait.

    Notes
    -----
    In a pickle the batch that the producer had in hand is held as well. So
    afterwards there may be one more than `max_store`, for a while.

    CPU time is looked at only now and then, and only by Python 3 on Linux
    where the process has more than one core. Elsewhere these counters stay
    0, and :attr:`advice` ``None``.

    """
    __slots__ = ()

    @property
    def seconds(self):
        """Seconds that the counters cover: producing, blocked, resting."""
        return (self.seconds_producing + self.seconds_blocked +
                self.seconds_resting)

    @property
    def batches_per_second(self):
        """Batches taken, over :attr:`seconds`; 0.0 if there are none."""
        return _ratio(self.batches_taken, self.seconds)

    @property
    def bytes_per_second(self):
        """Bytes taken, over :attr:`seconds`; 0.0 if there are none."""
        return _ratio(self.bytes_taken, self.seconds)

    @property
    def produced_per_second(self):
        """Batches produced, over `seconds_producing`; 0.0 if there are none.

        This is what the producer can do at most, beside these readers.

        """
        return _ratio(self.batches_produced, self.seconds_producing)

    @property
    def bottleneck(self):
        """`'producer'`, `'consumer'` or `'balanced'`.

        The side for which the other one waited more than twice as long
        as it waited itself. Time that a stream takes to deliver its very
        first batch counts too, so look after an epoch, not a batch.

        """
        if self.seconds_waiting > 2 * self.seconds_blocked:
            return 'producer'
        if self.seconds_blocked > 2 * self.seconds_waiting:
            return 'consumer'
        return 'balanced'

    @property
    def advice(self):
        """What would help where a thread can't, in a sentence, or ``None``.

        It is about the interpreter's lock (GIL) alone: that the producer and
        the rest of the process take turns, rather than work at the same
        time. ``None`` says that there is no evidence for that; most often
        the two do not.

        """
        if self.looked_producing < .5:
            return None
        own = self.cpu_producing / self.looked_producing
        beside = self.cpu_beside / self.looked_producing
        # Who lacks a core must not be taken for one who lacks a lock.
        missing = self.core_missing / self.looked_producing
        at_work = self.seconds_producing / (
            self.seconds_producing + self.seconds_blocked)
        # How busy the rest of the process is when the producer stands still.
        alone = (self.cpu_blocked / self.looked_blocked
                 if self.looked_blocked > .1 else None)
        if (own >= .25 and own + missing <= .75 and missing <= .25 and
                .9 <= own + beside <= 1.1 and own * at_work >= .15 and
                self.lock_tries >= 3 and
                self.lock_waits >= .6 * self.lock_tries and
                (alone is None or beside <= .75 * alone)):
            return ('the producer and the rest of the process take turns with '
                    "the interpreter's lock: use backend='process', or do the "
                    'slow step in ParallelMapping with an executor of '
                    'processes')
        if (own >= .75 and own + beside <= 1.25 and missing <= .1 and
                at_work >= .15 and
                self.seconds_waiting <= .1 * self.seconds and
                alone is not None and alone >= .75 and beside <= .35):
            if sys.getswitchinterval() > .001:
                return ("the producer keeps the interpreter's lock from a "
                        'training step that releases it: try '
                        "sys.setswitchinterval(0.001), or use "
                        "backend='process'")
            return ("the producer keeps the interpreter's lock from a "
                    "training step that releases it: use backend='process'")
        return None

    def __sub__(self, earlier):
        """Return what happened since `earlier`, a snapshot of this stream.

        What is no sum, `batches_held`, `bytes_held`, `batches_most_held`,
        `batches_pickled` and `bytes_pickled`, is as it is in the later one.

        """
        if not isinstance(earlier, Stats):
            return NotImplemented
        return Stats(*[
            now if name in STATES else now - before
            for name, now, before in zip(FIELDS, self, earlier)])

    def __str__(self):
        return (
            '{0.batches_taken} batches, {1} taken in {0.seconds:.2f} s '
            '({0.batches_per_second:.1f} batches/s); '
            '{0.batches_held} held, {0.batches_most_held} at most; '
            'producing {0.seconds_producing:.2f} s, '
            'blocked {0.seconds_blocked:.2f} s, '
            'resting {0.seconds_resting:.2f} s, '
            'readers waiting {0.seconds_waiting:.2f} s; '
            '{2}bottleneck: {0.bottleneck}'.format(
                self, _size(self.bytes_taken),
                '{} errors; '.format(self.errors) if self.errors else ''))


Stats.__new__.__defaults__ = (0,) * len(FIELDS)


def _ratio(amount, seconds):
    return amount / seconds if seconds > 0 else 0.


def _size(nbytes):
    for unit in ('bytes', 'kB', 'MB', 'GB'):
        if nbytes < 1000:
            break
        nbytes /= 1000
    else:
        unit = 'TB'
    return '{:.0f} {}'.format(nbytes, unit) if unit == 'bytes' else (
        '{:.1f} {}'.format(nbytes, unit))


SCHEDSTAT = '/proc/thread-self/schedstat'


def read_cpu():
    """Return CPU seconds of the thread, of the process, and core_missing."""
    # `open` would take four times as long.
    file_ = os.open(SCHEDSTAT, os.O_RDONLY)
    try:
        missing = int(os.read(file_, 100).split()[1]) * 1e-9
    finally:
        os.close(file_)
    return (time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID),
            time.process_time(), missing)


try:
    if len(os.sched_getaffinity(0)) < 2:
        raise OSError('nothing could be concluded, nor would anything help')
    read_cpu()
except Exception:  # another system, or an old Python
    read_cpu = None


class Counters(object):
    """The running totals behind :class:`Stats`.

    One producer after another writes the first group and readers the
    second, each with the store's lock held where several may write.

    """
    def __init__(self):
        self.batches_produced = 0
        self.bytes_produced = 0
        self.batches_most_held = 0
        self.errors = 0
        self.seconds_producing = 0.
        self.seconds_blocked = 0.
        self.seconds_resting = 0.
        self.looked_producing = 0.
        self.cpu_producing = 0.
        self.cpu_beside = 0.
        self.core_missing = 0.
        self.looked_blocked = 0.
        self.cpu_blocked = 0.
        self.lock_tries = 0
        self.lock_waits = 0
        self.batches_dropped = 0
        self.bytes_dropped = 0
        self.epochs = 0
        self.seconds_waiting = 0.
        self.batches_pickled = 0
        self.bytes_pickled = 0
        self.stop()

    # What begins with an underscore is of this process and of this moment.

    def save(self):
        """Return the totals by their names, for a pickle."""
        return {name: value for name, value in vars(self).items()
                if not name.startswith('_')}

    def load(self, saved):
        """Go on with totals that were saved; a newer one begins at 0."""
        vars(self).update(saved)

    def stop(self):
        """Stop the clock of the producer."""
        self._phase = None, 0.  # what it does, and since when
        self._reading = None  # of the CPU time, and when it was made
        self._next_look = {PRODUCING: 0., BLOCKED: 0.}
        self._next_try = 0.

    def turn(self, phase):
        """Start the clock for what the producer, who calls this, does now.

        Parameters
        ----------
        phase : str or None
            ``PRODUCING``, ``BLOCKED`` or ``RESTING``; ``None`` if nobody
            wants anything of it any more.

        """
        now = monotonic()
        before, since = self._phase
        if before is not None:
            # Not by way of `__dict__`: once that was asked for, CPython is
            # slower at each attribute, and two are written for each batch.
            setattr(self, before, getattr(self, before) + now - since)
        self._phase = phase, now
        if read_cpu is not None:
            due = now >= self._next_look.get(phase, NEVER)
            if due or self._reading is not None:
                self._look(before, now)
            if not due:
                self._reading = None
            else:
                self._next_look[phase] = now + LOOK_EVERY
                if phase is BLOCKED:
                    self._try_lock(now)

    def look(self):
        """Look at the CPU time, if that is due, in the middle of producing."""
        if read_cpu is not None:
            now = monotonic()
            if now >= self._next_look[PRODUCING]:
                # First, as reading the files gives the lock away as well.
                self._try_lock(now)
                now = monotonic()
                self._look(PRODUCING, now)
                self._next_look[PRODUCING] = now + LOOK_EVERY

    def _look(self, phase, now):
        """Count the CPU time since the last look, in `phase`."""
        try:
            own, everyone, missing = cpu = read_cpu()
        except Exception:  # no descriptor is to be had, say
            self._reading = None
            return
        if self._reading is not None:
            since, (own_then, everyone_then, missing_then) = self._reading
            beside = everyone - everyone_then - (own - own_then)
            if phase is PRODUCING:
                self.looked_producing += now - since
                self.cpu_producing += own - own_then
                self.cpu_beside += beside
                self.core_missing += missing - missing_then
            else:
                self.looked_blocked += now - since
                self.cpu_blocked += beside
        self._reading = now, cpu

    def _try_lock(self, now):
        """Give the interpreter's lock up, and see when it comes back.

        Only where the CPU time has it that two may take turns, which may be
        by chance: this is what tells that from the lock.

        """
        looked = self.looked_producing
        if now < self._next_try or not (
                .2 * looked < self.cpu_producing < .8 * looked and
                .8 * looked < self.cpu_producing + self.cpu_beside <
                1.2 * looked):
            return
        self._next_try = now + TRY_EVERY
        now = monotonic()
        time.sleep(GIVEN_AWAY)
        self.lock_tries += 1
        late = monotonic() - now - GIVEN_AWAY
        if late > .25 * sys.getswitchinterval():
            self.lock_waits += 1

    def count_pickled(self, stats, batches, nbytes):
        """Take note of what was held, and under way, as a pickle was made."""
        self.batches_pickled = stats.batches_held + batches
        self.bytes_pickled = stats.bytes_held + nbytes

    def snapshot(self, batches_held=0, bytes_held=0, in_hand=None):
        """Return :class:`Stats`, given what holds just now.

        Parameters
        ----------
        batches_held, bytes_held : int
            What the store holds.
        in_hand : int or None
            Bytes of a batch that the producer can't put there yet.

        """
        phase, since = self._phase
        totals = {name: getattr(self, name) for name in COUNTED}
        if phase is not None:
            totals[phase] += monotonic() - since
        gone = self.batches_dropped + batches_held + (in_hand is not None)
        gone_bytes = self.bytes_dropped + bytes_held + (in_hand or 0)
        return Stats(**dict(
            totals, batches_taken=totals['batches_produced'] - gone,
            batches_held=batches_held,
            batches_most_held=max(self.batches_most_held, batches_held),
            bytes_taken=totals['bytes_produced'] - gone_bytes,
            bytes_held=bytes_held))

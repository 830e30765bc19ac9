"""Counters of a stream, and what they say of who waits for whom."""
from __future__ import absolute_import, division, print_function

from collections import namedtuple


class Stats(namedtuple('Stats', [
        'batches_produced', 'batches_taken', 'batches_held',
        'bytes_produced', 'bytes_taken', 'bytes_held',
        'seconds_producing', 'seconds_blocked', 'seconds_waiting',
        'batches_pickled', 'bytes_pickled'])):
    """A snapshot of a stream's counters, over all its epochs so far.

    Attributes
    ----------
    batches_produced, batches_taken, batches_held : int
        Batches (examples, where the stream produces examples) that the
        producer has read, the readers have taken, and the store holds.
        What was read ahead and dropped is in the first number alone.
    bytes_produced, bytes_taken, bytes_held : int
        The same in bytes. Where `max_bytes` is not set only the arrays
        that are sources themselves are counted.
    seconds_producing : float
        Time in which the producer read and transformed.
    seconds_blocked : float
        Time in which the producer waited for room in a full store.
    seconds_waiting : float
        Time in which readers waited for a batch.
    batches_pickled, bytes_pickled : int
        Batches that had been read ahead when the stream was pickled (or
        copied) in the middle of an epoch the last time, and that are in the
        pickle for that reason; and their bytes. A pickle that could not be
        made counts too.

    Notes
    -----
    In a pickle the batch that the producer had in hand is held as well. So
    afterwards there may be one more than `max_store`, for a while.

    """
    __slots__ = ()

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


class Counters(object):
    """The running totals behind :class:`Stats`.

    One producer after another writes the first group and readers the
    second, each with the store's lock held where several may write.

    """
    def __init__(self):
        self.batches_produced = 0
        self.bytes_produced = 0
        self.seconds_producing = 0.
        self.seconds_blocked = 0.
        self.batches_dropped = 0
        self.bytes_dropped = 0
        self.seconds_waiting = 0.
        self.batches_pickled = 0
        self.bytes_pickled = 0

    def count_pickled(self, stats):
        """Take note of what was held when a pickle was made."""
        self.batches_pickled = stats.batches_held
        self.bytes_pickled = stats.bytes_held

    def snapshot(self, batches_held=0, bytes_held=0, in_hand=None,
                 producing=0.):
        """Return :class:`Stats`, given what holds just now.

        Parameters
        ----------
        batches_held, bytes_held : int
            What the store holds.
        in_hand : int or None
            Bytes of a batch that the producer can't put there yet.
        producing : float
            Seconds that the producer has been in its present batch.

        """
        gone = self.batches_dropped + batches_held + (in_hand is not None)
        gone_bytes = self.bytes_dropped + bytes_held + (in_hand or 0)
        return Stats(
            self.batches_produced, self.batches_produced - gone,
            batches_held,
            self.bytes_produced, self.bytes_produced - gone_bytes,
            bytes_held,
            self.seconds_producing + producing,
            self.seconds_blocked,
            self.seconds_waiting,
            self.batches_pickled,
            self.bytes_pickled)

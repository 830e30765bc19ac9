"""Short messages from one process to another through memory they share.

Both processes look at the same counters, and a message is there as soon as it
is written: no call to the system is made for it, but to wake who sleeps. So of
many small batches several are handed over for each time that a process wakes.

"""
from __future__ import absolute_import, division, print_function

import struct
import threading

import numpy

MESSAGE = struct.Struct('<BIQ')  # kind, number, bytes that follow

# Bytes of the ring. What is under way at once fits, as messages are short.
NBYTES = 2 ** 19

# A message begins at a multiple of it.
STEP = 16

# Where the counters stand, each in a line of the processors' caches of its
# own, and where the messages begin.
LINE = 64
FIRST = 8 * LINE
SIZE = NBYTES - FIRST

TO_THE_START = 0  # the kind of a message that stands for the ring's last bytes


def fence():
    """Return a function after which other processors see what was written.

    What is read after it is read then. It's a lock that is released and
    acquired: the processor may not move any access over the two. Each user
    needs a function of its own.

    """
    lock = threading.Lock()
    lock.acquire()

    def pass_through():
        lock.release()
        lock.acquire()

    return pass_through


class Flag(object):
    """A number in shared memory, of which one process tells the other.

    Of the two, one sets it, with :meth:`tell`. The other looks at it, and
    says so before it sleeps. Either it sees the new value then, or who sets
    it sees that somebody has to be woken: between writing the one word and
    reading the other there is a fence in both.

    Parameters
    ----------
    words : :class:`numpy.ndarray`
        The value, and whether somebody waits for it to change.

    """
    def __init__(self, words):
        self._words = words
        self._fence = fence()

    @property
    def value(self):
        # As Python's own integer: old NumPy compares through floats.
        return int(self._words[0])

    def tell(self, value):
        """Set the value; return whether the other one has to be woken."""
        words = self._words
        self._fence()  # what the value stands for is written before it
        words[0] = value
        self._fence()
        if words[1]:
            words[1] = 0
            return True
        return False

    def must_sleep(self, value):
        """Say that one waits for another value; return if this is it yet."""
        words = self._words
        words[1] = 1
        self._fence()
        if self.value == value:
            return True
        words[1] = 0
        return False

    def pass_through(self):
        """Read what the value stands for after it, not before."""
        self._fence()


class Ring(object):
    """A queue of messages in shared memory: one process writes, one reads.

    Parameters
    ----------
    memory : mmap
        `NBYTES` of it, which are zero at first.

    Attributes
    ----------
    written : :class:`Flag`
        Bytes written since the beginning; the reader waits for it.
    granted : :class:`Flag`
        Set by the reader, for the writer to wait for.

    """
    def __init__(self, memory):
        self._memory = memory
        words = numpy.ndarray((FIRST // LINE, LINE // 8), numpy.uint64, memory)
        self.written = Flag(words[0])
        self.granted = Flag(words[1])
        self._counters = words[2]
        self._written = self._read = 0

    def write(self, kind, number, body):
        """Write a message if there is room for it.

        Parameters
        ----------
        kind, number : int
            Whatever they stand for, `kind` not being 0.
        body : bytes
            The rest.

        Returns
        -------
        written : bool
            Whether it was written.
        wake : bool
            Whether the reader has to be woken.

        """
        memory, position = self._memory, self._written % SIZE
        length = MESSAGE.size + len(body)
        need = -(-length // STEP) * STEP
        skipped = SIZE - position if position + need > SIZE else 0
        used = self._written - int(self._counters[0])
        if used + skipped + need > SIZE:
            return False, False
        if skipped:
            memory[FIRST + position:FIRST + position + MESSAGE.size] = (
                MESSAGE.pack(TO_THE_START, 0, 0))
            position = 0
        start = FIRST + position
        memory[start:start + length] = MESSAGE.pack(
            kind, number, len(body)) + body
        self._written += skipped + need
        return True, self.written.tell(self._written)

    def read(self, messages):
        """Append the messages that are there; return whether there were any.

        Parameters
        ----------
        messages : deque
            What they are appended to: kind, number and body of each.

        """
        memory, written = self._memory, self.written.value
        if self._read == written:
            return False
        self.written.pass_through()
        while self._read != written:
            position = self._read % SIZE
            start = FIRST + position
            body = start + MESSAGE.size
            kind, number, nbytes = MESSAGE.unpack(memory[start:body])
            if kind == TO_THE_START:
                self._read += SIZE - position
                continue
            messages.append((kind, number, memory[body:body + nbytes]))
            self._read += -(-(MESSAGE.size + nbytes) // STEP) * STEP
        self.written.pass_through()  # the writer may use that memory again
        self._counters[0] = self._read
        return True

    def must_sleep(self):
        """Say that the reader waits; return whether nothing is there."""
        return self.written.must_sleep(self._read)

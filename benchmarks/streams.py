"""Streams of known cost, and the peers that read them ahead."""
from __future__ import absolute_import, division, print_function

import threading
import time
import zlib

import numpy
from fuel.streams import AbstractDataStream
from six.moves import queue


class CountedStream(AbstractDataStream):
    """Gives the same few batches again and again, after some work.

    Parameters
    ----------
    count : int
        Batches in an epoch.
    work : callable, optional
        Called for each batch.
    nbytes : int, optional
        The size of a batch's one array.

    """
    sources = ('data',)

    def __init__(self, count, work=None, nbytes=24):
        super(CountedStream, self).__init__()
        self.produces_examples = False
        self.count = count
        self.work = work
        # More than any depth here, so that nothing seems to be refilled.
        self.batches = [(numpy.zeros(nbytes, dtype='uint8'),)
                        for _ in range(500 if nbytes < 10000 else 30)]

    def get_epoch_iterator(self, **kwargs):
        self.index = -1
        return super(CountedStream, self).get_epoch_iterator(**kwargs)

    def get_data(self, request=None):
        self.index += 1
        if self.index == self.count:
            raise StopIteration
        if self.work is not None:
            self.work()
        return self.batches[self.index % len(self.batches)]

    def close(self):
        pass

    next_epoch = reset = close


def queue_thread(stream, depth):
    """Read an epoch through a bare `queue.Queue` and a thread."""
    items = queue.Queue(depth)
    iterator = stream.get_epoch_iterator()
    end = object()

    def produce():
        for batch in iterator:
            items.put(batch)
        items.put(end)

    thread = threading.Thread(target=produce)
    thread.daemon = True
    thread.start()
    while True:
        batch = items.get()
        if batch is end:
            return
        yield batch


def sleep(seconds):
    """Return a piece of work that sleeps."""
    return lambda: time.sleep(seconds)


def compress(seconds):
    """Return work of about `seconds` that releases the GIL: zlib."""
    data = numpy.random.RandomState(1).bytes(20000)
    return repeat(lambda: zlib.compress(data), seconds)


def numpy_step(seconds):
    """Return work of about `seconds` as of a training step in NumPy."""
    array = numpy.ones(50000)
    return repeat(lambda: numpy.exp(array, out=numpy.empty_like(array)),
                  seconds)


def repeat(call, seconds):
    """Return work that repeats `call` for about `seconds`."""
    best = min(timed(call) for _ in range(20))
    times = max(1, int(round(seconds / best)))

    def work():
        for _ in range(times):
            call()
    return work


def timed(call):
    """Return how many seconds `call` takes."""
    start = time.time()
    call()
    return time.time() - start

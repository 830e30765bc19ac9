"""What reading in a process costs and gains, beside what else does it."""
from __future__ import absolute_import, division, print_function

import multiprocessing
import time
from collections import OrderedDict
from contextlib import closing
from functools import partial
from multiprocessing.sharedctypes import RawValue

import numpy
from fuel_prefetch import BackgroundDataStream
from fuel_prefetch.waiting import monotonic
from benchmarks import peers
from benchmarks.measure import in_turns, read, report, under_way
from benchmarks.streams import CountedStream, repeat, sleep

ENDLESS = 10 ** 9
DEPTH = 4

READERS = OrderedDict([
    ('ours, process', peers.ours('process')),
    ('ours, thread', peers.ours('thread')),
    ("Fuel's MultiProcessing", peers.fuels)])


class FilledStream(CountedStream):
    """Gives new arrays of float32, filled with their numbers, without end.

    Attributes
    ----------
    made : ctypes.c_int
        How many were begun, in whichever process.

    """
    def __init__(self, nbytes):
        super(FilledStream, self).__init__(ENDLESS, nbytes=0)
        self.size = nbytes // 4
        self.made = RawValue('i', 0)

    def get_data(self, request=None):
        self.index += 1
        self.made.value += 1
        return (numpy.full(self.size, self.index, 'float32'),)


def process_starts():
    """What it costs that a process starts, and epochs in it."""
    def first(backend):
        stream = CountedStream(1)
        with BackgroundDataStream(stream, backend=backend) as wrapped:
            start = monotonic()
            next(wrapped.get_epoch_iterator())
            return monotonic() - start

    def further(backend, epochs=100):
        with BackgroundDataStream(
                CountedStream(0), backend=backend) as wrapped:
            read(wrapped.get_epoch_iterator())
            start = monotonic()
            for _ in range(epochs):
                read(wrapped.get_epoch_iterator())
            return (monotonic() - start) / epochs

    for name, seconds in zip(
            ['first batch of the first epoch: process', '    thread',
             'a further epoch, empty: process', '    thread'],
            in_turns(*[partial(call, backend) for call in (first, further)
                       for backend in ('process', 'thread')])):
        report(name, seconds * 1e3, 'ms')

    stream = CountedStream(5, sleep(.002))
    step = sleep(.002)
    epochs = 30

    def short(iterable, step=None):
        read(iterable.get_epoch_iterator(), step)
        start = monotonic()
        for _ in range(epochs):
            read(iterable.get_epoch_iterator(), step)
        return monotonic() - start

    def train():
        start = monotonic()
        read(range(5 * epochs), step)
        return monotonic() - start

    def wrapped(across_epochs):
        with BackgroundDataStream(stream, backend='process',
                                  across_epochs=across_epochs) as ahead:
            return short(ahead, step)

    produced, trained, resting, going_on = in_turns(
        partial(short, stream), train,
        partial(wrapped, False), partial(wrapped, True))
    ideal = max(produced, trained)
    report('5 batches of 2 ms an epoch: ideal / process', ideal / resting, '')
    report('    with across_epochs: ideal / process', ideal / going_on, '')


def process_tiny():
    """What handing over 64 bytes costs, for each batch."""
    count = 10000
    for depth in (10, 100):
        times = in_turns(*[
            partial(lambda reader: under_way(
                reader(CountedStream(ENDLESS, nbytes=64), depth),
                2 * depth, count), reader)
            for reader in READERS.values()])
        for name, seconds in zip(READERS, times):
            report('64 bytes at depth {}: {}'.format(depth, name),
                   seconds / count * 1e6, 'us')


def count_up():
    total = 0
    for number in range(2000):
        total += number
    return total


def process_loops():
    """How much of the ideal overlap two loops in Python reach."""
    count, warm = 100, 20
    step = repeat(count_up, .005)
    stream = CountedStream(ENDLESS, step)

    def alone():
        start = monotonic()
        read(range(count), step)
        return monotonic() - start

    def apart():
        """Return the time of two processes that exchange nothing."""
        here, there = multiprocessing.Pipe()

        def other():
            there.send('ready')
            there.recv()
            read(range(count), step)
            there.send('done')

        process = multiprocessing.Process(target=other)
        process.start()
        here.recv()
        start = monotonic()
        here.send('go')
        read(range(count), step)
        here.recv()
        seconds = monotonic() - start
        process.join()
        return seconds

    times = in_turns(alone, alone, apart, *[
        partial(lambda reader: under_way(
            reader(stream, 10), warm, count, step), reader)
        for reader in READERS.values()])
    ideal = max(times[:2])
    report('5 ms of Python over 5 ms: ideal / two bare processes',
           ideal / times[2], '')
    for name, seconds in zip(READERS, times[3:]):
        report('    ideal / ' + name, ideal / seconds, '')
        report('    two bare processes / ' + name, times[2] / seconds, '')


def process_resident():
    """How many batches there are at once, beside a slow reader."""
    for depth in (1, 10):
        for name, reader in READERS.items():
            stream = FilledStream(2 ** 20)
            most = 0
            with closing(reader(stream, depth)) as batches:
                for taken in range(20):
                    batch = next(batches)  # the one before is gone
                    time.sleep(.02)  # until no more can be made
                    most = max(most, stream.made.value - taken)
                    del batch
            report('batches at once, max_store={}: {}'.format(depth, name),
                   most, '')


def process_bandwidth():
    """How fast large batches come that are filled as they are made."""
    readers = OrderedDict(
        [('ours, process', peers.ours('process')),
         ("Fuel's MultiProcessing", peers.fuels)] + peers.installed())

    def copying(nbytes, count):
        source = numpy.full(nbytes // 4, 1, 'float32')
        target = numpy.zeros_like(source)
        start = monotonic()
        for _ in range(count):
            numpy.copyto(target, source)
        return monotonic() - start

    for size, count in [(1, 200), (16, 30), (64, 12)]:
        nbytes = size * 2 ** 20
        times = in_turns(partial(copying, nbytes, count), *[
            partial(lambda reader: under_way(
                reader(FilledStream(nbytes), DEPTH, nbytes),
                2 * DEPTH, count), reader)
            for reader in readers.values()])
        name = '{} MiB of float32: '.format(size)
        for what, seconds in zip(['memcpy'] + list(readers), times):
            report(name + what, count * nbytes / seconds / 1e9, 'GB/s')
        for what, seconds in zip(list(readers)[1:], times[2:]):
            report('    ours / ' + what, seconds / times[1], '')

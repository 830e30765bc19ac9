"""Endings at random moments, each of which is listed in docs/endings.rst.

What ends a stream, a reader or a process comes while the producer is in any of
its states, which a seed and the machine's mood decide. `test_transformers` and
`test_exit` have the same endings at moments that are chosen.
`FUEL_PREFETCH_ROUNDS` makes it longer, `FUEL_PREFETCH_SEED` begins with
another seed.

"""
from __future__ import absolute_import, division, print_function

import gc
import os
import random
import signal
import sys
import threading
import time
import unittest
import weakref

import numpy
import six
from fuel.transformers import Mapping
from six.moves import range

from fuel_prefetch import BackgroundDataStream, PrefetchError
from fuel_prefetch.channel import Channel, Store
from tests import (
    DEADLINE, ConcurrentTestCase, Gated, IteratorStream, numbers, wait_until)
from tests.test_exit import ProcessTestCase

ROUNDS = int(os.environ.get('FUEL_PREFETCH_ROUNDS') or 5)
SEED = int(os.environ.get('FUEL_PREFETCH_SEED') or 1)

# Seconds in which a thread has to be gone that nobody wants any more.
GONE = 3.


def producers():
    """Return the threads of ours that are alive."""
    return [thread for thread in threading.enumerate()
            if thread.name.startswith('fuel_prefetch')]


def descriptors():
    """Return how many files this process has open, where that is known."""
    return len(os.listdir('/proc/self/fd')) if (
        os.path.isdir('/proc/self/fd')) else 0


def resident():
    """Return how much memory the process has, in bytes, where it's known."""
    try:
        with open('/proc/self/statm') as file_:
            return int(file_.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')
    except IOError:
        return 0


def objects():
    """Return how many objects of ours there are."""
    return sum(type(found) in (Channel, Store, BackgroundDataStream)
               for found in gc.get_objects())


class Numbers(object):
    """A mapping that makes arrays of numbers, and takes its time."""
    def __init__(self, seed, longest, size=10):
        self.rng = random.Random(seed)
        self.longest = longest
        self.size = size

    def __call__(self, example):
        if self.longest and self.rng.random() < .5:
            time.sleep(self.rng.random() * self.longest)
        return numpy.zeros(self.size) + example[0],


class EndingTestCase(ConcurrentTestCase):
    def setUp(self):
        super(EndingTestCase, self).setUp()
        # Of other tests, and of what they left to the collector.
        gc.collect()
        wait_until(lambda: not producers())

    def assert_gone(self):
        self.assertTrue(wait_until(lambda: not producers(), GONE),
                        'a producer is left: {}'.format(producers()))

    def random_stream(self, rng, count=10 ** 6):
        """Return a stream at any depth, up to three of them in a stack."""
        longest = rng.choice([0, 0, .001, .005])
        stream = Mapping(numbers(count), Numbers(rng.random(), longest))
        for _ in range(rng.choice([1, 1, 2, 3])):
            stream = BackgroundDataStream(
                Mapping(stream, tuple), max_store=rng.choice([1, 2, 10]),
                max_bytes=rng.choice([None, None, 300]),
                across_epochs=rng.random() < .3, copy=rng.random() < .2)
        return stream


class TestForgotten(EndingTestCase):
    def test_at_any_moment(self):
        """Dropped in an epoch: by itself, in a cycle, or after an error."""
        for number in range(SEED, SEED + 8 * ROUNDS):
            rng = random.Random(number)
            stream = self.random_stream(rng)
            iterator = stream.get_epoch_iterator()
            for _ in range(rng.choice([0, 1, 5])):
                next(iterator)
            time.sleep(rng.choice([0, .001, .01]) * rng.random())
            if rng.random() < .3:
                cycle = [stream, iterator]
                cycle.append(cycle)
                del cycle
            if rng.random() < .3:
                try:
                    raise RuntimeError('in the loop')
                except RuntimeError:
                    pass
            del stream, iterator
            gc.collect()
            if six.PY2:
                sys.exc_clear()
            self.assert_gone()

    def test_with_a_full_store(self):
        for depth in (1, 10):
            held = [BackgroundDataStream(numbers(100), max_store=depth)]
            held.append(held[0].get_epoch_iterator())
            self.assertTrue(wait_until(
                lambda: held[0].stats.batches_produced == depth + 1))
            reference = weakref.ref(held[0])
            del held[:]
            self.assert_gone()
            self.assertIs(reference(), None)

    def test_with_a_reader_that_waits(self):
        """A reader in another thread is the last who knows of it."""
        source = Gated(range(10))
        iterator = BackgroundDataStream(
            IteratorStream(lambda: source)).get_epoch_iterator()
        reader = self.start(next, iterator)
        source.wait_asked(1)
        time.sleep(.01)
        del iterator
        gc.collect()
        self.assertEqual(len(producers()), 1)
        source.permit()
        self.assertEqual(self.join(reader), 0)
        del reader
        source.permit(1)  # a read can't be broken off
        self.assert_gone()

    def test_a_thousand(self):
        """They leave no thread, no descriptor and no memory."""
        def leave(number):
            stream = BackgroundDataStream(
                Mapping(numbers(1000), Numbers(number, 0, 12500)),
                max_store=3, across_epochs=number % 2 == 1)
            iterator = stream.get_epoch_iterator()
            if number % 3:
                next(iterator)

        for number in range(100):  # what is allocated once for all
            leave(number)
        self.assert_gone()
        gc.collect()
        files, memory, held = descriptors(), resident(), objects()
        for number in range(1000):
            leave(number)
        self.assert_gone()
        gc.collect()
        self.assertLessEqual(descriptors(), files)
        # They held 300 MB or more in turns.
        self.assertLess(resident() - memory, 50e6)
        self.assertLessEqual(objects(), held)

    def test_nothing_holds_what_was_handed_out(self):
        """A batch dies with its last reader, whatever the producer does."""
        for depth in (1, 3):
            for count in (3, 1000):
                stream = BackgroundDataStream(
                    Mapping(numbers(count), Numbers(0, 0)), max_store=depth)
                iterator = stream.get_epoch_iterator()
                for _ in range(3):
                    batch, = next(iterator)
                    time.sleep(.001)
                    reference = weakref.ref(batch)
                    del batch
                    self.assertTrue(wait_until(lambda: reference() is None))
                stream.close()


class TestClosed(EndingTestCase):
    def test_at_any_moment(self):
        """Closed while several read: each batch to one, then an error."""
        for number in range(SEED, SEED + 8 * ROUNDS):
            rng = random.Random(number)
            stream = self.random_stream(rng, rng.choice([30, 10 ** 6]))
            iterator = stream.get_epoch_iterator()

            def read():
                taken = []
                try:
                    for value, in iterator:
                        taken.append(int(value[0]))
                except PrefetchError as error:
                    return taken, str(error)
                return taken, 'ended'
            readers = [self.start(read) for _ in range(rng.choice([1, 3]))]
            time.sleep(rng.choice([0, .001, .02]) * rng.random())
            closers = [self.start(stream.close)
                       for _ in range(rng.choice([1, 1, 2]))]
            for closer in closers:
                self.join(closer)
            results = [self.join(reader) for reader in readers]
            taken = [value for values, _ in results for value in values]
            self.assertEqual(sorted(taken), list(range(len(taken))))
            for values, ending in results:
                self.assertEqual(values, sorted(values))
                self.assertIn(ending, ('ended', 'the stream was closed'))
            self.assert_gone()

    def test_end_reaches_every_reader(self):
        for number in range(SEED, SEED + 4 * ROUNDS):
            rng = random.Random(number)
            stream = self.random_stream(rng, 20)
            iterator = stream.get_epoch_iterator()
            readers = [self.start(list, iterator) for _ in range(4)]
            taken = [int(value[0]) for reader in readers
                     for value, in self.join(reader)]
            self.assertEqual(sorted(taken), list(range(20)))
            stream.close()


@unittest.skipUnless(hasattr(signal, 'SIGINT') and hasattr(os, 'kill'),
                     'there are no signals')
class TestInterrupted(EndingTestCase):
    # Seconds from Ctrl-C to its error. It is a thousandth on 2.7, and no time
    # at all elsewhere, plus whatever a busy machine makes of it.
    SOON = 2.

    def test_no_batch_is_lost(self):
        """Ctrl-C while a batch is waited for, again and again."""
        for kwargs in {}, {'timeout': DEADLINE}, {'max_bytes': 1}:
            self.interrupt(**kwargs)

    def interrupt(self, **kwargs):
        rng = random.Random(SEED)
        source = Gated(range(40))
        stream = BackgroundDataStream(IteratorStream(lambda: source),
                                      max_store=1, **kwargs)
        iterator = stream.get_epoch_iterator()
        about_to_wait = threading.Event()
        done = []

        def press():
            while about_to_wait.wait(DEADLINE) and not done:
                about_to_wait.clear()
                time.sleep(rng.random() * .004)
                pressed.append(time.time())
                os.kill(os.getpid(), signal.SIGINT)

        pressed, taken, delays = [], [], []
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        presser = self.start(press)
        try:
            for number in range(40):
                for _ in range(2):
                    # No batch can come until this has been raised.
                    try:
                        about_to_wait.set()
                        next(iterator)
                        self.fail('it came unasked')
                    except KeyboardInterrupt:
                        delays.append(time.time() - pressed[-1])
                source.permit()
                taken.append(next(iterator))
        finally:
            signal.signal(signal.SIGINT, handler)
            done.append(True)
            about_to_wait.set()
            self.join(presser)
            source.permit(10)
            stream.close()
        self.assertEqual(taken, list(range(40)))
        self.assertLess(numpy.median(delays), self.SOON)


@unittest.skipUnless(hasattr(os, 'fork'), 'there is no fork')
class TestForked(EndingTestCase):
    def test_at_any_moment(self):
        """The child is told, and begins anew; the parent goes on."""
        for number in range(SEED, SEED + 2 * ROUNDS):
            rng = random.Random(number)
            stream = self.random_stream(rng, 500)
            iterator = stream.get_epoch_iterator()
            taken = rng.choice([0, 1, 5])
            for _ in range(taken):
                next(iterator)
            time.sleep(rng.choice([0, .001, .01]) * rng.random())

            def child():
                try:
                    next(iterator)
                except PrefetchError as error:
                    if 'fork' in str(error):
                        stream.close()
                        return 7
                return 2
            self.assertEqual(self.in_child(child), 7)
            self.assertEqual([int(value[0]) for value, in iterator],
                             list(range(taken, 500)))
            stream.close()


class TestExited(ProcessTestCase):
    def test_at_any_moment(self):
        """The process ends as it does bare: code, words and all."""
        for number in range(SEED, SEED + ROUNDS):
            rng = random.Random(number)
            depth = rng.choice([1, 3])
            ending, code = rng.choice([
                ('', 0), ('sys.exit(3)', 3),
                ('raise RuntimeError("in the loop")', 1)])
            reader = rng.choice(['', 'daemon', 'thread'])
            self.write_and_compare('''
                def read():
                    while True:
                        try:
                            next(iterator)
                        except StopIteration:
                            break

                def produce(example):
                    if rng.random() < .5:
                        time.sleep({longest} * rng.random())
                    return example

                import random
                rng = random.Random({number})
                stream = numbers(200)
                for _ in range({depth}):
                    stream = wrap(Mapping(stream, produce), max_store=2,
                                  across_epochs={across})
                iterator = stream.get_epoch_iterator()
                for _ in range({taken}):
                    print(next(iterator)[0])
                if {reader!r}:
                    thread = threading.Thread(target=read)
                    thread.daemon = {reader!r} == 'daemon'
                    thread.start()
                time.sleep({pause})
                leaving()
                {ending}
                '''.format(
                    number=number, longest=rng.choice([.0001, .01]),
                    depth=depth, across=rng.random() < .3,
                    taken=rng.choice([0, 1, 10]), reader=reader,
                    pause=rng.choice([0, .02]) * rng.random(),
                    ending=ending), code)

    def write_and_compare(self, script, code):
        self.assert_same(script, code)

    def test_reader_that_still_waits(self):
        """A thread that isn't a daemon keeps the process, bare or not.

        Here the main thread is through while the other one waits for its
        batches. It gets them, to the last.

        """
        self.assert_same('''
            def produce(example):
                time.sleep(.02)
                return example

            def read():
                print(sum(example[0] for example in iterator))

            iterator = wrap(Mapping(numbers(20), produce), max_store=2
                            ).get_epoch_iterator()
            threading.Thread(target=read).start()
            leaving()
            sys.exit(3)
            ''', 3)

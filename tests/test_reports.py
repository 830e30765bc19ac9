"""What people reported of the prefetching layers before this one.

Each test's docstring says which report it stands for, and where that was
made. The layers were others; what went wrong in them must not in this one.

"""
from __future__ import absolute_import, division, print_function

import contextlib
import decimal
import functools
import gc
import os
import pickle
import random
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
import traceback
import weakref

import h5py
import numpy
import six
from numpy.testing import assert_array_equal
from six.moves import range

from fuel_prefetch import BackgroundDataStream, PrefetchError
from fuel.datasets import (
    Dataset, H5PYDataset, IndexableDataset, IterableDataset)
from fuel.schemes import (
    ConstantScheme, SequentialExampleScheme, SequentialScheme, ShuffledScheme)
from fuel.streams import AbstractDataStream, DataStream
from fuel.transformers import Batch, Filter, Mapping, Rename

from fuel_prefetch.waiting import monotonic
from tests import (
    DEADLINE, ConcurrentTestCase, Gated, IteratorStream, Raise, numbers,
    wait_until)

try:
    import contextvars
except ImportError:  # before 3.7
    contextvars = None

# Seconds that HDF5 is read for while garbage is collected on another thread.
# A deadlock there is rare; for a serious look set a minute.
HDF5_SECONDS = float(os.environ.get('FUEL_PREFETCH_HDF5_SECONDS', 3))


def producers():
    """Return the threads of ours that are alive."""
    return [thread for thread in threading.enumerate()
            if thread.name.startswith('fuel_prefetch') and
            thread not in ReportTestCase.foreign]


def descriptors():
    """Return how many files and sockets this process has open."""
    for folder in '/proc/self/fd', '/dev/fd':
        if os.path.isdir(folder):
            return len(os.listdir(folder))
    return 0


def batches(count=10, size=2):
    """Return a stream of `count` batches of `size` rising numbers."""
    return DataStream(
        IndexableDataset(numpy.arange(count * size)),
        iteration_scheme=SequentialScheme(count * size, size))


def evens():
    """Return a stream of the examples 0, 2, 4, 6 and 8."""
    return DataStream(IndexableDataset([0, 2, 4, 6, 8]),
                      iteration_scheme=SequentialExampleScheme(5))


def read(iterator):
    """Return what is left of an epoch with one source, as a list."""
    return [value.tolist() if isinstance(value, numpy.ndarray) else value
            for value, in iterator]


def outcome(function, *args):
    """Return what a call gave or raised, fit to be compared."""
    try:
        return 'gave', function(*args)
    except Exception as error:
        return 'raised', type(error), error.args


def fail_at(number, error):
    """Return a mapping that raises `error` at the example `number`."""
    def mapping(example):
        if example[0] == number:
            raise error
        return example
    return mapping


class Counted(IterableDataset):
    """A dataset that counts how often it was opened and read."""
    opened = reads = 0

    def open(self):
        self.opened += 1
        return super(Counted, self).open()

    def get_data(self, state=None, request=None):
        self.reads += 1
        return super(Counted, self).get_data(state, request)


class Blocking(Dataset):
    """A dataset that gives one example, and blocks at the second.

    Parameters
    ----------
    seconds : float, optional
        How long. By default until it is closed.

    """
    provides_sources = ('data',)
    example_iteration_scheme = None

    def __init__(self, seconds=None):
        super(Blocking, self).__init__()
        self.seconds = seconds
        self.read = False
        self.reached = threading.Event()
        self.freed = threading.Event()
        self.closed = False

    def get_data(self, state=None, request=None):
        if not self.read:
            self.read = True
            return 0,
        self.reached.set()
        if self.seconds is None:
            self.freed.wait()
            raise IOError('closed while it was read')
        time.sleep(self.seconds)
        return 1,

    def close(self, state):
        self.closed = True
        self.freed.set()


class ReportTestCase(ConcurrentTestCase):
    """A scenario that leaves neither thread nor descriptor, under a watchdog.

    Where a scenario has a limit of its own it asks :meth:`within`.

    """
    watchdog = DEADLINE
    foreign = ()  # what a test that failed has left over is not the next's

    def setUp(self):
        ReportTestCase.foreign = threading.enumerate()
        super(ReportTestCase, self).setUp()
        before = descriptors()

        def check():
            gc.collect()
            self.assertTrue(wait_until(lambda: descriptors() <= before),
                            'descriptors were left open')
        self.addCleanup(check)

    def run(self, result=None):
        # unittest looks the method up before it calls `setUp`.
        scenario = getattr(self, self._testMethodName)

        @functools.wraps(scenario)
        def watched():
            self.within(self.watchdog, scenario)
        setattr(self, self._testMethodName, watched)
        try:
            return super(ReportTestCase, self).run(result)
        finally:
            delattr(self, self._testMethodName)

    def assert_no_producer(self, seconds=DEADLINE):
        gc.collect()
        self.assertTrue(wait_until(lambda: not producers(), seconds),
                        '{} are left'.format(producers()))

    def assert_ends(self, iterator):
        """Fail unless `iterator` is at its end, and says so at once."""
        with self.assertRaises(StopIteration):
            self.within(1, next, iterator)


class TestEpochs(ReportTestCase):
    def test_second_epoch_ends_the_first(self):
        """R01: epoch iterators don't share what they read from.

        https://github.com/mila-iqia/fuel/issues/106
        https://github.com/mila-iqia/fuel/pull/288

        """
        whole = read(batches().get_epoch_iterator())
        for across_epochs in False, True:
            alive = []

            def note(batch):
                alive.append(len(producers()))
                return batch

            stream = BackgroundDataStream(Mapping(batches(), note),
                                          max_store=2,
                                          across_epochs=across_epochs)
            first = stream.get_epoch_iterator()
            self.assertEqual(next(first)[0].tolist(), whole[0])
            second = stream.get_epoch_iterator()
            self.assertEqual(read(second), whole)
            self.assert_ends(first)
            self.assert_ends(second)
            stream.close()
            self.assertEqual(set(alive), {1})

    def test_superseded_iterator_takes_nothing_from_its_successor(self):
        """R01: nor does asking the first one in between cost a batch.

        https://github.com/mila-iqia/fuel/issues/106

        """
        whole = read(batches().get_epoch_iterator())
        for max_store in 1, 3, None:
            stream = BackgroundDataStream(batches(), max_store=max_store)
            first = stream.get_epoch_iterator()
            next(first)
            second = stream.get_epoch_iterator()
            seen = []
            for value, in second:
                seen.append(value.tolist())
                self.assert_ends(first)
            self.assertEqual(seen, whole)

    def test_second_epoch_frees_who_waits_for_the_first(self):
        """R01: also while the first is waiting for its next batch.

        https://github.com/mila-iqia/fuel/issues/106

        """
        gated = [Gated('ab'), Gated('cd')]
        iterators = iter(gated)
        wrapped = IteratorStream(lambda: next(iterators))
        stream = BackgroundDataStream(wrapped)
        waiting = self.start(next, stream.get_epoch_iterator())
        gated[0].wait_asked(1)
        asking = self.start(stream.get_epoch_iterator)
        with self.assertRaises(StopIteration):
            self.join(waiting)
        # The next producer waits for the read that is under way.
        self.assertFalse(wait_until(lambda: len(producers()) > 1, .1))
        self.assertEqual(wrapped.calls, ['get_epoch_iterator', 'get_data'])
        gated[0].permit()
        gated[1].permit(3)
        self.assertEqual(list(self.join(asking)), ['c', 'd'])

    def test_left_epoch_does_not_leak_into_the_next(self):
        """R02: what was read ahead of an epoch left early is dropped.

        https://github.com/mila-iqia/fuel/pull/33

        """
        choice = random.Random(2)
        for across_epochs in False, True:
            stream = BackgroundDataStream(evens(), max_store=3,
                                          across_epochs=across_epochs)
            for cut in [1] + [choice.randrange(6) for _ in range(20)]:
                iterator = stream.get_epoch_iterator()
                seen = [next(iterator)[0] for _ in range(cut)]
                self.assertEqual(seen, [0, 2, 4, 6, 8][:cut])
                if choice.random() < .5 and cut < 5:
                    # Something is there that could leak.
                    self.assertTrue(
                        wait_until(lambda: stream.stats.batches_held))
                del iterator
                self.assertEqual(read(stream.get_epoch_iterator()),
                                 [0, 2, 4, 6, 8])
            stream.close()

    def test_left_epochs_do_not_add_up(self):
        """R02: nor after many of them, one after the other.

        https://github.com/mila-iqia/fuel/pull/33

        """
        choice = random.Random(3)
        for across_epochs in False, True:
            stream = BackgroundDataStream(evens(), max_store=3,
                                          across_epochs=across_epochs)
            for _ in range(20):
                iterator = stream.get_epoch_iterator()
                for expected in [0, 2, 4, 6, 8][:choice.randrange(6)]:
                    self.assertEqual(next(iterator), (expected,))
            self.assertEqual(read(stream.get_epoch_iterator()),
                             [0, 2, 4, 6, 8])
            stream.close()

    def test_ended_epoch_stays_ended(self):
        """R04: the end is said again, and costs no read.

        https://github.com/mila-iqia/blocks/pull/157
        https://github.com/pescadores/pescador/issues/31

        """
        dataset = Counted(range(5))
        stream = BackgroundDataStream(DataStream(dataset))
        for epoch in 1, 2:
            iterator = stream.get_epoch_iterator()
            self.assertEqual(read(iterator), [0, 1, 2, 3, 4])
            for _ in range(3):
                self.assert_ends(iterator)
            self.assertEqual(dataset.reads, epoch * 6)

    def test_ended_epoch_stays_ended_with_the_next_one_ready(self):
        """R04: also if the next epoch's first batch is at hand.

        https://github.com/mila-iqia/blocks/pull/157

        """
        stream = BackgroundDataStream(numbers(5), across_epochs=True)
        for _ in range(3):
            iterator = stream.get_epoch_iterator()
            self.assertEqual(read(iterator), [0, 1, 2, 3, 4])
            self.assertTrue(
                wait_until(lambda: stream.stats.batches_held == 5))
            for _ in range(3):
                self.assert_ends(iterator)
        stream.close()

    def test_change_between_epochs_counts_from_the_next(self):
        """R05: nothing of an epoch is read before it is asked for.

        https://github.com/apache/mxnet/pull/19738

        """
        dataset = IndexableDataset(numpy.arange(6))
        wrapped = DataStream(dataset, iteration_scheme=SequentialScheme(6, 2))
        stream = BackgroundDataStream(wrapped)
        self.assertEqual(read(stream.get_epoch_iterator()),
                         [[0, 1], [2, 3], [4, 5]])
        time.sleep(.5)  # in which an eager producer would read on
        wrapped.iteration_scheme = SequentialScheme(6, 3)
        self.assertEqual(read(stream.get_epoch_iterator()),
                         [[0, 1, 2], [3, 4, 5]])
        time.sleep(.5)
        dataset.indexables = [numpy.arange(10, 16)]
        self.assertEqual(read(stream.get_epoch_iterator()),
                         [[10, 11, 12], [13, 14, 15]])

    def test_change_across_epochs_counts_after_reset(self):
        """R05: reading across epochs, the change and then `reset` do it.

        https://github.com/apache/mxnet/pull/19738

        """
        dataset = IndexableDataset(numpy.arange(6))
        wrapped = DataStream(dataset, iteration_scheme=SequentialScheme(6, 2))
        stream = BackgroundDataStream(wrapped, across_epochs=True)
        self.assertEqual(read(stream.get_epoch_iterator()),
                         [[0, 1], [2, 3], [4, 5]])
        self.assertTrue(wait_until(lambda: stream.stats.batches_held == 3))
        wrapped.iteration_scheme = SequentialScheme(6, 3)
        dataset.indexables = [numpy.arange(10, 16)]
        stream.reset()
        self.assertEqual(read(stream.get_epoch_iterator()),
                         [[10, 11, 12], [13, 14, 15]])
        stream.close()

    def test_change_across_epochs_without_reset_is_one_epoch_late(self):
        """R05: without `reset` it comes late, as the docs say, and whole.

        https://github.com/apache/mxnet/pull/19738

        """
        wrapped = batches(3)
        stream = BackgroundDataStream(wrapped, max_store=1,
                                      across_epochs=True)
        old = [[0, 1], [2, 3], [4, 5]]
        self.assertEqual(read(stream.get_epoch_iterator()), old)
        self.assertTrue(wait_until(lambda: stream.stats.batches_held))
        wrapped.iteration_scheme = SequentialScheme(6, 3)
        self.assertEqual(read(stream.get_epoch_iterator()), old)
        self.assertEqual(read(stream.get_epoch_iterator()),
                         [[0, 1, 2], [3, 4, 5]])
        stream.close()

    def test_empty_epoch_ends_at_once(self):
        """R07: an epoch without a batch is seen as one.

        https://github.com/mila-iqia/blocks/issues/201
        https://github.com/mila-iqia/blocks/pull/215

        """
        for across_epochs in False, True:
            for wrapped in (
                    numbers(0),
                    Batch(numbers(0), iteration_scheme=ConstantScheme(3)),
                    Filter(numbers(5), lambda example: False)):
                stream = BackgroundDataStream(wrapped,
                                              across_epochs=across_epochs)
                for _ in range(3):
                    self.assert_ends(
                        self.within(1, stream.get_epoch_iterator))
                stream.close()

    def test_empty_second_epoch_is_followed_by_the_third(self):
        """R07: so it is when it comes between two others.

        https://github.com/mila-iqia/blocks/issues/201

        """
        for across_epochs in False, True:
            dataset = IndexableDataset(list(range(4)))
            schemes = iter([4, 0, 4])
            wrapped = DataStream(
                dataset, iteration_scheme=SequentialExampleScheme(4))
            scheme = wrapped.iteration_scheme
            scheme.get_request_iterator = (
                lambda: iter(range(next(schemes, 4))))
            stream = BackgroundDataStream(wrapped,
                                          across_epochs=across_epochs)
            self.assertEqual(read(stream.get_epoch_iterator()), [0, 1, 2, 3])
            self.assert_ends(self.within(1, stream.get_epoch_iterator))
            self.assertEqual(read(stream.get_epoch_iterator()), [0, 1, 2, 3])
            stream.close()

    def test_constructor_starts_nothing(self):
        """R08: a stream that is built but never read has done nothing.

        https://github.com/meta-pytorch/data/pull/1492
        https://github.com/mila-iqia/fuel/pull/386

        """
        threads, files = set(threading.enumerate()), descriptors()
        dataset = Counted(range(10))
        inner = DataStream(dataset)
        streams = [BackgroundDataStream(inner),
                   BackgroundDataStream(inner, across_epochs=True)]
        streams.append(BackgroundDataStream(streams[1]))
        time.sleep(.5)  # in which it could start
        self.assertEqual(set(threading.enumerate()), threads)
        self.assertEqual(descriptors(), files)
        # Fuel's own `DataStream` opens its dataset in its constructor.
        self.assertEqual((dataset.opened, dataset.reads), (1, 0))
        for stream in streams:
            again = pickle.loads(pickle.dumps(stream))
            self.assertEqual(read(again.get_epoch_iterator()),
                             list(range(10)))
            again.close()


class TestErrors(ReportTestCase):
    def test_error_follows_what_preceded_it(self):
        """R10: the reader gets the error, and does not wait for ever.

        https://github.com/RadarML/red-rover/issues/23
        https://github.com/meta-pytorch/data/pull/1003
        https://github.com/keras-team/keras/issues/1533

        """
        def broken():
            for number in range(10):
                if number == 3:
                    raise KeyError('no number', 3)
                yield number,

        for max_store in 1, 8:
            for rest, wrapped in [
                    # A generator is dead after its error, a mapping is not.
                    ([], IteratorStream(broken)),
                    ([4, 5, 6, 7, 8, 9],
                     Mapping(numbers(10),
                             fail_at(3, KeyError('no number', 3))))]:
                stream = BackgroundDataStream(wrapped, max_store=max_store)
                iterator = stream.get_epoch_iterator()
                self.assertEqual([next(iterator) for _ in range(3)],
                                 [(0,), (1,), (2,)])
                with self.assertRaises(KeyError) as caught:
                    self.within(2, next, iterator)
                self.assertIs(type(caught.exception), KeyError)
                self.assertEqual(caught.exception.args, ('no number', 3))
                self.assertEqual(read(iterator), rest)
                self.assertEqual(producers(), [])

    def test_error_in_a_stream_that_is_closed_leaves_no_producer(self):
        """R10: nor is there a producer after `close`, whatever was read.

        https://github.com/meta-pytorch/data/pull/1003

        """
        for max_store in 1, 8:
            for taken in range(4):
                stream = BackgroundDataStream(
                    Mapping(numbers(10), fail_at(3, KeyError('three'))),
                    max_store=max_store)
                iterator = stream.get_epoch_iterator()
                for _ in range(taken):
                    next(iterator)
                if taken == 3:
                    self.assertRaises(KeyError, next, iterator)
                stream.close()
                self.assertEqual(producers(), [])

    def test_error_at_an_epochs_start_is_raised_there(self):
        """R10: nor is an error lost that comes before the first batch.

        https://github.com/keras-team/keras/issues/1533

        """
        answers = iter([Raise(KeyError('not yet')), [(1,), (2,)]])

        def make_iterator():
            answer = next(answers)
            if isinstance(answer, Raise):
                raise answer.error
            return iter(answer)

        stream = BackgroundDataStream(IteratorStream(make_iterator))
        with self.assertRaises(KeyError) as caught:
            self.within(2, stream.get_epoch_iterator)
        self.assertEqual(caught.exception.args, ('not yet',))
        self.assertEqual(producers(), [])
        self.assertEqual(read(stream.get_epoch_iterator()), [1, 2])

    def test_error_shows_where_it_happened(self):
        """R12: the traceback has the frames of the producer.

        https://github.com/uber/petastorm/issues/268

        """
        def outer_helper(example):
            return inner_helper(example[0])

        def inner_helper(number):
            return 1 // (number - 1),

        stream = BackgroundDataStream(Mapping(numbers(3), outer_helper))
        iterator = stream.get_epoch_iterator()
        self.assertEqual(next(iterator), (-1,))
        try:
            next(iterator)
        except ZeroDivisionError:
            text = traceback.format_exc()
            frames = traceback.extract_tb(sys.exc_info()[2])
        names = [frame[2] for frame in frames]
        self.assertEqual(names[-2:], ['outer_helper', 'inner_helper'])
        self.assertEqual(frames[-1][1],
                         inner_helper.__code__.co_firstlineno + 1)
        self.assertIn('return 1 // (number - 1),', text)
        # The reader's own frame is there too, and no second error.
        self.assertEqual(names[0], self._testMethodName)
        self.assertEqual(text.count('Traceback'), 1)
        stream.close()

    def test_error_at_an_epochs_start_shows_where_it_happened(self):
        """R12: so has that of an epoch that could not begin.

        https://github.com/uber/petastorm/issues/268

        """
        def opening_helper():
            return 1 // 0

        stream = BackgroundDataStream(IteratorStream(opening_helper))
        try:
            stream.get_epoch_iterator()
        except ZeroDivisionError:
            frames = traceback.extract_tb(sys.exc_info()[2])
        self.assertEqual(frames[-1][2], 'opening_helper')
        self.assertEqual(frames[-1][1],
                         opening_helper.__code__.co_firstlineno + 1)

    def test_stream_goes_on_after_an_error_as_it_would_have(self):
        """R16: an error leaves no doubt about what comes after it.

        https://github.com/huggingface/datasets/issues/7612

        """
        def fail_once(kind):
            failed = []

            def check(number):
                if number == 3 and not failed:
                    failed.append(True)
                    raise ValueError('the third')
                return number

            def generator():
                for number in range(6):
                    yield check(number),

            if kind == 'generator':
                return IteratorStream(generator)
            return Mapping(numbers(6), lambda example: (check(example[0]),))

        for kind in 'generator', 'mapping':
            for max_store in 1, 8:
                before = threading.active_count()
                bare = fail_once(kind)
                stream = BackgroundDataStream(fail_once(kind),
                                              max_store=max_store)
                expected, iterator = (bare.get_epoch_iterator(),
                                      stream.get_epoch_iterator())
                results = [(outcome(next, expected),
                            self.within(1, outcome, next, iterator))
                           for _ in range(6)]
                for result in results:
                    self.assertEqual(*result)
                self.assertEqual(results[3][1],
                                 ('raised', ValueError, ('the third',)))
                for _ in range(2):
                    self.assertEqual(read(stream.get_epoch_iterator()),
                                     list(range(6)))
                stream.close()
                self.assertEqual(threading.active_count(), before)

    def test_epoch_left_at_its_error_is_followed_by_a_whole_one(self):
        """R16: also if the epoch is left right after the error.

        https://github.com/huggingface/datasets/issues/7612

        """
        for across_epochs in False, True:
            gated = Gated([(0,), Raise(ValueError('one')), (2,)])
            iterators = iter([gated, iter([(0,), (1,), (2,)])])
            wrapped = IteratorStream(lambda: next(iterators))
            stream = BackgroundDataStream(wrapped,
                                          across_epochs=across_epochs)
            gated.permit(3)
            iterator = stream.get_epoch_iterator()
            self.assertEqual(next(iterator), (0,))
            self.assertRaises(ValueError, next, iterator)
            # Nothing was read past the error, as nobody asked.
            self.assertEqual(gated.asked, 2)
            self.assertEqual(read(stream.get_epoch_iterator()), [0, 1, 2])
            self.assertEqual(gated.asked, 2)
            stream.close()


class Incomparable(object):
    """An object that no program should compare."""
    def __eq__(self, other):
        raise AssertionError('it was compared')

    __ne__ = __eq__
    __hash__ = object.__hash__


class TestValues(ReportTestCase):
    def test_any_object_is_an_item(self):
        """R19: no item is taken for an end or for an error.

        https://github.com/pytorch/audio/pull/323

        """
        items = [1, None, StopIteration, StopIteration(), Ellipsis,
                 ValueError('as data'), numpy.arange(3), Incomparable(), (),
                 GeneratorExit, None]
        wrapped = Mapping(numbers(len(items)),
                          lambda example: items[example[0]])
        for parameters in [{'max_store': 1}, {'max_store': 8},
                           {'max_bytes': 1}, {'across_epochs': True}]:
            stream = BackgroundDataStream(wrapped, **parameters)
            for _ in range(2):
                seen = list(stream.get_epoch_iterator())
                self.assertEqual([id(item) for item in seen],
                                 [id(item) for item in items])
            stream.close()
        # A copy is made of arrays alone.
        seen = list(BackgroundDataStream(
            wrapped, copy=True).get_epoch_iterator())
        self.assertEqual(len(seen), len(items))
        for item, expected in zip(seen, items):
            if isinstance(expected, numpy.ndarray):
                assert_array_equal(item, expected)
            else:
                self.assertIs(item, expected)

    def test_any_object_is_an_example(self):
        """R19: the same where it stands in an example, as Fuel has it.

        https://github.com/pytorch/audio/pull/323

        """
        items = [1, None, StopIteration, StopIteration(), Ellipsis,
                 KeyError('as data'), numpy.arange(3), Incomparable()]
        for parameters in [{}, {'copy': True}, {'max_bytes': 100}]:
            stream = BackgroundDataStream(
                DataStream(IterableDataset(items)), **parameters)
            seen = list(stream.get_epoch_iterator())
            self.assertEqual(len(seen), len(items))
            for (item,), expected in zip(seen, items):
                if isinstance(expected, numpy.ndarray):
                    assert_array_equal(item, expected)
                else:
                    self.assertIs(item, expected)

    def test_depth_that_is_none_is_refused(self):
        """R21: a depth is a positive integer, or says 'no bound'.

        https://github.com/tensorflow/tensorflow/pull/14447

        """
        for depth in 0, -2, 1.5, 3., '3', True, False, (), float('inf'):
            with six.assertRaisesRegex(self, ValueError, 'max_store') as (
                    caught):
                BackgroundDataStream(numbers(5), max_store=depth)
            self.assertIn(repr(depth), str(caught.exception))
        for depth in 0, -1, 1.5, '3', True:
            with six.assertRaisesRegex(self, ValueError, 'max_bytes') as (
                    caught):
                BackgroundDataStream(numbers(5), max_bytes=depth)
            self.assertIn(repr(depth), str(caught.exception))

    def test_depth_is_kept_to(self):
        """R21: and each depth that is taken means what it says.

        https://github.com/tensorflow/tensorflow/pull/14447

        """
        for depth, produced in [(1, 2), (3, 4), (numpy.int64(3), 4),
                                (-1, 5), (None, 5)]:
            dataset = Counted(range(5))
            stream = BackgroundDataStream(DataStream(dataset),
                                          max_store=depth)
            iterator = stream.get_epoch_iterator()
            # It reads as far as it may, with one more in its hands.
            self.assertTrue(wait_until(
                lambda: stream.stats.batches_produced == produced))
            if produced < 5:
                self.assertEqual(stream.stats.batches_held, produced - 1)
                self.assertEqual(dataset.reads, produced)
            self.assertEqual(read(iterator), [0, 1, 2, 3, 4])

    def test_wrapper_says_what_the_wrapped_stream_says(self):
        """R24: what is asked of a stream, is answered as before.

        https://github.com/lightly-ai/lightly/pull/758
        https://github.com/pytorch/xla/issues/1990

        """
        dataset = IndexableDataset(
            {'features': numpy.zeros((6, 2, 3)), 'targets': numpy.arange(6)},
            axis_labels={'features': ('batch', 'height', 'width'),
                         'targets': ('batch',)})
        examples = DataStream(
            dataset, iteration_scheme=SequentialExampleScheme(6))
        names = ('sources', 'axis_labels', 'produces_examples',
                 'iteration_scheme')
        for wrapped in (
                DataStream(dataset, iteration_scheme=ShuffledScheme(6, 4)),
                examples,
                Batch(examples, iteration_scheme=ConstantScheme(4)),
                Rename(examples, {'targets': 'labels'})):
            stream = BackgroundDataStream(BackgroundDataStream(wrapped))
            for name in names:
                self.assertEqual(getattr(stream, name),
                                 getattr(wrapped, name), name)
        # This is how a progress bar learns the length of an epoch.
        scheme = SequentialScheme(6, 4)
        scheme.num_batches = 2
        stream = BackgroundDataStream(
            DataStream(dataset, iteration_scheme=scheme))
        self.assertEqual(stream.iteration_scheme.num_batches, 2)

    def test_wrapper_says_what_has_changed(self):
        """R24: also what was changed after wrapping.

        https://github.com/pytorch/xla/issues/1990

        """
        wrapped = batches(3)
        stream = BackgroundDataStream(wrapped)
        wrapped.sources = ('renamed',)
        wrapped.axis_labels = {'renamed': ('batch',)}
        wrapped.iteration_scheme = SequentialExampleScheme(6)
        self.assertEqual(stream.sources, ('renamed',))
        self.assertEqual(stream.axis_labels, {'renamed': ('batch',)})
        self.assertIs(stream.iteration_scheme, wrapped.iteration_scheme)
        self.assertTrue(stream.produces_examples)

    def test_dictionaries_have_the_names_of_the_wrapper(self):
        """R24: and what it calls its sources are the keys.

        https://github.com/lightly-ai/lightly/pull/758

        """
        stream = BackgroundDataStream(numbers(2))
        stream.sources = ('number',)
        self.assertEqual(list(stream.get_epoch_iterator(as_dict=True)),
                         [{'number': 0}, {'number': 1}])
        renamed = Rename(BackgroundDataStream(numbers(2)), {'data': 'number'})
        self.assertEqual(list(renamed.get_epoch_iterator(as_dict=True)),
                         [{'number': 0}, {'number': 1}])
        # The wrapped stream's own are as they were.
        self.assertEqual(stream.data_stream.sources, ('data',))


class TestThreads(ReportTestCase):
    def test_producer_has_the_readers_settings(self):
        """R27: settings kept by thread or context hold for the producer.

        https://github.com/marin-community/marin/pull/6317

        """
        variable = contextvars and contextvars.ContextVar('variable')

        def settings():
            return (decimal.getcontext().prec, numpy.geterr()['over'],
                    variable and variable.get('not set'))

        def set_all(precision, errors, value):
            decimal.getcontext().prec = precision
            numpy.seterr(over=errors)
            if variable:
                variable.set(value)
            return settings()

        def make_iterator():
            opened = settings()
            return ((opened, settings(), next(gated)) for _ in range(4))

        # The scenario has a thread of its own, so these end with it.
        stream = BackgroundDataStream(IteratorStream(make_iterator))
        for arguments in [(7, 'ignore', 'first'), (9, 'raise', 'second')]:
            gated = Gated(range(4))
            in_force = set_all(*arguments)
            iterator = stream.get_epoch_iterator()
            gated.wait_asked(1)
            set_all(3, 'print', 'later')
            gated.permit(4)
            self.assertEqual(
                list(iterator),
                [(in_force, in_force, number) for number in range(4)])
            self.assertEqual(settings()[:2], (3, 'print'))

    def test_source_that_is_bound_to_its_thread(self):
        """R33: one thread opens, reads and closes what an epoch needs.

        https://github.com/meta-pytorch/data/issues/1470

        """
        rows = Rows()
        stream = BackgroundDataStream(
            Mapping(rows, lambda example: (10 * example[0],)), max_store=1)
        for _ in range(3):
            self.assertEqual(read(stream.get_epoch_iterator()),
                             [0, 10, 20, 30, 40])
        self.assertEqual(len(rows.opened), 3)
        self.assertEqual(rows.closed, rows.opened)
        self.assertNotIn(threading.current_thread(), rows.opened)

    def test_epoch_that_is_left_is_closed_on_its_thread(self):
        """R33: so it is if the epoch is left, by whatever way.

        https://github.com/meta-pytorch/data/issues/1470

        """
        for across_epochs in False, True:
            rows = Rows()
            stream = BackgroundDataStream(rows, max_store=1,
                                          across_epochs=across_epochs)
            iterator = stream.get_epoch_iterator()
            self.assertEqual(next(iterator), (0,))
            iterator = stream.get_epoch_iterator()
            self.assertEqual(next(iterator), (0,))
            stream.close()
            self.assertEqual(len(rows.opened), 2)
            self.assertEqual(rows.closed, rows.opened)
            iterator = stream.get_epoch_iterator()
            self.assertEqual(next(iterator), (0,))
            del stream, iterator
            self.assert_no_producer()
            self.assertEqual(rows.closed, rows.opened)

    def test_source_that_is_bound_to_another_thread(self):
        """R33: a cursor of the caller's own is refused, as sqlite does.

        https://github.com/meta-pytorch/data/issues/1470

        """
        with contextlib.closing(make_rows()) as connection:
            cursor = connection.execute('select number from numbers')
            stream = BackgroundDataStream(
                Mapping(IteratorStream(lambda: cursor),
                        lambda example: example))
            iterator = stream.get_epoch_iterator()
            with six.assertRaisesRegex(self, sqlite3.ProgrammingError,
                                       'thread'):
                self.within(2, next, iterator)
            stream.close()


def make_rows():
    connection = sqlite3.connect(':memory:')
    connection.execute('create table numbers (number integer)')
    connection.executemany('insert into numbers values (?)',
                           [(number,) for number in range(5)])
    return connection


class Rows(AbstractDataStream):
    """A stream of the rows of a database, opened for each epoch.

    sqlite refuses to use, and even to close, a connection in another thread
    than the one that made it. Here it would say so to the one who reads.

    """
    sources = ('number',)
    produces_examples = True

    def __init__(self):
        super(Rows, self).__init__()
        self.opened = []
        self.closed = []

    def get_epoch_iterator(self, as_dict=False):
        return self._read()

    def _read(self):
        connection = make_rows()
        self.opened.append(threading.current_thread())
        try:
            for row in connection.execute('select number from numbers'):
                yield row
        finally:
            self.closed.append(threading.current_thread())
            connection.close()

    def get_data(self, request=None):
        raise NotImplementedError

    def reset(self):
        pass

    def next_epoch(self):
        pass

    def close(self):
        pass


class TestEndings(ReportTestCase):
    watchdog = 20

    def test_iterator_keeps_its_stream_alive(self):
        """R35: an iterator is all that one needs to hold.

        https://github.com/apache/mxnet/pull/15195

        """
        for across_epochs in False, True:
            for taken in 10, 5:
                iterator = BackgroundDataStream(
                    Mapping(batches(), lambda batch: batch), max_store=2,
                    across_epochs=across_epochs).get_epoch_iterator()
                seen = [next(iterator)[0].tolist()]
                gc.collect()
                while len(seen) < taken:
                    seen.append(next(iterator)[0].tolist())
                self.assertEqual(
                    seen, read(batches().get_epoch_iterator())[:taken])
                if taken == 10:
                    self.assert_ends(iterator)
                del iterator
                self.assert_no_producer(3)

    def test_iterator_that_is_left_leaves_no_thread(self):
        """R36: however a loop is left, its thread goes with it.

        https://github.com/allenai/OLMo-core/issues/703
        https://github.com/allenai/OLMo-core/pull/721

        """
        def take_one(stream):
            iterator = stream.get_epoch_iterator()
            self.assertEqual(next(iterator), (0,))

        def break_off(stream):
            for example in stream.get_epoch_iterator():
                self.assertEqual(example, (0,))
                break

        def raise_inside(stream):
            try:
                for example in stream.get_epoch_iterator():
                    raise RuntimeError('in the loop')
            except RuntimeError:
                pass

        before = threading.active_count()
        for across_epochs in False, True:
            for leave in take_one, break_off, raise_inside:
                for _ in range(20):
                    leave(BackgroundDataStream(
                        numbers(1000), max_store=2,
                        across_epochs=across_epochs))
                if six.PY2:
                    sys.exc_clear()  # it would keep the last loop's frame
                gc.collect()
                self.assertTrue(wait_until(
                    lambda: threading.active_count() <= before, 2))

    def test_stream_that_is_left_is_freed(self):
        """R36: and with the thread goes what it has read.

        https://github.com/allenai/OLMo-core/issues/703

        """
        def track(example):
            array = numpy.zeros(1000)
            references.append(weakref.ref(array))
            return array,

        references = []
        stream = BackgroundDataStream(Mapping(numbers(1000), track),
                                      max_store=5)
        for _ in stream.get_epoch_iterator():
            break
        holder = [stream]
        del stream, _
        self.assertTrue(
            wait_until(lambda: holder[0].stats.batches_held == 5))
        holder.pop()
        self.assert_no_producer()
        self.assertEqual(
            [reference for reference in references
             if reference() is not None], [])

    def test_one_stream_left_many_times_keeps_one_thread(self):
        """R36: a stream whose epochs are all left early has one thread.

        https://github.com/allenai/OLMo-core/issues/703

        """
        stream = BackgroundDataStream(numbers(1000), max_store=2)
        iterators = []  # which are still held, all of them
        for _ in range(20):
            iterators.append(stream.get_epoch_iterator())
            self.assertEqual(next(iterators[-1]), (0,))
            self.assertLessEqual(len(producers()), 1)
        del stream, iterators
        self.assert_no_producer()

    def test_close_frees_a_read_that_only_closing_frees(self):
        """R38: the source is told to stop, rather than waited for.

        https://github.com/google/grain/issues/1372
        https://github.com/google/grain/pull/1373

        """
        dataset = Blocking()
        self.addCleanup(dataset.freed.set)
        stream = BackgroundDataStream(
            Batch(DataStream(dataset), iteration_scheme=ConstantScheme(1)))
        iterator = stream.get_epoch_iterator()
        self.assertEqual(next(iterator)[0].tolist(), [0])
        dataset.reached.wait()
        waiting = self.start(next, iterator)
        # The default leaves half a second of the 5 that it may take.
        self.within(5, stream.close, 3)
        self.assertTrue(dataset.closed)
        self.assertEqual(producers(), [])
        with six.assertRaisesRegex(self, PrefetchError, 'closed'):
            self.join(waiting)
        self.within(1, stream.close)
        for _ in range(2):
            with six.assertRaisesRegex(self, PrefetchError, 'closed'):
                self.within(1, next, iterator)

    def test_close_waits_for_a_slow_read(self):
        """R38: and a read that takes its time is waited for.

        https://github.com/google/grain/issues/1372

        """
        dataset = Blocking(seconds=3)
        stream = BackgroundDataStream(DataStream(dataset))
        iterator = stream.get_epoch_iterator()
        self.assertEqual(next(iterator), (0,))
        dataset.reached.wait()
        self.within(5, stream.close)
        self.assertTrue(dataset.closed)
        self.assertEqual(producers(), [])
        self.within(1, stream.close)
        with six.assertRaisesRegex(self, PrefetchError, 'closed'):
            self.within(1, next, iterator)

    def test_close_returns_though_nothing_frees_the_read(self):
        """R38: a read that not even closing frees holds nobody up.

        https://github.com/google/grain/issues/1372

        """
        gated = Gated([(0,)])
        wrapped = IteratorStream(lambda: gated)
        stream = BackgroundDataStream(wrapped)
        iterator = stream.get_epoch_iterator()
        gated.wait_asked(1)
        started = monotonic()
        self.within(3, stream.close, .5)
        self.assertLess(monotonic() - started, 3)
        self.assertEqual(wrapped.calls[-1], 'close')
        with six.assertRaisesRegex(self, PrefetchError, 'closed'):
            self.within(1, next, iterator)
        gated.permit()  # and when it comes back after all, it leaves
        self.assert_no_producer()

    def test_forgetting_never_waits(self):
        """R38: to be collected takes no time, with a read under way.

        https://github.com/google/grain/pull/1373

        """
        gated = Gated([(0,)])
        stream = BackgroundDataStream(IteratorStream(lambda: gated))
        holder = [stream, stream.get_epoch_iterator()]
        del stream
        gated.wait_asked(1)

        def forget():
            del holder[:]
            gc.collect()

        self.within(1, forget)
        self.assertEqual(len(producers()), 1)
        gated.permit()
        self.assert_no_producer()

    def stack(self, mapping=lambda example: example):
        """Return three streams that read ahead of one another."""
        stream = Mapping(numbers(20), mapping)
        for _ in range(3):
            stream = BackgroundDataStream(
                Mapping(stream, lambda example: (example[0] + 1,)),
                max_store=1)
        return stream

    def test_stacked_streams_close(self):
        """R44: stacked streams end together, from the top.

        https://github.com/meta-pytorch/data/issues/1176
        https://github.com/meta-pytorch/data/issues/1169

        """
        for taken in 1, 20:
            stream = self.stack()
            iterator = stream.get_epoch_iterator()
            for number in range(taken):
                self.assertEqual(next(iterator), (number + 3,))
            self.within(5, stream.close)
            self.assertEqual(producers(), [])
        stream = self.stack()
        self.assertEqual(read(stream.get_epoch_iterator()),
                         list(range(3, 23)))
        self.within(5, stream.close)
        self.assertEqual(producers(), [])

    def test_stacked_streams_close_a_read_that_only_closing_frees(self):
        """R44: nor do they wait for one another, one after the other.

        https://github.com/meta-pytorch/data/issues/1176

        """
        dataset = Blocking()
        self.addCleanup(dataset.freed.set)
        stream = BackgroundDataStream(Mapping(
            BackgroundDataStream(DataStream(dataset)),
            lambda example: example))
        iterator = stream.get_epoch_iterator()
        self.assertEqual(next(iterator), (0,))
        dataset.reached.wait()
        self.within(5, stream.close, 3)
        self.assertTrue(dataset.closed)
        # The read was freed last, so its thread may end a moment later.
        self.assertTrue(wait_until(lambda: not producers()))

    def test_stacked_streams_that_are_forgotten_end(self):
        """R44: they do so too when nobody holds the top one any more.

        https://github.com/meta-pytorch/data/issues/1176

        """
        for taken in 0, 1, 5:
            iterator = self.stack().get_epoch_iterator()
            for _ in range(taken):
                next(iterator)
            del iterator
            self.assert_no_producer(5)

    def test_stacked_streams_hand_an_error_up(self):
        """R44: and an error at the bottom arrives at the top.

        https://github.com/meta-pytorch/data/issues/1169

        """
        stream = self.stack(fail_at(5, KeyError('at the bottom')))
        iterator = stream.get_epoch_iterator()
        self.assertEqual([next(iterator)[0] for _ in range(5)],
                         [3, 4, 5, 6, 7])
        with self.assertRaises(KeyError) as caught:
            self.within(5, next, iterator)
        self.assertEqual(caught.exception.args, ('at the bottom',))
        self.assertEqual(self.within(5, next, iterator), (9,))
        self.within(5, stream.close)
        self.assertEqual(producers(), [])

    def test_stacked_streams_go_from_epoch_to_epoch(self):
        """R44: and each goes on to the next epoch, also from amidst one.

        https://github.com/meta-pytorch/data/issues/1176

        """
        stream = self.stack()
        for taken in 1, 20, 3, 20:
            iterator = self.within(5, stream.get_epoch_iterator)
            self.assertEqual([next(iterator)[0] for _ in range(taken)],
                             list(range(3, 23))[:taken])
        stream.close()


class TestHDF5(ReportTestCase):
    watchdog = 60 + HDF5_SECONDS

    def test_hdf5_is_read_while_its_objects_are_collected(self):
        """R58: reading ahead and collecting garbage don't block each other.

        https://github.com/h5py/h5py/issues/2019
        https://github.com/dask/dask/issues/7547
        https://github.com/h5py/h5py/issues/1287

        """
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, 'numbers.hdf5')
        other = os.path.join(folder, 'other.hdf5')
        numbers = numpy.arange(512 * 8).reshape(512, 8)
        with h5py.File(path, 'w') as file_:
            file_.create_dataset('numbers', data=numbers, chunks=(16, 8),
                                 compression='gzip')
            file_.attrs['split'] = H5PYDataset.create_split_array(
                {'train': {'numbers': (0, 512)}})
        with h5py.File(other, 'w') as file_:
            file_['numbers'] = numpy.arange(100)

        dataset = H5PYDataset(path, which_sets=('train',))
        stream = BackgroundDataStream(
            Mapping(DataStream(
                dataset, iteration_scheme=ShuffledScheme(512, 32)),
                lambda batch: batch + (batch[0].sum(axis=1),),
                add_sources=()),
            max_store=2)
        self.addCleanup(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(1)
        stop = monotonic() + HDF5_SECONDS
        stalls, epochs = [0.], 0
        while monotonic() < stop:
            rows = []
            iterator = stream.get_epoch_iterator()
            while True:
                asked = monotonic()
                try:
                    batch, sums = next(iterator)
                except StopIteration:
                    break
                stalls.append(monotonic() - asked)
                assert_array_equal(batch.sum(axis=1), sums)
                rows.append(batch)
                self.use(other)
            rows = numpy.concatenate(rows)
            assert_array_equal(rows[rows[:, 0].argsort()], numbers)
            epochs += 1
        stream.close()
        self.assertLess(max(stalls), 5)
        self.assertGreater(epochs, 0)

    def use(self, path):
        """Open a file, and make garbage that can be collected only."""
        with h5py.File(path, 'r') as file_:
            garbage = [file_['numbers'], file_['numbers'].id,
                       h5py.File(path, 'r')['numbers']]
            garbage.append(garbage)
            self.assertEqual(file_['numbers'][50], 50)

"""Tests of BackgroundDataStream: epochs, errors, endings, arguments.

Most hold for every backend, see :class:`tests.ContractTestCase`.

"""
from __future__ import absolute_import, division, print_function

import gc
import os
import sys
import traceback
import threading
import unittest
import warnings
import weakref

import numpy
import six
from fuel.datasets import IndexableDataset, IterableDataset
from fuel.iterator import DataIterator
from fuel.schemes import ConstantScheme, SequentialScheme, ShuffledScheme
from fuel.streams import AbstractDataStream, DataStream
from fuel.transformers import (
    Batch, Filter, Mapping, Merge, MultiProcessing, Rename, Transformer)

from fuel_prefetch import (
    BackgroundDataStream, PrefetchError, PrefetchTimeout, PrefetchWarning)
from tests import (
    ContractTestCase, Event, Gated, IteratorStream, Journal, Permits, Place,
    Raise, numbers, thread_only, wait_until)


class Own(BaseException):
    pass


class Old:  # on 2.7 it derives from nothing
    pass


class Residents(object):
    """Makes epochs of batches, and knows how many there are.

    One exists from when it is made until it is gone in this process, also
    on its way here.

    """
    def __init__(self, count):
        self.count = count
        self.process = os.getpid()
        self.journal = Journal()

    def __call__(self):
        for _ in range(self.count):
            self.journal.append('made')
            yield Resident(self),

    @property
    def alive(self):
        lines = list(self.journal)
        return lines.count('made') - lines.count('gone')

    @property
    def most(self):
        alive = [0]
        for line in self.journal:
            alive.append(alive[-1] + (1 if line == 'made' else -1))
        return max(alive)


class Resident(object):
    def __init__(self, residents):
        self.residents = residents

    def __del__(self):
        if self.residents.process == os.getpid():
            self.residents.journal.append('gone')


def examples(stop, start=0):
    return [(number,) for number in range(start, stop)]


class TestEpochs(ContractTestCase):
    def test_values_and_end(self):
        iterator = self.wrap(numbers(25), max_store=3).get_epoch_iterator()
        self.assertEqual(list(iterator), examples(25))
        for _ in range(3):
            self.assertRaises(StopIteration, next, iterator)

    def test_every_depth(self):
        for depth in [1, 2, 7, 100, None, -1, numpy.int64(3)]:
            stream = self.wrap(numbers(25), max_store=depth)
            for _ in range(3):
                self.assertEqual(list(stream.get_epoch_iterator()),
                                 examples(25))

    def test_names_are_the_wrappers(self):
        stream = self.wrap(numbers(1))
        stream.sources = ('renamed',)
        self.assertEqual(list(stream.get_epoch_iterator(as_dict=True)),
                         [{'renamed': 0}])
        self.assertEqual(stream.data_stream.sources, ('data',))

    def test_iterator_is_fuels(self):
        iterator = self.wrap(numbers(3)).get_epoch_iterator()
        self.assertIsInstance(iterator, DataIterator)
        self.assertIs(iter(iterator), iterator)

    def test_one_call_for_each_call(self):
        wrapped = IteratorStream(lambda: iter([]))
        stream = self.wrap(wrapped)
        for count in range(1, 4):
            iterator = stream.get_epoch_iterator()
            self.assertEqual(wrapped.calls.count('get_epoch_iterator'), count)
            self.assertEqual(list(iterator), [])

    def test_one_thread_reads_an_epoch(self):
        wrapped = IteratorStream(lambda: iter(examples(50)))
        list(self.wrap(wrapped, max_store=2).get_epoch_iterator())
        reader, = set(wrapped.readers)
        self.assertNotEqual(reader, Place(*Place.here()))
        self.assertIn('fuel_prefetch', reader.name)

    def test_producer_rests_between_epochs(self):
        stream = self.wrap(numbers(5))
        before = threading.active_count()
        list(stream.get_epoch_iterator())
        self.assertEqual(threading.active_count(), before)

    def test_superseded_iterator_ends(self):
        source = Gated(examples(10))
        stream = self.wrap(IteratorStream(lambda: source), max_store=1)
        source.permit(10)
        first = stream.get_epoch_iterator()
        self.assertEqual(next(first), (0,))
        second = stream.get_epoch_iterator()
        self.assertRaises(StopIteration, next, first)
        seen = [next(second)]
        self.assertRaises(StopIteration, next, first)
        source.permit(10)
        seen.extend(second)
        self.assertEqual(seen, examples(10, 10 - len(seen)))

    def test_waiting_reader_is_superseded(self):
        source = Gated(examples(10))
        stream = self.wrap(IteratorStream(lambda: source), max_store=1)
        first = stream.get_epoch_iterator()
        reader = self.start(next, first)
        source.wait_asked(1)
        beginning = self.start(stream.get_epoch_iterator)
        self.assertRaises(StopIteration, self.join, reader)
        source.permit(20)  # the read in hand comes first
        found = list(self.join(beginning))
        self.assertIn(found, [examples(10, first)
                              for first in range(1, self.in_hand + 1)])
        self.assertEqual(stream.data_stream.overlaps, 0)

    def test_get_data(self):
        stream = self.wrap(numbers(2))
        self.assertRaises(PrefetchError, stream.get_data)
        stream.get_epoch_iterator()
        self.assertRaises(ValueError, stream.get_data, [0])
        self.assertEqual(stream.get_data(), (0,))
        self.assertEqual(stream.get_data(), (1,))
        for _ in range(2):
            self.assertRaises(StopIteration, stream.get_data)

    def test_three_epochs_only(self):
        epochs = iter(range(3))

        def make():
            return iter(examples(next(epochs) + 1))

        for across_epochs in (False, True):
            epochs = iter(range(3))
            stream = self.wrap(IteratorStream(make),
                               across_epochs=across_epochs)
            for count in range(3):
                self.assertEqual(list(stream.get_epoch_iterator()),
                                 examples(count + 1))
            for _ in range(2):
                self.assertRaises(StopIteration, stream.get_epoch_iterator)

    def test_iterate_epochs(self):
        epochs = self.wrap(numbers(2)).iterate_epochs(as_dict=True)
        for _ in range(3):
            self.assertEqual(list(next(epochs)), [{'data': 0}, {'data': 1}])

    def test_error_at_the_start_of_an_epoch(self):
        plan = iter([KeyError('start'), None])

        def make():
            error = next(plan)
            if error is not None:
                raise error
            return iter(examples(2))

        before = threading.active_count()
        stream = self.wrap(IteratorStream(make))
        with self.assertRaises(KeyError) as raised:
            stream.get_epoch_iterator()
        self.assertEqual(raised.exception.args, ('start',))
        self.assertEqual(threading.active_count(), before)
        self.assertEqual(list(stream.get_epoch_iterator()), examples(2))

    def test_empty_epochs(self):
        stream = self.wrap(numbers(0))
        for _ in range(3):
            self.assertEqual(list(stream.get_epoch_iterator()), [])

    def test_replaced_stream_counts_from_the_next_epoch(self):
        stream = self.wrap(numbers(3))
        list(stream.get_epoch_iterator())
        stream.data_stream = numbers(5)
        self.assertEqual(list(stream.get_epoch_iterator()), examples(5))

    def test_arguments_of_stop_iteration(self):
        class Ending(object):
            def __next__(self):
                raise StopIteration('why')

            next = __next__

        iterator = self.wrap(
            IteratorStream(Ending)).get_epoch_iterator()
        with self.assertRaises(StopIteration) as raised:
            next(iterator)
        self.assertEqual(raised.exception.args, ('why',))

    def test_under_and_over_other_transformers(self):
        def chain(wrap):
            stream = DataStream(IndexableDataset(numpy.arange(40)),
                                iteration_scheme=ShuffledScheme(40, 4))
            stream = wrap(Mapping(wrap(stream), double))
            return Rename(Mapping(stream, double), {'data': 'doubled'})

        bare, ours = chain(lambda stream: stream), chain(self.wrap)
        for _ in range(3):
            expected = list(bare.get_epoch_iterator(as_dict=True))
            got = list(ours.get_epoch_iterator(as_dict=True))
            numpy.testing.assert_equal(got, expected)

    def test_in_a_merge(self):
        merged = Merge((self.wrap(numbers(5)), self.wrap(numbers(4))),
                       ('left', 'right'))
        self.assertEqual(list(merged.get_epoch_iterator()),
                         [(i, i) for i in range(4)])

    @thread_only('it is a daemon, and those may have no processes')
    def test_under_fuels_own_process(self):
        stream = MultiProcessing(self.wrap(numbers(4)), max_store=2)
        try:
            iterator = stream.get_epoch_iterator()
            self.assertEqual(self.within(10, list, iterator), examples(4))
        finally:
            stream.proc.terminate()
            stream.proc.join()

    def test_filter(self):
        stream = self.wrap(Filter(numbers(10), is_even))
        self.assertEqual(list(stream.get_epoch_iterator()),
                         examples(10)[::2])


def double(data):
    return tuple(2 * source for source in data)


def is_even(data):
    return data[0] % 2 == 0


class TestReadAhead(ContractTestCase):
    def test_bounded(self):
        for depth in [1, 3]:
            source = Gated(examples(20))
            stream = self.wrap(IteratorStream(lambda: source),
                               max_store=depth)
            source.permit(20)
            iterator = stream.get_epoch_iterator()
            for taken in range(5):
                # Those in the store and in the producer's hands.
                source.wait_asked(taken + depth + self.in_hand)
                self.assertTrue(wait_until(
                    lambda: stream.stats.batches_held == depth))
                self.assertEqual(source.asked, taken + depth + self.in_hand)
                next(iterator)

    def test_resident_batches(self):
        for depth in [1, 4]:
            for across_epochs in (False, True):
                residents = Residents(50)
                stream = self.wrap(
                    IteratorStream(residents), max_store=depth,
                    across_epochs=across_epochs)
                for _ in range(3):
                    for batch in stream.get_epoch_iterator():
                        del batch  # or it has two as it gets the next
                stream.close()
                # The store's, the producer's and the reader's.
                self.assertLessEqual(residents.most, depth + self.in_hand + 1)
                self.assertEqual(residents.alive, 0)

    def test_set_later(self):
        """Bound and timeout that are set count from the next epoch."""
        source = Gated(range(50))
        source.permit(40)
        stream = self.wrap(IteratorStream(lambda: source), max_store=2)
        for depth in (2, 3):
            stream.max_store = depth
            iterator = stream.get_epoch_iterator()
            self.assertTrue(wait_until(
                lambda: stream.stats.batches_held == depth))
        stream.timeout = .05
        iterator = self.patiently(stream.get_epoch_iterator)
        self.assertRaises(PrefetchTimeout, list, iterator)
        stream.max_store = 0
        six.assertRaisesRegex(self, ValueError, 'max_store .*0',
                              stream.get_epoch_iterator)
        source.permit(10)

    def test_unbounded(self):
        stream = self.wrap(numbers(500), max_store=None)
        stream.get_epoch_iterator()
        self.assertTrue(wait_until(lambda: stream.stats.batches_held == 500))

    def test_bytes(self):
        arrays = [(numpy.zeros(100),) for _ in range(10)]
        stream = self.wrap(IteratorStream(lambda: iter(arrays)),
                           max_bytes=2000)
        iterator = stream.get_epoch_iterator()
        self.assertTrue(wait_until(lambda: stream.stats.bytes_held == 1600))
        next(iterator)
        self.assertTrue(wait_until(lambda: stream.stats.bytes_taken == 800 and
                                   stream.stats.bytes_held == 1600))
        self.assertEqual(len(list(iterator)), 9)

    def test_across_epochs(self):
        wrapped = IteratorStream(lambda: iter(examples(4)))
        stream = self.wrap(wrapped, across_epochs=True, max_store=6)
        iterator = stream.get_epoch_iterator()
        held = self.most_held(6)
        # Four of this epoch and the rest of the next; one more is in hand.
        self.assertTrue(wait_until(
            lambda: stream.stats.batches_held == held and
            stream.stats.batches_produced == held + 1))
        self.assertEqual(wrapped.calls.count('get_epoch_iterator'), 2)
        self.assertEqual(list(iterator), examples(4))
        # The next epoch is there, and the one after it isn't begun.
        self.assertTrue(wait_until(lambda: stream.stats.batches_held == 4))
        self.assertEqual(wrapped.calls.count('get_epoch_iterator'), 2)
        for _ in range(3):
            self.assertEqual(list(stream.get_epoch_iterator()), examples(4))

    def test_across_epochs_left_early(self):
        rng = numpy.random.RandomState(1)
        bare = ShuffledScheme(8, 1, rng=numpy.random.RandomState(5))
        scheme = ShuffledScheme(8, 1, rng=numpy.random.RandomState(5))
        expected = DataStream(IndexableDataset(numpy.arange(8)),
                              iteration_scheme=bare)
        stream = self.wrap(DataStream(IndexableDataset(numpy.arange(8)),
                                      iteration_scheme=scheme),
                           across_epochs=True, max_store=5)
        for _ in range(30):
            one, other = (expected.get_epoch_iterator(),
                          stream.get_epoch_iterator())
            for _ in range(rng.randint(10)):
                self.assertEqual(next(one, None), next(other, None))

    def test_left_while_the_end_is_read(self):
        # The next epoch is begun by the worker or by the caller: once.
        gates = [Gated(examples(1)), Gated(examples(2))]
        epochs = iter(gates)
        wrapped = IteratorStream(lambda: next(epochs))
        stream = self.wrap(wrapped, across_epochs=True)
        stream.get_epoch_iterator()
        gates[0].permit(1)
        gates[0].wait_asked(2)
        leaving = self.start(stream.get_epoch_iterator)
        self.assertTrue(wait_until(
            lambda: stream._prefetcher._worker.store._pausing))
        gates[0].permit(1)
        gates[1].permit(3)
        self.assertEqual(list(self.join(leaving)), examples(2))
        self.assertEqual(wrapped.overlaps, 0)

    def test_reset_across_epochs(self):
        stream = self.wrap(numbers(4), across_epochs=True)
        self.assertEqual(list(stream.get_epoch_iterator()), examples(4))
        stream.data_stream.dataset = IterableDataset(range(2))
        stream.reset()
        self.assertEqual(list(stream.get_epoch_iterator()), examples(2))

    def test_stall_at_the_end_of_an_epoch_across_epochs(self):
        # The producer waits for room in the next epoch while the reader is
        # in this one; leaving it makes room for all that is left.
        stream = self.wrap(numbers(4), across_epochs=True, max_store=2)
        for _ in range(5):
            iterator = stream.get_epoch_iterator()
            self.assertEqual(next(iterator), (0,))


class TestErrors(ContractTestCase):
    def test_error_is_an_item(self):
        error = KeyError('three', 3)
        items = examples(3) + [Raise(error)] + examples(6, 4)
        source = Gated(items)
        stream = self.wrap(IteratorStream(lambda: source))
        source.permit(10)
        iterator = stream.get_epoch_iterator()
        self.assertEqual([next(iterator) for _ in range(3)], examples(3))
        with self.assertRaises(KeyError) as raised:
            next(iterator)
        self.assertSameError(raised.exception, error)
        # Not a step further until the caller goes on.
        self.assertEqual(source.asked, 4)
        self.assertEqual(list(iterator), examples(6, 4))

    def test_error_in_a_row(self):
        items = [Raise(KeyError(0)), Raise(KeyError(1)), (2,)]
        source = Gated(items)
        source.permit(10)
        iterator = self.wrap(
            IteratorStream(lambda: source)).get_epoch_iterator()
        for number in range(2):
            with self.assertRaises(KeyError) as raised:
                next(iterator)
            self.assertEqual(raised.exception.args, (number,))
        self.assertEqual(list(iterator), [(2,)])

    def test_traceback_names_where_it_was_raised(self):
        def fail_at_three(data):
            if data[0] == 3:
                raise KeyError('three')
            return data

        iterator = self.wrap(
            Mapping(numbers(6), fail_at_three)).get_epoch_iterator()
        try:
            list(iterator)
        except KeyError as error:
            # From a process it comes as the cause, which 2.7 doesn't show.
            text = traceback.format_exc() + str(
                getattr(error, '__cause__', ''))
        self.assertIn('in fail_at_three', text)

    @unittest.skipUnless(six.PY2, 'these are errors no more')
    def test_old_style_error(self):
        def fail(data):
            raise Old()

        iterator = self.wrap(Mapping(numbers(3), fail)).get_epoch_iterator()
        self.assertRaises(Old, next, iterator)
        sys.exc_clear()

    def test_stray_end(self):
        """R18: a StopIteration out of a mapping ends the epoch, as bare.

        https://github.com/ByteDance-Seed/Bagel/issues/211

        """
        def lose(data):
            return next(iter([])) if data[0] == 4 else data

        bare = Mapping(numbers(10), lose)
        self.assertEqual(list(bare.get_epoch_iterator()), examples(4))
        for stream in (Mapping(numbers(10), lose),
                       Mapping(self.wrap(Mapping(numbers(10), lose)), tuple)):
            iterator = self.wrap(stream).get_epoch_iterator()
            self.assertEqual(list(iterator), examples(4))
            self.assertRaises(StopIteration, next, iterator)

    def test_dead_generator(self):
        def generate():
            yield (0,)
            raise KeyError('dead')

        iterator = self.wrap(IteratorStream(generate)).get_epoch_iterator()
        self.assertEqual(next(iterator), (0,))
        self.assertRaises(KeyError, next, iterator)
        self.assertRaises(StopIteration, next, iterator)

    def test_every_kind(self):
        """R15: an error that is no `Exception` reaches the reader as itself.

        https://github.com/pytorch/pytorch/issues/11633

        """
        for error in [SystemExit(3), KeyboardInterrupt(), MemoryError(),
                      GeneratorExit(), Own('own'), IOError('disk')]:
            source = Gated([Raise(error), (1,)])
            source.permit(3)
            iterator = self.wrap(
                IteratorStream(lambda: source)).get_epoch_iterator()
            with self.assertRaises(type(error)) as raised:
                next(iterator)
            self.assertSameError(raised.exception, error)
            self.assertEqual(list(iterator), [(1,)])

    def test_new_epoch_after_an_error(self):
        sources = iter([[Raise(KeyError())], examples(3)])

        def make():
            source = Gated(next(sources))
            source.permit(9)
            return source

        stream = self.wrap(IteratorStream(make))
        self.assertRaises(KeyError, next, stream.get_epoch_iterator())
        self.assertEqual(list(stream.get_epoch_iterator()), examples(3))

    def test_through_a_stack(self):
        def fail(data):
            if data[0] == 3:
                raise KeyError('three')
            return data

        stream = Mapping(numbers(6), fail)
        for _ in range(3):
            stream = Mapping(self.wrap(stream, max_store=1), double)
        iterator = stream.get_epoch_iterator()
        self.assertEqual([next(iterator)[0] for _ in range(3)], [0, 8, 16])
        self.assertRaises(KeyError, next, iterator)
        self.assertEqual([data[0] for data in iterator], [32, 40])

    @thread_only('nothing is copied there')
    def test_batch_that_cannot_be_copied(self):
        class Stubborn(numpy.ndarray):
            def copy(self, order='C'):
                raise ValueError('no')

        items = [(numpy.zeros(2),), (numpy.zeros(2).view(Stubborn),),
                 (numpy.ones(2),)]
        iterator = self.wrap(IteratorStream(lambda: iter(items)),
                             copy=True).get_epoch_iterator()
        next(iterator)
        six.assertRaisesRegex(self, ValueError, 'no', next, iterator)
        self.assertEqual(next(iterator)[0].sum(), 2)

    def test_error_keeps_no_frame_of_ours(self):
        journal = Journal()

        class Local(object):
            def __del__(self):
                journal.append('gone')

        def make():
            local = Local()  # noqa: F841
            yield (0,)
            raise KeyError

        iterator = self.wrap(IteratorStream(make)).get_epoch_iterator()
        next(iterator)
        try:
            next(iterator)
        except KeyError:
            pass
        if six.PY2:
            sys.exc_clear()
        gc.collect()
        self.assertTrue(wait_until(lambda: list(journal)))


class Refilling(AbstractDataStream):
    """A stream that fills one buffer for each batch."""
    sources = ('index', 'buffer')

    def __init__(self, count):
        super(Refilling, self).__init__()
        self.produces_examples = False
        self.count = count
        self.buffer = numpy.zeros(4)

    def get_epoch_iterator(self, **kwargs):
        self.index = -1
        return super(Refilling, self).get_epoch_iterator(**kwargs)

    def get_data(self, request=None):
        self.index += 1
        if self.index == self.count:
            raise StopIteration
        self.buffer[:] = self.index
        return numpy.array([self.index]), self.buffer

    def close(self):
        pass

    next_epoch = reset = close


class TestRefilledBuffers(ContractTestCase):
    def read(self, stream):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            wrong = sum(index[0] != buffer[0]
                        for index, buffer in stream.get_epoch_iterator())
        return wrong, [warning for warning in caught
                       if issubclass(warning.category, PrefetchWarning)]

    def test_copy(self):
        stream = self.wrap(Refilling(12), copy=True)
        self.assertEqual(self.read(stream), (0, []))

    @thread_only('each batch comes in memory of its own')
    def test_one_warning_names_source_and_cure(self):
        stream = self.wrap(Refilling(12))
        _, caught = self.read(stream)
        self.assertEqual(len(caught), 1)
        self.assertIn("'buffer'", str(caught[0].message))
        self.assertIn('copy=True', str(caught[0].message))
        self.assertEqual(caught[0].filename.rsplit('.', 1)[0],
                         __file__.rsplit('.', 1)[0])
        self.assertEqual(self.read(stream)[1], [])

    @thread_only('each batch comes in memory of its own')
    def test_warning_as_error_loses_no_batch(self):
        iterator = self.wrap(Refilling(12)).get_epoch_iterator()
        seen, warned = [], 0
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            while True:
                try:
                    seen.append(int(next(iterator)[0][0]))
                except PrefetchWarning:
                    warned += 1
                except StopIteration:
                    break
        self.assertEqual(seen, list(range(12)))
        self.assertEqual(warned, 1)

    def test_ordinary_streams_get_no_warning(self):
        data = numpy.arange(60.).reshape(20, 3)
        for stream in [
                DataStream.default_stream(IndexableDataset(data),
                                          iteration_scheme=SequentialScheme(
                                              20, 3)),
                IndexableDataset(data).get_example_stream(),
                Batch(IndexableDataset(data).get_example_stream(),
                      ConstantScheme(4))]:
            for across_epochs in (False, True):
                wrapped = self.wrap(stream, across_epochs=across_epochs)
                with warnings.catch_warnings():
                    warnings.simplefilter('error', PrefetchWarning)
                    for _ in range(3):
                        list(wrapped.get_epoch_iterator())
                wrapped.close()


class TestResetting(ContractTestCase):
    def test_reset_passes_through(self):
        wrapped = IteratorStream(lambda: iter(examples(5)))
        stream = self.wrap(wrapped)
        stream.reset()
        stream.next_epoch()
        self.assertEqual(wrapped.calls, ['reset', 'next_epoch'])
        list(stream.get_epoch_iterator())
        stream.reset()
        self.assertEqual(wrapped.calls[-1], 'reset')

    def test_mid_epoch(self):
        for method in ('reset', 'next_epoch'):
            bare, stream = numbers(30), self.wrap(numbers(30), max_store=4)
            for both in (bare, stream):
                iterator = both.get_epoch_iterator()
                for _ in range(3):
                    next(iterator)
                getattr(both, method)()
            self.assertEqual(list(stream.get_epoch_iterator()),
                             list(bare.get_epoch_iterator()))

    def test_live_iterator_goes_on_in_the_reset_stream(self):
        for count in (3, 30):  # the producer is through, or isn't
            for taken in (0, 2):
                stream = self.wrap(numbers(count), max_store=8)
                iterator = stream.get_epoch_iterator()
                for _ in range(taken):
                    next(iterator)
                self.assertTrue(wait_until(
                    lambda: stream.stats.batches_held == min(
                        count - taken, self.most_held(8))))
                stream.reset()
                self.assertEqual(stream.stats.batches_held, 0)
                self.assertEqual(list(iterator), examples(count))

    def test_no_overlap(self):
        source = Gated(examples(50))
        wrapped = IteratorStream(lambda: source)
        stream = self.wrap(wrapped, max_store=1)
        iterator = stream.get_epoch_iterator()
        source.wait_asked(1)
        resetting = self.start(stream.reset)
        self.assertTrue(wait_until(
            lambda: stream._prefetcher._worker.store._pausing))
        source.permit(self.in_hand)  # the reads in hand come first
        self.join(resetting)
        self.assertEqual(wrapped.calls[-2:], ['get_data', 'reset'])
        asked = source.asked  # and none unasked
        self.assertIn(asked, range(1, self.in_hand + 1))
        reader = self.start(next, iterator)
        source.permit(50)
        self.assertEqual(self.join(reader), (asked,))
        self.assertEqual(wrapped.overlaps, 0)

    def test_while_the_end_is_read(self):
        for across_epochs in (False, True):
            source = Gated(examples(1))
            wrapped = IteratorStream(lambda: source)
            stream = self.wrap(wrapped, across_epochs=across_epochs)
            iterator = stream.get_epoch_iterator()
            source.permit(1)
            source.wait_asked(2)
            resetting = self.start(stream.reset)
            self.assertTrue(wait_until(
                lambda: stream._prefetcher._worker.store._pausing))
            source.permit(1)
            self.join(resetting)
            self.assertEqual(wrapped.overlaps, 0)
            source.permit(9)
            self.assertEqual(list(iterator), [])

    def test_error_of_reset(self):
        class Failing(IteratorStream):
            def reset(self):
                raise KeyError('reset')

        stream = self.wrap(Failing(lambda: iter(examples(5))))
        iterator = stream.get_epoch_iterator()
        self.assertRaises(KeyError, stream.reset)
        self.assertIsInstance(list(iterator), list)


class TestClosing(ContractTestCase):
    def test_next_after_close(self):
        stream = self.wrap(numbers(50), max_store=2)
        iterator = stream.get_epoch_iterator()
        next(iterator)
        stream.close()
        for _ in range(2):
            six.assertRaisesRegex(self, PrefetchError, 'closed',
                                  next, iterator)

    def test_idempotent(self):
        wrapped = IteratorStream(lambda: iter(examples(5)))
        stream = self.wrap(wrapped)
        stream.close()
        stream.close()
        self.assertEqual(wrapped.calls, ['close'])

    def test_by_many_at_once(self):
        source = Gated(examples(5))
        wrapped = IteratorStream(lambda: source)
        stream = self.wrap(wrapped)
        stream.get_epoch_iterator()
        source.wait_asked(1)
        closing = [self.start(stream.close) for _ in range(4)]
        source.permit(9)
        for thread in closing:
            self.join(thread)
        self.assertEqual(wrapped.calls.count('close'), 1)

    def test_close_after_an_epoch_that_did_not_begin(self):
        def fail():
            raise KeyError('start')

        wrapped = IteratorStream(fail)
        stream = self.wrap(wrapped)
        stream.close()
        self.assertRaises(KeyError, stream.get_epoch_iterator)
        stream.close()
        self.assertEqual(wrapped.calls.count('close'), 2)

    def test_close_that_fails_may_be_tried_again(self):
        refusals = Permits()

        class Refusing(IteratorStream):
            def close(self):
                super(Refusing, self).close()
                if refusals.take(0):
                    raise IOError('busy')

        for across_epochs in (False, True):
            refusals.give()
            inner = Refusing(lambda: iter(examples(3)))
            stream = self.wrap(inner, across_epochs=across_epochs)
            iterator = stream.get_epoch_iterator()
            self.assertRaises(IOError, stream.close)
            self.assertRaises(PrefetchError, list, iterator)
            self.assertEqual(list(stream.get_epoch_iterator()), examples(3))
            refusals.give()
            self.assertRaises(IOError, stream.close)
            stream.close()
            self.assertEqual(inner.calls.count('close'), 3)

    def test_stream_that_was_replaced_is_closed(self):
        first, second = [IteratorStream(lambda: iter(examples(3)))
                         for _ in range(2)]
        stream = self.wrap(first)
        stream.close()
        stream.data_stream = second
        stream.close()
        stream.close()
        self.assertEqual((first.calls, second.calls), (['close'], ['close']))

    def test_used_by_what_it_reads(self):
        """An error, rather than a thread that waits for itself."""
        for call in ('reset', 'next_epoch', 'get_epoch_iterator',
                     '__getstate__'):
            def use(data):
                if data == (1,):
                    getattr(stream, call)()
                return data

            stream = self.wrap(Mapping(numbers(3), use))
            iterator = stream.get_epoch_iterator()
            self.assertEqual(next(iterator), (0,))
            six.assertRaisesRegex(self, PrefetchError, 'by the stream',
                                  next, iterator)
            self.assertEqual(list(iterator), [(2,)])

    def test_context_manager(self):
        wrapped = IteratorStream(lambda: iter(examples(5)))
        with self.ahead(wrapped) as stream:
            next(stream.get_epoch_iterator())
        self.assertEqual(wrapped.calls[-1], 'close')

    def test_epoch_after_close(self):
        stream = self.wrap(numbers(5))
        next(stream.get_epoch_iterator())
        stream.close()
        self.assertEqual(list(stream.get_epoch_iterator()), examples(5))
        stream.close()
        self.assertEqual(list(stream.get_epoch_iterator()), examples(5))

    def test_wakes_readers(self):
        source = Gated([])
        stream = self.wrap(IteratorStream(lambda: source))
        iterator = stream.get_epoch_iterator()
        readers = [self.start(next, iterator) for _ in range(3)]
        source.wait_asked(1)
        closing = self.start(stream.close)
        for reader in readers:
            six.assertRaisesRegex(self, PrefetchError, 'closed',
                                  self.join, reader)
        source.permit()
        self.join(closing)

    def test_wakes_who_waits_for_an_epoch(self):
        release = Event()

        def make():
            release.wait()
            return iter([])

        stream = self.wrap(IteratorStream(make))
        beginning = self.start(stream.get_epoch_iterator)
        self.assertTrue(wait_until(lambda: stream.data_stream.calls))
        closing = self.start(stream.close)
        self.assertRaises(PrefetchError, self.join, beginning)
        release.set()
        self.join(closing)

    def test_frees_a_read_that_blocks_for_ever(self):
        class Blocking(IteratorStream):
            freed = Event()

            def close(self):
                self.freed.set()

        stream = self.wrap(Blocking(lambda: iter(Blocking.freed.wait, True)))
        iterator = stream.get_epoch_iterator()
        self.within(2, stream.close, .2)
        self.assertRaises(PrefetchError, next, iterator)

    def test_read_in_hand_is_waited_for(self):
        source = Gated(examples(5))
        wrapped = IteratorStream(lambda: source)
        stream = self.wrap(wrapped, max_store=1)
        stream.get_epoch_iterator()
        source.wait_asked(1)
        closing = self.start(stream.close)
        source.permit(self.in_hand)
        self.join(closing)
        self.assertEqual(wrapped.calls[-2:], ['get_data', 'close'])

    @thread_only('what a process has of its reader is a copy')
    def test_source_closes_its_reader(self):
        def make():
            yield (0,)
            stream.close(1)
            yield (1,)

        stream = self.wrap(IteratorStream(make))
        with self.assertRaises(PrefetchError):
            for _ in stream.get_epoch_iterator():
                pass

    def test_stack(self):
        stream = numbers(1000)
        for _ in range(3):
            stream = Mapping(self.wrap(stream, max_store=1), double)
        iterator = stream.get_epoch_iterator()
        next(iterator)
        self.within(3, stream.close)


class TestForgetting(ContractTestCase):
    def wrap(self, data_stream, **kwargs):
        return self.ahead(data_stream, **kwargs)

    def assertEnds(self, wrapped):
        gc.collect()
        self.assertTrue(wait_until(lambda: not any(
            reader.alive for reader in wrapped.readers)))

    def test_dropped_in_mid_epoch(self):
        wrapped = IteratorStream(lambda: iter(examples(1000)))
        iterator = self.wrap(wrapped, max_store=2).get_epoch_iterator()
        next(iterator)
        reference = weakref.ref(iterator.data_stream)
        del iterator
        self.assertEnds(wrapped)
        self.assertIs(reference(), None)

    def test_dropped_in_a_cycle(self):
        wrapped = IteratorStream(lambda: iter(examples(1000)))
        stream = self.wrap(wrapped, max_store=2)
        stream.iterator = stream.get_epoch_iterator()
        del stream
        self.assertEnds(wrapped)

    def test_dropped_after_an_error(self):
        source = Gated([Raise(KeyError())])
        source.permit(9)
        wrapped = IteratorStream(lambda: source)
        iterator = self.wrap(wrapped).get_epoch_iterator()
        self.assertRaises(KeyError, next, iterator)
        del iterator
        self.assertEnds(wrapped)

    def test_iterator_keeps_its_stream(self):
        iterator = self.wrap(numbers(500), max_store=2).get_epoch_iterator()
        next(iterator)
        gc.collect()
        self.assertEqual(list(iterator), examples(500, 1))

    def test_generator_is_closed_in_its_thread(self):
        journal = Journal()

        def generate():
            try:
                for example in examples(1000):
                    yield example
            finally:
                journal.append('\t'.join(Place.here()))

        class Stream(IteratorStream):
            def get_epoch_iterator(self, **kwargs):
                return self._call('get_epoch_iterator', self.make_iterator)

        for count, leave in enumerate([
                lambda stream: stream.close(),
                lambda stream: stream.get_epoch_iterator(),
                lambda stream: None]):
            wrapped = Stream(generate)
            stream = self.wrap(wrapped, max_store=2)
            next(stream.get_epoch_iterator())
            leave(stream)
            del stream
            self.assertEnds(wrapped)
            closed_in = [Place(*line.split('\t')) for line in journal]
            self.assertIn(wrapped.readers[0], closed_in)


class TestWaiting(ContractTestCase):
    def read_patiently(self, iterator):
        return list(iter(lambda: self.patiently(next, iterator, None), None))

    def test_timeout(self):
        source = Gated(examples(3))
        stream = self.wrap(IteratorStream(lambda: source), timeout=.02)
        iterator = self.patiently(stream.get_epoch_iterator)
        for _ in range(2):
            self.assertRaises(PrefetchTimeout, next, iterator)
        source.permit(9)
        self.assertEqual(self.read_patiently(iterator), examples(3))

    def test_epoch_that_takes_too_long_to_begin_is_not_lost(self):
        """Asking again gives that epoch, which may be the only one."""
        for across_epochs in (False, True):
            gate = Event()
            epochs = iter([examples(3), examples(6, 3), examples(9, 6)])

            def make():
                gate.wait(5)
                return iter(next(epochs))

            stream = self.wrap(IteratorStream(make), timeout=.05,
                               across_epochs=across_epochs)
            for first in (0, 3):
                for _ in range(2):
                    self.assertRaises(PrefetchTimeout,
                                      stream.get_epoch_iterator)
                gate.set()
                self.assertTrue(wait_until(
                    lambda: stream.stats.batches_produced >= first + 3))
                gate.clear()
                stream.timeout = None
                self.assertEqual(list(stream.get_epoch_iterator()),
                                 examples(first + 3, first))
                if across_epochs:
                    break  # the next one is under way, which had its turn
                stream.timeout = .05
            gate.set()

    def test_timeout_in_an_epoch_leaves_it_as_it_is(self):
        """With `across_epochs` the worker has to rest before it is left."""
        source = Gated(range(9))
        source.permit(3)
        stream = self.wrap(IteratorStream(lambda: source), timeout=.05,
                           across_epochs=True)
        iterator = self.patiently(stream.get_epoch_iterator)
        self.assertEqual(self.patiently(next, iterator), 0)
        source.wait_asked(4)
        self.assertRaises(PrefetchTimeout, stream.get_epoch_iterator)
        self.assertEqual([self.patiently(next, iterator),
                          self.patiently(stream.get_data)], [1, 2])
        source.permit(20)

    def test_timeout_of_an_epoch(self):
        gate = Gated([iter(examples(1)), iter(examples(2))])
        wrapped = IteratorStream(lambda: next(gate))
        stream = self.wrap(wrapped, timeout=.02)
        self.assertRaises(PrefetchTimeout, stream.get_epoch_iterator)
        self.assertRaises(PrefetchTimeout, stream.get_epoch_iterator)
        self.assertRaises(PrefetchTimeout, stream.reset)
        gate.permit(9)
        self.assertTrue(wait_until(
            lambda: stream._prefetcher._worker.store.left))
        iterator = self.patiently(stream.get_epoch_iterator)
        self.assertEqual(self.read_patiently(iterator), examples(2))
        self.assertEqual(wrapped.overlaps, 0)

    def test_many_readers(self):
        iterator = self.wrap(numbers(3000), max_store=3).get_epoch_iterator()
        readers = [self.start(list, iterator) for _ in range(4)]
        got = sum([self.join(reader) for reader in readers], [])
        self.assertEqual(sorted(got), examples(3000))

    def test_many_callers(self):
        # Nothing is promised but that no call overlaps and nothing hangs.
        wrapped = IteratorStream(lambda: iter(examples(20)))
        stream = self.wrap(wrapped, max_store=3)

        def call(seed):
            rng = numpy.random.RandomState(seed)
            for _ in range(60):
                action = rng.randint(5)
                if action == 0:
                    stream.reset()
                elif action == 1:
                    stream.next_epoch()
                else:
                    iterator = stream.get_epoch_iterator()
                    for _ in range(rng.randint(25)):
                        if next(iterator, None) is None:
                            break

        for caller in [self.start(call, seed) for seed in range(3)]:
            self.join(caller)
        self.assertEqual(wrapped.overlaps, 0)


class TestInterrupts(ContractTestCase):
    def test_ctrl_c_while_the_thread_starts(self):
        start = threading.Thread.start
        for before in (True, False):
            def interrupted(thread):
                threading.Thread.start = start
                if not before:
                    thread.start()
                raise KeyboardInterrupt

            wrapped = IteratorStream(lambda: iter(examples(5)))
            stream = self.wrap(wrapped)
            threading.Thread.start = interrupted
            try:
                self.assertRaises(KeyboardInterrupt,
                                  stream.get_epoch_iterator)
            finally:
                threading.Thread.start = start
            self.assertEqual(
                self.within(5, list, stream.get_epoch_iterator()),
                examples(5))
            self.assertEqual(wrapped.overlaps, 0)

    def test_ctrl_c_as_an_epoch_was_entered(self):
        stream = self.wrap(IteratorStream(lambda: iter(examples(3))),
                           across_epochs=True)
        self.assertEqual(list(stream.get_epoch_iterator()), examples(3))
        store = stream._prefetcher._worker.store
        entered = store.entered

        def interrupted(channel):
            if channel is not first:
                del store.entered
                raise KeyboardInterrupt
            entered(channel)

        first = stream._prefetcher._channel
        store.entered = interrupted
        self.assertRaises(KeyboardInterrupt, stream.get_epoch_iterator)
        for _ in range(3):
            iterator = self.within(5, stream.get_epoch_iterator)
            self.assertEqual(self.within(5, list, iterator), examples(3))

    def test_no_thread_to_be_had(self):
        start = threading.Thread.start

        def refused(thread):
            raise RuntimeError("can't start new thread")

        stream = self.wrap(numbers(3))
        threading.Thread.start = refused
        try:
            self.assertRaises(RuntimeError, stream.get_epoch_iterator)
        finally:
            threading.Thread.start = start
        self.assertEqual(list(stream.get_epoch_iterator()), examples(3))


class TestAttributes(ContractTestCase):
    def test_pass_through(self):
        wrapped = DataStream(
            IndexableDataset(numpy.arange(8), axis_labels={'data': ('b',)}),
            iteration_scheme=SequentialScheme(8, 2))
        stream = self.wrap(wrapped)
        self.assertIsInstance(stream, Transformer)
        self.assertEqual(stream.sources, ('data',))
        self.assertEqual(stream.axis_labels, {'data': ('b',)})
        self.assertIs(stream.produces_examples, False)
        self.assertIs(stream.iteration_scheme, wrapped.iteration_scheme)
        wrapped.iteration_scheme = SequentialScheme(4, 1)
        self.assertIs(stream.iteration_scheme, wrapped.iteration_scheme)
        self.assertEqual(len(list(stream.get_epoch_iterator())), 4)

    def test_examples(self):
        self.assertIs(self.wrap(numbers(3)).produces_examples, True)
        self.assertIs(self.wrap(numbers(3)).iteration_scheme, None)

    def test_own_values(self):
        stream = self.wrap(numbers(3), axis_labels={'data': ('own',)},
                           produces_examples=False)
        self.assertEqual(stream.axis_labels, {'data': ('own',)})
        self.assertIs(stream.produces_examples, False)

    def test_scheme_is_set_where_it_works(self):
        stream = self.wrap(DataStream(
            IndexableDataset(numpy.arange(8)),
            iteration_scheme=SequentialScheme(8, 2)))
        scheme = stream.iteration_scheme = SequentialScheme(8, 4)
        self.assertIs(stream.data_stream.iteration_scheme, scheme)
        self.assertEqual(len(list(stream.get_epoch_iterator())), 2)

    def test_nothing_starts_in_the_constructor(self):
        wrapped = IteratorStream(lambda: iter([]))
        before = threading.active_count()
        self.wrap(wrapped, across_epochs=True)
        self.assertEqual(threading.active_count(), before)
        self.assertEqual(wrapped.calls, [])

    def test_stats(self):
        stream = self.wrap(IteratorStream(
            lambda: iter([(numpy.zeros(2),)] * 5)), copy=True)
        self.assertEqual(stream.stats.batches_produced, 0)
        for _ in range(2):
            list(stream.get_epoch_iterator())
        stats = stream.stats
        self.assertEqual((stats.batches_produced, stats.batches_taken,
                          stats.batches_held), (10, 10, 0))
        self.assertEqual((stats.bytes_produced, stats.bytes_taken,
                          stats.bytes_held), (160, 160, 0))
        self.assertGreater(stats.seconds_producing, 0)
        next(stream.get_epoch_iterator())
        stream.close()
        stats = stream.stats
        self.assertEqual(stats.batches_taken, 11)
        self.assertEqual(stats.batches_held, 0)
        self.assertEqual(stats.epochs, 3)
        self.assertEqual((stats - stats).batches_taken, 0)

    def test_stats_of_errors(self):
        items = Gated([(1,), Raise(ValueError()), (2,), Raise(ValueError())])
        items.permit(10)
        stream = self.wrap(IteratorStream(lambda: items))
        iterator = stream.get_epoch_iterator()
        next(iterator)
        self.assertRaises(ValueError, next, iterator)
        next(iterator)
        self.assertRaises(ValueError, next, iterator)
        self.assertRaises(StopIteration, next, iterator)
        self.assertEqual(stream.stats.errors, 2)
        self.assertEqual(stream.stats.batches_taken, 2)

    def test_stats_of_epochs_that_do_not_begin(self):
        errors = [StopIteration, ValueError]

        def begin():
            raise errors.pop()
        stream = self.wrap(IteratorStream(begin))
        self.assertRaises(ValueError, stream.get_epoch_iterator)
        self.assertRaises(StopIteration, stream.get_epoch_iterator)
        self.assertEqual(stream.stats.errors, 1)  # the other one is an end
        self.assertEqual(stream.stats.epochs, 0)

    def test_time_is_that_of_epochs_and_of_the_rest_between(self):
        stream = self.wrap(numbers(3))
        self.assertEqual(stream.stats.seconds, 0)
        list(stream.get_epoch_iterator())
        stats = stream.stats
        self.assertTrue(wait_until(
            lambda: (stream.stats - stats).seconds_resting > 0))
        self.assertEqual((stream.stats - stats).seconds_producing, 0)
        list(stream.get_epoch_iterator())
        stream.close()
        stats = stream.stats
        self.assertEqual(stream.stats, stats)


class TestArguments(ContractTestCase):
    def test_bad_ones_are_named_with_their_value(self):
        for name, values in [
                ('max_store', [0, -2, 1.5, '3', True, numpy.bool_(True)]),
                ('max_bytes', [0, -1, 1e6, 'many', False]),
                ('across_epochs', [None, 1, 'yes']),
                ('copy', [None, 0, 'no']),
                ('backend', ['processes', 'Thread', None, 3]),
                ('timeout', [0, -1., '5', True, float('nan')]),
                ('context', ['spawn']),
                ('iteration_scheme', [SequentialScheme(3, 1)])]:
            for value in values:
                with self.assertRaises(ValueError) as raised:
                    BackgroundDataStream(numbers(3), **{name: value})
                self.assertIn(name, str(raised.exception))
                self.assertIn(repr(value), str(raised.exception))
                self.assertNotIn('\n', str(raised.exception))

    def test_streams_that_are_none(self):
        for value in [None, 3, range(3), DataStream,
                      IterableDataset(range(3)),
                      numbers(3).get_epoch_iterator()]:
            with self.assertRaises(ValueError) as raised:
                BackgroundDataStream(value)
            self.assertIn('data_stream', str(raised.exception))

    def test_unknown_ones(self):
        self.assertRaises(TypeError, BackgroundDataStream, numbers(3),
                          depth=3)
        self.assertRaises(TypeError,
                          self.wrap(numbers(3)).get_epoch_iterator,
                          as_tuple=True)

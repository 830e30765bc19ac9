"""Pickles and copies of streams that are read ahead.

What they promise is compared with a bare stream that nobody interrupts: at
every position of an epoch, for every protocol, in the same process and in
another one. Any calls around them are in `test_model`.

"""
from __future__ import absolute_import, division, print_function

import copy
import itertools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy
import six
from fuel.datasets import IndexableDataset, IterableDataset
from fuel.schemes import (
    ConstantScheme, SequentialExampleScheme, SequentialScheme,
    ShuffledExampleScheme, ShuffledScheme)
from fuel.streams import AbstractDataStream, DataStream
from fuel.transformers import Batch, Mapping, Merge, Transformer
from six.moves import range

from fuel_prefetch import (
    BackgroundDataStream, PrefetchError, PrefetchTimeout)
from tests import (
    DEADLINE, ContractTestCase, Event, Gated, IteratorStream, Journal, numbers,
    thread_only, training, wait_until)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data')

PROTOCOLS = list(range(pickle.HIGHEST_PROTOCOL + 1))


def duplicates(objects):
    """Return a copy by each way there is."""
    return [pickle.loads(pickle.dumps(objects, protocol))
            for protocol in PROTOCOLS] + [copy.deepcopy(objects)]


def plain(value):
    """Return arrays as lists, wherever they are."""
    if isinstance(value, numpy.ndarray):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return tuple(plain(element) for element in value)
    return value


def read(iterator):
    return [plain(batch) for batch in iterator]


def double(example):
    return tuple(2 * source for source in example)


class Picky(ValueError):
    """An error that a pickle can hold, and not give back."""
    def __init__(self, one, two):
        super(Picky, self).__init__(one + two)


class Locked(ValueError):
    """An error that a pickle can't hold."""
    def __init__(self):
        super(Locked, self).__init__('locked')
        self.lock = threading.Lock()


class Failing(object):
    """A mapping that fails at one example."""
    def __init__(self, at, kind, *args):
        self.at, self.kind, self.args = at, kind, args

    def __call__(self, example):
        if example == (self.at,):
            raise self.kind(*self.args)
        return example


class Jitter(object):
    """A mapping with a random state of its own."""
    def __init__(self):
        self.rng = numpy.random.RandomState(7)

    def __call__(self, data):
        return tuple(source + self.rng.randint(100) for source in data)


class CountedReads(Transformer):
    """Counts, beside what it hands on, for all copies together."""
    _journal = Journal()

    def get_data(self, request=None):
        self._journal.append('')
        return next(self.child_epoch_iterator)

    @classmethod
    def reads(cls):
        return len(cls._journal)


def shuffled(size=20, batch=2):
    """Return a stream with two random states of its own."""
    return Mapping(DataStream(
        IndexableDataset(numpy.arange(size)),
        iteration_scheme=ShuffledScheme(
            size, batch, rng=numpy.random.RandomState(5))), Jitter())


def from_iterable():
    """Return a stream that can't be asked for a position."""
    return Mapping(DataStream(IterableDataset(list(range(10)))), double)


def merged():
    return Merge((ahead(from_iterable()), from_iterable()), ('a', 'b'))


def nested():
    stream = DataStream(
        IndexableDataset(list(range(15))),
        iteration_scheme=ShuffledExampleScheme(
            15, rng=numpy.random.RandomState(5)))
    return Mapping(Batch(ahead(Mapping(ahead(stream), Jitter())),
                         ConstantScheme(2)), Jitter())


def ahead(stream):
    """Read a stream in the midst of a chain ahead, but for the bare run."""
    return BackgroundDataStream(stream, max_store=3) if AHEAD else stream


AHEAD = True


class PicklingTestCase(ContractTestCase):
    every = 1

    def load(self, data):
        loaded = pickle.loads(data)
        stream = loaded[0] if isinstance(loaded, tuple) else loaded
        self.addCleanup(stream.close)
        return loaded

    def bare(self, make):
        """Return what is made without any reading ahead."""
        global AHEAD
        AHEAD = False
        try:
            return make()
        finally:
            AHEAD = True

    def settle(self, stream):
        """Wait until the stream is as far ahead as it comes."""
        last = []

        def still():
            last.append(stream.stats.batches_produced)
            return len(last) > 3 and last[-4] == last[-1]
        wait_until(still)

    def check_resumes(self, make, epochs=3, **kwargs):
        """Fail unless a pickle at any position of any epoch resumes.

        A process tries a few of them, for each takes another process.

        """
        moments = itertools.count()
        bare = self.bare(make)
        expected = [read(bare.get_epoch_iterator()) for _ in range(epochs)]
        for settled in (False, True):
            stream = self.wrap(make(), **kwargs)
            for number in range(epochs):
                iterator = stream.get_epoch_iterator()
                for position in range(len(expected[number]) + 2):
                    if settled:
                        self.settle(stream)
                    if next(moments) % self.every == 0:
                        self.check_twin(
                            stream, iterator, position + number,
                            [expected[number][position:]] +
                            expected[number + 1:])
                    if position < len(expected[number]):
                        self.assertEqual(plain(next(iterator)),
                                         expected[number][position])
                    else:
                        self.assertRaises(StopIteration, next, iterator)
            stream.close()

    def check_twin(self, stream, iterator, how, rest):
        how = (PROTOCOLS + [None])[how % (len(PROTOCOLS) + 1)]
        twin, its = (
            copy.deepcopy((stream, iterator)) if how is None else
            pickle.loads(pickle.dumps((stream, iterator), how)))
        self.assertIs(its.data_stream, twin)
        self.assertEqual([read(its)] + [
            read(twin.get_epoch_iterator()) for _ in rest[1:]], rest)
        twin.close()


class TestResume(PicklingTestCase):
    """R60, R61, R63, R64, R66: what was read ahead is neither lost nor twice.

    https://github.com/mila-iqia/fuel/issues/157
    https://github.com/mila-iqia/fuel/pull/33
    https://github.com/chainer/chainer/pull/7486
    https://github.com/meta-pytorch/data/issues/1520
    https://github.com/verl-project/verl/issues/7401
    https://github.com/meta-pytorch/data/pull/1439
    https://github.com/meta-pytorch/data/pull/1377
    https://github.com/ByteDance-Seed/VeOmni/pull/789
    https://github.com/chainer/chainer/issues/3754
    https://github.com/joeynmt/joeynmt/issues/125

    """
    def test_shuffled_batches(self):
        """R60: a shuffled scheme, at any position of three epochs."""
        self.check_resumes(shuffled, max_store=4)

    def test_iterable_examples(self):
        """R61: an iterator, so what was lost couldn't be read again."""
        for depth in (1, 8, None):
            self.check_resumes(from_iterable, max_store=depth)

    def test_across_epochs(self):
        """R66: the next epoch's order is drawn, and its noise."""
        for depth in (1, 4, 30):
            self.check_resumes(shuffled, max_store=depth, across_epochs=True)

    def test_bounded_bytes(self):
        self.check_resumes(shuffled, max_bytes=40, across_epochs=True)

    def test_nested(self):
        self.check_resumes(nested, max_store=2)

    def test_merged(self):
        self.check_resumes(merged, max_store=2)

    def test_around_the_end(self):
        """R63: after the last batch, after the end, before the next."""
        stream = self.wrap(shuffled(6), max_store=2)
        bare = shuffled(6)
        expected = [read(bare.get_epoch_iterator()) for _ in range(3)]
        moments = []
        iterator = stream.get_epoch_iterator()
        for _ in range(3):
            next(iterator)
        moments.append((pickle.dumps((stream, iterator)), [()], 1))
        self.assertRaises(StopIteration, next, iterator)
        moments.append((pickle.dumps((stream, iterator)), [()], 1))
        iterator = stream.get_epoch_iterator()
        moments.append((pickle.dumps((stream, iterator)), expected[1:2], 2))
        for data, rest, following in moments:
            loaded, its = self.load(data)
            self.assertEqual(read(its), list(rest[0]))
            for epoch in expected[following:]:
                self.assertEqual(read(loaded.get_epoch_iterator()), epoch)

    def test_before_the_first_batch(self):
        """R64: nothing was taken, and the store is full."""
        stream = self.wrap(from_iterable(), max_store=4)
        iterator = stream.get_epoch_iterator()
        self.settle(stream)
        for twin, its in duplicates((stream, iterator)):
            self.assertEqual(read(its), read(from_iterable()
                                             .get_epoch_iterator()))
            twin.close()

    def test_before_the_first_epoch(self):
        for twin in duplicates(self.wrap(numbers(4), max_store=3)):
            self.assertEqual(twin.max_store, 3)
            self.assertRaises(PrefetchError, twin.get_data)
            self.assertEqual(list(twin.get_epoch_iterator()),
                             list(numbers(4).get_epoch_iterator()))
            twin.close()

    def test_stream_alone(self):
        """Its epoch goes on by `get_data`, as that of any transformer."""
        stream = self.wrap(from_iterable(), max_store=3)
        next(stream.get_epoch_iterator())
        for twin in duplicates(stream):
            self.assertEqual(twin.get_data(), (2,))
            self.assertEqual(len(read(twin.get_epoch_iterator())), 10)
            self.assertRaises(StopIteration, twin.get_data)
            twin.close()

    def test_iterator_alone(self):
        stream = self.wrap(from_iterable(), max_store=3)
        iterator = stream.get_epoch_iterator(as_dict=True)
        next(iterator)
        for its in duplicates(iterator):
            self.assertEqual(next(its), {'data': 2})
            self.assertEqual(
                len(read(its.data_stream.get_epoch_iterator())), 10)
            its.data_stream.close()

    def test_again_and_again(self):
        """A second pickle in an epoch, and pickles of what was unpickled."""
        stream = self.wrap(shuffled(), max_store=4)
        bare = shuffled()
        expected = bare.get_epoch_iterator()
        pair = stream, stream.get_epoch_iterator()
        for _ in range(10):
            for _ in range(3):  # those in between are never asked
                pair = self.load(pickle.dumps(pair, 2))
            pickle.dumps(pair)
            self.assertEqual(plain(next(pair[1])), plain(next(expected)))
        self.assertRaises(StopIteration, next, pair[1])
        self.assertEqual(read(pair[0].get_epoch_iterator()),
                         read(bare.get_epoch_iterator()))

    def test_old_iterators(self):
        stream = self.wrap(numbers(9), max_store=2)
        closed = stream.get_epoch_iterator()
        next(closed)
        stream.close()
        superseded = stream.get_epoch_iterator()
        ended = stream.get_epoch_iterator()
        list(ended)
        live = stream.get_epoch_iterator()
        objects = [stream, closed, superseded, ended, live]
        for twin, closed, superseded, ended, live in (
                duplicates(objects) + duplicates(copy.deepcopy(objects))):
            self.assertRaises(PrefetchError, next, closed)
            self.assertRaises(StopIteration, next, superseded)
            self.assertRaises(StopIteration, next, ended)
            self.assertEqual(next(live), (0,))
            twin.close()

    def test_newer_epoch_of_an_unpickled_stream(self):
        """The iterator that came with it must not take what is the next's."""
        stream = self.wrap(numbers(9), max_store=2)
        pair = stream, stream.get_epoch_iterator()
        for twin, its in duplicates(pair):
            newer = twin.get_epoch_iterator()
            self.assertRaises(StopIteration, next, its)
            self.assertEqual(len(list(newer)), 9)
            twin.close()

    def test_first_calls_on_an_unpickled_stream(self):
        stream = self.wrap(numbers(9), max_store=2)
        iterator = stream.get_epoch_iterator()
        next(iterator)
        for twin, its in duplicates((stream, iterator)):
            twin.close()
            self.assertRaises(PrefetchError, next, its)
        for twin, its in duplicates((stream, iterator)):
            twin.next_epoch()
            twin.close()
        for twin, its in duplicates((stream, iterator)):
            del twin, its  # without a word

    def test_replaced_stream(self):
        """The epoch under way is of the stream that was wrapped before."""
        stream = self.wrap(numbers(5), max_store=2, across_epochs=True)
        iterator = stream.get_epoch_iterator()
        stream.data_stream = from_iterable()
        for twin, its in duplicates((stream, iterator)):
            self.assertEqual(read(its),
                             read(numbers(5).get_epoch_iterator()))
            self.assertEqual(len(read(twin.get_epoch_iterator())), 10)
            twin.close()

    def test_shallow_copy_shares_the_epoch(self):
        stream = self.wrap(numbers(5), max_store=2)
        iterator = stream.get_epoch_iterator()
        next(iterator)
        twin, its = copy.copy(stream), copy.copy(iterator)
        self.assertEqual([next(its), next(iterator), twin.get_data()],
                         [(1,), (2,), (3,)])


class Returning(object):
    """A function that returns one object, and can be pickled."""
    def __init__(self, value):
        self.value = value

    def __call__(self):
        return self.value


class Probe(AbstractDataStream):
    """Looks, when it is pickled, for itself being read."""
    sources = ('data',)
    produces_examples = True
    reading = False
    count = 0

    def get_data(self, request=None):
        self.reading = True
        self.count += 1
        threading.Event().wait(.002)
        self.reading = False
        return self.count,

    def __getstate__(self):
        for _ in range(10):
            assert not self.reading
            threading.Event().wait(.002)
        return self.__dict__.copy()

    def close(self):
        pass

    reset = next_epoch = close

    def get_epoch_iterator(self, **kwargs):
        return super(Probe, self).get_epoch_iterator(**kwargs)


class TestProducerRests(PicklingTestCase):
    def test_from_getstate_to_the_next_request(self):
        """Pickle walks the stream after `__getstate__` has returned."""
        for pickled in (0, 1):  # whichever comes first
            source = Gated(range(100))
            source.permit(100)
            stream = self.wrap(IteratorStream(Returning(source)), max_store=3)
            iterator = stream.get_epoch_iterator()
            next(iterator)
            for _ in range(3):
                (stream, iterator)[pickled].__getstate__()
                asked = source.asked
                self.assertGreater(asked, 1)
                # It has room for as many as the store holds, and would
                # not need a second for them.
                threading.Event().wait(.05)
                self.assertEqual(source.asked, asked)
                next(iterator)
                source.wait_asked(asked + 1)

    def test_while_a_stack_is_walked(self):
        """Each stream of a stack rests when its own turn comes."""
        probe = Probe()
        stream = probe
        for _ in range(3):
            stream = self.wrap(Mapping(stream, double), max_store=2)
        iterator = stream.get_epoch_iterator()
        for number in range(1, 20):
            self.assertEqual(next(iterator), (8 * number,))
            copy.deepcopy([stream, iterator][:1 + number % 2])

    def test_nothing_starts_when_it_is_loaded(self):
        stream = self.wrap(CountedReads(numbers(50), True), max_store=2)
        iterator = stream.get_epoch_iterator()
        next(iterator)
        data = pickle.dumps((stream, iterator))
        threads, reads = threading.active_count(), CountedReads.reads()
        twin, its = self.load(data)
        # Those that are on their way between processes are not held.
        self.assertIn(stream.stats.batches_pickled - twin.stats.batches_held,
                      range(self.in_hand))
        self.assertEqual(twin.stats.batches_taken, 1)
        self.assertEqual(twin.iteration_scheme, None)
        self.assertEqual(threading.active_count(), threads)
        self.assertEqual(CountedReads.reads(), reads)
        self.assertEqual(next(its), (1,))
        self.assertTrue(wait_until(lambda: CountedReads.reads() > reads))

    def test_nothing_is_read_twice(self):
        stream = self.wrap(CountedReads(numbers(20), True), max_store=5)
        iterator = stream.get_epoch_iterator()
        next(iterator)
        twin, its = self.load(pickle.dumps((stream, iterator)))
        stream.close()
        before = CountedReads.reads()
        self.assertEqual(len(list(its)), 19)
        # One more for the end.
        self.assertEqual(CountedReads.reads() - before,
                         21 - 1 - stream.stats.batches_pickled)

    def test_size_is_told(self):
        stream = self.wrap(DataStream(
            IndexableDataset(numpy.zeros((40, 10))),
            iteration_scheme=SequentialScheme(40, 2)), max_store=4)
        self.assertEqual(stream.stats.bytes_pickled, 0)
        iterator = stream.get_epoch_iterator()
        self.settle(stream)
        data = pickle.dumps((stream, iterator), 2)
        # More than `max_store`: what the producer had in its hands.
        count = 4 + self.in_hand
        self.assertEqual(stream.stats.batches_pickled, count)
        self.assertEqual(stream.stats.bytes_pickled, count * 160)
        self.assertEqual(self.load(data)[0].stats.bytes_held,
                         (self.most_held(4) + 1) * 160)


class TestAsked(PicklingTestCase):
    """Pickles that are made while somebody waits."""
    def epoch_that_is_late(self, across_epochs):
        """Return a stream, and what opens the gate of its next epoch."""
        gates = [Event() for _ in range(2)]
        gates[0].set()
        stream = self.wrap(Late(numbers(3), gates), timeout=.05,
                           across_epochs=across_epochs)
        iterator = self.patiently(stream.get_epoch_iterator)
        for number in range(3):
            self.assertEqual(self.patiently(next, iterator), (number,))
        self.assertRaises(StopIteration, self.patiently, next, iterator)
        self.assertRaises(PrefetchTimeout, stream.get_epoch_iterator)
        stream.timeout = stream._prefetcher.timeout = None
        stream._prefetcher._worker.store.timeout = None
        return stream, gates[1].set

    def test_epoch_that_did_not_begin_in_time(self):
        """It is in the pickle, as the next one."""
        for across_epochs in (False, True):
            stream, open_gate = self.epoch_that_is_late(across_epochs)
            opener = threading.Timer(.05, open_gate)
            opener.start()
            for twin in duplicates(stream):
                self.assertEqual(twin.data_stream.epochs, 2)
                self.assertEqual(list(twin.get_epoch_iterator()),
                                 [(0,), (1,), (2,)])
                twin.close()
            self.assertEqual(len(list(stream.get_epoch_iterator())), 3)
            self.join(self.start(opener.join))

    @unittest.skipUnless(hasattr(signal, 'SIGALRM'), 'there is no alarm')
    def test_by_a_signal_handler(self):
        """While the main thread waits for a batch, or for an epoch."""
        pickles, saving = [], threading.Event()

        def save(signum, frame):
            saving.set()
            # The producer must not go on meanwhile, though it is asked to.
            state = stream.__getstate__()
            reads = CountedReads.reads()
            threading.Event().wait(.03)
            self.assertEqual(CountedReads.reads(), reads)
            pickles.append(pickle.dumps((state, stream)))

        main = threading.current_thread().ident

        def waits(where):
            frame = sys._current_frames()[main]
            while frame is not None and frame.f_code.co_name != where:
                frame = frame.f_back
            return frame is not None

        def interrupt(where):
            wait_until(lambda: waits(where))
            os.kill(os.getpid(), signal.SIGALRM)
            saving.wait(DEADLINE)
            threading.Event().wait(.02)  # until it waits for the producer
            for gate in gates:
                gate.set()

        before = signal.signal(signal.SIGALRM, save)
        try:
            for epoch in (False, True):
                gates = [Event() for _ in range(3)]
                stream = self.wrap(
                    CountedReads(Late(numbers(4), gates, not epoch), True))
                saving.clear()
                where = 'enter' if epoch else '_wait'
                opener = threading.Thread(target=interrupt, args=(where,))
                opener.start()
                found = list(stream.get_epoch_iterator())
                self.assertEqual(found, [(0,), (1,), (2,), (3,)])
                opener.join()
                self.assertTrue(pickles)
                twin = pickle.loads(pickles.pop())[1]
                if epoch:
                    self.assertEqual(list(twin.get_epoch_iterator()), found)
                else:
                    self.assertEqual([twin.get_data() for _ in range(4)],
                                     found)
                twin.close()
        finally:
            signal.signal(signal.SIGALRM, before)


class Late(Transformer):
    """A stream whose epochs, or first examples, wait for gates."""
    def __init__(self, data_stream, gates, examples=False):
        super(Late, self).__init__(data_stream, produces_examples=True)
        self.gates = gates
        self.examples = examples
        self.epochs = 0

    def get_epoch_iterator(self, **kwargs):
        if self.gates and not self.examples:
            self.gates[min(self.epochs, len(self.gates) - 1)].wait(5)
        self.epochs += 1
        return super(Late, self).get_epoch_iterator(**kwargs)

    def get_data(self, request=None):
        if self.gates and self.examples:
            self.gates[0].wait(5)
        return next(self.child_epoch_iterator)

    def __getstate__(self):
        return dict(self.__dict__, gates=None)


class TestIdentity(PicklingTestCase):
    @thread_only('what a process has of anything else is a copy')
    def test_what_is_shared_stays_shared(self):
        dataset = IndexableDataset(numpy.arange(10))
        stream = self.wrap(DataStream(
            dataset, iteration_scheme=SequentialExampleScheme(10)))
        iterator = stream.get_epoch_iterator()
        next(iterator)
        for objects in ([stream, iterator, dataset],
                        [iterator, stream, dataset],
                        [dataset, iterator, stream]):
            for found in duplicates(objects):
                twin, its, shared = [
                    [it for it in found if isinstance(it, type(kind))][0]
                    for kind in (stream, iterator, dataset)]
                self.assertIs(its.data_stream, twin)
                self.assertIs(twin.data_stream.dataset, shared)
                self.assertEqual(next(its), (1,))
                twin.close()

    def test_one_epoch_for_both(self):
        """Iterator and stream draw from one store afterwards too."""
        stream = self.wrap(numbers(9), max_store=2)
        for twin, its in duplicates((stream, stream.get_epoch_iterator())):
            self.assertEqual([next(its), twin.get_data(), next(its)],
                             [(0,), (1,), (2,)])
            twin.close()

    def test_streams_wrapped_iterator_is_its_own(self):
        """The wrapped chain is one with what its iterator reads."""
        stream = self.wrap(Mapping(numbers(9), double), max_store=2)
        iterator = stream.get_epoch_iterator()
        next(iterator)
        twin, its = self.load(pickle.dumps((stream, iterator)))
        twin.data_stream.mapping = str
        self.settle(twin)
        batches = list(its)
        self.assertIn(('(8,)'), batches)


class TestErrors(PicklingTestCase):
    instead = PrefetchError  # of an error that doesn't come out of a pickle

    def failing(self, at, kind, *args, **kwargs):
        return self.wrap(Mapping(numbers(9), Failing(at, kind, *args)),
                         **kwargs)

    def test_error_read_ahead(self):
        stream = self.failing(2, ValueError, 'at', 2)
        iterator = stream.get_epoch_iterator()
        self.settle(stream)
        for twin, its in duplicates((stream, iterator)):
            self.assertEqual([next(its), next(its)], [(0,), (1,)])
            with self.assertRaises(ValueError) as caught:
                next(its)
            self.assertIs(type(caught.exception), ValueError)
            self.assertEqual(caught.exception.args, ('at', 2))
            if six.PY3:
                self.assertIn('in __call__', str(caught.exception.__cause__))
            self.settle(twin)
            self.assertEqual(twin.stats.batches_produced, 2)  # not unasked
            self.assertEqual(read(its), [(number,) for number in range(3, 9)])
            twin.close()
        # The original is untouched.
        self.assertEqual([next(iterator), next(iterator)], [(0,), (1,)])
        with self.assertRaises(ValueError) as caught:
            next(iterator)
        if self.backend == 'thread':  # it was never pickled
            self.assertIs(getattr(caught.exception, '__cause__', None), None)
        self.assertEqual(len(read(iterator)), 6)

    def test_error_just_delivered(self):
        """The error was handed out; what follows was not asked for."""
        stream = self.failing(2, ValueError)
        iterator = stream.get_epoch_iterator()
        next(iterator), next(iterator)
        try:
            next(iterator)
        except ValueError:
            within = duplicates((stream, iterator))
        for twin, its in within + duplicates((stream, iterator)):
            self.assertEqual(read(its), [(number,) for number in range(3, 9)])
            twin.close()
        self.assertEqual(len(read(iterator)), 6)

    def test_errors_that_do_not_come_out_of_a_pickle(self):
        """They must not cost the checkpoint, above all not on loading."""
        for kind, args in [(Picky, 'ab'), (Locked, '')]:
            stream = self.failing(1, kind, *args)
            iterator = stream.get_epoch_iterator()
            self.settle(stream)
            for twin, its in duplicates((stream, iterator)):
                self.assertEqual(next(its), (0,))
                with self.assertRaises(Exception) as caught:
                    next(its)
                # Some libraries (tblib) teach pickle to hold them.
                if type(caught.exception) is not kind:
                    self.assertIs(type(caught.exception), self.instead)
                    self.assertIn(kind.__name__, str(caught.exception))
                self.assertEqual(len(read(its)), 7)
                twin.close()
            next(iterator)
            self.assertRaises(
                kind if self.backend == 'thread' else self.instead,
                next, iterator)

    def test_errors_that_come_out_of_a_pickle_as_others(self):
        """Their text would grow with each pickle, or they can't be told."""
        for kind in (Wordy, Frozen):
            stream = self.failing(1, kind, 'a.png')
            iterator = stream.get_epoch_iterator()
            self.settle(stream)
            for twin, its in duplicates((stream, iterator)):
                self.assertEqual(next(its), (0,))
                with self.assertRaises(Exception) as caught:
                    next(its)
                self.assertTrue(str(caught.exception).rstrip().endswith(
                    'cannot read a.png'), caught.exception)
                self.assertEqual(len(read(its)), 7)
                twin.close()

    def test_end_with_arguments_that_cannot_be_pickled(self):
        """An end that was read ahead must not cost the checkpoint."""
        for twin, its in self.ended_with(threading.Lock()):
            self.assertEqual(next(its), 1)
            self.assertRaises(StopIteration, next, its)
        for twin, its in self.ended_with('args'):
            next(its)
            with self.assertRaises(StopIteration) as caught:
                next(its)
            self.assertEqual(caught.exception.args, ('args',))

    def ended_with(self, argument):
        stream = self.wrap(Ending(argument))
        iterator = stream.get_epoch_iterator()
        wait_until(lambda: stream._prefetcher._latest.complete)
        return duplicates((stream, iterator))

    def test_error_at_the_start_of_an_epoch(self):
        """An epoch that was begun ahead, and can't be."""
        stream = self.wrap(OneEpoch(numbers(4)), across_epochs=True)
        iterator = stream.get_epoch_iterator()
        next(iterator)
        self.settle(stream)
        for twin, its in duplicates((stream, iterator)):
            self.assertEqual(len(read(its)), 3)
            self.assertRaises(StopIteration, twin.get_epoch_iterator)
            twin.close()
        self.assertEqual(len(read(iterator)), 3)
        self.assertRaises(StopIteration, stream.get_epoch_iterator)


class Wordy(Exception):
    def __init__(self, path):
        super(Wordy, self).__init__('cannot read ' + path)


class Frozen(Exception):
    """An error that nothing may be set on."""
    def __str__(self):
        return 'cannot read ' + self.args[0]

    def __setattr__(self, name, value):
        raise AttributeError(name)


class Ending(AbstractDataStream):
    """A stream of one example, and an end with an argument."""
    sources = ('data',)

    def __init__(self, argument):
        super(Ending, self).__init__()
        self.produces_examples = True
        self.argument = argument
        self.done = False

    def get_epoch_iterator(self, **kwargs):
        return super(Ending, self).get_epoch_iterator(**kwargs)

    def get_data(self, request=None):
        if self.done:
            raise StopIteration(self.argument)
        self.done = True
        return 1

    def close(self):
        pass

    def __getstate__(self):
        return dict(self.__dict__, argument=None)

    reset = next_epoch = close


class OneEpoch(Transformer):
    """A stream that has one epoch."""
    done = False

    def __init__(self, data_stream):
        super(OneEpoch, self).__init__(data_stream, produces_examples=True)

    def get_epoch_iterator(self, **kwargs):
        if self.done:
            raise StopIteration
        self.done = True
        return super(OneEpoch, self).get_epoch_iterator(**kwargs)

    def get_data(self, request=None):
        return next(self.child_epoch_iterator)


class TestRefusals(PicklingTestCase):
    def test_what_cannot_be_pickled_is_named(self):
        """R68: pickle's own error, at once, and training goes on.

        https://github.com/mila-iqia/fuel/issues/44
        https://github.com/mila-iqia/blocks/pull/112

        """
        generator = (number for number in range(9))
        for make, name in [
                (lambda: Mapping(numbers(9), lambda data: data),
                 'lambda|function'),
                (lambda: DataStream(IterableDataset(generator)),
                 'generator')]:
            stream = self.wrap(make(), max_store=2)
            iterator = stream.get_epoch_iterator()
            self.assertEqual(next(iterator), (0,))
            for protocol in PROTOCOLS:
                with self.assertRaises(Exception) as caught:
                    pickle.dumps((stream, iterator), protocol)
                self.assertNotIsInstance(caught.exception, PrefetchError)
                if protocol >= 2:  # before, the reason is another one
                    six.assertRegex(self, str(caught.exception), name)
            self.assertEqual(list(iterator),
                             [(number,) for number in range(1, 9)])

    def test_batch_in_hand_that_takes_too_long(self):
        source = Gated(range(5))
        stream = self.wrap(IteratorStream(lambda: source), timeout=.1)
        source.permit()
        iterator = self.patiently(stream.get_epoch_iterator)
        self.patiently(next, iterator)
        source.wait_asked(2)
        self.assertRaises(PrefetchTimeout, stream.__getstate__)
        source.permit(9)
        for number in range(1, 5):
            self.assertEqual(self.patiently(next, iterator), number)

    def test_newer_version(self):
        state = self.wrap(numbers(2)).__getstate__()
        with self.assertRaises(PrefetchError) as caught:
            BackgroundDataStream.__new__(BackgroundDataStream).__setstate__(
                dict(state, fuel_prefetch={'version': 1000}))
        self.assertIn('1000', str(caught.exception))

    def test_no_thread_to_be_had(self):
        """Nothing is lost when an unpickled stream can't go on at first."""
        stream = self.wrap(numbers(9), max_store=3)
        iterator = stream.get_epoch_iterator()
        next(iterator)
        twin, its = self.load(pickle.dumps((stream, iterator)))
        start = threading.Thread.start

        def fail(thread):
            raise RuntimeError("can't start new thread")
        threading.Thread.start = fail
        try:
            self.assertRaises(RuntimeError, next, its)
            self.assertRaises(RuntimeError, twin.get_data)
        finally:
            threading.Thread.start = start
        self.assertEqual(list(its), [(number,) for number in range(1, 9)])

    def test_closing_starts_nothing(self):
        stream = self.wrap(numbers(9), max_store=3)
        iterator = stream.get_epoch_iterator()
        next(iterator)
        twin, its = self.load(pickle.dumps((stream, iterator)))
        other, its_other = self.load(pickle.dumps((stream, iterator)))
        start = threading.Thread.start
        threading.Thread.start = None
        try:
            twin.close()
            self.assertRaises(PrefetchError, next, its)
            self.assertEqual(twin.stats.batches_held, 0)
            self.assertRaises(TypeError, other.get_epoch_iterator)
            self.assertRaises(StopIteration, next, its_other)
        finally:
            threading.Thread.start = start
        self.assertEqual(len(list(twin.get_epoch_iterator())), 9)

    def test_ctrl_c_while_it_awakes(self):
        stream = self.wrap(numbers(9), max_store=3)
        iterator = stream.get_epoch_iterator()
        next(iterator)
        twin, its = self.load(pickle.dumps((stream, iterator)))
        start = threading.Thread.start

        def interrupted(thread):
            start(thread)
            raise KeyboardInterrupt
        threading.Thread.start = interrupted
        try:
            self.assertRaises(KeyboardInterrupt, next, its)
        finally:
            threading.Thread.start = start
        self.assertEqual(list(its), [(number,) for number in range(1, 9)])

    @thread_only('neither does it have the stream, unless after a reset')
    @unittest.skipUnless(hasattr(os, 'fork'), 'there is no fork')
    def test_forked_in_an_epoch(self):
        """The child doesn't have what was read ahead, and says so."""
        stream = self.wrap(numbers(9), max_store=2)
        iterator = stream.get_epoch_iterator()
        next(iterator)

        def child():
            try:
                pickle.dumps((stream, iterator))
                return 2
            except PrefetchError as error:
                if 'forked' not in str(error):
                    return 3
            copied = pickle.loads(pickle.dumps(stream))
            try:
                copied.get_data()
                return 4
            except PrefetchError:
                next(copied.get_epoch_iterator())
            return 7
        self.assertEqual(self.in_child(child), 7)
        self.assertEqual(len(list(iterator)), 8)

    def test_closed(self):
        """What a closed stream is good for, its copy is good for too."""
        stream = self.wrap(numbers(5))
        next(stream.get_epoch_iterator())
        stream.close()
        for twin in duplicates(stream):
            self.assertEqual(len(list(twin.get_epoch_iterator())), 5)
            twin.close()


class TestOldPickles(PicklingTestCase):
    """What an older version wrote is read for ever.

    The files were written by `write_old_pickle` below. Add some for each new
    version of the state, and leave the others as they are. There is one of
    Python 2, where the iterators inside Fuel's streams are others.

    """
    def test_version_1(self):
        name = 'state-1-py{}.pkl'.format(sys.version_info[0])
        with open(os.path.join(DATA, name), 'rb') as file_:
            data = file_.read()
        stream, iterator = self.load(data)
        stats = stream.stats
        self.assertEqual(stats.batches_taken, 3)
        # What wasn't counted then begins at 0.
        self.assertEqual((stats.errors, stats.epochs, stats.seconds_resting),
                         (0, 0, 0.))
        self.assertEqual(list(iterator), [(6,), (8,)])
        self.assertRaises(StopIteration, next, iterator)
        self.assertEqual(list(stream.get_epoch_iterator(as_dict=True)),
                         [{'data': 2 * number} for number in range(5)])


def write_old_pickle(path):
    """Write the pair in mid-epoch, with the next epoch begun as well."""
    stream = BackgroundDataStream(
        Mapping(DataStream(IndexableDataset([0, 1, 2, 3, 4]),
                           iteration_scheme=SequentialExampleScheme(5)),
                double), max_store=3, across_epochs=True)
    iterator = stream.get_epoch_iterator()
    for _ in range(3):
        next(iterator)
    wait_until(lambda: stream.stats.batches_produced == 7)
    with open(path, 'wb') as file_:
        pickle.dump((stream, iterator), file_, 2)
    stream.close()


class TestKilled(PicklingTestCase):
    """R60: training that is killed goes on in another process.

    The main loop is to Blocks' protocol, the data in HDF5 files on disk. See
    `test_blocks` for Blocks itself.

    """
    kinds = 'ahead', 'across', 'nested'

    def setUp(self):
        super(TestKilled, self).setUp()
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)
        training.write_data(os.path.join(self.directory, 'data.hdf5'))

    def train(self, kind, *checkpoints):
        """Train in a process of its own; return how that ended."""
        process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-m', 'tests.training',
             self.directory, kind] + [str(number) for number in checkpoints],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        output = process.communicate()[0].decode()
        watchdog.cancel()
        return process.returncode, output

    def test_resumes(self):
        code, expected = self.train('bare')
        self.assertEqual(code, 0, expected)
        self.assertEqual(len(expected.split()), 4 * 8)
        for kind in self.kinds:
            # In mid-epoch, at the last batch of one, and at the first.
            for checkpoints in [(3, 5), (14, 16), (23, 25)]:
                code, output = self.train(kind, *checkpoints)
                self.assertEqual((code, output), (-signal.SIGKILL, ''))
            self.assertEqual(self.train(kind), (0, expected))
            os.remove(os.path.join(self.directory, 'main_loop.pkl'))

"""Tests of the stages of a chain, and what is found out of each."""
from __future__ import absolute_import, division, print_function

import threading
import unittest

import numpy
from fuel.datasets import IndexableDataset, IterableDataset
from fuel.schemes import ConstantScheme, SequentialScheme
from fuel.streams import AbstractDataStream, DataStream
from fuel.transformers import Batch, Cast, Filter, Mapping, Merge, Unpack

from fuel_prefetch import BackgroundDataStream, ParallelMapping
from fuel_prefetch import stages as module
from fuel_prefetch.stages import (
    LockProbe, Stage, Stages, children_of, count_try, replaced)
from tests import ConcurrentTestCase, numbers


def double(data):
    return tuple(2 * source for source in data)


def is_even(data):
    return data[0] % 2 == 0


class Unknown(AbstractDataStream):
    """A transformer that is none of Fuel's, and yields rather than returns."""
    sources = ('data',)

    def __init__(self, child):
        super(Unknown, self).__init__()
        self.produces_examples = True
        self.inner = {'child': child}

    def get_epoch_iterator(self, as_dict=False):
        for data in self.inner['child'].get_epoch_iterator():
            yield data

    def get_data(self, request=None):
        raise NotImplementedError

    def close(self):
        self.inner['child'].close()

    reset = next_epoch = close


class Slotted(object):
    """A stream on which nothing can be set."""
    __slots__ = ['child']
    sources = ('data',)
    axis_labels = None
    produces_examples = True

    def __init__(self, child):
        self.child = child

    def get_epoch_iterator(self):
        return self.child.get_epoch_iterator()

    def get_data(self, request=None):
        return self.child.get_data(request)


def batches(count=4):
    return DataStream(
        IndexableDataset(numpy.arange(2 * count)),
        iteration_scheme=SequentialScheme(2 * count, 2))


CHAINS = {
    'a dataset alone': batches,
    'transformers': lambda: Cast(Mapping(batches(), double), 'float32'),
    'examples in batches': lambda: Batch(
        Mapping(Filter(Unpack(batches()), is_even), double),
        ConstantScheme(3)),
    'an unknown transformer': lambda: Mapping(Unknown(numbers(5)), double),
    'a stream without attributes': lambda: Mapping(
        Slotted(numbers(5)), double),
    'several streams': lambda: Merge(
        [Mapping(batches(), double), Cast(batches(), 'float32')], ('a', 'b')),
    'one stream twice': lambda: (lambda shared: Merge(
        [shared, shared], ('a', 'b')))(batches()),
    'one that is read ahead': lambda: Mapping(
        BackgroundDataStream(ParallelMapping(batches(), double)), double),
}


def plain(epoch):
    return [tuple(numpy.asarray(source).tolist() for source in data)
            for data in epoch]


class TestStages(ConcurrentTestCase):
    def make(self, name):
        stream = CHAINS[name]()
        if not isinstance(getattr(stream, 'data_stream', None), Slotted):
            self.addCleanup(stream.close)
        return stream

    def test_batches_stay_the_same(self):
        for name in CHAINS:
            bare, stream = self.make(name), self.make(name)
            expected = [plain(bare.get_epoch_iterator()) for _ in range(3)]
            with Stages(stream) as stages:
                timed = [plain(stream.get_epoch_iterator()) for _ in range(2)]
            self.assertEqual(timed, expected[:2], name)
            # And so do those that come afterwards.
            self.assertEqual(plain(stream.get_epoch_iterator()), expected[2])
            self.assertTrue(all(
                stage.seconds > 0 or isinstance(stage.stream, Slotted)
                for stage in stages.all), name)

    def test_nothing_is_left_behind(self):
        for name in CHAINS:
            stream = self.make(name)
            stages = Stages(stream)
            chain = [stage.stream for stage in stages.all
                     if hasattr(stage.stream, '__dict__')]
            before = [set(vars(one)) for one in chain]
            with stages:
                self.assertIn('get_data', vars(stream))
            self.assertEqual([set(vars(one)) for one in chain], before)

    def test_what_was_set_is_put_back(self):
        stream = batches()
        stream.get_data = own = stream.get_data
        try:
            with Stages(stream):
                self.assertIsNot(stream.get_data, own)
                raise KeyError
        except KeyError:
            pass
        self.assertIs(stream.get_data, own)

    def test_chain(self):
        merged = CHAINS['several streams']()
        self.assertEqual(
            [(stage.name, stage.depth, stage.branches)
             for stage in Stages(merged).all],
            [('Merge', 0, False), ('Mapping (double)', 1, True),
             ('DataStream (IndexableDataset)', 1, False), ('Cast', 1, True),
             ('DataStream (IndexableDataset)', 1, False)])
        twice = CHAINS['one stream twice']()
        self.assertEqual(len(Stages(twice).all), 2)
        unknown = CHAINS['an unknown transformer']()
        self.assertEqual([type(stage.stream).__name__
                          for stage in Stages(unknown).all],
                         ['Mapping', 'Unknown', 'DataStream'])
        # What is in another process can't be looked at.
        self.assertEqual(children_of(BackgroundDataStream(
            batches(), backend='process')), [])

    def test_time_is_that_of_the_stage_alone(self):
        clock = [0.]

        def spend(seconds):
            def mapping(data):
                clock[0] += seconds
                return data
            return mapping

        for name, function in [('monotonic', lambda: clock[0]),
                               ('cpu_time', lambda: clock[0] / 2)]:
            self.addCleanup(setattr, module, name, getattr(module, name))
            setattr(module, name, function)
        stream = Mapping(Mapping(batches(4), spend(2.)), spend(1.))
        with Stages(stream) as stages:
            for _ in stream.get_epoch_iterator():
                clock[0] += 100
        self.assertEqual([stage.seconds for stage in stages.all],
                         [4., 8., 0.])
        self.assertEqual([stage.cpu for stage in stages.all], [2., 4., 0.])

    def test_error_passes_through(self):
        def fail(data):
            if data[0] == 1:
                raise KeyError('nothing')
            return data

        stream = Mapping(Mapping(numbers(3), fail), double)
        with Stages(stream) as stages:
            iterator = stream.get_epoch_iterator()
            self.assertEqual(next(iterator), (0,))
            with self.assertRaises(KeyError):
                next(iterator)
            self.assertIsNone(stages.current)
            self.assertEqual(next(iterator), (4,))

    def test_attributes_of_iterators(self):
        stream = numbers(3)
        with Stages(stream):
            self.assertIs(stream.get_epoch_iterator().data_stream, stream)

    def test_threads_have_stages_of_their_own(self):
        stream = numbers(3)
        with Stages(stream) as stages:
            stage = stages.all[0]
            with stages.within(stage):
                seen = []
                thread = threading.Thread(
                    target=lambda: seen.extend(stream.get_epoch_iterator()))
                thread.start()
                thread.join()
                self.assertIs(stages.current, stage)
        self.assertEqual(seen, [(0,), (1,), (2,)])


class TestKind(unittest.TestCase):
    def test_kind(self):
        for cpu, tries, waits, kind in [
                (.4, 10, 10, 'waits'), (.6, 4, 4, 'computes'),
                (.6, 10, 5, 'keeps the lock'),
                (.6, 10, 4, 'releases the lock')]:
            stage = Stage(None, 0)
            stage.seconds, stage.cpu = 1., cpu
            stage.lock_tries, stage.lock_waits = tries, waits
            self.assertEqual(stage.kind, kind)

    def test_tries(self):
        for at_work, taken, stayed, counted in [
                (True, 1., -1., (1, 0)), (True, 3., -1., (1, 1)),
                (False, 3., 2.5, (1, 1)),  # it kept the lock until it left
                (False, 3., 1., (0, 0)), (False, 1., .5, (0, 0))]:
            stage = Stage(None, 0)
            count_try(stage, at_work, taken, stayed, late=2.)
            self.assertEqual((stage.lock_tries, stage.lock_waits), counted)

    def test_probe_ends(self):
        with LockProbe(Stages(numbers(3))) as probe:
            pass
        self.assertFalse(probe._thread.is_alive())


class TestReplaced(unittest.TestCase):
    def test_replaced_and_put_back(self):
        for name in ('transformers', 'several streams',
                     'an unknown transformer'):
            stream = CHAINS[name]()
            streams = [stage.stream for stage in Stages(stream).all]
            old = streams[-1]
            before = [vars(one).copy() for one in streams]
            new = DataStream(IterableDataset([1]))
            with replaced(streams, old, new):
                found = [stage.stream for stage in Stages(stream).all]
                self.assertIn(new, found)
                self.assertNotIn(old, found)
            self.assertEqual([vars(one) for one in streams], before)

"""Tests of the rule behind the advice of `fuel-prefetch profile`."""
from __future__ import absolute_import, division, print_function

import unittest

from fuel.transformers import Mapping

from fuel_prefetch.diagnosis import (
    CHEAPER, DEEPER, EPOCHS, NOTHING, PROCESS, WORKERS, Measured, advise,
    depth_for, waiting_at)
from fuel_prefetch.profiling import Run
from fuel_prefetch.stages import Stage
from fuel_prefetch.stats import Stats
from tests import numbers

WAITS, COMPUTES, KEEPS, RELEASES = range(4)
COUNT = 100


def decode(data):
    return data


def make_stage(stream, seconds, kind):
    stage = Stage(stream, 0)
    stage.seconds = seconds * COUNT
    stage.cpu = 0. if kind == WAITS else stage.seconds
    stage.lock_tries = 0 if kind == COMPUTES else 10
    stage.lock_waits = 10 if kind == KEEPS else 0
    return stage


def measured(reading=1., step=1., kind=WAITS, waiting=0., stepping=None,
             waits=None, first=0., epochs=1, **kwargs):
    """Return what might have been measured, with a mapping.

    Parameters
    ----------
    reading, step : float
        Of a batch, each alone.
    kind : int
        Of the mapping, which is all of the reading but a hundredth.
    waiting, stepping : float
        Of a batch, with prefetching.
    waits : list of float
        The reading, where it differs.
    first : float
        The wait for the first batch of each epoch.

    """
    source = numbers(3)
    mapping = Mapping(source, decode)
    stages = [make_stage(mapping, .99 * reading, kind),
              make_stage(source, .01 * reading, WAITS)]
    waits = waits or COUNT * [reading]
    bare = Run(waits, COUNT * [step], {0}, sum(waits) + COUNT * step)
    firsts = set(range(0, COUNT, COUNT // epochs))
    ahead_waits = [first if number in firsts else waiting
                   for number in range(COUNT)]
    stepping = stepping or step
    ahead = Run(ahead_waits, COUNT * [stepping], firsts,
                sum(ahead_waits) + COUNT * stepping)
    settings = dict(max_store=10, backend='thread', workers=0, cores=2)
    settings.update(kwargs)
    stats = settings.pop('stats', Stats(
        batches_produced=COUNT, bytes_produced=COUNT * 10 ** 6,
        seconds_producing=reading * COUNT))
    stages = settings.pop('stages', stages)
    return Measured(stages, bare, ahead, stats, **settings)


class Fighting(Stats):
    """Statistics that say that the two sides fight for the lock."""
    __slots__ = ()
    advice = 'the two take turns'


class TestAdvice(unittest.TestCase):
    def assert_advice(self, verdict, *parts, **kwargs):
        advice = advise(measured(**kwargs))
        self.assertEqual(advice.verdict, verdict, advice)
        for part in parts:
            self.assertIn(part, '{0.why} {0.line}'.format(advice))

    def test_nothing_to_hide(self):
        self.assert_advice(NOTHING, '2%', reading=.02)

    def test_nothing_more(self):
        self.assert_advice(NOTHING, 'max_store=10)', reading=.8, waiting=.03)
        self.assert_advice(NOTHING, 'backend=', reading=.8,
                           backend='process')

    def test_first_batch_of_the_only_epoch_does_not_count(self):
        self.assert_advice(NOTHING, reading=.8, first=30.)

    def test_epochs(self):
        self.assert_advice(EPOCHS, 'across_epochs=True)', '17%',
                           reading=.8, first=2., epochs=10)

    def test_deeper_store(self):
        # Every 25th batch takes as long as 15 steps; a second less is .8.
        waits = [15. if number % 25 == 20 else .2 for number in range(COUNT)]
        self.assert_advice(
            DEEPER, 'max_store=16)', '16 MB', '15.0 steps', reading=.79,
            waits=waits, waiting=.1)
        # That there is so much already means that it is something else.
        self.assert_advice(NOTHING, 'Another program', reading=.79,
                           waits=waits, waiting=.1, max_store=16)
        self.assert_advice(NOTHING, 'Another program', reading=.79,
                           waits=waits, waiting=.1, max_store=None)

    def test_workers(self):
        self.assert_advice(WORKERS, 'threads', 'decode, workers=4)',
                           'Mapping (decode)', reading=3., waiting=2.)
        self.assert_advice(WORKERS, 'ProcessPoolExecutor(2)', kind=KEEPS,
                           reading=1.6, waiting=.6)
        self.assert_advice(WORKERS, 'threads', 'workers=2)', kind=RELEASES,
                           reading=1.6, waiting=.6)
        self.assert_advice(WORKERS, 'Python rather than', kind=COMPUTES,
                           reading=1.6, waiting=.6)

    def test_no_more_workers_than_cores_where_they_compute(self):
        self.assert_advice(WORKERS, '4 would keep up', '2 cores',
                           'workers=2)', kind=RELEASES, reading=3.,
                           waiting=2.)

    def test_workers_are_there_already(self):
        self.assert_advice(WORKERS, 'workers=4)', reading=3., waiting=.5,
                           workers=2)
        self.assert_advice(CHEAPER, 'can use', kind=RELEASES, reading=3.,
                           waiting=.5, workers=2)
        self.assert_advice(NOTHING, 'decode, workers=4)', reading=3.,
                           workers=4)
        self.assert_advice(
            NOTHING, 'ProcessPoolExecutor(2)', kind=KEEPS, reading=1.5,
            workers=2, backend='process')

    def test_what_is_no_mapping_must_become_cheaper(self):
        self.assert_advice(
            CHEAPER, 'DataStream (IterableDataset)', reading=2., waiting=1.,
            stages=[make_stage(numbers(3), 2., WAITS)])

    def test_process(self):
        for kwargs in [
                dict(stats=Fighting()),
                dict(reading=.9, waiting=.5,
                     stats=Stats(batches_produced=COUNT,
                                 seconds_producing=1.6 * .9 * COUNT)),
                dict(reading=.9, stepping=1.6),
                dict(reading=.9, stepping=1.2, kind=KEEPS)]:
            self.assert_advice(PROCESS, "backend='process')", **kwargs)
            self.assertNotEqual(advise(measured(
                backend='process', **kwargs)).verdict, PROCESS)
        self.assert_advice(NOTHING, reading=.9, stepping=1.2)
        self.assert_advice(NOTHING, reading=.9, stepping=1.6, cores=1)

    def test_process_where_reading_is_slower_too(self):
        """What hinders both comes first, unless workers cure it as well."""
        slower = dict(reading=1.3, waiting=.3, stepping=2.)
        self.assert_advice(PROCESS, **slower)
        self.assert_advice(WORKERS, 'ProcessPoolExecutor', kind=KEEPS,
                           **slower)


class TestDepth(unittest.TestCase):
    def test_even_batches_need_a_depth_of_one(self):
        self.assertEqual(waiting_at(1, 10 * [1.], 1.), 0)
        self.assertEqual(waiting_at(1, 10 * [.5], 1.), 0)
        self.assertEqual(depth_for(10 * [.5], 1.), 1)

    def test_slow_batches_are_waited_for_whatever_the_depth(self):
        for depth in (1, 10, 1000):
            self.assertAlmostEqual(waiting_at(depth, 10 * [3.], 1.), 9 * 2.)
        self.assertIsNone(depth_for(10 * [3.], 1.))

    def test_pause_is_bridged_by_as_many_steps(self):
        reading = 20 * [.1] + [8.] + 20 * [.1]
        # It begins as what is held is full, and one more is in training.
        for depth, waited in [(1, 6.), (2, 5.), (4, 3.), (7, 0.), (8, 0.)]:
            self.assertAlmostEqual(waiting_at(depth, reading, 1.), waited)
        self.assertEqual(depth_for(reading, 1.), 8)

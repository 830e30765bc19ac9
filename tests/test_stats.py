"""Tests of the counters and what they say."""
from __future__ import absolute_import, division, print_function

import pickle
import sys
import time
import unittest

import six

from fuel_prefetch import BackgroundDataStream
from fuel_prefetch import stats as module
from fuel_prefetch.stats import (
    BLOCKED, FIELDS, PRODUCING, RESTING, STATES, Counters, Stats)
from tests import numbers


class TestStats(unittest.TestCase):
    def test_snapshot(self):
        counters = Counters()
        counters.batches_produced, counters.bytes_produced = 10, 100
        counters.batches_dropped, counters.bytes_dropped = 2, 20
        counters.seconds_producing = 1.
        stats = counters.snapshot(3, 30, 10)
        self.assertEqual((stats.batches_produced, stats.batches_taken,
                          stats.batches_held), (10, 4, 3))
        self.assertEqual((stats.bytes_produced, stats.bytes_taken,
                          stats.bytes_held), (100, 40, 30))
        self.assertEqual(stats.batches_most_held, 3)
        self.assertEqual(stats.seconds_producing, 1.)
        with self.assertRaises(AttributeError):
            stats.batches_held = 1

    def test_cpu_time_that_cannot_be_read(self):
        """Without a descriptor, say. The stream goes on all the same."""
        def fail():
            failures.append(True)
            raise EnvironmentError('too many open files')
        failures, before = [], module.read_cpu
        module.read_cpu = fail
        try:
            with BackgroundDataStream(numbers(9), max_store=1) as stream:
                for number, (data,) in enumerate(stream.get_epoch_iterator()):
                    self.assertEqual(data, number)
                    time.sleep(.02)
                self.assertEqual(number, 8)
        finally:
            module.read_cpu = before
        self.assertTrue(failures)

    def test_bottleneck(self):
        for waiting, blocked, verdict in [
                (3., 1., 'producer'), (1., 3., 'consumer'),
                (1., 1., 'balanced'), (1., 2., 'balanced'),
                (0., 0., 'balanced'), (.1, 0., 'producer')]:
            self.assertEqual(
                Stats(seconds_waiting=waiting,
                      seconds_blocked=blocked).bottleneck, verdict)

    def test_difference(self):
        earlier = Stats(*range(len(FIELDS)))
        later = Stats(*range(10, 10 + len(FIELDS)))
        for name, value in zip(FIELDS, later - earlier):
            self.assertEqual(value, getattr(later, name) if name in STATES
                             else 10, name)
        self.assertRaises(TypeError, lambda: later - 1)
        self.assertIsInstance(later - earlier, Stats)

    def test_rates(self):
        stats = Stats(batches_produced=12, batches_taken=8, bytes_taken=80,
                      seconds_producing=2., seconds_blocked=1.,
                      seconds_resting=1.)
        self.assertEqual(stats.seconds, 4)
        self.assertEqual(stats.batches_per_second, 2)
        self.assertEqual(stats.bytes_per_second, 20)
        self.assertEqual(stats.produced_per_second, 6)
        self.assertEqual(Stats().batches_per_second, 0)
        self.assertEqual(Stats().produced_per_second, 0)

    def test_one_line(self):
        stats = Stats(batches_taken=8, batches_held=2, batches_most_held=10,
                      bytes_taken=2500000, seconds_producing=2.,
                      seconds_blocked=1.5, seconds_resting=.5,
                      seconds_waiting=.25)
        self.assertEqual(
            str(stats),
            '8 batches, 2.5 MB taken in 4.00 s (2.0 batches/s); 2 held, 10 at '
            'most; producing 2.00 s, blocked 1.50 s, resting 0.50 s, readers '
            'waiting 0.25 s; bottleneck: consumer')
        self.assertIn('; 3 errors; ', str(Stats(errors=3)))
        for nbytes, size in [(0, '0 bytes'), (999, '999 bytes'),
                             (1000, '1.0 kB'), (10 ** 10, '10.0 GB'),
                             (10 ** 16, '10000.0 TB')]:
            self.assertIn(', {} taken'.format(size),
                          str(Stats(bytes_taken=nbytes)))

    def test_pickle(self):
        """One by an older version lacks the newest fields."""
        stats = Stats(*range(len(FIELDS)))
        self.assertEqual(pickle.loads(pickle.dumps(stats, 2)), stats)
        self.assertEqual(Stats(*range(5))[5:], (0,) * (len(FIELDS) - 5))


class TestCounters(unittest.TestCase):
    def setUp(self):
        self.now = 100.
        self.cpu = None
        for name, value in [('monotonic', lambda: self.now),
                            ('read_cpu', lambda: self.cpu)]:
            self.addCleanup(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        self.cpu = 0., 0., 0.

    def test_time_is_that_of_the_phase(self):
        counters = Counters()
        for phase, seconds in [(RESTING, 1), (PRODUCING, 2), (BLOCKED, 4),
                               (PRODUCING, 8), (RESTING, 16), (None, 32)]:
            counters.turn(phase)
            self.now += seconds
        stats = counters.snapshot()
        self.assertEqual((stats.seconds_producing, stats.seconds_blocked,
                          stats.seconds_resting), (10, 4, 17))

    def test_phase_under_way_counts(self):
        counters = Counters()
        counters.turn(BLOCKED)
        self.now += 3
        self.assertEqual(counters.snapshot().seconds_blocked, 3)
        counters.stop()  # by a fork
        self.now += 3
        self.assertEqual(counters.snapshot().seconds_blocked, 0)

    def test_cpu_time_is_that_of_the_phase(self):
        counters = Counters()
        counters.turn(PRODUCING)
        self.now, self.cpu = 101., (.5, 2., .25)
        counters.turn(BLOCKED)
        self.now, self.cpu = 105., (.5, 5., .5)
        counters.turn(RESTING)
        self.now, self.cpu = 115., (.5, 14., .5)
        counters.turn(PRODUCING)
        stats = counters.snapshot()
        self.assertEqual((stats.looked_producing, stats.cpu_producing,
                          stats.cpu_beside, stats.core_missing),
                         (1, .5, 1.5, .25))
        self.assertEqual((stats.looked_blocked, stats.cpu_blocked), (4, 3))

    def test_cpu_time_is_looked_at_seldom(self):
        looks = []
        module.read_cpu = lambda: looks.append(self.now) or (0., 0., 0.)
        counters = Counters()
        for _ in range(100):
            for phase in (PRODUCING, BLOCKED):
                counters.turn(phase)
                self.now += module.LOOK_EVERY / 10
        self.assertLessEqual(len(looks), 81)
        self.assertGreater(len(looks), 20)

    def test_lock_is_tried_on_suspicion(self):
        sleeps = []
        self.addCleanup(setattr, module, 'time', module.time)
        module.time = mock_time = type(str('time'), (), {
            'sleep': staticmethod(sleeps.append)})
        self.addCleanup(setattr, module, 'sys', module.sys)
        module.sys = type(str('sys'), (), {
            'getswitchinterval': staticmethod(lambda: .005)})
        for own, everyone, tries in [(1., 2., 0), (.5, 2., 0), (.5, 1., 1)]:
            counters = Counters()
            counters.turn(PRODUCING)
            self.now += 1
            self.cpu = self.cpu[0] + own, self.cpu[1] + everyone, 0.
            for _ in range(2):  # the evidence comes first
                counters.look()
                self.now += module.LOOK_EVERY
            self.assertEqual(counters.snapshot().lock_tries, tries)
        self.assertEqual(counters.lock_waits, 0)

        def slow(seconds):
            self.now += .008
        mock_time.sleep = staticmethod(slow)
        for tries in (1, 2):
            self.now += module.TRY_EVERY / 2 + .001
            self.cpu = self.cpu[0] + .05, self.cpu[1] + .1, 0.
            counters.turn(BLOCKED)
            self.assertEqual(counters.lock_tries, tries)
            counters.turn(PRODUCING)
        self.assertEqual(counters.lock_waits, 1)

    def test_cpu_time_within_a_long_phase(self):
        counters = Counters()
        counters.turn(PRODUCING)
        self.now, self.cpu = 101., (1., 1.5, 0.)
        counters.look()
        stats = counters.snapshot()
        self.assertEqual((stats.looked_producing, stats.cpu_beside), (1, .5))

    def test_without_the_clocks(self):
        module.read_cpu = None
        counters = Counters()
        counters.turn(PRODUCING)
        counters.look()
        self.now += 1
        counters.turn(None)
        stats = counters.snapshot()
        self.assertEqual(stats.seconds_producing, 1)
        self.assertEqual(stats.looked_producing, 0)

    def test_totals_of_other_versions(self):
        counters = Counters()
        saved = counters.save()
        self.assertFalse([name for name in saved if name.startswith('_')])
        del saved['batches_most_held']
        counters.load(dict(saved, batches_produced=3, of_the_future=1))
        stats = counters.snapshot()
        self.assertEqual(stats.batches_most_held, 0)
        self.assertEqual(stats.batches_taken, 3)
        self.assertEqual(counters.save()['of_the_future'], 1)


class TestAdvice(unittest.TestCase):
    """What was measured, per second of producing: see the how-to."""
    def advise(self, own, beside, missing=0., alone=None, blocked=0.,
               seconds=10., waiting=0., waits=10):
        return Stats(
            seconds_producing=seconds, seconds_blocked=blocked,
            seconds_waiting=waiting, looked_producing=seconds,
            cpu_producing=own * seconds, cpu_beside=beside * seconds,
            core_missing=missing * seconds,
            looked_blocked=blocked, cpu_blocked=(alone or 0) * blocked,
            lock_tries=10, lock_waits=waits).advice

    def test_pure_python_on_both_sides(self):
        for args in [dict(own=.55, beside=.46),
                     dict(own=.42, beside=.59, alone=.98, blocked=3.),
                     dict(own=.49, beside=.49, missing=.2)]:
            self.assertIn("backend='process'", self.advise(**args))

    def test_zlib_beside_pure_python(self):
        self.assertIn('ParallelMapping', self.advise(.5, .52, waiting=5.))

    @unittest.skipUnless(six.PY3, 'needs the interval')
    def test_pure_python_beside_numpy(self):
        measured = dict(own=.99, beside=.15, alone=.89, blocked=10.)
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(.005)
        self.assertIn('setswitchinterval', self.advise(**measured))
        sys.setswitchinterval(.001)
        self.assertNotIn('setswitchinterval', self.advise(**measured))
        self.assertIn("backend='process'", self.advise(**measured))

    def test_none(self):
        for args in [
                dict(own=.01, beside=.98),  # sleep beside pure Python
                dict(own=.19, beside=.66),  # most of it sleep
                dict(own=.02, beside=.3, waiting=7.),  # sleep, slow
                dict(own=1., beside=.01, alone=.02, blocked=5.),  # the reader
                dict(own=.83, beside=.18, waiting=8.),  # a light reader
                dict(own=.4, beside=.02),  # reads and sleeps beside sleep
                dict(own=.98, beside=.85),  # zlib beside NumPy
                dict(own=1., beside=.94, alone=.54, blocked=10.),
                dict(own=.35, beside=.33, missing=.65),  # on a busy machine
                dict(own=.5, beside=.5, missing=.5),  # sharing a core
                dict(own=.45, beside=.5, alone=.5, blocked=5.),  # by accident
                dict(own=.49, beside=.51, waits=2),  # as well
                dict(own=.5, beside=.5, alone=1., blocked=100.),  # little
                dict(own=.55, beside=.46, seconds=.1),  # too soon
                dict(own=0., beside=0., seconds=0.)]:
            self.assertIsNone(self.advise(**args), args)

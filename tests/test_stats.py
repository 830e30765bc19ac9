"""Tests of the counters and what they say."""
from __future__ import absolute_import, division, print_function

import unittest

from fuel_prefetch.stats import Counters


class TestStats(unittest.TestCase):
    def test_snapshot(self):
        counters = Counters()
        counters.batches_produced, counters.bytes_produced = 10, 100
        counters.batches_dropped, counters.bytes_dropped = 2, 20
        counters.seconds_producing = 1.
        stats = counters.snapshot(3, 30, 10, .5)
        self.assertEqual((stats.batches_produced, stats.batches_taken,
                          stats.batches_held), (10, 4, 3))
        self.assertEqual((stats.bytes_produced, stats.bytes_taken,
                          stats.bytes_held), (100, 40, 30))
        self.assertEqual(stats.seconds_producing, 1.5)
        with self.assertRaises(AttributeError):
            stats.batches_held = 1

    def test_bottleneck(self):
        for waiting, blocked, verdict in [
                (3., 1., 'producer'), (1., 3., 'consumer'),
                (1., 1., 'balanced'), (1., 2., 'balanced'),
                (0., 0., 'balanced'), (.1, 0., 'producer')]:
            counters = Counters()
            counters.seconds_waiting = waiting
            counters.seconds_blocked = blocked
            self.assertEqual(counters.snapshot().bottleneck, verdict)

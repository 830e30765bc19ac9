"""Mappings on a Dask cluster, where Dask is installed."""
from __future__ import absolute_import, division, print_function

import os
import unittest

import numpy
from six.moves import range

from fuel_prefetch import ParallelMapping, WorkerDied, parallel_map
from fuel_prefetch.waiting import monotonic
from tests import numbers, wait_until
from tests.mappings import fail_at_three, shift, slow, where

try:
    import distributed
except ImportError:
    distributed = None


@unittest.skipIf(distributed is None, 'Dask is not installed')
class TestDask(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from tests.cluster import DaskCluster
        cls.cluster = DaskCluster()
        cls.executor = cls.cluster.client.get_executor()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def test_work_is_shared_in_order(self):
        results = list(parallel_map(where, range(40), workers=2,
                                    executor=self.executor))
        self.assertEqual([number for number, _ in results], list(range(40)))
        processes = {process for _, process in results}
        self.assertEqual(len(processes), 2)
        self.assertNotIn(os.getpid(), processes)

    def test_unordered(self):
        results = parallel_map(where, range(20), executor=self.executor,
                               ordered=False)
        self.assertEqual(sorted(number for number, _ in results),
                         list(range(20)))

    def test_error_in_its_place(self):
        results = parallel_map(fail_at_three, range(6), executor=self.executor)
        self.assertEqual([next(results) for _ in range(3)], [0, 1, 2])
        self.assertRaises(KeyError, next, results)
        self.assertEqual(list(results), [4, 5])

    def test_random_states_are_those_of_threads(self):
        epochs = []
        for executor in (None, self.executor):
            stream = ParallelMapping(numbers(20), shift, seed=5,
                                     executor=executor)
            epochs.append(list(stream.get_epoch_iterator()))
            stream.close()
        numpy.testing.assert_equal(epochs[0], epochs[1])


@unittest.skipIf(distributed is None, 'Dask is not installed')
class TestKilledWorkers(unittest.TestCase):
    def kill(self, **kwargs):
        """Return results, of which a killed worker had one in hand."""
        from tests.cluster import DaskCluster
        cluster = DaskCluster(**kwargs)
        self.addCleanup(cluster.close)
        results = parallel_map(slow, range(4), max_prefetch=4,
                               executor=cluster.client.get_executor())
        self.addCleanup(results.close)
        # Each of the two has some.
        self.assertTrue(wait_until(lambda: [
            bool(calls) for calls in
            cluster.client.processing().values()] == [True, True]))
        cluster.kill_worker()
        return results

    def test_another_one_takes_over(self):
        """Which is what Dask does, unless it is told otherwise."""
        self.assertEqual(list(self.kill()), list(range(4)))

    def test_reader_is_told(self):
        results = self.kill(allowed_failures=0)
        started = monotonic()
        found = []
        for number in range(4):
            try:
                found.append(next(results))
            except WorkerDied as error:
                found.append(None)
                self.assertLess(monotonic() - started, 10)
                self.assertTrue(str(error))
        self.assertRaises(StopIteration, next, results)
        self.assertIn(None, found)
        self.assertTrue(all(result in (None, number)
                            for number, result in enumerate(found)), found)

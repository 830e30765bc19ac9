"""What is known of an epoch's length, here and from afar."""
from __future__ import absolute_import, division, print_function

import pickle

import numpy
from fuel.datasets import IndexableDataset
from fuel.schemes import (
    ConcatenatedScheme, ConstantScheme, SequentialExampleScheme,
    SequentialScheme, ShuffledScheme)
from fuel.streams import DataStream
from fuel.transformers import Mapping

from fuel_prefetch import BackgroundDataStream
from fuel_prefetch.schemes import ServedScheme, length_of
from tests.serving import ServerTestCase


def iterations(stream):
    """Return what Blocks' ProgressBar takes for the length of an epoch."""
    scheme = stream.iteration_scheme
    if hasattr(scheme, 'indices') and not hasattr(scheme, 'batch_size'):
        return len(scheme.indices)
    if hasattr(scheme, 'indices') and hasattr(scheme, 'batch_size'):
        return len(scheme.indices) // scheme.batch_size
    if hasattr(scheme, 'num_examples') and hasattr(scheme, 'batch_size'):
        return scheme.num_examples // scheme.batch_size
    return None


class Strange(object):
    @property
    def indices(self):
        raise RuntimeError


class TestLength(ServerTestCase):
    def test_schemes(self):
        for scheme, length in [
                (SequentialScheme(10, 3), (10, 3)),
                (ShuffledScheme([1, 5, 7], 2), (3, 2)),
                (SequentialExampleScheme(7), (7, None)),
                (ConstantScheme(4, num_examples=20), (20, 4)),
                (ConstantScheme(4, times=2), None),
                (ConstantScheme(4), None), (None, None), (Strange(), None),
                (ConcatenatedScheme([SequentialScheme(2, 1)]), None),
                (SequentialScheme(iter([1, 2]), 2), None)]:
            self.assertEqual(length_of(scheme), length)

    def test_progress_bar(self):
        """It knows the length wherever it knows that of the bare stream."""
        dataset = IndexableDataset(numpy.arange(10))
        for scheme, count in [
                (SequentialScheme(10, 3), 3), (ShuffledScheme(10, 5), 2),
                (SequentialExampleScheme(10), 10)]:
            bare = DataStream(dataset, iteration_scheme=scheme)
            client = self.remote(bare)
            self.assertEqual([iterations(bare), iterations(client), iterations(
                BackgroundDataStream(client))], [count] * 3)
            self.assertEqual(client.iteration_scheme.requests_examples,
                             scheme.requests_examples)
            self.assertRaises(
                ValueError, client.iteration_scheme.get_request_iterator)
            again = pickle.loads(pickle.dumps(client))
            self.addCleanup(again.close)
            self.assertEqual(iterations(again), count)
        client = self.remote(Mapping(bare, list))
        self.assertIsNone(client.iteration_scheme)
        client.iteration_scheme = scheme = ServedScheme(4, 2)
        self.assertIs(client.iteration_scheme, scheme)

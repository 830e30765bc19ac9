"""Tests of the extension of Blocks, where Blocks can be imported.

See `test_blocks`, which trains with Theano as well.

"""
from __future__ import absolute_import, division, print_function

import contextlib
import io
import os
import shutil
import sys
import tempfile
import unittest

import six
from fuel.datasets import IndexableDataset
from fuel.schemes import SequentialScheme
from fuel.streams import DataStream

from fuel_prefetch import BackgroundDataStream
from tests import ConcurrentTestCase

try:
    from blocks.algorithms import TrainingAlgorithm
    from blocks.extensions import FinishAfter, Printing
    from blocks.extensions.saveload import Checkpoint
    from blocks.main_loop import MainLoop
    from blocks.serialization import load
    from fuel_prefetch.extensions import PrefetchMonitoring
except Exception:  # Theano fails in many ways on a Python it doesn't know
    MainLoop = None
    TrainingAlgorithm = object


class Nothing(TrainingAlgorithm):
    """An algorithm that learns nothing."""
    def initialize(self, **kwargs):
        pass

    def process_batch(self, batch):
        pass


def batches():
    """Return a stream of 5 batches, of 2 numbers each."""
    return BackgroundDataStream(DataStream(
        IndexableDataset(list(range(10))),
        iteration_scheme=SequentialScheme(10, 2)), max_store=2)


@unittest.skipIf(MainLoop is None, 'Blocks is not installed')
class TestPrefetchMonitoring(ConcurrentTestCase):
    def run_main_loop(self, stream, *extensions):
        main_loop = MainLoop(Nothing(), stream, extensions=list(extensions))
        main_loop.run()
        return main_loop

    def taken(self, main_loop, name='prefetch_batches_taken'):
        return [(time, row[name])
                for time, row in sorted(main_loop.log.items()) if name in row]

    def test_each_epoch(self):
        stream = batches()
        list(stream.get_epoch_iterator())  # before the training
        main_loop = self.run_main_loop(
            stream, PrefetchMonitoring(stream), FinishAfter(after_n_epochs=3))
        self.assertEqual(self.taken(main_loop), [(5, 5), (10, 5), (15, 5)])
        row = main_loop.log[15]
        for name in ('batches_most_held', 'bytes_taken', 'errors',
                     'seconds_producing', 'seconds_blocked', 'bottleneck',
                     'seconds_resting', 'seconds_waiting',
                     'batches_per_second'):
            self.assertIn('prefetch_' + name, row)
        self.assertNotIn('prefetch_advice', row)

    def test_end_in_the_middle_of_an_epoch(self):
        stream = batches()
        main_loop = self.run_main_loop(
            stream, PrefetchMonitoring(stream), FinishAfter(after_n_batches=8))
        self.assertEqual(self.taken(main_loop), [(5, 5), (8, 3)])
        stream.close()

    def test_other_conditions_and_prefix(self):
        stream = batches()
        main_loop = self.run_main_loop(
            stream, PrefetchMonitoring(
                stream, prefix='train', after_epoch=False, every_n_batches=2),
            FinishAfter(after_n_epochs=1))
        self.assertEqual(self.taken(main_loop, 'train_batches_taken'),
                         [(2, 2), (4, 2), (5, 1)])

    def test_another_stream(self):
        watched = batches()

        class Reads(FinishAfter):
            def do(self, *args):
                list(watched.get_epoch_iterator())

        main_loop = self.run_main_loop(
            batches(), Reads(after_epoch=True, after_training=False),
            PrefetchMonitoring(watched), FinishAfter(after_n_epochs=2))
        self.assertEqual(self.taken(main_loop), [(5, 5), (10, 5)])

    def test_printing(self):
        stream = batches()
        output = io.StringIO() if six.PY3 else io.BytesIO()
        stdout, sys.stdout = sys.stdout, output
        try:
            self.run_main_loop(stream, FinishAfter(after_n_epochs=1),
                               PrefetchMonitoring(stream), Printing())
        finally:
            sys.stdout = stdout
        self.assertIn('prefetch_batches_taken: 5', output.getvalue())

    def test_checkpoint(self):
        """It goes on with the epoch that it was in."""
        directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, directory)
        path = os.path.join(directory, 'main_loop.tar')
        stream = batches()
        main_loop = self.run_main_loop(
            stream, PrefetchMonitoring(stream), FinishAfter(after_n_batches=8),
            Checkpoint(path, after_training=False, after_n_batches=7))
        stream.close()
        with contextlib.closing(open(path, 'rb')) as file_:
            main_loop = load(file_)
        main_loop.extensions[1].set_conditions(after_n_epochs=3)
        main_loop.run()
        self.assertEqual(self.taken(main_loop), [(5, 5), (10, 5), (15, 5)])

    def test_stream_that_is_replaced(self):
        """As `Load` does it, whether before this extension or after it."""
        for place in (0, 2):
            stream, loaded = batches(), batches()
            list(loaded.get_epoch_iterator())

            class Replace(FinishAfter):
                def do(self, *args):
                    self.main_loop.data_stream = loaded

            extensions = [PrefetchMonitoring(stream),
                          FinishAfter(after_n_epochs=2)]
            extensions.insert(place, Replace(before_training=True))
            main_loop = self.run_main_loop(stream, *extensions)
            self.assertEqual(self.taken(main_loop)[-1], (10, 5))

    def test_what_has_no_statistics(self):
        with six.assertRaisesRegex(self, ValueError, 'stream .* got 3'):
            PrefetchMonitoring(3)


@unittest.skipIf(MainLoop is not None, 'Blocks is installed')
class TestWithoutBlocks(unittest.TestCase):
    def test_import(self):
        with six.assertRaisesRegex(self, ImportError, '^[^\n]*needs Blocks'):
            import fuel_prefetch.extensions  # noqa: F401

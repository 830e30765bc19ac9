"""Training with Blocks itself, where Blocks and Theano can be imported.

They are not on the package registry in a version that works, so these tests
are skipped unless somebody has installed them. `test_pickling` does the same
with a main loop of its own, everywhere.

"""
from __future__ import absolute_import, division, print_function

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

from fuel_prefetch import BackgroundDataStream
from tests import training

from fuel.datasets import IndexableDataset
from fuel.schemes import SequentialScheme
from fuel.streams import DataStream

try:
    from blocks.extensions import ProgressBar
    from blocks.main_loop import MainLoop
except Exception:  # Theano fails in many ways on a Python it doesn't know
    MainLoop = None

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

PER_EPOCH = -(-training.EXAMPLES // training.BATCH)


@unittest.skipIf(MainLoop is None, 'Blocks is not installed')
class TestBlocks(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)
        training.write_data(os.path.join(self.directory, 'data.hdf5'))

    def train(self, *args):
        """Train in a process of its own; return its end and last lines."""
        environment = dict(
            os.environ, PYTHONPATH=os.pathsep.join(sys.path),
            # Without a compiler, and as little optimisation as it can have.
            THEANO_FLAGS='cxx=,mode=FAST_COMPILE,floatX=float64')
        process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-m', 'tests.blocks_training',
             self.directory] + [str(arg) for arg in args], cwd=ROOT,
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        watchdog = threading.Timer(300, process.kill)
        watchdog.start()
        output, errors = process.communicate()
        watchdog.cancel()
        if process.returncode not in (0, -signal.SIGKILL):
            self.fail(errors.decode())
        lines = output.decode().splitlines()
        if process.returncode:
            return process.returncode, None, None
        return 0, lines[-2].split(), lines[-1]

    def test_killed_and_resumed(self):
        code, expected, cost = self.train('bare', 'main_loop')
        self.assertEqual(len(expected), training.EPOCHS * PER_EPOCH)
        for how in ('main_loop', 'load'):
            for kind in ('ahead', 'across', 'nested'):
                for numbers in [(3, 5), (14, 16), (23, 25)]:
                    self.assertEqual(
                        self.train(kind, how, *numbers)[0], -signal.SIGKILL)
                # Nor does what was learned differ.
                self.assertEqual(self.train(kind, how), (0, expected, cost))
                os.remove(os.path.join(self.directory, 'main_loop.tar'))

    def test_progress_bar_knows_the_length(self):
        stream = BackgroundDataStream(DataStream(
            IndexableDataset(list(range(10))),
            iteration_scheme=SequentialScheme(9, 3)))
        bar = ProgressBar()
        bar.main_loop = MainLoop(None, stream)
        self.assertEqual(bar.get_iter_per_epoch(), 3)

    def test_ctrl_c(self):
        """Once it finishes the epoch, twice the batch."""
        for kind in ('bare', 'ahead', 'across'):
            self.assertEqual(len(self.train(kind, 'interrupt1')[1]),
                             2 * PER_EPOCH)
            self.assertEqual(len(self.train(kind, 'interrupt2')[1]), 11)

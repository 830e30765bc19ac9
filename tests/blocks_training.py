"""Training with Blocks, to be killed and resumed: see `test_blocks`.

Run as a script it trains in a directory with the data, and prints a digest
of each batch at the end. If there is a checkpoint it goes on from there::

    python -m tests.blocks_training DIRECTORY KIND HOW [CHECKPOINT ...]

`HOW` is ``main_loop`` to unpickle the main loop, or ``load`` to build one and
load the iteration state with Blocks' `Load`. After each batch whose number
is given a checkpoint is made; after the last one the process kills itself.

"""
from __future__ import absolute_import, division, print_function

import hashlib
import os
import signal
import sys

from fuel_prefetch import BackgroundDataStream
from fuel_prefetch.extensions import PrefetchMonitoring
from tests.training import EPOCHS, make_stream

import numpy
import theano.tensor as tt
from blocks.algorithms import GradientDescent, Scale
from blocks.bricks import Linear
from blocks.bricks.cost import SquaredError
from blocks.extensions import FinishAfter, ProgressBar, SimpleExtension
from blocks.extensions.monitoring import DataStreamMonitoring
from blocks.extensions.saveload import Checkpoint, Load
from blocks.graph import ComputationGraph
from blocks.initialization import Constant
from blocks.main_loop import MainLoop
from blocks.model import Model
from blocks.serialization import load

from fuel.datasets import IndexableDataset
from fuel.schemes import SequentialScheme
from fuel.streams import DataStream


class Digests(SimpleExtension):
    """Keeps a digest of every batch, beside the log that is loaded."""
    def __init__(self, **kwargs):
        super(Digests, self).__init__(before_batch=True, **kwargs)

    def do(self, which_callback, batch):
        digest = hashlib.sha256()
        for source in sorted(batch):
            digest.update(batch[source].tobytes())
        self.main_loop.status.setdefault('digests', []).append(
            digest.hexdigest())


class CheckpointAndKill(Checkpoint):
    """Checkpoints after some batches, and ends the process after the last."""
    numbers = ()

    def __init__(self, path, **kwargs):
        super(CheckpointAndKill, self).__init__(
            path, after_training=False, after_batch=True, **kwargs)

    def do(self, which_callback, *args):
        done = self.main_loop.status['iterations_done']
        if done in self.numbers:
            super(CheckpointAndKill, self).do(which_callback, *args)
            if done == self.numbers[-1]:
                os.kill(os.getpid(), signal.SIGKILL)


class Interrupt(SimpleExtension):
    """Presses Ctrl-C in the middle of a batch, once or twice."""
    def __init__(self, at, times, **kwargs):
        super(Interrupt, self).__init__(before_batch=True, **kwargs)
        self.at, self.times = at, times

    def do(self, which_callback, *args):
        if self.main_loop.status['iterations_done'] == self.at - 1:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


def monitored():
    return DataStream(
        IndexableDataset({'x': numpy.ones((6, 5)), 'y': numpy.ones((6, 2))}),
        iteration_scheme=SequentialScheme(6, 2))


def make_main_loop(directory, kind, extensions):
    x, y = tt.dmatrix('x'), tt.dmatrix('y')
    linear = Linear(5, 2, weights_init=Constant(.1),
                    biases_init=Constant(0.), name='linear')
    cost = SquaredError().apply(y, linear.apply(x))
    cost.name = 'cost'
    linear.initialize()
    watched = monitored()
    stream = make_stream(kind, os.path.join(directory, 'data.hdf5'))
    if kind != 'bare':
        watched = BackgroundDataStream(watched, max_store=2)
        extensions = [PrefetchMonitoring(stream)] + extensions
    return MainLoop(
        GradientDescent(cost=cost, step_rule=Scale(1e-4),
                        parameters=ComputationGraph(cost).parameters),
        stream,
        model=Model(cost),
        extensions=[
            Digests(), FinishAfter(after_n_epochs=EPOCHS),
            DataStreamMonitoring([cost], watched, prefix='valid'),
            ProgressBar()] + extensions)


def main(directory, kind, how, *numbers):
    path = os.path.join(directory, 'main_loop.tar')
    CheckpointAndKill.numbers = [int(number) for number in numbers]
    if how == 'main_loop' and os.path.exists(path):
        with open(path, 'rb') as file_:
            main_loop = load(file_)
    else:
        extensions = [CheckpointAndKill(path)]
        if how == 'load' and os.path.exists(path):
            extensions.insert(0, Load(path, load_iteration_state=True,
                                      load_log=True))
        elif how.startswith('interrupt'):
            extensions.append(Interrupt(11, int(how[len('interrupt'):])))
        main_loop = make_main_loop(directory, kind, extensions)
    main_loop.run()
    print(' '.join(main_loop.status['digests']))
    print([row[name] for _, row in sorted(main_loop.log.items())
           for name in ['valid_cost'] if name in row][-1])


if __name__ == '__main__':
    # Pickles must name the module, not the script.
    from tests import blocks_training
    blocks_training.main(*sys.argv[1:])

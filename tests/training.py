"""A main loop to Blocks' protocol, to train with, kill and resume.

It does with its stream what Blocks' `MainLoop` and `Checkpoint` do: it takes
epoch iterators that give dictionaries, keeps the one under way, is pickled
with both in one pickle, and goes on with that iterator when it is loaded.
What it learns is a digest of every batch, so two runs that saw the same
learned the same.

Run as a script it makes a checkpoint after each of some batches, and kills
its own process after the last of them::

    python -m tests.training DIRECTORY KIND START STOP

"""
from __future__ import absolute_import, division, print_function

import hashlib
import os
import pickle
import signal
import sys

import h5py
import numpy

from fuel_prefetch import BackgroundDataStream
from fuel.datasets import H5PYDataset
from fuel.schemes import ConstantScheme, ShuffledExampleScheme
from fuel.streams import DataStream
from fuel.transformers import Batch, Mapping

EXAMPLES, BATCH, EPOCHS = 30, 4, 4
KINDS = ['bare', 'ahead', 'across', 'nested', 'process']


class MainLoop(object):
    """Trains, in the way described above."""
    def __init__(self, data_stream, path):
        self.data_stream = data_stream
        self.epoch_iterator = None
        self.path = path
        self.digests = []
        self.epoch_started = False
        self.epochs_done = 0

    def run(self, checkpoints=()):
        """Train to the end, or to the kill after the last checkpoint.

        Parameters
        ----------
        checkpoints : sequence of int
            After how many batches to make one.

        """
        while self.epochs_done < EPOCHS:
            if not self.epoch_started:
                self.epoch_iterator = self.data_stream.get_epoch_iterator(
                    as_dict=True)
                self.epoch_started = True
            for batch in self.epoch_iterator:
                self.process(batch)
                if len(self.digests) in checkpoints:
                    self.save()
                    if len(self.digests) == checkpoints[-1]:
                        os.kill(os.getpid(), signal.SIGKILL)
            self.epoch_started = False
            self.epochs_done += 1

    def process(self, batch):
        digest = hashlib.sha256()
        for source in sorted(batch):
            digest.update(batch[source].tobytes())
        self.digests.append(digest.hexdigest())

    def save(self):
        with open(self.path + '.new', 'wb') as file_:
            pickle.dump(self, file_, 2)
        os.rename(self.path + '.new', self.path)


class Noise(object):
    """A mapping that draws random numbers, so it matters what was read."""
    def __init__(self):
        self.rng = numpy.random.RandomState(3)

    def __call__(self, data):
        return tuple(source + self.rng.rand(*source.shape) for source in data)


def make_stream(kind, path):
    """Return a stream of HDF5 examples on disk, shuffled and distorted."""
    def ahead(stream, kinds, **kwargs):
        if kind in kinds:
            return BackgroundDataStream(stream, **kwargs)
        return stream

    dataset = H5PYDataset(path, which_sets=('train',), load_in_memory=False)
    stream = DataStream(dataset, iteration_scheme=ShuffledExampleScheme(
        EXAMPLES, rng=numpy.random.RandomState(1)))
    stream = ahead(Mapping(stream, Noise()), ['nested'], max_store=3)
    stream = Mapping(Batch(stream, ConstantScheme(BATCH)), Noise())
    return ahead(stream, ['ahead', 'across', 'nested', 'process'],
                 max_store=4, across_epochs=kind in ('across', 'process'),
                 backend='process' if kind == 'process' else 'thread')


def write_data(path):
    with h5py.File(path, 'w') as h5file:
        h5file['x'] = numpy.random.RandomState(0).rand(EXAMPLES, 5)
        h5file['y'] = numpy.arange(EXAMPLES * 2.).reshape(EXAMPLES, 2)
        h5file.attrs['split'] = H5PYDataset.create_split_array(
            {'train': {'x': (0, EXAMPLES), 'y': (0, EXAMPLES)}})


def main(directory, kind, *checkpoints):
    from tests import training  # pickles name the module, not the script
    path = os.path.join(directory, 'main_loop.pkl')
    if os.path.exists(path):
        with open(path, 'rb') as file_:
            main_loop = pickle.load(file_)
    else:
        main_loop = training.MainLoop(
            training.make_stream(kind, os.path.join(directory, 'data.hdf5')),
            path)
    main_loop.run([int(number) for number in checkpoints])
    print('\n'.join(main_loop.digests))


if __name__ == '__main__':
    main(*sys.argv[1:])

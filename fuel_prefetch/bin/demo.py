"""Train a classifier of digits without and with prefetching, and compare.

Scikit-learn's 1,797 scanned digits are written to an HDF5 file. Fuel reads
them from there in shuffled batches, SciPy distorts each digit as another hand
might have drawn it, and a NumPy network with one hidden layer learns from
what comes out. The same training runs twice from the same seed: first each
batch is made when the network asks for it, then BackgroundDataStream makes it
in a thread, or in a process of its own, while the network learns from the one
before. The report shows

- how long both took, their ratio, and the ratio that would be ideal by the
  times that the first run spent on either side;
- how many of the 500 digits held out, undistorted, both networks know;
- that both saw the same batches in the same order, by a digest of every byte.

BLAS is held to one thread, so that the network leaves a core to the producer.
Where threadpoolctl is missing, as on Python 2.7, it isn't: there, set
OPENBLAS_NUM_THREADS=1 (or MKL_NUM_THREADS=1) before you start.

"""
from __future__ import absolute_import, division, print_function

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import shutil
import tempfile
from collections import namedtuple
from functools import partial

import numpy
from fuel.transformers import Mapping

from fuel_prefetch import BackgroundDataStream, ParallelMapping
from fuel_prefetch.bin import digits
from fuel_prefetch.bin.options import at_least, depth
from fuel_prefetch.bin.terminal import progress, say
from fuel_prefetch.waiting import monotonic

REQUIRED_ACCURACY = .95
BLAS_LIMITS = {'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS', 'OMP_NUM_THREADS'}
EXAMPLES = """\
examples:
  fuel-prefetch demo
  fuel-prefetch demo --max-store 1           hold one batch ready, not ten
  fuel-prefetch demo --hidden 200            a network that often waits
  fuel-prefetch demo --workers 2             distort two batches at once
  fuel-prefetch demo --backend process       make batches in another process
  fuel-prefetch demo --data digits.hdf5      keep the data, to play with

exit codes:
  0    both runs saw the same batches and know over 95 % of the digits
  1    they didn't, or the digits couldn't be had
  2    a bad option
  130  interrupted by Ctrl-C
"""

Run = namedtuple('Run', [
    'total',  # seconds
    'waiting',  # how many of them until the stream had given each batch
    'first',  # and how many until it had given the first ones of epochs
    'last',  # how many the training on the last ones took
    'batches', 'digest', 'network', 'accuracy'])


def add_arguments(parser):
    """Add this command's options to a parser."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        '--epochs', type=at_least(1), default=100, metavar='N',
        help='epochs to train for (default: %(default)s); with few of them '
             'the networks know too little')
    parser.add_argument(
        '--batch-size', type=at_least(1), default=64, metavar='N',
        help='digits in a batch (default: %(default)s)')
    parser.add_argument(
        '--hidden', type=at_least(1), default=2000, metavar='N',
        help='units of the hidden layer (default: %(default)s)')
    parser.add_argument(
        '--max-store', type=depth, default=10, metavar='N',
        help='most batches held ready; -1 for no bound (default: %(default)s)')
    parser.add_argument(
        '--backend', choices=['thread', 'process'], default='thread',
        metavar='NAME',
        help="where batches are made: 'thread' or 'process' "
             '(default: %(default)s)')
    parser.add_argument(
        '--workers', type=at_least(1), default=1, metavar='N',
        help='threads that distort, in the run with prefetching '
             '(default: %(default)s)')
    parser.add_argument(
        '--seed', type=at_least(0), default=1, metavar='N',
        help='where all that is random starts (default: %(default)s)')
    parser.add_argument(
        '--data', type=data_file, metavar='FILE',
        help='the HDF5 file: read if it is there, else written and kept '
             '(default: a temporary file)')


def data_file(path):
    """Check an argument that names the file of digits."""
    if os.path.exists(path):
        try:
            digits.check_digits(path)
        except Exception:  # Fuel and h5py raise all sorts
            raise argparse.ArgumentTypeError(
                "'{}' doesn't hold the digits".format(path))
    elif not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise argparse.ArgumentTypeError(
            "there is no folder for '{}'".format(path))
    return path


def run(args):
    """Do as the docstring of this module says; return the exit code."""
    folder = tempfile.mkdtemp(prefix='fuel-prefetch-')
    try:
        with one_blas_thread():
            return compare(obtain_digits(args.data, folder), args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def obtain_digits(path, folder):
    """Write the data unless it is there; return the path of the file."""
    if path is not None and os.path.exists(path):
        return path
    written = os.path.join(folder, 'digits.hdf5')
    try:
        digits.write_digits(written)
        if path is None:
            return written
        # Only now, so that a file that is there is a whole one.
        shutil.move(written, path)
        return path
    except ImportError as error:
        fail('scikit-learn, which has the digits, is missing ({}): '
             'pip install fuel-prefetch[demo]'.format(error))
    except EnvironmentError as error:
        fail("cannot write the digits: {}".format(error))


def fail(message):
    """Exit with code 1 and a message."""
    raise SystemExit('fuel-prefetch demo: error: ' + message)


@contextlib.contextmanager
def one_blas_thread():
    """Hold BLAS to one thread, if that is possible."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        if not BLAS_LIMITS.intersection(os.environ):
            say('BLAS may use the core that the producer needs, as there is '
                'no threadpoolctl\nto prevent it. Setting '
                'OPENBLAS_NUM_THREADS=1 does too.')
        yield
    else:
        with threadpool_limits(limits=1, user_api='blas'):
            yield


def compare(path, args):
    """Train twice and report; return the exit code."""
    say('The digits are in {}'.format(path))
    # What happens once in a process must not count against the first run.
    say('1 epoch to warm up ...')
    train(path, args, epochs=1)
    say('{} epochs without prefetching ...'.format(args.epochs))
    bare = train(path, args, args.epochs)
    say('{} epochs with prefetching in a {}, max_store={}, workers={} ...'
        .format(args.epochs, args.backend, args.max_store, args.workers))
    ahead = train(path, args, args.epochs, partial(
        BackgroundDataStream, max_store=args.max_store, backend=args.backend),
        partial(ParallelMapping, workers=args.workers, seed=args.seed)
        if args.workers > 1 else None)
    return report(bare, ahead, args.workers)


class InTurn(object):
    """A mapping with the random states of a `ParallelMapping`, without one.

    Parameters
    ----------
    mapping : callable
        Takes a batch and a random state.
    seed : int
        The seed.
    per_epoch : int
        Batches in an epoch.

    """
    def __init__(self, mapping, seed, per_epoch):
        self.mapping = mapping
        self.seed = seed
        self.per_epoch = per_epoch
        self.count = 0

    def __call__(self, batch):
        epoch, number = divmod(self.count, self.per_epoch)
        self.count += 1
        return self.mapping(
            batch, numpy.random.RandomState([self.seed, epoch, number]))


def train(path, args, epochs, wrap=lambda stream: stream, map_stream=None):
    """Train a network.

    Parameters
    ----------
    path : str
        The file of digits.
    args : :class:`argparse.Namespace`
        `batch_size`, `hidden` and `seed`.
    epochs : int
        How many epochs.
    wrap : callable, optional
        What to do with the stream first.
    map_stream : callable, optional
        As for :func:`.digits.train_stream`. By default Fuel's ``Mapping``
        gives what several workers would give, if there are to be some.

    Returns
    -------
    :class:`Run`
        What came of it.

    """
    network = digits.Network(
        args.hidden, numpy.random.RandomState([args.seed, 2]))
    digest = hashlib.sha256()
    batches = 0
    waiting = first = last = 0.
    if map_stream is None and args.workers > 1:
        per_epoch = -(-digits.NUM_TRAIN // args.batch_size)

        def map_stream(stream, mapping, **kwargs):
            return Mapping(stream, InTurn(mapping, args.seed, per_epoch),
                           **kwargs)
    stream = wrap(digits.train_stream(path, args.batch_size, args.seed,
                                      map_stream))
    with contextlib.closing(stream), progress(epochs) as show:
        start = monotonic()
        for epoch in range(epochs):
            asked = monotonic()
            iterator = stream.get_epoch_iterator()
            batch = next(iterator, None)
            first += monotonic() - asked
            while batch is not None:
                given = monotonic()
                waiting += given - asked
                features, targets = batch
                network.train(features, targets,
                              rate=.04 * (1 - epoch / epochs))
                # After the step, so that it tells of a batch that was
                # written to meanwhile. It counts as training in either run.
                add_to_digest(digest, batch)
                batches += 1
                asked = monotonic()
                batch = next(iterator, None)
            waiting += monotonic() - asked
            last += asked - given
            digest.update(b'end of epoch')
            show(epoch + 1)
        total = monotonic() - start
    return Run(total, waiting, first, last, batches, digest.hexdigest(),
               network, evaluate(network, path))


def add_to_digest(digest, batch):
    """Update a digest with the arrays of a batch."""
    for array in batch:
        digest.update('{} {} '.format(
            array.dtype.str, array.shape).encode('ascii'))
        digest.update(numpy.ascontiguousarray(array))


def evaluate(network, path):
    """Tell which part of the held-out digits a network knows."""
    with contextlib.closing(digits.test_stream(path, 100)) as stream:
        right = [network.predict(features) == targets[:, 0]
                 for features, targets in stream.get_epoch_iterator()]
    return numpy.concatenate(right).mean()


def report(bare, ahead, workers=1):
    """Print what came of both runs; return the exit code."""
    say('\n                        total    waiting   training   accuracy')
    for name, run in [('without', bare), ('with', ahead)]:
        say('{:<7} prefetching {:>8.2f} s {:>8.2f} s {:>8.2f} s '
            '{:>8.1f} %'.format(name, run.total, run.waiting,
                                run.total - run.waiting, 100 * run.accuracy))
    training = bare.total - bare.waiting
    # What all of it takes at the least, on so many cores.
    least = (bare.total / multiprocessing.cpu_count() if workers > 1 else 0)
    making = bare.waiting / workers
    say("""
Prefetching made it {:.2f} times as fast. Ideal is {:.2f}: making the batches
took {:.2f} s and training {:.2f} s, and they can at best go on at once{}.
As nothing is read ahead of an epoch, its first batch and the training on its
last one stand alone, which leaves {:.2f}.""".format(
        bare.total / ahead.total,
        bare.total / max(making, training, least), bare.waiting, training,
        ',\nwith {} workers on {} cores'.format(
            workers, multiprocessing.cpu_count()) if workers > 1 else '',
        bare.total / max(making + bare.last, training + bare.first, least)))

    same = bare.digest == ahead.digest
    say('\n{:,} batches without prefetching, digest {}\n'
        '{:,} batches with prefetching,    digest {}\n{}'.format(
            bare.batches, bare.digest[:32], ahead.batches, ahead.digest[:32],
            'Both runs saw the same batches.' if same else
            'The two runs saw different batches.'))
    difference = max(abs(one - other).max() for one, other in zip(
        bare.network.parameters, ahead.network.parameters))
    say('The networks are the same to the last bit.' if difference == 0 else
        'The weights of the networks differ by up to {:.2g}.'.format(
            difference))
    if not same:
        fail('prefetching changed the batches')
    accuracy = min(bare.accuracy, ahead.accuracy)
    if accuracy <= REQUIRED_ACCURACY:
        fail('{:.1f} % of the held-out digits are right, not over {:.0f} %; '
             'more epochs may help'.format(100 * accuracy,
                                           100 * REQUIRED_ACCURACY))
    return 0

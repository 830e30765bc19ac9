"""What the demonstration is made of: digits, distortion and a network."""
from __future__ import absolute_import, division, print_function

import warnings

import h5py
import numpy
from fuel.datasets import H5PYDataset
from fuel.schemes import SequentialScheme, ShuffledScheme
from fuel.streams import DataStream
from fuel.transformers import Cast, Flatten, Mapping, ScaleAndShift
from scipy import ndimage

NUM_TRAIN = 1297  # of 1,797
SCANNED = 8  # height and width of a digit in the file
ENLARGED = 28  # and of one that the network sees


def write_digits(path):
    """Write scikit-learn's digits to a file as Fuel's converters do.

    Parameters
    ----------
    path : str
        Where to write the HDF5 file.

    """
    from sklearn.datasets import load_digits
    digits = load_digits()
    # Those at the end are harder than the rest.
    order = numpy.random.RandomState(0).permutation(len(digits.target))
    features = digits.images.astype('uint8')[order, numpy.newaxis]
    targets = digits.target.astype('uint8')[order, numpy.newaxis]
    splits = {'train': (0, NUM_TRAIN), 'test': (NUM_TRAIN, len(features))}
    with h5py.File(path, 'w') as h5file:
        for source, data, labels in [
                ('features', features, ['batch', 'channel', 'height',
                                        'width']),
                ('targets', targets, ['batch', 'index'])]:
            dataset = h5file.create_dataset(source, data=data)
            for dim, label in zip(dataset.dims, labels):
                dim.label = label
        with warnings.catch_warnings():
            # NumPy 1.17 to 1.26 have something to say of Fuel's dtype.
            warnings.simplefilter('ignore', FutureWarning)
            h5file.attrs['split'] = H5PYDataset.create_split_array({
                split: {'features': bounds, 'targets': bounds}
                for split, bounds in splits.items()})


def open_digits(path, which_set):
    """Open a split of the file, to be read from disk.

    Parameters
    ----------
    path : str
        A file as :func:`write_digits` makes it.
    which_set : {'train', 'test'}
        The split.

    Returns
    -------
    :class:`~fuel.datasets.H5PYDataset`
        The dataset.

    """
    return H5PYDataset(path, which_sets=(which_set,), load_in_memory=False)


def check_digits(path):
    """Raise an error unless a file is like one of :func:`write_digits`."""
    for which_set in ('train', 'test'):
        dataset = open_digits(path, which_set)
        handle = dataset.open()
        try:
            features, targets = dataset.get_data(handle, slice(0, 1))
        finally:
            dataset.close(handle)
        if (features.shape != (1, 1, SCANNED, SCANNED) or
                targets.shape != (1, 1)):
            raise ValueError('other shapes than those of the digits')


def train_stream(path, batch_size, seed, map_stream=None):
    """Make the stream that is read for training, distortion and all.

    Two streams of one `seed` give the same batches, epoch for epoch.

    Parameters
    ----------
    path : str
        The file of digits.
    batch_size : int
        Digits in a batch.
    seed : int
        Where all that is random starts.
    map_stream : callable, optional
        Makes the stream that distorts, of the one to distort, a
        :class:`Distortion` and keyword arguments. Defaults to Fuel's
        ``Mapping``.

    """
    dataset = open_digits(path, 'train')
    scheme = ShuffledScheme(dataset.num_examples, batch_size,
                            rng=numpy.random.RandomState([seed, 0]))
    stream = _normalize(DataStream(dataset, iteration_scheme=scheme))
    distort = Distortion(numpy.random.RandomState([seed, 1]))
    return _flatten((map_stream or Mapping)(
        stream, distort, axis_labels=stream.axis_labels))


def test_stream(path, batch_size):
    """Make the stream of the held-out digits, as they were scanned."""
    dataset = open_digits(path, 'test')
    scheme = SequentialScheme(dataset.num_examples, batch_size)
    stream = _normalize(DataStream(dataset, iteration_scheme=scheme))
    return _flatten(Mapping(stream, enlarge, axis_labels=stream.axis_labels))


def _normalize(stream):
    features = {'which_sources': ('features',)}
    return Cast(ScaleAndShift(stream, 1 / 16, 0, **features),
                'float32', **features)


def _flatten(stream):
    return Flatten(stream, which_sources=('features',))


# A whole batch goes through each function of SciPy at once. Most of the time
# is spent in a few long calls, for which SciPy releases the interpreter lock,
# and not in Python, which would take turns with the training.
class Distortion(object):
    """Redraws each digit of a batch as another hand might have.

    It is turned, slanted, resized and moved, its strokes are bent [SSP]_
    and the pen is blunted, each digit differently.

    Parameters
    ----------
    rng : :class:`numpy.random.RandomState`
        Decides how, unless a call is given one of its own.

    .. [SSP] Patrice Y. Simard, Dave Steinkraus and John C. Platt, *Best
       practices for convolutional neural networks applied to visual
       document analysis*, International Conference on Document Analysis
       and Recognition, 2003.

    """
    def __init__(self, rng):
        self.rng = rng

    def __call__(self, batch, rng=None):
        images, targets = batch
        rng = rng or self.rng
        n = len(images)
        angles = rng.normal(0, .1, n)
        slants = rng.normal(0, .1, n)
        sizes = numpy.exp(rng.normal(0, .07, (2, n)))
        moves = rng.normal(0, .7, (2, n, 1, 1))
        bluntness = rng.uniform(0, 1, (n, 1, 1)).astype('float32')

        # Where in the scanned image each pixel of the new one comes from.
        matrices = numpy.array([
            [numpy.cos(angles), numpy.sin(angles)],
            [slants - numpy.sin(angles), numpy.cos(angles)]]) / sizes
        positions = numpy.einsum('ijn,jhw->inhw', matrices, _grid()) + moves
        bends = rng.uniform(-20, 20, positions.shape).astype('float32')
        positions += ndimage.gaussian_filter(bends, (0, 0, 4, 4))

        redrawn = _sample(images, positions)
        blurred = ndimage.gaussian_filter(redrawn, (0, 1, 1))
        redrawn += bluntness * (blurred - redrawn)
        return redrawn[:, numpy.newaxis], targets


def enlarge(batch):
    """Enlarge the digits of a batch, and nothing else."""
    images, targets = batch
    grid = numpy.repeat(_grid()[:, numpy.newaxis], len(images), axis=1)
    return _sample(images, grid)[:, numpy.newaxis], targets


def _grid():
    """Make the coordinates of an enlarged image's pixels from its centre."""
    return numpy.indices((ENLARGED, ENLARGED)) - (ENLARGED - 1) / 2


def _sample(images, positions):
    """Take the grey values at `positions`, in enlarged pixels from centre.

    Parameters
    ----------
    images : :class:`numpy.ndarray`
        Of shape `(batch, 1, SCANNED, SCANNED)`.
    positions : :class:`numpy.ndarray`
        Rows and columns, of shape `(2, batch, ENLARGED, ENLARGED)`.

    Returns
    -------
    :class:`numpy.ndarray`
        Of shape `(batch, ENLARGED, ENLARGED)`.

    """
    coordinates = numpy.empty((3,) + positions.shape[1:], 'float32')
    coordinates[0] = numpy.arange(len(images))[:, numpy.newaxis, numpy.newaxis]
    coordinates[1:] = positions * (SCANNED / ENLARGED) + (SCANNED - 1) / 2
    return ndimage.map_coordinates(images[:, 0], coordinates, order=1)


class Network(object):
    """Classifies digits with one hidden layer of rectifiers and a softmax.

    Parameters
    ----------
    hidden : int
        Units of the hidden layer.
    rng : :class:`numpy.random.RandomState`
        Draws the weights to start from.

    Attributes
    ----------
    parameters : list of :class:`numpy.ndarray`
        Weights and biases of either layer.

    """
    def __init__(self, hidden, rng):
        self.parameters = []
        for inputs, outputs in [(ENLARGED ** 2, hidden), (hidden, 10)]:
            weights = rng.normal(0, (2 / inputs) ** .5, (inputs, outputs))
            self.parameters += [weights.astype('float32'),
                                numpy.zeros(outputs, 'float32')]
        self._velocities = [numpy.zeros_like(parameter)
                            for parameter in self.parameters]

    def _forward(self, features):
        weights, biases, out_weights, out_biases = self.parameters
        hidden = numpy.maximum(features.dot(weights) + biases, 0)
        return hidden, hidden.dot(out_weights) + out_biases

    def train(self, features, targets, rate):
        """Take one step of gradient descent with momentum.

        Parameters
        ----------
        features : :class:`numpy.ndarray`
            Of shape `(batch, feature)`.
        targets : :class:`numpy.ndarray`
            Digits, of shape `(batch, 1)`.
        rate : float
            The learning rate.

        """
        hidden, scores = self._forward(features)
        errors = numpy.exp(scores - scores.max(axis=1, keepdims=True))
        errors /= errors.sum(axis=1, keepdims=True)
        errors[numpy.arange(len(targets)), targets[:, 0]] -= 1
        errors /= len(targets)
        hidden_errors = errors.dot(self.parameters[2].T) * (hidden > 0)
        gradients = [features.T.dot(hidden_errors), hidden_errors.sum(axis=0),
                     hidden.T.dot(errors), errors.sum(axis=0)]
        # In place: arrays of this size are costly to allocate.
        for parameter, velocity, gradient in zip(
                self.parameters, self._velocities, gradients):
            gradient *= rate
            velocity *= .9
            velocity -= gradient
            parameter += velocity

    def predict(self, features):
        """Tell which digits `features` show."""
        return self._forward(features)[1].argmax(axis=1)

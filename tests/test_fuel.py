"""What a Fuel user relies on, on every Python, with compat.py in place."""
from __future__ import absolute_import, division, print_function
import copy
import io
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings
from collections import OrderedDict

import h5py
import numpy
import six
import tables
import zmq
from numpy.testing import assert_array_equal
from PIL import Image
from six.moves import cPickle, range, zip

import fuel_prefetch
from fuel import config
from fuel.datasets import (H5PYDataset, IndexableDataset, IterableDataset,
                           TextFile)
from fuel.datasets.hdf5 import PytablesDataset
from fuel.datasets.toy import Spiral, SwissRoll
from fuel.schemes import (BatchSizeScheme, ConcatenatedScheme, ConstantScheme,
                          SequentialExampleScheme, SequentialScheme,
                          ShuffledExampleScheme, ShuffledScheme,
                          cross_validation)
from fuel.server import recv_arrays, send_arrays
from fuel.streams import DataStream
from fuel.transformers import (
    Batch, Cache, Cast, Filter, FilterSources, Flatten, ForceFloatX, Mapping,
    Merge, Padding, Rename, ScaleAndShift, SortMapping, Transformer, Unpack)
from fuel.transformers.defaults import (rgb_images_from_encoded_bytes,
                                        uint8_pixels_to_floatX)
from fuel.transformers.image import (ImagesFromBytes, MinimumImageDimensions,
                                     Random2DRotation, RandomFixedSizeCrop)
from fuel.utils import Subset

try:
    from fuel.transformers.sequences import NGrams
except ImportError:
    from fuel.transformers.text import NGrams

NUMPY = tuple(int(part) for part in numpy.__version__.split('.')[:2])
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(
    fuel_prefetch.__file__)))


def setUpModule():
    global _filters
    # NumPy 1.17 to 1.23 warn of what later ones refuse.
    _filters = warnings.catch_warnings()
    _filters.__enter__()
    warnings.simplefilter('ignore')


def tearDownModule():
    _filters.__exit__(None, None, None)


def plain(data):
    """Turn arrays into lists, with their types, for an exact comparison."""
    if isinstance(data, numpy.ndarray):
        return (data.dtype.str, data.shape,
                [plain(element) for element in data]
                if data.dtype == object else data.tolist())
    if isinstance(data, (list, tuple)):
        return type(data)(plain(element) for element in data)
    if isinstance(data, dict):
        return dict((key, plain(data[key])) for key in data)
    return data


def epoch(stream, **kwargs):
    return [plain(data) for data in stream.get_epoch_iterator(**kwargs)]


def examples(*values):
    return DataStream(IterableDataset(list(values)))


def double(data):
    return tuple(2 * source for source in data)


def length(data):
    return len(data[0])


def last(data):
    return -data[1][0]


def short(data):
    return len(data[0]) < 3


def not_the_last(data):
    return data[1][0] < 28


def sequences(dtype='int64'):
    """Streams two sources of sequences that differ in length."""
    lengths = [3, 1, 4, 2, 2]
    return DataStream(IterableDataset(OrderedDict([
        ('x', [numpy.arange(n, dtype=dtype) + 10 * n for n in lengths]),
        ('y', [list(range(n)) for n in lengths])])))


class FileTestCase(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)


class TestSchemes(unittest.TestCase):
    def requests(self, scheme):
        return list(scheme.get_request_iterator())

    def test_sequential(self):
        self.assertEqual(self.requests(SequentialScheme(5, 2)),
                         [[0, 1], [2, 3], [4]])
        self.assertEqual(self.requests(SequentialScheme([4, 2, 0], 2)),
                         [[4, 2], [0]])
        self.assertEqual(self.requests(SequentialExampleScheme(3)), [0, 1, 2])

    def test_shuffled(self):
        scheme = ShuffledScheme(20, 3, rng=numpy.random.RandomState(3))
        first, second = self.requests(scheme), self.requests(scheme)
        self.assertNotEqual(first, second)
        self.assertEqual(sorted(sum(first, [])), list(range(20)))
        again = ShuffledScheme(20, 3, rng=numpy.random.RandomState(3))
        self.assertEqual(self.requests(again), first)

    def test_shuffled_order_is_the_same_on_every_python(self):
        # What Fuel 0.2.0 gives on Python 2.7 with NumPy 1.16.
        scheme = ShuffledExampleScheme(8, rng=numpy.random.RandomState(1))
        self.assertEqual(self.requests(scheme), [7, 2, 1, 6, 0, 4, 3, 5])

    def test_constant(self):
        self.assertEqual(self.requests(ConstantScheme(3, times=2)), [3, 3])
        self.assertEqual(self.requests(ConstantScheme(3, 8)), [3, 3, 2])
        self.assertIsInstance(ConstantScheme(3), BatchSizeScheme)

    def test_concatenated(self):
        self.assertEqual(self.requests(ConcatenatedScheme(
            [SequentialScheme(3, 2), SequentialScheme([7], 2)])),
            [[0, 1], [2], [7]])

    def test_cross_validation(self):
        folds = list(cross_validation(SequentialExampleScheme, 4, 2))
        self.assertEqual([[self.requests(scheme) for scheme in fold]
                          for fold in folds],
                         [[[2, 3], [0, 1]], [[0, 1], [2, 3]]])

    def test_live_requests_pickle(self):
        for scheme in [SequentialScheme(9, 2), ShuffledScheme(9, 2),
                       SequentialExampleScheme(9), ShuffledExampleScheme(9),
                       ConstantScheme(2, 9), ConstantScheme(2, times=5)]:
            requests = scheme.get_request_iterator()
            next(requests)
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                clone = pickle.loads(pickle.dumps(requests, protocol))
                self.assertEqual(list(clone), list(copy.deepcopy(requests)))


class TestDatasets(FileTestCase):
    def test_iterable(self):
        stream = DataStream(IterableDataset(OrderedDict(
            [('a', [1, 2]), ('b', (3, 4))])))
        self.assertEqual(stream.sources, ('a', 'b'))
        self.assertEqual(epoch(stream), [(1, 3), (2, 4)])
        self.assertEqual(epoch(stream, as_dict=True),
                         [{'a': 1, 'b': 3}, {'a': 2, 'b': 4}])

    def test_iterable_wants_iterables(self):
        self.assertRaises(ValueError, IterableDataset, 3)
        self.assertRaises(ValueError, IterableDataset, {'a': 3})

    def test_epochs(self):
        stream = examples(1, 2)
        epochs = stream.iterate_epochs()
        self.assertEqual([list(next(epochs)) for _ in range(3)],
                         [[(1,), (2,)]] * 3)

    def test_indexable(self):
        x, y = numpy.arange(12).reshape((6, 2)), list('abcdef')
        dataset = IndexableDataset(OrderedDict([('x', x), ('y', y)]),
                                   axis_labels={'x': ('batch', 'index'),
                                                'y': ('batch',)})
        self.assertIs(dataset.y[0], y[0])
        stream = DataStream(dataset, iteration_scheme=SequentialScheme(6, 4))
        batches = list(stream.get_epoch_iterator())
        assert_array_equal(batches[0][0], x[:4])
        self.assertEqual(batches[1][1], ['e', 'f'])
        self.assertEqual(epoch(dataset.get_example_stream())[2],
                         (plain(x[2]), 'c'))
        self.assertEqual(dataset.get_example_stream().axis_labels['x'],
                         ('index',))

    def test_indexable_pickles(self):
        dataset = IndexableDataset(OrderedDict([('x', numpy.arange(6))]),
                                   sources=('x',))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            clone = pickle.loads(pickle.dumps(dataset, protocol))
            self.assertEqual(clone.x.tolist(), list(range(6)))

    def test_toys(self):
        for dataset in (Spiral(classes=3), SwissRoll(noise=0.1)):
            batch = next(DataStream(dataset, iteration_scheme=ShuffledScheme(
                dataset.num_examples, 50)).get_epoch_iterator())
            self.assertEqual(batch[0].dtype, 'float32')
            self.assertEqual(len(batch[0]), 50)

    def text(self):
        path = self.path('sentences.txt')
        with io.open(path, 'w') as f:
            f.write(u'this is a sentence\nthis another one\na one\n')
        return DataStream(TextFile(
            [path], dict(zip(['<S>', '</S>', '<UNK>', 'this', 'a', 'one'],
                             range(6)))))

    def test_text(self):
        stream = self.text()
        self.addCleanup(stream.close)
        self.assertEqual(epoch(stream), [
            ([0, 3, 2, 4, 2, 1],), ([0, 3, 2, 5, 1],), ([0, 4, 5, 1],)])

    def test_text_pickles_mid_epoch(self):
        stream = self.text()
        sentences = stream.get_epoch_iterator()
        next(sentences)
        clone = pickle.loads(pickle.dumps(sentences))
        self.assertEqual(list(clone), list(sentences))

    def test_ngrams(self):
        stream = NGrams(2, examples([1, 2, 3, 4], [5, 6, 7]))
        self.assertEqual(epoch(stream), [
            ([1, 2], 3), ([2, 3], 4), ([5, 6], 7)])

    def test_pytables(self):
        path = self.path('tables.hdf5')
        with tables.open_file(path, 'w') as h5file:
            group = h5file.create_group('/', 'Data')
            h5file.create_array(
                group, 'x', numpy.arange(10).reshape((10, 1)))
        dataset = PytablesDataset(path, ('x',), start=2)
        stream = DataStream(dataset, iteration_scheme=SequentialScheme(8, 3))
        batches = stream.get_epoch_iterator()
        next(batches)
        clone = pickle.loads(pickle.dumps(batches, 2))
        rest = [data.tolist() for data, in batches]
        self.assertEqual(rest, [[[5], [6], [7]], [[8], [9]]])
        self.assertEqual([data.tolist() for data, in clone], rest)
        for dataset in (dataset, clone.data_stream.dataset):
            dataset.close_file()


class TestSubset(unittest.TestCase):
    def test_unsorted_indices(self):
        subset = Subset([1, 3, 5, 7], 10)
        self.assertEqual(subset.index_within_subset(
            numpy.arange(10), [3, 0, 2], sort_indices=True).tolist(),
            [7, 1, 5])

    def test_lists(self):
        self.assertEqual(Subset(slice(2, 5), 10).index_within_subset(
            'abcdefghij', [2, 0]), ['e', 'c'])

    def test_sum(self):
        total = Subset(slice(0, 3), 10) + Subset([7, 9], 10)
        self.assertEqual(total.get_list_representation(), [0, 1, 2, 7, 9])
        self.assertEqual((Subset(slice(0, 3), 10) +
                          Subset(slice(3, 6), 10)).list_or_slice,
                         slice(0, 6, 1))


def write_fixed(path):
    """Write features and targets, split by range and by indices."""
    with h5py.File(path, 'w') as h5file:
        h5file['features'] = numpy.arange(60, dtype='float32').reshape(20, 3)
        h5file['targets'] = numpy.arange(20, dtype='uint8').reshape(20, 1)
        for source in ('features', 'targets'):
            h5file[source].dims[0].label = 'batch'
            h5file[source].dims[1].label = 'index'
        h5file['odd'] = numpy.arange(1, 20, 2)
        odd = h5file['odd'].ref
        h5file.attrs['split'] = H5PYDataset.create_split_array(OrderedDict([
            ('train', {'features': (0, 15), 'targets': (0, 15)}),
            ('test', {'features': (15, 20, None, 'the rest'),
                      'targets': (15, 20)}),
            ('odd', {'features': (-1, -1, odd), 'targets': (-1, -1, odd)}),
            ('unlabeled', {'features': (0, 20, None, '')})]))


SHAPES = [(3, 2, 2), (3, 1, 4), (3, 3, 1), (3, 2, 5), (3, 1, 1), (3, 4, 4)]


def images():
    rng = numpy.random.RandomState(1)
    return [rng.randint(0, 256, shape).astype('uint8') for shape in SHAPES]


def write_vlen(path):
    """Write images that differ in size, as Fuel's converters do."""
    with h5py.File(path, 'w') as h5file:
        dtype = h5py.special_dtype(vlen=numpy.dtype('uint8'))
        features = h5file.create_dataset('features', (6,), dtype=dtype)
        for i, array in enumerate(images()):
            features[i] = array.flatten()
        features.dims[0].label = 'batch'
        h5file['shapes'] = numpy.array(SHAPES, dtype='int32')
        h5file['labels'] = numpy.array([b'channel', b'height', b'width'])
        for name, scale in (('shapes', 'shapes'), ('labels', 'shape_labels')):
            if hasattr(h5file[name], 'make_scale'):
                h5file[name].make_scale(scale)
            else:
                features.dims.create_scale(h5file[name], scale)
            features.dims[0].attach_scale(h5file[name])
        h5file['targets'] = numpy.arange(6).reshape((6, 1))
        h5file['targets'].dims[0].label = 'batch'
        h5file['targets'].dims[1].label = 'index'
        h5file.attrs['split'] = H5PYDataset.create_split_array({
            'train': {'features': (0, 6), 'targets': (0, 6)}})


class HDF5Tests(object):
    """What holds in memory and on disk."""
    def dataset(self, path, which_sets=('train',), **kwargs):
        return H5PYDataset(path, which_sets=which_sets,
                           load_in_memory=self.load_in_memory, **kwargs)

    def stream(self, dataset, scheme=None):
        stream = DataStream(dataset, iteration_scheme=(
            scheme or dataset.example_iteration_scheme))
        self.addCleanup(stream.close)
        return stream

    def setUp(self):
        super(HDF5Tests, self).setUp()
        self.fixed, self.vlen = self.path('fixed.hdf5'), self.path('vlen.hdf5')
        write_fixed(self.fixed)
        write_vlen(self.vlen)
        self.features = numpy.arange(60, dtype='float32').reshape(20, 3)

    def test_splits(self):
        with h5py.File(self.fixed, 'r') as h5file:
            self.assertEqual(set(H5PYDataset.get_all_splits(h5file)),
                             set(['train', 'test', 'odd', 'unlabeled']))
            self.assertEqual(set(H5PYDataset.get_all_sources(h5file)),
                             set(['features', 'targets']))
            self.assertEqual(
                H5PYDataset.get_provided_sources(h5file, 'unlabeled'),
                ('features',))
            self.assertEqual(
                [row['comment'] for row in h5file.attrs['split']].count(
                    b'the rest'), 1)
            self.assertEqual(
                [bool(row['indices']) for row in h5file.attrs['split']],
                [False] * 4 + [True] * 2 + [False] * 2)

    def test_batches(self):
        dataset = self.dataset(self.fixed, ('train',))
        self.assertEqual(dataset.num_examples, 15)
        self.assertEqual(dataset.axis_labels['features'], ('batch', 'index'))
        batches = list(self.stream(
            dataset, SequentialScheme(15, 6)).get_epoch_iterator())
        self.assertEqual([len(x) for x, _ in batches], [6, 6, 3])
        self.assertEqual([x.dtype.str for x in batches[0]], ['<f4', '|u1'])
        assert_array_equal(numpy.vstack([x for x, _ in batches]),
                           self.features[:15])

    def test_examples(self):
        x, y = epoch(self.stream(self.dataset(self.fixed, ('test',))))[1]
        self.assertEqual((x, y), (plain(self.features[16]),
                                  ('|u1', (1,), [16])))

    def test_shuffled(self):
        stream = self.stream(self.dataset(self.fixed), ShuffledScheme(15, 4))
        for x, y in stream.get_epoch_iterator():
            assert_array_equal(x, self.features[y[:, 0]])

    def test_split_by_indices(self):
        dataset = self.dataset(self.fixed, ('odd',))
        self.assertEqual(dataset.num_examples, 10)
        stream = self.stream(dataset, ShuffledScheme(10, 4))
        seen = [y.ravel().tolist() for _, y in stream.get_epoch_iterator()]
        self.assertEqual(sorted(sum(seen, [])), list(range(1, 20, 2)))

    def test_several_splits(self):
        self.assertEqual(
            self.dataset(self.fixed, ('train', 'test')).num_examples, 20)
        stream = self.stream(self.dataset(self.fixed, ('odd', 'test')),
                             SequentialScheme(12, 12))
        (_, y), = stream.get_epoch_iterator()
        self.assertEqual(y.ravel().tolist(),
                         [1, 3, 5, 7, 9, 11, 13, 15, 16, 17, 18, 19])

    def test_sources_in_common(self):
        dataset = self.dataset(self.fixed, ('train', 'unlabeled'))
        self.assertEqual(dataset.sources, ('features',))

    def test_subsets(self):
        for subset, expected in [(slice(2, 5), [2, 3, 4]),
                                 ([6, 1, 4], [1, 4, 6]), ([3, 4], [3, 4])]:
            dataset = self.dataset(self.fixed, subset=subset,
                                   sources=('targets',))
            batch, = self.stream(
                dataset, SequentialScheme(dataset.num_examples, 5)
            ).get_epoch_iterator()
            self.assertEqual(batch[0].ravel().tolist(), expected)

    def test_unknown_split(self):
        six.assertRaisesRegex(self, ValueError, 'nosuch', self.dataset,
                              self.fixed, ('nosuch',))
        self.assertRaises(ValueError, self.dataset, self.fixed, 'train')

    def test_vlen(self):
        dataset = self.dataset(self.vlen)
        self.assertEqual(dataset.vlen_sources, ['features'])
        self.assertEqual(dataset.axis_labels['features'],
                         ('batch', 'channel', 'height', 'width'))
        for scheme in (SequentialScheme(6, 4), ShuffledScheme(6, 4)):
            for x, y in self.stream(dataset, scheme).get_epoch_iterator():
                self.assertEqual((x.dtype, x.ndim), (object, 1))
                for array, (i,) in zip(x, y):
                    self.assertEqual(plain(array), plain(images()[i]))

    def test_vlen_examples(self):
        self.assertEqual([x for x, _ in epoch(self.stream(
            self.dataset(self.vlen)))], [plain(x) for x in images()])

    def test_vlen_through_batch_and_unpack(self):
        stream = self.stream(self.dataset(self.vlen))
        again = Unpack(Batch(stream, ConstantScheme(4)))
        if NUMPY < (1, 24):
            # Images of one number of channels: these never did.
            self.assertRaises(ValueError, epoch, again)
        else:
            self.assertEqual(epoch(again), epoch(stream))

    def copies(self, data):
        for module in (pickle, cPickle):
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                yield module.loads(module.dumps(data, protocol))
        yield copy.deepcopy(data)

    def check_resumes(self, stream):
        """Check that a live epoch goes on in a copy, and then the next."""
        batches = stream.get_epoch_iterator()
        taken = [plain(next(batches)) for _ in range(2)]
        clones = list(self.copies((stream, batches)))
        rest = [plain(batch) for batch in batches]
        following = epoch(stream)
        for clone, clone_batches in clones:
            self.assertIs(clone_batches.data_stream, clone)
            self.assertEqual([plain(batch) for batch in clone_batches], rest)
            self.assertEqual(epoch(clone), following)
            clone.close()
        return taken + rest

    def test_resumes(self):
        for path, size in ((self.fixed, 15), (self.vlen, 6)):
            for scheme in (SequentialScheme(size, 2), ShuffledScheme(size, 2),
                           ShuffledExampleScheme(size)):
                self.check_resumes(self.stream(self.dataset(path), scheme))

    def test_resumes_below_transformers(self):
        stream = self.stream(self.dataset(self.fixed),
                             ShuffledExampleScheme(15))
        self.check_resumes(Mapping(Cache(Batch(
            Filter(Mapping(stream, double), not_the_last), ConstantScheme(4)),
            ConstantScheme(2, times=6)), SortMapping(last)))

    def test_resumes_in_another_process(self):
        for path, size in ((self.fixed, 15), (self.vlen, 6)):
            stream = self.stream(self.dataset(path), ShuffledScheme(size, 2))
            batches = stream.get_epoch_iterator()
            next(batches)
            checkpoint = self.path('checkpoint')
            with open(checkpoint, 'wb') as f:
                cPickle.dump((stream, batches), f, 2)
            environment = dict(os.environ, PYTHONPATH=os.pathsep.join(
                [ROOT] + os.environ.get('PYTHONPATH', '').split(os.pathsep)))
            output = subprocess.check_output(
                [sys.executable, '-W', 'ignore', '-c', (
                    'import fuel_prefetch, pickle\n'
                    'with open({0!r}, "rb") as f:\n'
                    '    stream, batches = pickle.load(f)\n'
                    'again = list(batches), list(stream.get_epoch_iterator())'
                    '\n'
                    'stream.close()\n'
                    'with open({0!r}, "wb") as f:\n'
                    '    pickle.dump(again, f, 2)\n').format(checkpoint)],
                env=environment, stderr=subprocess.STDOUT)
            self.assertEqual(output, b'')
            with open(checkpoint, 'rb') as f:
                again = pickle.load(f)
            self.assertEqual(plain(again[0]), plain(list(batches)))
            self.assertEqual(plain(again[1]), epoch(stream))

    def test_checkpoints_are_small(self):
        path = self.path('large.hdf5')
        with h5py.File(path, 'w') as h5file:
            h5file['x'] = numpy.zeros((1000, 100))
            h5file.attrs['split'] = H5PYDataset.create_split_array(
                {'train': {'x': (0, 1000)}})
        stream = self.stream(self.dataset(path), SequentialScheme(1000, 10))
        next(stream.get_epoch_iterator())
        self.assertLess(len(pickle.dumps(stream, 2)), 20000)

    def test_external_handle(self):
        with h5py.File(self.fixed, 'r') as handle:
            dataset = self.dataset(handle)
            self.assertIs(dataset.external_file_handle, handle)
            self.check_resumes(
                self.stream(dataset, ShuffledScheme(15, 4)))
            self.assertTrue(handle)  # it is its owner's to close


class TestHDF5OnDisk(HDF5Tests, FileTestCase):
    load_in_memory = False

    def test_handles_are_closed(self):
        stream = self.stream(self.dataset(self.fixed))
        self.assertIn(self.fixed, H5PYDataset._file_handles)
        stream.close()
        self.assertNotIn(self.fixed, H5PYDataset._file_handles)
        h5py.File(self.fixed, 'r+').close()


class TestHDF5InMemory(HDF5Tests, FileTestCase):
    load_in_memory = True

    def test_needs_the_file_no_more(self):
        stream = self.stream(self.dataset(self.fixed))
        os.remove(self.fixed)
        self.assertEqual(len(epoch(stream)), 15)


class TestBatching(unittest.TestCase):
    def test_batch(self):
        stream = Batch(examples(1, 2, 3), ConstantScheme(2))
        self.assertEqual([x.tolist() for x, in stream.get_epoch_iterator()],
                         [[1, 2], [3]])
        self.assertEqual(len(epoch(
            Batch(examples(1, 2, 3), ConstantScheme(2), strictness=1))), 1)
        self.assertRaises(ValueError, epoch, Batch(
            examples(1, 2, 3), ConstantScheme(2), strictness=2))

    def test_ragged_batch(self):
        batches = list(Batch(
            sequences(), ConstantScheme(2)).get_epoch_iterator())
        for x, y in batches[:2]:
            self.assertEqual((x.dtype, x.shape), (object, (2,)))
            self.assertEqual((y.dtype, y.shape), (object, (2,)))
            self.assertIsInstance(x[0], numpy.ndarray)
            self.assertIsInstance(y[0], list)
        # Alike by chance, as the last one here: a regular array.
        self.assertEqual(plain(batches[2]),
                         (('<i8', (1, 2), [[20, 21]]),
                          ('<i8', (1, 2), [[0, 1]])))

    def test_regular_batch(self):
        array = numpy.zeros((3, 4), 'float32')
        batch, = next(Batch(examples(array, array), ConstantScheme(2)
                            ).get_epoch_iterator())
        self.assertEqual((batch.dtype, batch.shape), ('float32', (2, 3, 4)))

    def test_partly_ragged_batch(self):
        batch, = next(Batch(
            examples(numpy.zeros((3, 2)), numpy.zeros((4, 2))),
            ConstantScheme(2)).get_epoch_iterator())
        self.assertEqual((batch.dtype, batch.shape), (object, (2,)))

    def test_unpack(self):
        stream = Unpack(Batch(sequences(), ConstantScheme(2)))
        self.assertEqual([x.tolist() for x, _ in stream.get_epoch_iterator()],
                         [x.tolist() for x, _ in
                          sequences().get_epoch_iterator()])

    def test_cache(self):
        stream = Cache(Batch(sequences(), ConstantScheme(4)),
                       ConstantScheme(2, times=2))
        batches = list(stream.get_epoch_iterator())
        self.assertEqual([[len(x) for x in batch[0]] for batch in batches],
                         [[3, 1], [4, 2]])
        self.assertEqual(batches[0][0].dtype, object)

    def test_sort_mapping(self):
        stream = Mapping(Batch(sequences(), ConstantScheme(5)),
                         SortMapping(length))
        x, y = next(stream.get_epoch_iterator())
        self.assertEqual((x.dtype, y.dtype), (object, object))
        self.assertEqual([len(element) for element in x], [1, 2, 2, 3, 4])
        self.assertEqual([len(element) for element in y], [1, 2, 2, 3, 4])
        x, _ = SortMapping(length, reverse=True)((x, y))
        self.assertEqual([len(element) for element in x], [4, 3, 2, 2, 1])

    def test_the_classic_pipeline_pickles(self):
        # Read much, sort by length, cut into batches, pad.
        stream = Padding(Mapping(Cache(Mapping(Batch(
            sequences(), ConstantScheme(4)), SortMapping(length)),
            ConstantScheme(2, times=2)), SortMapping(length)))
        batches = stream.get_epoch_iterator()
        next(batches)
        clone = pickle.loads(pickle.dumps(batches))
        rest = [plain(batch) for batch in batches]
        self.assertEqual([batch[0][1] for batch in rest], [(2, 4)])
        self.assertEqual([plain(batch) for batch in clone], rest)


class TestPadding(unittest.TestCase):
    def test_sequences(self):
        stream = Padding(Batch(sequences('int32'), ConstantScheme(2)))
        self.assertEqual(stream.sources, ('x', 'x_mask', 'y', 'y_mask'))
        x, x_mask, y, y_mask = next(stream.get_epoch_iterator())
        self.assertEqual(plain(x), ('<i4', (2, 3),
                                    [[30, 31, 32], [10, 0, 0]]))
        self.assertEqual(x_mask.tolist(), [[1, 1, 1], [1, 0, 0]])
        self.assertEqual(x_mask.dtype, config.floatX)
        self.assertEqual(y.tolist(), [[0, 1, 2], [0, 0, 0]])
        assert_array_equal(y_mask, x_mask)

    def test_matrices(self):
        stream = Padding(Batch(
            examples(numpy.ones((3, 2)), numpy.ones((4, 2))),
            ConstantScheme(2)), mask_dtype='uint8')
        data, mask = next(stream.get_epoch_iterator())
        self.assertEqual((data.shape, mask.dtype), ((2, 4, 2), 'uint8'))
        self.assertEqual(data.sum(), 14)

    def test_mask_sources(self):
        stream = Padding(Batch(sequences(), ConstantScheme(2)),
                         mask_sources=('x',))
        self.assertEqual(stream.sources, ('x', 'x_mask', 'y'))
        self.assertEqual(next(stream.get_epoch_iterator())[2].dtype, object)

    def test_lists(self):
        stream = Padding(Mapping(Batch(sequences(), ConstantScheme(3)),
                                 SortMapping(length)))
        self.assertEqual(next(stream.get_epoch_iterator())[0].shape, (3, 4))

    def test_only_lengths_may_differ(self):
        stream = Padding(Batch(
            examples(numpy.ones((3, 2)), numpy.ones((4, 3))),
            ConstantScheme(2)))
        self.assertRaises(ValueError, next, stream.get_epoch_iterator())


class AddOne(Transformer):
    def transform_example(self, example):
        return tuple(source + 1 for source in example)


class TestTransformers(unittest.TestCase):
    def batches(self, dtype='uint8'):
        data = numpy.arange(24, dtype=dtype).reshape((4, 2, 3))
        return DataStream(
            IndexableDataset(OrderedDict([('x', data), ('y', data[:, 0])])),
            iteration_scheme=SequentialScheme(4, 2))

    def first(self, stream):
        return next(stream.get_epoch_iterator())

    def test_scale_and_shift(self):
        x, y = self.first(ScaleAndShift(self.batches(), 2., 1,
                                        which_sources=('x',)))
        self.assertEqual((x.dtype, x[0, 0].tolist()), ('float64', [1, 3, 5]))
        self.assertEqual(y.dtype, 'uint8')

    def test_cast(self):
        self.assertEqual([data.dtype for data in self.first(
            Cast(self.batches(), 'float32', which_sources=('x',)))],
            ['float32', 'uint8'])
        self.assertEqual(self.first(Cast(self.batches(), 'floatX'))[0].dtype,
                         config.floatX)

    def test_force_float_x(self):
        before = config.floatX
        config.floatX = 'float32'
        self.addCleanup(setattr, config, 'floatX', before)
        self.assertEqual(
            self.first(ForceFloatX(self.batches('float64')))[0].dtype,
            'float32')
        self.assertEqual(self.first(ForceFloatX(self.batches()))[0].dtype,
                         'uint8')

    def test_flatten(self):
        self.assertEqual([data.shape for data in self.first(
            Flatten(self.batches()))], [(2, 6), (2, 3)])
        self.assertEqual(self.first(Flatten(Unpack(self.batches())))[0].shape,
                         (6,))

    def test_mapping(self):
        x, _ = self.first(Mapping(self.batches(), double))
        self.assertEqual(x[0, 0].tolist(), [0, 2, 4])
        added = Mapping(self.batches(), double, add_sources=('xx', 'yy'))
        self.assertEqual(added.sources, ('x', 'y', 'xx', 'yy'))
        self.assertEqual(len(self.first(added)), 4)

    def test_filter(self):
        self.assertEqual(
            [y for _, y in epoch(FilterSources(Filter(
                sequences(), short), ('x', 'y')))],
            [[0], [0, 1], [0, 1]])

    def test_filter_and_rename_sources(self):
        stream = Rename(FilterSources(self.batches(), ('y',)), {'y': 'z'})
        self.assertEqual(stream.sources, ('z',))
        self.assertEqual(len(self.first(stream)), 1)
        self.assertRaises(KeyError, Rename, self.batches(), {'q': 'z'})
        self.assertRaises(ValueError, FilterSources, self.batches(), ('q',))

    def test_merge(self):
        merged = Merge((examples(1, 2), examples(3, 4)), ('a', 'b'))
        self.assertEqual(epoch(merged), [(1, 3), (2, 4)])
        self.assertEqual(epoch(merged, as_dict=True)[0], {'a': 1, 'b': 3})

    def test_own_transformer(self):
        self.assertEqual(epoch(AddOne(examples(1, 2),
                                      produces_examples=True)), [(2,), (3,)])
        self.assertRaises(NotImplementedError, next, AddOne(
            self.batches(), produces_examples=False).get_epoch_iterator())

    def test_default_transformers(self):
        dataset = IndexableDataset(OrderedDict(
            [('x', numpy.full((4, 2), 255, 'uint8'))]))
        dataset.default_transformers = uint8_pixels_to_floatX(('x',))
        x, = self.first(DataStream.default_stream(
            dataset, iteration_scheme=SequentialScheme(4, 2)))
        self.assertEqual((x.dtype, x[0, 0]), (config.floatX, 1))

    def test_chains_pickle_mid_epoch(self):
        for stream in [
                Mapping(self.batches(), double),
                Flatten(ScaleAndShift(Cast(self.batches(), 'float32'), 2, 1)),
                Rename(FilterSources(self.batches(), ('y',)), {'y': 'z'}),
                Unpack(self.batches()),
                Filter(sequences(), short),
                Padding(Batch(sequences(), ConstantScheme(2))),
                Merge((examples(1, 2, 3), examples(4, 5, 6)), ('a', 'b'))]:
            live = stream.get_epoch_iterator()
            next(live)
            clones = [pickle.loads(pickle.dumps(live, protocol))
                      for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
            clones.append(copy.deepcopy(live))
            rest = [plain(data) for data in live]
            self.assertTrue(rest)
            for clone in clones:
                self.assertEqual([plain(data) for data in clone], rest)


class TestServerFormat(unittest.TestCase):
    def test_round_trip(self):
        context = zmq.Context()
        self.addCleanup(context.term)
        push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        self.addCleanup(push.close, 0)
        self.addCleanup(pull.close, 0)
        pull.setsockopt(zmq.RCVTIMEO, 10000)
        push.bind('inproc://arrays')
        pull.connect('inproc://arrays')
        arrays = [numpy.arange(6, dtype='float32').reshape((2, 3)),
                  numpy.array([b'a', b'bc']), numpy.arange(4)[::2]]
        send_arrays(push, arrays)
        send_arrays(push, None, stop=True)
        for sent, received in zip(arrays, recv_arrays(pull)):
            self.assertEqual(plain(received), plain(sent))
        self.assertRaises(StopIteration, recv_arrays, pull)


def encoded(array, format_='PNG'):
    buffer_ = io.BytesIO()
    Image.fromarray(array).save(buffer_, format_)
    return buffer_.getvalue()


class TestImages(FileTestCase):
    labels = {'x': ('batch', 'channel', 'height', 'width')}

    def stream(self, arrays):
        return DataStream(
            IndexableDataset(OrderedDict([('x', arrays)]),
                             axis_labels=self.labels),
            iteration_scheme=SequentialScheme(len(arrays), len(arrays)))

    def example_stream(self, arrays):
        return DataStream(
            IndexableDataset(OrderedDict([('x', arrays)]),
                             axis_labels=self.labels),
            iteration_scheme=SequentialExampleScheme(len(arrays)))

    def first(self, stream):
        return next(stream.get_epoch_iterator())[0]

    def test_decoding(self):
        arrays = images()
        files = [encoded(array.transpose(1, 2, 0)) for array in arrays]
        stream = ImagesFromBytes(self.stream(files))
        for decoded, array in zip(self.first(stream), arrays):
            self.assertEqual(plain(decoded), plain(array))
        self.assertEqual(stream.axis_labels, self.labels)
        self.assertEqual(plain(self.first(ImagesFromBytes(
            self.example_stream(files)))), plain(arrays[0]))

    def test_decoding_grey(self):
        array = numpy.arange(12, dtype='uint8').reshape((3, 4))
        for mode, channels in (('L', 1), ('RGB', 3), (None, 1)):
            decoded, = self.first(ImagesFromBytes(
                self.stream([encoded(array)]), color_mode=mode))
            self.assertEqual(decoded.shape, (channels, 3, 4))
            assert_array_equal(decoded[0], array)

    def test_decoding_jpeg(self):
        decoded, = self.first(ImagesFromBytes(self.stream(
            [encoded(numpy.full((16, 16, 3), 200, 'uint8'), 'JPEG')])))
        self.assertEqual(decoded.shape, (3, 16, 16))
        self.assertLess(abs(decoded.astype(int) - 200).max(), 4)

    def test_what_is_no_bytes(self):
        stream = ImagesFromBytes(self.example_stream([u'text']))
        self.assertRaises(TypeError, next, stream.get_epoch_iterator())

    def test_encoded_images_from_hdf5(self):
        path = self.path('encoded.hdf5')
        arrays = images()
        with h5py.File(path, 'w') as h5file:
            sources = h5file.create_dataset(
                'encoded_images', (len(arrays),),
                dtype=h5py.special_dtype(vlen=numpy.dtype('uint8')))
            sources.dims[0].label = 'batch'
            for i, array in enumerate(arrays):
                sources[i] = numpy.frombuffer(
                    encoded(array.transpose(1, 2, 0)), dtype='uint8')
            h5file.attrs['split'] = H5PYDataset.create_split_array(
                {'train': {'encoded_images': (0, len(arrays))}})
        dataset = H5PYDataset(path, which_sets=('train',))
        dataset.default_transformers = rgb_images_from_encoded_bytes(
            ('encoded_images',))
        for scheme in (SequentialScheme(6, 6), SequentialExampleScheme(6)):
            stream = DataStream.default_stream(
                dataset, iteration_scheme=scheme)
            self.addCleanup(stream.close)
            data = self.first(stream)
            self.assertEqual(
                plain(data), plain(arrays if isinstance(data, list)
                                   else arrays[0]))

    def test_minimum_dimensions(self):
        out = self.first(MinimumImageDimensions(self.stream(images()), (4, 4)))
        self.assertEqual([array.shape for array in out], [
            (3, 4, 4), (3, 4, 16), (3, 12, 4), (3, 4, 10), (3, 4, 4),
            (3, 4, 4)])
        self.assertEqual(plain(out[5]), plain(images()[5]))
        for name in ('nearest', 'bilinear', 'bicubic'):
            MinimumImageDimensions(self.stream(images()), (4, 4), name)
        self.assertRaises(ValueError, MinimumImageDimensions,
                          self.stream(images()), (4, 4), 'nosuch')

    def crops(self, stream, seed=1):
        return RandomFixedSizeCrop(
            stream, (4, 3), which_sources=('x',),
            rng=numpy.random.RandomState(seed))

    def check_crop(self, crop, array):
        """Check that `crop` is a window of `array`."""
        height, width = array.shape[1:]
        self.assertTrue(any(
            numpy.array_equal(crop, array[:, i:i + 4, j:j + 3])
            for i in range(height - 3) for j in range(width - 2)))

    def test_crop_batch(self):
        arrays = numpy.arange(5 * 3 * 6 * 7).reshape((5, 3, 6, 7))
        for dtype in ('float32', 'float64', 'uint8'):
            source = (arrays % 251).astype(dtype)
            out = self.first(self.crops(self.stream(source)))
            self.assertEqual((out.shape, out.dtype), ((5, 3, 4, 3), dtype))
            for crop, array in zip(out, source):
                self.check_crop(crop, array)
            # The random numbers are drawn as ever.
            rng = numpy.random.RandomState(1)
            left = rng.randint(0, 5, size=5)
            top = rng.randint(0, 3, size=5)
            for crop, array, i, j in zip(out, source, top, left):
                assert_array_equal(crop, array[:, i:i + 4, j:j + 3])

    def test_crop_several_sizes(self):
        arrays = [numpy.arange(3 * height * width).reshape(
            (3, height, width)) for height, width in [(4, 3), (6, 5), (9, 4)]]
        out = self.first(self.crops(self.stream(arrays)))
        self.assertIsInstance(out, list)
        for crop, array in zip(out, arrays):
            self.check_crop(crop, array)
        self.check_crop(
            self.first(self.crops(self.example_stream(arrays[1:]))),
            arrays[1])

    def test_crop_too_small(self):
        for arrays in (numpy.zeros((2, 3, 2, 9)), [numpy.zeros((3, 4, 2))]):
            self.assertRaises(
                ValueError, self.first, self.crops(self.stream(arrays)))

    def test_rotation(self):
        arrays = [numpy.full((3, 5, 6), i, 'uint8') for i in (1, 2)]
        arrays.append(numpy.full((3, 7, 6), 3, 'uint8'))
        for batch in (arrays, numpy.array(arrays[:2])):
            out = self.first(Random2DRotation(
                self.stream(batch), maximum_rotation=0.5, resample='nearest',
                rng=numpy.random.RandomState(1)))
            self.assertEqual([array.shape for array in out],
                             [array.shape for array in batch])
            self.assertEqual([array.max() for array in out],
                             [array.max() for array in batch])

    def test_crops_pickle_with_their_random_state(self):
        source = numpy.arange(6 * 3 * 6 * 7, dtype='float32').reshape(
            (6, 3, 6, 7))
        stream = self.crops(DataStream(
            IndexableDataset(OrderedDict([('x', source)]),
                             axis_labels=self.labels),
            iteration_scheme=ShuffledScheme(6, 2)))
        live = stream.get_epoch_iterator()
        next(live)
        clone = pickle.loads(pickle.dumps(live))
        self.assertEqual([plain(data) for data in clone],
                         [plain(data) for data in live])


class TestThreads(unittest.TestCase):
    def test_a_stream_is_read_in_another_thread(self):
        stream = Padding(Batch(sequences(), ConstantScheme(2)))
        found = []
        thread = threading.Thread(target=lambda: found.extend(epoch(stream)))
        thread.start()
        thread.join(60)
        self.assertEqual(found, epoch(stream))


if __name__ == '__main__':
    unittest.main()

"""Chains of Fuel streams to compare a wrapped copy and a bare one of.

Two streams that one factory made give the same data, independently of each
other. All of it is defined at module level, so every chain can be pickled,
in the middle of an epoch too.

Of Fuel's transformers one is missing: `MultiProcessing`. It starts a process
in its constructor that reads on and on, epoch after epoch, so what it gives
is a matter of timing when it is bare already.

"""
from __future__ import absolute_import, division, print_function

import io
import os
import tempfile
from collections import OrderedDict, namedtuple

import h5py
import numpy
import six
from PIL import Image
from six.moves import range, zip

import fuel_prefetch  # noqa: F401  (before anything of Fuel's)
from fuel.datasets import (H5PYDataset, IndexableDataset, IterableDataset,
                           TextFile)
from fuel.datasets.toy import Spiral
from fuel.schemes import (ConcatenatedScheme, ConstantScheme,
                          SequentialExampleScheme, SequentialScheme,
                          ShuffledExampleScheme, ShuffledScheme)
from fuel.streams import DataStream
from fuel.transformers import (
    AgnosticTransformer, Batch, Cache, Cast, Filter, FilterSources, Flatten,
    ForceFloatX, Mapping, Merge, Padding, Rename, ScaleAndShift, SortMapping,
    Unpack)
from fuel.transformers.defaults import ToBytes
from fuel.transformers.image import (ImagesFromBytes, MinimumImageDimensions,
                                     Random2DRotation, RandomFixedSizeCrop)

try:
    from fuel.transformers.sequences import NGrams
except ImportError:
    from fuel.transformers.text import NGrams


# Why the next epoch is not what it would be without reading ahead, once an
# epoch was begun and not read to its end.
REST = 'the rest of an abandoned epoch is carried over into the next'
DRAWS = 'random numbers are drawn for each batch, also for one that is dropped'
# Why it is not, once an epoch was begun ahead and dropped unseen.
SHUFFLED = 'a random order is drawn for each epoch, also for one dropped'
COUNTED = 'the epochs are counted, also one that is dropped'
# Why a pickle is not what it was made of.
BYTE_ORDER = "NumPy's pickles before protocol 5 can lose an array's byte order"
# Why an old epoch iterator is past what was dropped, after a reset in its
# epoch.
SCHEME = 'a scheme has decided what comes next'

Pair = namedtuple('Pair', 'left right')


class Chain(namedtuple('Chain', 'name factory')):
    """A chain by name, and what is not promised for it.

    Where an exemption is set, its value is the reason.

    Parameters
    ----------
    name : str
        Its name.
    factory : callable
        Makes a copy of the chain, given the path of a directory in which
        it may create files, and optionally a function to pass a stream in
        the middle of the chain through.
    changes : tuple of callable, optional
        What may be changed between epochs. Called with the stream at the
        top and an integer.
    endless : bool, optional
        Whether an epoch has no end.
    on_disk : bool, optional
        Whether the stream holds a file open until it is closed.
    copy : str, optional
        Why `copy=True` is needed.
    ignores_as_dict : str, optional
        Why the bare stream's iterator gives no dictionaries. That of a
        :class:`.BackgroundDataStream` does.
    whole_epochs_only : str, optional
        Why each epoch has to be read to its end.
    first_epoch_only : str, optional
        Why only the first epoch can be compared.
    epochs_differ : str, optional
        Why it matters that an epoch was begun ahead.
    old_iterator_lost : str, optional
        Why an epoch iterator can't be used after a reset in its epoch.
    changed_by_pickle : str, optional
        Why the bare stream isn't the same after it was pickled.

    """
    def __new__(cls, name, factory, **kwargs):
        return super(Chain, cls).__new__(cls, name, factory)

    def __init__(self, name, factory, changes=(), endless=False,
                 on_disk=False, copy=None, ignores_as_dict=None,
                 whole_epochs_only=None, first_epoch_only=None,
                 epochs_differ=None, old_iterator_lost=None,
                 changed_by_pickle=None):
        self.changes = (relabel,) + changes
        self.endless = endless
        self.on_disk = on_disk
        self.copy = copy
        self.ignores_as_dict = ignores_as_dict
        self.whole_epochs_only = whole_epochs_only
        self.first_epoch_only = first_epoch_only
        self.epochs_differ = epochs_differ
        self.old_iterator_lost = old_iterator_lost
        self.changed_by_pickle = changed_by_pickle


def unchanged(stream):
    return stream


# What may be changed between epochs.

def relabel(stream, number):
    stream.axis_labels = {'changed': ('batch', str(number))}


def resize(stream, number):
    stream.iteration_scheme.batch_size = 1 + number % 7


def resize_below(stream, number):
    stream.data_stream.iteration_scheme.batch_size = 1 + number % 7


def remap(stream, number):
    stream.mapping = Affine(number)


def rescale(stream, number):
    stream.scale = number


def rename(stream, number):
    stream.sources = tuple('{}_{}'.format(source[:1], number)
                           for source in stream.sources)


# Mappings, predicates and keys.

class Affine(object):
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, data):
        return tuple(self.factor * source for source in data)


class Jitter(object):
    """A mapping with a random state of its own."""
    def __init__(self, seed):
        self.rng = numpy.random.RandomState(seed)

    def __call__(self, data):
        return tuple(source + self.rng.uniform(size=numpy.shape(source))
                     for source in data)


class Lookup(object):
    """A mapping from positions to whatever there is."""
    def __init__(self, values):
        self.values = values

    def __call__(self, data):
        return self.values[data[0]]


def total(data):
    return (sum(float(numpy.sum(source)) for source in data),)


def fragile(data):
    """Fail for some data, and once with what looks like an end."""
    number = data[0]
    if number == 3:
        raise Trouble('at', number)
    if number == 9:
        raise SystemExit(number)
    return [number, str(number)]


def is_odd(data):
    return bool(numpy.sum(data[0]) % 2)


def has_odd_target(data):
    return bool(data[1] % 2)


def by_length(data):
    return len(data[0])


def lower(text):
    return text.lower()


# Sources of trouble.

class Trouble(Exception):
    """An error that knows more than its text."""


class Fault(object):
    """Stands for an error in a list of items."""
    def __init__(self, kind, *args):
        self.kind, self.args = kind, args

    def strike(self):
        raise self.kind(*self.args)


class Faulty(object):
    """An iterable whose iterators raise some of their items, and go on."""
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return FaultyIterator(self.items)


class FaultyIterator(six.Iterator):
    def __init__(self, items):
        self.items = items
        self.position = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.position == len(self.items):
            raise StopIteration
        item = self.items[self.position]
        self.position += 1
        if isinstance(item, Fault):
            item.strike()
        return item


class Counter(six.Iterator):
    """An endless iterator, which is itself all there is of it."""
    def __init__(self):
        self.count = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        return numpy.arange(self.count % 5, dtype='int16') + self.count


class Endless(object):
    """An iterable without an end, which begins anew."""
    def __iter__(self):
        return Counter()


class Sections(six.Iterator):
    """An iterator that goes on after its end."""
    def __init__(self):
        self.count = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        if self.count % 6 == 0:
            raise StopIteration('section', self.count)
        return self.count


class Refilling(AgnosticTransformer):
    """Fills the same memory for each example."""
    def __init__(self, data_stream, **kwargs):
        super(Refilling, self).__init__(
            data_stream, data_stream.produces_examples, **kwargs)
        self.sources = ('memory', 'parts')
        self.memory = numpy.zeros((2, 3))
        self.parts = [numpy.zeros(2), numpy.zeros(3, dtype='int8')]

    def transform_any(self, data):
        self.memory[...] = data[0]
        self.parts[0][...] = data[0] + .5
        self.parts[1][...] = data[0]
        return self.memory, self.parts


class Epochs(AgnosticTransformer):
    """Fails at the start of some epochs, counted from 0.

    Parameters
    ----------
    faults : dict
        Maps the numbers of epochs to :class:`Fault`.
    last : int, optional
        After this many epochs there are no more.

    """
    def __init__(self, data_stream, faults, last=None, **kwargs):
        super(Epochs, self).__init__(
            data_stream, data_stream.produces_examples, **kwargs)
        self.faults = faults
        self.last = last
        self.begun = 0

    def get_epoch_iterator(self, **kwargs):
        number = self.begun
        self.begun += 1
        if number in self.faults:
            self.faults[number].strike()
        if self.last is not None and number >= self.last:
            raise StopIteration
        return super(Epochs, self).get_epoch_iterator(**kwargs)

    def transform_any(self, data):
        return data


# Data.

class Tagged(numpy.ndarray):
    """A subclass of arrays."""


def strange_values():
    """Return data that is easily taken for something else, or lost."""
    return [None, (), ValueError('data', 1), StopIteration, StopIteration(),
            [], u'text', b'bytes', 0, {}, {'data': None}, (None,), False,
            [None], (StopIteration,), None, Pair(1, [2]), float('nan')]


def strange_arrays():
    nested = numpy.empty(3, dtype=object)
    nested[:] = [numpy.arange(3), [1, (2, None)], 'three']
    deep = numpy.empty((2, 1), dtype=object)
    deep[0, 0], deep[1, 0] = nested, {'key': numpy.float32(2)}
    record = numpy.zeros(3, dtype=[('a', '>i2'), ('b', 'f4', (2,))])
    record['a'] = 1, 2, 3
    frozen = numpy.arange(4)
    frozen.flags.writeable = False
    return [
        numpy.array(3.5), numpy.arange(3, dtype='>i4'), numpy.zeros((0, 3)),
        numpy.asfortranarray(numpy.arange(6.).reshape(2, 3)),
        numpy.arange(20)[::-3], numpy.broadcast_to(numpy.arange(3), (2, 3)),
        numpy.array([True, False]), numpy.array([u'a', u'bc']),
        numpy.array([b'a', b'']), numpy.array(['2000-01-02'], 'M8[D]'),
        numpy.array([1 + 2j, numpy.nan], 'complex64'), nested, deep, record,
        record.view(numpy.recarray), numpy.arange(5).view(Tagged), frozen,
        numpy.float32(1) / 3, numpy.int8(-3), numpy.array([None])]


def examples(count, **kwargs):
    return DataStream(IterableDataset(list(range(count))), **kwargs)


def sentences(count=17):
    rng = numpy.random.RandomState(7)
    lengths = rng.randint(1, 9, size=count)
    return DataStream(IterableDataset(OrderedDict([
        ('words', [rng.randint(0, 99, size=n) for n in lengths]),
        ('tags', [rng.uniform(size=(n, 2)).astype('float32')
                  for n in lengths]),
        ('number', list(range(count)))])))


def table(count=23):
    """Return an indexable dataset of three sources with axis labels."""
    rng = numpy.random.RandomState(3)
    return IndexableDataset(
        OrderedDict([('features', rng.uniform(size=(count, 2, 3))),
                     ('targets', numpy.arange(count, dtype='uint8')),
                     ('names', ['n{}'.format(i) for i in range(count)])]),
        axis_labels={'features': ('batch', 'height', 'width'),
                     'targets': ('batch',), 'names': ('batch',)})


def new_path(directory, suffix):
    handle, path = tempfile.mkstemp(suffix, dir=directory)
    os.close(handle)
    return path


# Fuel keeps one handle and one count of its users for all datasets of one
# path, for all threads, so each copy of a chain has a file of its own.

def write_table(directory):
    path = new_path(directory, '.hdf5')
    with h5py.File(path, 'w') as h5file:
        h5file['features'] = numpy.arange(69, dtype='float32').reshape(23, 3)
        h5file['targets'] = numpy.arange(23, dtype='uint8').reshape(23, 1)
        for source in ('features', 'targets'):
            h5file[source].dims[0].label = 'batch'
            h5file[source].dims[1].label = 'index'
        h5file.attrs['split'] = H5PYDataset.create_split_array(OrderedDict([
            ('train', {'features': (0, 18), 'targets': (0, 18)}),
            ('test', {'features': (18, 23), 'targets': (18, 23)})]))
    return path


def images():
    rng = numpy.random.RandomState(1)
    return [rng.randint(0, 256, (3, height, width)).astype('uint8')
            for height, width in [(5, 4), (4, 7), (6, 5), (3, 3), (8, 4),
                                  (5, 5), (2, 6), (4, 4), (7, 7)]]


def write_images(directory):
    """Write images that differ in size, as Fuel's converters do."""
    path = new_path(directory, '.hdf5')
    arrays = images()
    with h5py.File(path, 'w') as h5file:
        features = h5file.create_dataset(
            'features', (len(arrays),),
            dtype=h5py.special_dtype(vlen=numpy.dtype('uint8')))
        for i, array in enumerate(arrays):
            features[i] = array.flatten()
        features.dims[0].label = 'batch'
        h5file['shapes'] = numpy.array([array.shape for array in arrays],
                                       dtype='int32')
        h5file['labels'] = numpy.array([b'channel', b'height', b'width'])
        for name, scale in (('shapes', 'shapes'), ('labels', 'shape_labels')):
            if hasattr(h5file[name], 'make_scale'):
                h5file[name].make_scale(scale)
            else:  # h5py before 2.10
                features.dims.create_scale(h5file[name], scale)
            features.dims[0].attach_scale(h5file[name])
        h5file['targets'] = numpy.arange(len(arrays)).reshape((-1, 1))
        h5file['targets'].dims[0].label = 'batch'
        h5file['targets'].dims[1].label = 'index'
        h5file.attrs['split'] = H5PYDataset.create_split_array({
            'train': {'features': (0, len(arrays)),
                      'targets': (0, len(arrays))}})
    return path


def write_text(directory):
    path = new_path(directory, '.txt')
    with open(path, 'w') as f:
        f.write('The cat sat on the mat and the dog sat on the cat\n'
                'A mat\nThe cat and the dog and the mat\n'
                'Sat on\nOn the mat sat a dog\n')
    return path


# The factories.

def iterable(directory, middle=unchanged):
    return middle(sentences())


def mapped_examples(directory, middle=unchanged):
    return Mapping(middle(examples(14)), Affine(2))


def added_sources(directory, middle=unchanged):
    return Mapping(middle(sentences()), total, add_sources=('total',))


def odd_values(directory, middle=unchanged):
    values = strange_values()
    return Mapping(middle(examples(len(values))), Lookup(values))


def odd_arrays(directory, middle=unchanged):
    return middle(DataStream(IterableDataset(strange_arrays())))


def nothing(directory, middle=unchanged):
    return Mapping(middle(examples(0)), Affine(2))


def batches(directory, middle=unchanged):
    return Batch(middle(sentences()), ConstantScheme(4))


def strict_batches(directory, middle=unchanged):
    return Batch(middle(examples(11)), ConstantScheme(3), strictness=2)


def counted_batches(directory, middle=unchanged):
    return Batch(middle(examples(19)), ConstantScheme(4, num_examples=15),
                 strictness=1)


def padded_sequences(directory, middle=unchanged):
    """The classic pipeline for text: sort in large batches, pad small."""
    stream = Batch(sentences(), ConstantScheme(8))
    stream = Unpack(middle(Mapping(stream, SortMapping(by_length))))
    return Padding(Batch(stream, ConstantScheme(3)),
                   mask_sources=('words', 'tags'))


def unpacked(directory, middle=unchanged):
    return Unpack(middle(DataStream(
        table(), iteration_scheme=SequentialScheme(23, 4))))


def cached(directory, middle=unchanged):
    stream = middle(DataStream(
        table(), iteration_scheme=ConcatenatedScheme([
            SequentialScheme(12, 5), ShuffledScheme(range(12, 23), 6)])))
    return Cache(stream, ConstantScheme(3))


def scaled(directory, middle=unchanged):
    stream = DataStream(table(), iteration_scheme=SequentialScheme(23, 3))
    stream = Flatten(stream, which_sources=('features',))
    stream = middle(Cast(stream, 'float32', which_sources=('targets',)))
    return ScaleAndShift(stream, 2, -1, which_sources=('features', 'targets'))


def shuffled(directory, middle=unchanged):
    stream = DataStream(table(), iteration_scheme=ShuffledScheme(
        23, 4, rng=numpy.random.RandomState(5)))
    stream = middle(FilterSources(stream, ('targets', 'features')))
    return Rename(stream, {'targets': 'labels'})


def shuffled_top(directory, middle=unchanged):
    return DataStream(table(), iteration_scheme=ShuffledScheme(
        23, 4, rng=numpy.random.RandomState(6), sorted_indices=True))


def shuffled_examples(directory, middle=unchanged):
    stream = DataStream(
        Spiral(15, classes=3, noise=.1, seed=2),
        iteration_scheme=ShuffledExampleScheme(
            15, rng=numpy.random.RandomState(8)))
    stream = Batch(middle(ForceFloatX(stream)), ConstantScheme(4))
    return Mapping(stream, SortMapping(total))


def filtered(directory, middle=unchanged):
    return Filter(middle(DataStream(
        table(), iteration_scheme=SequentialExampleScheme(23))),
        has_odd_target)


def filtered_iterable(directory, middle=unchanged):
    return Filter(middle(sentences()), is_odd)


def merged(directory, middle=unchanged):
    # Of different lengths, so that the longer is ahead at the end.
    return Merge([middle(sentences(9)), examples(7)],
                 ('words', 'tags', 'number', 'index'))


def merged_batches(directory, middle=unchanged):
    return Merge(
        [DataStream(table(), iteration_scheme=ShuffledScheme(
            20, 4, rng=numpy.random.RandomState(9))),
         middle(Batch(examples(18), ConstantScheme(4)))],
        ('features', 'targets', 'names', 'index'))


def ngrams(directory, middle=unchanged):
    words = ['the', 'cat', 'sat', 'on', 'mat', 'and', '<S>', '</S>', '<UNK>']
    stream = DataStream(TextFile(
        [write_text(directory), write_text(directory)],
        dict(zip(words, range(9))), preprocess=lower))
    return Batch(NGrams(3, middle(stream)), ConstantScheme(5))


def hdf5_on_disk(directory, middle=unchanged):
    dataset = H5PYDataset(write_table(directory), ('train', 'test'))
    stream = DataStream(dataset, iteration_scheme=ShuffledScheme(
        dataset.num_examples, 4, rng=numpy.random.RandomState(4)))
    return ScaleAndShift(middle(stream), .5, 1, which_sources=('features',))


def hdf5_examples(directory, middle=unchanged):
    dataset = H5PYDataset(write_table(directory), ('train',),
                          subset=slice(2, 15))
    return Batch(middle(dataset.get_example_stream()), ConstantScheme(4))


def hdf5_images(directory, middle=unchanged):
    which = {'which_sources': ('features',)}
    dataset = H5PYDataset(write_images(directory), ('train',),
                          load_in_memory=True)
    stream = DataStream(dataset, iteration_scheme=SequentialScheme(9, 2))
    stream = middle(MinimumImageDimensions(stream, (4, 4), **which))
    stream = RandomFixedSizeCrop(
        stream, (3, 4), rng=numpy.random.RandomState(1), **which)
    return Random2DRotation(stream, rng=numpy.random.RandomState(2), **which)


def encoded_images(directory, middle=unchanged):
    arrays = []
    for image in images():
        buffer_ = io.BytesIO()
        Image.fromarray(image.transpose(1, 2, 0)).save(buffer_, 'PNG')
        arrays.append(numpy.frombuffer(buffer_.getvalue(), dtype='uint8'))
    stream = DataStream(IterableDataset(arrays))
    return ImagesFromBytes(middle(ToBytes(stream)))


def jittered(directory, middle=unchanged):
    return Mapping(middle(FilterSources(DataStream(
        table(), iteration_scheme=SequentialScheme(23, 3)),
        ('features', 'targets'))), Jitter(1))


def endless(directory, middle=unchanged):
    return Padding(Batch(middle(DataStream(IterableDataset(Endless()))),
                         ConstantScheme(3)))


def endless_going_on(directory, middle=unchanged):
    return Batch(middle(DataStream(IterableDataset(Counter()))),
                 ConstantScheme(3))


def sections(directory, middle=unchanged):
    return Mapping(middle(DataStream(IterableDataset(Sections()))), Affine(3))


def failing_items(directory, middle=unchanged):
    items = list(range(12))
    items[0] = Fault(Trouble, 'at the first', 0)
    items[4] = Fault(ValueError, 'at', 4)
    items[5] = Fault(SystemExit, 5)
    items[8] = Fault(KeyboardInterrupt)
    items[11] = Fault(Trouble)
    return middle(DataStream(IterableDataset(Faulty(items))))


def early_end(directory, middle=unchanged):
    items = [1, 2, Fault(Trouble), Fault(StopIteration, 'early', 3), 4, 5]
    return middle(DataStream(IterableDataset(Faulty(items))))


def failing_mapping(directory, middle=unchanged):
    return Mapping(middle(examples(12)), fragile)


def failing_inside_batches(directory, middle=unchanged):
    return Batch(middle(Mapping(examples(17), fragile)), ConstantScheme(3))


def failing_epochs(directory, middle=unchanged):
    return Epochs(middle(sentences(6)), {
        0: Fault(Trouble, 'first'), 2: Fault(IOError, 2, 'third'),
        3: Fault(Trouble), 6: Fault(StopIteration, 'not now')})


def three_epochs(directory, middle=unchanged):
    return Epochs(middle(examples(6)), {}, last=3)


def refilling(directory, middle=unchanged):
    return Refilling(middle(examples(13)))


CHAINS = [
    Chain('iterable', iterable),
    Chain('mapped_examples', mapped_examples, changes=(remap,)),
    Chain('added_sources', added_sources),
    Chain('odd_values', odd_values),
    Chain('odd_arrays', odd_arrays, changed_by_pickle=BYTE_ORDER),
    Chain('nothing', nothing),
    Chain('batches', batches, changes=(resize,)),
    Chain('strict_batches', strict_batches, changes=(resize,)),
    Chain('counted_batches', counted_batches, changes=(resize,),
          old_iterator_lost=SCHEME),
    Chain('padded_sequences', padded_sequences, whole_epochs_only=REST),
    Chain('unpacked', unpacked, whole_epochs_only=REST),
    Chain('cached', cached, changes=(resize,), epochs_differ=SHUFFLED,
          old_iterator_lost=SCHEME),
    Chain('scaled', scaled, changes=(rescale,), old_iterator_lost=SCHEME),
    Chain('shuffled', shuffled, changes=(rename,), epochs_differ=SHUFFLED,
          old_iterator_lost=SCHEME),
    Chain('shuffled_top', shuffled_top, changes=(resize,),
          epochs_differ=SHUFFLED, old_iterator_lost=SCHEME),
    Chain('shuffled_examples', shuffled_examples, changes=(resize_below,),
          epochs_differ=SHUFFLED, old_iterator_lost=SCHEME),
    Chain('filtered', filtered, old_iterator_lost=SCHEME,
          ignores_as_dict='Filter returns its own iterator'),
    Chain('filtered_iterable', filtered_iterable,
          ignores_as_dict='Filter returns its own iterator'),
    Chain('merged', merged),
    Chain('merged_batches', merged_batches, epochs_differ=SHUFFLED,
          old_iterator_lost=SCHEME),
    Chain('ngrams', ngrams, changes=(resize,), whole_epochs_only=REST),
    Chain('hdf5_on_disk', hdf5_on_disk, changes=(rescale,), on_disk=True,
          epochs_differ=SHUFFLED, old_iterator_lost=SCHEME),
    Chain('hdf5_examples', hdf5_examples, changes=(resize,), on_disk=True,
          old_iterator_lost=SCHEME),
    Chain('hdf5_images', hdf5_images, whole_epochs_only=DRAWS),
    Chain('encoded_images', encoded_images),
    Chain('jittered', jittered, changes=(remap,), whole_epochs_only=DRAWS),
    Chain('endless', endless, endless=True),
    Chain('endless_going_on', endless_going_on, endless=True,
          first_epoch_only=REST),
    Chain('sections', sections, changes=(remap,), whole_epochs_only=REST),
    Chain('failing_items', failing_items),
    Chain('early_end', early_end),
    Chain('failing_mapping', failing_mapping),
    Chain('failing_inside_batches', failing_inside_batches,
          changes=(resize,)),
    Chain('failing_epochs', failing_epochs, epochs_differ=COUNTED),
    Chain('three_epochs', three_epochs, epochs_differ=COUNTED),
    Chain('refilling', refilling,
          copy='it fills the same memory for each example'),
]

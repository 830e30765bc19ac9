"""Lets Fuel 0.2.0 (and its master) import and work on every Python.

Importing this module is all there is to it. `fuel_prefetch` does so before
it imports anything of Fuel, and a program should as well: from Python 3.10
on, an ``import fuel`` that comes first ends in Python's own ImportError.

Fuel's last release is of 2016, for Python 2.7 to 3.5. Each function here
mends one thing that a later Python, NumPy, h5py or setuptools took away or
that a checkpoint needs; the comment above it names the version that made it
necessary, and where Fuel still works it does nothing. Modules that were
imported before are mended too. The list at the end applies them all.

"""
from __future__ import absolute_import, division, print_function
import collections
import itertools
import os
import sys
import types
import warnings

import numpy
from six.moves import copyreg, zip


# Python 3.7 warns when `collections.Iterable` and its like are first used,
# and 3.10 has them in `collections.abc` alone.
def _restore_collections_names():
    if sys.version_info >= (3, 7):
        import collections.abc
        for name in collections.abc.__all__:
            vars(collections).setdefault(name, getattr(collections.abc, name))


# setuptools 67 warns at `import pkg_resources`, 81 has none, and a new venv
# of Python 3.12 has no setuptools. picklable_itertools wants to know its own
# version, no more, so a stand-in answers for as long as it is imported.
# (Python 3.7 and older have a setuptools that does.)
def _import_picklable_itertools():
    if sys.version_info >= (3, 8) and 'pkg_resources' not in sys.modules:
        sys.modules['pkg_resources'] = _stand_in_for_pkg_resources()
        try:
            import picklable_itertools  # noqa: F401
        finally:
            del sys.modules['pkg_resources']


def _stand_in_for_pkg_resources():
    from importlib import metadata

    def get_distribution(name):
        found = metadata.distribution(name)
        module.location = str(found.locate_file(''))
        module.version = found.version
        return module

    module = types.ModuleType('pkg_resources')
    module.get_distribution = get_distribution
    module.DistributionNotFound = metadata.PackageNotFoundError
    return module


# NumPy 1.24 removed `numpy.bool`; 2.0 has one again.
def _restore_numpy_bool():
    if not hasattr(numpy, 'bool'):
        numpy.bool = bool


# NumPy 2.0 doesn't know the type code 'a' and takes `(type, 1)` in a dtype
# for an array of one element, so that Fuel raises or h5py writes splits that
# Fuel can't read.
def _create_splits_that_can_be_read():
    if numpy.lib.NumpyVersion(numpy.__version__) >= '2.0.0':
        from fuel.datasets.hdf5 import H5PYDataset
        H5PYDataset.create_split_array = staticmethod(_create_split_array)


def _create_split_array(split_dict):
    """Create the `split` attribute of a file for :class:`~.H5PYDataset`.

    Parameters
    ----------
    split_dict : dict
        Maps each split to a dict, which maps each of its sources to `(start,
        stop)`, `(start, stop, indices)` or `(start, stop, indices, comment)`.

    Returns
    -------
    :class:`numpy.ndarray`
        A record for each split and source, with the dtype that Fuel gives it
        on older NumPy. Sources that a split lacks are not `available`.

    """
    import h5py
    sources = sorted(set().union(*split_dict.values()))
    records = []
    for split, source in itertools.product(split_dict, sources):
        entry = tuple(split_dict[split].get(source, ()))
        defaults = (0, 0, h5py.Reference(), '.')
        start, stop, indices, comment = entry + defaults[len(entry):]
        records.append((
            split.encode('utf8'), source.encode('utf8'), start, stop, indices,
            bool(entry), (comment or '.').encode('utf8')))

    def text(field):
        return 'S{}'.format(max(len(record[field]) for record in records))

    return numpy.array(records, dtype=[
        ('split', text(0)), ('source', text(1)),
        ('start', numpy.int64), ('stop', numpy.int64),
        ('indices', h5py.special_dtype(ref=h5py.Reference)),
        ('available', numpy.bool_), ('comment', text(6))])


# NumPy 1.24 makes no array of sequences that differ in length unless told
# `dtype=object`. Batch, Cache, SortMapping and Padding make them, so Fuel's
# transformers get a `numpy` whose `asarray` does as it used to.
def _let_batches_be_ragged():
    try:
        numpy.asarray([[], [0]])
    except ValueError:
        import fuel.transformers
        namespace = types.ModuleType('numpy')
        vars(namespace).update(vars(numpy), asarray=_asarray)
        fuel.transformers.numpy = namespace


def _asarray(data, dtype=None, **kwargs):
    try:
        return numpy.asarray(data, dtype, **kwargs)
    except ValueError:
        if dtype is not None:
            raise
    try:
        return numpy.asarray(data, object, **kwargs)
    except ValueError:
        # Arrays that differ in a later dimension only, such as images of one
        # height: even older NumPy refused these.
        array = numpy.empty(len(data), object)
        for i, element in enumerate(data):
            array[i] = element
        return array


# NumPy 2.3 removed `ndarray.tostring`.
def _let_arrays_become_bytes():
    if not hasattr(numpy.ndarray, 'tostring'):
        from fuel.transformers.defaults import ToBytes
        ToBytes.transform_source_example = (
            lambda self, example, _: example.tobytes())
        ToBytes.transform_source_batch = (
            lambda self, batch, _: [example.tobytes() for example in batch])


# Fuel's extension doesn't compile from Python 3.8 on (nor without a
# compiler), and RandomFixedSizeCrop refuses to work without this function.
def _crop_without_the_extension():
    from fuel.transformers import image
    if not image.window_batch_bchw_available:
        image.window_batch_bchw = _window_batch_bchw
        image.window_batch_bchw_available = True


def _window_batch_bchw(batch, height_offsets, width_offsets, out):
    """Copy a window of each image in `batch` to `out`."""
    height, width = out.shape[2:]
    for image, top, left, window in zip(
            batch, height_offsets, width_offsets, out):
        window[...] = image[:, top:top + height, left:left + width]


# Python 3.7 turns a StopIteration inside a generator into a RuntimeError,
# also the one by which a stream says that there are no more epochs.
def _let_epochs_come_to_an_end():
    if sys.version_info >= (3, 7):
        from fuel.streams import AbstractDataStream
        AbstractDataStream.iterate_epochs = _iterate_epochs


def _iterate_epochs(self, as_dict=False):
    """Allow iteration through all epochs."""
    while True:
        try:
            epoch = self.get_epoch_iterator(as_dict=as_dict)
        except StopIteration:
            return
        yield epoch


# From Python 3.11 on every class has a `__getstate__`, so that
# `do_not_pickle_attributes`, which defines one where there is none, does
# nothing: data in memory goes into each checkpoint, file handles fail.
def _leave_lazy_attributes_out_of_pickles():
    if hasattr(object, '__getstate__'):
        import fuel.utils
        fuel.utils.hasattr = _hasattr
        # In case they were imported before.
        from fuel.datasets.hdf5 import H5PYDataset, PytablesDataset
        for dataset in (H5PYDataset, PytablesDataset):
            fuel.utils.do_not_pickle_attributes(*(
                name for name, value in vars(dataset).items()
                if getattr(getattr(value, 'fget', None), '__name__', None) ==
                'lazy_property_getter'))(dataset)


def _hasattr(owner, name):
    """Do as `hasattr`, but overlook the `__getstate__` of every class."""
    return hasattr(owner, name) and (
        name != '__getstate__' or
        owner.__getstate__ is not object.__getstate__)


# Fuel 0.2.0 on any Python: an unpickled H5PYDataset that reads from disk
# finds 'no open handle', or reads from the handle of the original, and
# closes that. (Fuel's master opens one, but closes the original's as well.)
def _give_unpickled_datasets_a_handle():
    from fuel.datasets.hdf5 import H5PYDataset
    getstate = H5PYDataset.__getstate__
    get_data = H5PYDataset._out_of_memory_get_data
    close = H5PYDataset._out_of_memory_close

    def __getstate__(self):
        state = getstate(self)
        for name in ('_file_handles', '_ref_counts'):
            state.pop(name, None)
        return state

    def __setstate__(self, state):
        # Fuel keeps these on the class, for all datasets of a process.
        self.__dict__.update(state, _file_handles={},
                             _ref_counts=collections.defaultdict(int))

    def _out_of_memory_get_data(self, state=None, request=None):
        if (self.path not in self._file_handles and
                not self.external_file_handle):
            self._out_of_memory_open()
        return get_data(self, state, request)

    def _out_of_memory_close(self):
        # One that hasn't read anything has nothing to close.
        if self.path in self._ref_counts:
            close(self)

    for function in (__getstate__, __setstate__, _out_of_memory_get_data,
                     _out_of_memory_close):
        setattr(H5PYDataset, function.__name__, function)


# h5py refuses to pickle its handles (2.10 and 3 on every Python). A dataset's
# `open` may well return one: it is pickled as the order to open that file in
# that mode again.
def _let_hdf5_files_be_pickled():
    import h5py
    copyreg.pickle(h5py.File, _reduce_hdf5_file)


def _reduce_hdf5_file(handle):
    if not handle:
        raise ValueError('a closed HDF5 file cannot be pickled')
    if not os.path.isfile(handle.filename):
        raise ValueError("HDF5 file '{}' cannot be pickled: it is not on "
                         "disk".format(handle.filename))
    return _open_hdf5_file, (handle.filename, handle.mode, handle.driver)


def _open_hdf5_file(filename, mode, driver):
    import h5py
    return h5py.File(filename, mode, driver)


# What other people's modules have to say at import is no user's business.
with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    for _mend in (
            _restore_collections_names,  # the first two let Fuel import
            _import_picklable_itertools,
            _restore_numpy_bool,
            _create_splits_that_can_be_read,
            _let_batches_be_ragged,
            _let_arrays_become_bytes,
            _crop_without_the_extension,
            _let_epochs_come_to_an_end,
            _leave_lazy_attributes_out_of_pickles,
            _give_unpickled_datasets_a_handle,  # wraps what the last one made
            _let_hdf5_files_be_pickled):
        _mend()
del _mend

# -*- coding: utf-8 -*-
"""Tests of batches as a header and buffers.

`FUEL_PREFETCH_ROUNDS` makes the random ones longer, `FUEL_PREFETCH_SEED`
begins with another seed.

"""
from __future__ import absolute_import, division, print_function

import json
import os
import pickle
import random
import sys
import threading
import unittest
import warnings
from collections import OrderedDict, defaultdict, namedtuple

import numpy
import six
from numpy import ndarray
from numpy.ma import MaskedArray
from numpy.testing import assert_array_equal
from six.moves import cPickle, range, zip

from fuel_prefetch import arrays
from fuel_prefetch.arrays import copy_into, decode, encode, flat

try:
    from hypothesis import given, settings, strategies
except ImportError:
    given = None

ROUNDS = int(os.environ.get('FUEL_PREFETCH_ROUNDS') or 5)
SEED = int(os.environ.get('FUEL_PREFETCH_SEED') or 0)

NUMPY_TEXT = numpy.dtype('U').type

Pair = namedtuple('Pair', 'left right')
Row = namedtuple('Row', 'x')


class SubRow(Row):
    """A named tuple that has attributes too."""


class Sub(ndarray):
    pass


class Many(list):
    pass


class Plain(object):
    def __eq__(self, other):
        return type(other) is Plain

    __hash__ = None


class Unwilling(object):
    def __reduce__(self):
        raise KeyError('no\nway')


class Loading(object):
    """Says that it is loaded, by an error."""
    def __reduce__(self):
        return _load, ()


def _load():
    raise ZeroDivisionError('while loading')


def objects(*elements, **kwargs):
    result = numpy.empty(len(elements), dtype=object)
    for index, element in enumerate(elements):
        result[index] = element
    return result.reshape(kwargs.get('shape', result.shape))


def send(batch, pickling=True, writable=True):
    """Return a batch after the ways of a wire: all of it was bytes once."""
    header, buffers = encode(batch, pickling)
    if type(header) is not bytes:
        raise AssertionError('a header that is no bytes')
    parts = []
    for buffer in buffers:
        if type(buffer) is not ndarray or buffer.dtype.hasobject:
            raise AssertionError('no buffer: {!r}'.format(buffer))
        data = flat(buffer).tobytes()
        if data != raw(buffer):
            raise AssertionError('other bytes')
        parts.append(numpy.frombuffer(bytearray(data), 'u1')
                     if writable and data else data)
    return decode(header, parts, pickling)


def raw(array):
    """Return the bytes of an array, what lies between its fields too."""
    if array.dtype.names is not None and array.dtype.itemsize:
        array = array.view('V{}'.format(array.dtype.itemsize))
    return array.tobytes()


def fields(dtype):
    """Return all that equality of dtypes does and doesn't look at."""
    if dtype.subdtype:
        return fields(dtype.subdtype[0]), dtype.subdtype[1]
    if dtype.names is None:
        return dtype.str
    return dtype.itemsize, dtype.isalignedstruct, [
        (name, fields(dtype.fields[name][0])) + dtype.fields[name][1:]
        for name in dtype.names]


class CodecTestCase(unittest.TestCase):
    def assertSame(self, actual, expected):
        self.assertIs(type(actual), type(expected))
        if isinstance(expected, MaskedArray):
            self.assertSame(actual.data, expected.data)
            if expected.mask is numpy.ma.nomask:
                self.assertIs(actual.mask, numpy.ma.nomask)
            else:
                self.assertSame(actual.mask, expected.mask)
            self.assertEqual(actual.hardmask, expected.hardmask)
            self.assertSame(actual._fill_value, expected._fill_value)
        elif isinstance(expected, ndarray):
            self.assertEqual(fields(actual.dtype), fields(expected.dtype))
            self.assertEqual(actual.dtype, expected.dtype)
            self.assertEqual(actual.shape, expected.shape)
            if expected.flags.c_contiguous or expected.flags.f_contiguous:
                for flag in ('C_CONTIGUOUS', 'F_CONTIGUOUS'):
                    self.assertEqual(actual.flags[flag], expected.flags[flag])
            if expected.dtype == object:
                for one, other in zip(actual.ravel().tolist(),
                                      expected.ravel().tolist()):
                    self.assertSame(one, other)
            else:
                self.assertEqual(raw(actual), raw(expected))
        elif isinstance(expected, numpy.generic):
            self.assertEqual(fields(actual.dtype), fields(expected.dtype))
            if expected.dtype.names is not None:
                self.assertEqual(repr(actual), repr(expected))
            else:
                self.assertEqual(actual.tobytes(), expected.tobytes())
        elif isinstance(expected, (tuple, list)):
            self.assertEqual(len(actual), len(expected))
            for one, other in zip(actual, expected):
                self.assertSame(one, other)
        elif isinstance(expected, dict):
            self.assertEqual(len(actual), len(expected))
            keys = list(actual), list(expected)
            if sys.version_info < (3, 6) and type(expected) is dict:
                keys = [sorted(part, key=repr) for part in keys]
            for one, other in zip(*keys):
                self.assertSame(one, other)
                self.assertSame(actual[one], expected[other])
        elif isinstance(expected, (float, complex)):
            self.assertEqual(repr(actual), repr(expected))
        else:
            self.assertEqual(actual, expected)

    def both(self, batch):
        """Check that a batch arrives, with pickling and without."""
        for pickling in (True, False):
            for writable in (True, False):
                self.assertSame(send(batch, pickling, writable), batch)
        return send(batch, False)

    def pickled(self, batch, place='batch', names=''):
        """Check that a batch arrives, and doesn't without pickling."""
        result = send(batch)
        with self.assertRaises(TypeError) as caught:
            encode(batch, pickling=False)
        message = str(caught.exception)
        self.assertEqual(message.split(':')[0], place)
        self.assertIn(names, message)
        self.assertNotIn('\n', message)
        return result


STRUCTURED = [
    [('a', 'u1'), ('b', '>f4'), ('c', 'S3')],
    numpy.dtype([('a', 'u1'), ('b', 'f8')], align=True),
    numpy.dtype([('a', 'f8'), ('b', 'f8')], align=True),
    [(('Title', 'a'), 'u1'), ('b', 'f4')],
    {'names': ['b', 'a'], 'formats': ['u2', 'u1'], 'offsets': [8, 3],
     'itemsize': 16},
    {'names': ['a', 'b'], 'formats': ['u4', 'u1'], 'offsets': [0, 1]},
    [('a', 'f4', (2, 3)), ('b', [('c', 'M8[ms]'), ('d', '?', 2)])],
    [('a', 'V3'), ('b', 'U2')],
]
PLAIN = ['?', 'i1', 'u1', '<i2', '>i2', '<u4', '>u4', '<i8', '>u8', 'f2',
         '>f2', 'f4', '>f4', 'f8', '>f8', 'g', 'F', '>c8', 'D', 'G',
         'S5', '<U3', '>U3', 'V7', 'M8[us]', 'M8[25s]', '>M8[D]', 'M8',
         'm8[ns]', '>m8[h]', 'm8', 'l', 'q', 'p']


def filled(dtype, shape):
    """Return an array whose bytes are all different."""
    dtype = numpy.dtype(dtype)
    count = int(numpy.prod(shape, dtype=int))
    data = numpy.arange(count * dtype.itemsize + 1, dtype='u1') % 100
    if dtype == bool:
        data %= 2
    elif dtype.kind == 'U':
        return numpy.array([u'a\xe9'] * count, dtype).reshape(shape)
    elif 'U' in str(dtype):
        return numpy.zeros(shape, dtype)
    return ndarray(shape, dtype, data).copy()


class TestArrays(CodecTestCase):
    def test_dtypes(self):
        for dtype in PLAIN + STRUCTURED:
            for shape in [(), (0,), (3,), (0, 4), (2, 3)]:
                array = filled(dtype, shape)
                self.both((array,))
                self.both(array)
                self.both([{'x': array}])

    def test_dtypes_arrive_by_a_known_header(self):
        for dtype in PLAIN + STRUCTURED:
            for _ in range(3):
                self.both((filled(dtype, (3,)), filled(dtype, (2, 2))))

    def test_equal_dtypes_are_not_taken_for_each_other(self):
        """Packed and aligned are equal to NumPy, if the offsets are."""
        aligned = numpy.dtype([('a', 'f8')], align=True)
        packed = numpy.dtype([('a', 'f8')])
        for dtype in [aligned, packed, aligned]:
            array, = send((numpy.zeros(3, dtype),))
            self.assertEqual(array.dtype.isalignedstruct,
                             dtype.isalignedstruct)

    def test_metadata_stays_behind(self):
        dtype = numpy.dtype('f4', metadata={'x': Plain()})
        self.assertIs(self.both(numpy.zeros(2, dtype)).dtype.metadata, None)

    def test_without_a_size(self):
        for dtype in ['S0', 'U0', 'V0', [], [('a', 'S0')]]:
            for shape in [(), (3,), (0,), (2, 0)]:
                array = ndarray(shape, numpy.dtype(dtype))
                header, (buffer,) = encode(array, False)
                self.assertEqual(flat(buffer).shape, (0,))
                result = decode(header, [b''], False)
                self.assertEqual((fields(result.dtype), result.shape),
                                 (fields(array.dtype), shape))
        self.both(numpy.zeros(3, {'names': [], 'formats': [], 'itemsize': 8}))

    def test_memory_order(self):
        array = numpy.arange(24, dtype='f4').reshape(2, 3, 4)
        column = numpy.arange(3.)[:, None]
        for axes in [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1), (0, 2, 1)]:
            for value in (array.transpose(axes),
                          array[:, :1].transpose(axes)[..., None].copy('K')):
                header, (buffer,) = encode(value)
                self.assertTrue(buffer.flags.c_contiguous)
                self.assertTrue(numpy.shares_memory(buffer, value))
                result = decode(header, [flat(buffer)])
                self.assertTrue(numpy.shares_memory(result, value))
                self.assertEqual(result.tolist(), value.tolist())
                expected = value.copy(order='K')
                self.assertEqual(
                    [stride for stride, n in zip(result.strides, result.shape)
                     if n > 1],
                    [stride for stride, n in zip(expected.strides,
                                                 expected.shape) if n > 1])
                for flag in ('C_CONTIGUOUS', 'F_CONTIGUOUS'):
                    self.assertEqual(result.flags[flag], value.flags[flag])
        for value in (array.T, column, column.T, numpy.zeros((0, 4)).T):
            self.both(value.copy(order='K'))

    def test_strided_is_sent_in_c_order(self):
        array = numpy.arange(24, dtype='i2').reshape(4, 6)
        for value in [array[::2], array[:, ::-1], array.T[::3], array[1:, 1:],
                      array[::-1, ::-1].T, array[0, ::2][..., None],
                      numpy.broadcast_to(array[0], (3, 6))]:
            header, (buffer,) = encode(value)
            self.assertTrue(numpy.shares_memory(buffer, array))
            memory = numpy.zeros(buffer.nbytes, 'u1')
            copy_into(buffer, memory)
            self.assertEqual(memory.tobytes(), value.tobytes())
            result = decode(header, [memory])
            self.assertTrue(result.flags.c_contiguous)
            assert_array_equal(result, value)

    def test_no_copy_is_made(self):
        for batch in [(numpy.zeros(5),), {'x': numpy.zeros((3, 4), order='F')},
                      objects(numpy.zeros(3), numpy.zeros(4))]:
            header, buffers = encode(batch)
            result = decode(header, [flat(buffer) for buffer in buffers])
            pairs = [(batch, result)]
            if isinstance(batch, dict):
                pairs = [(batch['x'], result['x'])]
            elif not isinstance(batch, tuple):
                pairs = list(zip(batch, result))
            else:
                pairs = list(zip(batch, result))
            for before, after in pairs:
                self.assertTrue(numpy.shares_memory(before, after))

    def test_writability_is_that_of_the_buffer(self):
        for batch in [(numpy.ones(3),), [[numpy.ones(3)]]]:
            for _ in range(2):
                header, (buffer,) = encode(batch)
                data = flat(buffer).copy()
                frozen = data.tobytes()
                result = decode(header, [data])
                other = decode(header, [frozen])
                view = decode(header, [memoryview(frozen)])
                while not isinstance(result, ndarray):
                    result, other, view = result[0], other[0], view[0]
                result[:] = 7
                self.assertEqual(data.view('f8').tolist(), [7] * 3)
                self.assertFalse(other.flags.writeable)
                self.assertEqual(view.tolist(), [1] * 3)

    def test_buffers_are_kept_alive(self):
        header, (buffer,) = encode((numpy.arange(1000),))
        result, = decode(header, [bytearray(flat(buffer).tobytes())])
        numpy.zeros(1000)
        self.assertEqual(result.sum(), 499500)
        self.assertIsNot(result.base, None)

    def test_alignment_is_that_of_the_buffer(self):
        memory = numpy.zeros(17, 'u1')
        header, _ = encode((numpy.zeros(2),))
        self.assertFalse(decode(header, [memory[1:]])[0].flags.aligned)
        self.assertTrue(decode(header, [memory[:-1]])[0].flags.aligned)

    def test_masked_arrays(self):
        masked = numpy.ma.masked_array([1., 2., 3.], [True, False, True])
        filled = masked.copy()
        filled.fill_value = 7
        hard = numpy.ma.masked_array(
            numpy.arange(6).reshape(2, 3).T, mask=False, hard_mask=True)
        structured = numpy.ma.masked_array(
            numpy.zeros(2, [('a', 'f4'), ('b', 'S2')]),
            mask=[(True, False), (False, True)],
            fill_value=(3, b'ab'))
        for array in [masked, filled, hard, structured, masked[:0],
                      numpy.ma.masked_array([1, 2]),
                      numpy.ma.masked_array([b'a', b'bc'], [1, 0]),
                      numpy.ma.masked_array(numpy.zeros(2, 'M8[s]'), [1, 0]),
                      numpy.ma.masked_array(3., False)]:
            before = dict(vars(array))
            self.both((array, [array]))
            self.assertEqual(set(vars(array)), set(before))
            self.assertIs(array._fill_value, before['_fill_value'])
        result = self.both(masked)
        self.assertEqual(result.tolist(), [None, 2., None])
        self.assertEqual(result.sum(), 2)

    def test_masked_arrays_with_more_to_them(self):
        array = numpy.ma.masked_array([1, 2], [1, 0])
        array.extra = 'x'
        self.assertEqual(self.pickled([array], 'batch[0]')[0].tolist(),
                         [None, 2])
        self.pickled(numpy.ma.masked_array(objects(1, 2), [1, 0]))

    def test_other_arrays_are_pickled(self):
        sub = numpy.arange(3).view(Sub)
        self.assertSame(self.pickled((sub,), 'batch[0]', 'Sub'), (sub,))
        record = numpy.zeros(2, [('a', 'f4')]).view(numpy.recarray)
        self.assertEqual(self.pickled(record).a.tolist(), [0, 0])
        mixed = numpy.zeros(2, [('a', 'f4'), ('b', 'O')])
        self.assertEqual(self.pickled({'k': [mixed]}, "batch['k'][0]",
                                      'numpy.ndarray')['k'][0].tolist(),
                         [(0, 0)] * 2)
        self.assertEqual(
            self.pickled(numpy.zeros(2, numpy.dtype(
                (numpy.record, [('a', 'f4')])))).dtype.type, numpy.record)

    def test_strings_of_any_length(self):
        if not hasattr(numpy, 'dtypes') or not hasattr(numpy.dtypes,
                                                       'StringDType'):
            self.skipTest('only in NumPy 2')
        array = numpy.array(['a', 'b' * 100], numpy.dtypes.StringDType())
        result = self.pickled([array], 'batch[0]')[0]
        self.assertEqual((result.dtype, result.tolist()),
                         (array.dtype, array.tolist()))


class TestObjects(CodecTestCase):
    def test_elements(self):
        ragged = objects(numpy.zeros(2), numpy.arange(3), numpy.array(3.),
                         numpy.zeros((0, 2)), None, [1, 2], (1,), u'x', b'y')
        self.both(ragged)
        self.both((objects(ragged, ragged[:2]), objects()))

    def test_shapes(self):
        for shape in [(), (1,), (1, 1), (2, 3), (3, 0, 2), (0,)]:
            count = int(numpy.prod(shape, dtype=int))
            self.both(objects(*range(count), shape=shape))
        self.both(objects([1], shape=()))

    def test_memory_order(self):
        array = objects(*range(24), shape=(2, 3, 4))
        for axes in [(0, 1, 2), (2, 1, 0), (1, 2, 0)]:
            value = array.transpose(axes)
            result = self.both(value)
            self.assertEqual(result.strides, value.strides)
        assert_array_equal(self.both(array[:, 0, ::2]), array[:, 0, ::2])

    def test_writable_and_its_own(self):
        self.assertTrue(self.both(objects(1, 2)).flags.writeable)

    def test_place_of_an_element(self):
        array = objects(*range(24), shape=(2, 3, 4))
        array[1, 0, 2] = Plain()
        self.pickled((array,), 'batch[0][1, 0, 2]', 'Plain')
        self.pickled([array.T], 'batch[0][2, 0, 1]')
        self.pickled(objects(Plain(), shape=()), 'batch[()]')


class TestValues(CodecTestCase):
    numbers = [0, 1, -1, 2 ** 31, -2 ** 31 - 1, 2 ** 53 - 1, 2 ** 53,
               -2 ** 53, 2 ** 63 - 1, 2 ** 63, -2 ** 63, 10 ** 5000,
               -10 ** 5000]

    def test_integers(self):
        for number in self.numbers:
            self.both(number)
            self.both((number, {number: number}))
        if six.PY2:
            for number in self.numbers:
                self.both([six.integer_types[1](number)])

    def test_floats(self):
        values = [0., -0., 1., .1, 1e300, 5e-324, 1 / 3, float('nan'),
                  float('inf'), -float('inf')]
        for value in values:
            self.both([value])
            for other in values:
                self.both(complex(value, other))

    def test_others(self):
        for value in [None, True, False, (), [], {}, OrderedDict()]:
            self.both(value)
            self.both((value, [value]))

    def test_strings(self):
        for text in [u'', u'x', u'\xe9\u20ac', u'\U0001f600', u'\x00"\\\n',
                     u'\ud800', u'\udcff', u'\ud83d\ude00', u'[1]']:
            self.both(text)
            self.both({text: [text]})
        for length in [0, 1, 255, 256, 257, 10 ** 5]:
            data = bytes(bytearray(range(256)) * (length // 256 + 1))[:length]
            self.both(data)
            self.both({data: data})

    def test_numpy_scalars(self):
        for dtype in PLAIN + STRUCTURED:
            value = filled(dtype, (2,))[1]
            if numpy.dtype(value.dtype.str).type is type(value):
                self.both((value,))
            else:  # C has two types for the same integers; pickle has one
                self.assertSame(send([value]),
                                pickle.loads(pickle.dumps([value], 2)))
        for value in [numpy.float64(1), numpy.float64('nan'), numpy.bool_(1),
                      NUMPY_TEXT(u'a\0'), numpy.bytes_(b'a\0'),
                      NUMPY_TEXT(u''), numpy.bytes_(b''),
                      numpy.bytes_(b'x' * 1000), NUMPY_TEXT(u'x' * 1000),
                      numpy.datetime64('NaT'), numpy.timedelta64(3, 'h'),
                      numpy.longdouble(1) / 3]:
            result = self.both([value])[0]
            self.assertEqual(bytes(result) if isinstance(value, bytes)
                             else repr(result), bytes(value)
                             if isinstance(value, bytes) else repr(value))

    def test_keys(self):
        keys = [None, True, 2, 2.5, 2j, u'x', b'y', b'z' * 1000,
                numpy.float32(7), NUMPY_TEXT(u'numpy'), numpy.int8(9),
                10 ** 30]
        for kind in (dict, OrderedDict):
            self.both(kind((key, [key]) for key in keys))
        self.pickled({(1, 2): 3}, names='dict')
        self.assertEqual(send([{(1, 2): 3, frozenset(): 4}]),
                         [{(1, 2): 3, frozenset(): 4}])

    def test_order_of_keys(self):
        pairs = [(u'key{}'.format(number), number)
                 for number in random.Random(0).sample(range(100), 50)]
        self.assertEqual(list(self.both(OrderedDict(pairs)).items()), pairs)
        if sys.version_info >= (3, 6):
            self.assertEqual(list(self.both(dict(pairs)).items()), pairs)


class TestContainers(CodecTestCase):
    def test_nested(self):
        array = numpy.arange(3)
        self.both((array * 2, [array * 3, {u'x': (array * 4, None)}],
                   OrderedDict([(u'b', [array]), (u'a', objects((), []))])))

    def test_named_tuples(self):
        batch = [Pair(numpy.arange(3), Row(u'y'))]
        header, buffers = encode(batch)
        self.assertTrue(any(numpy.shares_memory(buffer, batch[0].left)
                            for buffer in buffers))
        self.assertSame(self.pickled(batch, 'batch[0]', 'Pair'), batch)
        row = SubRow(1)
        row.more = 2
        result = self.pickled([row], 'batch[0]')[0]
        expected = pickle.loads(pickle.dumps(row, 2))  # loses it on 2.7
        self.assertEqual((type(result), result, vars(result)),
                         (SubRow, (1,), vars(expected)))

    def test_subclasses_are_pickled(self):
        many = Many([1])
        many.name = 'x'
        result = self.pickled([many], 'batch[0]', 'Many')[0]
        self.assertEqual((type(result), result, result.name),
                         (Many, [1], 'x'))
        result = self.pickled(defaultdict(list, x=[1]))
        self.assertEqual((type(result), result['y']), (defaultdict, []))

    def test_other_objects_are_data(self):
        for value in [Plain(), StopIteration, Plain, len, {1, 2},
                      bytearray(b'x'), frozenset([1])]:
            name = type(value).__name__
            result = self.pickled((1, value), 'batch[1]', name)[1]
            self.assertIs(type(result), type(value))
            self.assertEqual(result, value)
        error = self.pickled({u'k': [ValueError('x', 1)]},
                             'batch[{!r}][0]'.format(u'k'))[u'k'][0]
        self.assertEqual((type(error), error.args), (ValueError, ('x', 1)))

    def test_same_object_twice(self):
        array, inner, obj = numpy.arange(3), [1], Plain()
        mask = numpy.ma.masked_array([1, 2], [1, 0])
        batch = [array, inner, (array, inner), {u'x': array, u'y': mask},
                 mask, objects(inner, array), array[:2]]
        result = self.both(batch)
        for one, other in [(result[0], result[2][0]),
                           (result[0], result[3][u'x']),
                           (result[0], result[5][1]),
                           (result[1], result[2][1]),
                           (result[1], result[5][0]),
                           (result[4], result[3][u'y'])]:
            self.assertIs(one, other)
        self.assertIsNot(result[6], result[0])
        self.assertEqual(len(encode((array, array))[1]), 1)
        one, other = self.both((array, array))
        self.assertIs(one, other)
        one, other = self.both((array, array.copy()))
        self.assertIsNot(one, other)
        one, _, other = send([obj, Plain(), obj])
        self.assertIs(one, other)
        pair = Pair(1, 2)
        one, two, three = send((pair, pair, objects(pair)))
        self.assertIs(one, two)
        self.assertIs(one, three[0])

    def test_what_contains_itself(self):
        knot = [numpy.arange(3)]
        knot.append((knot,))
        result = self.pickled([1, knot], 'batch[1][1][0]', 'itself')
        self.assertIs(result[1][1][0], result[1])
        array = objects(1, 2)
        array[1] = {u'x': array}
        result = self.pickled(array, 'batch[1][{!r}]'.format(u'x'), 'itself')
        self.assertIs(result[1][u'x'], result)

    def test_deep(self):
        deep = numpy.arange(3)
        for depth in range(100):
            deep = [deep]
            if depth == 62:
                self.both(deep)
        with self.assertRaises(TypeError):
            encode(deep, pickling=False)
        result = send(deep)
        for depth in range(100):
            result, = result
        self.assertEqual(result.tolist(), [0, 1, 2])

    def test_what_pickle_cannot(self):
        def local():
            pass

        for value, error in [
                (threading.Lock(), TypeError if six.PY3 else Exception),
                (local, (AttributeError, pickle.PicklingError, TypeError,
                         cPickle.PicklingError)),
                (Unwilling(), cPickle.PicklingError)]:
            for batch in ([0, {2: value}], objects(0, {2: value})):
                with self.assertRaises(error) as caught:
                    encode(batch)
                message = str(caught.exception)
                self.assertTrue(message.startswith('batch[1][2]: '), message)
                self.assertIn(type(value).__name__, message)
                self.assertNotIn('\n', message)

    def test_batch_is_left_alone(self):
        array = numpy.arange(6).reshape(2, 3).T
        batch = [array, objects(array, {u'x': 1}), {u'k': (array[::2],)}]
        before = pickle.dumps(batch, 2)
        for pickling in (True, False):
            encode(batch, pickling)
        self.assertEqual(pickle.dumps(batch, 2), before)

    def test_what_loading_raises(self):
        header, buffers = encode([Loading()])
        for _ in range(2):
            with self.assertRaises(ZeroDivisionError):
                decode(header, [flat(buffer) for buffer in buffers])

    def test_pickles_are_not_loaded(self):
        for batch in [[Loading()], Pair(1, 2), objects(Loading())]:
            header, buffers = encode(batch)
            with self.assertRaises(ValueError):
                decode(header, [flat(buffer) for buffer in buffers], False)


class TestBuffers(CodecTestCase):
    def test_flat(self):
        for dtype in PLAIN + STRUCTURED:
            for shape in [(), (0,), (3,), (2, 3), (0, 4)]:
                array = filled(dtype, shape)
                result = flat(array)
                self.assertIs(type(result), ndarray)
                self.assertEqual((result.dtype, result.ndim),
                                 (numpy.dtype('u1'), 1))
                self.assertEqual(result.tobytes(), array.tobytes())
                if array.size:
                    self.assertTrue(numpy.shares_memory(result, array))
        strided = numpy.arange(10)[::2]
        self.assertFalse(numpy.shares_memory(flat(strided), strided))
        self.assertEqual(flat(strided).tobytes(), strided.tobytes())

    def test_flat_of_other_buffers(self):
        for data in (b'', b'abc'):
            for kind in (bytes, bytearray, memoryview):
                self.assertEqual(flat(kind(data)).tobytes(), data)

    def test_copy_into(self):
        for dtype in PLAIN + STRUCTURED + ['S0', 'V0', []]:
            for array in [filled(dtype, (4, 3)), filled(dtype, ()),
                          filled(dtype, (4, 3))[::2, 1:],
                          filled(dtype, (0, 4))]:
                _, (buffer,) = encode(array)
                memory = numpy.zeros(array.nbytes, 'u1')
                copy_into(buffer, memory)
                self.assertEqual(memory.tobytes(), raw(array))
                self.assertEqual(flat(buffer).tobytes(), raw(array))
                if array.nbytes:
                    self.assertTrue(numpy.shares_memory(buffer, array))
        with self.assertRaises(ValueError):
            copy_into(numpy.zeros(2), numpy.zeros(15, 'u1'))

    def test_frames(self):
        try:
            import zmq
        except ImportError:
            self.skipTest('needs pyzmq')
        header, buffers = encode((numpy.arange(3), b'x' * 1000))
        frames = [zmq.Frame(flat(buffer).tobytes()) for buffer in buffers]
        array, data = decode(header, frames, pickling=False)
        self.assertEqual((array.tolist(), data), ([0, 1, 2], b'x' * 1000))


class TestCaches(CodecTestCase):
    def test_bounded(self):
        for length in range(1000):
            self.both((numpy.zeros(length, 'u1'), numpy.zeros(length)))
        for cache in (arrays._headers, arrays._plans):
            self.assertLessEqual(len(cache), arrays.MOST_CACHED)
            self.assertGreater(len(cache), 0)

    def test_kinds_are_told_apart(self):
        array = numpy.zeros(3)
        for batch in [(array,), [array], (array, array + 1), [array, array],
                      (array, array), [array, array + 1], (array[::-1],),
                      (array.view(Sub),), (), []]:
            for _ in range(2):
                self.assertSame(send(batch), batch)

    def test_sizes_of_buffers_are_checked_each_time(self):
        header, (buffer,) = encode((numpy.zeros(3),))
        for _ in range(2):
            for size in [23, 25, 0, 48]:
                with self.assertRaises(ValueError):
                    decode(header, [numpy.zeros(size, 'u1')])
            for count in (0, 2):
                with self.assertRaises(ValueError):
                    decode(header, [flat(buffer)] * count)
            decode(header, [flat(buffer)])

    def test_threads(self):
        errors = []

        def work(number):
            try:
                for length in range(300):
                    batch = (numpy.full(length, number),
                             numpy.full(length % 7, number))
                    self.assertSame(send(batch), batch)
            except BaseException as error:
                errors.append(error)
        threads = [threading.Thread(target=work, args=(number,))
                   for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])


SAMPLES = [
    (numpy.arange(3, dtype='f4'), numpy.arange(6).reshape(2, 3).T),
    {u'x': numpy.zeros(2, STRUCTURED[3]), u'y': [1, 2.5, None, True, 2 ** 70]},
    OrderedDict([(b'k', numpy.ma.masked_array([1., 2.], [1, 0]))]),
    objects(numpy.zeros(2), numpy.zeros(3), (u'a', b'b' * 300, 1j)),
    [numpy.float32(3), numpy.datetime64(3, 'us'), float('nan'), u'\ud800'],
    numpy.zeros((2, 0), STRUCTURED[6]),
    [numpy.ma.masked_array(numpy.zeros(2, STRUCTURED[0]))] * 2,
]
BIG = 2 ** 62
STRUCT = ['struct', 4, False, [['a', None, 0, '<f4']]]
HOSTILE = [
    ['array', '<f4', [BIG]], ['array', '<f4', [BIG, BIG, 0]],
    ['array', '<f4', [-1]], ['array', '<f4', [-1, -1]],
    ['array', '<f4', [1.0]], ['array', '<f4', [True]],
    ['array', '<f4', ['1']], ['array', '<f4', 1], ['array', '<f4', [2]],
    ['array', '<f4', [1] * 100], ['array', '<f4'], ['array'],
    ['array', '<f4', [1], [0, 0]], ['array', '<f4', [1], [1]],
    ['array', '<f4', [1], [-1]], ['array', '<f4', [1], [True]],
    ['array', '<f4', [1], [0], 0], ['array', '<f4', [2 ** 64]],
    ['array', '|O', [0]], ['array', 'O', [0]], ['array', 'object', [0]],
    ['array', '|O8', [1]], ['array', 'f4', [1]], ['array', '=f4', [1]],
    ['array', '<f4,<f4', [0]], ['array', '(2,)<f4', [0]],
    ['array', '<f5', [0]], ['array', '|S-1', [0]], ['array', '|T16', [0]],
    ['array', '|S2147483648', [0]], ['array', '|S4294967300', [1]],
    ['array', '<U1073741824', [0]], ['array', '<M8[x]', [0]],
    ['array', '<M8[99999999999s]', [0]], ['array', '<f4\n', [1]],
    ['array', None, [1]], ['array', [], [1]], ['array', {}, [1]],
    ['array', ['sub', '<f4', [1]], [1]],
    ['array', ['struct', 4, False, [['a', None, 1, '<f4']]], [1]],
    ['array', ['struct', 4, True, [['a', None, 1, '<f4']]], [1]],
    ['array', ['struct', -4, False, []], [1]],
    ['array', ['struct', 2 ** 40, False, []], [0]],
    ['array', ['struct', 4, False, [['a', 'a', 0, '<f4']]], [1]],
    ['array', ['struct', 4, False, [['a', None, 0, '|O']]], [1]],
    ['array', ['struct', 8, False, [['a', None, 0, '<f4']] * 2], [1]],
    ['array', ['struct', 4, 1, []], [1]],
    ['array', ['struct', 4, False, [[1, None, 0, '<f4']]], [1]],
    ['array', ['struct', 4, False, [['a', [], 0, '<f4']]], [1]],
    ['array', ['struct', 4, False, [
        ['a', None, 0, ['sub', '<f4', [BIG]]]]], [1]],
    ['array', ['struct', 4, False, [
        ['a', None, 0, ['sub', '<f4', [-1]]]]], [1]],
    ['array', ['struct', 4, False, [['a', None, 0]]], [1]],
    ['objects', [BIG], None], ['objects', [BIG, 0], None],
    ['objects', [2], None, 1], ['objects', [0], [1]], ['objects'],
    ['objects', [-1], None, 1], ['objects', [1], None, ['same', 0]],
    ['tuple', ['same', 0]], ['list', ['same', 0]], ['same', 0],
    ['list', ['same', 1]], ['list', ['same', -1]], ['list', ['same', '0']],
    ['list', [], ['same', True]], ['dict', 1, ['same', 0]], ['dict', 1],
    ['dict', ['list'], 1], ['dict', 1, 2, 1, 3], ['dict', [], 1],
    ['dict', ['scalar', ['struct', 0, False, []], ''], 1],
    ['list', ['tuple'], ['dict', ['same', 1], 1]],
    ['pickled'], ['named'], ['named', 1], ['nothing'], [], [[]], {}, [{}],
    [None], [1, 2], ['int', '9' * 5000 + 'g'], ['int', 5], ['int', ' 1'],
    ['int', '1_0'], ['int', '0x10'], ['int', ''], ['int', '-'],
    ['long', '+1'], ['float', '1.5'], ['float', []], ['complex', 1.5],
    ['complex', 1, 2], ['complex', ['list'], 1.5], ['text', 'x', 'y'],
    ['text', [-1]], ['text', [2 ** 40]], ['text', ['x']], ['bytes', u'\u20ac'],
    ['bytes', 1], ['bytes', 'x', 'x'], ['scalar', '<f4', 'x'],
    ['scalar', '<f4', u'\u20ac'], ['scalar', '|O', '12345678'],
    ['scalar', 'U', 5], ['scalar', 'U'], ['scalar', 'U', ['list', 1]],
    ['scalar', '|S2147483647', ''], ['scalar'],
    ['masked', ['array', '<f4', [1]], None, None, 1],
    ['masked', ['array', '<f4', [1]], None, None],
    ['masked', ['list'], None, None, False],
    ['masked', ['array', '<f4', [1]], 1, None, False],
    ['masked', ['array', STRUCT, [1]], None, None, False],
    ['masked', ['array', ['struct', 0, False, [
        ['a', None, 0, ['sub', '|V0', [2 ** 30]]]]], [2 ** 20]],
     None, None, False],
    ['masked', ['array', '<f4', [1]], ['array', '<f4', [1]], None, False],
]


class TestUntrusted(CodecTestCase):
    def refuse(self, header, buffers):
        """Decode; return whether it was refused, as it must be if it is."""
        try:
            decode(header, buffers, pickling=False)
        except ValueError as error:
            self.assertNotIn('\n', str(error))
            return True
        return False

    def test_hostile_headers(self):
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            for node in HOSTILE:
                header = json.dumps([1, node]).encode('ascii')
                for buffers in ([], [b'1234'], [b'1234'] * 2, [b'1']):
                    self.assertTrue(self.refuse(header, buffers),
                                    (node, buffers))

    def test_hostile_text(self):
        for header in [
                b'', b'\xff', b'1', b'[]', b'[1]', b'[2, 1]', b'[true, 1]',
                b'[1.0, 1]', b'[1, NaN]', b'[1, Infinity]', b'[1, 1, 1]',
                b'{"1": 1}', b'null', b'[1, ' + b'9' * 10 ** 6 + b']',
                b'[1, -' + b'9' * 10 ** 6 + b']', b'[' * 10 ** 6,
                b'[1, ' + b'["list",' * 10 ** 5 + b'1' + b']' * 10 ** 5 +
                b']', b'[1, ' + b'["list",' * 80 + b'1' + b']' * 81,
                b'[1, 1] 2', b'\xef\xbb\xbf[1, 1]', b'[1, {"a": 1}]',
                b'[1, "\xed\xa0\x80"]' if six.PY3 else b'[1, "',
                b'[1, ["array", ' + b'["struct",4,false,[["a",null,0,' * 70 +
                b'"<f4"' + b']]]' * 70 + b', [1]]]']:
            self.assertTrue(self.refuse(header, []), header[:50])
            self.assertTrue(self.refuse(header, [b'1234']), header[:50])

    def test_empty_aligned_structures(self):
        # NumPy before 1.20 ends the process by a division by zero.
        node = ['array', ['struct', 4, True, []], [1]]
        header = json.dumps([1, node]).encode('ascii')
        self.assertEqual(decode(header, [b'1234'], False).shape, (1,))

    def test_giants_without_memory(self):
        for node in [['array', '<f4', [0, 2 ** 40]],
                     ['array', '|V0', [2 ** 40]],
                     ['array', '|S2000000000', [0]],
                     ['masked', ['array', '|S2000000000', [0]],
                      ['array', '|b1', [0]], None, False]]:
            header = json.dumps([1, node]).encode('ascii')
            self.refuse(header, [b''])
            self.refuse(header, [b'', b''])

    def test_random(self):
        """Whatever comes, it is a batch or a ValueError."""
        generator = random.Random(SEED)
        samples = []
        for batch in SAMPLES:
            header, buffers = encode(batch, pickling=False)
            samples.append((header, [flat(buffer).copy()
                                     for buffer in buffers]))
        refused = 0
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            for _ in range(1000 * ROUNDS):
                header, buffers = generator.choice(samples)
                buffers = list(buffers)
                header = generator.choice(
                    [random_bytes, mutated_bytes, mutated_bytes,
                     mutated_values, mutated_values])(generator, header)
                if buffers and not generator.randrange(3):
                    change(generator, buffers)
                refused += self.refuse(header, buffers)
        self.assertGreater(refused, 500 * ROUNDS)


def random_bytes(generator, header):
    return bytes(bytearray(generator.randrange(256) for _ in range(
        generator.randrange(40))))


def mutated_bytes(generator, header):
    header = bytearray(header)
    for _ in range(generator.choice([1, 1, 1, 2, 5])):
        place = generator.randrange(len(header) + 1)
        end = place + generator.choice([0, 0, 1, 1, 2, 10])
        header[place:end] = bytearray(
            generator.choice([generator.randrange(256)] + list(
                bytearray(b'[]",0123456789-{}:ntf|<>OSUVbif')))
            for _ in range(generator.choice([0, 1, 1, 1, 2])))
    return bytes(header)


def mutated_values(generator, header):
    tree = json.loads(header.decode('ascii'))
    for _ in range(generator.choice([1, 1, 1, 2, 3])):
        parent = tree
        while True:
            index = generator.randrange(len(parent))
            if type(parent[index]) is not list or not parent[index] or (
                    not generator.randrange(4)):
                break
            parent = parent[index]
        action = generator.randrange(5)
        other = generator.choice(HOSTILE + [
            0, 1, 2, -1, 3, 4, 8, 2 ** 31, 2 ** 32, 2 ** 62, 2 ** 63, 10 ** 25,
            1.5, 1e308, '', 'a', '<f4', '|b1', '|O', '|V0', '<U0', '|S3',
            '<M8[us]', 'array', 'masked', 'objects', 'list', 'same', 'struct',
            'sub', 'scalar', True, False, None, [0], [0, 2 ** 40], [2 ** 31],
            [], STRUCT, ['sub', '|V0', [2 ** 30]], ['sub', STRUCT, [0]],
            ['struct', 0, True, []], [1, 0], parent])
        if action < 3:
            parent[index] = json.loads(json.dumps(other))
        elif action == 3:
            del parent[index]
        else:
            parent.insert(index, parent[index])
        if not tree:
            break
    return json.dumps(tree).encode('ascii')


def change(generator, buffers):
    index = generator.randrange(len(buffers))
    action = generator.randrange(4)
    if action == 0:
        del buffers[index]
    elif action == 1:
        buffers.insert(index, b'x' * generator.randrange(20))
    elif action == 2:
        buffers[index] = buffers[index][:-1]
    else:
        buffers[index] = bytearray(generator.randrange(256) for _ in range(
            len(buffers[index])))


if given is not None:
    def batches():
        shapes = strategies.lists(strategies.integers(0, 3), max_size=4)

        def array(dtype, shape, axes, slices):
            result = filled(dtype, shape)
            axes = sorted(range(len(shape)), key=lambda axis: axes[axis])
            return result.transpose(axes)[tuple(
                slice(None, None, step) for step in slices[:len(shape)]) +
                (Ellipsis,)]
        one = strategies.builds(
            array, strategies.sampled_from(PLAIN + STRUCTURED), shapes,
            strategies.permutations(range(4)),
            strategies.lists(strategies.sampled_from([1, 1, 1, 2, -1]),
                             max_size=4))
        scalars = strategies.one_of(
            strategies.none(), strategies.booleans(), strategies.integers(),
            strategies.floats(), strategies.complex_numbers(),
            strategies.text(), strategies.binary(),
            strategies.floats().map(numpy.float64))
        # An equal key of another type would stay.
        keys = strategies.one_of(strategies.text(min_size=1),
                                 strategies.integers(2), strategies.none())
        return strategies.recursive(
            strategies.one_of(one, scalars), lambda inner: strategies.one_of(
                strategies.lists(inner), strategies.lists(inner).map(tuple),
                strategies.dictionaries(keys, inner),
                strategies.lists(strategies.tuples(keys, inner)).map(
                    OrderedDict),
                strategies.lists(inner).map(lambda x: objects(*x))),
            max_leaves=12)

    class TestProperties(CodecTestCase):
        @settings(max_examples=30 * ROUNDS, deadline=None, database=None,
                  derandomize=True)
        @given(batches())
        def test_arrives(self, batch):
            self.both(batch)

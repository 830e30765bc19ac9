"""A batch of the nodes of a header and buffers, neither of which is trusted.

The module :mod:`fuel_prefetch.arrays` says what they are.

"""
from __future__ import absolute_import, division, print_function

import json
import re
from collections import OrderedDict

import numpy
import six
from numpy import ndarray
from numpy.ma import MaskedArray, make_mask_descr, nomask
from six.moves import cPickle as pickle
from six.moves import range, zip

from fuel_prefetch.encoding import MOST_DEPTH, NUMPY_TEXT, PLAIN, VERSION

LONG_NUMBER = re.compile(r'\d{20}')
INTEGER = re.compile(r'-?[0-9a-f]+\Z')


def flat(buffer):
    """Return the bytes of a buffer as a contiguous flat array of `uint8`.

    Parameters
    ----------
    buffer : object
        An array of any dtype without objects, or another object with the
        buffer interface. Only of a strided array a copy is made.

    """
    if type(buffer) is not ndarray:
        if not isinstance(buffer, ndarray):
            try:
                return numpy.frombuffer(buffer, numpy.uint8)
            except (AttributeError, ValueError):
                # A memoryview on Python 2, or an empty buffer on old NumPy.
                buffer = memoryview(buffer)
                if not buffer.shape or 0 in buffer.shape:
                    return numpy.empty(0, numpy.uint8)
        buffer = numpy.asarray(buffer)
    if not buffer.nbytes:  # there is no view of elements without a size
        return numpy.empty(0, numpy.uint8)
    return numpy.ascontiguousarray(buffer).reshape(-1).view(numpy.uint8)


def _check(condition, message):
    if not condition:
        raise ValueError(message)


def _is_index(value):
    return type(value) in six.integer_types and 0 <= value < 2 ** 63


def _short_int(digits):
    # Time to read an integer grows with the square of its length.
    _check(len(digits) <= 20, 'an integer that is too long')
    return int(digits)


def _no_constant(name):
    raise ValueError('{} is no JSON'.format(name))


_READER = json.JSONDecoder(parse_constant=_no_constant)
_CAREFUL_READER = json.JSONDecoder(parse_constant=_no_constant,
                                   parse_int=_short_int)


class Decoder(object):
    """Makes a batch of nodes and buffers, and trusts neither."""
    def __init__(self, buffers, pickling):
        self.pickling = pickling
        self.buffers = buffers
        self.used = 0
        self.objects_met = []  # by number
        self.dtypes = {}

    def parse(self, header):
        text = header.decode('utf-8')
        reader = _CAREFUL_READER if LONG_NUMBER.search(text) else _READER
        header = reader.decode(text)
        _check(type(header) is list and len(header) == 2, 'no header')
        _check(type(header[0]) is int and header[0] == VERSION,
               'not of version {}'.format(VERSION))
        return header[1]

    def finish(self):
        _check(self.used == len(self.buffers), 'too many buffers')

    def node(self, node, depth):
        if type(node) is not list:
            _check(type(node) is not dict, 'no node')
            return node
        _check(node and depth <= MOST_DEPTH + 1, 'no node, or too deep')
        tag = node[0]
        if tag in _VALUES:
            return _VALUES[tag](self, *node[1:])
        # An object's number is that of its beginning; until its end nothing
        # can refer to it.
        number = len(self.objects_met)
        self.objects_met.append(self)
        if tag in _ARRAYS:
            value = _ARRAYS[tag](self, *node[1:])
        else:
            _check(tag in _PARTS, 'no such node')
            value = _PARTS[tag](self, node, depth + 1)
        self.objects_met[number] = value
        return value

    def nodes(self, nodes, depth):
        return [self.node(node, depth) for node in nodes]

    def tuple(self, node, depth):
        return tuple(self.nodes(node[1:], depth))

    def list(self, node, depth):
        return self.nodes(node[1:], depth)

    def dict(self, node, depth):
        return self.fill({}, node, depth)

    def ordered(self, node, depth):
        return self.fill(OrderedDict(), node, depth)

    def fill(self, result, node, depth):
        _check(len(node) % 2 == 1, 'a key without a value')
        for key, value in zip(node[1::2], node[2::2]):
            _check(type(key) is not list or key[0] in _VALUES and
                   key[0] != 'same', 'no key')
            key = self.node(key, depth)
            result[key] = self.node(value, depth)
        _check(2 * len(result) + 1 == len(node), 'a key that is there twice')
        return result

    def named(self, node, depth):
        kind = self.load()
        return kind._make(self.nodes(node[1:], depth))

    def objects(self, node, depth):
        shape, size = self.shape(node[1])
        _check(size == len(node) - 3, 'elements that do not fit the shape')
        result = numpy.empty(size, dtype=object)
        # One by one, since they may be sequences themselves.
        for index, part in enumerate(node[3:]):
            result[index] = self.node(part, depth)
        result = result.reshape(shape)
        return result if node[2] is None else self.transpose(result, node[2])

    def array(self, dtype, shape, axes=None):
        dtype = self.dtype(dtype)
        shape, size = self.shape(shape)
        data = self.buffer()
        _check(data.nbytes == size * dtype.itemsize,
               'a buffer of {} bytes does not fit'.format(data.nbytes))
        result = ndarray(shape, dtype, data)
        return result if axes is None else self.transpose(result, axes)

    def transpose(self, array, axes):
        _check(type(axes) is list and all(map(_is_index, axes)) and
               sorted(axes) == list(range(array.ndim)), 'no axes')
        return array.transpose(axes)

    def part(self, node):
        _check(type(node) is list and node[0] == 'array', 'no array')
        return self.array(*node[1:])

    def masked(self, data, mask, fill, hard):
        data = self.part(data)
        if mask is None:
            # There NumPy makes one, of as many bytes as there are fields.
            _check(data.dtype.names is None, 'a mask is missing')
            mask = nomask
        else:
            mask = self.part(mask)
            _check(mask.shape == data.shape and
                   mask.dtype == make_mask_descr(data.dtype), 'no such mask')
        _check(type(hard) is bool, 'no boolean')
        result = MaskedArray(data, mask=mask, hard_mask=hard, copy=False)
        if fill is not None:
            fill = self.part(fill)
            _check(fill.shape == () and fill.dtype == data.dtype,
                   'no such fill value')
            result.fill_value = fill
        return result

    def same(self, number):
        _check(_is_index(number) and number < len(self.objects_met) and
               self.objects_met[number] is not self, 'no such object')
        return self.objects_met[number]

    def pickled(self):
        return self.load()

    def load(self):
        _check(self.pickling, 'a pickle where none is allowed')
        return pickle.loads(self.buffer().tobytes())

    def buffer(self):
        _check(self.used < len(self.buffers), 'too few buffers')
        buffer = self.buffers[self.used]
        self.used += 1
        return buffer if type(buffer) is ndarray else flat(buffer)

    def integer(self, text):
        _check(INTEGER.match(text), 'no integer')
        return int(text, 16)

    def long(self, text):
        _check(INTEGER.match(text), 'no integer')
        return six.integer_types[-1](text, 16)

    def real(self, text):
        _check(text in ('nan', 'inf', '-inf'), 'no number')
        return float(text)

    def complex(self, *parts):
        real, imag = self.nodes(parts, MOST_DEPTH + 1)
        _check(type(real) is float and type(imag) is float, 'no number')
        return complex(real, imag)

    def text(self, points):
        return u''.join(map(six.unichr, points))

    def bytes(self, *text):
        if not text:
            return self.buffer().tobytes()
        text, = text
        return text.encode('latin-1')

    def scalar(self, dtype, *data):
        if dtype == 'U':
            text, = self.nodes(data, MOST_DEPTH + 1)
            _check(isinstance(text, six.text_type), 'no text')
            return NUMPY_TEXT(text)
        data = self.bytes(*data)
        if dtype == 'S':
            return numpy.bytes_(data)
        dtype = self.dtype(dtype)
        _check(dtype.itemsize == len(data), 'a scalar of another size')
        return ndarray((), dtype, data).copy()[()]

    def shape(self, shape):
        _check(type(shape) is list and all(map(_is_index, shape)), 'no shape')
        size = 1
        for length in shape:
            size *= length
        return tuple(shape), size

    def dtype(self, node, depth=0, inner=False):
        if type(node) is not list:
            dtype = self.dtypes.get(node)
            if dtype is None:
                _check(PLAIN.match(node), 'no dtype')
                dtype = numpy.dtype(str(node))
                # Old NumPy takes lengths that overflow.
                _check(dtype.str == node, 'no dtype')
                self.dtypes[node] = dtype
            return dtype
        _check(depth <= MOST_DEPTH, 'a dtype that is too deep')
        if inner and node[0] == 'sub':
            _, base, shape = node
            base, (shape, size) = self.dtype(base, depth + 1), self.shape(
                shape)
            _check(size * base.itemsize < 2 ** 31, 'a dtype that is too big')
            return numpy.dtype((base, shape))
        tag, itemsize, aligned, fields = node
        _check(tag == 'struct' and type(aligned) is bool and
               _is_index(itemsize) and itemsize < 2 ** 31, 'no dtype')
        names, titles, offsets, formats = [], [], [], []
        for name, title, offset, field in fields:
            _check(isinstance(name, six.string_types) and
                   isinstance(title, six.string_types + (type(None),)) and
                   _is_index(offset) and offset <= itemsize, 'no field')
            names.append(str(name))
            titles.append(title if title is None else str(title))
            offsets.append(offset)
            formats.append(self.dtype(field, depth + 1, inner=True))
        # Aligned without fields divides by zero, in NumPy before 1.20.
        return numpy.dtype({
            'names': names, 'titles': titles, 'offsets': offsets,
            'formats': formats, 'itemsize': itemsize},
            align=aligned and bool(names))


# What makes a value of a node, by tag. Of the first kind are not numbered.
_VALUES = {
    'int': Decoder.integer, 'long': Decoder.long, 'float': Decoder.real,
    'complex': Decoder.complex, 'text': Decoder.text,
    'bytes': Decoder.bytes, 'scalar': Decoder.scalar, 'same': Decoder.same}
_ARRAYS = {'array': Decoder.array, 'masked': Decoder.masked,
           'pickled': Decoder.pickled}
_PARTS = {'tuple': Decoder.tuple, 'list': Decoder.list,
          'dict': Decoder.dict, 'ordered': Decoder.ordered,
          'objects': Decoder.objects, 'named': Decoder.named}

"""A batch as a header and buffers, and back: arrays go without pickle.

The header says what the batch is made of, in JSON; the buffers are the data of
its arrays, one after the other as they are met in the header. Written for
whoever reads it in another language:

A header is ``[1, node]``, where 1 is the version. A node is one of

- ``null``, ``true``, ``false``, a string, an integer of up to 53 bits, or a
  number with a fraction or an exponent: the value itself;
- ``["int", hexadecimal]`` any other integer (``"long"`` on Python 2),
  ``["float", "nan"]`` (or ``"inf"``, ``"-inf"``),
  ``["complex", node, node]``, and ``["text", [code points]]`` for text with
  surrogates in it;
- ``["bytes", string]``, whose characters stand for the bytes, or ``["bytes"]``
  where they are the next buffer;
- ``["scalar", dtype, string]`` or ``["scalar", dtype]``: an array's element by
  itself, as bytes; a dtype ``"U"`` or ``"S"`` without a length: text or
  bytes of NumPy's, whose characters stand there;
- ``["tuple", node, ...]`` and ``["list", node, ...]``;
- ``["dict", key, node, key, node, ...]`` and ``["ordered", ...]``, which is
  the same, where the order counts;
- ``["array", dtype, shape]``: an array in C order, its data the next buffer;
  ``["array", dtype, shape, axes]``: the same, transposed by `axes`
  (``[1, 0]`` for a matrix in Fortran order);
- ``["objects", shape, axes or null, node, ...]``: an array of objects;
- ``["masked", array, mask or null, fill value or null, hard]``: a masked
  array, all its parts being arrays, but for `hard`, which is a boolean;
- ``["pickled"]``: any other object, its pickle the next buffer;
  ``["named", node, ...]``: a named tuple, its class pickled likewise. Neither
  is found where pickling is off;
- ``["same", n]``: an object that came before, ``tuple`` to ``named`` in this
  list being numbered from 0 as they begin (not the parts of ``masked``).

A dtype is NumPy's string for it, such as ``"<f4"`` or ``">M8[us]"``;
``["struct", size, aligned, [[name, title or null, offset, dtype], ...]]``;
or, in such a list only, ``["sub", dtype, shape]``. It says what the bytes
are, byte order included. From Python 2, ``unicode`` comes as a string and
``str`` as bytes.

"""
from __future__ import absolute_import, division, print_function

import json
import re
import sys
from collections import OrderedDict

import numpy
import six
from numpy import ndarray
from numpy.ma import MaskedArray, make_mask_descr, nomask
from six.moves import cPickle as pickle
from six.moves import range, zip

VERSION = 1
MOST_DEPTH = 64  # of containers in containers
MOST_INLINE = 256  # of the bytes that stand in the header
MOST_CACHED = 256  # of the structures remembered in each direction

# Object dtypes aren't among these, nor those of other packages.
PLAIN = re.compile(
    r'[<>|](b1|[iu][1248]|f\d+|c\d+|[SUV]\d+|[mM]8(\[\d*[A-Za-z]+\])?)\Z')
SURROGATE = re.compile(u'[\ud800-\udfff]')
LONG_NUMBER = re.compile(r'\d{20}')
INTEGER = re.compile(r'-?[0-9a-f]+\Z')

NUMPY_TEXT = numpy.dtype('U').type  # `str_` on Python 3 only

# What the numpy.ma of any version keeps in an array of its own.
MASKED_ATTRIBUTES = {'_mask', '_sharedmask', '_hardmask', '_fill_value',
                     '_isfield', '_baseclass', '_optinfo', '_basedict'}

# Most streams give tuples of arrays, alike from batch to batch: what is known
# of such a batch by its types and shapes, and of its header. Each look-up and
# each change is a single operation, so that threads need no lock.
_headers = {}  # (container, dtype, shape, dtype, shape...) -> header
_plans = {}  # header -> (container, [(shape, dtype, nbytes), ...])


def _remember(cache, key, value):
    if len(cache) >= MOST_CACHED:
        cache.clear()
    cache[key] = value


def encode(batch, pickling=True):
    """Return a batch as a header and buffers.

    Parameters
    ----------
    batch : object
        The batch. It isn't changed.
    pickling : bool, optional
        Whether to pickle what is neither an array, nor one of the usual
        containers, nor a scalar. Defaults to ``True``.

    Returns
    -------
    header : bytes
        What the batch is made of.
    buffers : list of :class:`numpy.ndarray`
        Its data, which is the elements of each in C order. They are views of
        the batch's own arrays, and as those may be strided: see :func:`flat`
        and :func:`copy_into`.

    Raises
    ------
    TypeError
        If `pickling` is off and something would have to be pickled.

    """
    key = _key(batch)
    if key is not None and key in _headers:
        header = _headers.get(key)
        if header is not None:  # no other thread has emptied the cache
            return header, list(batch)
    encoder = _Encoder(pickling)
    try:
        node = encoder.node(batch, 0)
    except _Trouble as trouble:
        if not (pickling and trouble.cyclic):
            trouble.reraise()
        # Only pickle can tie such a knot again.
        encoder = _Encoder(pickling)
        try:
            node = encoder.pickled(batch)
        except _Trouble as trouble:
            trouble.reraise()
    header = _WRITER.encode([VERSION, node]).encode('ascii')
    if key is not None and all(
            isinstance(_describe(array.dtype), str) for array in batch):
        _remember(_headers, key, header)
    return header, encoder.buffers


def decode(header, buffers, pickling=True):
    """Return the batch that a header and buffers stand for.

    Parameters
    ----------
    header : bytes
        The header from :func:`encode`.
    buffers : sequence
        For each of its buffers a contiguous flat array of `uint8` with the
        same bytes, or another object with the buffer interface.
    pickling : bool, optional
        Whether to load pickles. If not, header and buffers may come from
        anyone: whatever they are, nothing of them is executed, no more memory
        is taken than is proportional to their size, and whatever is wrong
        with them raises :class:`ValueError`. Defaults to ``True``.

    Returns
    -------
    batch : object
        The batch. Its arrays are views of the buffers, which they keep alive.
        They are writable and aligned if the buffers are; so in a `bytes`
        object they are read-only.

    """
    plan = _plans.get(header)
    if plan is not None and len(plan[1]) == len(buffers):
        arrays = []
        for (shape, dtype, nbytes), buffer in zip(plan[1], buffers):
            if type(buffer) is not ndarray:
                buffer = flat(buffer)
            if buffer.nbytes != nbytes:
                raise ValueError('a buffer of {} bytes in place of {}'.format(
                    buffer.nbytes, nbytes))
            arrays.append(ndarray(shape, dtype, buffer))
        return arrays if plan[0] is list else tuple(arrays)
    decoder = _Decoder(buffers, pickling)
    try:
        node = decoder.parse(header)
        batch = decoder.node(node, 0)
        decoder.finish()
    except Exception as error:
        if pickling:  # of one's own process; it may be what a pickle raised
            raise
        message = '{}: {}'.format(type(error).__name__, error)
        six.raise_from(ValueError('malformed batch: ' + ' '.join(
            message.split())[:500]), None)
    # Several arrays in C order, and nothing else.
    if type(batch) in (tuple, list) and len(header) <= 4096 and (
            node[0] in ('tuple', 'list')) and all(
                type(part) is list and part[0] == 'array' and len(part) == 3
                for part in node[1:]):
        _remember(_plans, header, (type(batch), [
            (array.shape, array.dtype, array.nbytes) for array in batch]))
    return batch


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


def copy_into(buffer, memory):
    """Copy the bytes of a buffer to `memory`, once even if it is strided.

    Parameters
    ----------
    buffer : :class:`numpy.ndarray`
        One of the buffers from :func:`encode`.
    memory : :class:`numpy.ndarray`
        A contiguous flat array of `uint8` of its size.

    """
    if memory.nbytes != buffer.nbytes:
        raise ValueError('{} bytes do not fit {}'.format(
            buffer.nbytes, memory.nbytes))
    if buffer.nbytes:
        ndarray(buffer.shape, buffer.dtype, memory)[...] = buffer


def _key(batch):
    # Small tuples and lists of different arrays in C order have a key, by
    # which the header is found again. Equal dtypes may be different ones, but
    # not if NumPy has a string for them, and only then they are remembered.
    kind = type(batch)
    if (kind is tuple or kind is list) and len(batch) <= 16:
        key = [kind]
        for array in batch:
            if type(array) is not ndarray or not array.flags.c_contiguous:
                return None
            key.append(array.dtype)
            key.append(array.shape)
        if len(batch) < 2 or len(set(map(id, batch))) == len(batch):
            return tuple(key)


def _axes(array):
    # The axes from the widest stride to the narrowest, if that makes a C
    # array of one that isn't.
    if not array.flags.c_contiguous:
        axes = sorted(range(array.ndim),
                      key=lambda axis: -abs(array.strides[axis]))
        if array.transpose(axes).flags.c_contiguous:
            return axes


def _describe(dtype, depth=0):
    """Return what stands for a dtype in a header, ``None`` if nothing can."""
    if dtype.hasobject or depth > MOST_DEPTH:
        return None
    if dtype.subdtype:
        base = _describe(dtype.subdtype[0], depth + 1)
        return base and ['sub', base, list(dtype.subdtype[1])]
    if dtype.names is None:
        text = dtype.str
        # A dtype of another package passes for one without a type.
        known = PLAIN.match(text) and numpy.dtype(text) == dtype
        return text if known else None
    if dtype.type is not numpy.void:
        return None  # elements of a record array are objects of their own
    fields = []
    for name in dtype.names:
        field = dtype.fields[name]
        title = field[2] if len(field) > 2 else None
        inner = _describe(field[0], depth + 1)
        if inner is None or not all(_is_name(part) for part in (
                name, '' if title is None else title)):
            return None
        fields.append([name, title, field[1], inner])
    return ['struct', dtype.itemsize, dtype.isalignedstruct, fields]


def _is_name(value):
    # On Python 2 JSON takes those bytes for text that are ASCII.
    return type(value) is str and (
        six.PY3 or all(character < '\x80' for character in value))


class _Trouble(Exception):
    """What can't be encoded, and where in the batch it is."""
    def __init__(self, message, cyclic=False, failure=None):
        super(_Trouble, self).__init__(message)
        self.message = message
        self.cyclic = cyclic
        self.failure = failure  # what pickle raised, as in `sys.exc_info`
        self.place = []

    def reraise(self):
        message = 'batch{}: {}'.format(
            ''.join('[{}]'.format(key) for key in reversed(self.place)),
            self.message)
        if self.failure is None:
            six.raise_from(TypeError(message), None)
        kind, error, trace = self.failure
        message += ': {}'.format(error)
        message = ' '.join(message.split())
        if kind in (pickle.PicklingError, TypeError, AttributeError,
                    RuntimeError, getattr(six.moves.builtins,
                                          'RecursionError', None)):
            six.reraise(kind, kind(message), trace)
        # What else an object raised may not be made of a message.
        six.reraise(pickle.PicklingError, pickle.PicklingError(
            '{} ({})'.format(message, kind.__name__)), trace)


class _Encoder(object):
    """Makes the nodes of one batch, and collects its buffers."""
    def __init__(self, pickling):
        self.pickling = pickling
        self.buffers = []
        self.numbers = {}  # id -> number, of the batch's own objects
        self.open = set()  # numbers of the containers that we are in

    def node(self, value, depth):
        kind = type(value)
        if kind in _SCALARS:
            return _SCALARS[kind](self, value)
        if isinstance(value, numpy.generic):
            node = self.numpy_scalar(value)
            if node is not None:
                return node
        number = self.numbers.get(id(value))
        if number is not None:
            if number in self.open:
                raise _Trouble('a {} that contains itself'.format(
                    _name(kind)), cyclic=True)
            return ['same', number]
        self.numbers[id(value)] = number = len(self.numbers)
        if kind is ndarray and value.dtype != object:
            return self.array(value) or self.pickled(value)
        if kind is MaskedArray:
            return self.masked(value) or self.pickled(value)
        method = _CONTAINERS.get(kind)
        if method is None and (
                self.pickling and kind.__bases__ == (tuple,) and
                hasattr(kind, '_make')):
            method = _Encoder.named
        if method is None or depth == MOST_DEPTH or (
                isinstance(value, dict) and
                not all(self.is_key(key) for key in value)):
            return self.pickled(value)
        self.open.add(number)
        node = method(self, value, depth + 1)
        self.open.remove(number)
        return node

    def nodes(self, values, depth, name=None):
        """Return the nodes of parts; `name` tells where the n-th is."""
        nodes, number = [], 0
        try:
            for number, value in enumerate(values):
                nodes.append(self.node(value, depth))
        except _Trouble as trouble:
            trouble.place.append(name(number) if name else number)
            raise
        return nodes

    def sequence(self, value, depth):
        return [type(value).__name__] + self.nodes(value, depth)

    def mapping(self, value, depth):
        keys = list(value)
        node = ['dict' if type(value) is dict else 'ordered']
        # A key's node may take a buffer, and its place is before the value's.
        for key in keys:
            node.append(self.node(key, depth))
            node += self.nodes([value[key]], depth, lambda _: repr(key))
        return node

    def is_key(self, key):
        return type(key) in _SCALARS or (
            isinstance(key, numpy.generic) and
            not isinstance(key, numpy.void) and
            _describe(key.dtype) is not None)

    def named(self, value, depth):
        self.dump(type(value), type(value))
        return ['named'] + self.nodes(value, depth)

    def array(self, value):
        dtype = _describe(value.dtype)
        if dtype is None:
            return None
        axes = _axes(value)
        node = ['array', dtype, None]
        if axes is not None:
            value = value.transpose(axes)
            node.append(_inverse(axes))
        node[2] = list(value.shape)
        if value.dtype.names is not None and value.dtype.itemsize:
            # A copy of fields would have what it finds between them.
            value = value.view('V{}'.format(value.dtype.itemsize))
        self.buffers.append(value)
        return node

    def objects(self, value, depth):
        if value.dtype != object:
            return None
        axes = _axes(value)
        parts = value if axes is None else value.transpose(axes)

        def name(number):
            index = numpy.unravel_index(number, parts.shape)
            if axes is not None:
                index = [index[axis] for axis in _inverse(axes)]
            return ', '.join(str(part) for part in index) or '()'

        return ['objects', list(parts.shape),
                None if axes is None else _inverse(axes)] + self.nodes(
                    parts.ravel().tolist(), depth, name)

    def masked(self, value):
        data, mask, fill = value.data, value.mask, value._fill_value
        if type(data) is not ndarray or _describe(data.dtype) is None or (
                value._optinfo or not MASKED_ATTRIBUTES.issuperset(
                    vars(value))):
            return None
        return ['masked', self.array(data),
                None if mask is nomask else self.array(mask),
                None if fill is None else self.array(numpy.asarray(fill)),
                bool(value.hardmask)]

    def pickled(self, value):
        self.dump(value, type(value))
        return ['pickled']

    def dump(self, value, kind):
        if not self.pickling:
            raise _Trouble('a {}{} would have to be pickled'.format(
                _name(kind), ' of {!r}'.format(value.dtype)
                if isinstance(value, ndarray) else ''))
        try:
            data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except Exception:
            raise _Trouble('a {} could not be pickled'.format(_name(kind)),
                           failure=sys.exc_info())
        self.buffers.append(numpy.frombuffer(data, numpy.uint8))

    def constant(self, value):
        return value

    def integer(self, value):
        if -2 ** 53 < value < 2 ** 53 and type(value) is int:
            return value
        return [type(value).__name__, '{:x}'.format(value)]

    def real(self, value):
        return (value if value - value == 0 else ['float', repr(value)])

    def complex(self, value):
        return ['complex', self.real(value.real), self.real(value.imag)]

    def text(self, value):
        if SURROGATE.search(value):
            return ['text', [ord(character) for character in value]]
        return value

    def bytes(self, value, *tag):
        node = list(tag or ['bytes'])
        if len(value) <= MOST_INLINE:
            node.append(value.decode('latin-1'))
        else:
            self.buffers.append(numpy.frombuffer(value, numpy.uint8))
        return node

    def numpy_scalar(self, value):
        kind = type(value)
        if kind is NUMPY_TEXT:  # its slice has the zeros at the end too
            return ['scalar', 'U', self.text(value[:])]
        if kind is numpy.bytes_:
            return self.bytes(value[:], 'scalar', 'S')
        dtype = _describe(value.dtype)
        if dtype is not None and value.dtype.type is kind:
            return self.bytes(value.tobytes(), 'scalar', dtype)


def _name(kind):
    if kind.__module__ == six.moves.builtins.__name__:
        return kind.__name__
    return '{}.{}'.format(kind.__module__, kind.__name__)


def _inverse(axes):
    return sorted(range(len(axes)), key=axes.__getitem__)


_SCALARS = {type(None): _Encoder.constant, bool: _Encoder.constant,
            float: _Encoder.real, complex: _Encoder.complex,
            six.text_type: _Encoder.text, bytes: _Encoder.bytes}
_SCALARS.update((kind, _Encoder.integer) for kind in six.integer_types)

_CONTAINERS = {tuple: _Encoder.sequence, list: _Encoder.sequence,
               dict: _Encoder.mapping, OrderedDict: _Encoder.mapping,
               ndarray: _Encoder.objects}


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


_WRITER = json.JSONEncoder(separators=(',', ':'), check_circular=False,
                           allow_nan=False)
_READER = json.JSONDecoder(parse_constant=_no_constant)
_CAREFUL_READER = json.JSONDecoder(parse_constant=_no_constant,
                                   parse_int=_short_int)


class _Decoder(object):
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
    'int': _Decoder.integer, 'long': _Decoder.long, 'float': _Decoder.real,
    'complex': _Decoder.complex, 'text': _Decoder.text,
    'bytes': _Decoder.bytes, 'scalar': _Decoder.scalar, 'same': _Decoder.same}
_ARRAYS = {'array': _Decoder.array, 'masked': _Decoder.masked,
           'pickled': _Decoder.pickled}
_PARTS = {'tuple': _Decoder.tuple, 'list': _Decoder.list,
          'dict': _Decoder.dict, 'ordered': _Decoder.ordered,
          'objects': _Decoder.objects, 'named': _Decoder.named}

"""What a batch is made of, as the nodes of a header.

The module :mod:`fuel_prefetch.arrays` says what they are.

"""
from __future__ import absolute_import, division, print_function

import json
import re
import traceback
from collections import OrderedDict

import numpy
import six
from numpy import ndarray
from numpy.ma import MaskedArray, nomask
from six.moves import cPickle as pickle
from six.moves import range

VERSION = 1
MOST_DEPTH = 64  # of containers in containers
MOST_INLINE = 256  # of the bytes that stand in the header

# Object dtypes aren't among these, nor those of other packages.
PLAIN = re.compile(
    r'[<>|](b1|[iu][1248]|f\d+|c\d+|[SUV]\d+|[mM]8(\[\d*[A-Za-z]+\])?)\Z')
SURROGATE = re.compile(u'[\ud800-\udfff]')
NUMPY_TEXT = numpy.dtype('U').type  # `str_` on Python 3 only

# What the numpy.ma of any version keeps in an array of its own.
MASKED_ATTRIBUTES = {'_mask', '_sharedmask', '_hardmask', '_fill_value',
                     '_isfield', '_baseclass', '_optinfo', '_basedict'}

# What pickle raises by itself.
PICKLE_ERRORS = {pickle.PicklingError, TypeError, AttributeError, RuntimeError,
                 getattr(six.moves.builtins, 'RecursionError', RuntimeError)}

_WRITER = json.JSONEncoder(separators=(',', ':'), check_circular=False,
                           allow_nan=False)


def describe(dtype, depth=0):
    """Return what stands for a dtype in a header, ``None`` if nothing can."""
    if dtype.hasobject or depth > MOST_DEPTH:
        return None
    if dtype.subdtype:
        base = describe(dtype.subdtype[0], depth + 1)
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
        inner = describe(field[0], depth + 1)
        if inner is None or not all(_is_name(part) for part in (
                name, '' if title is None else title)):
            return None
        fields.append([name, title, field[1], inner])
    return ['struct', dtype.itemsize, dtype.isalignedstruct, fields]


def _is_name(value):
    # On Python 2 JSON takes those bytes for text that are ASCII.
    return type(value) is str and (
        six.PY3 or all(character < '\x80' for character in value))


class Trouble(Exception):
    """What can't be encoded, and where in the batch it is."""
    def __init__(self, message, cyclic=False, failure=None):
        super(Trouble, self).__init__(message)
        self.message = message
        self.cyclic = cyclic
        self.failure = failure  # what pickle raised
        self.place = []

    def reraise(self):
        message = 'batch{}: {}'.format(
            ''.join('[{}]'.format(key) for key in reversed(self.place)),
            self.message)
        if self.failure is None:
            six.raise_from(TypeError(message), None)
        message = '{}: {}'.format(message, one_line(self.failure))
        kind = type(self.failure)
        if kind not in PICKLE_ERRORS:
            # It may not be made of a message.
            kind = pickle.PicklingError
        six.raise_from(kind(message), self.failure)


def one_line(error):
    """Return an error's type and message without line breaks."""
    return ' '.join(''.join(
        traceback.format_exception_only(type(error), error)).split())


class Encoder(object):
    """Makes the nodes of one batch, and collects its buffers."""
    def __init__(self, pickling):
        self.pickling = pickling
        self.buffers = []
        self.dtypes = {}  # dtype -> string, of those that have one
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
                raise Trouble('a {} that contains itself'.format(
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
            method = Encoder.named
        if method is None or depth == MOST_DEPTH or (
                isinstance(value, dict) and
                not all(self.is_key(key) for key in value)):
            return self.pickled(value)
        self.open.add(number)
        node = method(self, value, depth + 1)
        self.open.remove(number)
        return node

    def header(self, node):
        return _WRITER.encode([VERSION, node]).encode('ascii')

    def nodes(self, values, depth, name=None):
        """Return the nodes of parts; `name` tells where the n-th is."""
        nodes, number = [], 0
        try:
            for number, value in enumerate(values):
                nodes.append(self.node(value, depth))
        except Trouble as trouble:
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
            describe(key.dtype) is not None)

    def named(self, value, depth):
        self.dump(type(value), type(value))
        return ['named'] + self.nodes(value, depth)

    def array(self, value):
        dtype = self.dtypes.get(value.dtype) or describe(value.dtype)
        if dtype is None:
            return None
        if type(dtype) is str:
            self.dtypes[value.dtype] = dtype
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
        if type(data) is not ndarray or describe(data.dtype) is None or (
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
            more = ''
            if isinstance(value, ndarray):
                more = ' of {!r}'.format(value.dtype)
            raise Trouble('a {}{} would have to be pickled'.format(
                _name(kind), more))
        try:
            data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise Trouble('a {} could not be pickled'.format(_name(kind)),
                          failure=error)
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
        dtype = describe(value.dtype)
        if dtype is not None and value.dtype.type is kind:
            return self.bytes(value.tobytes(), 'scalar', dtype)


def _axes(array):
    # The axes from the widest stride to the narrowest, if that makes a C
    # array of one that isn't.
    if not array.flags.c_contiguous:
        axes = sorted(range(array.ndim),
                      key=lambda axis: -abs(array.strides[axis]))
        if array.transpose(axes).flags.c_contiguous:
            return axes


def _name(kind):
    if kind.__module__ == six.moves.builtins.__name__:
        return kind.__name__
    return '{}.{}'.format(kind.__module__, kind.__name__)


def _inverse(axes):
    return sorted(range(len(axes)), key=axes.__getitem__)


_SCALARS = {type(None): Encoder.constant, bool: Encoder.constant,
            float: Encoder.real, complex: Encoder.complex,
            six.text_type: Encoder.text, bytes: Encoder.bytes}
_SCALARS.update((kind, Encoder.integer) for kind in six.integer_types)

_CONTAINERS = {tuple: Encoder.sequence, list: Encoder.sequence,
               dict: Encoder.mapping, OrderedDict: Encoder.mapping,
               ndarray: Encoder.objects}

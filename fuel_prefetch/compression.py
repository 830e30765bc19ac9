"""What makes a batch's data smaller on its way, where it does."""
from __future__ import absolute_import, division, print_function

import importlib
import zlib

import numpy
import six

# Data of which this many bytes, taken from its middle, don't get smaller by a
# tenth is sent as it is. So what can't be compressed costs next to nothing.
SAMPLE = 2 ** 15
LEAST = 512  # bytes, below which nothing is gained
GAIN = .9


class Zlib(object):
    number = 1

    def compress(self, data):
        return zlib.compress(data, 1)

    def decompress(self, data, size):
        # One byte more than expected, to notice that there are more.
        return zlib.decompressobj().decompress(data, size + 1)


class Blosc2(object):
    number = 2

    def __init__(self):
        self.module = importlib.import_module('blosc2')

    def compress(self, data):
        return self.module.compress(data, typesize=4, clevel=5)

    def decompress(self, data, size):
        # The size that Blosc allocates stands in its own header.
        if len(data) < 16 or size != int(
                numpy.frombuffer(data, '<u4', 1, 4)[0]):
            raise ValueError('not the size that was announced')
        return self.module.decompress(data)


class Lz4(object):
    number = 3

    def __init__(self):
        self.module = importlib.import_module('lz4.block')

    def compress(self, data):
        return self.module.compress(data, store_size=False)

    def decompress(self, data, size):
        return self.module.decompress(data, uncompressed_size=size)


CODECS = {'zlib': Zlib, 'blosc2': Blosc2, 'lz4': Lz4}
NUMBERS = {codec.number: name for name, codec in CODECS.items()}
_loaded = {}


def codec_of(name):
    """Return the codec of that name.

    Raises
    ------
    ImportError
        If its package isn't installed.

    """
    if name not in _loaded:
        try:
            _loaded[name] = CODECS[name]()
        except ImportError as error:
            raise ImportError(
                'compression {!r} needs a package that is not installed: pip '
                'install fuel-prefetch[compression] ({})'.format(
                    str(name), error))
    return _loaded[name]


def shrink(codec, data):
    """Return `data` compressed, or ``None`` if that doesn't pay.

    Parameters
    ----------
    codec : object
        From :func:`codec_of`.
    data : :class:`numpy.ndarray`
        A contiguous flat array of `uint8`.

    """
    if data.nbytes < LEAST:
        return None
    if data.nbytes > 4 * SAMPLE:
        middle = data.nbytes // 2
        sample = data[middle:middle + SAMPLE].tobytes()
        if len(codec.compress(sample)) > GAIN * SAMPLE:
            return None
    if data.nbytes >= 2 ** 31 - 64:  # more than Blosc and LZ4 take
        return None
    compressed = codec.compress(data.tobytes())
    return compressed if len(compressed) <= GAIN * data.nbytes else None


def restore(number, data, size):
    """Return a writable array of the `size` bytes that were compressed.

    Raises
    ------
    ValueError
        If they don't come out of it. No more than `size` are allocated.

    """
    try:
        if six.PY2:  # where not each codec takes what isn't a string
            data = bytes(data)
        data = codec_of(NUMBERS[number]).decompress(data, size)
    except Exception as error:  # each codec has errors of its own
        raise ValueError('data that can not be decompressed: {}'.format(error))
    if len(data) != size:
        raise ValueError('{} bytes of data in place of {}'.format(
            len(data), size))
    return numpy.frombuffer(bytearray(data), numpy.uint8)

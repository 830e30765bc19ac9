"""What a server and its clients say to each other: messages and limits.

``docs/wire.rst`` specifies it, frame by frame. Nothing in here knows sockets;
frames come as bytes-like objects, and nothing that comes is trusted.

"""
from __future__ import absolute_import, division, print_function

import struct
import traceback
from collections import namedtuple

import numpy
import six

from fuel_prefetch.arrays import decode, encode
from fuel_prefetch.compression import codec_of, restore, shrink
from fuel_prefetch.decoding import flat

MAGIC = b'FP'
VERSION = 1
_HEAD = struct.Struct('>2sBBIQQQ')
_LENGTH = struct.Struct('>I')

# What clients say
HELLO, NEXT, AGAIN, BEGIN, RESET, NEXT_EPOCH, SAVE, LOAD, BYE, STATUS = range(
    1, 11)
OPERATIONS = {BEGIN: 'an epoch', RESET: 'the end of a reset',
              NEXT_EPOCH: 'the switch to the next epoch',
              SAVE: 'a checkpoint', LOAD: 'a checkpoint to be loaded',
              BYE: 'the leave', HELLO: 'the handshake', STATUS: 'the status'}
REQUESTS = frozenset(OPERATIONS) | {NEXT, AGAIN}

# What servers say
WELCOME, BATCH, ERROR, END, DONE, FAILED, WAIT, GONE, REFUSED, REPORT = range(
    65, 75)
ANSWERS = frozenset(range(WELCOME, REPORT + 1))

# Limits
MOST_REQUEST_BYTES = 2 ** 16  # of a request's frames, each and together
MOST_REQUEST_FRAMES = 2
MOST_AHEAD = 256  # batches that a client may have beside the one in hand
MOST_CLIENTS = 1000
MOST_FRAMES = 65536  # of an answer
MOST_BATCH_BYTES = 2 ** 31  # unless a client allows more or less
MOST_TEXT = 2 ** 18  # characters of a traceback

SMALL = 2 ** 16  # bytes, up to which data is rather copied than shared

Message = namedtuple('Message', ['kind', 'call', 'a', 'b', 'c', 'frames'])


class Malformed(ValueError):
    """A message that none of ours would send."""


class OtherVersion(Malformed):
    """A message of another version of the protocol."""
    def __init__(self, version):
        super(OtherVersion, self).__init__(
            'version {} of the protocol, where {} is spoken'.format(
                version, VERSION))
        self.version = version


class Item(object):
    """A batch or an error, as the frames that follow a head.

    Attributes
    ----------
    kind : int
        `BATCH` or `ERROR`.
    frames : list
        Bytes, and flat arrays of `uint8` where they are large.
    nbytes : int
        The size of the frames.
    codec : int
        The number of the codec that some are compressed with, or 0.

    """
    __slots__ = 'kind', 'frames', 'nbytes', 'codec', '_joined', '_rest'

    def __init__(self, kind, frames, codec=0):
        self.kind = kind
        self.frames = frames
        self.codec = codec
        self.nbytes = 0
        # Each frame has its price, which is most of that of a small batch.
        joined = []
        for frame in frames:
            size = len(frame)
            self.nbytes += size
            if self.nbytes < SMALL:
                joined += [_LENGTH.pack(size), frame]
        count = len(joined) // 2
        self._joined = b''.join(joined)
        self._rest = frames[count:]

    def message(self, call, number):
        """Return the frames of a message with it."""
        return [head(self.kind, call, number, self.nbytes, self.codec) +
                self._joined] + self._rest

    def save(self):
        """Return it in plain objects, for a checkpoint."""
        return self.kind, [
            frame.tobytes() if isinstance(frame, numpy.ndarray) else frame
            for frame in self.frames], self.codec


def head(kind, call=0, a=0, b=0, c=0):
    """Return the first frame of a message."""
    return _HEAD.pack(MAGIC, VERSION, kind, call, a, b, c)


def parse(first, frames, kinds):
    """Return the message that a head and the frames after it stand for.

    Raises
    ------
    Malformed
        If it isn't one of `kinds`.

    """
    if len(first) < _HEAD.size:
        _refuse(first)
    magic, version, kind, call, a, b, c = _HEAD.unpack_from(first)
    if magic != MAGIC or version != VERSION:
        _refuse(first)
    if len(first) > _HEAD.size:
        if kinds is not ANSWERS:
            raise Malformed('a head of {} bytes'.format(len(first)))
        frames = _split(first) + frames
    if kind not in kinds:
        raise Malformed('no message of kind {} is expected'.format(kind))
    return Message(kind, call, a, b, c, frames)


def _refuse(first):
    """Raise what is wrong with a head, the rest of which may be anything."""
    if len(first) < 4 or first[:2] != MAGIC:
        raise Malformed('no head')
    version = ord(first[2:3])
    if version != VERSION:
        raise OtherVersion(version)
    raise Malformed('a head of {} bytes'.format(len(first)))


def _split(first):
    """Return the frames that were joined to a head."""
    frames, at = [], _HEAD.size
    while at < len(first):
        if at + _LENGTH.size > len(first):
            raise Malformed('half a length')
        length, = _LENGTH.unpack_from(first, at)
        at += _LENGTH.size
        if at + length > len(first):
            raise Malformed('a frame of {} bytes in a smaller one'.format(
                length))
        if len(frames) == MOST_FRAMES:
            raise Malformed('too many frames')
        # The first is a header; the memory of others will be a batch's.
        frame = first[at:at + length]
        frames.append(bytearray(frame) if frames else frame)
        at += length
    return frames


def parse_request(frames):
    """Return the message of a client that may be anyone."""
    if not 1 <= len(frames) <= MOST_REQUEST_FRAMES:
        raise Malformed('{} frames'.format(len(frames)))
    if sum(map(len, frames)) > MOST_REQUEST_BYTES:
        raise Malformed('too many bytes')
    return parse(frames[0], frames[1:], REQUESTS)


def as_text(value):
    """Return `value` with native strings as text, on Python 2 too."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {as_text(key): as_text(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(as_text(part) for part in value)
    return value


def pack(value):
    """Return the frames of a value that tells details."""
    header, buffers = encode(as_text(value), pickling=False)
    return [header] + [flat(buffer).tobytes() for buffer in buffers]


def unpack(frames):
    """Return the value of such frames, which may come from anyone."""
    if not frames:
        raise Malformed('nothing to go by')
    try:
        return decode(bytes(frames[0]), frames[1:], pickling=False)
    except ValueError as error:
        raise Malformed(str(error))


def unpack_dict(frames):
    """Return a value that has to be a dictionary."""
    value = unpack(frames)
    if not isinstance(value, dict):
        raise Malformed('no dictionary')
    return value


def pack_batch(batch, codec=None):
    """Return a batch as an :class:`Item`.

    Parameters
    ----------
    batch : object
        The batch. Large arrays aren't copied, but for those that are
        strided.
    codec : str, optional
        The codec to compress with, where it pays.

    Raises
    ------
    TypeError
        If it can't be sent without pickle.

    """
    header, buffers = encode(batch, pickling=False)
    buffers = [flat(buffer) for buffer in buffers]
    if len(buffers) > MOST_FRAMES - 3:
        raise TypeError('a batch of {} arrays'.format(len(buffers)))
    frames, sizes = [], []
    codec = codec and codec_of(codec)
    for buffer in buffers:
        shrunk = codec and shrink(codec, buffer)
        sizes.append(buffer.nbytes if shrunk else 0)
        frames.append(shrunk or (
            buffer.tobytes() if buffer.nbytes < SMALL else buffer))
    if any(sizes):
        return Item(BATCH, [header, numpy.array(sizes, '>u8').tobytes()] +
                    frames, codec.number)
    return Item(BATCH, [header] + frames)


def unpack_batch(message, most_bytes=MOST_BATCH_BYTES):
    """Return the batch of a message, its arrays being views of the frames.

    Raises
    ------
    Malformed
        If there is anything wrong with it.

    """
    frames = message.frames
    if not frames:
        raise Malformed('a batch without a header')
    header, buffers = bytes(frames[0]), frames[1:]
    try:
        if message.c:
            sizes = numpy.frombuffer(buffers[0], '>u8').tolist()
            buffers = buffers[1:]
            if len(sizes) != len(buffers) or sum(sizes) > most_bytes:
                raise Malformed('sizes that do not fit')
            buffers = [
                restore(message.c, buffer, size) if size else buffer
                for size, buffer in zip(sizes, buffers)]
        return decode(header, buffers, pickling=False)
    except Malformed:
        raise
    except (ValueError, IndexError) as error:
        raise Malformed(str(error))


def _text(value):
    if isinstance(value, bytes):
        value = value.decode('utf-8', 'replace')
    return value[-MOST_TEXT:]


def pack_error(exc_info):
    """Return an error of the stream as an :class:`Item`."""
    kind, error, trace = exc_info
    builtin = [base.__name__ for base in getattr(kind, '__mro__', ())
               if base.__module__ == six.moves.builtins.__name__ or
               base.__module__ == 'exceptions']
    try:
        message = _text(str(error))
    except Exception:  # an error's own code may fail
        message = u'(its message can not be had)'
    details = {'type': _text(kind.__name__), 'message': message,
               'builtin': _text(builtin[0] if builtin else 'Exception'),
               'traceback': _text(''.join(
                   traceback.format_exception(kind, error, trace))),
               'args': None}
    try:
        details['args'] = _plain_args(error)
        return Item(ERROR, pack(details))
    except Exception:
        details['args'] = None
        return Item(ERROR, pack(details))


def _plain_args(error):
    """Return the arguments of an error, ``None`` if they can't be sent."""
    args = tuple(error.args)
    if all(isinstance(arg, six.string_types + six.integer_types + (
            float, bytes, type(None))) for arg in args):
        if sum(len(arg) for arg in args if hasattr(arg, '__len__')) < (
                MOST_TEXT):
            return args


def pack_ending(stop):
    """Return the frames that an end's arguments take, which is mostly none."""
    try:
        args = _plain_args(stop)
        return pack(args) if args else []
    except Exception:  # it may be a class of somebody's own
        return []


def unpack_ending(frames):
    """Return the arguments for a StopIteration."""
    args = unpack(frames) if frames else ()
    if type(args) is not tuple:
        raise Malformed('an end of another kind')
    return args

"""A client's end of a connection to a server: what is asked, what comes."""
from __future__ import absolute_import, division, print_function

import os
import platform
from collections import deque

import numpy
import zmq

from fuel_prefetch import wire
from fuel_prefetch.arguments import is_count
from fuel_prefetch.compression import CODECS, codec_of
from fuel_prefetch.exceptions import (
    PrefetchError, PrefetchTimeout, remote_error)
from fuel_prefetch.waiting import deadline_of, monotonic, process_token

# Seconds after which an answer is asked for again. What was lost, with a
# connection or a server, is had again by that; to a server that has nothing
# to say yet it costs next to nothing.
RETRY = 1.
LOOK = .1  # seconds until a waiting reader notices that it was closed
LARGE_BLOCK = 2 ** 25 - 2 ** 13  # bytes; what it takes for most, at its most
# Enumerations take their time.
_NOBLOCK, _SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)
FRAME_BYTES = 2 ** 31  # that libzmq accepts at most, before it allocates

# One for each process: a context that is collected waits for its sockets,
# which is for ever if they are in the same cycle. This one isn't collected.
_contexts = {}
_left_behind = []  # sockets of the process that this one was forked from


class Context(zmq.Context):
    """A context that is not terminated as it is collected.

    pyzmq does that, which waits for the context's sockets. It doesn't at the
    end of the interpreter, but on Python 2.7 what tells it of that may be gone
    by then.

    """
    def __del__(self):
        pass


class Gone(Exception):
    """The server doesn't know this client, or was stopped."""
    def __init__(self, text):
        super(Gone, self).__init__(text)
        self.text = text


def _context():
    token = os.getpid(), process_token()
    if token not in _contexts:
        # The other process's stay referenced, lest they are terminated here.
        _contexts[token] = Context()
        # From a block that was freed glibc learns not to give the memory of
        # smaller ones back to the system, which for each batch would cost
        # more than the batch.
        numpy.empty(LARGE_BLOCK, numpy.uint8)
    return _contexts[token]


# A sequence is one of
#
#   FLOWING   batches come, in the order of their numbers;
#   COMPLETE  the end came, after all batches; some may not be taken yet.
#
#   FLOWING --> COMPLETE
#
# Invariants, whenever no method runs:
# - `arrived` holds the messages `taken` to `taken + len(arrived) - 1`, each
#   number once, whatever was lost or came twice;
# - the server was asked for at most `taken` + 1 + `ahead` of them, and keeps
#   all from the last acknowledged one on;
# - a reader that asks has done with what it took: `taken` is acknowledged
#   then, and not before.
class Sequence(object):
    """The batches of an epoch, as they come in.

    Parameters
    ----------
    run : int
        The number of the operation that it began with.
    ahead : int
        Batches to have ready or under way beside the one in hand.

    """
    def __init__(self, run, ahead):
        self.run = run
        self.ahead = ahead
        self.arrived = deque()
        self.taken = 0
        self.complete = False
        self.ending = ()  # details that came with the end
        self.gone = None  # why the server, stopped, sends nothing more

    def take(self):
        message = self.arrived[0]
        self.taken = message.a + 1
        self.arrived.popleft()
        return message

    def tidy(self):
        """Complete a :meth:`take` that Ctrl-C has cut short."""
        while self.arrived and self.arrived[0].a < self.taken:
            self.arrived.popleft()

    def request(self, kind):
        return wire.head(kind, self.run, self.taken,
                         self.taken + len(self.arrived),
                         self.taken + 1 + self.ahead)

    def sort_in(self, message):
        """Take in a message; return whether one before it is missing."""
        if message.call != self.run or self.complete:
            return False  # of an earlier one
        expected = self.taken + len(self.arrived)
        if message.a > expected:
            return True
        if message.kind == wire.END:
            self.ending = message.frames
            self.complete = message.a == expected
        elif message.a == expected:
            self.arrived.append(message)
        return False


class Connection(object):
    """A session with a server.

    All waits end by the answer or at the deadline; what can have been lost
    is asked for again. It isn't safe to use it in two threads at once.

    Parameters
    ----------
    address : str
        The server's.
    timeout : float or None
        Seconds that each wait may take.
    max_bytes : int
        The largest batch to accept.
    keys : tuple of bytes or None
        As :func:`.read_client_keys` returns them.

    Attributes
    ----------
    info : dict
        What the server tells about the stream.

    """
    def __init__(self, address, timeout, max_bytes, keys):
        self.address = address
        self.timeout = timeout
        self.max_bytes = max_bytes
        self.closing = False
        self._call = 0
        self._heard = None  # when the server said something last
        self._reason = None  # what it said that it waits for
        self._malformed = None
        socket = self._socket = _context().socket(zmq.DEALER)
        for option, value in [
                (zmq.LINGER, 0), (zmq.SNDHWM, 1000), (zmq.RCVHWM, 2000),
                (zmq.MAXMSGSIZE, min(max_bytes, FRAME_BYTES)),
                (zmq.RECONNECT_IVL_MAX, 1000)]:
            socket.setsockopt(option, value)
        # A name by which it is known again after a reconnection, and that
        # nobody can guess.
        socket.setsockopt(zmq.IDENTITY, b'c' + os.urandom(16))
        if keys is not None:
            public, secret, server_public = keys
            socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
            socket.setsockopt(zmq.CURVE_SERVERKEY, server_public)
        socket.connect(address)
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self.info = None

    def shake_hands(self):
        """Learn about the stream, or why that can't be.

        Raises
        ------
        PrefetchError
            If the two don't understand each other.
        PrefetchTimeout
            If no server answers in time.

        """
        details = wire.pack({
            'name': u'{}:{}'.format(platform.node(), os.getpid()),
            'codecs': sorted(CODECS)})
        message = self._ask(wire.HELLO, 0, details, wire.WELCOME)
        info = wire.unpack_dict(message.frames)
        codec = info.get('compression')
        if codec is not None:
            try:
                codec_of(codec)
            except (ImportError, KeyError, TypeError):
                raise PrefetchError(
                    'the server at {} compresses with {}, which is not '
                    'installed here'.format(self.address, str(codec)))
        for name in ('sources', 'axis_labels', 'produces_examples',
                     'checkpoints', 'length'):
            if name not in info:
                raise wire.Malformed('the server does not tell its ' + name)
        length = info['length']
        if length is not None and not (
                isinstance(length, tuple) and len(length) == 2 and
                is_count(length[0]) and length[0] < 2 ** 62 and (
                    length[1] is None or is_count(length[1]))):
            raise wire.Malformed('the server tells no length')
        self.info = info

    def new_call(self):
        """Return the number of a new operation."""
        self._call += 1
        return self._call

    def operate(self, kind, call, a=0, details=(), sequence=None,
                timeout=None):
        """Have an operation carried out; return the message that says so.

        Raises
        ------
        RemoteError, StopIteration
            What the stream raised.
        PrefetchTimeout
            If there is no answer in time. Then the same operation may be
            asked for again, under the same number.
        Gone
            If the server has forgotten this client.

        """
        message = self._ask(kind, call, details, wire.DONE, a, sequence,
                            timeout)
        if message.kind == wire.FAILED:
            self.raise_error(message)
        return message

    def raise_error(self, message):
        """Raise the error that a message tells of."""
        details = wire.unpack_dict(message.frames)
        if details.get('type') == u'StopIteration':
            raise StopIteration(*details.get('args') or ())
        raise remote_error(details)

    def status(self):
        """Return what the server reports."""
        return wire.unpack_dict(
            self._ask(wire.STATUS, 0, (), wire.REPORT).frames)

    def _ask(self, kind, call, details, expected, a=0, sequence=None,
             timeout=None):
        request = [wire.head(kind, call, a)] + list(details)
        deadline = deadline_of(timeout or self.timeout)
        what = wire.OPERATIONS[kind]
        while True:
            self._send(request)
            retry = monotonic() + RETRY
            while True:
                message = self._receive(retry, deadline, what)
                if message is None:
                    break
                if message.kind in (expected, wire.FAILED) and (
                        message.call == call):
                    return message
                self._take_in(message, sequence)
                if sequence is not None and sequence.gone is not None:
                    raise Gone(sequence.gone)

    def next(self, sequence):
        """Return the next message of a sequence, or ``None`` at its end."""
        sequence.tidy()
        if sequence.gone is None and not sequence.complete:
            self._send([sequence.request(wire.NEXT)])
        deadline = retry = None
        while not sequence.arrived and not sequence.complete:
            if sequence.gone is not None:
                message = self._read_now()
                if message is None:
                    raise Gone(sequence.gone)
            else:
                if retry is None:
                    deadline = deadline_of(self.timeout)
                    retry = monotonic() + RETRY
                message = self._receive(
                    retry, deadline, 'batch {} of the epoch', sequence.taken)
            if message is None:
                retry = monotonic() + RETRY
                self._send([sequence.request(wire.AGAIN)])
            else:
                self._take_in(message, sequence)
        if not sequence.arrived:
            return None
        return sequence.take()

    def _take_in(self, message, sequence):
        kind = message.kind
        if kind in (wire.BATCH, wire.ERROR, wire.END):
            if sequence is not None and sequence.sort_in(message):
                self._send([sequence.request(wire.AGAIN)])
        elif kind == wire.WAIT and message.frames:
            self._reason = wire.unpack(message.frames)
        elif kind == wire.GONE:
            text = wire.unpack(message.frames)
            if not message.a or sequence is None:
                raise Gone(text)
            sequence.gone = text  # what it sent before is still good
        elif kind == wire.REFUSED:
            raise PrefetchError('the server at {} refused: {}'.format(
                self.address, wire.unpack(message.frames)))

    def _send(self, frames):
        try:
            for frame in frames[:-1]:
                self._socket.send(frame, _NOBLOCK | _SNDMORE)
            self._socket.send(frames[-1], _NOBLOCK)
        except zmq.Again:
            pass  # nobody has taken what was asked before

    def _receive(self, retry, deadline, what, *numbers):
        """Return the next message, or ``None`` when it is time to retry."""
        while True:
            if self.closing:
                raise PrefetchError('the stream was closed')
            now = monotonic()
            if deadline is not None and now >= deadline:
                self._time_out(what.format(*numbers))
            if now >= retry:
                return None
            until = retry if deadline is None else min(retry, deadline)
            if self._poller.poll(max(1, 1000 * min(LOOK, until - now))):
                return self._read_now()

    def _time_out(self, what):
        if self._heard is None:
            text = 'no server answered'
        else:
            text = 'the server answered last {:.1f} seconds ago'.format(
                monotonic() - self._heard)
            if self._reason is not None:
                text += ', and waits for {}'.format(self._reason)
        raise PrefetchTimeout('{} did not come from {} within {} seconds; '
                              '{}'.format(what, self.address, self.timeout,
                                          text))

    def _read_now(self):
        """Read a message, or return ``None`` if none is there."""
        try:
            frame = self._socket.recv(_NOBLOCK, copy=False)
        except zmq.Again:
            return None
        try:
            message = wire.parse(frame.bytes, self._read_frames(frame),
                                 wire.ANSWERS)
            if len(message.frames) > wire.MOST_FRAMES:
                raise wire.Malformed('too many frames')
        except wire.OtherVersion as error:
            raise PrefetchError('the server at {} speaks {}'.format(
                self.address, error))
        except wire.Malformed as error:
            raise PrefetchError('the server at {} sent what is no message: '
                                '{}'.format(self.address, error))
        self._heard = monotonic()
        return message

    def _read_frames(self, frame):
        """Return the frames of a message after its first one."""
        frames, nbytes = [], len(frame)
        try:
            while frame.more:
                frame = self._socket.recv(copy=False)
                nbytes += len(frame)
                if nbytes > self.max_bytes + wire.SMALL:
                    raise wire.Malformed('a message that is too large')
                frames.append(writable(frame))
        except BaseException:
            # Such as Ctrl-C. What follows is no message without its head;
            # this one is asked for again.
            while self._socket.getsockopt(zmq.RCVMORE):
                self._socket.recv()
            raise
        return frames

    def end(self, sequence):
        """Raise the StopIteration that a sequence came to."""
        try:
            args = wire.unpack_ending(sequence.ending)
        except wire.Malformed as error:
            raise PrefetchError('the server at {} sent what is no end: '
                                '{}'.format(self.address, error))
        raise StopIteration(*args)

    def batch(self, message):
        """Return the batch of a message."""
        try:
            return wire.unpack_batch(message, self.max_bytes)
        except wire.Malformed as error:
            raise PrefetchError('the server at {} sent what is no batch: '
                                '{}'.format(self.address, error))

    def close(self):
        self.closing = True
        self._socket.close(0)

    def leave_behind(self):
        """Forget it after a fork; it is the other process's."""
        _left_behind.append(self._socket)


def writable(frame):
    """Return a frame's memory, or a copy where that is read-only or small."""
    # Small ones share libzmq's memory, and don't lie aligned in it.
    if len(frame) >= wire.SMALL:
        memory = frame.buffer
        if isinstance(memory, memoryview) and not memory.readonly:
            return memory
    return bytearray(frame.buffer)

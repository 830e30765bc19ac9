"""Messages between two processes, and batches in them.

A :class:`ParentEnd` and a :class:`ChildEnd` are the ends of a connection. What
the child says goes through a :class:`~fuel_prefetch.ring.Ring`, where what is
large in a batch lies in other memory that both share, see
:mod:`fuel_prefetch.memory`. What the parent says goes through a socket, by
which they also wake each other. It closes with either of them.

"""
from __future__ import absolute_import, division, print_function

import errno
import os
import select
import socket
import struct
import time
from collections import deque
from multiprocessing import reduction

import numpy
import six

from fuel_prefetch.arrays import copy_into, decode, encode
from fuel_prefetch.memory import (
    Arena, Views, align, map_segment, open_segment)
from fuel_prefetch.ring import MESSAGE, NBYTES, Ring

# Bytes of a batch up to which copying it through the ring takes less time than
# keeping account of a region in the shared memory. Also the most that a header
# may have there, so that every message is a small part of the ring.
INLINE = 2 ** 14

# Segment or -1, offset and bytes in it, buffers, bytes of the header.
DATA = struct.Struct('<iQQII')
SEGMENT = struct.Struct('<QI')  # bytes, segments given up
MOST_SIZES = 1024  # of the buffers' sizes that stand in a message

# Kinds of messages. From the parent:
FREED = 1  # regions that are free again, if any; it also wakes
RELEASE = 2  # let go of the epoch's iterator
CALL = 3  # call a method of the child, by its number in `CALLS`
ORIGIN = 4  # what to begin with, where it isn't inherited
# ... and from the child:
READY = 10  # the stream is there; nothing of it has been called yet
ITEM = 11  # a batch
FAILED = 12  # an error in its place, the end of the epoch included
DONE = 13  # the answer to CALL
NEW_SEGMENT = 14

CALLS = ['open', 'rest', 'change', 'reset', 'next_epoch', 'save', 'close']

_CHUNK = 2 ** 16
COUNT = 2 ** 32  # modulo which batches are counted

# How often a child looks for more to do before it sleeps: it takes both sides
# longer to have it woken.
_LOOKS = 100

# Seconds between two looks for room in a ring. There always is some, but for a
# reader who asks for more than may be under way.
_NO_ROOM = .001


if six.PY3:
    # The functions that 2.7 has too would duplicate the socket's own first. If
    # that can't be, what was sent stays there, for the next one to take.
    def _send_descriptor(connection, descriptor):
        reduction.sendfds(connection, [descriptor])

    def _receive_descriptor(connection):
        return reduction.recvfds(connection, 1)[0]
else:
    def _send_descriptor(connection, descriptor):
        reduction.send_handle(connection, descriptor, None)

    _receive_descriptor = reduction.recv_handle


def pair():
    """Return two connected ends: for each, the sockets it is made of."""
    here, there = socket.socketpair()
    # Descriptors have a connection of their own, as they come beside bytes
    # of a stream and are lost if these are read in the ordinary way.
    descriptors_here, descriptors_there = socket.socketpair()
    return (here, descriptors_here), (there, descriptors_there)


class Disconnected(Exception):
    """The other end is gone."""


class End(object):
    """One end of a connection.

    Parameters
    ----------
    sockets : tuple
        As :func:`pair` gives them.

    """
    def __init__(self, sockets):
        self._socket, self._descriptors = sockets
        self._poller = select.poll()
        self._poller.register(self._socket, select.POLLIN)
        self._messages = deque()

    def fileno(self):
        return self._socket.fileno()

    def _poll(self, timeout=None):
        try:
            return bool(self._poller.poll(
                None if timeout is None else 1000 * timeout))
        except select.error:  # interrupted, on 2.7
            return True

    def _read(self):
        """Return what can be received now, ``None`` if that is nothing."""
        try:
            data = self._socket.recv(_CHUNK, socket.MSG_DONTWAIT)
        except socket.error as error:
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return None
            raise Disconnected(str(error))
        if not data:
            raise Disconnected('the connection was closed')
        return data

    def _write(self, data):
        try:
            self._socket.sendall(data)
        except socket.error as error:
            raise Disconnected(str(error))

    def _send_descriptor(self, descriptor):
        try:
            _send_descriptor(self._descriptors, descriptor)
        except EnvironmentError as error:
            raise Disconnected(str(error))

    def _receive_descriptor(self):
        try:
            return _receive_descriptor(self._descriptors)
        except (EOFError, socket.error) as error:
            raise Disconnected(str(error))
        except RuntimeError:  # it came, and there is no room for it
            raise EnvironmentError(errno.EMFILE, os.strerror(errno.EMFILE))

    def close(self):
        """Close the connection, for whoever else holds it open too."""
        for end in self._socket, self._descriptors:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except (socket.error, EnvironmentError):  # it is closed already
                pass

    def forget(self):
        """Close this process's descriptors, and leave the connection be."""
        self._socket.close()
        self._descriptors.close()


class ParentEnd(End):
    """The end of the process that wants the batches."""
    def __init__(self, sockets):
        super(ParentEnd, self).__init__(sockets)
        descriptor = open_segment(NBYTES)
        self._send_descriptor(descriptor)
        self._ring = Ring(map_segment(descriptor, NBYTES))
        self._views = Views()
        self._granted = 0, 0  # number and count of the latest grant
        self._layout = b'none yet',  # of the latest batch, as in `_parse`

    def send(self, kind, number=0, body=b''):
        """Send a message.

        Raises
        ------
        Disconnected
            If the other end is gone.

        """
        self._write(MESSAGE.pack(kind, number, len(body)) + body)

    def grant(self, number, count):
        """Let the child read so many more batches.

        Parameters
        ----------
        number : int
            Of what the child said last, besides batches. Once it has said
            more than that, the grant is void.
        count : int
            How many.

        """
        count = self.note_granted(number, count)
        freed = self._freed()
        if freed:  # before the child needs them for what it now may read
            self.send(FREED, 0, freed)
        if self._ring.granted.tell(number * COUNT + count % COUNT):
            self.send(FREED)

    def note_granted(self, number, count):
        """Count a grant, or one that the child knows of; return their sum."""
        if self._granted[0] == number:
            count += self._granted[1]
        self._granted = number, count
        return count

    def receive(self, timeout=None):
        """Return the messages that there are, waiting for one.

        Returns
        -------
        messages : deque
            Of each its kind, number and body; to be taken from there. Empty
            if none came within `timeout` seconds.

        Raises
        ------
        Disconnected
            If the other end is gone, and all it had sent was received.

        """
        while not self._messages and not self._ring.read(self._messages):
            if self._ring.must_sleep():
                if not self._poll(timeout):
                    break
                try:
                    self._read()
                except Disconnected:
                    if self._ring.read(self._messages):
                        break
                    raise
        return self._messages

    def load_data(self, body, most):
        """Return what was sent as the body of a message.

        Its arrays are the caller's own: writable, and valid as long as they
        are referred to.

        Parameters
        ----------
        body : bytes
            The body.
        most : int
            As in :meth:`.Views.view`.

        """
        if not body.startswith(self._layout[0]):
            self._layout = _parse(body)
        prefix, segment, offset, room, count, sizes, header = self._layout
        if not room:
            memory = numpy.empty(0, numpy.uint8)
        elif segment < 0:
            memory = numpy.frombuffer(
                body, numpy.uint8, room, len(prefix)).copy()
        else:
            memory = self._views.view(segment, offset, room, most)
        start = 0
        if sizes is None:
            start = align(8 * count)
            sizes = struct.unpack('<{}Q'.format(count),
                                  memory[:8 * count].tobytes())
        buffers = []
        for nbytes in sizes:
            buffers.append(memory[start:start + nbytes])
            start += align(nbytes)
        if not header:
            header = buffers.pop().tobytes()
        return decode(header, buffers)

    def attach(self, number, body):
        """Take in a segment that the other end announced."""
        nbytes, count = SEGMENT.unpack_from(body)
        given_up = struct.unpack_from('<{}I'.format(count), body, SEGMENT.size)
        self._views.forget(given_up)
        try:
            self._views.attach(number, self._receive_descriptor(), nbytes)
        except EnvironmentError as error:
            # The batches in it are errors then, and the next ones come in
            # another one.
            self._views.refuse(number, str(error))

    def _freed(self):
        """Return, for the other end, the regions that are free again."""
        freed = self._views.freed
        pairs = []
        while freed:
            pairs.extend(freed.popleft())
        return struct.pack('<{}Q'.format(len(pairs)), *pairs)


def _parse(body):
    """Return what a batch's message begins with, whole and in its parts."""
    segment, offset, room, count, header_size = DATA.unpack_from(body)
    sizes, start = None, DATA.size
    if count <= MOST_SIZES:
        sizes = struct.unpack_from('<{}Q'.format(count), body, start)
        start += 8 * count
    header = body[start:start + header_size]
    return (body[:start + header_size], segment, offset, room, count, sizes,
            header)


class ChildEnd(End):
    """The end of the process that reads the stream."""
    def __init__(self, sockets):
        super(ChildEnd, self).__init__(sockets)
        self._ring = Ring(map_segment(self._receive_descriptor(), NBYTES))
        self._arena = Arena()
        self._parts = []  # of a message that isn't complete
        self._missing = 0  # bytes of it

    def send(self, kind, number=0, body=b''):
        """Send a message.

        Raises
        ------
        Disconnected
            If the other end is gone. That may be noticed later.

        """
        while True:
            written, wake = self._ring.write(kind, number, body)
            if written:
                break
            time.sleep(_NO_ROOM)
        if wake:
            self._write(b'.')

    @property
    def grant(self):
        """The number of the latest grant, and of the batches granted."""
        return divmod(self._ring.granted.value, COUNT)

    def receive(self, grant=None):
        """Return the next message, waiting for it.

        Parameters
        ----------
        grant : tuple, optional
            A value of :attr:`grant`. If that changes, or has changed since,
            ``None`` is returned.

        Raises
        ------
        Disconnected
            If the other end is gone.

        """
        if grant is not None:
            flag, value = self._ring.granted, grant[0] * COUNT + grant[1]
            for _ in range(_LOOKS):
                if flag.value != value:
                    return None
        while not self._messages:
            if grant is not None and not flag.must_sleep(value):
                return None
            self._poll()
            self._take_in()
        return self._messages.popleft()

    def has_message(self):
        """Return whether there is one, without waiting.

        Raises
        ------
        Disconnected
            If the other end is gone.

        """
        if not self._messages:
            self._take_in()
        return bool(self._messages)

    def _take_in(self):
        data = self._read()
        if data is None:
            return
        if self._parts:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b''.join(self._parts)
            self._parts = []
        start, last = 0, len(data)
        while start < last:
            body = end = start + MESSAGE.size
            if end <= last:
                kind, number, nbytes = MESSAGE.unpack_from(data, start)
                end += nbytes
            if end > last:
                self._parts.append(data[start:])
                self._missing = end - last
                break
            if kind == FREED:
                self._free(data[body:end])
            else:
                self._messages.append((kind, number, data[body:end]))
            start = end

    def send_data(self, kind, value, number=0):
        """Send anything: arrays as they are, what is no array pickled."""
        header, buffers = encode(value)
        if len(header) > INLINE:
            buffers.append(numpy.frombuffer(header, numpy.uint8))
            header = b''
        sizes = [buffer.nbytes for buffer in buffers]
        table = struct.pack('<{}Q'.format(len(sizes)), *sizes)
        if len(sizes) > MOST_SIZES:
            buffers.insert(0, numpy.frombuffer(table, numpy.uint8))
            table = b''
        room = sum([align(buffer.nbytes) for buffer in buffers])
        segment, offset, parts = -1, 0, []
        if room <= INLINE:
            parts = [buffer.tobytes().ljust(align(buffer.nbytes), b'\0')
                     for buffer in buffers]
        else:
            self._take_in()  # regions that are free again
            segment, offset, region = self._arena.allocate(
                room, self._announce)
            start = 0
            for buffer in buffers:
                copy_into(buffer, region[start:start + buffer.nbytes])
                start += align(buffer.nbytes)
        self.send(kind, number, b''.join([
            DATA.pack(segment, offset, room, len(sizes), len(header)),
            table, header] + parts))

    def _announce(self, number, descriptor, nbytes, given_up):
        self._send_descriptor(descriptor)
        self.send(NEW_SEGMENT, number, SEGMENT.pack(nbytes, len(given_up)) +
                  struct.pack('<{}I'.format(len(given_up)), *given_up))

    def _free(self, body):
        pairs = struct.unpack('<{}Q'.format(len(body) // 8), body)
        for segment, offset in zip(pairs[::2], pairs[1::2]):
            self._arena.free(segment, offset)

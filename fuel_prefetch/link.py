"""Messages between two processes, and batches in them.

A :class:`Link` is one end of a connection. What is large in a batch lies in
memory that both processes share, see :mod:`fuel_prefetch.memory`; the rest of
it, and all else, goes through a socket.

"""
from __future__ import absolute_import, division, print_function

import errno
import select
import socket
import struct
from collections import deque
from multiprocessing import reduction

import numpy

from fuel_prefetch.arrays import copy_into, decode, encode, flat
from fuel_prefetch.memory import Arena, Views, align

# Bytes of a batch up to which copying it through the socket takes less time
# than keeping account of a region in the shared memory.
INLINE = 2 ** 14

MESSAGE = struct.Struct('<BIQ')  # kind, number, bytes that follow
DATA = struct.Struct('<iQII')  # segment or -1, offset, buffers, header bytes
OWED = struct.Struct('<I')  # batches, in MORE
SEGMENT = struct.Struct('<QI')  # bytes, segments given up

# Kinds of messages. From the parent:
MORE = 1  # read so many batches; and regions that are free again
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


def pair():
    """Return two connected ends: for each, the sockets of a link."""
    here, there = socket.socketpair()
    # Descriptors have a connection of their own, as they come beside bytes
    # of a stream and are lost if these are read in the ordinary way.
    descriptors_here, descriptors_there = socket.socketpair()
    return (here, descriptors_here), (there, descriptors_there)


class Disconnected(Exception):
    """The other end is gone."""


class Link(object):
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
        self._parts = []  # of a message that isn't complete
        self._missing = 0  # bytes of it
        self._messages = deque()
        self.arena = Arena()
        self.views = Views()

    def fileno(self):
        return self._socket.fileno()

    def send(self, kind, number=0, body=b''):
        """Send a message.

        Raises
        ------
        Disconnected
            If the other end is gone.

        """
        try:
            self._socket.sendall(MESSAGE.pack(kind, number, len(body)) + body)
        except socket.error as error:
            raise Disconnected(str(error))

    def receive(self, timeout=None):
        """Return the next message, waiting for it.

        Returns
        -------
        message : tuple or None
            Kind, number and body; ``None`` if none came within `timeout`
            seconds.

        Raises
        ------
        Disconnected
            If the other end is gone, and all it had sent was received.

        """
        while not self._messages:
            data = self._read(timeout)
            if data is None:
                return None
            self._split(data)
        return self._messages.popleft()

    def _read(self, timeout):
        while True:
            # Tried first: where it matters, there is something to be had.
            try:
                data = self._socket.recv(_CHUNK, socket.MSG_DONTWAIT)
            except socket.error as error:
                if error.errno not in (errno.EAGAIN, errno.EINTR):
                    raise Disconnected(str(error))
            else:
                if not data:
                    raise Disconnected('the connection was closed')
                return data
            if not self.wait(timeout):
                return None

    def wait(self, timeout=None):
        """Wait until something can be received; return whether it can."""
        try:
            return bool(self._messages or self._poller.poll(
                None if timeout is None else 1000 * timeout))
        except select.error:  # interrupted, on 2.7
            return True

    def _split(self, data):
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
            self._messages.append((kind, number, data[body:end]))
            start = end

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

    # Batches

    def send_data(self, kind, value, number=0):
        """Send anything: arrays as they are, what is no array pickled."""
        header, buffers = encode(value)
        if len(header) > INLINE:
            buffers.append(numpy.frombuffer(header, numpy.uint8))
            header = b''
        sizes = [buffer.nbytes for buffer in buffers]
        room = sum(map(align, sizes))
        if room <= INLINE:
            place = -1, 0
            parts = [flat(buffer).tobytes().ljust(align(nbytes), b'\0')
                     for buffer, nbytes in zip(buffers, sizes)]
        else:
            segment, offset, region = self.arena.allocate(
                room, self._announce)
            place = segment, offset
            parts = []
            start = 0
            for buffer, nbytes in zip(buffers, sizes):
                copy_into(buffer, region[start:start + nbytes])
                start += align(nbytes)
        self.send(kind, number, b''.join(
            [DATA.pack(*(place + (len(sizes), len(header)))),
             struct.pack('<{}Q'.format(len(sizes)), *sizes), header] + parts))

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
        segment, offset, count, header_size = DATA.unpack_from(body)
        sizes = struct.unpack_from('<{}Q'.format(count), body, DATA.size)
        start = DATA.size + 8 * count
        header = body[start:start + header_size]
        room = sum(map(align, sizes))
        if not room:
            memory = numpy.empty(0, numpy.uint8)
        elif segment < 0:
            memory = numpy.frombuffer(
                body, numpy.uint8, room, start + header_size).copy()
        else:
            memory = self.views.view(segment, offset, room, most)
        buffers = []
        start = 0
        for nbytes in sizes:
            buffers.append(memory[start:start + nbytes])
            start += align(nbytes)
        if not header:
            header = buffers.pop().tobytes()
        return decode(header, buffers)

    def _announce(self, number, descriptor, nbytes, given_up):
        reduction.send_handle(self._descriptors, descriptor, None)
        self.send(NEW_SEGMENT, number, SEGMENT.pack(nbytes, len(given_up)) +
                  struct.pack('<{}I'.format(len(given_up)), *given_up))

    def attach(self, number, body):
        """Take in a segment that the other end announced."""
        nbytes, count = SEGMENT.unpack_from(body)
        given_up = struct.unpack_from('<{}I'.format(count), body, SEGMENT.size)
        self.views.attach(number, reduction.recv_handle(self._descriptors),
                          nbytes, given_up)

    def freed(self):
        """Return, for the other end, the regions that are free again."""
        freed = self.views.freed
        pairs = []
        while freed:
            pairs.extend(freed.popleft())
        return struct.pack('<{}Q'.format(len(pairs)), *pairs)

    def free(self, body):
        """Take back the regions that the other end has set free."""
        pairs = struct.unpack('<{}Q'.format(len(body) // 8), body)
        for segment, offset in zip(pairs[::2], pairs[1::2]):
            self.arena.free(segment, offset)

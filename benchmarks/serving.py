"""Servers, each in a process of its own, and what reads from them.

``python -m benchmarks.serving WHICH ADDRESS NBYTES COUNT`` is one of the
servers; it serves until it is killed.

"""
from __future__ import absolute_import, division, print_function

import os
import subprocess
import sys

import numpy
import zmq
from six.moves import range

from fuel_prefetch import RemoteDataStream, serve
from benchmarks.streams import CountedStream


class Server(object):
    """A server's process, for a `with` statement."""
    def __init__(self, which, address, nbytes, count=0):
        self.args = [sys.executable, '-W', 'ignore', '-m',
                     'benchmarks.serving', which, address, str(nbytes),
                     str(count)]

    def __enter__(self):
        with open(os.devnull, 'w') as null:
            self.process = subprocess.Popen(self.args, stderr=null)
        return self

    def __exit__(self, *exc_info):
        self.process.kill()
        self.process.wait()


def push(address, array):
    """Push an array for ever: what bare pyzmq does at its best."""
    socket = zmq.Context().socket(zmq.PUSH)
    socket.set_hwm(10)
    socket.bind(address)
    while True:
        socket.send(array, copy=array.nbytes < 2 ** 16)


def reply(address, array):
    """Answer each request with an array."""
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.bind(address)
    while True:
        identity, _ = socket.recv_multipart()
        socket.send(identity, zmq.SNDMORE)
        socket.send(array, copy=array.nbytes < 2 ** 16)


def fuels(address, array):
    """Fuel's `start_server`, but for its log and its choice of address."""
    from fuel.server import send_arrays
    socket = zmq.Context().socket(zmq.PUSH)
    socket.set_hwm(10)
    socket.bind(address)
    while True:
        send_arrays(socket, (array,))


class Reader(object):
    """A socket that was connected, and reads."""
    def __init__(self, kind, address):
        self.context = zmq.Context()
        self.socket = self.context.socket(kind)
        self.socket.set_hwm(10)
        self.socket.connect(address)

    def pull(self, count):
        for _ in range(count):
            numpy.frombuffer(self.socket.recv(copy=False).buffer, 'uint8')

    def request(self, count, depth=3):
        for _ in range(depth):
            self.socket.send(b'more')
        for number in range(count):
            self.socket.recv()
            if number + depth < count:
                self.socket.send(b'more')

    def fuels(self, count):
        from fuel.server import recv_arrays
        for _ in range(count):
            recv_arrays(self.socket)

    def close(self):
        self.context.destroy(0)


def epoch(stream):
    """Read an epoch of ours."""
    for _ in stream.get_epoch_iterator():
        pass


def remote(address):
    return RemoteDataStream(address)


def main(which, address, nbytes, count):
    array = numpy.zeros(int(nbytes), 'uint8')
    if which == 'ours':
        serve(CountedStream(int(count), nbytes=int(nbytes)), address)
    else:
        {'push': push, 'reply': reply, 'fuels': fuels}[which](address, array)


if __name__ == '__main__':
    main(*sys.argv[1:])

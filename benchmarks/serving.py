"""Servers, each in a process of its own, and what reads from them.

``python -m benchmarks.serving WHICH ADDRESS NBYTES COUNT`` is one of the
servers, ``... client ADDRESS`` a client of ours; each until it is killed.

"""
from __future__ import absolute_import, division, print_function

import os
import subprocess
import sys
from itertools import cycle

import zmq
from six.moves import range

from fuel_prefetch import RemoteDataStream, serve
from benchmarks.streams import CountedStream


class Process(object):
    """A process of this module, for a `with` statement."""
    def __init__(self, *args):
        self.args = [sys.executable, '-W', 'ignore', '-m',
                     'benchmarks.serving'] + [str(arg) for arg in args]

    def __enter__(self):
        with open(os.devnull, 'w') as null:
            self.process = subprocess.Popen(
                self.args, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=null)
        return self

    def __exit__(self, *exc_info):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def begin(self):
        """Have a client read an epoch."""
        self.process.stdin.write(b'go\n')
        self.process.stdin.flush()

    def end(self):
        """Wait until it has."""
        self.process.stdout.readline()


def together(clients):
    """Have client processes share an epoch."""
    for client in clients:
        client.begin()
    for client in clients:
        client.end()


# The servers, all of which send the same arrays. Large ones aren't copied.

def push(address, arrays):
    """Push for ever: what bare pyzmq does at its best."""
    socket = zmq.Context().socket(zmq.PUSH)
    socket.set_hwm(10)
    socket.bind(address)
    for array in cycle(arrays):
        socket.send(array, copy=array.nbytes < 2 ** 16)


def reply(address, arrays):
    """Answer each request with an array."""
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.bind(address)
    for array in cycle(arrays):
        identity, _ = socket.recv_multipart()
        socket.send(identity, zmq.SNDMORE)
        socket.send(array, copy=array.nbytes < 2 ** 16)


def fuels(address, arrays):
    """Fuel's `start_server`, but for its log and its choice of address."""
    from fuel.server import send_arrays
    socket = zmq.Context().socket(zmq.PUSH)
    socket.set_hwm(10)
    socket.bind(address)
    for array in cycle(arrays):
        send_arrays(socket, (array,))


def read_epochs(address):
    """Read an epoch of ours for each line of the standard input."""
    stream = RemoteDataStream(address)
    for _ in iter(sys.stdin.readline, ''):
        for _ in stream.get_epoch_iterator():
            pass
        print('done')
        sys.stdout.flush()


class Reader(object):
    """A socket that was connected, and reads `count` arrays."""
    def __init__(self, kind, address, count, nbytes):
        self.count = count
        self.copy = nbytes < 2 ** 16
        self.context = zmq.Context()
        self.socket = self.context.socket(kind)
        self.socket.set_hwm(10)
        self.socket.connect(address)

    def receive(self):
        if self.copy:
            return self.socket.recv()
        return self.socket.recv(copy=False).buffer

    def pull(self):
        for _ in range(self.count):
            yield self.receive()

    def request(self, depth=3):
        for _ in range(depth):
            self.socket.send(b'more')
        for number in range(self.count):
            yield self.receive()
            if number + depth < self.count:
                self.socket.send(b'more')

    def fuels(self):
        from fuel.server import recv_arrays
        for _ in range(self.count):
            yield recv_arrays(self.socket)

    def close(self):
        self.context.destroy(0)


def main(which, address, nbytes=0, count=0):
    if which == 'client':
        return read_epochs(address)
    stream = CountedStream(int(count), nbytes=int(nbytes))
    if which == 'ours':
        serve(stream, address)
    else:
        {'push': push, 'reply': reply, 'fuels': fuels}[which](
            address, [array for array, in stream.batches])


if __name__ == '__main__':
    main(*sys.argv[1:])

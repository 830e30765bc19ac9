"""What the tests of servers have in common: a proxy, and a quick client."""
from __future__ import absolute_import, division, print_function

import select
import socket
import threading

import zmq

from fuel_prefetch import RemoteDataStream, StreamServer, connection
from tests import ConcurrentTestCase

LOCAL = 'tcp://127.0.0.1:*'


class ServerTestCase(ConcurrentTestCase):
    """A test case with servers and clients that are stopped at its end."""
    @classmethod
    def setUpClass(cls):
        # pyzmq keeps a thread from the first large message on.
        context = zmq.Context()
        ends = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        ends[0].bind('inproc://first')
        ends[1].connect('inproc://first')
        ends[0].send(bytearray(2 ** 20), copy=False)
        ends[1].recv()
        context.destroy(0)

    def setUp(self):
        super(ServerTestCase, self).setUp()
        retry = connection.RETRY
        self.addCleanup(setattr, connection, 'RETRY', retry)
        connection.RETRY = .2  # to be quicker, not to be right

    def serve(self, stream, address=LOCAL, **kwargs):
        """Return a server of `stream` that has started."""
        server = StreamServer(stream, address, **kwargs)
        server.start()
        self.addCleanup(server.stop)
        return server

    def connect(self, server, **kwargs):
        """Return a client of a server, or of what has its address."""
        kwargs.setdefault('timeout', 10.)
        client = RemoteDataStream(server.address, **kwargs)
        self.addCleanup(client.close, .1)
        return client

    def remote(self, stream, **kwargs):
        """Return a client of a new server of `stream`."""
        return self.connect(self.serve(stream), **kwargs)


def vanish(client):
    """Close a client's socket, as if its process had been killed."""
    client._connection._socket.close(0)
    client._connection = None


class Proxy(threading.Thread):
    """Passes a port's bytes on to another one, until it is told to cut.

    Attributes
    ----------
    address : str
        Where it listens.

    """
    def __init__(self, address):
        super(Proxy, self).__init__()
        self.daemon = True
        self._port = int(address.rsplit(':', 1)[1])
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(('127.0.0.1', 0))
        self._listener.listen(10)
        self._wake, self._waker = socket.socketpair()
        self.address = 'tcp://127.0.0.1:{}'.format(
            self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._other = {}
        self._after = None
        self.cuts = 0
        self.start()

    def cut(self):
        """Break all connections now."""
        self._waker.send(b'c')

    def cut_after(self, nbytes):
        """Break them when so many more bytes have passed."""
        with self._lock:
            self._after = nbytes

    def close(self):
        self._waker.send(b'q')
        self.join(10)

    def run(self):
        while True:
            readable = select.select(
                [self._listener, self._wake] + list(self._other), [], [])[0]
            if self._wake in readable:
                word = self._wake.recv(1)
                self._cut()
                if word == b'q':
                    break
                continue
            for source in readable:
                if source is self._listener:
                    self._accept()
                elif source in self._other:
                    self._pass_on(source)
        for end in (self._listener, self._wake, self._waker):
            end.close()

    def _accept(self):
        near = self._listener.accept()[0]
        try:
            far = socket.create_connection(('127.0.0.1', self._port))
        except socket.error:
            near.close()
            return
        self._other[near], self._other[far] = far, near

    def _pass_on(self, source):
        try:
            data = source.recv(2 ** 16)
            with self._lock:
                if self._after is not None:
                    self._after -= len(data)
                    if self._after <= 0:
                        self._after, data = None, b''
            if data:
                self._other[source].sendall(data)
                return
        except socket.error:
            pass
        self._cut()

    def _cut(self):
        self.cuts += bool(self._other)
        for end in list(self._other):
            end.close()
        self._other.clear()

"""What comes from the network: whatever it is, it is taken or refused."""
from __future__ import absolute_import, division, print_function

import logging
import os
import random
import shutil
import stat
import tempfile
import zlib

import numpy
import six
import zmq
from six.moves import range

from fuel_prefetch import (
    PrefetchError, PrefetchTimeout, RemoteDataStream, StreamServer,
    connection, keys, wire)
from fuel_prefetch.compression import restore
from fuel_prefetch.sharing import Desk
from tests import numbers, wait_until
from tests.serving import LOCAL, ServerTestCase

CASES = int(os.environ.get('FUEL_PREFETCH_FUZZ', 3000))


class FakeSupply(object):
    """Takes commands, and has what a test puts there."""
    def __init__(self):
        self.said = []

    def command(self, *words):
        self.said.append(words)

    def permit(self, count):
        pass


def requests(rng):
    """Return real requests, with details where there are some."""
    kind = rng.choice(sorted(wire.REQUESTS))
    frames = [wire.head(kind, rng.randrange(4), *[
        rng.choice([0, 1, 2, 5, 2 ** 63]) for _ in range(3)])]
    if kind == wire.HELLO:
        frames += wire.pack({'name': u'x', 'codecs': [u'zlib']})
    elif kind == wire.LOAD:
        frames += wire.pack(rng.choice([u'../x', u'0' * 32, u'']))
    return frames


def answers(rng):
    """Return a real answer of a server."""
    batch = rng.choice([
        (numpy.zeros(300),), (1, u'text', None), ({'a': [1.5]},),
        (numpy.array([1, 2], object), numpy.zeros((2, 2))),
        (numpy.ma.masked_array([1], [True]),)])
    item = wire.pack_batch(batch, rng.choice([None, 'zlib']))
    frames = item.message(1, 0)
    if rng.random() < .5:  # as if they were large
        frames = [frames[0][:32]] + item.frames
    return [bytes(bytearray(frame)) for frame in frames]


def mutated(rng, frames):
    """Return frames with some damage."""
    frames = list(frames)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(frames))
        frame = bytearray(frames[at])
        what = rng.randrange(7)
        if what == 0 and frame:
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        elif what == 1:
            del frame[rng.randrange(len(frame) + 1):]
        elif what == 2:
            frame += bytearray(rng.randrange(256) for _ in range(9))
        elif what == 3:
            frame = bytearray(rng.randrange(256)
                              for _ in range(rng.randrange(60)))
        elif what == 4 and len(frames) > 1:
            del frames[at]
            continue
        elif what == 5:
            frames.insert(at, bytes(frame))
        elif frame:
            start = rng.randrange(len(frame))
            frame[start:start + 8] = b'\xff' * 8
        frames[at] = bytes(frame)
    return frames


class TestMessages(ServerTestCase):
    def test_requests_of_anyone(self):
        """The desk does what it is asked, or raises Malformed."""
        rng = random.Random(1)
        sent = []
        refused = 0
        for number in range(CASES):
            if number % 200 == 0:
                supply = FakeSupply()
                desk = Desk(supply, lambda *words: sent.append(words), 3,
                            bool(number % 400), {'checkpoints': True},
                            lambda: 0.)
                desk.supplied('begin', None)
            frames = requests(rng)
            if rng.random() < .6:
                frames = mutated(rng, frames)
            if rng.random() < .1:
                desk.supplied('item', wire.pack_batch((number,)))
                desk.pump()
            if rng.random() < .05:
                desk.supplied(rng.choice(['begin', 'over', 'reset']), None)
            try:
                desk.handle(rng.choice([b'a', b'b', b'c']),
                            wire.parse_request(frames))
            except wire.Malformed:
                refused += 1
        self.assertGreater(refused, CASES // 10)
        self.assertTrue(sent)
        self.assertTrue(all(words[0] in (
            'begin', 'go_on', 'reset', 'next_epoch', 'save', 'write', 'load')
            for words in supply.said))

    def test_answers_of_anyone(self):
        """A client decodes a batch, or raises Malformed."""
        rng = random.Random(2)
        refused = 0
        for _ in range(CASES):
            frames = mutated(rng, answers(rng))
            try:
                message = wire.parse(frames[0] if frames else b'',
                                     frames[1:], wire.ANSWERS)
                if rng.random() < .9:
                    wire.unpack_batch(message, 10 ** 6)
                else:
                    wire.unpack_ending(message.frames)
            except wire.Malformed:
                refused += 1
        self.assertGreater(refused, CASES // 2)

    def test_limits(self):
        good = wire.head(wire.NEXT)
        for frames in [
                [], [b''], [good[:-1]], [good + b'x'], [good] * 3,
                [good, b'x' * 2 ** 16], [b'XX' + good[2:]],
                [wire.head(wire.BATCH)], [wire.head(0)]]:
            self.assertRaises(wire.Malformed, wire.parse_request, frames)

    def test_small_frames_come_with_the_head(self):
        arrays = (numpy.arange(5), numpy.zeros(wire.SMALL), numpy.arange(7))
        for count, frames in [(1, 1), (2, 2), (3, 3)]:
            item = wire.pack_batch(arrays[:count])
            sent = item.message(7, 8)
            self.assertEqual(len(sent), frames)
            message = wire.parse(sent[0], sent[1:], wire.ANSWERS)
            self.assertEqual((message.call, message.a), (7, 8))
            self.assertEqual(len(message.frames), 1 + count)
            for one, other in zip(wire.unpack_batch(message), arrays):
                numpy.testing.assert_array_equal(one, other)
        first = wire.head(wire.BATCH)
        parts = b'\0' * 4 * (wire.MOST_FRAMES + 1)
        self.assertRaises(wire.Malformed, wire.parse, first + parts, [],
                          wire.ANSWERS)

    def test_a_small_message_does_not_unfold(self):
        """Nothing larger than was announced, and allowed, is allocated."""
        bomb = zlib.compress(b'\0' * 10 ** 7)
        self.assertRaises(ValueError, restore, 1, bomb, 1000)
        sizes = numpy.array([2 ** 40], '>u8').tobytes()
        header = wire.pack_batch((numpy.zeros(9),)).frames[0]
        message = wire.Message(wire.BATCH, 0, 0, 0, 1, [header, sizes, bomb])
        self.assertRaises(wire.Malformed, wire.unpack_batch, message)

    def test_many_clients(self):
        desk = Desk(FakeSupply(), lambda *words: None, 3, False, {},
                    lambda: 0.)
        hello = wire.parse_request([wire.head(wire.HELLO)] + wire.pack({}))
        for number in range(wire.MOST_CLIENTS + 50):
            desk.handle(str(number).encode('ascii'), hello)
        self.assertEqual(len(desk.clients), wire.MOST_CLIENTS)


class TestGarbage(ServerTestCase):
    def stranger(self, server):
        context = zmq.Context()
        self.addCleanup(context.destroy, 0)
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(server.address)
        return socket

    def test_one_that_sends_garbage_is_dropped_and_logged(self):
        server = self.serve(numbers(100))
        client = self.connect(server)
        good = self.connect(server)
        iterator = client.get_epoch_iterator()
        read = good.get_epoch_iterator()
        self.assertEqual(next(iterator), (0,))
        log = []
        handler = logging.Handler()
        handler.emit = lambda record: log.append(record.getMessage())
        logger = logging.getLogger('fuel_prefetch.server')
        logger.addHandler(handler)
        self.addCleanup(logger.removeHandler, handler)
        client._connection._send([b'garbage'])
        self.assertEqual(sorted(value for value, in read),
                         list(range(100)))
        self.assertTrue(any('garbage' in line for line in log), log)
        with self.assertRaises(PrefetchError):
            for _ in range(9):
                next(iterator)

    def test_a_server_survives_anything(self):
        server = self.serve(numbers(5))
        rng = random.Random(3)
        stranger = self.stranger(server)
        for _ in range(300):
            frames = requests(rng)
            stranger.send_multipart(
                mutated(rng, frames) if rng.random() < .9 else frames)
        # Bytes that aren't ZeroMQ's, and frames that are too large.
        host, port = server.address[6:].split(':')
        import socket as sockets
        plain = sockets.create_connection((host, int(port)))
        plain.sendall(b'GET / HTTP/1.0\r\n\r\n' * 1000)
        plain.close()
        huge = self.stranger(server)
        huge.send(b'x' * (wire.MOST_REQUEST_BYTES + 1))
        stranger.close(0)
        client = self.connect(server)
        wait_until(lambda: server._answering.desk.refused >= 1)
        client._connect().shake_hands()
        self.assertEqual([value for value, in self.read(client)],
                         [0, 1, 2, 3, 4])

    def read(self, client):
        # The stranger may have been in an epoch, and it is gone.
        while True:
            read = list(client.get_epoch_iterator())
            if len(read) == 5:
                return read

    def test_other_version(self):
        server = self.serve(numbers(5))
        stranger = self.stranger(server)
        head = bytearray(wire.head(wire.HELLO))
        head[2] = 9
        stranger.send(bytes(head))
        self.assertTrue(stranger.poll(10000))
        answer = stranger.recv_multipart()
        message = wire.parse(answer[0], answer[1:], wire.ANSWERS)
        self.assertEqual(message.kind, wire.REFUSED)
        self.assertIn('version 9', wire.unpack(message.frames))

    def test_server_that_answers_garbage(self):
        context = zmq.Context()
        self.addCleanup(context.destroy, 0)
        router = context.socket(zmq.ROUTER)
        port = router.bind_to_random_port('tcp://127.0.0.1')
        for garbage in ([b'x'], [wire.head(wire.WELCOME)],
                        [wire.head(wire.WELCOME), b'{}'],
                        [wire.head(wire.WELCOME)] + wire.pack({})):
            client = RemoteDataStream('tcp://127.0.0.1:{}'.format(port),
                                      timeout=10.)

            def answer():
                identity = router.recv_multipart()[0]
                router.send_multipart([identity] + garbage)
            thread = self.start(answer)
            self.assertRaises((PrefetchError, ValueError), getattr, client,
                              'sources')
            self.join(thread)


class TestKeys(ServerTestCase):
    def setUp(self):
        super(TestKeys, self).setUp()
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def make(self, name):
        path = os.path.join(self.folder, name)
        keys.make_keys(path)
        return path

    def test_files(self):
        path = self.make('one')
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        public, secret = keys.read_secret('keys', path)
        self.assertEqual((len(public), len(secret)), (40, 40))
        self.assertEqual(keys.read_keys('keys', path + '.pub'),
                         (public, None))
        self.assertRaises(OSError, keys.make_keys, path)
        for wrong in path + '.pub', path + '.none', self.folder, 1:
            with six.assertRaisesRegex(self, ValueError, '^keys'):
                keys.read_secret('keys', wrong)
        os.chmod(path, 0o644)
        with six.assertRaisesRegex(self, ValueError, 'chmod'):
            keys.read_secret('keys', path)

    def test_both_sides_are_authenticated(self):
        server_key, good, bad = map(self.make, ['server', 'good', 'bad'])
        server = self.serve(numbers(3), keys=server_key,
                            clients=[good + '.pub'])
        client = self.connect(server, keys=good,
                              server_key=server_key + '.pub')
        self.assertEqual(list(client.get_epoch_iterator()),
                         [(0,), (1,), (2,)])
        for arguments in [
                {}, {'keys': bad, 'server_key': server_key + '.pub'},
                {'keys': good, 'server_key': bad + '.pub'}]:
            self.assertRaises(
                PrefetchTimeout, getattr,
                self.connect(server, timeout=.5, **arguments), 'sources')

    def test_addresses(self):
        for address in ('tcp://127.0.0.1:1', 'tcp://localhost:*',
                        'tcp://[::1]:5', 'ipc:///tmp/x', 'tcp://127.9.9.9:1'):
            keys.check_address('address', address, wildcard=True)
            self.assertTrue(keys.is_local(address), address)
        for address in ('tcp://*:1', 'tcp://0.0.0.0:1', 'tcp://[::]:1',
                        'tcp://eth0:1', 'tcp://127.evil.example:1',
                        'tcp://localhost.example:1', 'tcp://127.0.0.1.x:1'):
            keys.check_address('address', address, wildcard=True)
            self.assertFalse(keys.is_local(address), address)
            self.assertRaises(ValueError, StreamServer, numbers(1), address)
            StreamServer(numbers(1), address, insecure=True)
        for address in ('tcp://*:1', 'tcp://x', 'tcp://x:99999',
                        'inproc://x', 'ipc://', 'tcp://a:1;b:2', ''):
            self.assertRaises(ValueError, keys.check_address, 'address',
                              address)

    def test_ipc(self):
        address = 'ipc://' + os.path.join(self.folder, 'socket')
        server = self.serve(numbers(3), address)
        self.assertEqual(len(list(self.connect(
            server).get_epoch_iterator())), 3)


class TestSequence(ServerTestCase):
    def test_lost_and_repeated_messages(self):
        """Whatever comes, each number is taken in once, in order."""
        rng = random.Random(4)
        for _ in range(200):
            sequence = connection.Sequence(7, 3)
            count = rng.randrange(20)
            taken, at = [], 0
            while not sequence.complete:
                at = rng.choice([at + 1, at + 1, rng.randrange(count + 1)])
                at = min(at, count)
                kind = wire.END if at == count else wire.BATCH
                run = rng.choice([7, 7, 7, 6])
                expected = len(taken) + len(sequence.arrived)
                missing = sequence.sort_in(
                    wire.Message(kind, run, at, 0, 0, []))
                self.assertEqual(missing, run == 7 and at > expected)
                if sequence.arrived and rng.random() < .5:
                    taken.append(sequence.take().a)
            taken += [message.a for message in sequence.arrived]
            self.assertEqual(taken, list(range(count)))

    def test_take_that_was_cut_short(self):
        sequence = connection.Sequence(7, 3)
        for number in range(3):
            sequence.sort_in(wire.Message(wire.BATCH, 7, number, 0, 0, []))
        sequence.taken += 1  # and then Ctrl-C came
        sequence.tidy()
        self.assertEqual([sequence.take().a, sequence.take().a], [1, 2])


class TestLocal(ServerTestCase):
    def test_default_address_is_local(self):
        self.assertTrue(keys.is_local(StreamServer(numbers(1)).address))
        self.assertTrue(keys.is_local(LOCAL))

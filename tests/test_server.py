"""A stream served to clients: one, several, and what may happen to them."""
from __future__ import absolute_import, division, print_function

import gc
import os
import pickle
import shutil
import sys
import tempfile
import threading
import weakref
from zlib import crc32

import numpy
import six
import zmq
from fuel.datasets import IndexableDataset
from fuel.schemes import ShuffledScheme
from fuel.streams import DataStream
from fuel.transformers import Mapping
from six.moves import range

from fuel_prefetch import (
    BackgroundDataStream, PrefetchError, PrefetchTimeout, RemoteDataStream,
    RemoteError, StreamServer, WorkerDied, connection, wire)
from fuel_prefetch.keys import make_keys
from tests import Gated, IteratorStream, Raise, numbers, wait_until
from tests.serving import LOCAL, Proxy, ServerTestCase, vanish


def values(iterator):
    return [value for value, in iterator]


def shuffled():
    return DataStream(
        IndexableDataset(numpy.arange(12)),
        iteration_scheme=ShuffledScheme(12, 2, rng=numpy.random.RandomState(
            1)))


def listed(*items):
    """Return a stream with an epoch of items, errors among them."""
    def give(items):
        return Playing(items)
    return IteratorStream(lambda: give(items))


class Playing(six.Iterator):
    def __init__(self, items):
        self.items = list(items)

    def __next__(self):
        if not self.items:
            raise StopIteration
        item = self.items.pop(0)
        if isinstance(item, Raise):
            raise item.error
        return item,


class Ending(six.Iterator):
    """Gives a number, and then an end with arguments."""
    def __init__(self, args):
        self.args = args
        self.count = 0

    def __next__(self):
        self.count += 1
        if self.count > 1:
            raise StopIteration(*self.args)
        return 0,


class Picky(Exception):
    """An error that needs more than a message."""
    def __init__(self, one, other):
        super(Picky, self).__init__(one, other)


class Interrupted(object):
    """A socket on which Ctrl-C comes before a message's second frame."""
    def __init__(self, socket):
        self.socket = socket

    def recv(self, flags=0, copy=True):
        if not flags and not copy:
            raise KeyboardInterrupt
        return self.socket.recv(flags, copy=copy)

    def __getattr__(self, name):
        return getattr(self.socket, name)


def helper_that_fails(example):
    if example[0] == 3:
        raise ValueError('three')
    return example


class TestOneClient(ServerTestCase):
    def test_epochs(self):
        for max_store in (1, 2, 10):
            client = self.remote(numbers(20), max_store=max_store)
            for _ in range(3):
                self.assertEqual(values(client.get_epoch_iterator()),
                                 list(range(20)))

    def test_end_is_sticky(self):
        client = self.remote(numbers(2))
        iterator = client.get_epoch_iterator()
        self.assertEqual(values(iterator), [0, 1])
        self.assertRaises(StopIteration, next, iterator)
        self.assertRaises(StopIteration, client.get_data)

    def test_arguments_of_the_end(self):
        for args in [(), ('why', 3, 2.5, None), (object(),)]:
            stream = IteratorStream(lambda: Ending(args))
            iterator = self.remote(stream).get_epoch_iterator()
            self.assertEqual(next(iterator), (0,))
            with self.assertRaises(StopIteration) as caught:
                next(iterator)
            sent = () if len(args) == 1 else args
            self.assertEqual(caught.exception.args, sent)
            with self.assertRaises(StopIteration) as caught:
                next(iterator)
            self.assertEqual(caught.exception.args, ())

    def test_constructor_connects_to_nothing(self):
        client = RemoteDataStream('tcp://127.0.0.1:1', timeout=.2)
        self.assertIsNone(client._connection)
        with six.assertRaisesRegex(self, PrefetchTimeout,
                                   'tcp://127.0.0.1:1 within 0.2'):
            client.sources
        self.assertIsNone(client._connection)

    def test_what_the_stream_says_of_itself(self):
        dataset = IndexableDataset(
            numpy.zeros((4, 2)), axis_labels={'data': ('batch', 'width')})
        stream = DataStream(
            dataset, iteration_scheme=ShuffledScheme(4, 2))
        client = self.remote(stream)
        self.assertEqual(client.sources, ('data',))
        self.assertEqual(client.axis_labels, {'data': ('batch', 'width')})
        self.assertIs(client.produces_examples, False)
        self.assertIs(self.remote(numbers(1)).produces_examples, True)

    def test_transformers_above(self):
        client = self.remote(numbers(5))
        mapped = BackgroundDataStream(
            Mapping(client, lambda example: (example[0] + 1,)))
        self.addCleanup(mapped.close)
        self.assertEqual(values(mapped.get_epoch_iterator()),
                         [1, 2, 3, 4, 5])
        self.assertEqual(next(mapped.get_epoch_iterator(as_dict=True)),
                         {'data': 1})

    def test_epoch_left_early(self):
        """Nothing of it comes in the next one."""
        stream = numbers(100)
        client = self.remote(stream)
        first = client.get_epoch_iterator()
        self.assertEqual([next(first), next(first)], [(0,), (1,)])
        second = client.get_epoch_iterator()
        self.assertEqual(next(second), (0,))
        self.assertRaises(StopIteration, next, first)
        self.assertEqual(values(second), list(range(1, 100)))

    def test_one_call_for_each(self):
        stream = listed(0, 1)
        client = self.remote(stream)
        values(client.get_epoch_iterator())
        client.get_epoch_iterator()
        client.get_epoch_iterator()
        client.close()
        self.assertEqual(stream.calls.count('get_epoch_iterator'), 3)
        self.assertEqual(stream.overlaps, 0)

    def test_no_more_epochs(self):
        def begin():
            raise StopIteration
        client = self.remote(IteratorStream(begin))
        for _ in range(2):
            self.assertRaises(StopIteration, client.get_epoch_iterator)

    def test_epoch_that_fails_to_begin(self):
        def begin():
            raise KeyError('key')
        client = self.remote(IteratorStream(begin))
        with self.assertRaises(KeyError) as caught:
            client.get_epoch_iterator()
        self.assertIsInstance(caught.exception, RemoteError)

    def test_errors(self):
        """They come in their place, once, and the stream goes on."""
        stream = listed(0, Raise(ValueError('one', 1)), 2, Raise(
            Picky('a', 'b')), 4)
        client = self.remote(stream)
        iterator = client.get_epoch_iterator()
        self.assertEqual(next(iterator), (0,))
        with self.assertRaises(ValueError) as caught:
            next(iterator)
        error = caught.exception
        self.assertIsInstance(error, RemoteError)
        self.assertEqual(error.args, ('one', 1))
        self.assertEqual(error.type_name, 'ValueError')
        self.assertEqual(next(iterator), (2,))
        with six.assertRaisesRegex(self, RemoteError, 'Picky'):
            next(iterator)
        self.assertEqual(values(iterator), [4])
        again = pickle.loads(pickle.dumps(error))
        self.assertIsInstance(again, ValueError)
        self.assertEqual((str(again), again.args), (str(error), error.args))

    def test_traceback_of_the_server(self):
        client = self.remote(Mapping(numbers(5), helper_that_fails))
        iterator = client.get_epoch_iterator()
        with six.assertRaisesRegex(self, ValueError, 'three') as caught:
            values(iterator)
        self.assertIn('helper_that_fails', str(caught.exception))
        self.assertEqual(values(iterator), [4])

    def test_errors_of_every_builtin_type(self):
        kinds = [kind for kind in vars(six.moves.builtins).values()
                 if isinstance(kind, type) and issubclass(kind, Exception) and
                 'Stop' not in kind.__name__ and
                 'Group' not in kind.__name__]
        errors = []
        for kind in kinds:
            try:
                errors.append(kind('text'))
            except TypeError:  # of a decoder
                errors.append(kind(*[
                    'ascii', b'x' if kind is UnicodeDecodeError else u'x', 0,
                    1, 'why'][4 - 3 * (kind is UnicodeTranslateError) - 4 * (
                        kind is not UnicodeTranslateError):]))
        client = self.remote(listed(*map(Raise, errors)))
        iterator = client.get_epoch_iterator()
        for kind in kinds:
            try:
                next(iterator)
            except kind as error:
                self.assertIsInstance(error, RemoteError)
        self.assertEqual(values(iterator), [])

    def test_nobody_ends_this_process_from_afar(self):
        client = self.remote(listed(Raise(SystemExit(3)), Raise(
            KeyboardInterrupt()), 2))
        iterator = client.get_epoch_iterator()
        for name in ('SystemExit', 'KeyboardInterrupt'):
            with six.assertRaisesRegex(self, RemoteError, name):
                next(iterator)
        self.assertEqual(values(iterator), [2])

    def test_nothing_is_read_past_an_error_before_it_is_asked_for(self):
        gated = Gated([(0,), Raise(ValueError()), (2,)])
        client = self.remote(IteratorStream(lambda: gated))
        iterator = client.get_epoch_iterator()
        gated.permit(2)
        self.assertEqual(next(iterator), (0,))
        self.assertRaises(ValueError, next, iterator)
        self.assertEqual(client._connection.status()['errors'], 1)
        self.assertEqual(gated.asked, 2)
        gated.permit(2)
        self.assertEqual(values(iterator), [2])

    def test_the_pool_is_bounded(self):
        gated = Gated((number,) for number in range(100))
        gated.permit(101)
        server = self.serve(IteratorStream(lambda: gated), max_store=4)
        client = self.connect(server, max_store=2)
        iterator = client.get_epoch_iterator()
        next(iterator)
        # The one in hand, two here, four there; the next is not begun.
        gated.wait_asked(5)
        self.assertTrue(wait_until(
            lambda: client._connection.status()['pool'] >= 2))
        self.assertLessEqual(gated.asked, 7)
        self.assertEqual(values(iterator), list(range(1, 100)))

    def test_reset_and_next_epoch(self):
        stream = listed(0, 1, 2)
        client = self.remote(stream)
        next(client.get_epoch_iterator())
        client.reset()
        self.assertEqual(values(client.get_epoch_iterator()), [0, 1, 2])
        client.next_epoch()
        client.reset()
        calls = [call for call in stream.calls if call != 'get_data']
        self.assertEqual(calls, [
            'get_epoch_iterator', 'reset', 'get_epoch_iterator',
            'next_epoch', 'reset'])

    def test_random_calls(self):
        """As on the bare stream, whatever the sequence of calls."""
        for seed in range(15):
            rng = numpy.random.RandomState(seed)
            bare = shuffled()
            remote = self.remote(shuffled())
            iterators = None
            for _ in range(30):
                action = rng.choice(['epoch', 'next', 'next', 'next', 'rest',
                                     'reset', 'next_epoch'])
                if action == 'epoch' or iterators is None:
                    iterators = [stream.get_epoch_iterator()
                                 for stream in (bare, remote)]
                elif action == 'next':
                    self.assertEqual(*[
                        repr(next(iterator, None)) for iterator in iterators])
                elif action == 'rest':
                    self.assertEqual(*[
                        repr(list(iterator)) for iterator in iterators])
                    iterators = None
                else:
                    for stream in (bare, remote):
                        getattr(stream, action)()
                    iterators = None
            remote.close()

    def test_many_epochs_of_random_sizes(self):
        """None ends early, alone or shared, though messages are lost."""
        module = sys.modules['fuel_prefetch.server']
        self.addCleanup(setattr, module, 'SEND_LIMIT', module.SEND_LIMIT)
        module.SEND_LIMIT = 6  # and it sends up to 11 at a time
        connection.RETRY = .01
        for depths in [(2,), (1, 10)]:
            rng = numpy.random.RandomState(0)
            made = [[(epoch, number, rng.randint(0, 255, rng.choice(
                [0, 10, 70000, 500000], p=[.4, .4, .15, .05])).astype('uint8'))
                     for number in range(rng.randint(0, 30))]
                    for epoch in range(100)]
            left = iter(made)
            of_all = self.serve(IteratorStream(lambda: iter(next(left))))
            threads = [self.start(self.read_all, self.connect(
                of_all, max_store=depth)) for depth in depths]
            read = sum([self.join(thread) for thread in threads], [])
            if len(depths) > 1:
                read.sort()
            self.assertEqual(read, [
                (epoch, number, crc32(array))
                for batches in made for epoch, number, array in batches])

    def read_all(self, client):
        read = []
        while True:
            try:
                iterator = client.get_epoch_iterator()
            except StopIteration:
                return read
            read += [(epoch, number, crc32(array))
                     for epoch, number, array in iterator]

    def test_values(self):
        """Of every dtype and container; or a refusal that names it."""
        ragged = numpy.empty(2, object)
        ragged[:] = [numpy.arange(3), numpy.arange(2.)]
        cases = [
            numpy.array(5), numpy.zeros((0, 4)),
            numpy.ones((20, 3), order='F'),
            numpy.arange(20)[::3], numpy.arange(3, dtype='>i4'),
            numpy.array([True, False]), numpy.array(['a', 'bc']),
            numpy.array(['2001-01-01'], 'M8[D]'),
            numpy.array([(1, 2.)], [('a', 'i4'), ('b', 'f8')]), ragged,
            numpy.ma.masked_array([1, 2], [True, False]), 3, [1, [2, (3,)]],
            None, (), u'text', b'bytes', numpy.float32(2), 10 ** 30,
            numpy.zeros((300, 300)), numpy.zeros((300, 300)).T[::2]]
        client = self.remote(listed(*(cases + [object()])))
        iterator = client.get_epoch_iterator()
        for case in cases:
            value, = next(iterator)
            self.assertIs(type(value), type(case))
            self.assertEqual(repr(value), repr(case))
            if isinstance(case, numpy.ndarray):
                self.assertEqual((value.dtype, value.shape),
                                 (case.dtype, case.shape))
                self.assertTrue(value.flags.writeable)
        with six.assertRaisesRegex(self, TypeError, "source '?data"):
            next(iterator)
        self.assertEqual(values(iterator), [])

    def test_refilled_memory(self):
        """With copy=True each batch is what it was when it was read."""
        def fill():
            memory = numpy.zeros(50000)
            for number in range(10):
                memory[:] = number
                yield memory,
        server = self.serve(IteratorStream(fill), copy=True)
        client = self.connect(server)
        self.assertEqual([value[-1] for value in values(
            client.get_epoch_iterator())], list(range(10)))

    def test_compression(self):
        noise = numpy.random.RandomState(0).bytes(200000)
        arrays = [numpy.zeros(10 ** 6), numpy.zeros(3),
                  numpy.frombuffer(noise, 'uint8'), numpy.zeros((0, 3))]
        for name in ('zlib', 'blosc2', 'lz4'):
            try:
                wire.codec_of(name)
            except ImportError:
                continue
            server = self.serve(listed(*arrays), compression=name)
            client = self.connect(server)
            for one, other in zip(values(client.get_epoch_iterator()),
                                  arrays):
                numpy.testing.assert_array_equal(one, other)
                self.assertTrue(one.flags.writeable)
            sent = client._connection.status()['nbytes']
            self.assertLess(sent, 250000)
            # At most one percent more than it is.
            item = wire.pack_batch((arrays[2],), name)
            self.assertLess(item.nbytes, 1.01 * len(noise))

    def test_missing_codec(self):
        server = self.serve(numbers(1))
        client = self.connect(server)
        wait_until(lambda: server._answering.desk is not None)
        server._answering.desk.info['compression'] = 'nosuch'
        with six.assertRaisesRegex(self, PrefetchError,
                                   'compresses with nosuch'):
            client.sources

    def test_several_threads(self):
        client = self.remote(numbers(200))
        iterator = client.get_epoch_iterator()
        threads = [self.start(values, iterator) for _ in range(4)]
        read = sum([self.join(thread) for thread in threads], [])
        self.assertEqual(sorted(read), list(range(200)))

    def test_timeout_loses_nothing(self):
        gated = Gated([(0,), (1,)])
        client = self.remote(IteratorStream(lambda: gated))
        iterator = client.get_epoch_iterator()
        client._connection.timeout = .05
        with six.assertRaisesRegex(self, PrefetchTimeout, 'batch 0'):
            next(iterator)
        client._connection.timeout = 10.
        gated.permit(3)
        self.assertEqual(values(iterator), [0, 1])

    def test_interrupt_in_the_midst_of_a_message(self):
        """Ctrl-C between two of its frames: it is asked for again."""
        client = self.remote(listed(*[
            numpy.full(20000, number) for number in range(6)]))
        iterator = client.get_epoch_iterator()
        next(iterator)
        bare = client._connection._socket
        client._connection._socket = Interrupted(bare)
        self.assertRaises(KeyboardInterrupt, next, iterator)
        client._connection._socket = bare
        self.assertEqual([int(value[0]) for value in values(iterator)],
                         [1, 2, 3, 4, 5])

    def test_item_that_comes_as_the_server_goes_to_sleep(self):
        """Too early to be rung for, and too late to be handed out."""
        gated = Gated([(0,)])
        server = self.serve(IteratorStream(lambda: gated))
        iterator = self.connect(server).get_epoch_iterator()
        supply, desk = server._answering.supply, server._answering.desk
        pump, came = desk.pump, []

        def slowly():
            waiting = pump()
            if waiting and not came:
                self.assertFalse(supply.awaited)
                gated.permit(1)
                came.append(wait_until(lambda: supply.results))
            return waiting
        desk.pump = slowly
        self.assertEqual(next(iterator), (0,))
        self.assertEqual(came, [True])
        gated.permit(1)

    def test_epoch_that_begins_late(self):
        """One that timed out is had once more, not begun twice."""
        begin = threading.Event()

        def late():
            begin.wait(10)
            return Playing([0])
        stream = IteratorStream(late)
        client = self.remote(stream)
        client.sources
        client._connection.timeout = .05
        self.assertRaises(PrefetchTimeout, client.get_epoch_iterator)
        client._connection.timeout = 10.
        begin.set()
        self.assertEqual(values(client.get_epoch_iterator()), [0])
        self.assertEqual(stream.calls.count('get_epoch_iterator'), 1)

    def test_close_wakes_who_waits(self):
        gated = Gated([])
        client = self.remote(IteratorStream(lambda: gated))
        iterator = client.get_epoch_iterator()
        reader = self.start(next, iterator)
        gated.wait_asked(1)
        client.close()
        with six.assertRaisesRegex(self, PrefetchError, 'closed'):
            self.join(reader)
        self.assertRaises(PrefetchError, next, iterator)
        client.close()
        gated.permit(9)

    def test_use_after_close(self):
        client = self.remote(numbers(3))
        next(client.get_epoch_iterator())
        client.close()
        self.assertRaises(PrefetchError, client.get_data)
        self.assertEqual(values(client.get_epoch_iterator()), [0, 1, 2])

    def test_forgotten_client_is_collected(self):
        server = self.serve(numbers(100), client_timeout=.1)
        client = RemoteDataStream(server.address, timeout=10.)
        client.cycle = client
        next(client.get_epoch_iterator())
        reference = weakref.ref(client)
        del client
        gc.collect()
        self.assertIsNone(reference())
        other = self.connect(server)
        self.assertTrue(wait_until(
            lambda: other.sources and
            len(other._connection.status()['clients']) == 1))

    def test_forgotten_server_is_collected(self):
        server = StreamServer(numbers(3), LOCAL)
        server.start()
        answering = server._answering
        del server
        gc.collect()
        self.assertTrue(answering.ended.wait(10))

    def test_arguments(self):
        for arguments in [
                {'address': 'udp://127.0.0.1:1'}, {'address': 5},
                {'address': 'tcp://127.0.0.1:*'}, {'address': 'tcp://*:1'},
                {'max_store': 0}, {'timeout': 0}, {'timeout': 'x'},
                {'server_key': 'x'}, {'keys': 'nosuch', 'server_key': 'x'},
                {'keys': 1, 'server_key': 'x'},
                {'on_restart': 'x'}, {'keys': 'x'},
                {'max_bytes': 0}]:
            with six.assertRaisesRegex(self, ValueError,
                                       '|'.join(arguments) + '|server_key'):
                RemoteDataStream(**dict({'address': 'ipc://x'}, **arguments))
        for arguments in [
                {'address': 'tcp://0.0.0.0:5557'}, {'address': 'tcp://*:1'},
                {'max_store': 0}, {'compression': 'x'}, {'clients': 'x'},
                {'client_timeout': 0}, {'client_timeout': 'x'},
                {'client_timeout': None}, {'data_stream': None},
                {'data_stream': DataStream}, {'insecure': 'no'},
                {'broadcast': 1}, {'copy': None}, {'compression': ['zlib']},
                {'checkpoints': 5}, {'keys': 1, 'clients': 'x'},
                {'keys': 'nosuch', 'clients': 'x'}]:
            with six.assertRaisesRegex(self, ValueError,
                                       '|'.join(arguments)):
                StreamServer(**dict({'data_stream': numbers(1)},
                                    **arguments))
        with six.assertRaisesRegex(self, ValueError, "timeout .*'x'"):
            StreamServer(numbers(1)).stop('x')
        with six.assertRaisesRegex(self, ValueError, 'timeout .*-1'):
            RemoteDataStream('ipc://x').close(-1)

    def test_files_of_public_keys(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, 'server.key')
        make_keys(path)
        for clients in path + '.pub', [path + '.pub'], folder:
            StreamServer(numbers(1), keys=path, clients=clients)
        for clients in 5, [5], path + '.none', [path, path + '.none']:
            with six.assertRaisesRegex(self, ValueError, '^clients'):
                StreamServer(numbers(1), keys=path, clients=clients)

    def test_pickle_between_epochs(self):
        client = self.remote(numbers(3))
        unused = pickle.loads(pickle.dumps(pickle.loads(
            pickle.dumps(client))))
        self.assertIsNone(unused._connection)
        self.addCleanup(unused.close)
        self.assertEqual(values(client.get_epoch_iterator()), [0, 1, 2])
        again = pickle.loads(pickle.dumps(client))
        self.addCleanup(again.close)
        self.assertEqual(values(unused.get_epoch_iterator()), [0, 1, 2])
        self.assertEqual(values(again.get_epoch_iterator()), [0, 1, 2])

    def test_pickle_mid_epoch_needs_checkpoints(self):
        client = self.remote(numbers(3))
        iterator = client.get_epoch_iterator()
        next(iterator)
        with six.assertRaisesRegex(self, PrefetchError, '--checkpoints'):
            pickle.dumps((client, iterator))
        self.assertEqual(values(iterator), [1, 2])

    def test_fork(self):
        client = self.remote(numbers(10))
        iterator = client.get_epoch_iterator()
        next(iterator)

        def child():
            try:
                next(iterator)
            except PrefetchError:
                copy = pickle.loads(pickle.dumps(client))
                if next(copy.get_epoch_iterator(), None) is None:
                    return 2
                copy.close()
                return 0
            return 3
        self.assertEqual(self.in_child(lambda: 0), 0)
        self.assertEqual(next(iterator), (1,))
        self.assertEqual(self.in_child(child), 0)
        self.assertEqual(next(iterator), (2,))


class TestSeveralClients(ServerTestCase):
    def test_each_batch_goes_to_one(self):
        server = self.serve(numbers(300))
        clients = [self.connect(server, max_store=1 + number)
                   for number in range(3)]
        for _ in range(3):
            iterators = [client.get_epoch_iterator() for client in clients]
            threads = [self.start(values, iterator)
                       for iterator in iterators]
            read = [self.join(thread) for thread in threads]
            self.assertEqual(sorted(sum(read, [])), list(range(300)))
            for iterator in iterators:
                self.assertRaises(StopIteration, next, iterator)

    def test_an_epoch_ends_for_all_before_the_next_begins(self):
        server = self.serve(numbers(3))
        one, other = self.connect(server, max_store=1), self.connect(server)
        first, second = one.get_epoch_iterator(), other.get_epoch_iterator()
        self.assertEqual(next(first), (0,))  # and 1 and 2 may be here, too
        reader = self.start(values, second)
        self.assertTrue(wait_until(
            lambda: self.report(server)['phase'] == 'over'))
        self.assertTrue(reader.is_alive())  # what `first` has is not done
        rest = values(first)
        self.assertEqual(sorted([0] + rest + self.join(reader)), [0, 1, 2])

    def report(self, server):
        return server._answering.desk.report()

    def test_late_joiner(self):
        server = self.serve(numbers(50), max_store=2)
        one, late = self.connect(server), self.connect(server)
        first = one.get_epoch_iterator()
        read = [next(first)[0] for _ in range(5)]
        second = late.get_epoch_iterator()
        reader = self.start(values, second)
        read += values(first) + self.join(reader)
        self.assertEqual(sorted(read), list(range(50)))
        self.assertEqual(self.report(server)['epoch'], 1)

    def test_one_that_left_early_waits_for_the_next_epoch(self):
        server = self.serve(numbers(20), max_store=1)
        one, other = self.connect(server), self.connect(server)
        first, second = one.get_epoch_iterator(), other.get_epoch_iterator()
        next(first)
        next(second)
        other._connection.timeout = .05
        with six.assertRaisesRegex(self, PrefetchTimeout, 'an epoch'):
            other.get_epoch_iterator()
        other._connection.timeout = 10.
        self.assertEqual(len(values(first)), 19)  # those it gave back, too
        third = other.get_epoch_iterator()
        self.assertEqual(values(third), list(range(20)))

    def leave(self, how):
        server = self.serve(numbers(30), client_timeout=.2)
        one, other = self.connect(server, max_store=5), self.connect(server)
        first, second = one.get_epoch_iterator(), other.get_epoch_iterator()
        done = [next(first)[0] for _ in range(4)][:-1]
        how(one)
        self.assertEqual(sorted(done + values(second)), list(range(30)))

    def test_what_one_that_closes_had_goes_to_another(self):
        self.leave(RemoteDataStream.close)

    def test_what_one_that_dies_had_goes_to_another(self):
        self.leave(vanish)

    def test_the_last_one_to_die_leaves_its_epoch_to_who_comes(self):
        server = self.serve(numbers(10), client_timeout=.1)
        one = self.connect(server)
        first = one.get_epoch_iterator()
        self.assertEqual([next(first), next(first)], [(0,), (1,)])
        vanish(one)
        self.assertTrue(wait_until(
            lambda: not self.report(server)['clients']))
        other = self.connect(server)
        self.assertEqual(values(other.get_epoch_iterator()),
                         list(range(1, 10)))

    def test_the_last_one_to_close_leaves_the_epoch_early(self):
        server = self.serve(numbers(10))
        one = self.connect(server)
        next(one.get_epoch_iterator())
        one.close()
        self.assertEqual(
            values(self.connect(server).get_epoch_iterator()),
            list(range(10)))

    def test_errors_go_to_each(self):
        server = self.serve(Mapping(numbers(5), helper_that_fails))
        clients = [self.connect(server) for _ in range(2)]
        for _ in range(2):  # the server goes on, with the next epoch too
            iterators = [client.get_epoch_iterator() for client in clients]
            read = []

            def until_error(iterator):
                with six.assertRaisesRegex(self, ValueError,
                                           'three') as caught:
                    for value, in iterator:
                        read.append(value)
                self.assertEqual(caught.exception.type_name, 'ValueError')
                self.assertIn('helper_that_fails', str(caught.exception))
                read.extend(values(iterator))
            for thread in [self.start(until_error, iterator)
                           for iterator in iterators]:
                self.join(thread)
            self.assertEqual(sorted(read), [0, 1, 2, 4])

    def test_reset_is_refused_while_others_read(self):
        server = self.serve(numbers(5))
        one, other = self.connect(server), self.connect(server)
        next(one.get_epoch_iterator())
        with six.assertRaisesRegex(self, RemoteError, 'other clients'):
            other.reset()

    def test_broadcast(self):
        server = self.serve(numbers(100), broadcast=True, max_store=3)
        clients = [self.connect(server) for _ in range(3)]
        iterators = [client.get_epoch_iterator() for client in clients]
        for iterator in iterators:
            self.assertEqual(next(iterator), (0,))
        threads = [self.start(values, iterator) for iterator in iterators[1:]]
        # They can't get far from the slow one.
        self.assertEqual(values(iterators[0]), list(range(1, 100)))
        for thread in threads:
            self.assertEqual(self.join(thread), list(range(1, 100)))


class TestTrouble(ServerTestCase):
    def address(self):
        server = StreamServer(numbers(1), LOCAL).start()
        server.stop()
        return server.address

    def test_server_that_starts_later(self):
        address = self.address()
        client = RemoteDataStream(address, timeout=10.)
        self.addCleanup(client.close)
        reader = self.start(lambda: values(client.get_epoch_iterator()))
        self.assertTrue(wait_until(lambda: client._connection is not None))
        self.serve(numbers(4), address)
        self.assertEqual(self.join(reader), [0, 1, 2, 3])

    def restart(self, gently, **kwargs):
        server = self.serve(numbers(50), max_store=1)
        client = self.connect(server, max_store=1, **kwargs)
        iterator = client.get_epoch_iterator()
        next(iterator)
        if gently:
            server.stop()
        else:
            server._answering.desk.clients.clear()
            server.stop()
        self.serve(numbers(60), server.address)
        return client, iterator

    def test_restart(self):
        for gently in (True, False):
            client, iterator = self.restart(gently)
            with six.assertRaisesRegex(self, WorkerDied, client.address):
                values(iterator)
            self.assertRaises(WorkerDied, next, iterator)
            self.assertEqual(values(client.get_epoch_iterator()),
                             list(range(60)))

    def test_restart_of_the_epoch(self):
        for gently in (True, False):
            client, iterator = self.restart(gently, on_restart='epoch')
            read = values(iterator)
            self.assertEqual(read[-60:], list(range(60)))
            self.assertLessEqual(len(read), 62)

    def test_server_that_is_gone(self):
        server = self.serve(numbers(50))
        client = self.connect(server, timeout=.3)
        iterator = client.get_epoch_iterator()
        next(iterator)
        server._answering.desk.clients.clear()  # so that it says nothing
        server.stop()
        with six.assertRaisesRegex(self, PrefetchTimeout,
                                   'batch .*' + server.address):
            values(iterator)

    def test_cut_connections(self):
        """What was lost is asked for again, and comes once."""
        server = self.serve(IteratorStream(
            lambda: Playing([numpy.full(20000, number)
                             for number in range(60)])))
        proxy = Proxy(server.address)
        self.addCleanup(proxy.close)
        client = self.connect(proxy)
        for cut in (1000, 200000, 3000000):
            proxy.cut_after(cut)
            read = values(client.get_epoch_iterator())
            self.assertEqual([int(value[7]) for value in read],
                             list(range(60)))
        self.assertGreaterEqual(proxy.cuts, 3)

    def test_one_that_was_given_up_is_told(self):
        server = self.serve(numbers(50), client_timeout=.1)
        proxy = Proxy(server.address)
        client = self.connect(proxy)
        iterator = client.get_epoch_iterator()
        next(iterator)
        proxy.close()
        self.assertTrue(wait_until(
            lambda: not server._answering.desk.clients))
        client.timeout = client._connection.timeout = .2
        self.assertRaises(PrefetchTimeout, values, iterator)

    def test_stop_hands_over_what_was_sent(self):
        server = self.serve(numbers(50), max_store=9)
        client = self.connect(server, max_store=9)
        iterator = client.get_epoch_iterator()
        self.assertEqual(next(iterator), (0,))
        self.assertTrue(wait_until(lambda: server._answering.desk.report()[
            'clients'][0]['in_hand'] == 10))
        server.stop()
        self.assertEqual([next(iterator)[0] for _ in range(9)],
                         list(range(1, 10)))
        self.assertRaises(WorkerDied, next, iterator)

    def test_stop_while_the_stream_reads_for_ever(self):
        gated = Gated([])
        server = self.serve(IteratorStream(lambda: gated))
        client = self.connect(server, timeout=10.)
        iterator = client.get_epoch_iterator()
        reader = self.start(next, iterator)
        gated.wait_asked(1)
        self.within(5, server.stop, .1)
        self.assertRaises(WorkerDied, self.join, reader)
        gated.permit(9)

    def test_address_in_use(self):
        server = self.serve(numbers(1))
        self.assertRaises(zmq.ZMQError, StreamServer(
            numbers(1), server.address).start)

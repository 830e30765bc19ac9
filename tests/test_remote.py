"""Pickles of a remote stream, and the ends of the processes that use one."""
from __future__ import absolute_import, division, print_function

import os
import pickle
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap

import numpy
import six
from fuel.datasets import IndexableDataset
from fuel.schemes import ShuffledScheme
from fuel.streams import DataStream
from fuel.transformers import Mapping
from six.moves import range

from fuel_prefetch import BackgroundDataStream, PrefetchError, RemoteError
from tests import Caller, IteratorStream, numbers, wait_until
from tests.serving import ServerTestCase, vanish

INTERRUPTED = 1 if sys.version_info < (3, 8) else -signal.SIGINT
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def values(iterator):
    return [value for value, in iterator]


def fails_at_three(example):
    if example[0] == 3:
        raise ValueError('three')
    return example


def shuffled():
    return DataStream(
        IndexableDataset(numpy.arange(40)),
        iteration_scheme=ShuffledScheme(40, 2, rng=numpy.random.RandomState(
            1)))


class Ending(six.Iterator):
    """Gives two numbers, and then an end with a reason."""
    def __init__(self):
        self.count = 0

    def __next__(self):
        self.count += 1
        if self.count > 2:
            raise StopIteration('why')
        return self.count - 1,


class TestCheckpoints(ServerTestCase):
    def setUp(self):
        super(TestCheckpoints, self).setUp()
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def load(self, data):
        client, iterator = pickle.loads(data)
        self.addCleanup(client.close)
        self.assertIsNone(client._connection)
        return client, iterator

    def test_every_position(self):
        """The same server, or a new one, goes on where the pickle was made."""
        bare = shuffled()
        epochs = [[batch.tolist() for batch in values(
            bare.get_epoch_iterator())] for _ in range(3)]
        server = self.serve(BackgroundDataStream(shuffled(), max_store=3),
                            checkpoints=self.folder, max_store=4)
        client = self.connect(server)
        iterator = client.get_epoch_iterator()
        pickles = []
        for batch in epochs[0]:
            self.assertEqual(next(iterator)[0].tolist(), batch)
            pickles.append(pickle.dumps((client, iterator)))
        self.assertEqual(values(iterator), [])
        pickles.append(pickle.dumps((client, iterator)))
        self.assertLess(max(map(len, pickles)), 2000)
        client.close()
        for position in (1, 5, 18, 20, 21):
            if position == 18:
                server.stop()
                server = self.serve(shuffled(), server.address,
                                    checkpoints=self.folder)
            loaded, its_iterator = self.load(pickles[position - 1])
            rest = [batch.tolist() for batch in values(its_iterator)]
            self.assertEqual(rest, epochs[0][position:])
            for epoch in epochs[1:]:
                self.assertEqual([batch.tolist() for batch in values(
                    loaded.get_epoch_iterator())], epoch)
            loaded.close()

    def test_pickle_of_a_pickle_that_was_not_used(self):
        server = self.serve(numbers(9), checkpoints=self.folder)
        client = self.connect(server)
        iterator = client.get_epoch_iterator()
        next(iterator)
        data = pickle.dumps((client, iterator))
        for _ in range(2):
            data = pickle.dumps(self.load(data))
        self.assertEqual(values(iterator), list(range(1, 9)))
        client.close()
        loaded, its_iterator = self.load(data)
        self.assertEqual([next(its_iterator), loaded.get_data()],
                         [(1,), (2,)])
        again, iterator = self.load(pickle.dumps((loaded, its_iterator)))
        loaded.close()
        self.assertEqual(values(iterator), list(range(3, 9)))

    def test_left_early_after_loading(self):
        server = self.serve(numbers(4), checkpoints=self.folder)
        client = self.connect(server)
        next(client.get_epoch_iterator())
        loaded = pickle.loads(pickle.dumps(client))
        client.close()
        self.addCleanup(loaded.close)
        self.assertEqual(values(loaded.get_epoch_iterator()), [0, 1, 2, 3])

    def test_error_that_was_read_ahead(self):
        for before in (2, 3, 4):
            server = self.serve(Mapping(numbers(6), fails_at_three),
                                checkpoints=self.folder)
            client = self.connect(server)
            iterator = client.get_epoch_iterator()
            for _ in range(before):
                try:
                    next(iterator)
                except ValueError:
                    pass
            data = pickle.dumps((client, iterator))
            client.close()
            _, loaded = self.load(data)
            if before == 2:
                self.assertEqual(next(loaded), (2,))
            if before < 4:
                self.assertRaises(ValueError, next, loaded)
            self.assertEqual(values(loaded), [4, 5])

    def test_arguments_of_an_end_that_was_read_ahead(self):
        server = self.serve(IteratorStream(Ending), checkpoints=self.folder)
        client = self.connect(server)
        iterator = client.get_epoch_iterator()
        next(iterator)
        self.assertTrue(wait_until(
            lambda: server._answering.desk.phase == 'over'))
        data = pickle.dumps((client, iterator))
        client.close()
        _, loaded = self.load(data)
        self.assertEqual(next(loaded), (1,))
        with self.assertRaises(StopIteration) as caught:
            next(loaded)
        self.assertEqual(caught.exception.args, ('why',))

    def test_stream_that_can_not_be_pickled(self):
        server = self.serve(Mapping(numbers(6), lambda example: example),
                            checkpoints=self.folder)
        client = self.connect(server)
        iterator = client.get_epoch_iterator()
        next(iterator)
        with self.assertRaises(RemoteError):
            pickle.dumps((client, iterator))
        self.assertEqual(values(iterator), [1, 2, 3, 4, 5])

    def test_not_while_others_read(self):
        server = self.serve(numbers(6), checkpoints=self.folder)
        one, other = self.connect(server), self.connect(server)
        next(one.get_epoch_iterator())
        iterator = other.get_epoch_iterator()
        with six.assertRaisesRegex(self, RemoteError, 'other clients'):
            pickle.dumps(other)
        del iterator

    def test_a_checkpoint_that_is_none(self):
        server = self.serve(numbers(6), checkpoints=self.folder)
        client = self.connect(server)
        iterator = client.get_epoch_iterator()
        next(iterator)
        data = pickle.dumps((client, iterator))
        client.close()
        names = os.listdir(self.folder)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.join(
            self.folder, names[0])).st_mode), 0o600)
        for name in names:
            os.remove(os.path.join(self.folder, name))
        _, loaded = self.load(data)
        with six.assertRaisesRegex(self, PrefetchError, 'no checkpoint'):
            next(loaded)
        client = self.connect(server)
        connection = client._connect()
        for name in (u'../x', u'/etc/passwd', u'0' * 32, u'\0'):
            client._checkpoint = name
            self.assertRaises(RemoteError, client._load, connection)

    def test_folder_of_others(self):
        os.chmod(self.folder, 0o777)
        with six.assertRaisesRegex(self, ValueError, 'checkpoints'):
            self.serve(numbers(1), checkpoints=self.folder)

    def test_old_ones_are_removed(self):
        server = self.serve(numbers(6), checkpoints=self.folder)
        server._checkpoints.keep = 3
        client = self.connect(server)
        next(client.get_epoch_iterator())
        for _ in range(6):
            pickle.dumps(client)
        self.assertEqual(len(os.listdir(self.folder)), 3)

    def test_a_killed_client_goes_on(self):
        server = self.serve(numbers(9), checkpoints=self.folder,
                            client_timeout=.1)
        client = self.connect(server)
        iterator = client.get_epoch_iterator()
        self.assertEqual([next(iterator), next(iterator)], [(0,), (1,)])
        data = pickle.dumps((client, iterator))
        next(iterator)
        vanish(client)
        _, loaded = self.load(data)
        self.assertEqual(values(loaded), list(range(2, 9)))


PROLOGUE = '''\
from __future__ import print_function
import gc, os, signal, sys, threading
import fuel_prefetch
from fuel_prefetch import RemoteDataStream, StreamServer, serve
from tests import numbers, IteratorStream, Gated
'''


class TestExit(ServerTestCase):
    """Each in a process of its own, which ends in time and says no more."""
    def run_script(self, script, code=0, interrupt=False, argument=''):
        env = dict(os.environ, PYTHONPATH=ROOT)
        process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c',
             PROLOGUE + textwrap.dedent(script), argument],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        killer = Caller(self.kill_after, (process,))
        line = process.stdout.readline()
        killer.start()
        if interrupt:
            process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        killer.join()
        self.assertEqual(line, b'ready\n', err)
        self.assertEqual((process.returncode, out), (code, b''), err)
        if not interrupt:
            self.assertEqual(err, b'')

    def kill_after(self, process):
        if not wait_until(lambda: process.poll() is not None, 20.):
            process.kill()

    def test_server_that_never_saw_a_client(self):
        self.run_script('''
            server = StreamServer(numbers(3), 'tcp://127.0.0.1:*').start()
            print('ready'); sys.stdout.flush()
            ''')

    def test_server_and_client_left_alone(self):
        self.run_script('''
            server = StreamServer(numbers(1000), 'tcp://127.0.0.1:*').start()
            client = RemoteDataStream(server.address)
            next(client.get_epoch_iterator())
            client.cycle = client
            print('ready'); sys.stdout.flush()
            ''')

    def test_read_that_never_returns(self):
        self.run_script('''
            server = StreamServer(IteratorStream(lambda: iter(
                threading.Event().wait, 1)), 'tcp://127.0.0.1:*').start()
            client = RemoteDataStream(server.address, timeout=.3)
            iterator = client.get_epoch_iterator()
            try:
                next(iterator)
            except fuel_prefetch.PrefetchTimeout:
                print('ready'); sys.stdout.flush()
            ''')

    def test_server_that_was_killed(self):
        """The script ends while what it asked for was not sent yet."""
        self.run_killed('')

    def test_interrupt_after_the_server_was_killed(self):
        self.run_killed('list(iterator)', interrupt=True, code=INTERRUPTED)

    def run_killed(self, end, **kwargs):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        self.run_script('''
            address = 'ipc://' + sys.argv[1]
            child = os.fork()
            if not child:
                serve(numbers(1000), address)
            client = RemoteDataStream(address, timeout=60.)
            client.cycle = client
            iterator = client.get_epoch_iterator()
            next(iterator)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            print('ready'); sys.stdout.flush()
            ''' + end, argument=os.path.join(folder, 'server'), **kwargs)

    def test_interrupt_while_the_server_reads_for_ever(self):
        self.run_script('''
            server = StreamServer(IteratorStream(lambda: iter(
                threading.Event().wait, 1)), 'tcp://127.0.0.1:*').start()
            client = RemoteDataStream(server.address)
            iterator = client.get_epoch_iterator()
            print('ready'); sys.stdout.flush()
            next(iterator)
            ''', interrupt=True, code=INTERRUPTED)

    def test_interrupt_while_the_server_is_gone(self):
        self.run_script('''
            client = RemoteDataStream('tcp://127.0.0.1:1')
            print('ready'); sys.stdout.flush()
            client.get_epoch_iterator()
            ''', interrupt=True, code=INTERRUPTED)

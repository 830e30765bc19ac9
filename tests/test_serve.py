"""The commands of a server: serve, status and keygen."""
from __future__ import absolute_import, division, print_function

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from six.moves import range

from fuel_prefetch import RemoteDataStream, WorkerDied
from fuel_prefetch.bin.main import main
from tests import Caller
from tests.serving import ServerTestCase

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

MODULE = '''\
from fuel.datasets import IterableDataset
from fuel.streams import DataStream


def train():
    return DataStream(IterableDataset(range(100)))


def fail():
    raise KeyError('nothing')


ready = train()
'''


class TestCommands(ServerTestCase):
    def setUp(self):
        super(TestCommands, self).setUp()
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        with open(os.path.join(self.folder, 'mystreams.py'), 'w') as f:
            f.write(MODULE)

    def start_command(self, *args):
        """Return a server's process, its address and what takes its log."""
        process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c',
             'import sys; from fuel_prefetch.bin.main import main; '
             'sys.exit(main())', 'serve'] + list(args),
            cwd=self.folder, stderr=subprocess.PIPE,
            env=dict(os.environ, PYTHONPATH=ROOT))
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        line = process.stderr.readline().decode('ascii')
        match = re.search(r'serving \S+ at (\S+)', line)
        self.assertIsNotNone(match, line)
        reader = Caller(process.stderr.read, ())
        reader.start()
        return process, match.group(1), reader

    def test_serve_and_status(self):
        process, address, reader = self.start_command(
            'mystreams:train', '--bind', 'tcp://127.0.0.1:*',
            '--max-store', '3')
        client = RemoteDataStream(address, timeout=10.)
        self.addCleanup(client.close, .1)
        self.assertEqual(len(list(client.get_epoch_iterator())), 100)
        iterator = client.get_epoch_iterator()
        self.assertEqual(next(iterator), (0,))
        self.assertEqual(main(['status', address]), 0)
        process.send_signal(signal.SIGTERM)
        self.join(reader)
        self.assertEqual(process.wait(), 0)
        # What had been sent is here; and then it is said that it was all.
        with self.assertRaises(WorkerDied):
            for number in range(1, 100):
                self.assertEqual(next(iterator), (number,))
        log = reader.result.decode('ascii')
        for words in ('client .* came', 'epoch 1 began',
                      'epoch 1 ended: 100 batches', 'stopped'):
            self.assertTrue(re.search(words, log), log)
        self.assertEqual(main(['status', address, '--timeout', '.1']), 1)

    def test_bad_options_of_status(self):
        for args in [['--keys', 'k'], ['--server-key', 'k'],
                     ['--keys', 'nosuch', '--server-key', 'nosuch']]:
            self.assertEqual(main(['status', 'ipc://x'] + args), 2)
        for args in [['ipc://x', '--timeout', value]
                     for value in ('x', '0', 'nan', 'inf')] + [
                ['tcp://*:5557'], ['udp://127.0.0.1:1']]:
            with self.assertRaises(SystemExit) as caught:
                main(['status'] + args)
            self.assertEqual(caught.exception.code, 2)

    def test_interrupt(self):
        process, _, reader = self.start_command(
            'mystreams:ready', '--bind', 'tcp://127.0.0.1:*')
        process.send_signal(signal.SIGINT)
        self.join(reader)
        self.assertEqual(process.wait(), 0)

    def test_bad_arguments(self):
        self.addCleanup(os.chdir, os.getcwd())
        self.addCleanup(signal.signal, signal.SIGTERM,
                        signal.getsignal(signal.SIGTERM))
        os.chdir(self.folder)
        for code, args in [
                (2, ['mystreams:nosuch']), (2, ['nosuch:train']),
                (2, ['mystreams']), (1, ['mystreams:fail']),
                (2, ['mystreams:ready', '--bind', 'tcp://0.0.0.0:5557']),
                (2, ['mystreams:ready', '--clients', 'nosuch']),
                (2, ['mystreams:ready', '--keys', 'nosuch',
                     '--clients', 'nosuch']),
                (1, ['mystreams:ready', '--bind', 'ipc:///nosuch/socket'])]:
            self.assertEqual(main(['serve'] + args), code)
        for args in ['--max-store', '0'], ['--bind', 'udp://127.0.0.1:1']:
            with self.assertRaises(SystemExit) as caught:
                main(['serve', 'mystreams:ready'] + args)
            self.assertEqual(caught.exception.code, 2)
        sys.modules.pop('mystreams', None)
        sys.path.remove(os.getcwd())

    def test_keygen(self):
        path = os.path.join(self.folder, 'server.key')
        self.assertEqual(main(['keygen', path]), 0)
        self.assertEqual(main(['keygen', path]), 1)
        self.assertEqual(sorted(os.listdir(self.folder))[1:3],
                         ['server.key', 'server.key.pub'])

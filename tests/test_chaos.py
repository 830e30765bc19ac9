"""Clients and servers that are killed, and connections that are cut.

What matters is what was trained on: of every epoch that came to its end each
batch exactly once. ``make test-chaos`` does it for minutes.

"""
from __future__ import absolute_import, division, print_function

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter

import zmq
from six.moves import range

from fuel_prefetch.waiting import monotonic
from tests import wait_until
from tests.chaos import AHEAD, BATCHES
from tests.serving import Proxy, ServerTestCase

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SECONDS = float(os.environ.get('FUEL_PREFETCH_CHAOS', 1))


def free_address():
    context = zmq.Context()
    try:
        socket = context.socket(zmq.REP)
        return 'tcp://127.0.0.1:{}'.format(
            socket.bind_to_random_port('tcp://127.0.0.1'))
    finally:
        context.destroy(0)


class TestChaos(ServerTestCase):
    def setUp(self):
        super(TestChaos, self).setUp()
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.processes = []
        self.paths = []
        self.addCleanup(self.kill_all)

    def kill_all(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def run_process(self, *args):
        # On 2.7 it would inherit the proxy's connections, and keep them open.
        process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-m', 'tests.chaos'] +
            [str(arg) for arg in args], cwd=ROOT, close_fds=True)
        self.processes.append(process)
        return process

    def run_client(self, address, seconds):
        path = os.path.join(self.folder, str(len(self.paths)))
        self.paths.append(path)
        return self.run_process('train', address, path, seconds)

    def progress(self):
        return sum(os.path.getsize(path) for path in self.paths
                   if os.path.exists(path))

    def make_progress(self, nbytes):
        """Let some more be trained on."""
        target = self.progress() + nbytes
        self.assertTrue(wait_until(lambda: self.progress() >= target, 60.),
                        'nothing is trained on any more')

    def test_each_batch_is_trained_on_once(self):
        seed = random.randrange(10 ** 6)
        rng = random.Random(seed)
        address = free_address()
        proxy = Proxy(address)
        self.addCleanup(proxy.close)
        server = self.run_process('serve', address)
        ways = [(address, 0), (proxy.address, .001), (address, .004)]
        clients = [self.run_client(*way) for way in ways]
        killed = 0
        self.make_progress(3000)
        deadline = monotonic() + SECONDS
        while monotonic() < deadline or killed < 2:
            what = rng.choice(['client', 'client', 'cut', 'cut', 'server']
                              if SECONDS > 10 or killed else ['client'])
            if what == 'client':
                number = rng.randrange(3)
                clients[number].kill()
                clients[number].wait()
                clients[number] = self.run_client(*ways[number])
                killed += 1
            elif what == 'cut':
                proxy.cut_after(rng.randrange(20000))
            else:
                server.kill()
                server.wait()
                server = self.run_process('serve', address)
                killed += 1
            self.make_progress(rng.randrange(1000, 6000))
        self.kill_all()
        self.check('seed {}'.format(seed))

    def check(self, message):
        done, in_hand, ended = Counter(), Counter(), set()
        for path in self.paths:
            if not os.path.exists(path):
                continue
            with open(path) as f:
                lines = [line.split() for line in f]
            lines.append(['error', '0', '0', '0'])  # it was killed
            taken = []
            for kind, server, epoch, number in lines:
                if kind == 'batch':
                    taken.append((server, epoch, int(number)))
                    continue
                if kind == 'end':
                    ended.add((server, epoch))
                    sure = taken
                else:
                    # What one had in hand as it died, or was given up,
                    # rightly goes to another.
                    sure = taken[:-1 - AHEAD]
                    in_hand.update(taken[-1 - AHEAD:])
                done.update(sure)
                taken = []
        self.assertGreater(len(ended), 1, message)
        for server, epoch in ended:
            for number in range(BATCHES):
                batch = server, epoch, number
                self.assertLessEqual(done[batch], 1, (message, batch))
                self.assertGreaterEqual(done[batch] + in_hand[batch], 1,
                                        (message, batch))

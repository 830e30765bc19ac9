"""A Dask cluster on this machine, in processes of their own."""
from __future__ import absolute_import, division, print_function

import os
import shutil
import signal
import subprocess
import sys
import tempfile

from tests import wait_until

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Seconds for processes to start and to find each other.
STARTUP = 60.


class DaskCluster(object):
    """A scheduler and workers, each in its own process, on loopback.

    Parameters
    ----------
    workers : int
        How many.
    allowed_failures : int
        How many workers a call may cost before it is given up.

    Attributes
    ----------
    client : :class:`distributed.Client`
        A client of the cluster.

    """
    def __init__(self, workers=2, allowed_failures=3):
        from distributed import Client
        self.allowed_failures = allowed_failures
        self.directory = tempfile.mkdtemp()
        self.processes = []
        address = os.path.join(self.directory, 'scheduler.json')
        self._start('dask_scheduler', '--host', '127.0.0.1', '--port', '0',
                    '--scheduler-file', address)
        if not wait_until(lambda: os.path.exists(address), STARTUP):
            raise RuntimeError('the scheduler did not start')
        for _ in range(workers):
            self._start('dask_worker', '--nthreads', '1', '--no-nanny',
                        '--scheduler-file', address)
        self.client = Client(scheduler_file=address)
        wait_until(lambda: len(self.client.scheduler_info()['workers']) ==
                   workers, STARTUP)

    def _start(self, tool, *args):
        no_dashboard = ['--no-dashboard']
        self.processes.append(subprocess.Popen(
            [sys.executable, '-m', 'distributed.cli.' + tool] + no_dashboard +
            list(args), cwd=self.directory,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(
                [ROOT] + sys.path), LC_ALL='C.UTF-8', LANG='C.UTF-8',
                DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES=str(
                    self.allowed_failures)),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def kill_worker(self):
        """Kill a worker, which nobody starts again."""
        self.processes.pop().send_signal(signal.SIGKILL)

    def close(self):
        self.client.close()
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

"""Mappings on MPI processes, where MPI and mpi4py are installed."""
from __future__ import absolute_import, division, print_function

import os
import subprocess
import sys
import threading
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def is_there():
    """Whether there is an MPI that starts processes."""
    try:
        import mpi4py  # noqa: F401
        with open(os.devnull, 'w') as nowhere:
            return not subprocess.call(['mpiexec', '--version'],
                                       stdout=nowhere, stderr=nowhere)
    except (ImportError, OSError):
        return False


@unittest.skipUnless(is_there(), 'MPI is not installed')
class TestMPI(unittest.TestCase):
    def test_mapping(self):
        environment = dict(
            os.environ, PYTHONPATH=os.pathsep.join([ROOT] + sys.path),
            # Open MPI has to be asked twice in a container.
            OMPI_ALLOW_RUN_AS_ROOT='1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1',
            OMPI_MCA_rmaps_base_oversubscribe='1')
        process = subprocess.Popen(
            ['mpiexec', '-n', '3', sys.executable, '-W', 'ignore', '-m',
             'mpi4py.futures', '-m', 'tests.mpi_mapping'], cwd=ROOT,
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        output, errors = process.communicate()
        watchdog.cancel()
        self.assertEqual(
            output.decode().splitlines(),
            ['True 2', "[0, 1, 2, 'three', 4, 5]", 'True'], errors.decode())

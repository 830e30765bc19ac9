"""Tests of the command line, and of the demonstration as its user runs it."""
from __future__ import absolute_import, division, print_function

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import fuel_prefetch
import numpy
import six
from fuel_prefetch.bin import demo

try:
    import sklearn
except ImportError:
    sklearn = None

ROOT = os.path.dirname(os.path.dirname(
    os.path.abspath(fuel_prefetch.__file__)))


class CommandTestCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def call(self, *args):
        """Run the command; return its exit code, output and errors."""
        process = subprocess.Popen(
            [sys.executable, '-c',
             'import sys; from fuel_prefetch.bin.main import main; '
             'sys.exit(main())'] + list(args),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            universal_newlines=True,
            env=dict(os.environ, PYTHONPATH=ROOT, TMPDIR=self.folder))
        output, errors = process.communicate()
        return process.returncode, output, errors


class TestCommandLine(CommandTestCase):
    def test_version(self):
        code, output, errors = self.call('--version')
        self.assertEqual(code, 0)
        # argparse of 2.7 writes it to stderr.
        self.assertIn(fuel_prefetch.__version__, output + errors)

    def test_help(self):
        code, output, _ = self.call('demo', '--help')
        self.assertEqual(code, 0)
        for text in ('--max-store', '--epochs', '--batch-size', 'examples:',
                     'exit codes:'):
            self.assertIn(text, output)

    def test_mistakes_are_told_in_one_line(self):
        for args, name in [((), 'error'),
                           (('demo', '--epochs', '0'), '--epochs'),
                           (('demo', '--batch-size', 'x'), '--batch-size'),
                           (('demo', '--max-store', '0'), '--max-store'),
                           (('demo', '--max-store', '1.5'), '--max-store')]:
            code, output, errors = self.call(*args)
            self.assertEqual(code, 2, (args, errors))
            self.assertEqual(output, '')
            self.assertEqual(len(errors.splitlines()), 1, errors)
            self.assertIn(name, errors)


@unittest.skipIf(sklearn is None, 'scikit-learn is not installed')
class TestDemo(CommandTestCase):
    def test_both_runs_see_the_same(self):
        code, output, errors = self.call('demo', '--epochs', '12')
        self.assertEqual(code, 0, output + errors)
        digests = [line.split()[-1] for line in output.splitlines()
                   if 'digest' in line]
        self.assertEqual(len(digests), 2)
        self.assertEqual(digests[0], digests[1])
        self.assertIn('Ideal is', output)
        self.assertEqual(os.listdir(self.folder), [])  # nothing is left

    def test_data_are_kept(self):
        path = os.path.join(self.folder, 'digits.hdf5')
        for _ in range(2):  # written, and used again
            code, output, errors = self.call(
                'demo', '--epochs', '1', '--hidden', '20', '--data', path)
            # One epoch is not enough to learn the digits.
            self.assertEqual(code, 1, output + errors)
            self.assertTrue(os.path.exists(path))

    def test_other_batches_are_noticed(self):
        class Network(object):
            parameters = (numpy.zeros(1),)

        runs = [demo.Run(1., .5, .1, 3, digest, Network, .99)
                for digest in ('one', 'other')]
        six.assertRaisesRegex(self, SystemExit, 'changed the batches',
                              demo.report, *runs)

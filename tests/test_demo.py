"""Tests of the command line, and of the demonstration as its user runs it."""
from __future__ import absolute_import, division, print_function

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import weakref
from functools import partial

import numpy
import six
from six.moves import cPickle

import fuel_prefetch
from fuel.datasets import H5PYDataset
from fuel.transformers import Mapping
from fuel_prefetch import BackgroundDataStream, ParallelMapping
from fuel_prefetch.bin import demo, digits
from fuel_prefetch.bin.digits import Network
from fuel_prefetch.bin.main import COMMANDS, interrupt, make_parser

from tests import ConcurrentTestCase

try:
    import sklearn
    NO_DIGITS = False
except ImportError:
    sklearn = None
    NO_DIGITS = True

ROOT = os.path.dirname(os.path.dirname(
    os.path.abspath(fuel_prefetch.__file__)))
COMMAND = ('import sys; from fuel_prefetch.bin.main import main; '
           'sys.exit(main())')
# A stand-in for a Python without scikit-learn.
WITHOUT_SKLEARN = 'import sys; sys.modules["sklearn"] = None; ' + COMMAND


class FolderTestCase(ConcurrentTestCase):
    """A test case with a folder of its own."""
    def setUp(self):
        super(FolderTestCase, self).setUp()
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def start_command(self, *args, **kwargs):
        """Start the command in a process whose temporary files are ours."""
        return subprocess.Popen(
            [sys.executable, '-c', kwargs.get('command', COMMAND)] +
            list(args), stdout=kwargs.get('stdout', subprocess.PIPE),
            stderr=subprocess.PIPE, universal_newlines=True,
            env=dict(os.environ, PYTHONPATH=ROOT, TMPDIR=self.folder))

    def call(self, *args, **kwargs):
        """Run the command; return its exit code, output and errors."""
        process = self.start_command(*args, **kwargs)
        output, errors = process.communicate()
        return process.returncode, output, errors

    def assert_one_line(self, errors, *parts):
        self.assertEqual(len(errors.splitlines()), 1, errors)
        for part in parts:
            self.assertIn(part, errors)


class TestCommandLine(FolderTestCase):
    def parse(self, *args):
        """Return the code, output and errors with which parsing ends."""
        streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = six.StringIO(), six.StringIO()
        try:
            make_parser().parse_args(args)
        except SystemExit as stop:
            return stop.code, sys.stdout.getvalue(), sys.stderr.getvalue()
        finally:
            sys.stdout, sys.stderr = streams
        self.fail('{} was taken'.format(args))

    def test_version(self):
        code, output, errors = self.call('--version')
        self.assertEqual(code, 0)
        # argparse of 2.7 writes it to stderr.
        self.assertIn(fuel_prefetch.__version__, output + errors)

    def test_output_that_nobody_reads(self):
        """No word of it, whether it is printed at once or as Python ends."""
        for args in (['--help'], ['bench', '--list'],
                     ['bench', '--only', 'size', '--quick']):
            nobody, pipe = os.pipe()
            os.close(nobody)
            process = self.start_command(*args, stdout=pipe)
            os.close(pipe)
            errors = process.stderr.read()
            process.stderr.close()
            # Newer argparse takes no notice of it.
            self.assertIn(process.wait(), (0, 1) if len(args) == 1 else (1,))
            self.assertEqual(errors, '', args)

    def test_help(self):
        code, output, _ = self.parse('demo', '--help')
        self.assertEqual(code, 0)
        for text in ('--max-store', '--epochs', '--batch-size',
                     '(default: 10)', 'examples:', 'exit codes:'):
            self.assertIn(text, output)

    def test_help_names_the_commands(self):
        code, output, _ = self.parse('--help')
        self.assertEqual(code, 0)
        for module in COMMANDS:
            self.assertIn(module.__name__.split('.')[-1], output)
        self.assertIn('exit codes:', output)
        self.assertIn('130  interrupted', output)

    def test_unknown_options_are_told_with_the_command(self):
        for command in (['demo'], ['profile', 'a:b', '--step-time', '1ms'],
                        ['bench'], ['serve', 'a:b']):
            code, _, errors = self.parse(*(command + ['--bad']))
            self.assertEqual(code, 2)
            self.assert_one_line(errors, 'fuel-prefetch {}: error:'.format(
                command[0]), '--bad')

    def test_every_command_tells_its_exit_codes(self):
        for module in COMMANDS:
            code, output, _ = self.parse(
                module.__name__.split('.')[-1], '--help')
            self.assertEqual(code, 0)
            self.assertIn('exit codes:', output)

    def test_mistakes_are_told_in_one_line(self):
        code, output, errors = self.call('demo', '--max-store', '0')
        self.assertEqual((code, output), (2, ''))
        self.assert_one_line(errors, '--max-store', "'0'")

    def test_bad_values_are_named(self):
        for option, value in [('--epochs', '0'), ('--epochs', '1.5'),
                              ('--batch-size', '-3'), ('--hidden', 'x'),
                              ('--max-store', '-2'), ('--max-store', ''),
                              ('--backend', 'server'),
                              ('--seed', '-1'), ('--seed', str(2 ** 32)),
                              ('--data', os.path.join('nowhere', 'x'))]:
            code, _, errors = self.parse('demo', option, value)
            self.assertEqual(code, 2)
            self.assert_one_line(errors, option, "'{}'".format(value))

    def test_no_command(self):
        code, _, errors = self.parse()
        self.assertEqual(code, 2)
        self.assert_one_line(errors, 'error')

    def test_other_files_are_not_taken_for_the_digits(self):
        path = os.path.join(self.folder, 'other')
        for content in (b'', b'something'):
            with open(path, 'wb') as other:
                other.write(content)
            for name in (path, self.folder):
                code, _, errors = self.parse('demo', '--data', name)
                self.assertEqual(code, 2)
                self.assert_one_line(errors, '--data', name)

    def test_values(self):
        args = make_parser().parse_args(
            ['demo', '--max-store', '-1', '--seed', '0'])
        self.assertEqual((args.max_store, args.seed, args.data), (-1, 0, None))

    def test_without_scikit_learn(self):
        code, _, errors = self.call('demo', command=WITHOUT_SKLEARN)
        self.assertEqual(code, 1)
        self.assert_one_line(errors, 'pip install fuel-prefetch[demo]')
        self.assertEqual(os.listdir(self.folder), [])


@unittest.skipIf(NO_DIGITS, 'scikit-learn, which has the digits, is missing')
class TestDigits(FolderTestCase):
    def setUp(self):
        super(TestDigits, self).setUp()
        self.path = os.path.join(self.folder, 'digits.hdf5')
        digits.write_digits(self.path)

    def stream(self, seed=1):
        stream = digits.train_stream(self.path, 100, seed)
        self.addCleanup(stream.close)
        return stream

    def test_file(self):
        digits.check_digits(self.path)
        for split, length in [('train', 1297), ('test', 500)]:
            dataset = H5PYDataset(self.path, which_sets=(split,),
                                  load_in_memory=True)
            features, targets = dataset.data_sources
            self.assertEqual(features.shape, (length, 1, 8, 8))
            self.assertEqual(targets.shape, (length, 1))
            self.assertEqual((features.max(), targets.max()), (16, 9))
        self.assertEqual(dataset.axis_labels, {
            'features': ('batch', 'channel', 'height', 'width'),
            'targets': ('batch', 'index')})

    def test_batches(self):
        stream = self.stream()
        batches = list(stream.get_epoch_iterator())
        self.assertEqual([len(targets) for _, targets in batches],
                         [100] * 12 + [97])
        for features, _ in batches:
            self.assertEqual(features.dtype, 'float32')
            self.assertEqual(features.shape[1:], (28 * 28,))
            self.assertTrue(0 <= features.min() < .1 < features.mean())
            self.assertTrue(features.max() <= 1)
        self.assertEqual(stream.axis_labels['features'], ('batch', 'feature'))

    def test_seeds(self):
        def first(stream):
            return next(stream.get_epoch_iterator())[0]

        stream = self.stream()
        batch = first(stream)
        numpy.testing.assert_array_equal(batch, first(self.stream()))
        self.assertFalse((batch == first(self.stream(seed=2))).all())
        self.assertFalse((batch == first(stream)).all())  # the next epoch

    def test_distortion_is_pickled_with_its_state(self):
        batch = (numpy.ones((3, 1, 8, 8), 'float32'), numpy.zeros((3, 1)))
        distort = digits.Distortion(numpy.random.RandomState(1))
        distort(batch)
        copy = cPickle.loads(cPickle.dumps(distort, 2))
        numpy.testing.assert_array_equal(distort(batch)[0], copy(batch)[0])

    def test_enlarging_keeps_the_picture(self):
        with_corner = numpy.zeros((2, 1, 8, 8), 'float32')
        with_corner[1, 0, 1, 6] = 1
        enlarged, _ = digits.enlarge((with_corner, None))
        self.assertEqual(enlarged.shape, (2, 1, 28, 28))
        self.assertEqual(enlarged[0].max(), 0)
        row, column = numpy.unravel_index(enlarged[1, 0].argmax(), (28, 28))
        # The pixel covers 3.5 by 3.5 of the enlarged image.
        self.assertTrue(3.5 <= row < 7 and 21 <= column < 24.5)


@unittest.skipIf(NO_DIGITS, 'scikit-learn, which has the digits, is missing')
class TestTraining(FolderTestCase):
    def setUp(self):
        super(TestTraining, self).setUp()
        self.path = os.path.join(self.folder, 'digits.hdf5')
        digits.write_digits(self.path)
        self.args = make_parser().parse_args(
            ['demo', '--batch-size', '100', '--hidden', '50'])

    def train(self, wrap=lambda stream: stream, epochs=1):
        return demo.train(self.path, self.args, epochs, wrap)

    def test_prefetching_changes_nothing(self):
        bare = self.train(epochs=2)
        self.assertEqual(bare.batches, 2 * 13)
        for kwargs in ({'max_store': 1}, {'max_store': -1},
                       {'across_epochs': True}, {'backend': 'process'}):
            ahead = self.train(
                lambda stream: BackgroundDataStream(stream, **kwargs),
                epochs=2)
            self.assertEqual(bare.digest, ahead.digest)
            self.assertEqual(bare.accuracy, ahead.accuracy)
            for one, other in zip(bare.network.parameters,
                                  ahead.network.parameters):
                numpy.testing.assert_array_equal(one, other)

    def test_workers_change_nothing(self):
        one = self.train(epochs=2)
        self.args.workers = 3
        bare = self.train(epochs=2)
        self.assertNotEqual(bare.digest, one.digest)
        ahead = demo.train(
            self.path, self.args, 2, BackgroundDataStream,
            partial(ParallelMapping, workers=3, seed=self.args.seed))
        self.assertEqual(bare.digest, ahead.digest)

    def test_the_digest_tells_what_differs(self):
        def swap(batches):
            batches[3], batches[4] = batches[4], batches[3]

        def change(batches):
            batches[3][0][7, 100] += .5

        def cast(batches):
            batches[3] = (batches[3][0].astype('float64'), batches[3][1])

        def drop(batches):
            del batches[3]

        class Spoiled(Mapping):
            def get_epoch_iterator(self, **kwargs):
                batches = list(self.data_stream.get_epoch_iterator())
                self.mapping(batches)
                return iter(batches)

        digests = {self.train().digest}
        for spoil in (swap, change, cast, drop):
            digests.add(self.train(
                lambda stream: Spoiled(stream, spoil)).digest)
        self.assertEqual(len(digests), 5)


class TestReport(unittest.TestCase):
    def setUp(self):
        self.output = six.StringIO()
        stdout, sys.stdout = sys.stdout, self.output
        self.addCleanup(setattr, sys, 'stdout', stdout)

    def run_of(self, digest='same', accuracy=.99, total=10., waiting=6.):
        class Network(object):
            parameters = (numpy.zeros(1),)

        return demo.Run(total, waiting, .5, .25, 3, digest, Network, accuracy)

    def test_ratios(self):
        code = demo.report(self.run_of(), self.run_of(total=8., waiting=1.))
        self.assertEqual(code, 0)
        # 10 / 8, 10 / max(6, 4) and 10 / max(6 + .25, 4 + .5)
        for ratio in ('1.25', '1.67', '1.60'):
            self.assertIn(ratio, self.output.getvalue())

    def test_other_batches_are_noticed(self):
        six.assertRaisesRegex(
            self, SystemExit, 'changed the batches',
            demo.report, self.run_of(), self.run_of('other'))
        self.assertIn('different batches', self.output.getvalue())

    def test_a_network_that_knows_too_little_is_noticed(self):
        for accuracies in ((.95, .99), (.99, .95)):
            six.assertRaisesRegex(
                self, SystemExit, r'95\.0 % .* not over 95 %', demo.report,
                *(self.run_of(accuracy=accuracy) for accuracy in accuracies))


@unittest.skipIf(NO_DIGITS, 'scikit-learn, which has the digits, is missing')
class TestDemo(FolderTestCase):
    def test_both_runs_see_the_same(self):
        code, output, errors = self.call(
            'demo', '--epochs', '8', '--hidden', '300', '--workers', '2')
        self.assertEqual((code, errors), (0, ''), output)
        digests = [line.split()[-1] for line in output.splitlines()
                   if 'digest' in line]
        self.assertEqual(len(digests), 2)
        self.assertEqual(digests[0], digests[1])
        self.assertIn('Both runs saw the same batches', output)
        self.assertIn('Ideal is', output)
        self.assertEqual(os.listdir(self.folder), [])  # nothing is left

    def test_in_a_process(self):
        code, output, errors = self.call(
            'demo', '--epochs', '2', '--hidden', '20', '--backend', 'process')
        # Two epochs are not enough to learn the digits.
        self.assertEqual(code, 1)
        self.assert_one_line(errors, 'not over 95 %')
        self.assertIn('with prefetching in a process', output)
        self.assertIn('Both runs saw the same batches', output)
        self.assertEqual(os.listdir(self.folder), [])

    def test_data_are_kept(self):
        path = os.path.join(self.folder, 'digits.hdf5')
        arguments = ('demo', '--epochs', '1', '--hidden', '20', '--data', path)
        code, _, errors = self.call(*arguments)
        self.assertEqual(code, 1)
        self.assert_one_line(errors, 'not over 95 %')
        self.assertEqual(os.listdir(self.folder), ['digits.hdf5'])
        # And used again.
        code, _, errors = self.call(*arguments, command=WITHOUT_SKLEARN)
        self.assert_one_line(errors, 'not over 95 %')

    @unittest.skipIf(os.name == 'nt', 'needs a signal like that of Ctrl-C')
    def test_interruption_where_it_would_be_lost(self):
        """Python drops what is raised in the callback of a weak reference."""
        self.addCleanup(signal.signal, signal.SIGINT,
                        signal.signal(signal.SIGINT, interrupt))
        module = {'__name__': 'weakref', 'kill': os.kill,
                  'process': os.getpid(), 'number': signal.SIGINT}
        six.exec_('def callback(reference):\n'
                  '    kill(process, number)\n'
                  '    called.append(reference)\n', module)
        module['called'] = called = []
        value = Network(3, numpy.random.RandomState(1))
        reference = weakref.ref(value, module['callback'])
        with self.assertRaises(KeyboardInterrupt):
            del value
            self.assertEqual(called, [reference])
            time.sleep(30)

    @unittest.skipIf(os.name == 'nt', 'needs a signal like that of Ctrl-C')
    def test_interruption(self):
        path = os.path.join(self.folder, 'digits.hdf5')
        digits.write_digits(path)
        for moment, epochs, backend in [
                ('without prefetching', '300', 'thread'),
                ('with prefetching', '3', 'thread'),
                ('with prefetching', '3', 'process')]:
            process = self.start_command(
                'demo', '--hidden', '20', '--epochs', epochs,
                '--backend', backend, '--data', path)
            for line in iter(process.stdout.readline, ''):
                if moment in line:
                    break
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
            self.assertEqual(process.returncode, 130, errors)
            self.assert_one_line(errors, 'interrupted')
            self.assertEqual(os.listdir(self.folder), ['digits.hdf5'])

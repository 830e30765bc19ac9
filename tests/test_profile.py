"""Tests of `fuel-prefetch profile`, as its user runs it."""
from __future__ import absolute_import, division, print_function

import io
import json
import os
import signal
import sys
import threading
import unittest

import six
from concurrent.futures import (
    Future, ProcessPoolExecutor, ThreadPoolExecutor)

from fuel_prefetch import BackgroundDataStream
from fuel_prefetch.bin import main as main_module
from fuel_prefetch.bin import profile, terminal
from fuel_prefetch.bin.main import main, make_parser
from fuel_prefetch.profiling import train, unwrapped
from fuel_prefetch.timeline import (
    FULL, READING, TRAINING, WAITING, RecordingExecutor, Timeline)
from tests import ConcurrentTestCase, numbers
from tests.test_demo import FolderTestCase

try:
    import matplotlib.font_manager  # which makes its cache, and says so
except ImportError:
    matplotlib = None

MODULE = '''\
import time

import numpy
from fuel.datasets import IndexableDataset, IterableDataset
from fuel.schemes import SequentialScheme
from fuel.streams import DataStream
from fuel.transformers import Mapping, Merge

from fuel_prefetch import BackgroundDataStream

seen = []
made = []


def plain():
    made.append(1)
    return DataStream(IndexableDataset(numpy.arange(40)),
                      iteration_scheme=SequentialScheme(40, 2))


def nap(data):
    time.sleep(.0005)
    return data


def train():
    return Mapping(plain(), nap)


def merged():
    return Merge([train(), plain()], ('a', 'b'))


def ahead():
    return BackgroundDataStream(train(), max_store=3)


def step(batch):
    seen.append(batch[0].tolist())


def bad_step(batch):
    raise KeyError('a key')


def fail(data):
    if data[0][0] == 20:
        raise ValueError('a bad\\nimage')
    return data


def bad():
    return Mapping(plain(), fail)


def broken():
    raise RuntimeError('no disk')


def empty():
    return DataStream(IterableDataset([]))


stream = train()
del made[:]
number = 3
'''


class CommandTestCase(FolderTestCase):
    """A test case that runs a command in this process."""
    command = 'profile'

    def setUp(self):
        super(CommandTestCase, self).setUp()
        with open(os.path.join(self.folder, 'profiled.py'), 'w') as f:
            f.write(MODULE)
        self.addCleanup(os.chdir, os.getcwd())
        self.addCleanup(sys.modules.pop, 'profiled', None)
        self.addCleanup(setattr, sys, 'path', list(sys.path))
        self.addCleanup(signal.signal, signal.SIGINT,
                        signal.getsignal(signal.SIGINT))
        os.chdir(self.folder)
        sys.path.insert(0, os.getcwd())

    def run_here(self, *args):
        """Return the exit code, output and errors."""
        streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = six.StringIO(), six.StringIO()
        try:
            code = main([self.command] + list(args))
        except SystemExit as stop:
            code = stop.code
        finally:
            written = sys.stdout.getvalue(), sys.stderr.getvalue()
            sys.stdout, sys.stderr = streams
        return (code,) + written

    def report_of(self, *args):
        code, output, errors = self.run_here(*args)
        self.assertEqual((code, errors), (0, ''), output)
        return output


class TestProfile(CommandTestCase):
    def test_report(self):
        output = self.report_of('profiled:train', '--step-time', '1ms')
        for text in ('20 batches, 1 epoch', 'Mapping (nap)',
                     'DataStream (IndexableDataset)', 'the stream alone',
                     'the step alone', 'in turn', 'at once', 'ideal',
                     'Bottleneck: ', 'Advice: '):
            self.assertIn(text, output)

    def test_each_run_has_a_stream_of_its_own(self):
        self.report_of('profiled:plain', '--step-time', '10us')
        self.assertEqual(len(sys.modules['profiled'].made), 2)

    def test_the_step_sees_what_the_stream_gives(self):
        expected = [[number, number + 1] for number in range(0, 40, 2)]
        for args, epoch in [
                (['profiled:train'], expected),
                (['profiled:stream'], expected),
                (['profiled:merged'], expected),
                (['profiled:train', '--backend', 'process'], expected),
                (['profiled:train', '--workers', '2'], expected),
                (['profiled:merged', '--workers', '2'], expected),
                (['profiled:train', '--workers', '2', '--backend',
                  'process'], expected),
                (['profiled:train', '--batches', '7', '--max-store', '-1'],
                 expected[:7])]:
            sys.modules.pop('profiled', None)
            self.report_of('--step', 'profiled:step', '--epochs', '2', *args)
            # Two epochs in each of two runs.
            self.assertEqual(sys.modules['profiled'].seen, 4 * epoch, args)

    def test_what_reads_ahead_by_itself(self):
        output = self.report_of('profiled:ahead', '--step-time', '100us')
        self.assertIn('a thread, max_store=3', output)
        self.assertNotIn('BackgroundDataStream\n', output)
        output = self.report_of('profiled:ahead', '--step-time', '100us',
                                '--max-store', '5')
        self.assertIn('max_store=5', output)
        output = self.report_of('profiled:plain', '--step-time', '100us',
                                '--max-store', '-1')
        self.assertIn('max_store=None', output)
        self.assertNotIn('Advice: deeper store', output)

    def test_errors_of_the_stream_are_told_in_one_line(self):
        for args, parts in [
                (['profiled:bad'],
                 ['profiled:bad', 'ValueError: a bad image']),
                (['profiled:broken'], ['RuntimeError: no disk']),
                (['profiled:empty'], ['no batches'])]:
            code, _, errors = self.run_here('--step-time', '1ms', *args)
            self.assertEqual(code, 1)
            self.assert_one_line(errors, 'fuel-prefetch profile: error:',
                                 *parts)
        code, _, errors = self.run_here('profiled:train', '--step',
                                        'profiled:bad_step')
        self.assertEqual(code, 1)
        self.assert_one_line(errors, 'bad_step', "KeyError: 'a key'")

    def test_mistakes_are_told_in_one_line(self):
        nowhere = os.path.join('nowhere', 'x.json')
        step = ['--step-time', '1ms']
        for args, part in [
                (['profiled:nosuch'] + step, "no 'nosuch'"),
                (['nosuch:train'] + step, 'nosuch'),
                (['profiled'] + step, 'MODULE:STREAM'),
                (['profiled:number'] + step, 'neither a stream'),
                (['profiled:made.append'] + step, 'raised TypeError'),
                (['profiled:seen.copy' if six.PY3 else
                  'profiled:seen.reverse'] + step, 'not a stream'),
                (['profiled:train', '--step', 'profiled:number'],
                 'not a function'),
                (['profiled:train', '--step', 'profiled'], 'MODULE:STEP'),
                (['profiled:train', '--step-time', '20'], "'20'"),
                (['profiled:train', '--step-time', '0ms'], "'0ms'"),
                (['profiled:train'], '--step'),
                (['profiled:plain', '--workers', '2'] + step, 'no Mapping'),
                (['profiled:train', '--plot', 'x.gif'] + step, 'x.gif'),
                (['profiled:train', '--trace', nowhere] + step, nowhere)]:
            code, _, errors = self.run_here(*args)
            self.assertEqual(code, 1 if 'TypeError' in part else 2, args)
            self.assert_one_line(errors, 'error', part)

    def test_trace(self):
        self.report_of('profiled:train', '--step-time', '1ms', '--workers',
                       '2', '--trace', 'trace.json')
        with io.open('trace.json', encoding='utf-8') as file_:
            events = json.load(file_)['traceEvents']
        rows = {event['tid']: event['args']['name'] for event in events
                if event['name'] == 'thread_name'}
        self.assertLessEqual(
            {'reading', 'reading for workers', 'worker 1', 'training'},
            set(rows.values()))
        done = {}
        for event in events:
            if event['ph'] == 'X':
                self.assertGreaterEqual(event['dur'], 0)
                done.setdefault(rows[event['tid']], set()).add(event['name'])
        self.assertEqual(done['training'], {WAITING, TRAINING})
        self.assertEqual(done['worker 1'], {'mapping'})
        self.assertLessEqual(done['reading'], {READING, FULL})
        counts = [event for event in events if event['ph'] == 'C']
        self.assertEqual(len(counts), 21)  # and at the end of the epoch

    @unittest.skipIf(matplotlib is None, 'matplotlib is not installed')
    def test_plot(self):
        for name, beginning in [('a.png', b'\x89PNG'), ('a.svg', b'<?xml')]:
            self.report_of('profiled:train', '--step-time', '1ms',
                           '--batches', '5', '--plot', name)
            with open(name, 'rb') as file_:
                content = file_.read()
            self.assertTrue(content.startswith(beginning))
            self.assertGreater(len(content), 5000)

    def test_without_matplotlib(self):
        self.addCleanup(sys.modules.pop, 'matplotlib', None)
        if 'matplotlib' in sys.modules:
            self.addCleanup(sys.modules.__setitem__, 'matplotlib',
                            sys.modules['matplotlib'])
        sys.modules['matplotlib'] = None
        code, _, errors = self.run_here(
            'profiled:train', '--step-time', '1ms', '--plot', 'a.png')
        self.assertEqual(code, 2)
        self.assert_one_line(errors, 'pip install fuel-prefetch[plot]')

    def test_interrupt(self):
        def interrupted(*args):
            raise KeyboardInterrupt
        self.addCleanup(setattr, profile, 'measure', profile.measure)
        profile.measure = interrupted
        code, _, errors = self.run_here(
            'profiled:train', '--step-time', '1ms')
        self.assertEqual(code, 130)
        self.assert_one_line(errors, 'interrupted')

    def test_progress(self):
        class Terminal(io.StringIO):
            def isatty(self):
                return True

            def write(self, text):
                return super(Terminal, self).write(six.text_type(text))

        def bar(**kwargs):  # which has a way round a replaced stderr
            return ProgressBar(**dict(kwargs, fd=shown))

        ProgressBar = terminal.ProgressBar
        self.addCleanup(setattr, terminal, 'ProgressBar', ProgressBar)
        terminal.ProgressBar = bar
        self.addCleanup(setattr, sys, 'stderr', sys.stderr)
        sys.stderr = Terminal()
        for count in (3, None):
            shown = Terminal()
            with terminal.progress(count) as show:
                for done in range(1, 6):  # more than were expected
                    show(done)
            self.assertIn('ETA' if count else 'Elapsed', shown.getvalue())

    def test_durations(self):
        for text, seconds in [('20ms', .02), ('1.5s', 1.5), ('300us', 3e-4),
                              ('.5 s', .5)]:
            args = make_parser().parse_args(
                ['profile', 'a:b', '--step-time', text])
            self.assertAlmostEqual(args.step_time, seconds)

    def test_it_is_a_command(self):
        self.assertIn(profile, main_module.COMMANDS)


class TestTraining(ConcurrentTestCase):
    def test_run(self):
        seen, shown, moments = [], [], []
        run = train(numbers(3), seen.append, epochs=2, show=shown.append,
                    record=lambda *three: moments.append(three))
        self.assertEqual(seen, 2 * [(0,), (1,), (2,)])
        self.assertEqual(shown, [1, 2, 3, 4, 5, 6])
        self.assertEqual((run.batches, run.firsts), (6, {0, 3}))
        self.assertEqual(len(moments), 8)  # the ends of epochs too
        for asked, given, done in moments:
            self.assertTrue(asked <= given <= done)
        self.assertLessEqual(sum(run.waits) + sum(run.steps), run.seconds)

    def test_unwrapped(self):
        stream = numbers(3)
        self.assertIs(unwrapped(stream), stream)
        self.assertIs(unwrapped(BackgroundDataStream(BackgroundDataStream(
            stream))), stream)


class TestTimeline(ConcurrentTestCase):
    def test_executor(self):
        timeline = Timeline()
        pool = ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown)
        executor = RecordingExecutor(pool, timeline)
        self.assertEqual(executor.submit(divmod, 7, 2).result(10), (3, 1))
        with self.assertRaises(ZeroDivisionError):
            executor.submit(divmod, 7, 0).result(10)

    def test_call_that_cannot_be_sent(self):
        """It waits for ever in no Python's pool of processes."""
        pool = ProcessPoolExecutor(1)
        self.addCleanup(pool.shutdown)
        executor = RecordingExecutor(pool, Timeline())
        with six.assertRaisesRegex(self, Exception, 'lock|pickle'):
            executor.submit(id, threading.Lock()).result(10)
        self.assertEqual(executor.submit(divmod, 7, 2).result(10), (3, 1))

    def test_cancelled_call(self):
        class Later(object):
            def submit(self, function, *args):
                self.future, self.call = Future(), (function, args)
                return self.future

        later = Later()
        future = RecordingExecutor(later, Timeline()).submit(divmod, 7, 2)
        self.assertTrue(future.cancel())
        function, args = later.call
        later.future.set_result(function(*args))
        self.assertTrue(future.cancelled())

    def test_rows(self):
        timeline = Timeline()
        start = timeline.start
        timeline.rows['reading'] = []
        timeline.rows['training'] = []
        timeline.add((1, 2), start + 2, start + 3, 'mapping')
        timeline.add((1, 1), start + 1, start + 3, 'mapping')
        timeline.add('training', start, start + 1, WAITING)
        timeline.close()
        self.assertEqual(list(timeline.rows), [
            'reading', 'worker 1', 'worker 2', 'training'])
        self.assertAlmostEqual(timeline.rows['worker 1'][0].start, 1, 3)

    def test_producer(self):
        stream = BackgroundDataStream(numbers(5), max_store=1)
        timeline = Timeline()
        timeline.follow(stream, 'reading')
        with stream:
            train(stream, lambda batch: None,
                  record=timeline.training(stream))
        self.assertEqual(stream.stats.batches_taken, 5)
        self.assertEqual(len(timeline.held), 6)
        self.assertIn(READING, [what for _, _, what in
                                timeline.rows['reading']])

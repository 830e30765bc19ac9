"""Tests of parallel_map and ParallelMapping, on threads and executors.

That `ParallelMapping` gives what Fuel's `Mapping` gives, whatever is called,
is in `test_model`.

"""
from __future__ import absolute_import, division, print_function

import contextlib
import copy
import gc
import itertools
import linecache
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
import unittest
import weakref

import numpy
import six
from concurrent.futures import (
    CancelledError, ProcessPoolExecutor, ThreadPoolExecutor)
from six.moves import range

from fuel_prefetch import (
    BackgroundDataStream, ParallelMapping, PrefetchError, WorkerDied,
    WorkerError, parallel_map)
from fuel.datasets import IndexableDataset
from fuel.schemes import (
    ConstantScheme, SequentialExampleScheme, SequentialScheme, ShuffledScheme)
from fuel.streams import DataStream
from fuel.transformers import Batch, Mapping

from fuel_prefetch.mapping import Window
from fuel_prefetch.pool import ThreadPool
from fuel_prefetch.waiting import monotonic
from tests import (
    DEADLINE, ConcurrentTestCase, Gated, IteratorStream, Raise, numbers,
    wait_until)
from tests.test_exit import ProcessTestCase


def square(number):
    return number ** 2


def locked(number):
    return threading.Lock() if number == 2 else number ** 2


class Unloadable(BaseException):
    """It can be pickled, and not be loaded again."""
    def __init__(self, one, two):
        super(Unloadable, self).__init__(one + two)


class Trapped(object):
    """It can be sent to a process, and not be loaded there or here."""
    def __reduce__(self):
        return interrupted, ()


def hide(_):
    return Trapped()


def interrupted(*_):
    raise Unloadable('a', 'b')


def leave(_):
    os._exit(0)


def kill_at_5(number):
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


class Two(Exception):
    """It wants more arguments than it keeps."""
    def __init__(self, one, two):
        super(Two, self).__init__('{} and {}'.format(one, two))


def make_local():
    class Local(ValueError):
        pass
    return Local('defined in a function')


def fail(number):
    if number == 1:
        raise Two('one', 'two')
    if number == 2:
        raise subprocess.CalledProcessError(3, 'command')
    if number == 3:
        raise make_local()
    if number == 4:
        raise KeyError('four')
    if number == 5:
        return next(iter([]))
    return number


def noise(data, rng):
    return tuple(source + rng.randint(1000) for source in data)


def divide(data):
    return numpy.ones(1) / numpy.zeros(1),


def shift(data):
    return data[0] + 1,


def draw(data, rng):
    return rng.randint(2 ** 31 - 1),


def total(data, rng=None):
    return {'sum': sum(data.values())}


def threads():
    return [thread for thread in threading.enumerate()
            if thread.name.startswith('fuel_prefetch')]


def outcomes(iterator):
    """Return what an iterator gives, errors by their type included."""
    found = []
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except Exception as error:
            found.append(type(error).__name__)


@contextlib.contextmanager
def executors():
    """Give an executor of each kind there is, by name."""
    found = {'threads': ThreadPoolExecutor(2),
             'processes': ProcessPoolExecutor(2)}
    try:
        import loky
        found['loky'] = loky.ProcessPoolExecutor(2)
    except ImportError:
        pass
    try:
        yield sorted(found.items())
    finally:
        for executor in found.values():
            executor.shutdown()


class MappingTestCase(ConcurrentTestCase):
    def map(self, *args, **kwargs):
        results = parallel_map(*args, **kwargs)
        self.addCleanup(results.close)
        return results

    def wrap(self, *args, **kwargs):
        stream = ParallelMapping(*args, **kwargs)
        self.addCleanup(stream.close)
        return stream


class TestThreadPool(ConcurrentTestCase):
    def test_calls(self):
        pool = ThreadPool(3)
        futures = [pool.submit(square, number) for number in range(50)]
        self.assertEqual([future.result() for future in futures],
                         [number ** 2 for number in range(50)])
        self.assertLessEqual(len(threads()), 3)
        pool.shutdown()
        self.assertEqual(threads(), [])
        self.assertRaises(RuntimeError, pool.submit, square, 1)

    def test_as_many_threads_as_there_are_workers(self):
        pool = ThreadPool(4)
        running = []

        def run():
            running.append(1)
            wait_until(lambda: len(running) == 4)
            return len(running)
        futures = [pool.submit(run) for _ in range(4)]
        self.assertEqual([future.result() for future in futures], [4] * 4)
        pool.shutdown()

    def test_no_more_threads(self):
        """One is enough; none is an error, and no call is made."""
        start, left = threading.Thread.start, [1]

        def scarce(thread):
            if not left:
                raise RuntimeError("can't start new thread")
            left.pop()
            start(thread)
        threading.Thread.start = scarce
        try:
            pool = ThreadPool(3)
            futures = [pool.submit(square, number) for number in range(4)]
            none = ThreadPool(3)
            self.assertRaises(RuntimeError, none.submit, square, 1)
            self.assertFalse(none._calls)
        finally:
            threading.Thread.start = start
        self.assertEqual([future.result() for future in futures],
                         [0, 1, 4, 9])
        pool.shutdown()

    def test_what_is_left_is_cancelled(self):
        release = threading.Event()
        pool = ThreadPool(1)
        futures = [pool.submit(release.wait, DEADLINE) for _ in range(3)]
        wait_until(futures[0].running)
        pool.shutdown(False)
        release.set()
        self.assertTrue(futures[0].result())
        for future in futures[1:]:
            self.assertRaises(CancelledError, future.result)

    def test_forgotten(self):
        for _ in range(100):
            pool = ThreadPool(2)
            pool.submit(square, 1)
            del pool
        self.assertTrue(wait_until(lambda: not threads(), 3))

    def test_nothing_is_held(self):
        pool = ThreadPool(1)
        value = numpy.zeros(3)
        reference = weakref.ref(value)
        future = pool.submit(numpy.negative, value)
        future.result()
        del value, future
        self.assertTrue(wait_until(lambda: reference() is None))
        pool.shutdown()


class TestParallelMap(MappingTestCase):
    def test_order(self):
        def slow(number):
            time.sleep(.001 * (number % 4))
            return number
        for workers in (1, 2, 4):
            for bound in (None, 1, 3, -1):
                self.assertEqual(
                    list(self.map(slow, range(40), workers, bound)),
                    list(range(40)))

    def test_any_item(self):
        items = [None, (), StopIteration, ValueError('data'), Ellipsis]
        found = list(self.map(lambda item: item, items))
        self.assertEqual([id(item) for item in found],
                         [id(item) for item in items])

    def test_slow_first_item(self):
        """R22: with an end that no worker can take from another.

        https://github.com/facebookresearch/spdl/pull/1576

        """
        def first_slow(number):
            time.sleep(.01 if not number else 0)
            return number
        for count in range(3, 13):
            for _ in range(10):
                self.assertEqual(
                    list(self.map(first_slow, range(count), 3)),
                    list(range(count)))

    def test_input_is_not_drained(self):
        """R29: an endless source, read as far as the bound and no further.

        https://github.com/python/cpython/issues/74028
        https://github.com/python/cpython/issues/74508
        https://github.com/agronholm/pythonfutures/issues/39

        """
        with ThreadPoolExecutor(2) as executor:
            for bound in (1, 2, 6):
                source = itertools.count()
                results = self.map(square, source, max_prefetch=bound,
                                   executor=executor)
                self.assertEqual([next(results) for _ in range(3)], [0, 1, 4])
                wait_until(lambda: results.stats.batches_produced ==
                           3 + bound)
                time.sleep(.01)
                self.assertEqual(results.stats.batches_produced, 3 + bound)
                results.close()
                self.assertEqual(next(source), 3 + bound)
            self.assertEqual(executor.submit(square, 3).result(), 9)

    def test_one_slow_item(self):
        """R30: the others go on up to the bound, and their order is kept.

        https://github.com/pytorch/pytorch/pull/14611
        https://github.com/pytorch/pytorch/pull/141833

        """
        release = threading.Event()
        done = []

        def work(number):
            if not number:
                release.wait(DEADLINE)
            done.append(number)
            return number

        results = self.map(work, range(1000), workers=4, max_prefetch=8)
        self.assertTrue(wait_until(lambda: len(done) == 7))
        time.sleep(.02)
        self.assertEqual(sorted(done), list(range(1, 8)))
        self.assertEqual(results.stats.batches_produced, 8)
        release.set()
        self.assertEqual(list(results), list(range(1000)))

    def test_errors_are_counted_as_they_are_taken(self):
        results = self.map(lambda number: 1 // number, [1, 0, 2, 0])
        next(results)
        self.assertEqual(results.stats.errors, 0)
        self.assertRaises(ZeroDivisionError, next, results)
        self.assertEqual(results.stats.errors, 1)
        next(results)
        self.assertRaises(ZeroDivisionError, next, results)
        self.assertEqual(results.stats.errors, 2)

    def test_unordered(self):
        release = threading.Event()

        def work(number):
            if not number:
                release.wait(DEADLINE)
            return number

        results = self.map(work, range(20), workers=3, ordered=False)
        first = [next(results) for _ in range(19)]
        self.assertEqual(sorted(first), list(range(1, 20)))
        release.set()
        self.assertEqual(list(results), [0])

    def test_unordered_by_many_readers(self):
        for _ in range(10):
            results = self.map(square, range(200), 3, ordered=False)
            readers = [self.start(list, results) for _ in range(3)]
            self.assertEqual(
                sorted(result for reader in readers
                       for result in self.join(reader)),
                [number ** 2 for number in range(200)])

    def test_source_is_read_by_one_thread(self):
        """R32: a generator is never advanced by two at once.

        https://github.com/keras-team/keras/issues/1533
        https://github.com/keras-team/keras/issues/9835

        """
        seen = set()

        def generate():
            for number in range(500):
                seen.add(threading.current_thread())
                yield number

        self.assertEqual(list(self.map(square, generate(), 4)),
                         [number ** 2 for number in range(500)])
        self.assertEqual(len(seen), 1)

    def test_errors(self):
        """R18: a StopIteration out of the function is an error.

        https://github.com/ByteDance-Seed/Bagel/issues/211

        """
        results = self.map(fail, range(7))
        self.assertEqual(next(results), 0)
        for kind in (Two, subprocess.CalledProcessError, ValueError,
                     KeyError):
            with self.assertRaises(kind):
                try:
                    next(results)
                except kind:
                    self.assertIn('in fail', traceback.format_exc())
                    raise
        with self.assertRaises(RuntimeError) as caught:
            next(results)
        if six.PY3:
            self.assertIsInstance(caught.exception.__cause__, StopIteration)
        self.assertEqual(list(results), [6])

    def test_errors_of_the_source(self):
        for ordered in (True, False):
            source = Gated([1, Raise(KeyError('two')), 3])
            source.permit(9)
            results = self.map(square, source, ordered=ordered)
            self.assertEqual(next(results), 1)
            self.assertRaises(KeyError, next, results)
            self.assertEqual(source.asked, 2)  # not past it unasked
            self.assertEqual(list(results), [9])

    def test_no_frame_is_held(self):
        class Local(object):
            pass
        references = []

        def work(number):
            local = Local()
            references.append(weakref.ref(local))
            raise KeyError(number)

        results = self.map(work, [1])
        self.assertRaises(KeyError, next, results)
        if six.PY2:
            sys.exc_clear()
        results.close()
        # Not all at once: the worker may be on its way out of the call.
        gc.disable()
        try:
            self.assertTrue(wait_until(lambda: references[0]() is None))
        finally:
            gc.enable()

    def test_bad_arguments(self):
        for name, kwargs in [
                ('workers', {'workers': 0}), ('workers', {'workers': '2'}),
                ('workers', {'workers': True}),
                ('max_prefetch', {'max_prefetch': 0}),
                ('max_prefetch', {'max_prefetch': 1.5}),
                ('ordered', {'ordered': None}),
                ('executor', {'executor': 2})]:
            value, = kwargs.values()
            six.assertRaisesRegex(
                self, ValueError, '{} .*{!r}'.format(name, value),
                parallel_map, square, [], **kwargs)
        six.assertRaisesRegex(self, TypeError, 'function .*3',
                              parallel_map, 3, [])
        six.assertRaisesRegex(self, TypeError, '^iterable .* 3',
                              parallel_map, square, 3)
        self.assertEqual(threads(), [])

    def test_close_wakes_who_waits_for_a_result(self):
        release = threading.Event()
        for ordered in (True, False):
            results = self.map(lambda _: release.wait(DEADLINE), range(9),
                               ordered=ordered)
            readers = [self.start(next, results) for _ in range(2)]
            wait_until(lambda: len(results._channel._awaited) == 2)
            closed = monotonic()
            results.close()
            for reader in readers:
                six.assertRaisesRegex(self, PrefetchError, 'closed',
                                      self.join, reader)
            self.assertLess(monotonic() - closed, DEADLINE / 2)
        release.set()

    @unittest.skipUnless(hasattr(signal, 'SIGINT'), 'there is no Ctrl-C')
    def test_ctrl_c_loses_no_result(self):
        release = threading.Event()
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            for ordered in (True, False):
                release.clear()
                results = self.map(lambda number: release.wait(DEADLINE) and
                                   number, range(5), ordered=ordered)

                def press():
                    wait_until(lambda: results._channel._awaited)
                    time.sleep(.05)  # by now it's in the wait itself
                    os.kill(os.getpid(), signal.SIGINT)
                presser = self.start(press)
                self.assertRaises(KeyboardInterrupt, next, results)
                self.join(presser)
                release.set()
                self.assertEqual(sorted(results), list(range(5)))
        finally:
            signal.signal(signal.SIGINT, handler)

    def test_abandoned_calls_are_cancelled(self):
        release, started = threading.Event(), []

        def work(number):
            started.append(number)
            release.wait(DEADLINE)

        with ThreadPoolExecutor(1) as executor:
            for leave in (lambda results: results.close(), lambda _: None):
                for ordered in (True, False):
                    del started[:]
                    release.clear()
                    held = [parallel_map(
                        work, itertools.count(), max_prefetch=5,
                        ordered=ordered, executor=executor)]
                    wait_until(lambda: started and (
                        held[0].stats.batches_produced == 5))
                    leave(held[0])
                    del held[:]
                    gc.collect()
                    self.assertTrue(wait_until(lambda: not threads(), 3))
                    release.set()
                    executor.submit(square, 2).result()
                    self.assertEqual(started, [0])

    def test_forgotten(self):
        """R35: it lives as long as it is iterated over, no longer.

        https://github.com/apache/mxnet/pull/15195

        """
        iterator = iter(parallel_map(square, range(100), 3))
        gc.collect()
        self.assertEqual(sum(1 for _ in zip(range(50), iterator)), 50)
        self.assertTrue(threads())
        del iterator
        gc.collect()
        self.assertTrue(wait_until(lambda: not threads(), 3))

    def test_ctrl_c_at_any_step_of_a_window(self):
        """A result is lost at most, as between a return and its assignment.

        Nothing hangs, and nothing comes twice.

        """
        code = Window.take.__code__, Window._claim.__code__
        for step in range(40):
            results = self.map(square, range(6), 2, ordered=False)
            steps = []

            def interrupt(frame, event, arg):
                if frame.f_code not in code:
                    return interrupt
                # Python itself doesn't break in between a body and the
                # release of its lock, at which a line is traced too.
                if event == 'line' and not linecache.getline(
                        frame.f_code.co_filename,
                        frame.f_lineno).strip().startswith('with '):
                    steps.append(1)
                    if len(steps) == step + 1:
                        raise KeyboardInterrupt
                return interrupt

            found = []
            sys.settrace(interrupt)
            try:
                found.append(next(results))
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            found += self.within(5, list, results)
            self.assertEqual(len(set(found)), len(found), step)
            self.assertGreaterEqual(len(found), 5, step)

    def test_interrupted_reader_hands_on_what_it_waited_for(self):
        """Another reader gets it, though the store counts as full."""
        release, source = threading.Event(), Gated(range(5))
        results = self.map(lambda number: release.wait(DEADLINE) and number,
                           source, max_prefetch=1)
        source.permit(1)
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            def press():
                wait_until(lambda: results._channel._awaited)
                reader = self.start(next, results)
                wait_until(lambda: results._channel._waiting)
                os.kill(os.getpid(), signal.SIGINT)
                return reader
            presser = self.start(press)
            self.assertRaises(KeyboardInterrupt, next, results)
            release.set()
            self.assertEqual(self.join(self.join(presser)), 0)
        finally:
            signal.signal(signal.SIGINT, handler)
            source.permit(9)

    def test_stacked(self):
        inner = parallel_map(square, range(100), 2)
        outer = self.map(square, inner, 2)
        self.assertEqual(list(outer), [number ** 4 for number in range(100)])


class TestExecutors(MappingTestCase):
    def test_each(self):
        with executors() as found:
            for name, executor in found:
                for ordered in (True, False):
                    results = self.map(square, range(30), executor=executor,
                                       ordered=ordered)
                    results = list(results)
                    self.assertEqual(
                        results if ordered else sorted(results),
                        [number ** 2 for number in range(30)], name)
                # It is not shut down.
                self.assertEqual(executor.submit(square, 2).result(), 4)

    def test_errors_come_over(self):
        """R13: the same type where it can be, else its type and traceback.

        https://github.com/pytorch/pytorch/issues/34130
        https://github.com/pytorch/pytorch/issues/30147
        https://github.com/pytorch/pytorch/issues/25522

        """
        with executors() as found:
            for name, executor in found:
                results = self.map(fail, range(7), executor=executor)
                kinds = outcomes(results)
                if name == 'threads':
                    self.assertEqual(kinds[1], 'Two')
                    continue
                self.assertEqual(
                    [kinds[0]] + kinds[3:],
                    [0, 'WorkerError', 'KeyError', 'RuntimeError', 6])
                # Some libraries (tblib) teach pickle to hold them.
                self.assertIn(kinds[1], ('Two', 'WorkerError'))
                self.assertIn(kinds[2], ('CalledProcessError', 'WorkerError'))
                results = self.map(fail, [1, 3], executor=executor)
                for name, text in [('Two', 'one and two'),
                                   ('Local', 'defined in a function')]:
                    with self.assertRaises(Exception) as caught:
                        next(results)
                    self.assertIn(text, str(caught.exception))
                    if type(caught.exception) is WorkerError:
                        self.assertIn(name, str(caught.exception))
                        self.assertIn('in fail', str(caught.exception))

    @unittest.skipUnless(hasattr(signal, 'SIGKILL'), 'there is no SIGKILL')
    def test_killed_worker(self):
        with ProcessPoolExecutor(1) as executor:
            results = self.map(kill_at_5, range(9), executor=executor,
                               max_prefetch=1)
            started = monotonic()
            found = []
            with self.assertRaises(WorkerDied):
                found.extend(results)
            # On 2.7 a process sends its results a moment later, in a thread.
            self.assertEqual(found, list(range(len(found))))
            self.assertIn(len(found), range(0 if six.PY2 else 5, 6))
            self.assertLess(monotonic() - started, 10)
            # And so does each call that follows: the pool is broken.
            self.assertRaises(WorkerDied, next, results)

    def test_what_cannot_be_sent(self):
        """R54: an item, or a result, is an error in its place."""
        with ProcessPoolExecutor(2) as executor:
            for function, items in [(square, [1, threading.Lock(), 3]),
                                    (locked, [1, 2, 3])]:
                results = self.map(function, items, executor=executor)
                self.assertEqual(next(results), 1)
                # What it is depends on the Python.
                with six.assertRaisesRegex(self, Exception, 'lock|pickle'):
                    next(results)
                self.assertEqual(next(results), 9)
                self.assertRaises(StopIteration, next, results)

    def test_what_could_break_a_pool(self):
        """R13: errors that can't be loaded again, wherever they come from.

        From Python 3.7 on the pool itself tells, if only that it is broken.

        """
        for function, item in [(hide, Trapped()), (square, Trapped()),
                               (interrupted, 0), (leave, 0)]:
            with ProcessPoolExecutor(1) as executor:
                results = self.map(function, [item], executor=executor)
                # Some libraries (tblib) teach pickle to hold all errors.
                with self.assertRaises((WorkerError, WorkerDied, Unloadable)):
                    next(results)
                self.assertRaises(StopIteration, next, results)

    def test_shut_down_by_its_user(self):
        executor = ThreadPoolExecutor(1)
        results = self.map(square, itertools.count(), executor=executor,
                           max_prefetch=2)
        self.assertEqual(next(results), 0)
        executor.shutdown()
        kinds = set(type(result) for result in itertools.islice(
            iter(lambda: self.one(results), None), 9))
        self.assertIn(RuntimeError, kinds)

    def one(self, iterator):
        try:
            return next(iterator)
        except RuntimeError as error:
            return error


class TestExit(ProcessTestCase):
    def test_abandoned(self):
        """R43: an endless source, on threads of ours and of the user's.

        https://github.com/python/cpython/issues/109047
        https://github.com/rohanpm/more-executors/issues/144

        """
        for number, (ending, code) in enumerate([
                ('', 0), ('sys.exit(3)', 3),
                ('raise RuntimeError("in the loop")', 1)]):
            executor = ['None', 'ThreadPoolExecutor(2)'][number % 2]
            self.assert_same('''
                import itertools
                from concurrent.futures import ThreadPoolExecutor
                from fuel_prefetch import parallel_map

                def work(number):
                    time.sleep(.002)
                    return number

                results = iter(range(9))
                if sys.argv[1] != 'bare':
                    results = parallel_map(work, itertools.count(),
                                           executor={})
                print(next(results), next(results))
                leaving()
                {}
                '''.format(executor, ending), code)

    def test_call_under_way(self):
        """It doesn't come back into an interpreter that is taken down."""
        self.assert_ends('''
            from fuel_prefetch import parallel_map

            def work(number):
                reached.set()
                time.sleep(.3)
                print('done')

            results = parallel_map(work, range(1), workers=1)
            reached.wait()
            leaving()
            ''', output='done\n')

    def test_call_that_never_returns(self):
        self.assert_ends('''
            from fuel_prefetch import parallel_map

            def work(number):
                if number:
                    reached.set()
                    forever.acquire()
                return number

            results = parallel_map(work, range(5))
            print(next(results))
            reached.wait()
            leaving()
            sys.exit(3)
            ''', 3, '0\n')


class TestParallelMapping(MappingTestCase):
    def stream(self, count=12, batch=2):
        return DataStream(
            IndexableDataset(numpy.arange(count), axis_labels={
                'data': ('batch',)}),
            iteration_scheme=SequentialScheme(count, batch))

    def test_says_what_a_mapping_says(self):
        for kwargs in ({}, {'add_sources': ('twice',)},
                       {'axis_labels': {'data': ('b',)}}):
            ours = self.wrap(self.stream(), square, **kwargs)
            bare = Mapping(self.stream(), square, **kwargs)
            for name in ('sources', 'axis_labels', 'produces_examples'):
                self.assertEqual(getattr(ours, name), getattr(bare, name))
            self.assertIs(ours.iteration_scheme,
                          ours.data_stream.iteration_scheme)

    def test_dictionaries(self):
        stream = DataStream(
            IndexableDataset({'a': [1, 2, 3], 'b': [4, 5, 6]}),
            iteration_scheme=SequentialExampleScheme(3))
        ours = self.wrap(stream, total, add_sources=('sum',),
                         mapping_accepts=dict)
        self.assertEqual(list(ours.get_epoch_iterator()),
                         [(1, 4, 5), (2, 5, 7), (3, 6, 9)])
        self.assertEqual(next(ours.get_epoch_iterator(as_dict=True)),
                         {'a': 1, 'b': 4, 'sum': 5})

    def test_settings_count_from_the_next_epoch(self):
        """What numpy.seterr says, as for all that a thread of ours does."""
        stream = self.wrap(numbers(2), divide)
        with numpy.errstate(all='ignore'):
            self.assertEqual(len(list(stream.get_epoch_iterator())), 2)
        with numpy.errstate(all='raise'):
            self.assertRaises(FloatingPointError, list,
                              stream.get_epoch_iterator())

    def test_changes_count_from_the_next_epoch(self):
        ours = self.wrap(numbers(3), lambda data: data)
        iterator = ours.get_epoch_iterator()
        ours.mapping = lambda data: (data[0] + 10,)
        self.assertEqual(list(iterator), [(0,), (1,), (2,)])
        self.assertEqual(list(ours.get_epoch_iterator()),
                         [(10,), (11,), (12,)])

    def test_bad_arguments(self):
        for name, kwargs in [
                ('workers', {'workers': 0}), ('max_store', {'max_store': 0}),
                ('ordered', {'ordered': 1}), ('executor', {'executor': 'x'}),
                ('seed', {'seed': -1}), ('seed', {'seed': 1.5}),
                ('seed', {'seed': 2 ** 32}),
                ('add_sources', {'add_sources': 'extra'}),
                ('add_sources', {'add_sources': 5}),
                ('add_sources', {'add_sources': ('extra', 5)}),
                ('mapping_accepts', {'mapping_accepts': tuple})]:
            value, = kwargs.values()
            with self.assertRaises(ValueError) as caught:
                ParallelMapping(numbers(3), square, **kwargs)
            self.assertIn(name, str(caught.exception))
            self.assertIn(repr(value), str(caught.exception))
        six.assertRaisesRegex(self, TypeError, 'mapping .*7',
                              ParallelMapping, numbers(3), 7)
        six.assertRaisesRegex(self, ValueError, 'data_stream .*7',
                              ParallelMapping, 7, square)

    def test_composes(self):
        def work(data):
            return data[0] + 1,
        bare = Batch(Mapping(Mapping(numbers(20), work), work),
                     ConstantScheme(3))
        ours = BackgroundDataStream(Batch(ParallelMapping(
            BackgroundDataStream(Mapping(numbers(20), work)), work),
            ConstantScheme(3)))
        self.addCleanup(ours.close)
        for _ in range(2):
            numpy.testing.assert_equal(list(ours.get_epoch_iterator()),
                                       list(bare.get_epoch_iterator()))

    def test_thread_bound_source(self):
        """R33: all reads of an epoch come from one thread.

        https://github.com/meta-pytorch/data/issues/1470

        """
        def read():
            database = sqlite3.connect(':memory:')
            try:
                database.execute('create table t (x)')
                database.executemany('insert into t values (?)',
                                     [(number,) for number in range(20)])
                for row in database.execute('select x from t order by x'):
                    yield row
            finally:
                database.close()  # which sqlite refuses elsewhere

        ours = self.wrap(IteratorStream(read), lambda row: (row[0] + 1,))
        for _ in range(2):
            self.assertEqual(list(ours.get_epoch_iterator()),
                             [(number,) for number in range(1, 21)])
        database = sqlite3.connect(':memory:')
        cursor = database.execute('select 1')
        ours = self.wrap(IteratorStream(lambda: cursor), tuple)
        self.assertRaises(sqlite3.ProgrammingError, next,
                          ours.get_epoch_iterator())

    def test_stacked_on_threads_and_processes(self):
        """R44: stages within one another end together.

        https://github.com/meta-pytorch/data/issues/1176
        https://github.com/meta-pytorch/data/issues/1169

        """
        def stack(source, executor):
            for executor in (None, executor):
                source = BackgroundDataStream(ParallelMapping(
                    source, shift, max_store=1, executor=executor),
                    max_store=1)
            return source

        with ProcessPoolExecutor(2) as executor:
            executor.submit(square, 1).result()  # forked before our threads
            stream = stack(numbers(30), executor)
            self.assertEqual(next(stream.get_epoch_iterator()), (2,))
            self.within(5, stream.close)
            self.assertEqual(list(stream.get_epoch_iterator()),
                             [(number + 2,) for number in range(30)])
            self.within(5, stream.close)
            stream = stack(Mapping(numbers(30), FailingExample()), executor)
            iterator = stream.get_epoch_iterator()
            self.assertEqual(next(iterator), (2,))
            self.assertRaises(Two, next, iterator)
            self.within(5, stream.close)
            del stream, iterator
            gc.collect()
            self.assertTrue(wait_until(lambda: not threads(), 3))

    @unittest.skipUnless(hasattr(os, 'fork'), 'there is no fork')
    def test_forked(self):
        """The child has none of the threads, and begins anew."""
        stream = self.wrap(numbers(30), shift)
        iterator = stream.get_epoch_iterator()
        next(iterator)

        def child():
            try:
                next(iterator)
            except PrefetchError:
                if len(list(stream.get_epoch_iterator())) == 30:
                    stream.close()
                    return 7
            return 2
        self.assertEqual(self.in_child(child), 7)
        self.assertEqual(len(list(iterator)), 29)

    def test_iterator_keeps_its_stream(self):
        """R35: its threads work as long as it is iterated over.

        https://github.com/apache/mxnet/pull/15195

        """
        iterator = ParallelMapping(numbers(50), tuple).get_epoch_iterator()
        next(iterator)
        gc.collect()
        self.assertEqual(len(list(iterator)), 49)
        del iterator
        gc.collect()
        self.assertTrue(wait_until(lambda: not threads(), 3))


class TestSeeds(MappingTestCase):
    def stream(self):
        return DataStream(
            IndexableDataset(numpy.arange(20)),
            iteration_scheme=ShuffledScheme(
                20, 2, rng=numpy.random.RandomState(3)))

    def epochs(self, stream, count=2):
        return [[batch.tolist() for batch, in stream.get_epoch_iterator()]
                for _ in range(count)]

    def test_the_same_whoever_works(self):
        expected = self.epochs(self.wrap(self.stream(), noise, seed=7))
        with executors() as found:
            for kwargs in [{'workers': 1}, {'workers': 4}, {'max_store': 1},
                           {'max_store': -1}] + [
                               {'executor': executor}
                               for _, executor in found]:
                self.assertEqual(self.epochs(self.wrap(
                    self.stream(), noise, seed=7, **kwargs)), expected)
        self.assertNotEqual(
            self.epochs(self.wrap(self.stream(), noise, seed=8)), expected)

    def test_documented_states(self):
        stream = self.wrap(numbers(3), noise, seed=7)
        for epoch in range(2):
            self.assertEqual(
                list(stream.get_epoch_iterator()),
                [noise((number,),
                       numpy.random.RandomState([7, epoch, number]))
                 for number in range(3)])

    def test_no_two_are_alike(self):
        """R55: neither workers nor epochs share a sequence.

        https://github.com/pytorch/pytorch/issues/5059
        https://github.com/pytorch/pytorch/issues/3880
        https://github.com/pytorch/pytorch/issues/41329

        """
        with executors() as found:
            for _, executor in found:
                stream = self.wrap(
                    numbers(30), draw, seed=1, executor=executor)
                drawn = [value for _ in range(3)
                         for value, in stream.get_epoch_iterator()]
                self.assertEqual(len(set(drawn)), 90)

    def test_after_a_resume(self):
        expected = self.epochs(self.wrap(self.stream(), noise, seed=7), 3)
        stream = self.wrap(self.stream(), noise, seed=7)
        self.epochs(stream, 1)
        iterator = stream.get_epoch_iterator()
        for position in range(11):
            for twin, its in [
                    pickle.loads(pickle.dumps((stream, iterator), 2)),
                    copy.deepcopy((stream, iterator))]:
                self.assertEqual(
                    [batch.tolist() for batch, in its],
                    expected[1][position:])
                self.assertEqual(self.epochs(twin, 1), expected[2:])
                twin.close()
            if position < 10:
                self.assertEqual(next(iterator)[0].tolist(),
                                 expected[1][position])


class TestCheckpoints(MappingTestCase):
    def test_what_is_under_way_comes_out_once(self):
        """Results as results, the others as their items, in their order."""
        release = threading.Event()

        stream = self.wrap(numbers(9), Held(release), workers=3)
        for ordered in (True, False):
            stream = self.wrap(numbers(9), Held(release), workers=3,
                               ordered=ordered)
            iterator = stream.get_epoch_iterator()
            release.clear()
            wait_until(lambda: stream.stats.batches_produced == 6)
            pair = pickle.dumps((stream, iterator), 2)
            release.set()
            for twin, its in (pickle.loads(pair), (stream, iterator)):
                found = list(its)
                self.assertEqual(found if ordered else sorted(found),
                                 [(number,) for number in range(9)])
                self.assertEqual(len(list(twin.get_epoch_iterator())), 9)
                twin.close()

    def test_errors(self):
        """One that is under way comes again, with the call."""
        stream = self.wrap(numbers(7), FailingExample())
        iterator = stream.get_epoch_iterator()
        next(iterator)
        time.sleep(.01)
        twin, its = pickle.loads(pickle.dumps((stream, iterator)))
        self.addCleanup(twin.close)
        self.assertEqual(outcomes(its), outcomes(iterator))

    @unittest.skipUnless(hasattr(signal, 'SIGALRM'), 'there is no alarm')
    def test_by_a_signal_handler(self):
        """What the reader waits for at that moment is not taken yet."""
        pickles = []

        def save(signum, frame):
            pickles.append(pickle.dumps((stream, iterator)))

        before = signal.signal(signal.SIGALRM, save)
        try:
            for ordered in (True, False):
                release = threading.Event()
                stream = self.wrap(numbers(6), Held(release), ordered=ordered)
                iterator = stream.get_epoch_iterator()
                if ordered:
                    next(iterator)
                opener = threading.Timer(.1, release.set)
                opener.start()
                signal.setitimer(signal.ITIMER_REAL, .04)
                found = list(iterator)
                opener.join()
                twin, its = pickle.loads(pickles.pop())
                self.addCleanup(twin.close)
                rest = list(its)
                if ordered:
                    self.assertEqual(rest, found)
                else:
                    self.assertLessEqual(set(rest), set(found))
                    self.assertIn((1,), rest)
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_dictionaries_without_anything_held(self):
        """The names of the sources are known where nothing was ready."""
        stream = self.wrap(numbers(6), total, add_sources=('sum',),
                           mapping_accepts=dict)
        iterator = stream.get_epoch_iterator()
        next(iterator)
        stream.reset()
        twin, its = pickle.loads(pickle.dumps((stream, iterator)))
        self.addCleanup(twin.close)
        self.assertEqual(list(its), list(iterator))
        self.assertEqual(twin.stats.batches_held, 0)

    def test_held_is_told_before_it_is_asked(self):
        stream = self.wrap(numbers(9), tuple)
        iterator = stream.get_epoch_iterator()
        next(iterator)
        # One more is in the hands of who submits it.
        self.assertTrue(wait_until(lambda: stream.stats.batches_held == 3))
        twin = pickle.loads(pickle.dumps(stream))
        self.assertEqual(twin.stats.batches_held, 4)

    @unittest.skipUnless(hasattr(os, 'fork'), 'there is no fork')
    def test_in_a_fork(self):
        stream = self.wrap(numbers(6), noise, seed=3)
        list(stream.get_epoch_iterator())
        next(stream.get_epoch_iterator())

        def child():
            twin = pickle.loads(pickle.dumps(stream))
            return 7 if len(list(twin.get_epoch_iterator())) else 2
        self.assertEqual(self.in_child(child), 7)

    def test_executor_is_no_part_of_it(self):
        with ThreadPoolExecutor(1) as executor:
            stream = self.wrap(numbers(9), tuple, executor=executor)
            iterator = stream.get_epoch_iterator()
            next(iterator)
            twin, its = copy.deepcopy((stream, iterator))
            self.assertIs(twin.executor, None)
            twin.executor = executor  # counts at once
            before = len(executor._threads)
            self.assertEqual(len(list(its)), 8)
            self.assertEqual(before, 1)
            self.assertFalse(twin._calls._pool)
            twin.close()


class Held(object):
    """A mapping that waits for an event, which a pickle doesn't hold."""
    def __init__(self, event=None):
        self.event = event

    def __call__(self, data):
        if self.event is not None and data[0] % 3 == 1:
            self.event.wait(DEADLINE)
        return data

    def __getstate__(self):
        return {'event': None}


class FailingExample(object):
    def __call__(self, data):
        return fail(data[0]),

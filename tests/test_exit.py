"""The end of the interpreter, and forks, each in a process of its own.

Whatever a stream was doing: the process ends in time, with the exit code and
the words of its script and no others. The same script, run on the bare
stream, is what most of these are compared to.

"""
from __future__ import absolute_import, division, print_function

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest

import six

import fuel_prefetch
from fuel_prefetch.waiting import monotonic

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(
    fuel_prefetch.__file__)))

# Seconds that a process has for all it does, most of which is to start Python
# and import Fuel; and from its last word to its end. That takes a second or
# so: the reports ask for 5, and a machine that is busy gets twice that.
PROCESS_LIMIT = 60.
EXIT_LIMIT = 10.

# What each script begins with. `wrap` does nothing in the bare run.
PROLOGUE = '''\
from __future__ import print_function
import multiprocessing, os, sys, threading, time
from six.moves import range
from fuel_prefetch import BackgroundDataStream, PrefetchError
from fuel.datasets import Dataset, IterableDataset
from fuel.streams import DataStream
from fuel.transformers import Mapping


def wrap(stream, **kwargs):
    if sys.argv[1] == 'bare':
        return stream
    return BackgroundDataStream(stream, backend=sys.argv[2], **kwargs)


def numbers(count=1000):
    return DataStream(IterableDataset(range(count)))


def stacked():
    stream = numbers()
    for _ in range(3):
        stream = wrap(Mapping(stream, lambda example: example), max_store=1)
    return stream


class Blocking(Dataset):
    """Gives one example; the read of the second never returns."""
    provides_sources = ('data',)
    example_iteration_scheme = None
    reads = 0

    def get_data(self, state=None, request=None):
        self.reads += 1
        if self.reads == 2:
            reached.set()
            forever.acquire()
        return self.reads,


class Slow(Dataset):
    """Each read after the first takes half a second."""
    provides_sources = ('data',)
    example_iteration_scheme = None
    reads = 0

    def get_data(self, state=None, request=None):
        self.reads += 1
        if self.reads > 1:
            reached.set()
            time.sleep(.5)
        return self.reads,


reached = multiprocessing.Event()  # a process may be what reaches it
forever = threading.Lock()
forever.acquire()


def leaving():
    print('leaving')
    sys.stdout.flush()


'''


BARE_RUNS = {}  # script -> code, output and errors


class ProcessTestCase(unittest.TestCase):
    backend = 'thread'
    # What Python prints of the error that the scripts end with.
    error = (r'\ATraceback \(most recent call last\):\n(  .*\n)+'
             r'RuntimeError: in the loop\n\Z')

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.path = os.path.join(self.folder, 'script.py')

    def write(self, script):
        with open(self.path, 'w') as file_:
            file_.write(PROLOGUE + textwrap.dedent(script))

    def run_script(self, kind, interrupt=False, limit=EXIT_LIMIT):
        """Run the script; return its code, output and errors.

        Fail if it takes more than `limit` seconds after its last word.

        Its errors go to a file: nobody needs to read them for the process
        to go on, and a child that was forked may keep that open.

        """
        environment = dict(os.environ, PYTHONPATH=ROOT)
        with open(os.path.join(self.folder, kind), 'w+') as errors:
            process = subprocess.Popen(
                [sys.executable, self.path, kind, self.backend],
                stdout=subprocess.PIPE, stderr=errors, env=environment,
                universal_newlines=True)
            watchdog = threading.Timer(PROCESS_LIMIT, process.kill)
            watchdog.start()
            try:
                output, left = [], None
                # A file that is iterated over reads ahead on Python 2.7.
                for line in iter(process.stdout.readline, ''):
                    if line == 'leaving\n':
                        left = monotonic()
                        if interrupt:
                            process.send_signal(signal.SIGINT)
                    else:
                        output.append(line)
                code = process.wait()
                ended = monotonic()
            finally:
                watchdog.cancel()
                watchdog.join()
                process.stdout.close()
            errors.seek(0)
            errors = errors.read()
        self.assertIsNotNone(left, 'did not get to its end:\n' + errors)
        self.assertLess(ended - left, limit, errors)
        return code, ''.join(output), errors.replace(self.folder, '')

    def assert_same(self, script, code=0):
        """Fail unless `script` ends as it does on the bare stream."""
        self.write(script)
        # Once for all backends.
        if script not in BARE_RUNS:
            BARE_RUNS[script] = self.run_script('bare')
        bare = BARE_RUNS[script]
        self.assertEqual(bare[0], code, bare)
        if code == 1:
            six.assertRegex(self, bare[2], self.error)
        else:
            self.assertEqual(bare[2], '')
        self.assertEqual(self.run_script('prefetched'), bare)

    def assert_ends(self, script, code=0, output='', errors='', **kwargs):
        """Fail unless `script` ends so. Bare, it would never end."""
        self.write(script)
        self.assertEqual(self.run_script('prefetched', **kwargs),
                         (code, output, errors))


class TestExit(ProcessTestCase):
    """R40: the end of the script is the end of the process.

    https://github.com/google/grain/issues/1196
    https://github.com/LiberTEM/LiberTEM/issues/1444

    """
    def test_break(self):
        """R40: a loop that is left, its iterators held by everyone."""
        self.assert_same('''
            held = []

            def main():
                for stream in (wrap(numbers()), wrap(numbers(), max_store=1),
                               wrap(numbers(3), across_epochs=True)
                               if sys.argv[1] != 'bare' else numbers(3)):
                    iterator = stream.get_epoch_iterator()
                    held.append(iterator)
                    for example in iterator:
                        print(example[0])
                        break
                global last
                last = iterator
                leaving()

            main()
            ''')

    def test_large_batches_that_nobody_takes(self):
        """R41: a full store of them does not hold up the exit.

        https://github.com/pytorch/pytorch/issues/48666
        https://github.com/pytorch/pytorch/issues/81794

        """
        self.assert_same('''
            import numpy
            iterators = []
            for _ in range(4):
                stream = wrap(Mapping(numbers(), lambda example: (
                    numpy.zeros(20 * 2 ** 20, dtype='uint8'),)), max_store=2)
                iterators.append(stream.get_epoch_iterator())
                next(iterators[-1])
                while sys.argv[1] != 'bare' and stream.stats.batches_held < 2:
                    time.sleep(.002)
            leaving()
            ''')

    def test_endless_source_that_is_abandoned(self):
        """R43: nothing is begun, nor said, as the interpreter goes down.

        https://github.com/python/cpython/issues/109047
        https://github.com/rohanpm/more-executors/issues/144

        """
        for _ in range(2):
            self.assert_same('''
                import itertools
                stream = DataStream(IterableDataset(itertools.repeat(1)))
                stream = wrap(Mapping(wrap(stream), tuple), max_store=3)
                for example in stream.get_epoch_iterator():
                    break
                leaving()
                ''')

    def test_error_with_the_iterator_in_a_local(self):
        """R40: an error that nobody catches is all that is shown."""
        self.assert_same('''
            def main():
                stream = wrap(numbers(), max_store=2)
                iterator = stream.get_epoch_iterator()
                for example in iterator:
                    leaving()
                    raise RuntimeError('in the loop')

            main()
            ''', 1)

    def test_error_with_the_iterator_in_a_global(self):
        """R40: the same where a module still refers to the iterator."""
        self.assert_same('''
            stream = wrap(numbers(), max_store=2)
            iterator = stream.get_epoch_iterator()

            def main():
                for example in iterator:
                    leaving()
                    raise RuntimeError('in the loop')

            main()
            ''', 1)

    def test_error_in_stacked_streams(self):
        """R40: the same for streams that read ahead of one another."""
        self.assert_same('''
            stream = stacked()
            iterator = stream.get_epoch_iterator()

            def main():
                local = stacked()
                for example in local.get_epoch_iterator():
                    next(iterator)
                    leaving()
                    raise RuntimeError('in the loop')

            main()
            ''', 1)

    def test_error_of_the_source(self):
        """R40: the source's own error is shown once, with its frames."""
        self.write('''
            def broken(example):
                if example[0] == 3:
                    raise KeyError('three')
                return example

            for example in wrap(
                    Mapping(numbers(), broken)).get_epoch_iterator():
                print(example[0])
                if example[0] == 2:
                    leaving()
            ''')
        bare, prefetched = self.run_script('bare'), self.run_script('ahead')
        self.assertEqual(prefetched[:2], bare[:2])
        self.assertEqual(bare[0], 1)
        # That of another process is shown as the cause, if causes are.
        elsewhere = self.backend == 'process'
        self.assertEqual(prefetched[2].count('Traceback'),
                         1 + (elsewhere and six.PY3))
        if six.PY3 or not elsewhere:
            self.assertIn('in broken', prefetched[2])
        self.assertTrue(prefetched[2].endswith("KeyError: 'three'\n"))

    def test_sys_exit(self):
        """R40: the code that a script exits with is the process's."""
        self.assert_same('''
            stream = wrap(numbers(), max_store=1)
            iterator = stream.get_epoch_iterator()
            inner = stacked().get_epoch_iterator()
            for example in iterator:
                next(inner)
                leaving()
                sys.exit(3)
            ''', 3)

    def test_sys_exit_after_an_error_that_was_caught(self):
        """R40: also if the producer rests after an error."""
        self.assert_same('''
            def broken(example):
                if example[0] == 1:
                    raise KeyError('one')
                return example

            iterator = wrap(Mapping(numbers(), broken)).get_epoch_iterator()
            print(next(iterator)[0])
            try:
                next(iterator)
            except KeyError as error:
                print(error.args)
            leaving()
            sys.exit(3)
            ''', 3)

    def test_read_that_never_returns(self):
        """R40: a read that never returns is left where it is.

        After one time limit, not one for each hook that waits. A process
        of a process may end after its parents, as if they had been killed.

        """
        limit = EXIT_LIMIT if self.backend == 'process' else 4
        for stream, ending, code in [
                ('wrap(DataStream(Blocking()))', '', 0),
                ('wrap(Mapping(wrap(DataStream(Blocking())), tuple))',
                 'sys.exit(3)', 3)]:
            self.assert_ends('''
                from fuel_prefetch import waiting
                waiting.EXIT_TIMEOUT = 2.
                stream = {}
                iterator = stream.get_epoch_iterator()
                print(next(iterator)[0])
                reached.wait()
                leaving()
                {}
                '''.format(stream, ending), code, '1\n', limit=limit)

    def test_error_and_a_read_that_never_returns(self):
        """R40: and it does not keep the script's error from being shown."""
        self.write('''
            def main():
                stream = wrap(DataStream(Blocking()))
                iterator = stream.get_epoch_iterator()
                next(iterator)
                reached.wait()
                leaving()
                raise RuntimeError('in the loop')

            main()
            ''')
        code, output, errors = self.run_script('prefetched')
        self.assertEqual((code, output), (1, ''))
        six.assertRegex(self, errors, self.error)

    def test_read_that_returns_while_the_process_ends(self):
        """R40: a read that comes back then finds nothing to disturb."""
        self.assert_ends('''
            stream = wrap(Mapping(wrap(DataStream(Slow())), tuple))
            iterator = stream.get_epoch_iterator()
            next(iterator)
            reached.wait()
            leaving()
            ''')

    def test_daemon_that_is_reading(self):
        """R40: a thread that dies with the process dies in silence."""
        for dataset in 'Slow', 'Blocking':
            self.assert_ends('''
                def read():
                    for example in stream.get_epoch_iterator():
                        pass
                    print('the end')  # which it is not

                stream = wrap(DataStream({}()))
                reader = threading.Thread(target=read)
                reader.daemon = True
                reader.start()
                reached.wait()
                leaving()
                '''.format(dataset))

    def test_thread_that_outlives_the_script(self):
        """R40: a thread that the process waits for reads to the end."""
        self.assert_same('''
            def read():
                go_on.wait()
                print(sum(example[0] for example in iterator))

            go_on = threading.Event()
            iterator = wrap(numbers(1000)).get_epoch_iterator()
            threading.Thread(target=read).start()
            leaving()
            go_on.set()
            ''')

    def test_closed_at_exit(self):
        """R40: a script may close its streams in an exit hook of its own."""
        self.assert_same('''
            import atexit
            stream = wrap(numbers())
            atexit.register(stream.close)
            iterator = stream.get_epoch_iterator()
            print(next(iterator)[0])
            leaving()
            ''')

    def test_interrupted_while_it_waits(self):
        """R40, R46: Ctrl-C ends a script that waits for a batch.

        With a trace of the script, and none of the producer's.

        https://github.com/pytorch/pytorch/pull/11718
        https://github.com/pytorch/pytorch/issues/22924

        """
        self.write('''
            import signal
            signal.signal(signal.SIGINT, signal.default_int_handler)
            stream = wrap(DataStream(Blocking()))
            iterator = stream.get_epoch_iterator()
            print(next(iterator)[0])
            reached.wait()
            leaving()
            next(iterator)
            ''')
        code, output, errors = self.run_script('prefetched', interrupt=True)
        # Python 3.8 and newer end as a signal would have it.
        self.assertIn(code, (1, -signal.SIGINT))
        self.assertEqual(output, '1\n')
        self.assertEqual(errors.count('Traceback'), 1, errors)
        self.assertTrue(errors.endswith('KeyboardInterrupt\n'), errors)


@unittest.skipUnless(hasattr(os, 'fork'), 'there is no fork here')
class TestExitOfProcesses(TestExit):
    """The same where streams are read by processes."""
    backend = 'process'


class TestFork(ProcessTestCase):
    """A fork in the middle of an epoch is told from its parent."""
    # Python 3.12 and newer warn of any fork beside threads.
    fork = '''
        import gc, traceback, warnings

        def in_child(function, seconds=10):
            """Call `function` in a fork, which ends as any process does."""
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')
                child = os.fork()
            if not child:
                function()
                sys.exit(7)
            code = finish(child, seconds)
            assert code == 7, code

        def finish(child, seconds):
            end = time.time() + seconds
            while time.time() < end:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    return (os.WEXITSTATUS(status) if os.WIFEXITED(status)
                            else -os.WTERMSIG(status))
                time.sleep(.002)
            os.kill(child, 9)
            os.waitpid(child, 0)
            return 'hangs'

        def expect_error(iterator):
            try:
                next(iterator)
            except PrefetchError as error:
                assert 'fork' in str(error), error
            else:
                raise AssertionError('a batch of the parent')

        def values(iterator):
            return [example[0] for example in iterator]

        def read_till(held):
            while stream.stats.batches_held < held:
                time.sleep(.002)
        '''

    def assert_forks(self, script):
        self.write(textwrap.dedent(self.fork) + textwrap.dedent(script))
        code, output, errors = self.run_script('prefetched')
        self.assertEqual((code, output, errors), (0, 'as expected\n', ''))

    def test_childs_next_says_that_it_was_forked(self):
        """The epoch goes on in the parent; the child is told so."""
        self.assert_forks('''
            for parameters in {}, {'max_store': 1}, {'max_bytes': 100}, {
                    'across_epochs': True}:
                stream = wrap(numbers(100), **parameters)
                iterator = stream.get_epoch_iterator()
                assert next(iterator) == (0,)

                def child():
                    expect_error(iterator)
                    expect_error(iterator)
                    expect_error(iter(iterator))

                for _ in range(3):
                    in_child(child)
                assert values(iterator) == list(range(1, 100))
                stream.close()
            print('as expected')
            leaving()
            ''')

    def test_child_may_begin_an_epoch(self):
        """A new epoch begins afresh, in the child and in the parent."""
        self.assert_forks('''
            def child():
                mine = stream.get_epoch_iterator()
                expect_error(iterator)
                assert values(mine) == list(range(100))
                assert values(stream.get_epoch_iterator()) == (
                    list(range(100)))
                assert next(mine, 'end') == 'end'

            for parameters in {}, {'max_store': 1}, {'max_bytes': 100}, {
                    'across_epochs': True}:
                stream = wrap(numbers(100), **parameters)
                iterator = stream.get_epoch_iterator()
                assert next(iterator) == (0,)
                in_child(child)
                assert values(iterator) == list(range(1, 100))
                assert values(stream.get_epoch_iterator()) == (
                    list(range(100)))
                stream.close()
            print('as expected')
            leaving()
            ''')

    def test_child_of_stacked_streams_may_begin_an_epoch(self):
        """So it does if streams read ahead of one another."""
        self.assert_forks('''
            def child():
                expect_error(iterator)
                assert values(stream.get_epoch_iterator()) == (
                    list(range(1000)))

            stream = stacked()
            iterator = stream.get_epoch_iterator()
            assert next(iterator) == (0,)
            in_child(child)
            assert values(iterator) == list(range(1, 1000))
            print('as expected')
            leaving()
            ''')

    def test_child_may_close_forget_and_ask(self):
        """The child lets go of the stream; the parent's lives on."""
        self.assert_forks('''
            def close():
                stream.close()
                stream.close()

            def close_stacked():
                inner.close()

            def forget():
                global stream, iterator
                del stream, iterator
                gc.collect()

            def ask():
                assert stream.stats.batches_held == 0
                assert stream.sources == ('data',)

            def control():
                stream.reset()
                stream.next_epoch()
                assert values(stream.get_epoch_iterator()) == (
                    list(range(100)))

            stream = wrap(numbers(100), max_store=3)
            inner = stacked()
            iterator = stream.get_epoch_iterator()
            other = inner.get_epoch_iterator()
            assert next(iterator) == next(other) == (0,)
            read_till(3)
            for function in close, close_stacked, forget, ask, control, (
                    lambda: None):
                in_child(function)
            assert values(iterator) == list(range(1, 100))
            assert values(other) == list(range(1, 1000))
            print('as expected')
            leaving()
            ''')

    def test_child_ends_with_a_read_under_way_in_the_parent(self):
        """A read in the parent, and who waits for it, hold no child up."""
        self.assert_forks('''
            def child():
                expect_error(iterator)

            go_on = threading.Event()

            def wait(example):
                if example[0] == 1:
                    reached.set()
                    go_on.wait(60)
                return example

            stream = wrap(Mapping(numbers(5), wait))
            iterator = stream.get_epoch_iterator()
            assert next(iterator) == (0,)
            reached.wait()
            seen = []
            reader = threading.Thread(
                target=lambda: seen.extend(values(iterator)))
            reader.daemon = True
            reader.start()
            for function in child, stream.close, lambda: None:
                in_child(function)
            go_on.set()
            reader.join()
            assert seen == [1, 2, 3, 4]
            print('as expected')
            leaving()
            ''')

    def test_fork_while_a_lock_is_held(self):
        """No lock that was held in the parent is waited for in the child."""
        self.assert_forks('''
            def tracked():
                locks.append(make_lock())
                return locks[-1]

            def hold():
                for lock in locks:
                    lock.acquire()
                held.set()
                go_on.wait()
                for lock in locks:
                    lock.release()

            def child():
                expect_error(iterator)
                assert stream.stats.batches_held == 0
                assert values(stream.get_epoch_iterator()) == (
                    list(range(100)))

            # All locks of the stream are held by a thread that the child
            # has not got, as they can be, one by one, at any fork.
            locks, make_lock = [], threading.RLock
            for function in child, lambda: stream.close(), lambda: None:
                del locks[:]
                held, go_on = threading.Event(), threading.Event()
                threading.RLock = tracked
                stream = wrap(numbers(100), max_store=3)
                iterator = stream.get_epoch_iterator()
                threading.RLock = make_lock
                assert next(iterator) == (0,)
                read_till(3)
                assert len(locks) > 1
                holder = threading.Thread(target=hold)
                holder.daemon = True
                holder.start()
                held.wait()
                in_child(function)
                go_on.set()
                holder.join()
                assert values(iterator) == list(range(1, 100))
            print('as expected')
            leaving()
            ''')

    def test_fork_at_any_moment(self):
        """Whatever the producer is at, and what lock it holds."""
        self.assert_forks('''
            def child():
                try:
                    expect_error(iterator)
                    assert values(stream.get_epoch_iterator()) == (
                        list(range(5)))
                except BaseException:
                    traceback.print_exc()
                    sys.exit(1)

            for parameters in {}, {'max_bytes': 10000, 'max_store': 3}:
                count = 10 ** 7
                dataset = IterableDataset(range(count))
                stream = wrap(DataStream(dataset), **parameters)
                iterator = stream.get_epoch_iterator()
                stop = threading.Event()

                def read():
                    while not stop.is_set():
                        next(iterator)

                reader = threading.Thread(target=read)
                reader.daemon = True
                reader.start()
                dataset.iterables = [range(5)]
                for _ in range(
                        4 * int(os.environ.get('FUEL_PREFETCH_ROUNDS') or 5)):
                    in_child(child)
                    time.sleep(.001)
                stop.set()
                reader.join()
                next(iterator)
                stream.close()
            print('as expected')
            leaving()
            ''')

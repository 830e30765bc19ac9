"""A stream in a process of its own: its ends, its memory and its state."""
from __future__ import absolute_import, division, print_function

import errno
import itertools
import multiprocessing
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy
import six
from fuel.datasets import Dataset, H5PYDataset, IterableDataset
from fuel.schemes import SequentialScheme, ShuffledScheme
from fuel.streams import DataStream
from fuel.transformers import Mapping
from six.moves import copyreg, range

from fuel_prefetch import (
    BackgroundDataStream, PrefetchError, WorkerDied, WorkerError, memory,
    process, transformers)
from fuel_prefetch.stats import Counters
from tests import ConcurrentTestCase, numbers, wait_until
from tests.chains import write_table
from tests.test_exit import ROOT

CONTEXTS = [multiprocessing.get_context(name) for name in (
    'fork', 'spawn', 'forkserver')] if six.PY3 else [None]
ROUNDS = 40 * int(os.environ.get('FUEL_PREFETCH_ROUNDS') or 5)


def ahead(stream, **kwargs):
    return BackgroundDataStream(stream, backend='process', **kwargs)


def filled(count, *shape):
    return DataStream(IterableDataset([
        numpy.full(shape, number, 'float32') for number in range(count)]))


def descriptors():
    return len(os.listdir('/proc/self/fd'))


def shared():
    """Bytes of the shared memory that this process has mapped."""
    with open('/proc/self/maps') as maps:
        ranges = [line.split()[0].split('-') for line in maps
                  if 'fuel_prefetch' in line]
    return sum(int(end, 16) - int(start, 16) for start, end in ranges)


def pid_of(stream):
    return stream._source._child.process.pid


def gone(pid):
    """Whether a process has ended; one that its parent left counts too."""
    try:
        with open('/proc/{}/stat'.format(pid)) as stat:
            return stat.read().rpartition(')')[2].split()[0] == 'Z'
    except EnvironmentError:
        return True


def add_one(example):
    return example[0] + 1,


def draw(example):
    return example[0], numpy.random.randint(2 ** 30), random.random()


class Two(Exception):
    """It can be pickled, and not be loaded again."""
    def __init__(self, one, two):
        super(Two, self).__init__(one + two)


class Trap(Exception):
    """It can be loaded in the process where it was made alone."""
    home = os.getpid()

    def __reduce__(self):
        return spring, (os.getpid(),)


def spring(pid):
    if os.getpid() != pid:
        raise RuntimeError('sprung')
    return Trap()


def fail_at_three(example):
    if example[0] == 3:
        raise ERRORS[0]
    return example


ERRORS = []


class Strange(Dataset):
    """Does at the fourth example what it is told, in the process."""
    provides_sources = ('data',)
    example_iteration_scheme = None

    def __init__(self, do):
        super(Strange, self).__init__()
        self.do = do
        self.reads = 0

    def get_data(self, state=None, request=None):
        self.reads += 1
        if self.reads == 4:
            return self.do(),
        return self.reads,


def exit_hard():
    os._exit(3)


def same_states():
    """Whether the two generators are to make the same numbers."""
    return (numpy.random.get_state()[1].tolist() ==
            list(random.getstate()[1][:-1]))


def hold_lock():
    return threading.Lock()


class ProcessTestCase(ConcurrentTestCase):
    """Nothing is left: no process, no name, no descriptor."""
    def setUp(self):
        super(ProcessTestCase, self).setUp()
        names = set(os.listdir('/dev/shm'))

        def check():
            self.assertTrue(wait_until(
                lambda: not multiprocessing.active_children()))
            # What others make meanwhile is theirs.
            self.assertTrue(wait_until(lambda: not [
                name for name in set(os.listdir('/dev/shm')) - names
                if 'fuel_prefetch' in name]))
        self.addCleanup(check)

    def read(self, stream):
        return [int(numpy.ravel(data[0])[0])
                for data in stream.get_epoch_iterator()]


class TestDeath(ProcessTestCase):
    def test_random_kills(self):
        """R49: whenever it is killed, an error says so, and nothing is left.

        https://github.com/python/cpython/issues/96062
        https://github.com/python/cpython/issues/82265
        https://github.com/pytorch/pytorch/issues/21554

        """
        rng = random.Random(ROUNDS)
        before = descriptors()
        deaths = 0
        for _ in range(ROUNDS):
            stream = ahead(filled(30, 50, 100),
                           max_store=rng.choice([1, 3, 10]))
            stop = rng.randrange(80)
            try:
                for count, data in enumerate(
                        data for _ in range(2)
                        for data in stream.get_epoch_iterator()):
                    self.assertTrue((data[0] == count % 30).all())
                    if count == stop:
                        os.kill(pid_of(stream), signal.SIGKILL)
            except WorkerDied as error:
                self.assertIn('SIGKILL', str(error))
                deaths += 1
            if stop < 60 and rng.random() < .5:
                for _ in range(2):  # the first may be the one that is told
                    with self.assertRaises(PrefetchError) as raised:
                        stream.get_epoch_iterator()
                self.assertIn('reset()', str(raised.exception))
                stream.reset()
                self.assertEqual(self.read(stream), list(range(30)))
            stream.close()
        self.assertGreater(deaths, ROUNDS // 3)
        del data
        self.assertTrue(wait_until(lambda: descriptors() <= before + 12))

    def test_killed_while_the_reader_waits(self):
        """R49: the reader is told within a second."""
        blocked = multiprocessing.Event()

        def block():
            blocked.set()
            threading.Event().wait()
        stream = ahead(DataStream(Strange(block)))
        iterator = stream.get_epoch_iterator()
        self.assertEqual([next(iterator) for _ in range(3)],
                         [(1,), (2,), (3,)])
        reader = self.start(next, iterator)
        self.assertTrue(blocked.wait(10))
        os.kill(pid_of(stream), signal.SIGTERM)
        with six.assertRaisesRegex(self, WorkerDied, 'SIGTERM'):
            self.join(reader)
        stream.close()

    def test_exit_code(self):
        stream = ahead(DataStream(Strange(exit_hard)))
        iterator = stream.get_epoch_iterator()
        for number in (1, 2, 3):
            self.assertEqual(next(iterator), (number,))
        for _ in range(2):
            with six.assertRaisesRegex(self, WorkerDied, 'code 3'):
                next(iterator)
        stream.close()

    def test_dead_before_it_began(self):
        """Nothing was asked of the stream, so the next process has it."""
        stream = ahead(numbers(3))
        stream._source = stream._make_source(stream.data_stream)
        child = stream._source._reach()
        child._start()
        child.dead = True  # and not ready, as nobody has listened
        self.assertEqual(self.read(stream), [0, 1, 2])
        child.end(0)
        stream.close()

    def test_parent_killed(self):
        """R48: no process outlives it, be it idle, blocked or full.

        https://github.com/tensorpack/tensorpack/issues/1203
        https://github.com/tensorpack/tensorpack/issues/562

        """
        script = '''if True:
            import os, signal, sys, threading
            from tests.test_process import (
                DataStream, Strange, ahead, filled, numbers, pid_of)
            idle, full = ahead(numbers(3)), ahead(filled(99, 99, 99))
            blocked = ahead(DataStream(Strange(threading.Event().wait)))
            streams = [idle, full, blocked]
            for _ in idle.get_epoch_iterator():
                pass
            iterators = [stream.get_epoch_iterator() for stream in streams[1:]]
            for iterator in iterators:
                next(iterator)
            print(*map(pid_of, streams))
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
            '''
        script = 'from __future__ import print_function\n' + script
        process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c', script],
            stdout=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=ROOT))
        pids = process.stdout.readline().split()
        process.wait()
        process.stdout.close()
        self.assertEqual(len(pids), 3)
        self.assertTrue(wait_until(
            lambda: all(gone(int(pid)) for pid in pids), 10), pids)

    def test_after_a_fork(self):
        """The other process has the stream; this one says so."""
        stream = ahead(numbers(5))
        iterator = stream.get_epoch_iterator()
        next(iterator)

        def forked():
            for call in (lambda: next(iterator), stream.get_epoch_iterator):
                try:
                    call()
                    return 2
                except PrefetchError:
                    pass
            stream.reset()
            code = 0 if self.read(stream) == list(range(5)) else 3
            stream.close()
            return code
        self.assertEqual(self.in_child(forked), 0)
        self.assertEqual([data[0] for data in iterator], [1, 2, 3, 4])
        stream.close()


class TestErrors(ProcessTestCase):
    def check(self, error, kind, *texts):
        ERRORS[:] = [error]
        stream = ahead(Mapping(numbers(5), fail_at_three))
        self.addCleanup(stream.close)
        iterator = stream.get_epoch_iterator()
        for number in range(3):
            self.assertEqual(next(iterator), (number,))
        with self.assertRaises(kind) as raised:
            next(iterator)
        self.assertIs(type(raised.exception), kind)
        shown = '{} {}'.format(raised.exception, getattr(
            raised.exception, '__cause__', None))  # on 2.7 it may have none
        for text in texts:
            self.assertIn(text, shown)
        self.assertEqual(next(iterator), (4,))  # the stream goes on
        with self.assertRaises(StopIteration):
            next(iterator)
        return raised.exception

    def test_own_type(self):
        """R12: the frames of the process are shown as its cause.

        https://github.com/uber/petastorm/issues/268

        """
        error = self.check(KeyError('x', 1), KeyError, 'fail_at_three')
        self.assertEqual(error.args, ('x', 1))

    def test_type_that_another_library_pickles(self):
        """What is set for all pickles of the process makes no difference."""
        if not six.PY3:
            return  # no pickler of 2.7's can be told otherwise
        error = IOError(errno.ENOENT, 'third')
        before = dict(copyreg.dispatch_table)
        copyreg.pickle(type(error), lambda error: (ValueError, ('other',)))
        try:
            self.check(error, type(error), 'third')
        finally:
            copyreg.dispatch_table.clear()
            copyreg.dispatch_table.update(before)

    def test_constructor_that_wants_more(self):
        """R13: no error of the constructor's takes its place.

        https://github.com/pytorch/pytorch/issues/34130

        """
        self.check(Two('a', 'b'), WorkerError, 'Two', 'ab', 'fail_at_three')
        failed = subprocess.CalledProcessError(2, 'ls')
        if six.PY3:
            error = self.check(failed, type(failed), 'fail_at_three')
            self.assertEqual((error.returncode, error.cmd), (2, 'ls'))
        else:
            self.check(failed, WorkerError, 'CalledProcessError', 'ls')

    def test_local_class(self):
        """R13: a class that can't be found is named."""
        class Local(Exception):
            pass
        self.check(Local('here'), WorkerError, 'Local', 'here',
                   'fail_at_three')

    def test_breaks_while_it_is_loaded(self):
        self.check(Trap(), WorkerError, 'Trap', 'fail_at_three')

    def test_item_that_cannot_be_pickled(self):
        """R54: the error comes in its place, and names it.

        https://github.com/python/cpython/issues/84376
        https://github.com/python/cpython/issues/74599
        https://github.com/python/cpython/issues/79423

        """
        stream = ahead(DataStream(Strange(hold_lock)))
        iterator = stream.get_epoch_iterator()
        for number in (1, 2, 3):
            self.assertEqual(next(iterator), (number,))
        with six.assertRaisesRegex(
                self, (TypeError, pickle.PicklingError), 'lock'):
            next(iterator)
        self.assertEqual(next(iterator), (5,))
        stream.close()

    def test_stream_that_cannot_be_sent(self):
        """R68: what can't be pickled is named, and nothing starts."""
        for context in CONTEXTS[1:]:
            stream = ahead(Mapping(numbers(3), lambda data: data),
                           context=context)
            with six.assertRaisesRegex(
                    self, (AttributeError, pickle.PicklingError), 'lambda'):
                stream.get_epoch_iterator()
            stream.data_stream = Mapping(numbers(3), add_one)
            self.assertEqual(self.read(stream), [1, 2, 3])
            stream.close()

    def test_no_guard_in_the_main_module(self):
        """Whoever forgot it is told, rather than that the parent hangs."""
        if not six.PY3:
            return
        with tempfile.NamedTemporaryFile('w', suffix='.py') as script:
            script.write(
                'import multiprocessing, numpy\n'
                'from tests.test_process import ahead, filled\n'
                'ahead(filled(40, 50, 100), context=multiprocessing.'
                'get_context("spawn")).get_epoch_iterator()\n')
            script.flush()
            process = subprocess.Popen(
                [sys.executable, '-W', 'ignore', script.name],
                stderr=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=ROOT))
            _, errors = process.communicate()
        self.assertEqual(process.returncode, 1)
        six.assertRegex(self, errors.decode(),
                        r"WorkerDied: .* code 1.*__name__ == '__main__'\s*\Z")


class TestContexts(ProcessTestCase):
    def test_windows(self):
        """There is none of it there, which is said at once."""
        class Windows(object):
            name = 'nt'
        transformers.os, here = Windows, transformers.os
        try:
            with six.assertRaisesRegex(self, ValueError,
                                       "backend .*Windows.*'process'"):
                ahead(numbers(3))
        finally:
            transformers.os = here

    def test_every_one(self):
        """Batches, epochs, pickles and the end, however it was started."""
        for context in CONTEXTS:
            stream = ahead(Mapping(filled(12, 9, 999), add_one), max_store=3,
                           context=context)
            self.assertEqual(self.read(stream), list(range(1, 13)))
            iterator = stream.get_epoch_iterator()
            self.assertTrue((next(iterator)[0] == 1).all())
            twin, rest = pickle.loads(pickle.dumps((stream, iterator)))
            for left in iterator, rest:
                self.assertEqual([int(data[0][0, 0]) for data in left],
                                 list(range(2, 13)))
            self.assertEqual(self.read(twin), list(range(1, 13)))
            stream.close()
            twin.close()

    def test_bad_ones(self):
        for context in ('fork', 5):
            with six.assertRaisesRegex(self, ValueError, 'context'):
                ahead(numbers(3), context=context)
        with six.assertRaisesRegex(self, ValueError, 'context'):
            BackgroundDataStream(numbers(3), context=multiprocessing)

    def test_handlers_stay_with_the_parent(self):
        """R46: Ctrl-C, and other signals the parent handles, are its own.

        https://github.com/pytorch/pytorch/pull/11718
        https://github.com/pytorch/pytorch/issues/22924

        """
        def handlers():
            return ([signal.getsignal(number) == default
                     for number, default in ((signal.SIGINT, signal.SIG_IGN),
                                             (signal.SIGUSR1, signal.SIG_DFL))]
                    + [not six.PY3 or signal.SIGINT not in
                       signal.pthread_sigmask(signal.SIG_BLOCK, ())])
        before = signal.signal(signal.SIGUSR1, lambda *_: None)
        try:
            stream = ahead(DataStream(Strange(handlers)))
            iterator = stream.get_epoch_iterator()
            for _ in range(3):
                next(iterator)
            self.assertEqual(next(iterator), ([True, True, True],))
            stream.close()
        finally:
            signal.signal(signal.SIGUSR1, before)

    def test_random_states(self):
        """R55: no two processes or epochs share one; a seed repeats them.

        https://github.com/pytorch/pytorch/issues/5059
        https://github.com/pytorch/pytorch/issues/3880
        https://github.com/pytorch/pytorch/issues/41329

        """
        def run():
            streams = [ahead(Mapping(numbers(5), draw)) for _ in range(2)]
            drawn = [data[1:] for stream in streams for _ in range(3)
                     for data in stream.get_epoch_iterator()]
            for stream in streams:
                stream.close()
            return drawn
        states = numpy.random.get_state(), random.getstate()
        try:
            runs = []
            for _ in range(2):
                numpy.random.seed(1)
                random.seed(1)
                process._starts = itertools.count()
                runs.append(run())
                mine = numpy.random.randint(2 ** 30), random.random()
            self.assertEqual(runs[0], runs[1])
            drawn = runs[0] + [mine]
            self.assertEqual(len({one for one, _ in drawn}), len(drawn))
            self.assertEqual(len({one for _, one in drawn}), len(drawn))
            # Who uses one of them has to seed only that.
            for which, seed in enumerate([numpy.random.seed, random.seed]):
                for module in numpy.random, random:
                    module.seed()
                seed(1)
                process._starts = itertools.count()
                again = run()
                self.assertEqual([data[which] for data in again],
                                 [data[which] for data in runs[0]])
                self.assertNotEqual([data[1 - which] for data in again],
                                    [data[1 - which] for data in runs[0]])
        finally:
            numpy.random.set_state(states[0])
            random.setstate(states[1])

    def test_random_states_differ_from_one_another(self):
        stream = ahead(DataStream(Strange(same_states)))
        self.assertEqual(list(itertools.islice(
            stream.get_epoch_iterator(), 4))[3], (False,))
        stream.close()

    def test_hdf5_file_that_was_read_before(self):
        """R57: both processes read the right examples of one file.

        https://github.com/mila-iqia/fuel/issues/47
        https://github.com/h5py/h5py/issues/934
        https://github.com/torchmd/torchmd-net/pull/84

        """
        directory = tempfile.mkdtemp()
        path = write_table(directory)

        def make(dataset):
            scheme = ShuffledScheme(dataset.num_examples, 4,
                                    rng=numpy.random.RandomState(1))
            return DataStream(dataset, iteration_scheme=scheme)
        try:
            dataset = H5PYDataset(path, which_sets=('train',))
            other = DataStream(dataset, iteration_scheme=SequentialScheme(
                dataset.num_examples, 3))
            expected = list(other.get_epoch_iterator())
            stream = ahead(make(dataset), max_store=2)
            bare = make(H5PYDataset(path, which_sets=('train',)))
            for _ in range(5):
                here = other.get_epoch_iterator()
                for ours, theirs in zip(stream.get_epoch_iterator(),
                                        bare.get_epoch_iterator()):
                    for one, another in zip(ours, theirs):
                        numpy.testing.assert_array_equal(one, another)
                    next(here, None)
                for ours, theirs in zip(other.get_epoch_iterator(), expected):
                    for one, another in zip(ours, theirs):
                        numpy.testing.assert_array_equal(one, another)
            bare.close()
            stream.close()
        finally:
            os.unlink(path)
            os.rmdir(directory)

    def test_own_place_in_a_file(self):
        """A file that was open before has a place for each process."""
        with tempfile.TemporaryFile() as opened:
            opened.write(b'0123456789')
            opened.flush()
            os.lseek(opened.fileno(), 2, os.SEEK_SET)
            stream = ahead(DataStream(Strange(
                lambda: os.read(opened.fileno(), 3))))
            self.assertEqual([
                data for data, in itertools.islice(
                    stream.get_epoch_iterator(), 4)], [1, 2, 3, b'234'])
            self.assertEqual(os.read(opened.fileno(), 3), b'234')
            stream.close()


class TestMemory(ProcessTestCase):
    def test_batches_that_are_kept(self):
        """R52: a thousand of them stay what they are.

        https://github.com/pytorch/pytorch/issues/11201
        https://github.com/pytorch/pytorch/issues/973
        https://github.com/pytorch/pytorch/issues/65198

        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE,
                           (descriptors() + 60, hard))
        try:
            stream = ahead(filled(1000, 25000), max_store=5)
            kept = list(stream.get_epoch_iterator())
            self.assertLess(shared(), 40 * 10 ** 5)
            for number, data in enumerate(kept):
                self.assertTrue((data[0] == number).all())
                self.assertTrue(data[0].flags.writeable)
                data[0][:] = -1
            for _, data in zip(range(20), stream.get_epoch_iterator()):
                del data
            self.assertTrue(all((data[0] == -1).all() for data in kept))
            stream.close()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        del kept

    def test_comes_back(self):
        """What nobody holds is used again."""
        stream = ahead(filled(300, 25000), max_store=5)
        for _ in range(2):
            for _ in stream.get_epoch_iterator():
                pass
            self.assertLess(shared(), 25 * 10 ** 5)
        stream.close()

    def test_many_arrays(self):
        """More than fit into a message: their sizes are a buffer, too."""
        for count, size in [(5000, 1), (3000, 100), (30, 300), (2, 0)]:
            batches = [tuple(numpy.full(size, number * count + index)
                             for index in range(count))
                       for number in range(3)]
            stream = ahead(DataStream(IterableDataset(batches)))
            for (batch,), expected in zip(
                    stream.get_epoch_iterator(), batches):
                self.assertEqual(len(batch), count)
                for one, other in zip(batch, expected):
                    numpy.testing.assert_array_equal(one, other)
            stream.close()

    def test_larger_than_all_before(self):
        sizes = [10, 10 ** 4, 10 ** 6, 10, 3 * 10 ** 6, 10 ** 5] * 3
        stream = ahead(DataStream(IterableDataset([
            numpy.full(size, size, 'int64') for size in sizes])),
            max_store=2, max_bytes=1000)
        for (data,), size in zip(stream.get_epoch_iterator(), sizes):
            self.assertEqual(data.shape, (size,))
            self.assertTrue((data == size).all())
        stream.close()

    def test_no_room(self):
        """Where there is none, the reader is told, and no signal comes."""
        def refuse():
            raise EnvironmentError(errno.ENOSPC, 'no space')

        def first_only():
            if begun:
                refuse()
            begun.append(True)
            return places[-1]()
        places, fallocate = memory.PLACES[:], memory._fallocate
        try:
            # None here, and none where the batches are made.
            for chosen in [refuse], [first_only]:
                begun = []
                memory.PLACES[:] = chosen
                stream = ahead(filled(3, 10 ** 5))
                with six.assertRaisesRegex(self, MemoryError, 'no space'):
                    next(stream.get_epoch_iterator())
                stream.close()
                self.assertEqual(begun, [True] * len(begun))
            self.assertTrue(begun)
            # Files, then; also where room is only had by writing to them.
            memory.PLACES[:] = [refuse, places[-1]]
            for memory._fallocate in fallocate, None:
                stream = ahead(filled(3, 10 ** 6))
                self.assertEqual(self.read(stream), [0, 1, 2])
                stream.close()
        finally:
            memory.PLACES[:], memory._fallocate = places, fallocate

    def test_memory_that_cannot_be_mapped(self):
        """It is an error in the place of the batch in it, and no other."""
        def refuse_once(descriptor, nbytes):
            memory.map_segment = before
            os.close(descriptor)
            raise EnvironmentError(errno.ENOMEM, 'no memory left')
        before = memory.map_segment
        sizes = [10] * 8 + [10 ** 5, 10 ** 5, 10, 10 ** 6]
        stream = ahead(DataStream(IterableDataset([
            numpy.full(size, size) for size in sizes])), max_store=1)
        try:
            iterator = stream.get_epoch_iterator()
            for number, size in enumerate(sizes):
                if number == 1:  # not in the process, which has begun by now
                    memory.map_segment = refuse_once
                if number == 8:
                    with six.assertRaisesRegex(
                            self, MemoryError, 'no memory left'):
                        next(iterator)
                else:
                    self.assertTrue((next(iterator)[0] == size).all())
            self.assertRaises(StopIteration, next, iterator)
        finally:
            memory.map_segment = before
        stream.close()

    def test_no_descriptors_left(self):
        """The reader is told, and reads on when there are some again."""
        script = '''if True:
            import resource, sys
            from tests import wait_until
            from tests.test_process import (
                DataStream, IterableDataset, ahead, numpy)
            sizes = [20000 * number ** 2 for number in range(1, 20)]
            stream = ahead(DataStream(IterableDataset([
                numpy.full(size, 1, 'uint8') for size in sizes])), max_store=2)
            iterator = stream.get_epoch_iterator()
            found, files = [next(iterator)[0].size], []
            # Nobody has one open for a moment only, then.
            assert wait_until(lambda: stream.stats.batches_held == 2)
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            try:
                while True:
                    files.append(open('/dev/null'))
            except EnvironmentError:
                pass
            while len(found) < len(sizes):
                try:
                    found.append(next(iterator)[0].size)
                except MemoryError:
                    found.append(None)
                    del files[:]
            assert next(iterator, None) is None
            stream.close()
            print(None in found)
            print(all(one in (None, other)
                      for one, other in zip(found, sizes)))
            print(found[-5:] == sizes[-5:])
            '''
        output = subprocess.check_output(
            [sys.executable, '-W', 'ignore', '-c', script],
            env=dict(os.environ, PYTHONPATH=ROOT))
        self.assertEqual(output.split(), [b'True'] * 3)

    def test_no_name_and_no_word(self):
        """R51: whichever way it ends, nothing is left and nothing printed.

        https://github.com/python/cpython/issues/104291
        https://github.com/python/cpython/issues/116849

        """
        script = '''if True:
            import multiprocessing, os, signal, sys
            from tests.test_process import ahead, filled, pid_of
            if __name__ == '__main__':
                how, method = sys.argv[1:]
                stream = ahead(
                    filled(50, 10 ** 5), context=None if method == 'None' else
                    multiprocessing.get_context(method))
                for number, data in enumerate(stream.get_epoch_iterator()):
                    if number == 5 and how != 'end':
                        break
                if how == 'error':
                    raise SystemExit(3)
                if how == 'killed':
                    os.kill(pid_of(stream), signal.SIGKILL)
            '''
        with tempfile.NamedTemporaryFile('w', suffix='.py') as file_:
            file_.write(script)
            file_.flush()
            for how, method in [('end', 'None'), ('break', 'None'),
                                ('error', 'None'), ('killed', 'None'),
                                ('break', 'spawn')][:4 + six.PY3]:
                process = subprocess.Popen(
                    [sys.executable, '-W', 'ignore', file_.name, how, method],
                    stderr=subprocess.PIPE,
                    env=dict(os.environ, PYTHONPATH=ROOT))
                _, errors = process.communicate()
                self.assertEqual((process.returncode, errors),
                                 (3 if how == 'error' else 0, b''))


class Endless(Dataset):
    """Its state is a generator, which nothing can pickle."""
    provides_sources = ('data',)
    example_iteration_scheme = None

    def __init__(self):
        super(Endless, self).__init__()
        self.numbers = (number for number in itertools.count())

    def get_data(self, state=None, request=None):
        return next(self.numbers),


class TestReports(ProcessTestCase):
    """What else was reported of layers that read in a process."""
    def test_epoch_that_is_left_early(self):
        """R02: its rest is no part of the next.

        https://github.com/mila-iqia/fuel/pull/33

        """
        rng = random.Random(2)
        stream = ahead(DataStream(IterableDataset([0, 2, 4, 6, 8])),
                       max_store=3)
        for _ in range(20):
            iterator = stream.get_epoch_iterator()
            for _ in range(rng.randrange(5)):
                next(iterator)
            del iterator
            stream.reset()  # as this stream goes on where it is
            self.assertEqual(self.read(stream), [0, 2, 4, 6, 8])
        stream.close()

    def test_error_in_the_middle(self):
        """R10: it comes in its place, and afterwards there is no process.

        https://github.com/RadarML/red-rover/issues/23
        https://github.com/meta-pytorch/data/pull/1003
        https://github.com/keras-team/keras/issues/1533

        """
        for max_store in (1, 8):
            ERRORS[:] = [KeyError('three', 3)]
            stream = ahead(Mapping(numbers(10), fail_at_three),
                           max_store=max_store)
            iterator = stream.get_epoch_iterator()
            self.assertEqual([next(iterator)[0] for _ in range(3)], [0, 1, 2])
            with self.assertRaises(KeyError) as raised:
                next(iterator)
            self.assertEqual(raised.exception.args, ('three', 3))
            pid = pid_of(stream)
            stream.close()
            self.assertTrue(gone(pid))

    def test_stack(self):
        """R44: threads and processes within one another end together.

        https://github.com/meta-pytorch/data/issues/1176
        https://github.com/meta-pytorch/data/issues/1169

        """
        ERRORS[:] = [KeyError('bottom')]
        for backends in itertools.product(['thread', 'process'], repeat=2):
            for mapping, taken in [(tuple, 1), (tuple, 99),
                                   (fail_at_three, 3)]:
                stream = Mapping(numbers(20), mapping)
                for backend in backends:
                    stream = Mapping(BackgroundDataStream(
                        stream, max_store=1, backend=backend), tuple)
                top = BackgroundDataStream(stream, max_store=1)
                iterator = top.get_epoch_iterator()
                for _ in zip(range(taken), iterator):
                    pass
                if mapping is fail_at_three:
                    with six.assertRaisesRegex(self, KeyError, 'bottom'):
                        next(iterator)
                self.within(5, top.close)

    def test_checkpoint_that_cannot_be_made(self):
        """R68: the error names what it is, and nothing is lost by it.

        https://github.com/mila-iqia/fuel/issues/44
        https://github.com/mila-iqia/blocks/pull/112

        """
        stream = ahead(DataStream(Endless()), max_store=3)
        iterator = stream.get_epoch_iterator()
        for number in range(30):
            self.assertEqual(next(iterator), (number,))
            if number % 7 == 2:
                with six.assertRaisesRegex(
                        self, (TypeError, pickle.PicklingError), 'generator'):
                    pickle.dumps((stream, iterator))
        stream.close()
        with six.assertRaisesRegex(self, PrefetchError, r'reset\(\)'):
            stream.get_epoch_iterator()

    def test_interrupt_of_the_group(self):
        """R46: the parent is the one that Ctrl-C interrupts.

        https://github.com/pytorch/pytorch/pull/11718
        https://github.com/pytorch/pytorch/issues/22924

        """
        script = '\n'.join([
            'from __future__ import print_function',
            'import sys, threading',
            'from tests.test_process import *',
            'def block():',
            '    blocked.set()',
            '    threading.Event().wait()',
            'blocked = multiprocessing.Event()',
            'stream = ahead(DataStream(Strange(block)))',
            'iterator = stream.get_epoch_iterator()',
            'for _ in range(3):',
            '    next(iterator)',
            'blocked.wait()',
            'try:',
            '    print(pid_of(stream))',
            '    sys.stdout.flush()',
            '    next(iterator)',
            'except KeyboardInterrupt:',
            '    sys.exit(7)'])
        process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c', script],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=os.setsid, env=dict(os.environ, PYTHONPATH=ROOT))
        pid = int(process.stdout.readline())
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
        self.assertEqual((process.returncode, errors), (7, b''))
        self.assertTrue(wait_until(lambda: gone(pid)))


@unittest.skipUnless(hasattr(os, 'fork'), 'there is no fork here')
class TestOpening(ProcessTestCase):
    """An epoch is read from as soon as it has begun, as far as may be."""
    def open(self, mapping, count=50, max_bytes=None):
        """Return the source of a stream, and a counter of its reads."""
        reads = multiprocessing.Value('i')

        def counted(example):
            reads.value += 1
            return mapping(example)

        source = process.ProcessSource(
            Mapping(numbers(count), counted), Counters(), max_bytes,
            CONTEXTS[0], 'test')
        source.share(10)  # of which 6 may be under way
        source.open_iterator()
        self.addCleanup(source.close)
        return source, reads

    def read_to(self, source, reads, count):
        """Wait for so many reads, and see that no more are made."""
        self.assertTrue(wait_until(lambda: reads.value == count))
        source.rest()
        source.rest()
        self.assertEqual(reads.value, count)

    def test_unasked(self):
        source, reads = self.open(tuple)
        self.read_to(source, reads, 6)
        iterator = source._child
        self.assertEqual(list(iterator), [(i,) for i in range(50)])

    def test_new_epoch_before_that_is_taken(self):
        source, reads = self.open(tuple)
        for epoch in 1, 2, 3:
            self.read_to(source, reads, 6 * epoch)
            source.open_iterator()
        self.assertEqual(source.counters.batches_dropped, 18)
        self.assertEqual(list(source._child), [(i,) for i in range(50)])

    def test_short_epochs(self):
        source, reads = self.open(tuple, 2)
        for epoch in 1, 2, 3:
            self.read_to(source, reads, 2 * epoch)
            self.assertEqual(list(source._child), [(0,), (1,)])
            source.open_iterator()

    def test_not_past_an_error(self):
        def fail(example):
            if example[0] == 2:
                raise KeyError(2)
            return example

        source, reads = self.open(fail)
        self.read_to(source, reads, 3)
        iterator = source._child
        self.assertEqual([next(iterator), next(iterator)], [(0,), (1,)])
        with self.assertRaises(KeyError):
            next(iterator)
        self.assertEqual(list(iterator), [(i,) for i in range(3, 50)])

    def test_one_where_bytes_are_counted(self):
        source, reads = self.open(tuple, max_bytes=1000)
        self.read_to(source, reads, 1)
        self.assertEqual(next(source._child), (0,))


class TestArena(ConcurrentTestCase):
    """The account of free memory, against a simple model."""
    def test_random(self):
        rng = random.Random(1)
        arena, views = memory.Arena(), memory.Views()

        def announce(number, descriptor, nbytes, given_up):
            views.forget(given_up)
            views.attach(number, os.dup(descriptor), nbytes)
        held = []
        for step in range(4000):
            if held and rng.random() < (.45 if step % 1000 < 700 else .6):
                number, offset, seen, mark = held.pop(rng.randrange(len(held)))
                self.assertTrue((seen == mark).all())
                seen = None
                arena.free(*views.freed.pop())
            else:
                nbytes = rng.choice([1, 64, 65, 1000, rng.randrange(1, 50000)])
                number, offset, region = arena.allocate(nbytes, announce)
                seen = views.view(number, offset, nbytes, 10 ** 6)
                mark = step % 251
                region[:] = mark
                held.append((number, offset, seen, mark))
        for _, _, seen, mark in held:
            self.assertTrue((seen == mark).all())
        del held[:], seen
        while views.freed:
            arena.free(*views.freed.pop())
        self.assertTrue(all(len(holes) == 1
                            for holes in arena._holes.values()))

"""Tests of BackgroundGenerator and its decorator."""
from __future__ import absolute_import, division, print_function

import copy
import decimal
import gc
import inspect
import itertools
import os
import pickle
import sys
import threading
import traceback
import unittest
import warnings
import weakref

import numpy
import six
from six.moves import range

from fuel_prefetch import (
    BackgroundGenerator, PrefetchError, PrefetchWarning, background)
from tests import ConcurrentTestCase, Gated, Raise, wait_until
from tests.test_exit import ProcessTestCase


def threads():
    """Return the threads that compute ahead."""
    return [thread for thread in threading.enumerate()
            if thread.name == 'fuel_prefetch: BackgroundGenerator']


class GeneratorTestCase(ConcurrentTestCase):
    def wrap(self, generator, *args, **kwargs):
        ahead = BackgroundGenerator(generator, *args, **kwargs)
        self.addCleanup(ahead.close)
        return ahead


class TestIteration(GeneratorTestCase):
    def test_any_iterable(self):
        class Old(object):
            """What can be iterated over by its items alone."""
            def __getitem__(self, index):
                if index == 3:
                    raise IndexError
                return index

        for iterable in ([0, 1, 2], (0, 1, 2), range(3), iter([0, 1, 2]),
                         (number for number in range(3)), Old(),
                         itertools.islice(itertools.count(), 3)):
            ahead = self.wrap(iterable)
            self.assertIs(iter(ahead), ahead)
            self.assertEqual(list(ahead), [0, 1, 2])
            for _ in range(3):
                self.assertRaises(StopIteration, next, ahead)

    def test_any_depth(self):
        for depth in (1, 2, 100, None, -1, numpy.int64(2)):
            self.assertEqual(list(self.wrap(range(50), depth)),
                             list(range(50)))

    def test_any_item(self):
        """None and what else could be taken for an end or an error."""
        items = [None, (), StopIteration, StopIteration(), ValueError('x'),
                 Ellipsis, [], 0, None]
        self.assertEqual([id(item) for item in self.wrap(items)],
                         [id(item) for item in items])

    def test_starts_at_construction(self):
        source = Gated(range(9))
        self.wrap(source)
        source.wait_asked(1)
        source.permit(9)
        source.wait_asked(2)  # one held, one under way

    def test_bounded(self):
        for depth in (1, 3):
            source = Gated(range(99))
            source.permit(99)
            ahead = self.wrap(source, max_prefetch=depth)
            for number in range(5):
                self.assertTrue(wait_until(
                    lambda: source.asked == number + depth + 1))
                self.assertEqual(next(ahead), number)
                self.assertLessEqual(source.asked, number + depth + 2)

    def test_length(self):
        self.assertEqual(len(self.wrap([1, 2, 3])), 3)
        ahead = self.wrap(number for number in range(3))
        self.assertRaises(TypeError, len, ahead)
        self.assertTrue(ahead)
        self.assertTrue(self.wrap([]))
        self.assertEqual(list(ahead), [0, 1, 2])

    def test_stats(self):
        ahead = self.wrap([numpy.zeros(4)] * 3)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            list(ahead)
        self.assertEqual(ahead.stats.batches_taken, 3)
        self.assertEqual(ahead.stats.bytes_taken, 96)

    def test_one_thread(self):
        def generate():
            for _ in range(9):
                yield threading.current_thread()

        self.assertEqual(len(set(self.wrap(generate()))), 1)

    def test_callers_settings(self):
        """R27: the thread has those of who made it.

        https://github.com/marin-community/marin/pull/6317

        """
        def generate():
            while True:
                yield decimal.getcontext().prec

        with decimal.localcontext() as context:
            context.prec = 7
            ahead = self.wrap(generate())
            context.prec = 9
            self.assertEqual([next(ahead) for _ in range(4)], [7] * 4)

    def test_readers_share(self):
        ahead = self.wrap(range(500), 3)
        readers = [self.start(list, ahead) for _ in range(4)]
        self.assertEqual(
            sorted(item for reader in readers for item in self.join(reader)),
            list(range(500)))

    def test_refilled_array(self):
        def generate():
            array = numpy.zeros(3)
            for number in range(9):
                array[:] = number
                yield array

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            list(self.wrap(generate(), 3))
        found = [warning for warning in caught
                 if warning.category is PrefetchWarning]
        self.assertEqual(len(found), 1)
        self.assertIn('yield copies', str(found[0].message))
        self.assertEqual(os.path.splitext(found[0].filename)[0],
                         os.path.splitext(__file__)[0])


class TestErrors(GeneratorTestCase):
    def test_error_in_its_place(self):
        def generate():
            yield 1
            yield 2
            raise KeyError('three')

        ahead = self.wrap(generate(), None)
        self.assertEqual([next(ahead), next(ahead)], [1, 2])
        with self.assertRaises(KeyError) as caught:
            try:
                next(ahead)
            except KeyError:
                text = traceback.format_exc()
                raise
        self.assertEqual(caught.exception.args, ('three',))
        self.assertIn('in generate', text)
        for _ in range(3):
            self.assertRaises(StopIteration, next, ahead)

    def test_iterator_that_goes_on(self):
        source = Gated([1, Raise(ValueError('two')), 3])
        source.permit(9)
        ahead = self.wrap(source, None)
        self.assertEqual(next(ahead), 1)
        self.assertRaises(ValueError, next, ahead)
        self.assertEqual(source.asked, 2)  # not past it unasked
        self.assertEqual(list(ahead), [3])

    def test_every_kind(self):
        for kind in (SystemExit, KeyboardInterrupt, MemoryError):
            def generate():
                raise kind
                yield
            self.assertRaises(kind, next, self.wrap(generate()))

    def test_bad_arguments(self):
        for bad in (0, -2, 1.5, '3', True):
            for call in (lambda: BackgroundGenerator([], bad),
                         lambda: background(max_prefetch=bad),
                         lambda: background(bad)):
                with self.assertRaises(ValueError) as caught:
                    call()
                self.assertIn('max_prefetch', str(caught.exception))
                self.assertIn(repr(bad), str(caught.exception))
        for bad in ('x', -1, True):
            with BackgroundGenerator([]) as generator:
                six.assertRaisesRegex(self, ValueError, 'timeout .*seconds',
                                      generator.close, bad)
        six.assertRaisesRegex(self, TypeError, 'generator.*17',
                              BackgroundGenerator, 17)
        six.assertRaisesRegex(self, TypeError, 'got 17', background(), 17)

    def test_iter_that_fails(self):
        class Broken(object):
            def __iter__(self):
                raise ValueError('no')
        self.assertRaises(ValueError, BackgroundGenerator, Broken())

    def test_what_a_generator_ahead_cannot_do(self):
        """R25: a clear error rather than one from inside.

        https://github.com/shaoanlu/faceswap-GAN/issues/77

        """
        ahead = self.wrap(iter(range(9)))
        six.assertRaisesRegex(self, TypeError, 'ahead', ahead.send, None)
        six.assertRaisesRegex(self, TypeError, 'ahead', ahead.throw, KeyError)
        for call in (pickle.dumps, copy.copy, copy.deepcopy):
            six.assertRaisesRegex(self, TypeError, 'pickled', call, ahead)
        self.assertEqual(list(ahead), list(range(9)))


class TestEndings(GeneratorTestCase):
    def generate(self, closed):
        try:
            for number in itertools.count():
                yield number
        finally:
            closed.append(threading.current_thread())

    def test_close(self):
        closed = []
        generator = self.generate(closed)
        ahead = self.wrap(generator, 3)
        self.assertEqual(next(ahead), 0)
        thread, = threads()
        ahead.close()
        self.assertEqual(closed, [thread])
        six.assertRaisesRegex(self, PrefetchError, 'closed', next, ahead)
        self.assertEqual(threads(), [])
        ahead.close()
        self.assertEqual(len(closed), 1)

    def test_with(self):
        closed = []
        with BackgroundGenerator(self.generate(closed)) as ahead:
            next(ahead)
        self.assertEqual(len(closed), 1)

    def test_close_wakes_who_waits(self):
        source = Gated([])
        ahead = self.wrap(source)
        reader = self.start(next, ahead)
        source.wait_asked(1)
        closer = self.start(ahead.close)
        self.assertRaises(PrefetchError, self.join, reader)
        source.permit()
        self.join(closer)

    def test_error_in_closing(self):
        def generate():
            try:
                while True:
                    yield 1
            finally:
                raise ValueError('in finally')

        ahead = BackgroundGenerator(generate())
        next(ahead)
        six.assertRaisesRegex(self, ValueError, 'in finally', ahead.close)
        ahead.close()

    def test_forgotten(self):
        """R35, R36: it lives as long as it is iterated over, no longer.

        https://github.com/apache/mxnet/pull/15195
        https://github.com/allenai/OLMo-core/issues/703

        """
        for depth in (1, None):
            closed = []
            iterator = iter(BackgroundGenerator(
                itertools.islice(self.generate(closed), 10 ** 5), depth))
            gc.collect()
            self.assertEqual(next(iterator), 0)
            reference = weakref.ref(iterator)
            del iterator
            gc.collect()
            self.assertIs(reference(), None)
            self.assertTrue(wait_until(lambda: not threads(), 3))
            gc.collect()
            self.assertEqual(len(closed), 1)

    def test_forgotten_generator_is_closed_on_its_thread(self):
        closed = []
        generator = self.generate(closed)  # which somebody else holds
        ahead = BackgroundGenerator(generator)
        next(ahead)
        thread, = threads()
        del ahead
        self.assertTrue(wait_until(lambda: closed == [thread], 3))

    def test_stacked(self):
        for count in (1, 50):
            ahead = range(50)
            for _ in range(4):
                ahead = BackgroundGenerator(
                    number + 1 for number in ahead)
            self.assertEqual([next(ahead) for _ in range(count)],
                             list(range(4, count + 4)))
            self.within(5, ahead.close)
            del ahead
            gc.collect()
            self.assertTrue(wait_until(lambda: not threads(), 3))

    @unittest.skipUnless(hasattr(os, 'fork'), 'there is no fork')
    def test_forked(self):
        ahead = self.wrap(range(100))
        next(ahead)

        def child():
            try:
                next(ahead)
            except PrefetchError as error:
                if 'fork' in str(error):
                    ahead.close()
                    return 7
            return 2
        self.assertEqual(self.in_child(child), 7)
        self.assertEqual(list(ahead), list(range(1, 100)))


class TestExit(ProcessTestCase):
    def test_however_it_ends(self):
        for ending, code in [('', 0), ('sys.exit(3)', 3),
                             ('raise RuntimeError("in the loop")', 1)]:
            self.assert_same('''
                from fuel_prefetch import BackgroundGenerator
                import itertools
                if sys.argv[1] == 'bare':
                    BackgroundGenerator = iter
                first = BackgroundGenerator(itertools.count())
                second = BackgroundGenerator(time.sleep(.001) or number
                                             for number in itertools.count())
                print(next(first), next(second))
                leaving()
                {}
                '''.format(ending), code)

    def test_item_that_never_comes(self):
        self.assert_ends('''
            from fuel_prefetch import BackgroundGenerator
            def generate():
                yield 1
                reached.set()
                forever.acquire()
            ahead = BackgroundGenerator(generate())
            print(next(ahead))
            reached.wait()
            leaving()
            ''', 0, '1\n')


class TestDecorator(GeneratorTestCase):
    def test_every_form(self):
        """R25: two calls are independent, and nothing is forgotten.

        https://github.com/shaoanlu/faceswap-GAN/issues/77

        """
        def count(stop=3, start=0):
            """Count."""
            for number in range(start, stop):
                yield number

        for decorate, depth in [
                (background, 1), (background(), 1),
                (background(max_prefetch=5), 5), (background(5), 5),
                (background(None), None)]:
            wrapped = decorate(count)
            self.assertEqual(
                (wrapped.__name__, wrapped.__doc__, wrapped.__module__),
                (count.__name__, count.__doc__, count.__module__))
            if six.PY3:
                self.assertEqual(inspect.signature(wrapped),
                                 inspect.signature(count))
            one, two = wrapped(), wrapped(5, start=1)
            self.assertEqual(one.max_prefetch, depth)
            self.assertEqual([next(one), next(two), next(one), next(two)],
                             [0, 1, 1, 2])
            self.assertEqual(list(one), [2])
            two.close()

    def test_methods(self):
        class Counting(object):
            start = 5

            @background
            def method(self, stop):
                return iter(range(self.start, stop))

            @background(max_prefetch=2)
            def parametrised(self):
                yield self.start

            @background
            @staticmethod
            def static(stop):
                return range(stop)

            @staticmethod
            @background
            def static_inside(stop):
                return range(stop)

            @background()
            @classmethod
            def of_class(cls):
                return [cls.start]

        self.assertEqual(list(Counting().method(8)), [5, 6, 7])
        self.assertEqual(list(Counting().parametrised()), [5])
        for owner in (Counting, Counting()):
            self.assertEqual(list(owner.static(2)), [0, 1])
            self.assertEqual(list(owner.static_inside(2)), [0, 1])
            self.assertEqual(list(owner.of_class()), [5])

    def test_error_of_the_call(self):
        @background
        def fail():
            raise KeyError('at once')

        self.assertRaises(KeyError, fail)
        self.assertEqual(threads(), [])
        if six.PY2:
            sys.exc_clear()

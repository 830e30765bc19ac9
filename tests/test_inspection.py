"""Tests of sizes, copies and the memory of batches."""
from __future__ import absolute_import, division, print_function

import gc
import unittest
from collections import OrderedDict, namedtuple

import numpy

from fuel_prefetch.inspection import Inspection, copy_arrays, nbytes
from fuel_prefetch.stats import Counters

Pair = namedtuple('Pair', 'left right')


def ragged(*arrays):
    result = numpy.empty(len(arrays), dtype=object)
    for index, array in enumerate(arrays):
        result[index] = array
    return result


class TestBytes(unittest.TestCase):
    def test_arrays_in_containers(self):
        array = numpy.zeros((2, 3), dtype='float32')
        self.assertEqual(nbytes(array), 24)
        self.assertEqual(nbytes((array, [array, {'key': array}])), 72)

    def test_object_arrays_count_with_their_elements(self):
        batch = ragged(numpy.zeros(2), numpy.zeros(3))
        self.assertEqual(nbytes(batch), batch.nbytes + 40)

    def test_other_objects(self):
        self.assertGreaterEqual(nbytes(b'x' * 1000), 1000)

        class Awkward(object):
            def __sizeof__(self):
                raise TypeError

        self.assertEqual(nbytes(Awkward()), 0)


class TestCopies(unittest.TestCase):
    def assertCopied(self, array):
        result = copy_arrays(array)
        self.assertIs(type(result), type(array))
        self.assertEqual(result.dtype, array.dtype)
        self.assertEqual(result.shape, array.shape)
        self.assertFalse(numpy.may_share_memory(result, array))
        numpy.testing.assert_array_equal(result, array)
        return result

    def test_arrays(self):
        for array in [numpy.arange(6).reshape(2, 3), numpy.array(3.),
                      numpy.zeros((0, 4)), numpy.arange(10)[::-2],
                      numpy.array(['ab', 'c']), numpy.array([True, False]),
                      numpy.ma.masked_array([1, 2], [True, False])]:
            self.assertCopied(array)

    def test_memory_order_is_kept(self):
        array = numpy.asfortranarray(numpy.arange(6).reshape(2, 3))
        self.assertTrue(self.assertCopied(array).flags.f_contiguous)

    def test_elements_of_object_arrays(self):
        batch = ragged(numpy.zeros(2), numpy.zeros(3), None)
        result = copy_arrays(batch)
        batch[1][:] = 1
        self.assertEqual(result[1].sum(), 0)
        self.assertIs(result[2], None)

    def test_containers_keep_their_type(self):
        array = numpy.zeros(2)
        ordered = OrderedDict([('b', array), ('a', [array])])
        batch = (array, [array], Pair(array, 'x'), ordered, 'x')
        result = copy_arrays(batch)
        array[:] = 1
        self.assertEqual([type(part) for part in result],
                         [type(part) for part in batch])
        self.assertEqual(list(result[3]), ['b', 'a'])
        for copied in (result[0], result[1][0], result[2].left,
                       result[3]['b'], result[3]['a'][0]):
            self.assertEqual(copied.sum(), 0)
        self.assertIs(batch[3]['b'], array)

    def test_lists_of_ones_own(self):
        """A subclass keeps its class and what else it has."""
        class Many(list):
            pass

        array = numpy.zeros(2)
        many = Many([array])
        many.name = 'rows'
        result = copy_arrays(many)
        array[:] = 1
        self.assertEqual((type(result), result.name, result[0].sum()),
                         (Many, 'rows', 0))
        self.assertIs(many[0], array)

    def test_anything_else_is_handed_on(self):
        class Two(tuple):
            def __new__(cls, one, two):
                return tuple.__new__(cls, (one, two))

        for item in [None, Two(1, 2), StopIteration, object()]:
            self.assertIs(copy_arrays(item), item)


class TestInspection(unittest.TestCase):
    def setUp(self):
        self.counters = Counters()
        self.inspect = Inspection(self.counters, describe='source {}'.format)
        self.waiting = []

    def notices(self, batches):
        """Inspect batches that all wait for the reader."""
        result = []
        for batch in batches:
            notice, same, _ = self.inspect(batch, self.waiting)
            self.assertIs(same, batch)
            self.waiting.append(batch)
            result.append(notice)
        return result

    def test_fresh_arrays(self):
        batches = [(numpy.zeros(3), numpy.ones(3)) for _ in range(9)]
        self.assertEqual(self.notices(batches), [None] * 9)

    def test_same_array(self):
        fresh, again = [numpy.zeros(3) for _ in range(3)], numpy.zeros(3)
        self.assertEqual(self.notices([(array, again) for array in fresh]),
                         [None, 'source 1', None])

    def test_new_view_of_the_same_memory(self):
        memory = numpy.zeros(9)
        self.assertEqual(self.notices([(memory[:3],), (memory[:2],)]),
                         [None, 'source 0'])

    def test_rotating_buffers(self):
        buffers = [numpy.zeros(3) for _ in range(3)]
        self.assertEqual(
            self.notices([(buffers[i % 3],) for i in range(5)]),
            [None, None, None, 'source 0', None])

    def test_parts_of_one_array_are_fine(self):
        data = numpy.zeros((9, 3))
        self.assertEqual(self.notices([(row,) for row in data]), [None] * 9)

    def test_read_only_memory_is_fine(self):
        array = numpy.zeros(3)
        array.flags.writeable = False
        self.assertEqual(self.notices([(array,)] * 3), [None] * 3)

    def test_empty_arrays_are_fine(self):
        array = numpy.zeros((0, 3))
        self.assertEqual(self.notices([(array,)] * 3), [None] * 3)

    def test_released_buffer_may_be_used_again(self):
        buffers = [numpy.zeros(3) for _ in range(3)]
        for index in range(9):
            notice, _, _ = self.inspect((buffers[index % 3],), self.waiting)
            self.assertIs(notice, None)
            # Never more than one waits, and one is in the reader's hands.
            self.waiting = [None]

    def test_buffer_in_the_hands_of_the_reader(self):
        array = numpy.zeros(3)
        self.assertIs(self.inspect((array,), [])[0], None)
        self.assertEqual(self.inspect((array,), [])[0], 'source 0')

    def test_memory_that_the_reader_gave_back(self):
        # A new array in the place of one that was let go of is no reuse.
        for _ in range(200):
            batch = (numpy.zeros(3), numpy.zeros(1000)[:10])
            self.assertIs(self.inspect(batch, [])[0], None)
            del batch

    def test_places_are_swept(self):
        self.inspect.most_places = 10
        for _ in range(100):
            self.notices([(numpy.zeros(3),)])
            del self.waiting[:-2]
        gc.collect()
        self.assertLessEqual(len(self.inspect._places), 11)

    def test_counts(self):
        self.inspect((numpy.zeros(3), [numpy.zeros(3)], 'x'), [])
        self.inspect([numpy.zeros(2)], [])
        self.inspect(None, [])
        self.assertEqual(self.counters.batches_produced, 3)
        self.assertEqual(self.counters.bytes_produced, 40)

    def test_counts_all(self):
        inspect = Inspection(self.counters, count_all=True)
        batch = (numpy.zeros(3), [numpy.zeros(3)])
        self.assertEqual(inspect(batch, []), (None, batch, 48))
        self.assertEqual(self.counters.bytes_produced, 48)

    def test_copies(self):
        inspect = Inspection(self.counters, copy=True)
        array = numpy.zeros(3)
        for _ in range(3):
            notice, (copied,), size = inspect((array,), [None])
            self.assertIs(notice, None)
            self.assertEqual(size, 24)
            self.assertFalse(numpy.may_share_memory(array, copied))

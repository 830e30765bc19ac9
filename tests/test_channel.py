"""Tests of the hand-over: each schedule is chosen by the test."""
from __future__ import absolute_import, division, print_function

import gc
import sys
import threading
import weakref
from collections import deque

from fuel_prefetch.channel import CLOSED, SUPERSEDED, Store
from fuel_prefetch.exceptions import PrefetchError, PrefetchTimeout
from fuel_prefetch.waiting import Gate
from tests import ConcurrentTestCase, wait_until


def entry(item, nbytes=0):
    return None, item, nbytes


def fail(channel, error):
    channel.fail(failure(error))
    return channel.hold()


def failure(error):
    try:
        raise error
    except BaseException:
        return sys.exc_info()


class Watched(object):
    """A gate that counts who came to wait at it.

    Whoever counts has said so before in the store, so the store's state is
    that of a waiting thread as soon as the count is seen.

    """
    def __init__(self, gate):
        self.gate = gate
        self.waits = 0

    def wait(self, timeout=None):
        self.waits += 1
        return self.gate.wait(timeout)

    def open(self):
        self.gate.open()

    def wait_for(self, count):
        assert wait_until(lambda: self.waits >= count)


class TestGate(ConcurrentTestCase):
    def test_opening_is_remembered(self):
        gate = Gate()
        gate.open()
        self.assertTrue(gate.wait(0))

    def test_opening_counts_once(self):
        gate = Gate()
        gate.open()
        gate.open()
        self.assertTrue(gate.wait(0))
        self.assertFalse(gate.wait(0))

    def test_opening_wakes(self):
        gate = Gate()
        waiter = self.start(gate.wait)
        gate.open()
        self.assertTrue(self.join(waiter))

    def test_many_openers(self):
        gate = Gate()
        openers = [self.start(lambda: [gate.open() for _ in range(2000)])
                   for _ in range(3)]
        while any(opener.is_alive() for opener in openers):
            gate.wait(.01)
        for opener in openers:
            self.join(opener)


class ChannelTestCase(ConcurrentTestCase):
    def open(self, *args, **kwargs):
        self.store = Store(*args, **kwargs)
        self.channel = self.store.begin()
        self.store.publish(self.channel)
        self.store._producer = Watched(self.store._producer)
        self.channel._readers = Watched(self.channel._readers)
        self.assertEqual(self.store.enter(), (self.channel, None))
        self.store.entered(self.channel)
        return self.channel

    def fill(self, items):
        for item in items:
            self.assertTrue(self.channel.put(entry(item)))


class TestItems(ChannelTestCase):
    def test_order_and_sticky_end(self):
        channel = self.open()
        self.fill('abc')
        channel.end()
        self.assertEqual([channel.get() for _ in 'abc'], list('abc'))
        for _ in range(3):
            self.assertRaises(StopIteration, channel.get)

    def test_arguments_of_the_end_come_once(self):
        channel = self.open()
        channel.end((5,))
        with self.assertRaises(StopIteration) as raised:
            channel.get()
        self.assertEqual(raised.exception.args, (5,))
        with self.assertRaises(StopIteration) as raised:
            channel.get()
        self.assertEqual(raised.exception.args, ())

    def test_any_object_is_an_item(self):
        class Awkward(object):
            def __eq__(self, other):
                raise TypeError

            __hash__ = None

        items = [None, (), StopIteration, StopIteration(), KeyError('x'),
                 Ellipsis, (None, None, 0), Awkward()]
        channel = self.open()
        self.fill(items)
        for item in items:
            self.assertIs(channel.get(), item)

    def test_no_reference_is_kept(self):
        class Item(object):
            pass

        channel = self.open()
        item = Item()
        reference = weakref.ref(item)
        channel.put(entry(item))
        del item
        self.assertIsNot(reference(), None)
        channel.get()
        gc.collect()
        self.assertIs(reference(), None)

    def test_reader_waits_for_the_item(self):
        channel = self.open()
        reader = self.start(channel.get)
        channel._readers.wait_for(1)
        channel.put(entry('a'))
        self.assertEqual(self.join(reader), 'a')

    def test_reader_waits_for_the_end(self):
        channel = self.open()
        reader = self.start(channel.get)
        channel._readers.wait_for(1)
        channel.end()
        self.assertRaises(StopIteration, self.join, reader)

    def test_each_item_to_one_of_many_readers(self):
        channel = self.open(3)

        def read():
            got = []
            try:
                while True:
                    got.append(channel.get())
            except StopIteration:
                return got

        readers = [self.start(read) for _ in range(5)]
        for item in range(2000):
            self.assertTrue(channel.put(entry(item)))
        channel.end()
        got = [self.join(reader) for reader in readers]
        for items in got:
            self.assertEqual(items, sorted(items))
        self.assertEqual(sorted(sum(got, [])), list(range(2000)))

    def test_timeout_loses_nothing(self):
        channel = self.open(timeout=.01)
        with self.assertRaises(PrefetchTimeout) as raised:
            channel.get()
        self.assertIn('0.01', str(raised.exception))
        self.fill('a')
        self.assertEqual(channel.get(), 'a')


class TestBounds(ChannelTestCase):
    def test_full_store_parks_the_producer(self):
        channel = self.open(2)
        self.fill('ab')
        producer = self.start(channel.put, entry('c'))
        self.store._producer.wait_for(1)
        self.assertEqual(len(channel.items), 2)
        self.assertEqual(channel.get(), 'a')
        self.assertTrue(self.join(producer))
        self.assertEqual([channel.get() for _ in 'bc'], ['b', 'c'])

    def test_room_for_one_is_used_at_once(self):
        channel = self.open(3)
        self.fill('abc')
        for item in 'defg':
            waits = self.store._producer.waits
            producer = self.start(channel.put, entry(item))
            self.store._producer.wait_for(waits + 1)
            channel.get()
            self.assertTrue(self.join(producer))
            self.assertEqual(len(channel.items), 3)

    def test_bytes_are_bounded(self):
        channel = self.open(None, 10)
        self.assertTrue(channel.put(entry('a', 6)))
        self.assertTrue(channel.put(entry('b', 4)))
        producer = self.start(channel.put, entry('c', 5))
        self.store._producer.wait_for(1)
        channel.get()  # 4 + 5 fit
        self.assertTrue(self.join(producer))
        self.assertEqual(self.store.snapshot().bytes_held, 9)

    def test_large_item_passes_alone(self):
        channel = self.open(None, 10)
        self.assertTrue(channel.put(entry('a', 100)))
        producer = self.start(channel.put, entry('b', 1))
        self.store._producer.wait_for(1)
        self.assertEqual(channel.get(), 'a')
        self.assertTrue(self.join(producer))

    def test_room_is_shared_with_the_channel_behind(self):
        first = self.open(3)
        self.fill('ab')
        first.end()
        second = self.store.begin()
        self.store.publish(second)
        self.assertTrue(second.put(entry('c')))
        producer = self.start(second.put, entry('d'))
        self.store._producer.wait_for(1)
        self.assertEqual(len(second.items), 1)
        self.assertEqual(first.get(), 'a')
        self.assertTrue(self.join(producer))

    def test_most_held(self):
        channel = self.open(3)
        for items, most in [('a', 1), ('ab', 2), ('c', 2), ('abc', 3)]:
            self.fill(items)
            for _ in items:
                channel.get()
            self.assertEqual(self.store.snapshot().batches_most_held, most)
        self.fill('abc')
        producer = self.start(channel.put, entry('d'))
        self.store._producer.wait_for(1)
        channel.get()
        self.join(producer)
        self.assertEqual(self.store.snapshot().batches_most_held, 3)

    def test_most_held_without_a_bound(self):
        channel = self.open()
        self.fill('abcde')
        channel.drop()
        self.fill('ab')
        self.assertEqual(self.store.snapshot().batches_most_held, 5)
        # Two stores are filled one after the other, and both count.
        store = Store(None, counters=self.store.counters)
        channel = store.begin()
        for item in 'abcdefg':
            channel.put(entry(item))
        self.assertEqual(store.snapshot().batches_most_held, 7)

    def test_most_held_where_bytes_are_bounded(self):
        channel = self.open(None, 10)
        for item in 'ab':
            self.assertTrue(channel.put(entry(item, 5)))
        channel.get()
        self.assertEqual(self.store.snapshot().batches_most_held, 2)

    def test_abandoned_while_the_most_is_raised(self):
        """A finalizer takes no lock, and must not be overlooked."""
        channel = self.open()
        open_up = self.store._open_up

        def abandoned():
            self.store.abandon()
            open_up()
        self.store._open_up = abandoned
        self.assertFalse(channel.put(entry('a')))

    def test_one_channel_ahead_at_most(self):
        self.open().end()
        second = self.store.begin()
        self.store.publish(second)
        second.end()
        producer = self.start(self.store.begin)
        self.store._producer.wait_for(1)
        self.assertIs(self.store.enter()[0], second)
        self.assertIs(self.store.enter()[0], second)  # not lost, if repeated
        self.store.entered(second)
        self.assertIsNot(self.join(producer), None)


class TestFailures(ChannelTestCase):
    def test_failure_follows_the_items_before_it(self):
        channel = self.open()
        self.fill('a')
        error = KeyError('b')
        producer = self.start(fail, channel, error)
        self.assertEqual(channel.get(), 'a')
        with self.assertRaises(KeyError) as raised:
            channel.get()
        self.assertIs(raised.exception, error)
        self.assertTrue(producer.is_alive())
        self.store.close()
        self.assertFalse(self.join(producer))

    def test_producer_waits_until_it_is_asked(self):
        channel = self.open()
        producer = self.start(fail, channel, KeyError())
        self.store._producer.wait_for(1)
        self.assertRaises(KeyError, channel.get)
        # Neither the failure's delivery nor a wake-up lets it go on.
        waits = self.store._producer.waits
        self.store._producer.open()
        self.store._producer.wait_for(waits + 1)
        self.assertTrue(producer.is_alive())
        reader = self.start(channel.get)
        self.assertTrue(self.join(producer))
        self.fill('b')
        self.assertEqual(self.join(reader), 'b')

    def test_second_reader_asks_past_the_failure(self):
        channel = self.open()
        readers = [self.start(channel.get) for _ in range(2)]
        channel._readers.wait_for(2)
        producer = self.start(fail, channel, KeyError())
        # One gets the failure. The other one's wish is known all along.
        self.assertTrue(self.join(producer))
        self.fill('b')
        results = []
        for reader in readers:
            try:
                results.append(self.join(reader))
            except KeyError:
                results.append('failure')
        self.assertEqual(sorted(results), ['b', 'failure'])

    def test_failure_to_begin(self):
        store = Store()
        store.publish(store.begin(), failure(StopIteration()))
        _, failed = store.enter()
        self.assertRaises(StopIteration, failed.deliver)


class TestClosing(ChannelTestCase):
    def test_close_wakes_the_parked_producer(self):
        channel = self.open(1)
        self.fill('a')
        producer = self.start(channel.put, entry('b'))
        self.store._producer.wait_for(1)
        self.store.close()
        self.assertFalse(self.join(producer))
        self.assertFalse(channel.put(entry('c')))

    def test_close_wakes_all_readers(self):
        channel = self.open()
        readers = [self.start(channel.get) for _ in range(3)]
        channel._readers.wait_for(3)
        self.store.close()
        for reader in readers:
            with self.assertRaises(PrefetchError) as raised:
                self.join(reader)
            self.assertIn('closed', str(raised.exception))

    def test_close_drops_what_is_held(self):
        channel = self.open()
        self.fill('abc')
        self.store.close()
        self.assertRaises(PrefetchError, channel.get)
        self.assertEqual(self.store.snapshot().batches_held, 0)

    def test_item_on_its_way_as_it_is_closed(self):
        """It follows those that were dropped, so no reader may get it."""
        class Late(deque):
            def append(self, entry):
                store.close()
                super(Late, self).append(entry)

        channel = self.open()
        store = self.store
        store.counters.batches_produced = 3
        self.fill('ab')
        channel.items = Late(channel.items)
        channel.put((None, 'c', 1))
        self.assertRaises(PrefetchError, channel.get)
        channel._append((None, 'd', 1))
        store.counters.batches_produced += 1
        self.assertRaises(PrefetchError, channel.get)
        store.close()
        self.assertEqual(store.snapshot().batches_taken, 0)
        self.assertEqual(store.snapshot().batches_held, 0)

    def test_end_stays_an_end_after_closing(self):
        channel = self.open()
        channel.end()
        self.store.close()
        self.assertRaises(StopIteration, channel.get)

    def test_closed_channel_does_not_end(self):
        channel = self.open()
        self.store.close()
        channel.end()
        self.assertRaises(PrefetchError, channel.get)

    def test_superseded_channel_ends(self):
        channel = self.open()
        self.fill('abc')
        reader = self.start(self.store.close, SUPERSEDED)
        self.join(reader)
        self.assertRaises(StopIteration, channel.get)

    def test_enter_of_a_closed_store(self):
        store = Store()
        waiting = self.start(store.enter)
        store.close(CLOSED)
        self.assertRaises(PrefetchError, self.join, waiting)

    def test_lost_producer_is_no_hang(self):
        channel = self.open()
        reader = self.start(channel.get)
        channel._readers.wait_for(1)
        self.store.leave()
        self.assertRaises(PrefetchError, self.join, reader)

    def test_abandoning_needs_no_lock(self):
        channel = self.open(1)
        self.fill('a')
        producer = self.start(channel.put, entry('b'))
        self.store._producer.wait_for(1)
        held, release = threading.Event(), threading.Event()

        def hold():
            with self.store._lock:
                held.set()
                release.wait()

        holder = self.start(hold)
        held.wait()
        self.store.abandon()
        self.assertFalse(self.join(producer))
        release.set()
        self.join(holder)

    def test_abandoned_between_looking_and_waiting(self):
        # As by a finalizer that runs in the producer's own thread.
        channel = self.open(1)
        self.fill('a')
        wait = self.store._producer.gate.wait

        def abandon_and_wait(timeout=None):
            self.store.abandon()
            return wait(timeout)

        self.store._producer.gate.wait = abandon_and_wait
        producer = self.start(channel.put, entry('b'))
        self.assertFalse(self.join(producer))

    def test_join_by_many(self):
        store = Store()
        waiting = [self.start(store.join) for _ in range(3)]
        store.leave()
        for thread in waiting:
            self.assertTrue(self.join(thread))
        self.assertTrue(store.join(0))

    def test_join_in_vain(self):
        self.assertFalse(Store().join(.01))


class TestPausing(ChannelTestCase):
    def setUp(self):
        super(TestPausing, self).setUp()
        self.asked = 0

    def produce(self, items):
        for item in items:
            self.asked += 1
            if not self.channel.put(entry(item)):
                return False
        self.channel.end()
        self.store.leave()
        return True

    def test_item_in_hand_is_put_down(self):
        channel = self.open(1)
        producer = self.start(self.produce, 'abcd')
        self.store._producer.wait_for(1)  # 'b' is in its hands
        self.store.pause()
        self.assertEqual([item for _, item, _ in channel.items], ['a', 'b'])
        self.assertEqual(self.asked, 2)
        self.store.resume()
        self.assertEqual([channel.get() for _ in 'abcd'], list('abcd'))
        self.assertTrue(self.join(producer))

    def test_paused_until_a_reader_asks(self):
        channel = self.open(1)
        producer = self.start(self.produce, 'abcd')
        self.store._producer.wait_for(1)
        self.store.pause()
        self.store.resume_on_demand()
        self.store._producer.open()  # not enough
        self.assertEqual(self.asked, 2)
        self.assertEqual([channel.get() for _ in 'abcd'], list('abcd'))
        self.assertTrue(self.join(producer))

    def test_pause_between_a_reader_looking_and_asking(self):
        """The demand is an old one then, and must not end the pause."""
        channel = self.open(1)
        producer = self.start(self.produce, 'abcd')
        self.store._producer.wait_for(1)
        self.store.pause()
        self.store.resume_on_demand()
        store, lock, paused = self.store, self.store._lock, []

        class PausedFirst(object):
            def __enter__(self):
                if not paused:
                    paused.append(True)
                    store._lock = lock
                    store.pause()
                return lock.__enter__()

            def __exit__(self, *exc_info):
                return lock.__exit__(*exc_info)

        store._lock = PausedFirst()
        store._ask()
        self.assertEqual(paused, [True])
        self.assertTrue(store._pausing)
        store.resume()
        self.assertEqual([channel.get() for _ in 'abcd'], list('abcd'))
        self.assertTrue(self.join(producer))

    def test_reader_waiting_already_is_a_demand(self):
        channel = self.open(1)
        reader = self.start(channel.get)
        channel._readers.wait_for(1)
        pausing = self.start(self.store.pause)
        self.assertTrue(wait_until(lambda: self.store._pausing))
        producer = self.start(self.store.rest)
        self.join(pausing)
        self.store.resume_on_demand()
        self.assertTrue(self.join(producer))
        self.fill('a')
        self.assertEqual(self.join(reader), 'a')

    def test_pause_of_a_gone_producer(self):
        channel = self.open()
        self.assertTrue(self.produce('a'))
        self.store.pause()
        self.store.resume_on_demand()
        self.assertEqual(channel.get(), 'a')
        self.assertRaises(StopIteration, channel.get)

    def test_pause_while_held_by_a_failure(self):
        channel = self.open()
        producer = self.start(fail, channel, KeyError())
        self.store._producer.wait_for(1)
        self.assertRaises(KeyError, channel.get)
        self.store.pause()
        reader = self.start(channel.get)
        channel._readers.wait_for(1)
        self.assertTrue(producer.is_alive())
        self.store.resume_on_demand()
        self.assertTrue(self.join(producer))
        self.fill('b')
        self.assertEqual(self.join(reader), 'b')

    def test_pause_in_vain(self):
        channel = self.open(timeout=.01)
        self.assertRaises(PrefetchTimeout, self.store.pause)
        self.fill('a')  # as if nothing had been asked
        self.assertEqual(channel.get(), 'a')

    def test_close_ends_a_pause(self):
        self.open(1)
        producer = self.start(self.produce, 'abcd')
        self.store._producer.wait_for(1)
        self.store.pause()
        self.store.close()
        self.assertFalse(self.join(producer))

    def test_random_pauses_lose_nothing(self):
        channel = self.open(2)
        producer = self.start(self.produce, range(1000))
        stop = threading.Event()

        def pause():
            count = 0
            while not stop.is_set():
                self.store.pause()
                asked = self.asked
                self.assertEqual(asked, self.asked)
                self.store.resume_on_demand()
                count += 1
            return count

        pausing = self.start(pause)
        got = [channel.get() for _ in range(1000)]
        # The last pause may still last: it is the end that is asked for.
        self.assertRaises(StopIteration, channel.get)
        stop.set()
        self.assertGreater(self.join(pausing), 0)
        self.assertTrue(self.join(producer))
        self.assertEqual(got, list(range(1000)))

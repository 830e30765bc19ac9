"""Messages through shared memory, and who is woken for them."""
from __future__ import absolute_import, division, print_function

import mmap
import os
import random
import threading
from collections import deque

from six.moves import range

from fuel_prefetch.ring import NBYTES, SIZE, STEP, Ring
from tests import ConcurrentTestCase

ROUNDS = int(os.environ.get('FUEL_PREFETCH_ROUNDS') or 5)


class TestRing(ConcurrentTestCase):
    def setUp(self):
        super(TestRing, self).setUp()
        # Two processes have one each, over the same memory.
        memory = mmap.mmap(-1, NBYTES)
        self.writer, self.reader = Ring(memory), Ring(memory)

    def write(self, *message):
        return self.writer.write(*message)

    def read(self):
        messages = deque()
        self.reader.read(messages)
        return list(messages)

    def test_random(self):
        """What comes out went in, many times round, and never too much."""
        rng = random.Random(1)
        sent = deque()
        room = full = 0
        for number in range(20000):
            message = (rng.randrange(1, 256), number,
                       os.urandom(rng.choice([0, 3, 100, 5000, 50000])))
            written, wake = self.write(*message)
            self.assertFalse(wake)
            if written:
                sent.append(message)
                room += 1
            else:
                full += 1
                self.assertGreater(
                    sum(len(body) for _, _, body in sent) + 50000 +
                    len(sent) * 2 * STEP, SIZE // 2)
            if not written or rng.random() < .03:
                self.assertEqual(self.read(), list(sent))
                sent.clear()
        self.assertGreater(room, 9000)
        self.assertGreater(full, 100)

    def test_to_the_last_byte(self):
        """A message may take all of it, or end where it ends."""
        most = SIZE - STEP
        self.assertEqual(self.write(1, 2, b'x' * most), (True, False))
        self.assertEqual(self.write(3, 4, b''), (False, False))
        self.assertEqual(self.read(), [(1, 2, b'x' * most)])
        self.assertEqual(self.write(5, 6, b'y'), (True, False))
        self.assertEqual(self.write(1, 2, b'x' * most), (False, False))
        self.assertEqual(self.read(), [(5, 6, b'y')])

    def test_wake(self):
        """Who says that it sleeps is woken once, for the first message."""
        self.assertEqual(self.write(1, 0, b''), (True, False))
        self.assertFalse(self.reader.must_sleep())  # there is one
        self.assertEqual(len(self.read()), 1)
        self.assertTrue(self.reader.must_sleep())
        self.assertEqual(self.write(2, 0, b''), (True, True))
        self.assertEqual(self.write(3, 0, b''), (True, False))
        self.assertEqual([kind for kind, _, _ in self.read()], [2, 3])

    def test_message_just_before_the_sleep(self):
        """Wherever it comes in between, the reader doesn't sleep over it."""
        self.assertEqual(self.read(), [])  # it looks
        self.assertEqual(self.write(1, 0, b''), (True, False))
        self.assertFalse(self.reader.must_sleep())  # and doesn't sleep
        self.assertEqual(self.write(2, 0, b''), (True, False))
        self.assertEqual([kind for kind, _, _ in self.read()], [1, 2])

    def test_grants(self):
        granted, told = self.reader.granted, self.writer.granted
        self.assertFalse(granted.tell(2 ** 63 + 1))
        # These two are the same as floats.
        self.assertFalse(told.must_sleep(2 ** 63))
        self.assertTrue(told.must_sleep(2 ** 63 + 1))
        self.assertTrue(granted.tell(2 ** 63))
        self.assertEqual(told.value, 2 ** 63)

    def test_no_wake_is_lost(self):
        """Two threads, each of which sleeps until the other one wakes it."""
        count, woken = 4000 * ROUNDS, 0
        wake_reader, wake_writer = threading.Event(), threading.Event()
        failures = []

        def sleep(event):
            if not event.wait(20):
                failures.append('nobody woke it')
            event.clear()

        def write():
            # As a child does, which may not go further than it is told.
            told, number = self.writer.granted, 0
            while number < count and not failures:
                value = told.value
                if number < value:
                    written, wake = self.write(1, number, b'x' * (number % 99))
                    if not written:
                        failures.append('no room')
                    if wake:
                        wake_reader.set()
                    number += 1
                elif told.must_sleep(value):
                    sleep(wake_writer)

        thread = threading.Thread(target=write)
        thread.start()
        rng, seen, messages = random.Random(2), 0, deque()
        while seen < count and not failures:
            if self.reader.granted.tell(seen + rng.randrange(1, 9)):
                wake_writer.set()
            while not self.reader.read(messages) and not failures:
                if self.reader.must_sleep():
                    woken += 1
                    sleep(wake_reader)
            while messages:
                kind, number, body = messages.popleft()
                self.assertEqual((kind, number, len(body)),
                                 (1, seen, seen % 99))
                seen += 1
        thread.join()
        self.assertEqual(failures, [])
        self.assertGreater(woken, 0)

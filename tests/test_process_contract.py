"""The tests of what every backend promises, with the stream in a process."""
from __future__ import absolute_import, division, print_function

import os
import pickle
import select
import signal

from fuel_prefetch import PrefetchError, PrefetchTimeout, WorkerError
from tests import (
    ContractTestCase, Gated, IteratorStream, numbers, test_pickling,
    test_transformers)
from tests.test_transformers import Refilling, examples


class Process(object):
    """Goes before the test case of a thread."""
    backend = 'process'
    in_hand = 2  # one in each process
    every = 5
    instead = WorkerError
    kinds = 'process',

    def most_held(self, max_store):
        # See `ProcessSource.share`.
        window = max_store // 2 + max_store // 8
        return max_store - max(window - 1, 0)

    def assertSameError(self, error, original):
        self.assertIs(type(error), type(original))
        self.assertEqual(error.args, original.args)


def on_a_process(case):
    """Return the test case for a process."""
    left_out = {name: None for name in dir(case)
                if hasattr(getattr(case, name), 'thread_only')}
    name = 'Test{}{}'.format(case.__module__.split('_')[-1].title(),
                             case.__name__[len('Test'):])
    return type(case)(name, (Process, case),
                      dict(left_out, __module__=__name__))


for case in [
        test_transformers.TestEpochs, test_transformers.TestReadAhead,
        test_transformers.TestErrors, test_transformers.TestResetting,
        test_transformers.TestClosing, test_transformers.TestForgetting,
        test_transformers.TestWaiting, test_transformers.TestInterrupts,
        test_transformers.TestAttributes,
        test_pickling.TestResume, test_pickling.TestProducerRests,
        test_pickling.TestAsked, test_pickling.TestIdentity,
        test_pickling.TestErrors, test_pickling.TestKilled]:
    made = on_a_process(case)
    globals()[made.__name__] = made
del case, made


class TestRefilledBuffersOnAProcess(
        on_a_process(test_transformers.TestRefilledBuffers)):
    def test_no_copy_is_needed(self):
        self.assertEqual(self.read(self.wrap(Refilling(12))), (0, []))


class TestRefusalsOnAProcess(on_a_process(test_pickling.TestRefusals)):
    def test_forked_in_an_epoch(self):
        """The child of a fork doesn't have the stream, and says so."""
        stream = self.wrap(numbers(9), max_store=2)
        iterator = stream.get_epoch_iterator()
        next(iterator)

        def child():
            for use in [lambda: pickle.dumps((stream, iterator)),
                        lambda: pickle.dumps(stream),
                        lambda: next(iterator), stream.get_epoch_iterator]:
                try:
                    use()
                    return 2
                except PrefetchError:
                    pass
            stream.reset()
            return 7 if list(stream.get_epoch_iterator()) == examples(9) else 3
        self.assertEqual(self.in_child(child), 7)
        self.assertEqual(len(list(iterator)), 8)


class TestTwoAtWork(Process, ContractTestCase):
    """What there is to see only where two are at work for one stream."""
    def test_timeout_while_one_rests_leaves_the_epoch_as_it_is(self):
        source = Gated(range(9))
        source.permit(6)
        stream = self.wrap(IteratorStream(lambda: source), max_store=4,
                           across_epochs=True)
        iterator = stream.get_epoch_iterator()
        self.assertEqual(next(iterator), 0)
        source.wait_asked(7)  # three are held, so the worker waits for room
        store = stream._prefetcher._worker.store
        store.timeout = stream._prefetcher.timeout = stream.timeout = .1
        self.assertRaises(PrefetchTimeout, stream.get_epoch_iterator)
        store.timeout = None
        # All are to be had that were read, as long as the next one takes.
        self.assertEqual([next(iterator) for _ in range(5)], [1, 2, 3, 4, 5])
        source.permit(20)

    def test_ends_with_a_parent_that_is_killed(self):
        read_end, write_end = os.pipe()

        def child():
            stream = self.ahead(numbers(9))
            next(stream.get_epoch_iterator())
            os.kill(os.getpid(), signal.SIGKILL)

        try:
            self.assertEqual(self.in_child(child), -signal.SIGKILL)
            os.close(write_end)  # now only that stream's process has it
            poller = select.poll()
            poller.register(read_end, select.POLLIN)
            # It doesn't take as long as the watch, which is for blocked ones.
            self.assertTrue(poller.poll(2500))
        finally:
            os.close(read_end)

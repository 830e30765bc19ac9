"""What each thread did, and when, while a stream was read ahead."""
from __future__ import absolute_import, division, print_function

import json
import os
import threading
from collections import OrderedDict, namedtuple

from concurrent.futures import Future

from fuel_prefetch.old_pools import submit
from fuel_prefetch.stats import BLOCKED, PRODUCING, Counters
from fuel_prefetch.waiting import monotonic

READING, FULL, WAITING, TRAINING, WORKING = (
    'reading', 'blocked', 'waiting', 'training', 'mapping')
OF_PHASES = {PRODUCING: READING, BLOCKED: FULL}

Span = namedtuple('Span', ['start', 'end', 'what'])


class Timeline(object):
    """Spans of time in rows, and how much the store held.

    Attributes
    ----------
    rows : dict
        A list of :class:`Span` for the name of each row, in their order.
    held : list of tuple
        Moments, and how many batches were held then.

    """
    def __init__(self):
        self.rows = OrderedDict()
        self.held = []
        self.start = monotonic()
        self._lock = threading.Lock()

    def add(self, row, start, end, what):
        """Record what went on in a row."""
        with self._lock:
            if end > start:
                self.rows.setdefault(row, []).append(Span(
                    start - self.start, end - self.start, what))

    def add_held(self, held):
        self.held.append((monotonic() - self.start, held))

    def follow(self, stream, row):
        """Record what the producer of a stream of ours does, in a row.

        Before its first epoch.

        """
        stream._prefetcher.counters = RecordingCounters(self, row)

    def training(self, stream):
        """Return a function for `train` to record with."""
        self.rows['training'] = []

        def record(asked, given, done):
            self.add('training', asked, given, WAITING)
            self.add('training', given, done, TRAINING)
            self.add_held(stream.stats.batches_held)
        return record

    def close(self):
        """Put the rows in order: who reads, workers by number, training."""
        workers = [row for row in self.rows if isinstance(row, tuple)]
        workers.sort(key=lambda row: self.rows[row][0].start)
        training = self.rows.pop('training', [])
        for number, row in enumerate(workers, 1):
            self.rows['worker {}'.format(number)] = self.rows.pop(row)
        self.rows['training'] = training

    def write_trace(self, file_):
        """Write it in the format of Chrome's and Perfetto's traces."""
        process = os.getpid()
        events = []
        for number, (row, spans) in enumerate(self.rows.items(), 1):
            events.append({
                'ph': 'M', 'name': 'thread_name', 'pid': process,
                'tid': number, 'args': {'name': row}})
            events.append({
                'ph': 'M', 'name': 'thread_sort_index', 'pid': process,
                'tid': number, 'args': {'sort_index': number}})
            events += [
                {'ph': 'X', 'name': what, 'cat': 'fuel_prefetch',
                 'pid': process, 'tid': number, 'ts': 1e6 * start,
                 'dur': 1e6 * (end - start)} for start, end, what in spans]
        events += [
            {'ph': 'C', 'name': 'batches held', 'pid': process,
             'ts': 1e6 * moment, 'args': {'batches': held}}
            for moment, held in self.held]
        json.dump({'traceEvents': events, 'displayTimeUnit': 'ms'}, file_)


class RecordingCounters(Counters):
    """Counters that also keep when the producer did what."""
    def __init__(self, timeline, row):
        self._timeline, self._row = timeline, row
        timeline.rows[row] = []
        super(RecordingCounters, self).__init__()

    def turn(self, phase):
        before, since = self._phase
        super(RecordingCounters, self).turn(phase)
        if before in OF_PHASES:
            self._timeline.add(self._row, since, self._phase[1],
                               OF_PHASES[before])


class RecordingExecutor(object):
    """An executor that also keeps which of its workers worked when.

    Parameters
    ----------
    executor : ``concurrent.futures.Executor``
        Threads, or processes of this machine.
    timeline : :class:`Timeline`
        Where to keep it.

    """
    def __init__(self, executor, timeline):
        self.executor = executor
        self.timeline = timeline

    def submit(self, function, *args):
        future = Future()

        def finish(inner):
            error = inner.exception()
            if error is None:
                result, worker, start, end = inner.result()
                self.timeline.add(worker, start, end, WORKING)
            if future.set_running_or_notify_cancel():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

        submit(self.executor, _timed, function, *args).add_done_callback(
            finish)
        return future


def _timed(function, *args):
    """Call a function; return also where, and from when till when."""
    start = monotonic()
    result = function(*args)
    return (result, (os.getpid(), threading.current_thread().ident), start,
            monotonic())

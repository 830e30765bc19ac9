"""A training run that is only for taking its time."""
from __future__ import absolute_import, division, print_function

import contextlib
from collections import namedtuple

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

from fuel_prefetch.stages import Stages, replaced
from fuel_prefetch.timeline import RecordingExecutor
from fuel_prefetch.transformers import BackgroundDataStream, ParallelMapping
from fuel_prefetch.waiting import monotonic


class Run(namedtuple('Run', ['waits', 'steps', 'firsts', 'seconds'])):
    """What a training run took.

    Attributes
    ----------
    waits : list of float
        Seconds for each batch until the stream gave it.
    steps : list of float
        Seconds of the training step on each.
    firsts : set of int
        Which batches were the first ones of their epochs.
    seconds : float
        The time of all of it.

    """
    __slots__ = ()

    @property
    def batches(self):
        return len(self.steps)

    @property
    def reading(self):
        """Seconds a batch that it waited for."""
        return sum(self.waits) / self.batches

    @property
    def stepping(self):
        """Seconds a batch that the step took."""
        return sum(self.steps) / self.batches

    @property
    def each(self):
        """Seconds a batch, all in all."""
        return self.seconds / self.batches


def train(stream, step, epochs=1, batches=None, show=lambda done: None,
          record=lambda *_: None):
    """Read epochs of a stream, with a training step on each batch.

    Parameters
    ----------
    stream : :class:`~fuel.streams.AbstractDataStream`
        The stream.
    step : callable
        Called with each batch.
    epochs : int, optional
        How many epochs. Defaults to 1.
    batches : int, optional
        Most batches of an epoch. Defaults to ``None``, all of them.
    show : callable, optional
        Called with the number of batches so far.
    record : callable, optional
        Called with three moments: of asking, having a batch, and having
        trained on it. After an epoch's last one the latter two are the same.

    Returns
    -------
    :class:`Run`
        What it took.

    """
    waits, steps, firsts = [], [], set()
    start = monotonic()
    for _ in range(epochs):
        firsts.add(len(waits))
        count = 0
        asked = monotonic()
        iterator = stream.get_epoch_iterator()
        while batches is None or count < batches:
            try:
                batch = next(iterator)
            except StopIteration:
                given = monotonic()
                record(asked, given, given)
                break
            given = monotonic()
            step(batch)
            done = monotonic()
            record(asked, given, done)
            waits.append(given - asked)
            steps.append(done - given)
            asked = done
            count += 1
            del batch
            show(len(steps))
    return Run(waits, steps, firsts, monotonic() - start)


def unwrapped(stream):
    """Return what a stream reads ahead, if it is one of ours, else itself."""
    while type(stream) is BackgroundDataStream:
        stream = stream.data_stream
    return stream


@contextlib.contextmanager
def on_workers(stream, index, workers, processes, timeline):
    """Have a mapping of a stream done by workers, for a while.

    Parameters
    ----------
    stream : :class:`~fuel.streams.AbstractDataStream`
        The stream.
    index : int
        Which of its stages it is.
    workers : int
        How many workers.
    processes : bool
        Whether they are processes, not threads.
    timeline : :class:`.Timeline`
        Where to record what they do.

    Yields
    ------
    :class:`~fuel.streams.AbstractDataStream`
        What is to be read instead of `stream`.

    """
    streams = [stage.stream for stage in Stages(stream).all]
    mapping = streams[index]
    if processes:
        pool = ProcessPoolExecutor(workers)
        # They start here, beside no threads of ours.
        pool.submit(abs, 0).result()
    else:
        pool = ThreadPoolExecutor(workers)
    parallel = ParallelMapping(
        mapping.data_stream, mapping.mapping, workers,
        executor=RecordingExecutor(pool, timeline),
        add_sources=mapping.add_sources,
        mapping_accepts=getattr(mapping, 'mapping_accepts', list),
        axis_labels=mapping.axis_labels)
    timeline.follow(parallel, 'reading for workers')
    try:
        with replaced(streams, mapping, parallel):
            yield parallel if mapping is stream else stream
    finally:
        parallel.close()
        pool.shutdown()

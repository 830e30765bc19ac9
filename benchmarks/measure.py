"""What the parts have in common: reading, measuring in turns, reporting."""
from __future__ import absolute_import, division, print_function

import sys
from contextlib import closing
from functools import partial

import numpy

from fuel_prefetch import BackgroundDataStream
from fuel_prefetch.waiting import monotonic
from benchmarks.streams import timed

ROUNDS = 7
RESULTS = []  # what was reported: what, value, unit


def in_turns(*calls):
    """Return the median of what each call returns, called in turns."""
    rows = [[call() for call in calls] for _ in range(ROUNDS)]
    return numpy.median(rows, axis=0)


def side_by_side(*calls):
    """Return the median time of each call, measured in turns."""
    return in_turns(*[partial(timed, call) for call in calls])


def read(batches, step=None):
    for _ in batches:
        if step is not None:
            step()


def ahead(stream, epochs=1, step=None, **kwargs):
    """Read epochs of a stream through ours."""
    with BackgroundDataStream(stream, **kwargs) as wrapped:
        for _ in range(epochs):
            read(wrapped.get_epoch_iterator(), step)


def under_way(batches, warm, count, step=None):
    """Return the seconds for `count` batches of many, after some others.

    Neither the start nor the end counts. As there is more to come, what is
    held ready at the beginning is so at the end, by and large.

    Parameters
    ----------
    batches : generator
        The batches; closed afterwards.
    warm, count : int
        How many to take before, and how many to measure.
    step : callable, optional
        What is done with each.

    """
    with closing(batches):
        for number in range(warm + count):
            if number == warm:
                start = monotonic()
            next(batches)
            if step is not None:
                step()
        return monotonic() - start


def settled(read, warm):
    """Return the seconds for all batches that `read` gives after `warm`.

    So what was on its way before the first one was asked for doesn't count.

    """
    for number, _ in enumerate(read()):
        if number == warm:
            start = monotonic()
    return monotonic() - start


def report(what, value, unit):
    RESULTS.append((what, value, unit))
    print('{:<62}{:>8.2f} {}'.format(what, value, unit))
    sys.stdout.flush()

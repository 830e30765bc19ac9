"""What is to be done about a training that waits for its data: the rule.

It is told in docs/howto/profile.rst, in the order in which it is applied.

"""
from __future__ import absolute_import, division, print_function

import math
from collections import namedtuple

from fuel_prefetch.stages import name_of

# Shares of the time: what isn't worth a change, what is another's doing.
LITTLE = .05
SLOWED = 1.5
SLOWED_BY_LOCK = 1.1
HINDERED = 1.25
# Workers are to need less than this part of a step for a batch.
HEADROOM = .9
MOST_WORKERS = 32
DEPTHS = [2 ** power for power in range(11)]

# The verdicts.
NOTHING, DEEPER, WORKERS, PROCESS, CHEAPER, EPOCHS = (
    'nothing', 'deeper store', 'workers', 'process', 'cheaper batches',
    'across epochs')


class Advice(namedtuple('Advice', ['verdict', 'why', 'line'])):
    """What to do.

    Attributes
    ----------
    verdict : str
        `'nothing'`, `'deeper store'`, `'workers'`, `'process'`,
        `'cheaper batches'` or `'across epochs'`.
    why : str
        The reason, and what to do, in sentences.
    line : str or None
        The code to write.

    """
    __slots__ = ()


class Measured(namedtuple('Measured', [
        'stages', 'bare', 'ahead', 'stats', 'max_store', 'backend', 'workers',
        'cores'])):
    """What was measured, and how.

    Attributes
    ----------
    stages : list of :class:`.Stage`
        The stages, in the run without prefetching.
    bare, ahead : :class:`.Run`
        The runs without and with prefetching.
    stats : :class:`.Stats`
        The statistics of the latter.
    max_store, backend, workers
        Its settings; `max_store` is ``None`` without a bound, and `workers`
        0 without.
    cores : int
        How many there are.

    """
    __slots__ = ()

    @property
    def slowest(self):
        """The stage that takes most."""
        return max(self.stages, key=lambda stage: stage.seconds)

    @property
    def reading(self):
        """Seconds a batch of reading, with as many workers as there were."""
        if not self.workers:
            return self.bare.reading
        mapping = self.to_parallelize
        part = mapping.seconds / self.bare.batches
        # Computing needs cores.
        abreast = (self.workers if mapping.kind == 'waits' else
                   min(self.workers, self.cores))
        return max(part / abreast, self.bare.reading - part)

    @property
    def to_parallelize(self):
        """The slowest of the mappings, or ``None``."""
        return max([stage for stage in self.stages
                    if stage.mapping is not None] or [None],
                   key=lambda stage: stage.seconds if stage else 0)

    @property
    def ideal(self):
        """Seconds a batch, if reading and training never hindered another."""
        return max(self.reading, self.bare.stepping)

    @property
    def slowed(self):
        """How many times as long the step takes beside the reading."""
        return self.ahead.stepping / self.bare.stepping

    @property
    def waiting(self):
        """Seconds that the run with prefetching waited, but at beginnings.

        The first batch of an epoch has to be waited for.

        """
        return sum(self.ahead.waits) - self.beginnings

    @property
    def beginnings(self):
        return sum(self.ahead.waits[number] for number in self.ahead.firsts
                   if number < self.ahead.batches)


def waiting_at(depth, reading, step):
    """Return how long a training would wait for its batches.

    Parameters
    ----------
    depth : int
        Most batches held ready.
    reading : list of float
        How long each batch takes to read.
    step : float
        How long the training on each takes.

    Returns
    -------
    float
        The time that it waits, but for the first batch.

    """
    taken = []  # when
    put = waited = 0.
    for number, seconds in enumerate(reading):
        put += seconds
        if number >= depth:  # there is room
            put = max(put, taken[number - depth])
        ready = taken[-1] + step if taken else put
        taken.append(max(put, ready))
        waited += taken[-1] - ready
    return waited


def depth_for(reading, step):
    """Return the least depth, a power of two, that is as good as any.

    `None` if also that makes a training wait.

    """
    allowed = LITTLE * (step * len(reading))
    for depth in DEPTHS:
        if waiting_at(depth, reading, step) <= allowed:
            return depth


def advise(measured):
    """Return the :class:`Advice` that follows from what was measured."""
    bare, ahead = measured.bare, measured.ahead
    as_it_was = _line(measured, measured.backend)
    if bare.reading <= LITTLE * bare.each:
        return Advice(NOTHING, 'Reading takes {:.0%} of the time, so there is '
                      'next to nothing to hide.'.format(
                          bare.reading / bare.each), None)
    slower = measured.reading > bare.stepping / HEADROOM
    hindered = ahead.each > HINDERED * measured.ideal
    slowest = measured.slowest
    if slower and (not hindered or slowest.mapping is not None and
                   slowest.kind == 'keeps the lock'):
        return _faster(measured)
    lock = _lock(measured)
    if lock is not None:
        return Advice(PROCESS, lock, _line(measured, 'process'))
    if measured.waiting <= LITTLE * ahead.seconds:
        if len(ahead.firsts) > 1 and (
                measured.beginnings > LITTLE * ahead.seconds):
            return Advice(EPOCHS, 'Only the first batch of each epoch is '
                          'waited for, {:.0%} of the time. The next epoch can '
                          'be begun ahead.'.format(
                              measured.beginnings / ahead.seconds),
                          as_it_was[:-1] + ', across_epochs=True)')
        return Advice(NOTHING, 'Nothing more: batches are ready when training '
                      'asks for them, which takes the time that is left. '
                      'Keep it so.', as_it_was)
    if slower:
        return _faster(measured)
    depth = None if measured.max_store is None else depth_for(
        bare.waits, bare.stepping)
    if depth is not None and depth > measured.max_store:
        nbytes = depth * measured.stats.bytes_produced / max(
            1, measured.stats.batches_produced)
        return Advice(DEEPER, 'Some batches take much longer than others, the '
                      'slowest {:.1f} steps. A store of {} carries the '
                      'training over that, and takes up to {:.0f} MB.'.format(
                          max(bare.waits) / bare.stepping, depth,
                          math.ceil(nbytes / 1e6)),
                      _line(measured._replace(max_store=depth),
                            measured.backend))
    if measured.reading > HEADROOM * bare.stepping:
        return _faster(measured)
    return Advice(NOTHING, 'Nothing more is known to help: reading is fast '
                  'enough by itself, and yet training waits for {:.0%} of the '
                  'time. Another program may have the processor, or the disk; '
                  'profile some more epochs.'.format(
                      measured.waiting / ahead.seconds), as_it_was)


def _line(measured, backend):
    """Return the code for what was measured, with some backend."""
    line = 'stream = BackgroundDataStream(stream, max_store={}{})'.format(
        measured.max_store, ", backend='process'" if backend == 'process' and
        not measured.workers else '')
    if measured.workers:
        line = '{}\n{}'.format(_mapped(
            measured.to_parallelize, measured.workers,
            backend == 'process'), line)
    return line


def _mapped(stage, workers, processes):
    """Return the code that takes the place of a mapping."""
    return 'stream = ParallelMapping(stream, {}, workers={}{})'.format(
        name_of(stage.mapping), workers,
        ', executor=ProcessPoolExecutor({})'.format(workers)
        if processes else '')


def _lock(measured):
    """Return why a process would help where a thread doesn't, or ``None``."""
    if measured.backend == 'process' or measured.workers:
        return None
    if measured.stats.advice is not None:
        text = measured.stats.advice
        return text[0].upper() + text[1:] + '.'
    if measured.cores < 2 or measured.ahead.seconds <= (
            1 + LITTLE) * measured.ideal * measured.ahead.batches:
        return None
    produced = measured.stats.batches_produced
    slowed = [
        ('reading', measured.stats.seconds_producing / produced /
         measured.bare.reading if produced else 0),
        ('the training step', measured.slowed)]
    what, most = max(slowed, key=lambda one: one[1])
    slowest = measured.slowest
    if most < SLOWED and not (slowest.kind == 'keeps the lock' and
                              measured.slowed >= SLOWED_BY_LOCK):
        return None
    return ("Beside the other, {} takes {:.1f} times as long as alone: they "
            "take turns with the interpreter's lock, or lack a core. A "
            'process has a lock of its own.'.format(what, most))


def _faster(measured):
    """Return advice for a stream that is slower than the training."""
    bare, slowest = measured.bare, measured.slowest
    share = slowest.seconds / sum(stage.seconds for stage in measured.stages)
    why = 'A batch takes {:.2g} times as long to read as to train on, and ' \
          '{:.0%} of that is in {}, which {}. '.format(
              measured.reading / bare.stepping, share, slowest.name,
              slowest.kind)
    if slowest.mapping is None:
        return Advice(
            CHEAPER, why + 'A deeper store would be empty. Make that '
            'cheaper, or do it in a mapping, which several workers can call:',
            'stream = ParallelMapping(stream, function, workers=2)')
    needed = max(2, int(math.ceil(
        slowest.seconds / bare.batches / (HEADROOM * bare.stepping))))
    needed = min(needed, MOST_WORKERS)
    short = ''
    if slowest.kind != 'waits' and needed > measured.cores:
        short = ' {} would keep up, but there are {} cores.'.format(
            needed, measured.cores)
        needed = measured.cores
    if needed <= max(1, measured.workers):
        return Advice(CHEAPER, why + 'It has the workers that it can use.' +
                      short + ' Make it cheaper.', None)
    processes = slowest.kind == 'keeps the lock'
    if slowest.kind == 'computes':
        short += (' If that is Python rather than NumPy, give them an '
                  'executor of processes.')
    return Advice(
        WORKERS, why + 'Let {} do it, with this in the place of the '
        'Mapping.{}'.format('processes' if processes else 'threads', short),
        _mapped(slowest, needed, processes))

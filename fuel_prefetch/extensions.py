"""Extensions of Blocks' main loop. Only with Blocks can this be imported."""
from __future__ import absolute_import, division, print_function

import six

from fuel_prefetch.arguments import check

try:
    from blocks.extensions import SimpleExtension, TrainingExtension
except Exception as error:  # Theano fails in many ways
    six.raise_from(ImportError(
        'fuel_prefetch.extensions needs Blocks, which cannot be imported: '
        '{}: {}'.format(type(error).__name__, error)), None)


class PrefetchMonitoring(SimpleExtension):
    """Writes the statistics of a stream to the main loop's log.

    They are those of the time since they were written last, or since the
    training began. By default they are written after every epoch, and after
    the training if that ends in the middle of one.

    Parameters
    ----------
    stream : :class:`.BackgroundDataStream` or :class:`.ParallelMapping`
        The stream. If it is the main loop's it is followed: where `Load`
        replaces that, the new one is watched.
    prefix : str, optional
        What the names of the records begin with. Defaults to
        ``'prefetch'``.

    Raises
    ------
    ValueError
        If `stream` has no statistics.

    Notes
    -----
    The records are ``prefetch_batches_taken``, ``prefetch_bytes_taken``,
    ``prefetch_batches_most_held``, ``prefetch_errors``,
    ``prefetch_seconds_producing``, ``prefetch_seconds_blocked``,
    ``prefetch_seconds_resting``, ``prefetch_seconds_waiting``,
    ``prefetch_batches_per_second`` and ``prefetch_bottleneck``, as in
    :class:`~fuel_prefetch.stats.Stats`; and ``prefetch_advice`` where there
    is one.

    Put it before `Printing` and `Checkpoint`, which show and save what is
    written so far. It is pickled with the main loop, and goes on with the
    epoch that is under way then.

    """
    RECORDS = ('batches_taken', 'bytes_taken', 'batches_most_held', 'errors',
               'seconds_producing', 'seconds_blocked', 'seconds_resting',
               'seconds_waiting', 'batches_per_second', 'bottleneck')

    def __init__(self, stream, prefix='prefetch', **kwargs):
        check('stream', stream, 'have statistics', hasattr(stream, 'stats'))
        for condition in ('before_training', 'on_resumption', 'after_epoch',
                          'after_training'):
            kwargs.setdefault(condition, True)
        super(PrefetchMonitoring, self).__init__(**kwargs)
        self.prefix = prefix
        self.stream = stream
        self._of_main_loop = False
        self._earlier = None

    @TrainingExtension.main_loop.setter
    def main_loop(self, value):
        TrainingExtension.main_loop.fset(self, value)
        self._of_main_loop = value.data_stream is self.stream

    def do(self, which_callback, *args):
        replaced = self._of_main_loop and (
            self.main_loop.data_stream is not self.stream)
        if replaced:
            self.stream = self.main_loop.data_stream
        stats, earlier = self.stream.stats, self._earlier
        if which_callback == 'before_training' or replaced or earlier is None:
            self._earlier = stats
        elif which_callback != 'on_resumption':
            self._earlier = stats
            during = stats - earlier
            # After the last epoch there is nothing new to be said.
            if during.batches_taken or which_callback != 'after_training':
                self._write(during)

    def _write(self, during):
        row = self.main_loop.log.current_row
        for name in self.RECORDS:
            row[self._name(name)] = getattr(during, name)
        if during.advice is not None:
            row[self._name('advice')] = during.advice

    def _name(self, name):
        return '{}_{}'.format(self.prefix, name) if self.prefix else name

"""Fuel transformers that work ahead of their readers."""
from __future__ import absolute_import, division, print_function

import os
from collections import OrderedDict
from functools import partial

import six
from fuel.iterator import DataIterator
from fuel.transformers import Transformer

from fuel_prefetch.arguments import (
    bound_of, check, check_flag, check_seconds, is_count, is_integer,
    is_stream)
from fuel_prefetch.channel import (
    FORKED, FORKED_MESSAGE, SUPERSEDED, Channel)
from fuel_prefetch.exceptions import PrefetchError
from fuel_prefetch.inspection import Inspection
from fuel_prefetch.mapping import (
    Calls, Submission, bound_of_calls, check_call)
from fuel_prefetch.process import ProcessSource
from fuel_prefetch.worker import Prefetcher, Source

# Of what a pickle holds. A change that older code can't read raises it; what
# an older version has written is read for ever.
STATE_VERSION = 1


class ReadAhead(Transformer):
    """What the transformers that read ahead have in common.

    Attributes
    ----------
    stats : :class:`~fuel_prefetch.stats.Stats`
        The counters at this moment.

    """
    def __init__(self, data_stream, **kwargs):
        check('data_stream', data_stream, 'be a data stream',
              is_stream(data_stream))
        iteration_scheme = kwargs.pop('iteration_scheme', None)
        check('iteration_scheme', iteration_scheme,
              'be set on the wrapped stream', iteration_scheme is None)
        produces_examples = kwargs.pop('produces_examples', None)
        super(ReadAhead, self).__init__(data_stream, **kwargs)
        if produces_examples is not None:
            self.produces_examples = produces_examples

    def _start_afresh(self):
        """Make what is no part of a pickle, from the attributes."""
        self._prefetcher = self._make_prefetcher()
        self._source = None
        self._settle()

    def _settle(self):
        """Let attributes that were set since count from now on."""
        raise NotImplementedError

    def _make_prefetcher(self):
        raise NotImplementedError

    def _make_source(self, data_stream):
        raise NotImplementedError

    # What the wrapped stream says of itself holds for this one too, also
    # where it changes. The setters are there for Fuel's constructors, and
    # for a caller who set these on the stream that is wrapped now.

    @property
    def iteration_scheme(self):
        return self.data_stream.iteration_scheme

    @iteration_scheme.setter
    def iteration_scheme(self, value):
        if 'data_stream' in self.__dict__:  # not while it is constructed
            self.data_stream.iteration_scheme = value

    @property
    def produces_examples(self):
        if hasattr(self, '_produces_examples'):
            return self._produces_examples
        return self.data_stream.produces_examples

    @produces_examples.setter
    def produces_examples(self, value):
        Transformer.produces_examples.fset(self, value)

    @property
    def stats(self):
        """A :class:`~fuel_prefetch.stats.Stats` of this moment."""
        return self._prefetcher.snapshot()

    def get_epoch_iterator(self, as_dict=False):
        """Begin an epoch, and return an iterator over it.

        An epoch that is under way ends, and what was read ahead of it is
        dropped.

        Parameters
        ----------
        as_dict : bool, optional
            Whether to return batches as dictionaries with the names of
            :attr:`sources` as keys. Defaults to ``False``.

        Raises
        ------
        BaseException
            What the wrapped stream raises, StopIteration included.
        PrefetchTimeout
            If the epoch didn't begin in time.

        """
        if self._source is None or (
                self._source.data_stream is not self.data_stream):
            self._source = self._make_source(self.data_stream)
        self._settle()
        channel = self._prefetcher.begin(self._source)
        return EpochIterator(self, channel, self._prefetcher.number, as_dict)

    @property
    def _wrapped(self):
        """Whose `reset`, `next_epoch` and `close` are to be called."""
        source = self._source
        if source is None or source.data_stream is not self.data_stream:
            return self.data_stream
        return source

    def get_data(self, request=None):
        """Return the next batch of the epoch under way.

        Raises
        ------
        PrefetchError
            If none has begun, or the stream was closed.
        BaseException
            As ``next`` of the epoch iterator, StopIteration included.

        """
        if request is not None:
            raise ValueError('request must be None, got {!r}'.format(request))
        channel = self._prefetcher.channel_of(self._prefetcher.number)
        if channel is None:
            raise PrefetchError('no epoch is under way; ask for an epoch '
                                'iterator first')
        return channel.get()

    def reset(self):
        """Reset the wrapped stream, and drop what was read ahead.

        In the middle of an epoch take a new epoch iterator afterwards. The
        old one goes on with what the wrapped one gives next, which is past
        what was dropped where an iteration scheme decides.

        """
        self._prefetcher.interrupt(self._wrapped.reset)

    def next_epoch(self):
        """Have the wrapped stream switch to its next epoch.

        In the middle of an epoch the same holds as for :meth:`reset`.

        """
        self._prefetcher.interrupt(self._wrapped.next_epoch)

    def close(self, timeout=5.0):
        """Stop reading ahead, and close the wrapped stream.

        An epoch iterator that isn't at its end raises
        :class:`.PrefetchError` from now on, also to whoever waits for it.
        A new epoch may be begun, if the wrapped stream can be used again.
        Closing twice does nothing more.

        Parameters
        ----------
        timeout : float, optional
            Seconds that it may take, besides what the wrapped stream's
            own `close` takes. Nine tenths are for the batch in hand;
            then the wrapped stream is closed even so, which frees a
            read that blocks for ever. Defaults to 5; ``None`` waits for the
            batch as long as it takes.

        """
        self._prefetcher.close(self.data_stream, self._wrapped.close, timeout)

    def __getstate__(self):
        # The wrapped stream is pickled after this has returned. `save` makes
        # the producer rest until then, and for as long as nobody asks.
        state = self.__dict__.copy()
        source = state.pop('_source')
        prefetcher = state.pop('_prefetcher')
        run = prefetcher.save()
        data_stream = None if source is None else source.data_stream
        if source is not None and not prefetcher.dormant:
            data_stream, iterator = source.checkpoint()
            if run['iterator'] is not None:
                run = dict(run, iterator=iterator)
            # Another stream may be wrapped than the one that is read still.
            if source.data_stream is self.data_stream:
                state['data_stream'] = data_stream
        state['fuel_prefetch'] = {
            'version': STATE_VERSION, 'run': run, 'data_stream': data_stream}
        return state

    def __setstate__(self, state):
        state = state.copy()
        ours = state.pop('fuel_prefetch')
        version = ours['version']
        if version > STATE_VERSION:
            raise PrefetchError(
                'the pickle is of a newer fuel_prefetch: it has version {} of '
                'the state, this one knows those up to {}'.format(
                    version, STATE_VERSION))
        self.__dict__.update(state)
        self._start_afresh()
        # Nothing is called: the wrapped stream may not be complete yet.
        if ours['data_stream'] is not None:
            self._source = self._make_source(ours['data_stream'])
            self._settle()
        self._prefetcher.restore(ours['run'], self._source)

    def __copy__(self):
        # As a shallow copy of any other transformer shares its child's epoch
        # with the original, so does this one share what is read ahead of it.
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()


class BackgroundDataStream(ReadAhead):
    """Computes batches of a stream ahead of time in a thread.

    While the caller works on one batch, the next ones are read and
    transformed. Nothing else changes: batches, order, errors and ends are
    those of the wrapped stream.

    Parameters
    ----------
    data_stream : :class:`~fuel.streams.AbstractDataStream`
        The stream to read. From the first epoch to :meth:`close`, leave
        reading it to this one. Between epochs it may be changed.
    max_store : int, optional
        Most batches held ready; the producer may have one more in hand.
        Defaults to 10; ``None`` or -1 set no bound.
    max_bytes : int, optional
        Most bytes held ready, lists and object arrays included. A batch
        that is larger is let through alone. Defaults to ``None``, no bound.
    across_epochs : bool, optional
        Whether to begin the next epoch before it is asked for, so that its
        first batches are ready too. Within the same bounds, and one epoch
        ahead at most. A change made to the wrapped stream between epochs
        then comes an epoch late, unless :meth:`reset` follows it. Defaults
        to ``False``.
    copy : bool, optional
        Whether to copy each array as it is produced. Needed for a stream
        that fills the same memory for each batch. Defaults to ``False``.
    backend : {'thread', 'process'}, optional
        Where the wrapped stream is read. Defaults to ``'thread'``. In a
        process it is past the interpreter's lock; see
        :doc:`howto/processes`.
    timeout : float, optional
        Seconds that a reader waits for a batch, or for an epoch to begin,
        before :class:`.PrefetchTimeout` is raised. Nothing is lost by it.
        Defaults to ``None``, as long as it takes.
    context : multiprocessing context, optional
        Starts the process, as :func:`multiprocessing.get_context` returns
        it. Defaults to ``None``, the platform's own.

    Raises
    ------
    ValueError
        If an argument can't be what it is, with its name and value.

    Notes
    -----
    The producer starts with an epoch and ends with it, `across_epochs`
    apart; one thread makes all reads of an epoch, errors in between included.
    :meth:`~fuel.streams.AbstractDataStream.get_epoch_iterator` of the
    wrapped stream is called there too, once for each call of ours, and what
    it raises is raised by ours. After an error nothing more is read until
    the caller asks for it.

    What was read ahead is dropped when an epoch is left early and by
    :meth:`reset` and :meth:`next_epoch`. So where a stream carries the rest
    of an abandoned epoch over into the next (an endless dataset does, or
    :class:`~fuel.transformers.Unpack`), or draws random numbers for each
    batch, the next epoch is what it would be without reading ahead only
    after a whole epoch.

    The stream can be pickled and copied at any time, with its epoch iterator
    or without; what was read ahead goes along, and what is loaded goes on
    where the reader was. The producer rests from then on until a batch is
    asked for.

    `max_store` and `timeout` may be set later as attributes, and count from
    the next epoch; with `across_epochs` from the next one that isn't begun
    ahead. The other arguments count when the stream is made.

    The batches come as they are made: without a copy, and in the containers
    the wrapped stream uses. Several threads may take batches from one
    stream; each goes to one of them.

    """
    def __init__(self, data_stream, max_store=10, max_bytes=None,
                 across_epochs=False, copy=False, backend='thread',
                 timeout=None, context=None, **kwargs):
        bound_of('max_store', max_store)
        check('max_bytes', max_bytes, 'be a positive integer or None',
              max_bytes is None or is_count(max_bytes))
        check_flag('across_epochs', across_epochs)
        check_flag('copy', copy)
        check('backend', backend, "be 'thread' or 'process'",
              isinstance(backend, six.string_types) and
              backend in ('thread', 'process'))
        check('backend', backend, "be 'thread' on Windows",
              backend == 'thread' or os.name != 'nt')
        check_seconds('timeout', timeout)
        check('context', context, "be a multiprocessing context or None, and "
              "None where backend is 'thread'", context is None or
              backend == 'process' and
              callable(getattr(context, 'Process', None)))
        super(BackgroundDataStream, self).__init__(data_stream, **kwargs)
        self.max_store = max_store
        self.max_bytes = max_bytes
        self.across_epochs = across_epochs
        self.copy = copy
        self.backend = backend
        self.timeout = timeout
        self.context = context
        self._start_afresh()

    def _make_prefetcher(self):
        return Prefetcher(
            max_bytes=bound_of('max_bytes', self.max_bytes),
            endless=self.across_epochs, name=type(self).__name__)

    def _settle(self):
        prefetcher = self._prefetcher
        prefetcher.max_items = bound_of('max_store', self.max_store)
        prefetcher.timeout = self.timeout
        if isinstance(self._source, ProcessSource):
            prefetcher.max_items = self._source.share(prefetcher.max_items)

    @property
    def axis_labels(self):
        if self._axis_labels is not None:
            return self._axis_labels
        return self.data_stream.axis_labels

    @axis_labels.setter
    def axis_labels(self, value):
        self._axis_labels = value

    def _make_source(self, data_stream):
        if self.backend == 'process':
            return ProcessSource(data_stream, self._prefetcher.counters,
                                 self.max_bytes, self.context,
                                 type(self).__name__)
        return EpochSource(
            data_stream, self._prefetcher.counters, self.copy,
            self.max_bytes is not None)


class ParallelMapping(ReadAhead):
    """Fuel's ``Mapping``, on several workers.

    One thread reads the wrapped stream, in order, and several work on what
    it reads. What comes out is what ``Mapping`` gives, in the same order.

    Parameters
    ----------
    data_stream : :class:`~fuel.streams.AbstractDataStream`
        The stream to read.
    mapping : callable
        Called with the data of a batch, or an example: a tuple, or a
        dictionary if `mapping_accepts` says so. It must not depend on the
        order in which it is called, as several calls are under way.
    workers : int, optional
        Threads to call it in. Defaults to 2.
    max_store : int, optional
        Most batches read ahead of those that were taken: waiting, under
        way or ready. Defaults to twice the workers; -1 sets no bound.
    ordered : bool, optional
        Whether batches come in the order of the wrapped stream, rather
        than as they get ready. Defaults to ``True``.
    executor : ``concurrent.futures.Executor``, optional
        Who calls the mapping, for example processes or a cluster. It is
        not shut down, and is no part of a pickle: set the attribute again
        after loading. Defaults to threads of its own.
    seed : int, optional
        If given, the mapping is called with a second argument, a
        :class:`numpy.random.RandomState` for the seed, the epoch and the
        number of the batch in it, both from 0. Workers, executor, timing
        and interruptions make no difference to it.
    add_sources : tuple of str, optional
        When given, what the mapping returns is added to the original data
        under these names.
    mapping_accepts : {list, dict}, optional
        Whether the mapping takes and returns tuples, the default, or
        dictionaries with the names of the sources as keys.

    Raises
    ------
    TypeError, ValueError
        If an argument can't be what it is, with its name and value.

    Notes
    -----
    An error of the mapping comes in the place of its batch, and the stream
    goes on after it. A ``StopIteration`` that leaves the mapping is an error
    as well, a ``RuntimeError`` with the StopIteration as its cause.

    A random state that a mapping shares between its calls is drawn from in
    the order in which threads happen to run; in another process each call
    has a copy of it. Use `seed`.

    Pickles and copies resume as those of :class:`BackgroundDataStream`. In
    them are the results that were ready, and of calls under way the data.

    """
    def __init__(self, data_stream, mapping, workers=2, max_store=None,
                 ordered=True, executor=None, seed=None, add_sources=None,
                 mapping_accepts=list, **kwargs):
        check_call('mapping', mapping)
        check('mapping_accepts', mapping_accepts, 'be list or dict',
              mapping_accepts in (list, dict))
        check('seed', seed, 'be an integer from 0 to 2**32 - 1 or None',
              seed is None or is_integer(seed) and 0 <= seed < 2 ** 32)
        check('add_sources', add_sources, 'be a tuple of names or None',
              add_sources is None or isinstance(add_sources, (tuple, list)) and
              all(isinstance(name, six.string_types) for name in add_sources))
        super(ParallelMapping, self).__init__(data_stream, **kwargs)
        self.mapping = mapping
        self.workers = workers
        self.max_store = max_store
        self.ordered = ordered
        self.executor = executor
        self.seed = seed
        self.add_sources = add_sources
        self.mapping_accepts = mapping_accepts
        self._start_afresh()

    def _start_afresh(self):
        self._calls = Calls(self.workers, self.ordered, self.executor,
                            self.seed)
        super(ParallelMapping, self)._start_afresh()

    def _make_prefetcher(self):
        return Prefetcher(name=type(self).__name__)

    def _settle(self):
        self._prefetcher.max_items = bound_of_calls(
            'max_store', self.max_store, self.workers)
        self._calls.function = MappedCall(
            self.mapping, self.mapping_accepts, self.add_sources)

    def _make_source(self, data_stream):
        return MappedSource(data_stream, self._prefetcher.counters,
                            self._calls)

    @property
    def sources(self):
        return self.data_stream.sources + tuple(self.add_sources or ())

    @property
    def executor(self):
        return self._executor

    @executor.setter
    def executor(self, executor):
        self._executor = executor
        if '_calls' in self.__dict__:  # not while it is constructed
            self._calls.executor = executor

    def close(self, timeout=5.0):
        try:
            super(ParallelMapping, self).close(timeout)
        finally:
            self._calls.shut_down()

    close.__doc__ = ReadAhead.close.__doc__

    def __getstate__(self):
        state = super(ParallelMapping, self).__getstate__()
        del state['_calls']
        return dict(state, _executor=None)


class MappedCall(object):
    """A call of a mapping, as Fuel's ``Mapping`` makes it.

    Parameters
    ----------
    mapping, accepts, add_sources
        As in :class:`ParallelMapping`.

    Attributes
    ----------
    names : tuple of str
        The wrapped stream's sources. They are set before the first call.

    """
    names = ()

    def __init__(self, mapping, accepts, add_sources):
        self.mapping = mapping
        self.accepts = accepts
        self.add_sources = add_sources

    def __call__(self, data, *random_state):
        taken = data
        if self.accepts is dict:
            taken = OrderedDict(zip(self.names, data))
        image = self.mapping(taken, *random_state)
        if self.accepts is dict:
            image = tuple(image[name]
                          for name in self.add_sources or self.names)
        return data + image if self.add_sources else image


class EpochIterator(DataIterator):
    """An iterator over one epoch of a stream that is read ahead.

    Parameters
    ----------
    data_stream : :class:`BackgroundDataStream`
        The stream. It stays alive as long as its iterator.
    channel : :class:`.Channel`
        Where the epoch comes from. A newer epoch has another one, so this
        iterator can't take anything from it.
    number : int
        The stream's number of the epoch.
    as_dict : bool
        Whether to return dictionaries.

    """
    def __init__(self, data_stream, channel, number, as_dict):
        super(EpochIterator, self).__init__(data_stream, as_dict=as_dict)
        self._channel = channel  # None after it was unpickled
        self._number = number
        self._ending = None  # when it was pickled

    def __next__(self):
        try:
            data = (self._channel or self._find_channel()).get()
        except StopIteration:
            self.data_stream._prefetcher.settle(self._channel)
            raise
        if self.as_dict:
            return dict(zip(self.data_stream.sources, data))
        return data

    def _find_channel(self):
        # Not before it is needed: the stream that this one is pickled with
        # is complete only when all of the pickle has been loaded.
        self._channel = (
            self.data_stream._prefetcher.channel_of(self._number) or
            Channel.ended(self._ending or SUPERSEDED))
        return self._channel

    def __getstate__(self):
        # It is in the stream's state what the two have in common. Where this
        # one's turn comes first, the producer has to rest from now on.
        prefetcher = self.data_stream._prefetcher
        prefetcher.save()
        if self._channel is None and not prefetcher.dormant:
            self._find_channel()
        ending = self._channel.ending if self._channel else self._ending
        if ending == FORKED:
            raise PrefetchError(FORKED_MESSAGE)
        return dict(self.__dict__, _channel=None, _ending=ending)

    next = __next__  # for 2.7, where it is one call less than Fuel's


class EpochSource(Source):
    """The wrapped stream, as the worker sees it.

    Parameters
    ----------
    data_stream : :class:`~fuel.streams.AbstractDataStream`
        The wrapped stream.
    counters, copy, count_all
        As in :class:`.Inspection`.

    """
    def __init__(self, data_stream, counters, copy=False, count_all=False):
        super(EpochSource, self).__init__()
        self.data_stream = data_stream
        # No bound method: in a cycle the wrapped stream would outlive ours.
        self.prepare = Inspection(counters, copy, count_all,
                                  partial(_describe, data_stream))

    def open_iterator(self):
        # An epoch may well begin with the memory that the last one began
        # with, where examples are parts of one array.
        self.prepare.restart()
        return self.data_stream.get_epoch_iterator()

    def reset(self):
        self.data_stream.reset()

    def next_epoch(self):
        self.data_stream.next_epoch()

    def close(self):
        self.data_stream.close()

    def checkpoint(self):
        return self.data_stream, self.iterator


def _name_sources(calls, data_stream):
    """Tell a mapping that takes dictionaries what the sources are."""
    function = calls.function
    if function.accepts is dict and not function.names:
        function.names = tuple(data_stream.sources)


def _describe(data_stream, index):
    try:
        name = data_stream.sources[index]
    except Exception:  # a stream that doesn't know its sources
        name = index
    return ('source {!r} comes in the same memory as in a batch that is not '
            'used yet; if the stream fills one buffer again and again, that '
            'batch was overwritten: pass copy=True to BackgroundDataStream'
            .format(name))


class MappedSource(EpochSource):
    """The wrapped stream and the calls on its data, as the worker sees them.

    Parameters
    ----------
    data_stream, counters
        As in :class:`EpochSource`.
    calls : :class:`.Calls`
        The calls.

    """
    def __init__(self, data_stream, counters, calls):
        super(MappedSource, self).__init__(data_stream, counters)
        self.calls = calls
        self.prepare = Submission(calls, self.prepare,
                                  partial(_name_sources, calls, data_stream))

    def open_iterator(self):
        iterator = super(MappedSource, self).open_iterator()
        self.calls.begin()
        return iterator

    def load_notice(self, saved):
        return self.prepare.load_notice(saved)

    def save(self):
        return self.calls.save()

    def load(self, saved):
        self.calls.load(saved)

"""A stream that a server reads, on this machine or on another one."""
from __future__ import absolute_import, division, print_function

import threading

from fuel.iterator import DataIterator
from fuel.streams import AbstractDataStream

from fuel_prefetch import wire
from fuel_prefetch.arguments import (
    check, check_patience, check_seconds, is_count)
from fuel_prefetch.channel import FORKED_MESSAGE
from fuel_prefetch.connection import Connection, Gone, Sequence
from fuel_prefetch.exceptions import (
    PrefetchError, PrefetchTimeout, WorkerDied)
from fuel_prefetch.keys import check_address, read_client_keys
from fuel_prefetch.schemes import ServedScheme
from fuel_prefetch.waiting import (
    acquire, deadline_of, process_token, time_left)

STATE_VERSION = 1

# How it stands with the epoch of a client
NO_EPOCH = 'no epoch'
UNDER_WAY = 'under way'
ENDED = 'ended'
CLOSED = 'closed'
LOST = 'lost'  # with the server, or its memory of this client
SAVED = 'saved'  # in a checkpoint that isn't loaded yet


class RemoteDataStream(AbstractDataStream):
    """Reads the batches of a :class:`StreamServer`.

    It goes wherever a stream goes. Nothing is typed in twice: what the
    sources are, and their axes, is learned from the server at first use.
    The constructor connects to nothing.

    Parameters
    ----------
    address : str
        Where the server listens: ``'tcp://host:port'`` or ``'ipc://path'``.
    max_store : int, optional
        Most batches ready here or under way, besides the one in hand.
        Defaults to 2, which hides the round trip.
    timeout : float, optional
        Seconds that a batch, an epoch's beginning or another answer may take
        before :class:`.PrefetchTimeout` is raised. Nothing is lost by it.
        Defaults to 30; ``None`` is as long as it takes.
    on_restart : {'raise', 'epoch'}, optional
        What to do when the server is started anew, or has given this client
        up, in the middle of an epoch: raise :class:`.WorkerDied`, or begin an
        epoch of the new one in its place, so that batches that were read come
        again. Defaults to ``'raise'``.
    keys : str, optional
        The file of this client's secret key, for a server that wants one.
    server_key : str, optional
        The file of that server's public key.
    max_bytes : int, optional
        The largest batch to accept from the server. Defaults to 2 GiB.
    axis_labels : dict, optional
        Labels that take the place of the server's.

    Attributes
    ----------
    sources : tuple of str
        The server's, as `axis_labels` and `produces_examples`. Reading one
        connects.
    iteration_scheme : :class:`~fuel.schemes.IterationScheme` or None
        What the served stream's scheme tells of an epoch's length, which is
        what Blocks' ``ProgressBar`` looks for; ``None`` if it tells none.
        With several clients, that is the length for all of them together.

    Raises
    ------
    ValueError
        If an argument can't be what it is, with its name and value.

    Notes
    -----
    A batch counts as used when the next one is asked for. Until then it goes
    to another client if this one dies or is closed.

    Several threads may take batches; each goes to one of them.

    """
    def __init__(self, address, max_store=2, timeout=30., on_restart='raise',
                 keys=None, server_key=None, max_bytes=wire.MOST_BATCH_BYTES,
                 **kwargs):
        check_address('address', address)
        check('max_store', max_store, 'be from 1 to {}'.format(
            wire.MOST_AHEAD),
            is_count(max_store) and max_store <= wire.MOST_AHEAD)
        check_seconds('timeout', timeout)
        check('on_restart', on_restart, "be 'raise' or 'epoch'",
              on_restart in ('raise', 'epoch'))
        read_client_keys(keys, server_key)
        check('max_bytes', max_bytes, 'be a positive integer',
              is_count(max_bytes))
        super(RemoteDataStream, self).__init__(**kwargs)
        self.address = address
        self.max_store = max_store
        self.timeout = timeout
        self.on_restart = on_restart
        self.keys = keys
        self.server_key = server_key
        self.max_bytes = max_bytes
        self._number = 0  # of the epoch
        self._epoch = NO_EPOCH
        self._why = None  # it is closed or lost
        self._checkpoint = None
        self._start_afresh()

    def _start_afresh(self):
        self._process = process_token()
        self._lock = threading.RLock()
        self._connection = None
        self._sequence = None
        self._begin_call = None  # an epoch that was asked for, in vain so far

    # What the server says of the stream

    @property
    def sources(self):
        if '_sources' in self.__dict__:
            return self._sources
        return tuple(str(name) for name in self._info('sources'))

    @sources.setter
    def sources(self, value):
        self._sources = value

    @property
    def axis_labels(self):
        if self._axis_labels is not None:
            return self._axis_labels
        labels = self._info('axis_labels')
        return labels and {
            str(name): tuple(map(str, axes)) if isinstance(
                axes, (tuple, list)) else axes
            for name, axes in labels.items()}

    @axis_labels.setter
    def axis_labels(self, value):
        self._axis_labels = value

    @property
    def produces_examples(self):
        if '_produces_examples' in self.__dict__:
            return self._produces_examples
        value = self._info('produces_examples')
        if value is None:
            raise ValueError('the served stream does not tell whether it '
                             'produces examples')
        return value

    @produces_examples.setter
    def produces_examples(self, value):
        self._produces_examples = value

    @property
    def iteration_scheme(self):
        if self._iteration_scheme is not None:
            return self._iteration_scheme
        length = self._info('length')
        return length and ServedScheme(*length)

    @iteration_scheme.setter
    def iteration_scheme(self, value):
        self._iteration_scheme = value

    def _info(self, name):
        with self._locked():
            return self._connect().info[name]

    # Epochs

    def get_epoch_iterator(self, as_dict=False):
        """Begin an epoch, or join the one that other clients are in.

        Parameters
        ----------
        as_dict : bool, optional
            Whether to return batches as dictionaries with the names of
            `sources` as keys. Defaults to ``False``.

        Raises
        ------
        StopIteration
            If the stream has no more epochs.
        RemoteError
            What else the stream raises.
        PrefetchTimeout
            If it doesn't begin in time.

        """
        with self._locked():
            if self._begin_call is None:
                self._number += 1
            self._begin()
            return RemoteIterator(self, self._number, as_dict)

    def _begin(self):
        """Begin an epoch, with whatever server there is."""
        deadline = deadline_of(self.timeout)
        while True:
            connection = self._connect()
            if self._epoch == SAVED:
                self._load(connection)
            if self._begin_call is None:
                self._begin_call = connection.new_call()
            self._epoch, self._sequence = NO_EPOCH, None
            call = self._begin_call
            try:
                connection.operate(wire.BEGIN, call)
            except Gone as gone:
                self._disconnect()
                if time_left(deadline) == 0:
                    raise WorkerDied(self._gone_text(gone))
                continue
            except PrefetchTimeout:
                raise  # it is had once more rather than lost
            except Exception:
                self._begin_call = None
                raise
            self._begin_call = None
            self._epoch = UNDER_WAY
            self._sequence = Sequence(call, self.max_store)
            return

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
        if self._epoch == NO_EPOCH:
            raise PrefetchError('no epoch is under way; ask for an epoch '
                                'iterator first')
        return self._next(self._number)

    def _next(self, number):
        with self._locked():
            while True:
                if number != self._number:
                    raise StopIteration
                if self._epoch == SAVED:
                    self._load(self._connect())
                if self._epoch in (ENDED, NO_EPOCH):  # a newer one failed
                    raise StopIteration
                if self._epoch == CLOSED:
                    raise PrefetchError(self._why)
                if self._epoch == LOST:
                    raise WorkerDied(self._why)
                try:
                    connection = self._connection
                    message = connection.next(self._sequence)
                except Gone as gone:
                    self._lose(gone)
                    continue
                if message is None:
                    sequence, self._sequence = self._sequence, None
                    self._epoch = ENDED
                    connection.end(sequence)
                elif message.kind == wire.ERROR:
                    connection.raise_error(message)
                else:
                    return connection.batch(message)

    def _lose(self, gone):
        """The server has forgotten this client, in the middle of an epoch."""
        self._disconnect()
        self._epoch, self._why = LOST, self._gone_text(gone)
        if self.on_restart == 'epoch':
            self._begin()

    def _gone_text(self, gone):
        return ('the epoch was lost: the server at {} was started anew, was '
                'stopped, or has given this client up ({})'.format(
                    self.address, gone.text))

    def reset(self):
        """Reset the served stream, and drop what was read ahead.

        Raises
        ------
        RemoteError
            What the stream raises; also while other clients read it.

        """
        self._rewind(wire.RESET)

    def next_epoch(self):
        """Have the served stream switch to its next epoch."""
        self._rewind(wire.NEXT_EPOCH)

    def _rewind(self, kind):
        with self._locked():
            self._begin_call = None
            connection = self._connect()
            try:
                if self._epoch == SAVED:
                    self._load(connection)
                call = connection.new_call()
                connection.operate(kind, call)
            except Gone as gone:
                self._disconnect()
                if self._epoch == UNDER_WAY:
                    self._epoch, self._why = LOST, self._gone_text(gone)
                raise WorkerDied(self._gone_text(gone))
            if self._epoch == UNDER_WAY:
                self._sequence = Sequence(call, self.max_store)

    def close(self, timeout=5.0):
        """Leave the server. The stream there stays open.

        An epoch iterator that isn't at its end raises
        :class:`.PrefetchError` from now on, also to whoever waits for it. A
        new epoch may be begun. Closing twice does nothing more.

        Parameters
        ----------
        timeout : float, optional
            Most seconds to wait for the server to take note. Defaults to 5.

        """
        check_patience(timeout)
        self._check_process()
        connection = self._connection
        if connection is not None:
            connection.closing = True  # whoever waits is told
        deadline = deadline_of(timeout)
        if not acquire(self._lock, timeout):
            return
        try:
            connection = self._connection
            if connection is None:
                return
            if self._epoch == UNDER_WAY:
                self._epoch, self._why = CLOSED, 'the stream was closed'
            connection.closing = False
            try:
                if connection.info is not None:
                    connection.operate(wire.BYE, connection.new_call(),
                                       timeout=min(1., max(
                                           1e-3, time_left(deadline) or 1.)))
            except (Gone, PrefetchError):
                pass  # then it will find out
            self._disconnect()
        finally:
            self._lock.release()

    # Connecting

    def _locked(self):
        self._check_process()
        return self._lock

    def _check_process(self):
        if self._process != process_token():
            # The parent's socket, and its epoch, are not this process's.
            connection, epoch = self._connection, self._epoch
            self._start_afresh()
            if connection is not None:
                connection.leave_behind()
            if epoch == UNDER_WAY:
                self._epoch, self._why = CLOSED, FORKED_MESSAGE

    def _connect(self):
        """Return the connection, made if there is none."""
        deadline = deadline_of(self.timeout)
        while self._connection is None or self._connection.info is None:
            if self._connection is None:
                self._connection = Connection(
                    self.address, self.timeout, self.max_bytes,
                    read_client_keys(self.keys, self.server_key))
            try:
                self._connection.shake_hands()
            except Gone:  # the server is about to stop; another may come
                self._disconnect()
                if time_left(deadline) == 0:
                    raise PrefetchTimeout('no server at {} that goes on'
                                          .format(self.address))
            except BaseException:
                self._disconnect()
                raise
        return self._connection

    def _disconnect(self):
        connection, self._connection = self._connection, None
        self._begin_call = None
        if connection is not None:
            connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    # Checkpoints

    def _load(self, connection):
        call = connection.new_call()
        try:
            message = connection.operate(
                wire.LOAD, call, details=wire.pack(self._checkpoint))
        except Gone as gone:
            self._disconnect()
            raise WorkerDied(self._gone_text(gone))
        if message.a:
            self._epoch = UNDER_WAY
            self._sequence = Sequence(call, self.max_store)
        else:
            self._epoch = ENDED if self._number else NO_EPOCH

    def _save(self):
        """Have the server save where this client is."""
        connection, sequence = self._connection, self._sequence
        if self._epoch == UNDER_WAY and not connection.info['checkpoints']:
            raise PrefetchError(
                'the server at {} was started without --checkpoints, so its '
                'stream can be pickled only between epochs'.format(
                    self.address))
        try:
            message = connection.operate(
                wire.SAVE, connection.new_call(),
                sequence.taken if sequence is not None else 0,
                sequence=sequence)
        except Gone as gone:
            self._lose(gone)
            raise WorkerDied(self._gone_text(gone))
        return str(wire.unpack(message.frames))

    def __getstate__(self):
        with self._locked():
            state = self.__dict__.copy()
            for name in ('_process', '_lock', '_connection', '_sequence',
                         '_begin_call'):
                del state[name]
            if self._epoch == UNDER_WAY or self._connection is not None and (
                    self._number and self._connection.info['checkpoints']):
                state['_checkpoint'] = self._save()
                state['_epoch'] = SAVED
            state['_version'] = STATE_VERSION
            return state

    def __setstate__(self, state):
        state = dict(state)
        if state.pop('_version') > STATE_VERSION:
            raise PrefetchError('the pickle is of a newer fuel_prefetch')
        self.__dict__.update(state)
        self._start_afresh()


class RemoteIterator(DataIterator):
    """An iterator over one epoch of a stream that a server reads.

    Parameters
    ----------
    data_stream : :class:`RemoteDataStream`
        The stream. It stays alive as long as its iterator.
    number : int
        The stream's number of the epoch.
    as_dict : bool
        Whether to return dictionaries.

    """
    def __init__(self, data_stream, number, as_dict):
        super(RemoteIterator, self).__init__(data_stream, as_dict=as_dict)
        self._number = number

    def __next__(self):
        data = self.data_stream._next(self._number)
        if self.as_dict:
            return dict(zip(self.data_stream.sources, data))
        return data

    next = __next__

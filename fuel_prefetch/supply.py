"""The thread of a server that reads its stream."""
from __future__ import absolute_import, division, print_function

import binascii
import os
import re
import sys
import threading
from collections import deque

from six.moves import cPickle as pickle
from six.moves import range

from fuel_prefetch import wire
from fuel_prefetch.context import inherit
from fuel_prefetch.exceptions import PrefetchError, forget_error
from fuel_prefetch.inspection import Inspection
from fuel_prefetch.schemes import length_of
from fuel_prefetch.stats import Counters

STATE_VERSION = 1  # of a checkpoint's file
_IDENTIFIER = re.compile(r'[0-9a-f]{32}\Z')


# The thread is one of
#
#   RESTING   no command waits, and it may not read: all that was permitted is
#             read, or the epoch is over, or nobody has asked for what follows
#             an error;
#   BUSY      it carries out a command, or is in the stream's code to read;
#   GONE      it will not touch the stream again.
#
#   RESTING <--> BUSY      any --> GONE
#
# Invariants:
# - only this thread touches the stream and its iterator, so no two calls on
#   it overlap, and a command comes between two batches;
# - commands are carried out in their order, and their results and the items
#   are put into `results` in the order in which they came about. So whoever
#   empties it knows of each item whether it came before or after a command;
# - since the latest command that began anything, at most `_permitted` items
#   were read. Only the owner raises that, and it never falls.
class Supply(object):
    """Reads a stream on a thread of its own, as it is told to.

    Parameters
    ----------
    stream : :class:`~fuel.streams.AbstractDataStream`
        The stream.
    ring : callable
        Called when there is a result and whoever takes them may be asleep.
    codec : str, optional
        What batches are compressed with, where it pays.
    copy : bool, optional
        Whether to copy large arrays, for a stream that refills them.
    checkpoints : :class:`Checkpoints`, optional
        Where states are saved.

    Attributes
    ----------
    results : deque
        Pairs of a name and a value, for the owner to take from the left. The
        names are those of the commands, for a command that was carried out;
        ``'failed'`` with an :class:`.Item`, for one that raised; ``'item'``;
        and ``'over'``, for the end of the epoch, with the frames of its
        arguments.
    awaited : bool
        Whether to ring for an item, too, rather than only for the rest. The
        owner looks at `results` once more after it set this, so that either
        sees what the other has done.

    """
    def __init__(self, stream, ring, codec=None, copy=False,
                 checkpoints=None):
        self.stream = stream
        self.results = deque()
        self.counters = Counters()
        self.awaited = False
        self._ring = ring
        self._codec = codec
        self._copy = copy
        self._checkpoints = checkpoints
        self._changed = threading.Condition(threading.RLock())
        self._commands = deque()
        self._iterator = None
        self._reading = False  # there may be more, and it was asked for
        self._permitted = self._read = 0
        self._stopping = False
        self._inspect()
        self.gone = threading.Event()

    def _inspect(self):
        self._inspection = Inspection(self.counters, self._copy,
                                      describe=self._describe)

    def start(self, name):
        """Start the thread; it isn't waited for at the interpreter's end."""
        thread = threading.Thread(target=inherit(self._run), name=name)
        thread.daemon = True
        thread.start()

    # What the owner says

    def command(self, name, *args):
        """Have one of the commands below carried out, after those before."""
        with self._changed:
            self._commands.append((name, args))
            self._changed.notify()

    def permit(self, count):
        """Let it read `count` items in all since it began."""
        if count > self._permitted:
            with self._changed:
                self._permitted = count
                self._changed.notify()

    def stop(self):
        """Have the thread leave when it is through with what it does."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    # The thread

    def _run(self):
        try:
            while True:
                with self._changed:
                    while not (self._stopping or self._commands or
                               self._may_read()):
                        self._changed.wait()
                    if self._stopping:
                        return
                    command = (self._commands.popleft() if self._commands
                               else None)
                if command is None:
                    self._read_one()
                    # Without the lock: what changes is seen a batch later.
                    while self._may_read() and not (
                            self._commands or self._stopping):
                        self._read_one()
                else:
                    self._carry_out(*command)
                command = None  # it may hold what a client sent
        finally:
            # The iterator may be bound to this thread.
            self._iterator = None
            self.gone.set()

    def _may_read(self):
        return self._reading and self._read < self._permitted

    def _post(self, name, value=None):
        self.results.append((name, value))
        # In this order; see `awaited`.
        if self.awaited or name != 'item':
            self._ring()

    def _carry_out(self, name, args):
        try:
            self._post(name, getattr(self, '_do_' + name)(*args))
        except:  # noqa: E722 (the stream may raise whatever it likes)
            self._post('failed', wire.pack_error(sys.exc_info()))

    def _read_one(self):
        try:
            try:
                batch = next(self._iterator)
            except StopIteration as stop:
                self._reading = False
                self._post('over', wire.pack_ending(stop))
                forget_error()
                return
            self._read += 1
            # Any of those before may be held still, as far as is known here.
            notice, batch, _ = self._inspection(batch, range(self._read))
            try:
                item = wire.pack_batch(batch, self._codec)
            except TypeError as error:
                raise TypeError(self._name_source(str(error)))
            self._post('item', item)
            if notice is not None and item.nbytes >= wire.SMALL:
                self._post('notice', notice)  # else it was copied
        except:  # noqa: E722
            self._reading = False
            self._post('item', wire.pack_error(sys.exc_info()))
            forget_error()

    def _name_source(self, text):
        match = re.match(r'batch\[(\d+)\]', text)
        try:
            return 'source {!r} can not be sent: {}'.format(
                self.stream.sources[int(match.group(1))], text)
        except Exception:  # it isn't a source's, or those aren't known
            return 'a batch can not be sent: ' + text

    def _describe(self, index):
        return ('source {} comes in the same memory as in a batch that is '
                'not sent yet; if the stream fills one buffer again and '
                'again, that batch was overwritten: pass copy=True to '
                'StreamServer'.format(index))

    # The commands

    def _do_begin(self, permitted):
        self._reading, self._iterator = False, None
        self._inspection.restart()
        try:
            self._iterator = self.stream.get_epoch_iterator()
        finally:
            self._read, self._permitted = 0, permitted
        self._reading = True

    def _do_go_on(self):
        self._reading = self._iterator is not None

    def _do_reset(self):
        self._inspection.restart()
        self.stream.reset()
        self._rewind()

    def _do_next_epoch(self):
        self._inspection.restart()
        self.stream.next_epoch()
        self._rewind()

    def _rewind(self):
        self._read = self._permitted = 0
        # If the end was read ahead, the reader has not seen it, so there is
        # none yet.
        self._reading = self._iterator is not None

    def _do_describe(self):
        stream = self.stream
        try:
            produces_examples = bool(stream.produces_examples)
        except ValueError:
            produces_examples = None  # the stream doesn't know
        labels = stream.axis_labels
        info = {'sources': tuple(stream.sources),
                'axis_labels': labels and dict(labels),
                'produces_examples': produces_examples,
                'length': length_of(getattr(stream, 'iteration_scheme', None))}
        wire.pack(info)  # so that it fails here if it can't be sent
        return info

    def _do_save(self, mid_epoch):
        # It rests from now on, as the owner asks for nothing until it has
        # handed over the rest of the state.
        return pickle.dumps((self.stream, self._iterator if mid_epoch
                             else None), pickle.HIGHEST_PROTOCOL)

    def _do_write(self, state):
        return self._checkpoints.write(state)

    def _do_load(self, identifier):
        state = self._checkpoints.read(identifier)
        stream, iterator = pickle.loads(state.pop('stream'))
        self.stream, self._iterator = stream, iterator
        self._read = self._permitted = 0
        self._inspect()
        self._reading = iterator is not None and state['going_on']
        return state


class Checkpoints(object):
    """States of a stream, in files of a folder.

    Parameters
    ----------
    folder : str
        The folder. It is made if it isn't there, for its owner only: what
        lies there is loaded with pickle, so nobody else may write there.
    keep : int, optional
        The files that are kept; the oldest ones are removed. Defaults to
        100.

    """
    def __init__(self, folder, keep=100):
        self.folder = folder
        self.keep = keep
        if not os.path.isdir(folder):
            os.makedirs(folder, 0o700)
        if os.name == 'posix' and os.stat(folder).st_mode & 0o022:
            raise ValueError('checkpoints must be a folder that only its '
                             'owner may write to, got {!r}'.format(folder))

    def _path(self, identifier):
        return os.path.join(self.folder, identifier + '.checkpoint')

    def write(self, state):
        """Save a state; return its identifier, which can't be guessed."""
        identifier = binascii.hexlify(os.urandom(16)).decode('ascii')
        temporary = self._path(identifier) + '.new'
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL,
                               0o600), 'wb') as f:
            pickle.dump(dict(state, version=STATE_VERSION), f, 2)
            f.flush()
            os.fsync(f.fileno())
        os.rename(temporary, self._path(identifier))
        self._remove_old()
        return identifier

    def _remove_old(self):
        paths = [os.path.join(self.folder, name)
                 for name in os.listdir(self.folder)
                 if name.endswith('.checkpoint')]
        for path in sorted(paths, key=os.path.getmtime)[:-self.keep]:
            os.remove(path)

    def read(self, identifier):
        """Return a state that was saved.

        Raises
        ------
        PrefetchError
            If there is none of that name.

        """
        if not _IDENTIFIER.match(identifier) or not os.path.exists(
                self._path(identifier)):
            raise PrefetchError('there is no checkpoint {!r} on the '
                                'server'.format(str(identifier)))
        with open(self._path(identifier), 'rb') as f:
            state = pickle.load(f)
        if state['version'] > STATE_VERSION:
            raise PrefetchError('the checkpoint is of a newer fuel_prefetch')
        return state

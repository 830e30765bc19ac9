"""A stream served to other processes and machines over ZeroMQ."""
from __future__ import absolute_import, division, print_function

import atexit
import logging
import os
import threading
import weakref

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from fuel_prefetch import wire
from fuel_prefetch.arguments import (
    check, check_flag, check_patience, check_seconds, is_count, is_path,
    is_stream)
from fuel_prefetch.compression import CODECS, codec_of
from fuel_prefetch.connection import Context
from fuel_prefetch.exceptions import PrefetchError
from fuel_prefetch.keys import (
    check_address, is_local, read_all_public, read_secret)
from fuel_prefetch.sharing import Desk
from fuel_prefetch.supply import Checkpoints, Supply
from fuel_prefetch.waiting import (
    deadline_of, exit_deadline, monotonic, process_token)

logger = logging.getLogger('fuel_prefetch.server')

HEARTBEAT = 5.  # seconds between two signs of life asked for by libzmq
HEARTBEAT_TIMEOUT = 30.  # and until it takes a silent connection for broken
LINGER = 2.  # seconds to hand over what was sent, when the server stops
SEND_LIMIT = 4 * wire.MOST_AHEAD  # messages to a client that wait in libzmq
MOST_AT_ONCE = 100  # messages taken in before any results of the supply
MOST_REMEMBERED = 1000  # peers that were told off, lest the log fills up
# Enumerations take their time.
_NOBLOCK, _SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)

_running = weakref.WeakSet()


class StreamServer(object):
    """Serves a stream to other processes and machines.

    One thread reads ahead, and rests when enough is ready; another one
    answers clients, each a :class:`RemoteDataStream`. Several clients share
    each epoch.

    Parameters
    ----------
    data_stream : :class:`~fuel.streams.AbstractDataStream`
        The stream. While the server runs, leave reading it to that.
    address : str, optional
        Where to listen: ``'tcp://host:port'`` or ``'ipc://path'``. A port
        ``*`` is one that is free; see the attribute. Defaults to
        ``'tcp://127.0.0.1:5557'``.
    max_store : int, optional
        Most batches held ready. Each client may have its own `max_store`
        and one in hand beside these. Defaults to 10.
    broadcast : bool, optional
        Whether each client gets every batch, rather than that they share
        them. Defaults to ``False``.
    compression : {None, 'zlib', 'blosc2', 'lz4'}, optional
        What to compress with, where it pays. Defaults to ``None``.
    checkpoints : str, optional
        A folder for the states of the stream that pickles of a client go on
        from. Defaults to ``None``: such a pickle can only be made between
        epochs.
    copy : bool, optional
        Whether to copy each array as it is read. Needed for a stream that
        fills the same memory for each batch. Defaults to ``False``.
    keys : str, optional
        The file of the server's secret key; see ``fuel-prefetch keygen``.
    clients : str or list of str, optional
        The files of the public keys of those clients that may connect, or
        the folder where they are. It goes with `keys`.
    insecure : bool, optional
        Whether to listen where other machines can connect, without keys.
        Anyone who can connect can read, and end, the epochs of all. Defaults
        to ``False``.
    client_timeout : float, optional
        Seconds that a client whose connection broke has to come back.
        Then what it had in hand goes to another. Defaults to 5.

    Attributes
    ----------
    address : str
        Where it listens, with the port that was free, once it has started.

    Raises
    ------
    ValueError
        If an argument can't be what it is, with its name and value; also if
        other machines could connect, and there are neither keys nor
        `insecure`.

    """
    def __init__(self, data_stream, address='tcp://127.0.0.1:5557',
                 max_store=10, broadcast=False, compression=None,
                 checkpoints=None, copy=False, keys=None, clients=None,
                 insecure=False, client_timeout=5.):
        check('data_stream', data_stream, 'be a data stream',
              is_stream(data_stream))
        check_address('address', address, wildcard=True)
        check('max_store', max_store, 'be a positive integer',
              is_count(max_store))
        check('compression', compression, 'be one of {} or None'.format(
            ', '.join(sorted(CODECS))),
            compression in (None,) + tuple(CODECS))
        for name, flag in [('broadcast', broadcast), ('copy', copy),
                           ('insecure', insecure)]:
            check_flag(name, flag)
        check('checkpoints', checkpoints, 'be the path of a folder or None',
              checkpoints is None or is_path(checkpoints))
        check_seconds('client_timeout', client_timeout, optional=False)
        check('clients', clients, 'go with keys',
              (clients is None) == (keys is None))
        check('address', address, 'be on this machine unless there are keys, '
              'or insecure=True', insecure or keys is not None or
              is_local(address))
        if compression is not None:
            codec_of(compression)  # it may not be installed
        self.data_stream = data_stream
        self.address = address
        self.max_store = max_store
        self.broadcast = broadcast
        self.compression = compression
        self.copy = copy
        self.client_timeout = client_timeout
        self._checkpoints = (None if checkpoints is None
                             else Checkpoints(checkpoints))
        self._keys = None if keys is None else read_secret('keys', keys)
        self._allowed = None if clients is None else read_all_public(
            'clients', clients)
        self._answering = None

    def start(self):
        """Listen and answer, in threads, until :meth:`stop`.

        Raises
        ------
        zmq.ZMQError
            If the address can't be had.

        """
        if self._answering is not None and (
                self._answering.process == process_token()):
            raise PrefetchError('the server has started already')
        answering = Answering(self)
        self.address = answering.address
        answering.start()
        self._answering = answering
        # Threads know nothing of this object, so it can be forgotten.
        self._forgotten = weakref.ref(self, lambda _: answering.stop())
        return self

    def stop(self, timeout=5.0):
        """Stop: clients get what was sent to them, and are told.

        The stream stays open. Stopping twice does nothing more.

        Parameters
        ----------
        timeout : float, optional
            Seconds that the batch being read may take. Defaults to 5.

        """
        check_patience(timeout)
        answering, self._answering = self._answering, None
        if answering is not None and answering.process == process_token():
            answering.stop()
            answering.join(timeout)

    def wait(self, timeout=None):
        """Wait until it has stopped; return whether it has."""
        answering = self._answering
        return answering is None or answering.ended.wait(timeout)

    def __enter__(self):
        return self if self._answering is not None else self.start()

    def __exit__(self, *exc_info):
        self.stop()


def serve(data_stream, address='tcp://127.0.0.1:5557', **kwargs):
    """Serve a stream until the process is interrupted.

    Parameters are those of :class:`StreamServer`. Ctrl-C stops the server as
    :meth:`StreamServer.stop` does and is then raised as what it is, a
    ``KeyboardInterrupt``. The stream is closed at the end.

    """
    server = StreamServer(data_stream, address, **kwargs)
    try:
        with server:
            # Timed, since on 2.7 Ctrl-C doesn't end one that isn't.
            while not server.wait(1.):
                pass
    finally:
        data_stream.close()


class Answering(object):
    """The thread that answers, and what it owns.

    Parameters
    ----------
    server : :class:`StreamServer`
        What it is made for. It isn't kept.

    """
    # What other threads may call is `ring` and `stop`; the rest, sockets and
    # the desk included, is this thread's alone once it has started.
    def __init__(self, server):
        self.process = process_token()
        self.ended = threading.Event()
        self._client_timeout = server.client_timeout
        self._stopping = False
        self._probe_at = None  # when to look who is still connected
        self._probes = 0
        self._told_off = {}
        self._context = Context()
        self._bell, self._ringer = os.pipe()
        self._rung = False  # and nobody has answered it yet
        # Re-entrant, as a finalizer may stop the server in the midst of it.
        self._bell_lock = threading.RLock()
        self._allowed = server._allowed
        try:
            self._open(server)
        except BaseException:
            self._close()
            raise
        self.supply = Supply(server.data_stream, self.ring,
                             server.compression, server.copy,
                             server._checkpoints)
        self._about = {'broadcast': server.broadcast,
                       'compression': server.compression,
                       'checkpoints': server._checkpoints is not None,
                       'max_store': server.max_store}
        self.desk = None
        self._early = []  # requests before the stream has told its sources

    def _open(self, server):
        context = self._context
        if server._keys is not None:
            # libzmq asks here whether a key may connect: RFC 27.
            self._door = context.socket(zmq.REP)
            self._door.setsockopt(zmq.LINGER, 0)
            self._door.bind('inproc://zeromq.zap.01')
        else:
            self._door = None
        self._socket = socket = context.socket(zmq.ROUTER)
        for option, value in [
                (zmq.ROUTER_MANDATORY, 1), (zmq.ROUTER_HANDOVER, 1),
                (zmq.LINGER, int(LINGER * 1000)),
                (zmq.MAXMSGSIZE, wire.MOST_REQUEST_BYTES),
                (zmq.SNDHWM, SEND_LIMIT),
                (zmq.HEARTBEAT_IVL, int(HEARTBEAT * 1000)),
                (zmq.HEARTBEAT_TIMEOUT, int(HEARTBEAT_TIMEOUT * 1000))]:
            socket.setsockopt(option, value)
        if server._keys is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, server._keys[0])
            socket.setsockopt(zmq.CURVE_SECRETKEY, server._keys[1])
            socket.setsockopt(zmq.ZAP_DOMAIN, b'fuel_prefetch')
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.bind(server.address)
        self.address = socket.getsockopt(
            zmq.LAST_ENDPOINT).rstrip(b'\0').decode('ascii')
        if str is bytes:
            self.address = self.address.encode('ascii')

    def start(self):
        self.supply.command('describe')
        self.supply.start('fuel_prefetch: read for ' + self.address)
        thread = self._thread = threading.Thread(
            target=_answer, args=(self,),
            name='fuel_prefetch: answer at ' + self.address)
        thread.daemon = True  # see `_stop_all`
        _running.add(self)
        thread.start()

    def ring(self):
        """Wake the thread. Any thread may, and a signal handler."""
        with self._bell_lock:
            # Once closed, its number may be that of another file.
            if not self._rung and not self.ended.is_set():
                self._rung = True
                os.write(self._ringer, b'!')

    def stop(self):
        self._stopping = True
        self.supply.stop()
        self._rung = False
        self.ring()

    def join(self, timeout):
        deadline = deadline_of(timeout)
        self._thread.join(timeout)
        self.supply.gone.wait(max(0, deadline - monotonic())
                              if deadline is not None else None)

    # The thread

    def run(self):
        try:
            poller = zmq.Poller()
            for source in (self._socket, self._bell, self._monitor,
                           self._door):
                if source is not None:
                    poller.register(source, zmq.POLLIN)
            while not self._stopping:
                ready = dict(poller.poll(self._patience()))
                if self._door in ready:
                    self._answer_door()
                if self._monitor in ready:
                    self._heed_disconnect()
                if self._bell in ready:
                    os.read(self._bell, 64)
                    self._rung = False  # before looking, so none is missed
                # Results first, as they came before what is asked for.
                self._take_results()
                if self._socket in ready:
                    self._take_messages()
                if self.desk is not None:
                    # All that came is handed out at once.
                    self.supply.awaited = self.desk.pump()
                if self._probe_at is not None and (
                        monotonic() >= self._probe_at):
                    self._probe()
            if self.desk is not None:
                self.desk.close(u'the server was stopped')
        finally:
            self._close()

    def _close(self):
        with self._bell_lock:
            self.ended.set()
        try:
            self._socket.disable_monitor()
            for socket in (self._monitor, self._door):
                if socket is not None:
                    socket.close(0)
            self._socket.close()  # what was sent has LINGER to leave
        except AttributeError:  # it was never opened
            self._context.destroy(0)
        self._context.term()
        os.close(self._bell)
        os.close(self._ringer)

    def _patience(self):
        if self.supply.awaited and self.supply.results:
            return 0  # this one may have come before that was set
        if self._probe_at is None:
            return None
        return max(0, (self._probe_at - monotonic()) * 1000) + 1

    def _take_results(self):
        results = self.supply.results
        while results:
            name, value = results.popleft()
            if self.desk is not None:
                self.desk.supplied(name, value)
            elif name == 'failed':
                self._refuse_all(wire.unpack_dict(value.frames))
            else:
                self._make_desk(value)

    def _make_desk(self, info):
        self.desk = Desk(self.supply, self._send, self._about['max_store'],
                         self._about['broadcast'],
                         dict(info, **self._about), monotonic)
        early, self._early = self._early, []
        for identity, frames in early:
            self._take_message(identity, frames)

    def _refuse_all(self, details):
        # Its sources can't be told, so there is nothing to serve.
        logger.error('the stream can not be served: %s: %s',
                     details['type'], details['message'])
        for identity, _ in self._early:
            self._send(identity, [wire.head(wire.REFUSED)] + wire.pack(
                u'the stream does not tell its sources: ' +
                details['message']))
        self._stopping = True

    def _take_messages(self):
        socket = self._socket
        for _ in range(MOST_AT_ONCE):
            if not socket.getsockopt(_EVENTS) & _POLLIN:
                return
            identity, frames, more = socket.recv(), [], True
            while more:
                frame = socket.recv(copy=False)
                more = frame.more
                frames.append(frame.bytes)
            if self.desk is not None:
                self._take_message(identity, frames)
            elif len(self._early) < wire.MOST_CLIENTS:
                self._early.append((identity, frames))

    def _take_message(self, identity, frames):
        try:
            self.desk.handle(identity, wire.parse_request(frames))
        except wire.OtherVersion as error:
            self._tell_off(identity, str(error))
            self._send(identity, [wire.head(wire.REFUSED)] +
                       wire.pack(u'' + str(error)))
        except wire.Malformed as error:
            self._tell_off(identity, str(error))
        except Exception:
            # No client's words may take the server down.
            logger.exception('a request could not be answered')
            self._tell_off(identity, 'its request failed')

    def _tell_off(self, identity, why):
        self.desk.refused += 1
        self.desk.lose(identity, 'it sent garbage: ' + why)
        if identity not in self._told_off:
            if len(self._told_off) < MOST_REMEMBERED:
                self._told_off[identity] = True
                logger.warning('garbage from %r: %s', identity, why)

    def _send(self, identity, frames):
        """Send a message if that can be; else the client asks again."""
        try:
            socket = self._socket
            socket.send(identity, _NOBLOCK | _SNDMORE)
            for frame in frames[:-1]:
                socket.send(frame, _SNDMORE, copy=len(frame) < wire.SMALL)
            socket.send(frames[-1], copy=len(frames[-1]) < wire.SMALL)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                self._expect_return(identity)
            elif error.errno != zmq.EAGAIN:
                raise

    # Clients that are gone. A connection that broke is reported by libzmq,
    # but not whose it was, and the client may be back soon: then its name
    # leads to it again. So a while after each report all are sent something.

    def _heed_disconnect(self):
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
        self._probes = 3  # the first may come too early
        self._schedule(.05)

    def _schedule(self, seconds):
        when = monotonic() + seconds
        if self._probe_at is None or when < self._probe_at:
            self._probe_at = when

    def _expect_return(self, identity):
        client = self.desk and self.desk.clients.get(identity)
        if client is not None and client.missing_since is None:
            client.missing_since = monotonic()
            self._schedule(self._client_timeout / 4)

    def _probe(self):
        self._probe_at = None
        self._probes -= 1
        now = monotonic()
        for identity, client in (
                list(self.desk.clients.items()) if self.desk else ()):
            since = client.missing_since
            client.missing_since = None
            self._send(identity, [wire.head(wire.WAIT)])
            if client.missing_since is not None and since is not None:
                client.missing_since = since
                if now - since >= self._client_timeout:
                    self.desk.lose(identity, 'its connection broke')
        if self._probes > 0:
            self._schedule(self._client_timeout / 4)

    def _answer_door(self):
        try:
            frames = self._door.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        good = (len(frames) == 7 and frames[5] == b'CURVE' and
                z85.encode(frames[6]) in self._allowed)
        if not good:
            logger.warning('a client without a key that is known was refused')
        self._door.send_multipart([
            b'1.0', frames[1], b'200' if good else b'400',
            b'OK' if good else b'unknown key', b'', b''])


def _answer(answering):
    try:
        answering.run()
    except Exception:
        logger.exception('the server failed')
    finally:
        answering.supply.stop()


@atexit.register
def _stop_all():
    """Stop what was left running, before the interpreter is taken down."""
    deadline = exit_deadline()
    running = [answering for answering in list(_running)
               if answering.process == process_token()]
    for answering in running:
        answering.stop()
    for answering in running:
        answering.join(max(0, deadline - monotonic()))

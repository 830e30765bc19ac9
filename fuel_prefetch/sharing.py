"""Who of a server's clients gets what: the rules, without sockets."""
from __future__ import absolute_import, division, print_function

import logging
from collections import OrderedDict, deque

from fuel_prefetch import wire
from fuel_prefetch.exceptions import PrefetchError

logger = logging.getLogger('fuel_prefetch.server')
logger.addHandler(logging.NullHandler())

# What a client is doing
IDLE = 'idle'  # in no epoch, or told of its end
WAITING = 'waiting'  # for the next epoch to begin
READING = 'reading'


class Client(object):
    """What is known of a client.

    Attributes
    ----------
    call : int
        The number of its latest operation.
    answer : tuple or None
        What that was answered with, to be said again; ``None`` while it is
        carried out.
    run : int
        The number of the operation with which its present sequence of
        batches began. They are counted from 0 in each.
    given : deque
        Pairs of number and item: sent, and not acknowledged.
    own : deque
        Items that are for this client alone, to be sent before others.
    wanted : int
        It wants the batches up to, but not including, this number.
    stopped : int or None
        The number of an error, until what follows that is asked for.
    ending : list or None
        What it was told of the end with, once it was.
    epoch : int
        The last epoch that it was in.

    """
    def __init__(self, identity, name, now):
        self.identity = identity
        self.name = name
        self.state = IDLE
        self.call = 0
        self.answer = ()
        self.epoch = 0
        self.batches = 0
        self.since = now
        self.missing_since = None
        self.start(0)

    def start(self, run):
        self.run = run
        self.number = 0  # of the next item
        self.given = deque()
        self.own = deque()
        self.wanted = 0
        self.stopped = None
        self.ending = None

    def is_hungry(self):
        return self.number < self.wanted and self.stopped is None


# A client is IDLE, WAITING or READING; the epoch is one of
#
#   NONE       there is none: none has begun, or all left it early;
#   BEGINNING  the supply was told to begin one;
#   OPEN       there may be more items;
#   OVER       the supply came to the end; some items may not be acknowledged.
#
#   NONE --> BEGINNING --> OPEN <--> OVER --> NONE     OPEN --> NONE
#
# A batch is, from its birth on, at one place: in the supply's results, in
# `ready`, or in the `given` of one client; from there it goes when it is
# acknowledged, or back to the front of `ready` when that client leaves.
# Invariants, between two calls of any method:
# - READING clients are there in OPEN and OVER only, and each is in the same
#   epoch, the present one;
# - BEGINNING begins only while nobody is READING;
# - a client is told of the end only if `ready` is empty, the epoch is OVER,
#   and no client has a batch in `given`. So whoever holds one can still die
#   without that the batch is lost;
# - `given` has consecutive numbers, up to `number` - 1 <= `wanted`;
# - at most one operation is carried out at any time; others wait in order.
#
# In a broadcast an item is put into `own` of every READING client at once,
# none is given back, and so nobody waits for others to acknowledge.
NONE, BEGINNING, OPEN, OVER = 'none', 'beginning', 'open', 'over'


class Desk(object):
    """Hands out what the supply reads, and keeps the books.

    Parameters
    ----------
    supply : :class:`~fuel_prefetch.supply.Supply`
        Where items come from.
    send : callable
        Given a client's identity and the frames of a message.
    max_store : int
        Most items held ready, besides those that clients have.
    broadcast : bool
        Whether each client gets every batch.
    info : dict
        What clients are told at the beginning.
    clock : callable
        The time, in seconds.

    """
    def __init__(self, supply, send, max_store, broadcast, info, clock):
        self._supply = supply
        self._send = send
        self._max_store = max_store
        self._broadcast = broadcast
        self.info = info
        self._clock = clock
        self.clients = {}
        self.ready = deque()
        self.phase = NONE
        self.epoch = 0
        self._received = 0  # items of the supply since it began
        self._held = False  # by an error, until somebody asks
        self._ending = []  # frames of the arguments of the epoch's end
        self._asked = OrderedDict()  # client -> operation, to be started
        self._parked = {}  # those to be loaded when others have left
        self._busy = None  # what the supply carries out, other than to begin
        self.batches = self.errors = self.refused = 0
        self.nbytes = 0
        self._epoch_began = self._started = clock()

    # What clients say

    def handle(self, identity, message):
        """Do what a client asks for."""
        kind, client = message.kind, self.clients.get(identity)
        if kind == wire.STATUS:
            self._send(identity, [wire.head(wire.REPORT, message.call)] +
                       wire.pack(self.report()))
        elif kind == wire.HELLO:
            self._welcome(identity, client, message)
        elif client is None:
            self._send(identity, [wire.head(wire.GONE, message.call)] +
                       wire.pack(u'the server does not know this client'))
        elif kind in (wire.NEXT, wire.AGAIN):
            client.missing_since = None
            if message.call == client.run:
                self._next(client, message)
        else:
            client.missing_since = None
            if kind == wire.LOAD:
                identifier = wire.unpack(message.frames)
                if not isinstance(identifier, (type(u''), str)):
                    raise wire.Malformed('no name of a checkpoint')
                message = message._replace(frames=str(identifier))
            self._operate(client, message)

    def _welcome(self, identity, client, message):
        if client is None:
            if len(self.clients) >= wire.MOST_CLIENTS:
                self._send(identity, [wire.head(wire.REFUSED, message.call)] +
                           wire.pack(u'there are too many clients'))
                return
            name = wire.unpack_dict(message.frames).get('name')
            name = repr(name)[:100]
            client = self.clients[identity] = Client(
                identity, name, self._clock())
            logger.info('client %s came', name)
        self._send(identity, [wire.head(wire.WELCOME, message.call)] +
                   wire.pack(self.info))

    def _operate(self, client, message):
        if message.call < client.call:
            return  # the client has given it up
        if message.call == client.call:
            if client.answer is None:
                self._say_wait(client)
            else:
                self._send(client.identity, client.answer)
            return
        if client.state == WAITING:
            client.state = IDLE
        self._parked.pop(client, None)
        client.call, client.answer = message.call, None
        self._asked[client] = message
        self._start_operations()

    def _start_operations(self):
        for client in list(self._parked):
            if self._is_alone(client):
                self._asked[client] = self._parked.pop(client)
        while self._asked and self._busy is None:
            client, message = self._asked.popitem(last=False)
            if self.clients.get(client.identity) is client:
                _OPERATIONS[message.kind](self, client, message)

    def _answer(self, client, kind, a=0, frames=()):
        client.answer = [wire.head(kind, client.call, a)] + list(frames)
        self._send(client.identity, client.answer)

    def _refuse(self, client, text):
        try:
            raise PrefetchError(text)
        except PrefetchError:
            item = wire.pack_error((PrefetchError, PrefetchError(text), None))
        self._answer(client, wire.FAILED, frames=item.frames)

    def _say_wait(self, client):
        others = [other for other in self._reading() if other is not client]
        if self.phase == BEGINNING or self._busy:
            text = 'the stream to answer'
        elif client in self._parked:
            text = 'other clients to leave'
        elif client.state == WAITING:
            text = 'other clients to finish epoch {}: {}'.format(
                self.epoch, ', '.join(other.name for other in others[:5]))
        elif self.phase == OVER:
            text = 'other clients to ask for more, or to leave: ' + ', '.join(
                other.name for other in others if other.given)
        else:
            text = 'the stream to give a batch'
        if isinstance(text, bytes):
            text = text.decode('utf-8', 'replace')
        self._send(client.identity, [wire.head(wire.WAIT, client.call)] +
                   wire.pack(text))

    def _reading(self):
        return [client for client in self.clients.values()
                if client.state == READING]

    def _next(self, client, message):
        acknowledged = min(message.a, client.number)
        while client.given and client.given[0][0] < acknowledged:
            client.given.popleft()
        client.wanted = max(client.wanted, min(
            message.c, acknowledged + 1 + wire.MOST_AHEAD))
        if client.stopped is not None and acknowledged > client.stopped:
            client.stopped = None
            if self._held:
                self._held = False
                self._supply.command('go_on')
        if message.kind == wire.AGAIN:
            self._repeat(client, message.b)

    def _repeat(self, client, number):
        said = client.ending is not None
        for given, item in client.given:
            if given >= number:
                self._send(client.identity, item.message(client.run, given))
                said = True
        if client.ending is not None:
            self._send_end(client)
        if not said:
            self._say_wait(client)

    # Giving

    def _give(self):
        """Hand out what is ready to those who want it.

        Returns
        -------
        waiting : bool
            Whether one wants more than there was.

        """
        readers = self._reading()
        hungry = [client for client in readers if client.is_hungry()]
        asked, waiting = bool(hungry), False
        if not self._broadcast and len(hungry) > 1:
            # One each in turns, first to who has the least.
            hungry.sort(key=lambda client: len(client.given))
        while hungry:
            turn, hungry = hungry, []
            for client in turn:
                if not self._give_one(client, readers):
                    waiting = True
                elif client.is_hungry():
                    hungry.append(client)
        if self.phase == OVER and not self.ready:
            self._end(readers)
        elif asked and self._busy is None:
            self._permit(readers)
        return waiting

    def _permit(self, readers):
        """Let the supply read as much as there is room for."""
        if self._held and not self.ready and not any(
                client.own or client.stopped is not None
                for client in readers):
            # Those who had the error left, and another one wants more.
            self._held = False
            self._supply.command('go_on')
        room = self._max_store - len(self.ready)
        if self._broadcast:
            room -= max(len(client.own) for client in readers)
        # Half of it at a time, rather than waking the thread for each item.
        if 2 * room >= self._max_store:
            self._supply.permit(self._received + room)

    def _item_for(self, client, readers):
        if not client.own and self.ready:
            item = self.ready.popleft()
            if not self._broadcast and item.kind != wire.ERROR:
                return item
            for reader in readers:
                reader.own.append(item)
        return client.own.popleft() if client.own else None

    def _give_one(self, client, readers):
        """Give a client an item; return whether there was one."""
        item = self._item_for(client, readers)
        if item is None:
            return False
        client.given.append((client.number, item))
        self._send(client.identity, item.message(client.run, client.number))
        if item.kind == wire.ERROR:
            client.stopped = client.number
        else:
            client.batches += 1
            self.batches += 1
            self.nbytes += item.nbytes
        client.number += 1
        return True

    def _end(self, readers):
        if not self._broadcast and any(
                item.kind == wire.BATCH for client in readers
                for _, item in client.given):
            return
        for client in readers:
            if not client.own:
                client.ending, client.state = self._ending, IDLE
                self._send_end(client)
        if not self._reading():
            self._close_epoch('ended')
            self._turn()
            self._start_operations()

    def _send_end(self, client):
        self._send(client.identity,
                   [wire.head(wire.END, client.run, client.number)] +
                   client.ending)

    def _close_epoch(self, how):
        seconds = max(self._clock() - self._epoch_began, 1e-6)
        logger.info('epoch %d %s: %d batches, %.1f a second, %.1f MB a second',
                    self.epoch, how, self.batches - self._epoch_batches,
                    (self.batches - self._epoch_batches) / seconds,
                    (self.nbytes - self._epoch_bytes) / seconds / 1e6)
        self.phase = NONE
        self.ready.clear()

    def _turn(self):
        """Begin the next epoch if that is what all who are there wait for."""
        if self.phase == BEGINNING or self._busy or self._reading() or (
                not any(client.state == WAITING
                        for client in self.clients.values())):
            return
        if self.phase != NONE:
            self._close_epoch('was left early')
        self.phase = BEGINNING
        self._supply.command('begin', self._max_store)

    # Coming and going

    def _leave(self, client):
        """Take a client out of its epoch, and back what it has in hand."""
        if client.state == READING and not self._broadcast:
            self.ready.extendleft(
                item for _, item in reversed(client.given)
                if item.kind == wire.BATCH)
        client.given.clear()
        client.own.clear()
        client.state = IDLE

    def lose(self, identity, why):
        """Give up a client that is gone, or that isn't to be trusted."""
        client = self.clients.pop(identity, None)
        if client is not None:
            logger.warning('client %s was given up: %s', client.name, why)
            self._parked.pop(client, None)
            self._leave(client)
            self._give()
            self._turn()
            self._start_operations()

    def close(self, why):
        """Tell all clients that this was all."""
        for identity in list(self.clients):
            self._send(identity, [wire.head(wire.GONE, 0, 1)] +
                       wire.pack(why))
        self.clients.clear()

    # What clients ask the supply for

    def _begin(self, client, message):
        if client.state == READING:
            self._leave(client)
        under_way = self.phase == OPEN or self.phase == OVER and self.ready
        if under_way and client.epoch != self.epoch:
            self._join(client)
            return
        client.state = WAITING
        self._give()  # what it left may be what others need to end
        self._turn()

    def _join(self, client):
        client.start(client.call)
        client.state, client.epoch = READING, self.epoch
        self._answer(client, wire.DONE, self.epoch)

    def _bye(self, client, message):
        was_reading = client.state == READING
        self._leave(client)
        self._answer(client, wire.DONE)
        del self.clients[client.identity]
        logger.info('client %s left after %d batches', client.name,
                    client.batches)
        if was_reading and not self._reading():
            if self.phase in (OPEN, OVER):
                self._close_epoch('was left early')
        self._give()
        self._turn()
        self._start_operations()

    def _is_alone(self, client):
        return self.phase != BEGINNING and not any(
            other is not client and other.state != IDLE
            for other in self.clients.values())

    def _alone(self, client):
        if not self._is_alone(client):
            self._refuse(client, 'not while other clients read this stream')
            return False
        return True

    def _rewind(self, client, message):
        if self._alone(client):
            name = 'reset' if message.kind == wire.RESET else 'next_epoch'
            self._busy = client, name
            self.ready.clear()
            self._supply.command(name)

    def _save(self, client, message):
        if not self.info['checkpoints']:
            self._refuse(client, 'the server was started without '
                         '--checkpoints, so this works only between epochs')
        elif self._alone(client):
            # What it has in hand is not part of what is to come.
            reading = client.state == READING
            self._busy = client, 'save'
            self._position = message.a if reading else None
            self._supply.command('save', reading)

    def _load(self, client, message):
        if not self.info['checkpoints']:
            self._refuse(client, 'the server was started without '
                         '--checkpoints')
        elif not self._is_alone(client):
            # Perhaps until it is noticed that it was killed a moment ago.
            self._parked[client] = message
        else:
            self._busy = client, 'load'
            self._supply.command('load', message.frames)

    # What the supply says

    def supplied(self, name, value):
        """Take one of its results."""
        if name == 'item':
            if self._busy and self._busy[1] not in ('save', 'write') or (
                    self.phase != OPEN):
                return  # it was read before what is carried out now
            self._received += 1
            self.ready.append(value)
            if value.kind == wire.ERROR:
                self.errors += 1
                self._held = True
                logger.warning('the stream raised %s',
                               wire.unpack_dict(value.frames)['type'])
        elif name == 'over':
            if self.phase == OPEN and not (
                    self._busy and self._busy[1] not in ('save', 'write')):
                self.phase = OVER
                self._ending = list(value or ())
        elif name == 'notice':
            logger.warning(value)
        elif name == 'begin':
            self._began()
        elif self.phase == BEGINNING and name == 'failed':
            self.phase = NONE
            self.errors += 1
            for client in list(self.clients.values()):
                if client.state == WAITING:
                    client.state = IDLE
                    self._answer(client, wire.FAILED, frames=value.frames)
        elif name != 'go_on' and self._busy:
            self._carried_out(name, value)
        self._start_operations()

    def pump(self):
        """Hand out what there is; called after results and requests.

        Returns
        -------
        waiting : bool
            Whether the next item is wanted by somebody.

        """
        return self._give()

    def _began(self):
        self.phase = OPEN
        self.epoch += 1
        self._received, self._held = 0, False
        self.ready.clear()
        self._epoch_began = self._clock()
        self._epoch_batches, self._epoch_bytes = self.batches, self.nbytes
        logger.info('epoch %d began', self.epoch)
        for client in list(self.clients.values()):
            if client.state == WAITING:
                self._join(client)

    def _carried_out(self, name, value):
        client = self._busy[0]
        self._busy = None
        present = self.clients.get(client.identity) is client and (
            client.answer is None)
        if name == 'failed':
            if present:
                self._answer(client, wire.FAILED, frames=value.frames)
        elif name == 'save':
            items = [item for number, item in client.given
                     if self._position is not None and
                     number >= self._position]
            items += list(client.own) + list(self.ready)
            self._busy = client, 'write'
            self._supply.command('write', {
                'stream': value, 'items': [item.save() for item in items],
                'going_on': self.phase == OPEN and not self._held,
                'held': self._held, 'over': self.phase == OVER,
                'ending': self._ending})
        elif name == 'write':
            if present:
                self._answer(client, wire.DONE, frames=wire.pack(value))
        else:
            self._received, self._held = 0, False
            mid_epoch = self.phase in (OPEN, OVER)
            if name == 'load':
                mid_epoch = self._take_over(value)
            elif mid_epoch:
                self.phase = OPEN
            if present:
                run = client.state == READING or name == 'load' and mid_epoch
                if run:
                    client.start(client.call)
                    client.state, client.epoch = READING, self.epoch
                self._answer(client, wire.DONE, int(bool(run)))

    def _take_over(self, state):
        """Go on from a checkpoint; return whether it was made mid-epoch."""
        mid_epoch = state['going_on'] or state['held'] or state['over']
        self.ready.clear()
        self.phase = NONE
        if mid_epoch:
            self._began()
            self.ready.extend(wire.Item(kind, frames, codec)
                              for kind, frames, codec in state['items'])
            if state['over']:
                self.phase = OVER
                self._ending = list(state['ending'])
            self._held = any(item.kind == wire.ERROR for item in self.ready)
            if state['held'] and not self._held:
                # The reader had the error. More is read when it asks.
                self._supply.command('go_on')
        return mid_epoch

    def report(self):
        """Return the state of affairs, for people and supervisors."""
        now = self._clock()
        seconds = max(now - self._started, 1e-6)
        return {
            'epoch': self.epoch, 'phase': self.phase,
            'pool': len(self.ready), 'max_store': self._max_store,
            'batches': self.batches, 'nbytes': self.nbytes,
            'errors': self.errors, 'refused': self.refused,
            'seconds': seconds,
            'clients': [
                {'name': client.name, 'state': client.state,
                 'batches': client.batches, 'in_hand': len(client.given),
                 'seconds': now - client.since}
                for client in self.clients.values()]}


_OPERATIONS = {wire.BEGIN: Desk._begin, wire.RESET: Desk._rewind,
               wire.NEXT_EPOCH: Desk._rewind, wire.SAVE: Desk._save,
               wire.LOAD: Desk._load, wire.BYE: Desk._bye}

"""Any calls on a wrapped chain give what they give on a bare copy of it.

Long random sequences of calls are made on both, and compared call for call:
by Hypothesis, where there is one, which looks for the shortest sequence that
fails, and by a loop that takes its sequences from a seed.

A failure shows the chain, the options and all calls, and the seed. To repeat
it, set `FUEL_PREFETCH_SEED` to that seed. `FUEL_PREFETCH_ROUNDS` makes both
play longer: it is how many sequences are played of each chain, 5 unless it is
set. The calls follow from the seed, when the threads run doesn't.

"""
from __future__ import absolute_import, division, print_function

import copy
import os
import pickle
import random
import shutil
import sys
import tempfile
import threading
import time
import warnings
from zlib import crc32

import numpy
from six.moves import range, zip

from fuel.transformers import Mapping

from fuel_prefetch import (
    BackgroundDataStream, ParallelMapping, PrefetchError, PrefetchWarning)
from tests import DEADLINE, ConcurrentTestCase
from tests.chains import CHAINS, Trouble, unchanged

try:
    from hypothesis import HealthCheck, seed, settings, strategies
    from hypothesis.stateful import (
        RuleBasedStateMachine, initialize, precondition, rule,
        run_state_machine_as_test)
except ImportError:
    RuleBasedStateMachine = None

ROUNDS = int(os.environ.get('FUEL_PREFETCH_ROUNDS') or 5)
SEED = os.environ.get('FUEL_PREFETCH_SEED')

# Calls in a sequence of the loop.
LENGTH = 60


def setUpModule():
    global _filters
    # NumPy 1.17 to 1.23 warn of what later ones refuse, and Fuel leaves text
    # files open. But we are not to warn: no chain refills its memory, but
    # the one that is copied.
    _filters = warnings.catch_warnings()
    _filters.__enter__()
    warnings.simplefilter('ignore')
    warnings.simplefilter('error', PrefetchWarning)


def tearDownModule():
    _filters.__exit__(None, None, None)


def difference(ours, bare):
    """Return what differs, as text, or ``None`` if nothing does."""
    if type(ours) is not type(bare):
        return '{!r} is no {}'.format(ours, type(bare))
    if isinstance(bare, numpy.ndarray):
        if (ours.dtype, ours.shape) != (bare.dtype, bare.shape):
            return '{} {} is not {} {}'.format(
                ours.dtype, ours.shape, bare.dtype, bare.shape)
        if bare.dtype == object:
            return difference(ours.ravel().tolist(), bare.ravel().tolist())
        same = ours.tobytes() == bare.tobytes()  # NaNs too
    elif isinstance(bare, numpy.generic):
        same = ours.dtype == bare.dtype and ours.tobytes() == bare.tobytes()
    elif isinstance(bare, (tuple, list)):
        same = len(ours) == len(bare)
        for parts in zip(ours, bare) if same else ():
            found = difference(*parts)
            if found:
                return found
    elif isinstance(bare, dict):
        return difference(sorted(ours.items()), sorted(bare.items()))
    elif isinstance(bare, BaseException):
        return difference(ours.args, bare.args)
    else:
        same = ours == bare or (ours != ours and bare != bare)
    return None if same else '{!r} is not {!r}'.format(ours, bare)


def brief(data):
    """Return a short text about data, quickly."""
    if isinstance(data, numpy.ndarray):
        return '{}{}'.format(data.dtype, list(data.shape))
    if isinstance(data, dict):
        return '{{{}}}'.format(', '.join(
            '{}: {}'.format(key, brief(data[key])) for key in sorted(data)))
    if isinstance(data, (tuple, list)):
        return '{}({})'.format(
            type(data).__name__, ', '.join(brief(part) for part in data[:5]))
    return repr(data)[:60]


class Raised(object):
    """What a call raised, in the place of what it would have returned."""
    def __init__(self, error):
        self.error = error

    def __repr__(self):
        return 'Raised({!r})'.format(self.error)


def outcome(function, *args, **kwargs):
    """Return what `function` returns, or :class:`Raised`."""
    try:
        return function(*args, **kwargs)
    except BaseException as error:  # streams may raise SystemExit
        return Raised(error)


class Delays(object):
    """Delays from a seed, of which most are none.

    Parameters
    ----------
    seed : int
        The seed.
    longest : float
        Seconds that a call is delayed at most; 0 delays none.

    """
    def __init__(self, seed, longest):
        self.rng = random.Random(seed)
        self.longest = longest

    def __call__(self):
        if self.longest and self.rng.random() < .3:
            # A delay of 0 lets another thread run, no more.
            time.sleep(self.rng.choice([0, 0, .1, .5, 1]) * self.longest)


class Watch(object):
    """Delays the calls on a stream, and notes those that overlap."""
    def __init__(self, stream, delay, overlaps):
        self.delay = delay
        self.overlaps = overlaps
        self.busy = threading.RLock()  # Fuel's methods call one another
        for name in ('get_epoch_iterator', 'get_data', 'reset', 'next_epoch',
                     'close'):
            setattr(stream, name, Watched(self, stream, name))


class Watched(object):
    """A method of a stream that is watched. A pickle of it is not."""
    def __init__(self, watch, stream, name):
        self.watch = watch
        self.stream = stream
        self.name = name
        self.method = Unwatched(stream, name)

    def __call__(self, *args, **kwargs):
        watch = self.watch
        if not watch.busy.acquire(False):
            watch.overlaps.append(self.name)
            return self.method(*args, **kwargs)
        try:
            watch.delay()
            return self.method(*args, **kwargs)
        finally:
            watch.busy.release()

    def __reduce__(self):
        return Unwatched, (self.stream, self.name)


class Unwatched(object):
    """The method itself, in a form that 2.7 can pickle."""
    def __init__(self, stream, name):
        self.stream = stream
        self.name = name

    def __call__(self, *args, **kwargs):
        return getattr(type(self.stream), self.name)(self.stream, *args,
                                                     **kwargs)


def lowest(stream):
    """Return the streams at the bottom of a chain."""
    if hasattr(stream, 'data_stream'):
        return lowest(stream.data_stream)
    if hasattr(stream, 'data_streams'):
        return [found for part in stream.data_streams
                for found in lowest(part)]
    return [stream]


# What becomes of an epoch iterator:
#
#   LIVE --> ENDED      it came to its end, or a newer epoch began
#   LIVE --> CLOSED     the stream was closed before it came to its end
#   LIVE --> LOST       a reset took away what it would have given
LIVE, ENDED, CLOSED, LOST = 'live', 'ended', 'closed', 'lost'


class Epoch(object):
    """The iterators of one epoch, of the bare stream and of ours."""
    def __init__(self, bare, ours, as_dict):
        self.bare = bare
        self.ours = ours
        self.as_dict = as_dict
        self.state = LIVE
        self.restarted = False  # by a reset
        self.carried = False  # so its rest goes into the next epoch
        self.at_end = False  # closed after its last item


class Model(object):
    """A bare chain and a wrapped one, on which the same calls are made.

    Each call is a method, with another that tells whether it may be made
    now, where not every call may be.

    Parameters
    ----------
    chain : :class:`.Chain`
        The chain.
    options : dict
        For :class:`.BackgroundDataStream`.
    middle : dict or None
        Options of another one in the middle of the wrapped chain, if not
        ``None``.
    directory : str
        For the files.
    producer, reader : callable
        Delay a call on the wrapped stream, and one on ours.

    """
    def __init__(self, chain, options, middle, directory, producer, reader):
        self.chain = chain
        self.directory = directory
        self.producer, self.reader = producer, reader
        self.options = dict(options, copy=options['copy'] or bool(chain.copy))
        self.middle = middle
        self.ahead = bool(options['across_epochs'] or
                          middle and middle['across_epochs'])
        self.calls = []
        self.overlaps = []
        self.epochs = []  # those whose iterators we have, the newest last
        self.current = None  # the newest, also if it is forgotten
        self.begun = 0
        self.closed = False
        self.bare = self.make_bare()
        self.ours = self.make_ours()

    # What is compared

    def make_bare(self):
        return self.chain.factory(self.directory)

    def make_ours(self):
        return BackgroundDataStream(self.make_wrapped(), **self.options)

    @property
    def bare_chain(self):
        """The bare stream of what `ours` wraps."""
        return self.bare

    def make_wrapped(self):
        if self.middle is None:
            stream = self.chain.factory(self.directory, unchanged)
        else:
            stream = self.chain.factory(
                self.directory,
                lambda stream: BackgroundDataStream(stream, **self.middle))
        for found in lowest(stream):
            Watch(found, self.producer, self.overlaps)
        return stream

    def fail(self, message):
        raise AssertionError('{}\nchain {}, options {}, in the middle {}\n{}'
                             .format(message, self.chain.name, self.options,
                                     self.middle, '\n'.join(self.calls)))

    def call(self, name, *args):
        """Make a call, and show in the list of calls what came of it."""
        self.reader()
        self.calls.append('{}{!r}'.format(name, args))
        getattr(self, name)(*args)
        if self.overlaps:
            self.fail('overlapping calls: {}'.format(self.overlaps))

    def note(self, expected):
        self.calls[-1] += ' -> ' + brief(expected)

    def same(self, ours, bare):
        self.note(bare)
        if isinstance(ours, Raised) and isinstance(bare, Raised):
            found = difference(ours.error, bare.error)
        else:
            found = difference(ours, bare)
        if found:
            self.fail(found)

    def raises(self, ours, *kinds):
        self.note(kinds)
        if not isinstance(ours, Raised) or type(ours.error) not in kinds:
            self.fail('{!r} is not raised, but {!r}'.format(kinds, ours))

    @property
    def live(self):
        """Whether an epoch is under way, so that the stream is at work."""
        return self.current is not None and self.current.state == LIVE

    def leave(self, state, *states):
        for epoch in self.epochs + [self.current] * bool(self.current):
            if epoch.state in states:
                epoch.state = state

    # Epochs

    def may_begin(self):
        return not (
            self.live and (self.chain.whole_epochs_only or
                           self.current.carried) or
            self.begun and self.chain.first_epoch_only)

    def begin(self, as_dict):
        """Ask for an epoch iterator; ``None`` says nothing of as_dict."""
        kwargs = {} if as_dict is None else {'as_dict': as_dict}
        # Also where none comes, since what was read ahead is dropped before
        # the stream is asked.
        self.leave(ENDED, LIVE, LOST)
        self.current = None
        self.closed = False
        self.begun += 1
        bare = outcome(self.bare.get_epoch_iterator, **kwargs)
        ours = outcome(self.ours.get_epoch_iterator, **kwargs)
        if isinstance(bare, Raised) or isinstance(ours, Raised):
            self.same(ours, bare)
            return
        if iter(ours) is not ours:
            self.fail('it is no iterator')
        self.current = Epoch(bare, ours, bool(as_dict))
        self.epochs = self.epochs[-3:] + [self.current]

    def take_bare(self, epoch):
        data = next(epoch.bare)
        if self.chain.ignores_as_dict and epoch.as_dict:
            data = dict(zip(self.bare.sources, data))
        return data

    def take_from(self, epoch):
        """Take the next item of both; return whether there may be more."""
        if epoch.state == LIVE:
            # A `DataStream` begins the first epoch after a reset where it
            # is, so when the old iterator has gone on, its rest is left.
            epoch.carried = epoch.restarted
            bare = outcome(self.take_bare, epoch)
            self.same(outcome(next, epoch.ours), bare)
            if isinstance(bare, Raised) and type(bare.error) is StopIteration:
                epoch.state = ENDED
        elif epoch.state == ENDED:
            # Fuel's iterators may go on after their end, ours must not.
            self.same(outcome(next, epoch.ours), Raised(StopIteration()))
        elif epoch.state == CLOSED:
            # Whether the end was read ahead is a matter of timing.
            self.raises(outcome(next, epoch.ours), PrefetchError,
                        *[StopIteration] * epoch.at_end)
        return epoch.state == LIVE

    def may_take(self):
        return bool(self.epochs)

    def take(self, count):
        """Take items of the newest epoch, past its end too."""
        for _ in range(count):
            if not self.take_from(self.epochs[-1]):
                break

    def may_exhaust(self):
        return (self.live and bool(self.epochs) and
                not self.chain.endless)

    def exhaust(self):
        # A stream that was closed may raise the same for ever.
        for _ in range(50):
            if not self.take_from(self.epochs[-1]):
                break
            self.reader()

    def may_take_old(self):
        return len(self.epochs) > 1

    def take_old(self, number):
        """Ask an epoch iterator that isn't the newest."""
        self.take_from(self.epochs[number % (len(self.epochs) - 1)])

    def may_forget(self):
        return bool(self.epochs) and self.may_begin()

    def forget(self):
        """Drop all epoch iterators."""
        for epoch in self.epochs:
            epoch.ours = None
        self.epochs = []

    # The stream

    def may_interfere(self):
        """Whether `reset`, `next_epoch` and `close` may be called."""
        if self.live and (self.chain.whole_epochs_only or
                          self.chain.first_epoch_only):
            return False
        # With `across_epochs` an epoch may have been begun that these drop.
        return not (self.begun and self.ahead and (
            self.chain.epochs_differ or self.chain.whole_epochs_only or
            self.chain.first_epoch_only))

    may_reset = may_next_epoch = may_close = may_interfere

    def reset(self):
        self.interrupt('reset')

    def next_epoch(self):
        self.interrupt('next_epoch')

    def interrupt(self, name):
        # An iterator goes on with the stream as it is now, unless a scheme
        # has decided what that is, or
        # - the next epoch has been begun ahead;
        # - there is another in the middle, whose iterator is at its end for
        #   good when the end was read ahead.
        if self.chain.old_iterator_lost or self.ahead or self.middle:
            self.leave(LOST, LIVE)
        elif self.live:
            self.current.restarted |= name == 'reset'
            self.current.carried = False
        self.closed = False
        self.same(outcome(getattr(self.ours, name)),
                  outcome(getattr(self.bare, name)))

    def close(self):
        for epoch in self.epochs:
            if epoch.state == LIVE:
                bare = outcome(next, epoch.bare)
                epoch.at_end = (isinstance(bare, Raised) and
                                type(bare.error) is StopIteration)
            elif epoch.state == LOST:
                epoch.at_end = True  # for all that anyone can tell
        self.leave(CLOSED, LIVE, LOST)
        # Closing twice does nothing more, whatever it does to a bare one.
        bare = None if self.closed else outcome(self.bare.close)
        self.closed = True
        self.same(outcome(self.ours.close), bare)

    # Pickles

    def may_pickle(self):
        return not (self.chain.changed_by_pickle or
                    any(epoch.state == LOST for epoch in self.epochs))

    def pickle(self, how, keep, count):
        """Pickle or copy stream and iterators, and go on with either.

        The bare stream goes on as it is. The one of the two that is not
        gone on with gives what a copy of the bare one gives.

        """
        iterators = [epoch.ours for epoch in self.epochs]
        bare = [epoch.bare for epoch in self.epochs]
        twin, twins = duplicate((self.ours, iterators), how)
        if any(iterator.data_stream is not twin for iterator in twins):
            self.fail('an iterator has another stream')
        if keep == 'original':
            other, others = twin, twins
        else:
            other, others = self.ours, iterators
            self.ours = twin
            self.closed = False  # it doesn't know, nor does what it wraps
            for epoch, epoch.ours in zip(self.epochs, twins):
                pass
            for found in lowest(twin):
                Watch(found, self.producer, self.overlaps)
        if count and self.epochs and self.epochs[-1].state == LIVE:
            spare, spares = duplicate((self.bare, bare), how)
            epoch = copy.copy(self.epochs[-1])
            epoch.bare, epoch.ours = spares[-1], others[-1]
            for _ in range(count):
                if not self.take_from(epoch):
                    break
            spare.close()
        other.close()

    # Attributes

    def look(self):
        """Read what a stream says of itself."""
        for name in ('sources', 'axis_labels', 'produces_examples'):
            self.same(outcome(getattr, self.ours, name),
                      outcome(getattr, self.bare, name))
        scheme = self.ours.iteration_scheme
        if scheme is not self.ours.data_stream.iteration_scheme:
            self.fail('{!r} is another scheme'.format(scheme))
        if type(scheme) is not type(self.bare.iteration_scheme):
            self.fail('{!r} is a scheme of another type'.format(scheme))
        self.ours.stats  # must not disturb

    def may_change(self):
        # With `across_epochs` a change comes late, unless a reset follows.
        return not self.live and (not self.ahead or self.may_reset())

    def change(self, which, number):
        """Change the wrapped stream between two epochs."""
        change = self.chain.changes[which % len(self.chain.changes)]
        self.calls[-1] += ' = ' + change.__name__
        change(self.bare_chain, number)
        change(self.ours.data_stream, number)
        if self.ahead:
            self.reset()

    def may_replace(self):
        return not (self.live or self.chain.on_disk or
                    self.chain.first_epoch_only)

    def replace(self):
        """Wrap another stream between two epochs."""
        self.closed = False
        self.bare = self.make_bare()
        self.ours.data_stream = self.make_wrapped()

    def finish(self):
        """Close all that holds a file, or a thread."""
        self.forget()
        self.ours.close()
        if not self.closed:
            self.bare.close()


def duplicate(objects, how):
    """Return a copy that was pickled in a protocol, or made by deepcopy."""
    if how is None:
        return copy.deepcopy(objects)
    return pickle.loads(pickle.dumps(objects, how))


HOW = [None] + list(range(pickle.HIGHEST_PROTOCOL + 1))

# Each call with its weight, and what draws its arguments.
CALLS = [
    (3, 'begin', lambda rng: (rng.choice([None, False, True]),)),
    (9, 'take', lambda rng: (rng.choice([1, 1, 1, 2, 3, 5, 8, 30]),)),
    (4, 'exhaust', lambda rng: ()),
    (2, 'take_old', lambda rng: (rng.randrange(3),)),
    (1, 'forget', lambda rng: ()),
    (1, 'reset', lambda rng: ()),
    (1, 'next_epoch', lambda rng: ()),
    (1, 'close', lambda rng: ()),
    (1, 'pickle', lambda rng: (rng.choice(HOW),
                               rng.choice(['original', 'twin']),
                               rng.choice([0, 1, 5, 50]))),
    (2, 'look', lambda rng: ()),
    (2, 'change', lambda rng: (rng.randrange(9), rng.randrange(1, 9))),
    (.3, 'replace', lambda rng: ()),
]


def options_from(rng):
    """Draw options of a :class:`.BackgroundDataStream`."""
    return {
        'max_store': rng.choice([1, 1, 2, 3, rng.randint(1, 20), None, -1]),
        'max_bytes': rng.choice([None, None, None, 1, 100, 5000]),
        'across_epochs': rng.random() < .3,
        'copy': rng.random() < .25,
        'timeout': rng.choice([None, DEADLINE])}  # they wait otherwise


def always():
    return True


def play(chain, number, directory, make_model=Model):
    """Play the sequence that a seed gives."""
    # Not the same calls for each chain.
    rng = random.Random(1000 * number + crc32(chain.name.encode()) % 1000)
    model = make_model(
        chain, options_from(rng),
        options_from(rng) if rng.random() < .3 else None, directory,
        Delays(rng.random(), rng.choice([0, 0, .0005, .002])),
        Delays(rng.random(), rng.choice([0, 0, .0005, .002])))
    try:
        for _ in range(LENGTH):
            calls = [call for call in CALLS
                     if getattr(model, 'may_' + call[1], always)()]
            place = rng.uniform(0, sum(weight for weight, _, _ in calls))
            for weight, name, draw in calls:
                place -= weight
                if place <= 0:
                    break
            model.call(name, *draw(rng))
    finally:
        model.finish()


class ModelTestCase(ConcurrentTestCase):
    """A test case with a directory for the files."""
    def setUp(self):
        super(ModelTestCase, self).setUp()
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)


class SeedTestCase(ModelTestCase):
    """A test case to be given a test for each chain."""
    make_model = Model
    rounds = ROUNDS

    def check(self, chain):
        first = int(SEED or 1)
        for number in range(first, first + self.rounds):
            try:
                self.within(60, play, chain, number, self.directory,
                            self.make_model)
            except BaseException:
                print('to repeat it: FUEL_PREFETCH_SEED={}'.format(number),
                      file=sys.stderr)
                raise

    @classmethod
    def add_tests(cls, chains):
        for chain in chains:
            def test(self, chain=chain):
                self.check(chain)
            test.__name__ = str('test_' + chain.name)
            setattr(cls, test.__name__, test)


class TestSequencesFromASeed(SeedTestCase):
    """Those on :class:`.BackgroundDataStream`."""


TestSequencesFromASeed.add_tests(CHAINS)


class ProcessModel(Model):
    """A chain that is read by a process."""
    def __init__(self, chain, options, *args):
        super(ProcessModel, self).__init__(
            chain, dict(options, backend='process'), *args)

    def may_close(self):
        # The stream comes back as a pickle.
        return self.may_interfere() and not self.chain.changed_by_pickle


class TestSequencesOnAProcess(SeedTestCase):
    """Those on :class:`.BackgroundDataStream` with a process."""
    make_model = ProcessModel
    rounds = -(-ROUNDS // 2)


TestSequencesOnAProcess.add_tests(CHAINS)


def turn(data):
    """A mapping that takes its time, and fails at some of the data."""
    number = crc32(repr(data[0]).encode()) % 13
    if number < 6:
        time.sleep(.0002 * number)
    if number == 7:
        raise Trouble('turned')
    return data[::-1]


class MappingModel(Model):
    """Fuel's `Mapping` of a bare chain, and ours of a wrapped one."""
    @property
    def bare_chain(self):
        return self.bare.data_stream

    def make_bare(self):
        return Mapping(super(MappingModel, self).make_bare(), turn,
                       **self.make_options()[0])

    def make_ours(self):
        return ParallelMapping(self.make_wrapped(), turn,
                               **self.make_options()[1])

    def take_bare(self, epoch):
        return next(epoch.bare)  # the mapping makes dictionaries itself

    def make_options(self):
        """Return options for Fuel's, and for ours."""
        self.ahead = bool(self.middle and self.middle['across_epochs'])
        depth = self.options['max_store']
        options = {'add_sources': tuple(
            'turned_{}'.format(number) for number in range(len(
                self.chain.factory(self.directory).sources)))
            } if self.options['across_epochs'] else {}
        return options, dict(
            options, max_store=None if self.chain.endless else depth,
            workers=1 + (depth or 3) % 4)

    def look(self):
        for name in ('sources', 'axis_labels', 'produces_examples'):
            self.same(outcome(getattr, self.ours, name),
                      outcome(getattr, self.bare, name))
        self.ours.stats


class TestMappings(SeedTestCase):
    """Those on :class:`.ParallelMapping`."""
    make_model = MappingModel
    rounds = -(-ROUNDS // 2)


TestMappings.add_tests(chain for chain in CHAINS if not chain.copy)


if RuleBasedStateMachine is not None:
    integers, sampled = strategies.integers, strategies.sampled_from
    OPTIONS = strategies.fixed_dictionaries({
        'max_store': strategies.one_of(integers(1, 20), sampled([None, -1])),
        'max_bytes': strategies.one_of(
            strategies.none(), sampled([1, 100, 5000])),
        'across_epochs': strategies.booleans(),
        'copy': strategies.booleans(),
        'timeout': strategies.just(DEADLINE)})  # to know soon of a hang
    DELAYS = strategies.builds(
        Delays, integers(0, 99), sampled([0, .0005, .002]))

    def allowed(name):
        return precondition(lambda self: getattr(self.model, 'may_' + name)())

    class Calls(RuleBasedStateMachine):
        """The calls, for Hypothesis to choose from."""
        names = directory = model = failure = None

        def call(self, *args):
            try:
                self.model.call(*args)
            except BaseException as error:
                # Hypothesis plays it again, which may come out otherwise.
                type(self).failure = type(self).failure or error
                raise

        @initialize(data=strategies.data(), options=OPTIONS,
                    middle=strategies.one_of(strategies.none(), OPTIONS),
                    producer=DELAYS, reader=DELAYS)
        def make(self, data, options, middle, producer, reader):
            name = data.draw(sampled(self.names))
            chain, = [chain for chain in CHAINS if chain.name == name]
            self.model = Model(chain, options, middle, self.directory,
                               producer, reader)

        @allowed('begin')
        @rule(as_dict=sampled([None, False, True]), count=integers(0, 8))
        def begin(self, as_dict, count):
            self.call('begin', as_dict)
            if count and self.model.may_take():
                self.call('take', count)

        @allowed('take')
        @rule()
        def take_one(self):
            self.call('take', 1)

        @allowed('take')
        @rule(count=integers(1, 30))
        def take(self, count):
            self.call('take', count)

        @allowed('exhaust')
        @rule()
        def exhaust(self):
            self.call('exhaust')

        @allowed('take_old')
        @rule(number=integers(0, 2))
        def take_old(self, number):
            self.call('take_old', number)

        @allowed('forget')
        @rule()
        def forget(self):
            self.call('forget')

        @allowed('interfere')
        @rule(name=sampled(['reset', 'next_epoch', 'close']))
        def interfere(self, name):
            self.call(name)

        @allowed('pickle')
        @rule(how=sampled(HOW), keep=sampled(['original', 'twin']),
              count=sampled([0, 3, 50]))
        def pickle(self, how, keep, count):
            self.call('pickle', how, keep, count)

        @rule()
        def look(self):
            self.call('look')

        @allowed('change')
        @rule(which=integers(0, 1), number=integers(1, 8))
        def change(self, which, number):
            self.call('change', which, number)

        @allowed('replace')
        @rule()
        def replace(self):
            self.call('replace')

        def teardown(self):
            if self.model is not None:
                self.model.finish()

    class TestSequencesFromHypothesis(ModelTestCase):
        """A test for each few chains, so that each is chosen."""
        def check(self, chains):
            class CallsHere(Calls):
                names = [chain.name for chain in chains]
                directory = self.directory

            if SEED is not None:
                seed(int(SEED))(CallsHere)
            how = settings(
                max_examples=4 * ROUNDS, stateful_step_count=30,
                derandomize=SEED is None, database=None, deadline=None,
                suppress_health_check=[
                    HealthCheck.too_slow, HealthCheck.filter_too_much,
                    HealthCheck.data_too_large])
            try:
                self.within(
                    300 + 10 * ROUNDS, lambda: run_state_machine_as_test(
                        CallsHere, settings=how))
            except BaseException:
                print('first failure: {}\nFUEL_PREFETCH_SEED={}'.format(
                    CallsHere.failure, SEED), file=sys.stderr)
                raise

    def _add_hypothesis_tests(count=6):
        for first in range(count):
            chains = CHAINS[first::count]

            def test(self, chains=chains):
                self.check(chains)
            test.__name__ = str('test_chains_from_{}'.format(first))
            setattr(TestSequencesFromHypothesis, test.__name__, test)

    _add_hypothesis_tests()

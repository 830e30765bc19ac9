"""Find out what a training waits for, and what to do about it.

Your stream is read twice, each time with a training step on every batch:
first without prefetching, when the time of each stage of it is taken, and
then through BackgroundDataStream. The report has

- the time per stage, that is, per stream of the chain, without what it reads;
- the rate of the stream and of the step alone, of both in turn, of both at
  once, and what would be ideal;
- which side is the bottleneck, and what to write: a deeper store, workers, a
  process, or nothing.

The stream is what a module has under a name, or what the function of that
name returns; the module is looked for in the present folder, too. A function
is called for each of the two runs. If it reads ahead by itself already, that
is taken off, and its settings are the defaults here.

With --step-time the step sleeps, as one on a GPU does. With --step it is your
function, called with each batch: what it needs of the processor and of the
interpreter's lock counts then.

"""
from __future__ import absolute_import, division, print_function

import argparse
import contextlib
import multiprocessing
import re
import textwrap
import time
from functools import partial

from fuel_prefetch import BackgroundDataStream, diagnosis
from fuel_prefetch.bin import plot
from fuel_prefetch.bin.options import at_least, depth
from fuel_prefetch.bin.target import Mistake, find, make_stream, one_line
from fuel_prefetch.bin.terminal import fail, in_words, progress, say
from fuel_prefetch.profiling import on_workers, train, unwrapped
from fuel_prefetch.schemes import length_of
from fuel_prefetch.stages import LockProbe, Stages
from fuel_prefetch.stats import read_cpu
from fuel_prefetch.timeline import Timeline

BUSY = .1  # of the time
UNITS = {'us': 1e-6, 'ms': 1e-3, 's': 1}
EXAMPLES = """\
examples:
  fuel-prefetch profile mystreams:train --step-time 20ms
  fuel-prefetch profile mystreams:train --step mymodel:step --epochs 3
  fuel-prefetch profile mystreams:train --step-time 20ms --batches 200
  fuel-prefetch profile mystreams:train --step-time 20ms --workers 4
  fuel-prefetch profile mystreams:train --step-time 20ms --plot run.png

exit codes:
  0    the report was printed
  1    the stream or the step raised an error
  2    there is no such stream or step, or a bad option
  130  interrupted by Ctrl-C
"""


def add_arguments(parser):
    """Add this command's options to a parser."""
    parser.epilog = EXAMPLES
    parser.add_argument('stream', metavar='MODULE:STREAM',
                        help='what to profile')
    step = parser.add_mutually_exclusive_group(required=True)
    step.add_argument(
        '--step-time', type=duration, metavar='TIME',
        help='how long a training step takes, such as 20ms, 1.5s or 300us')
    step.add_argument(
        '--step', metavar='MODULE:FUNCTION',
        help='a function that trains on a batch, which it is given')
    parser.add_argument(
        '--epochs', type=at_least(1), default=1, metavar='N',
        help='epochs to read in each run (default: %(default)s)')
    parser.add_argument(
        '--batches', type=at_least(1), metavar='N',
        help='most batches to read of an epoch (default: all)')
    parser.add_argument(
        '--max-store', type=depth, metavar='N',
        help="most batches held ready; -1 for no bound (default: the "
             "stream's own, else 10)")
    parser.add_argument(
        '--workers', type=at_least(1), metavar='N',
        help='have the slowest Mapping of the stream done by so many workers '
             '(default: none)')
    parser.add_argument(
        '--backend', choices=['thread', 'process'], metavar='NAME',
        help="where the stream is read or, with --workers, where the mapping "
             "is done: 'thread' or 'process' (default: the stream's own, "
             "else thread)")
    parser.add_argument(
        '--trace', metavar='FILE',
        help='write what each thread and worker did, for chrome://tracing or '
             'ui.perfetto.dev')
    parser.add_argument(
        '--plot', type=plot.picture, metavar='FILE',
        help='draw that, and how full the store was, to a .png or .svg '
             '(needs matplotlib: pip install fuel-prefetch[plot])')


def duration(text):
    """Convert an argument that is a time, with its unit."""
    match = re.match(r'(\d+\.?\d*|\.\d+) *(us|ms|s)$', text)
    seconds = match and float(match.group(1)) * UNITS[match.group(2)]
    if not seconds:
        raise argparse.ArgumentTypeError(
            "'{}' is not a time such as 20ms, 1.5s or 300us".format(text))
    return seconds


class Failed(Exception):
    """An error of the user's code, in a sentence."""


@contextlib.contextmanager
def blamed_on(what):
    """Tell an error of the user's code in one line."""
    try:
        yield
    except (Failed, Mistake):
        raise
    except Exception as error:
        raise Failed('{} raised {}'.format(what, one_line(error)))


def run(args):
    """Do as the docstring of this module says; return the exit code."""
    try:
        step = find_step(args)
        with blamed_on(args.stream):
            stream, again = make_stream(args.stream)
        for path in (args.trace, args.plot):
            check_writable(path)
        measured, timeline = measure(stream, again, step, args)
        report(measured, args)
        if args.trace:
            with open(args.trace, 'w') as file_:
                timeline.write_trace(file_)
            say('\nThe trace is in {}'.format(args.trace))
        if args.plot:
            plot.draw(timeline, args.plot, args.stream)
            say('\nThe picture is in {}'.format(args.plot))
        return 0
    except (Mistake, Failed, EnvironmentError) as error:
        return fail('profile', error, 2 if isinstance(error, Mistake) else 1)


def find_step(args):
    """Return the training step."""
    if args.step is None:
        return lambda batch: time.sleep(args.step_time)
    function = find(args.step, 'step')
    if not callable(function):
        raise Mistake('{} is not a function'.format(args.step))

    def step(batch):
        try:
            function(batch)
        except Exception as error:
            raise Failed('{} raised {}'.format(args.step, one_line(error)))
    return step


def check_writable(path):
    """Find out now whether a file can be written, not after two runs."""
    if path:
        try:
            open(path, 'a').close()
        except EnvironmentError as error:
            raise Mistake(in_words(error))


def measure(stream, again, step, args):
    """Make the two runs.

    Returns
    -------
    measured : :class:`.Measured`
        What came of them.
    timeline : :class:`.Timeline`
        What went on in the second.

    """
    settings = settings_of(stream, args)
    read = unwrapped(stream)
    if read is not stream:
        say('It reads ahead by itself; what it reads is profiled.')
    if args.workers and not any(
            stage.mapping is not None for stage in Stages(read).all):
        raise Mistake('--workers: {} has no Mapping'.format(args.stream))
    run_ = partial(train, step=step, epochs=args.epochs, batches=args.batches)
    total = count_batches(read, args)
    say('{} of {} without prefetching ...'.format(
        'An epoch' if args.epochs == 1 else '{} epochs'.format(args.epochs),
        args.stream))
    missing = core_missing()
    with Stages(read) as stages, LockProbe(stages), progress(total) as show:
        with blamed_on(args.stream):
            bare = run_(read, show=show)
    missing = (core_missing() - missing) / bare.seconds
    if not bare.batches:
        raise Failed('{} gave no batches'.format(args.stream))

    if missing > BUSY:
        say('Something else had the processor for {:.0%} of that. Measure '
            'again when the machine\nis quiet: what lacks a core looks as if '
            'it waited.'.format(missing))
    cores = multiprocessing.cpu_count()
    measured = diagnosis.Measured(
        stages.all, bare, None, None, settings['max_store'],
        settings['backend'], args.workers or 0, cores)
    mapping = measured.to_parallelize
    with blamed_on(args.stream):
        other = again()
    if other is not stream:
        stream.close()
    read = unwrapped(other)
    timeline = Timeline()
    say('With prefetching in {} ...'.format(told(settings, args)))
    with contextlib.closing(read), blamed_on(args.stream):
        if args.workers:
            processes = settings.pop('backend') == 'process'
            with on_workers(read, stages.all.index(mapping), args.workers,
                            processes, timeline) as mapped:
                run_ahead, stats = run_prefetching(
                    mapped, settings, timeline, run_, bare.batches)
        else:
            run_ahead, stats = run_prefetching(
                read, settings, timeline, run_, bare.batches)
    timeline.close()
    return measured._replace(ahead=run_ahead, stats=stats), timeline


def core_missing():
    """Return for how long this thread could have run, if it had had a core.

    Since it started, in seconds; 0 where that isn't known.

    """
    return read_cpu()[2] if read_cpu is not None else 0.


def run_prefetching(stream, settings, timeline, run_, total):
    """Make the second run; return it, and the stream's statistics."""
    ahead = BackgroundDataStream(stream, **settings)
    timeline.follow(ahead, 'reading')
    with contextlib.closing(ahead), progress(total) as show:
        run_ahead = run_(ahead, show=show, record=timeline.training(ahead))
        return run_ahead, ahead.stats


def settings_of(stream, args):
    """Return the arguments for `BackgroundDataStream`."""
    settings = {'max_store': 10, 'backend': 'thread'}
    if unwrapped(stream) is not stream:
        settings = {name: getattr(stream, name) for name in (
            'max_store', 'max_bytes', 'across_epochs', 'copy', 'backend')}
    if args.max_store is not None:
        settings['max_store'] = args.max_store
    if settings['max_store'] == -1:
        settings['max_store'] = None  # as the advice knows it
    if args.backend is not None:
        settings['backend'] = args.backend
    return settings


def told(settings, args):
    """Say with what settings it goes on."""
    where = 'a ' + settings['backend']
    if args.workers:
        where = 'a thread and {} {}'.format(
            args.workers, 'processes' if settings['backend'] == 'process'
            else 'threads')
    return '{}, max_store={}'.format(where, settings['max_store'])


def count_batches(stream, args):
    """Return how many batches all the epochs have, or ``None``."""
    examples, batch_size = length_of(
        getattr(stream, 'iteration_scheme', None)) or (None, None)
    count = args.batches
    if batch_size is not None:
        count = -(-examples // batch_size)
        count = min(count, args.batches or count)
    return count and count * args.epochs


def report(measured, args):
    """Print what came of it."""
    bare, ahead = measured.bare, measured.ahead
    unit = unit_of(measured.stages[0].stream)
    say('\n{} {}, {} epoch{}, {} cores\n'.format(
        bare.batches, unit[1], args.epochs, 's' * (args.epochs > 1),
        measured.cores))
    say('{:<42}{:>14}{:>8}'.format('stage', 'ms a ' + unit[0], 'share'))
    total = sum(stage.seconds for stage in measured.stages)
    for stage in measured.stages:
        # A new branch, of several that are read together.
        dash = '- ' if stage.branches else '  '
        say('{:<42}{:>14.3f}{:>7.0f} %  {}'.format(
            '  ' * (stage.depth - 1) + dash * bool(stage.depth) + stage.name,
            1e3 * stage.seconds / bare.batches,
            100 * stage.seconds / total, stage.kind))
    say('\n{:<42}{:>14}{:>16}'.format(
        '', 'ms a ' + unit[0], unit[1] + '/s'))
    for name, seconds in [
            ('the stream alone', bare.reading),
            ('the step alone', bare.stepping),
            ('in turn, without prefetching', bare.each),
            ('at once, with prefetching', ahead.each),
            ('ideal', measured.ideal)]:
        say('{:<42}{:>14.3f}{:>16.1f}'.format(
            name, 1e3 * seconds, 1 / seconds))
    say('\nPrefetching made it {:.2f} times as fast; {:.2f} is ideal. '
        'Training waited for\n{:.0%} of the time. Bottleneck: {}.'.format(
            bare.each / ahead.each, bare.each / measured.ideal,
            sum(ahead.waits) / ahead.seconds, measured.stats.bottleneck))
    if measured.slowed >= diagnosis.SLOWED_BY_LOCK:
        say('Beside the reading a step took {:.2f} times as long as '
            'alone.'.format(measured.slowed))
    advice = diagnosis.advise(measured)
    say('\nAdvice: {}'.format(advice.verdict))
    say(textwrap.fill(advice.why, 79, break_on_hyphens=False))
    for line in (advice.line or '').splitlines():
        say('    ' + line)


def unit_of(stream):
    """Return what the stream gives, one and several of it."""
    try:
        examples = stream.produces_examples
    except Exception:  # it doesn't say
        examples = False
    return ('example', 'examples') if examples else ('batch', 'batches')

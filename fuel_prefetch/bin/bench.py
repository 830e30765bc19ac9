"""Measure prefetching on this machine, beside what it replaces.

Each part measures in turns, in this one run, ours and others: no prefetching,
a bare queue.Queue, Fuel's own, and those of prefetch_generator, PyTorch and
SPDL that are installed (pip install fuel-prefetch[bench]). What counts is the
ratios of medians, as an absolute time depends on the machine. The benchmarks
are a part of the source, not of what is installed, so this needs a checkout.

"""
from __future__ import absolute_import, division, print_function

import importlib
import io
import json
import multiprocessing
import os
import platform
import sys

from fuel_prefetch.bin.terminal import fail, say
from fuel_prefetch.version import version

EXAMPLES = """\
examples:
  fuel-prefetch bench
  fuel-prefetch bench --only hand_over --quick
  fuel-prefetch bench --only process --json results.json

exit codes:
  0    all was measured
  2    there is no such part, no checkout, or a bad option
  130  interrupted by Ctrl-C
"""
# Found at once: on Python 2.7 it depends on the current folder.
TOP = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
PEERS = ['numpy', 'fuel', 'zmq', 'prefetch_generator', 'torch', 'spdl']


def add_arguments(parser):
    """Add this command's options to a parser."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        '--only', action='append', metavar='NAME',
        help='only the part of that name, or those of which it is the first '
             'word; may be given several times (default: all)')
    parser.add_argument(
        '--quick', action='store_true',
        help='measure once, rather than seven times')
    parser.add_argument(
        '--json', metavar='FILE',
        help='write what was measured to a file as well')
    parser.add_argument(
        '--list', action='store_true', help='name the parts, and stop')


def run(args):
    """Measure; return the exit code."""
    try:
        parts = find_parts(args.only)
        if args.json:
            io.open(args.json, 'a').close()
    except (EnvironmentError, LookupError) as error:
        return fail('bench', error.args[0] if isinstance(
            error, LookupError) else error, 2)
    if args.list:
        for part in parts:
            print('{:<20}{}'.format(part.__name__, part.__doc__))
        return 0
    measure = importlib.import_module('benchmarks.measure')
    del measure.RESULTS[:]
    rounds = measure.ROUNDS
    if args.quick:
        measure.ROUNDS = 1
    machine = describe()
    print(', '.join('{} {}'.format(*item) for item in machine.items()) + '\n')
    results = {}
    try:
        for part in parts:
            say(part.__doc__)
            part()
            print()
            results[part.__name__] = [
                {'what': what, 'value': float(value), 'unit': unit}
                for what, value, unit in measure.RESULTS]
            del measure.RESULTS[:]
    finally:
        machine['rounds'], measure.ROUNDS = measure.ROUNDS, rounds
    if args.json:
        with open(args.json, 'w') as file_:
            json.dump({'machine': machine, 'results': results}, file_,
                      indent=1, sort_keys=True)
    return 0


def find_parts(names):
    """Return the parts of the benchmarks that are asked for.

    Raises
    ------
    LookupError
        If there is no checkout, or no part of a name.

    """
    if not os.path.exists(os.path.join(TOP, 'benchmarks', '__main__.py')):
        raise LookupError('the benchmarks are not installed with the package: '
                          "run it in a checkout, after 'pip install -e .'")
    # Also for the processes that some of them start.
    os.environ['PYTHONPATH'] = os.pathsep.join(
        [TOP] + [path for path in [os.environ.get('PYTHONPATH')] if path])
    if TOP not in sys.path:
        sys.path.insert(0, TOP)
    parts = importlib.import_module('benchmarks.__main__').PARTS
    found = []
    for name in names or ['']:
        of_name = [part for part in parts if not name or
                   (part.__name__ + '_').startswith(name + '_')]
        if not of_name:
            raise LookupError('there is no part {!r}: there are {}'.format(
                name, ', '.join(part.__name__ for part in parts)))
        found += [part for part in of_name if part not in found]
    return found


def describe():
    """Return the versions of what is measured, and the number of cores."""
    machine = {'cores': multiprocessing.cpu_count(),
               platform.python_implementation(): platform.python_version(),
               'fuel_prefetch': version}
    for name in PEERS:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        machine[name] = getattr(module, '__version__', 'of unknown version')
    return machine

"""Print how a server is doing.

What it has ready, who its clients are, how much it has sent and what went
wrong. A supervisor may take the exit code for the server's health.

"""
from __future__ import absolute_import, division, print_function

import sys

from fuel_prefetch import wire
from fuel_prefetch.bin.options import address_of_server, seconds
from fuel_prefetch.bin.terminal import fail
from fuel_prefetch.connection import Connection
from fuel_prefetch.exceptions import PrefetchError
from fuel_prefetch.keys import read_client_keys

EXAMPLES = """\
examples:
  fuel-prefetch status tcp://127.0.0.1:5557
  fuel-prefetch status tcp://server:5557 --keys client.key \\
      --server-key server.key.pub

exit codes:
  0    the server answered
  1    it didn't
  2    a bad option
"""


def add_arguments(parser):
    """Add this command's options to a parser."""
    parser.epilog = EXAMPLES
    parser.add_argument('address', metavar='ADDRESS', type=address_of_server,
                        help='where the server listens')
    parser.add_argument(
        '--timeout', type=seconds, default=5., metavar='SECONDS',
        help='how long to wait for an answer (default: %(default)s)')
    parser.add_argument('--keys', metavar='FILE',
                        help="the secret key of a client")
    parser.add_argument('--server-key', metavar='FILE',
                        help="the server's public key")


def run(args):
    """Ask and print; return the exit code."""
    if (args.keys is None) != (args.server_key is None):
        return fail('status', '--keys and --server-key go together', 2)
    try:
        connection = Connection(
            args.address, args.timeout, wire.MOST_BATCH_BYTES,
            read_client_keys(args.keys, args.server_key))
    except ValueError as error:
        return fail('status', error, 2)
    try:
        report = connection.status()
        lines = list(_lines(args.address, report))
    except (PrefetchError, wire.Malformed, KeyError, TypeError) as error:
        print('fuel-prefetch status: {}'.format(error), file=sys.stderr)
        return 1
    finally:
        connection.close()
    print('\n'.join(lines))
    return 0


def _lines(address, report):
    yield '{}: up for {:.0f} s, epoch {} {}'.format(
        address, report['seconds'], report['epoch'], {
            'none': 'is not under way', 'beginning': 'before the next',
            'open': 'under way', 'over': 'ending'}[report['phase']])
    yield 'pool: {} of {} batches ready'.format(
        report['pool'], report['max_store'])
    yield ('sent: {} batches, {:.1f} MB, {:.1f} batches/s, {:.1f} MB/s'
           .format(report['batches'], report['nbytes'] / 1e6,
                   report['batches'] / report['seconds'],
                   report['nbytes'] / 1e6 / report['seconds']))
    yield 'errors of the stream: {}, requests refused: {}'.format(
        report['errors'], report['refused'])
    yield 'clients: {}'.format(len(report['clients']))
    for client in report['clients']:
        yield ('  {name}: {state}, {batches} batches, {in_hand} in hand, '
               'here for {seconds:.0f} s'.format(**client))

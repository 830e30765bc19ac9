"""Serve a stream to other processes and machines.

The stream is what a module has under a name, or what the function of that
name returns; the module is looked for in the present folder, too. Clients
read it with fuel_prefetch.RemoteDataStream(ADDRESS). Who comes and leaves,
epochs and rates are logged to the standard error.

"""
from __future__ import absolute_import, division, print_function

import logging
import signal

import zmq

from fuel_prefetch.bin.options import address_to_bind, at_least
from fuel_prefetch.bin.target import Mistake, make_stream, one_line
from fuel_prefetch.bin.terminal import fail, interrupt
from fuel_prefetch.compression import CODECS
from fuel_prefetch.keys import is_local
from fuel_prefetch.server import StreamServer

EXAMPLES = """\
examples:
  fuel-prefetch serve mystreams:train
  fuel-prefetch serve mystreams:train --bind ipc:///tmp/train --max-store 20
  fuel-prefetch serve mystreams:train --bind tcp://0.0.0.0:5557 \\
      --keys server.key --clients allowed/

exit codes:
  0    stopped by SIGTERM or Ctrl-C, after clients got what was sent
  1    it can't be served, or the function raised an error
  2    there is no such stream, or a bad option
"""


def add_arguments(parser):
    """Add this command's options to a parser."""
    parser.epilog = EXAMPLES
    parser.add_argument('stream', metavar='MODULE:STREAM',
                        help='what to serve')
    parser.add_argument(
        '--bind', type=address_to_bind, default='tcp://127.0.0.1:5557',
        metavar='ADDRESS',
        help='where to listen: tcp://host:port or ipc://path (default: '
             '%(default)s)')
    parser.add_argument(
        '--max-store', type=at_least(1), default=10, metavar='N',
        help='most batches held ready (default: %(default)s)')
    parser.add_argument(
        '--broadcast', action='store_true',
        help='give every client every batch')
    parser.add_argument(
        '--compression', choices=sorted(CODECS), metavar='CODEC',
        help='compress where it pays, with {} (default: not)'.format(
            ', '.join(sorted(CODECS))))
    parser.add_argument(
        '--checkpoints', metavar='DIR',
        help='a folder for states of the stream, so that clients can be '
             'pickled in the middle of an epoch')
    parser.add_argument(
        '--keys', metavar='FILE',
        help="the server's secret key, from fuel-prefetch keygen")
    parser.add_argument(
        '--clients', metavar='DIR',
        help='the folder of the public keys of those who may connect')
    parser.add_argument(
        '--insecure', action='store_true',
        help='listen where other machines can connect, without keys')
    parser.add_argument(
        '--copy', action='store_true',
        help='copy each array, for a stream that refills its memory')


def run(args):
    """Serve until a signal comes; return the exit code."""
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s')
    logger = logging.getLogger('fuel_prefetch.server')
    if (args.keys is None) != (args.clients is None):
        return fail('serve', '--keys and --clients go together', 2)
    if not (args.keys or args.insecure or is_local(args.bind)):
        return fail('serve', 'other machines can connect to {}: that takes '
                    '--keys and --clients, or --insecure'.format(args.bind), 2)
    try:
        stream, _ = make_stream(args.stream)
    except Mistake as error:
        return fail('serve', error, 2)
    except Exception as error:
        return fail('serve', one_line(error))
    try:
        server = StreamServer(
            stream, args.bind, args.max_store, args.broadcast,
            args.compression, args.checkpoints, args.copy, args.keys,
            args.clients, args.insecure)
        signal.signal(signal.SIGTERM, interrupt)
        server.start()
    except ValueError as error:
        return fail('serve', error, 2)
    except (ImportError, EnvironmentError, zmq.ZMQError) as error:
        return fail('serve', error)
    code = 0
    try:
        logger.info('serving %s at %s', args.stream, server.address)
        # Timed, since on 2.7 a signal doesn't end one that isn't.
        while not server.wait(1.):
            pass
        code = 1  # it has logged why
    except KeyboardInterrupt:
        logger.info('stopping')
    finally:
        server.stop()
        stream.close()
    logger.info('stopped')
    return code

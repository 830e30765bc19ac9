"""The command `fuel-prefetch`.

A subcommand is a module of this package. Its docstring is its help, of which
the first line is the summary; `add_arguments(parser)` adds its options, and
`run(args)` returns the exit code.

"""
from __future__ import absolute_import, division, print_function

import argparse
import errno
import os
import signal
import sys

from fuel_prefetch.bin import bench, demo, keygen, profile, serve, status
from fuel_prefetch.bin.terminal import interrupt
from fuel_prefetch.version import version

COMMANDS = (demo, profile, bench, serve, status, keygen)

EXIT_CODES = """\
exit codes:
  0    it did what it was asked to
  1    it could not, or your stream raised an error
  2    a bad option, or there is no such thing as was named
  130  interrupted by Ctrl-C, which is how 'serve' ends well, with 0
'fuel-prefetch COMMAND --help' tells what these mean for a command.
"""


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, with the command."""
    def parse_args(self, args=None, namespace=None):
        args, unknown = self.parse_known_args(args, namespace)
        if unknown:
            args.parser.error(
                'unrecognized arguments: ' + ' '.join(unknown))
        return args

    def error(self, message):
        self.exit(2, '{}: error: {}\n'.format(self.prog, message))


def make_parser():
    parser = Parser(
        prog='fuel-prefetch',
        description='Reads ahead of a Fuel data stream while the model '
                    'trains.',
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--version', action='version',
                        version='%(prog)s ' + version)
    subparsers = parser.add_subparsers(dest='command', metavar='command')
    # Python 3 alone lets a command be left out, unless told otherwise.
    subparsers.required = True
    for module in COMMANDS:
        subparser = subparsers.add_parser(
            module.__name__.split('.')[-1],
            help=module.__doc__.splitlines()[0],
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run, parser=subparser)
    return parser


def main(args=None):
    """Run the command that `args`, or those of the process, ask for.

    Parameters
    ----------
    args : list of str, optional
        The arguments. Defaults to `sys.argv[1:]`.

    Returns
    -------
    int
        The exit code, for those errors that aren't a `SystemExit`.

    """
    try:
        try:
            return run(args)
        finally:
            sys.stdout.flush()
    except EnvironmentError as error:
        if error.errno != errno.EPIPE:
            raise
        # Who read what is printed, `head` say, has seen enough. What is
        # buffered still would only fail once more as the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def run(args):
    args = make_parser().parse_args(args)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        return args.run(args)
    except KeyboardInterrupt:
        print('fuel-prefetch {}: interrupted'.format(args.command),
              file=sys.stderr)
        return 130  # as a shell has it for a program that SIGINT ended

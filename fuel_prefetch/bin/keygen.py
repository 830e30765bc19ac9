"""Make a pair of keys, for a server or a client.

Writes the secret key to FILE, which only its owner can read, and the public
one to FILE.pub. Each side keeps its own secret and has the other one's public
key.

"""
from __future__ import absolute_import, division, print_function

from fuel_prefetch.bin.terminal import fail
from fuel_prefetch.keys import make_keys

EXAMPLES = """\
exit codes:
  0    both files were written
  1    one is there already, or can't be written
  2    a bad option
"""


def add_arguments(parser):
    """Add this command's options to a parser."""
    parser.epilog = EXAMPLES
    parser.add_argument('file', metavar='FILE', help='the secret key')


def run(args):
    """Write the files; return the exit code."""
    try:
        make_keys(args.file)
    except EnvironmentError as error:
        return fail('keygen', error)
    print('{0} is the secret key, {0}.pub the public one.'.format(args.file))
    return 0

"""Types of the options that several commands have."""
from __future__ import absolute_import, division, print_function

import argparse

from fuel_prefetch.keys import check_address


def at_least(least):
    """Make a type of argument: whole numbers from `least` up."""
    def number(text):
        if not text.isdigit() or not least <= int(text) < 2 ** 32:
            raise argparse.ArgumentTypeError(
                "'{}' is not a whole number from {} up".format(text, least))
        return int(text)
    return number


def depth(text):
    """Convert the argument that says how far to read ahead."""
    if text == '-1':
        return -1
    try:
        return at_least(1)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError('{}, or -1'.format(error))


def seconds(text):
    """Convert a number of seconds to wait."""
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(
            "'{}' is no positive number of seconds".format(text))
    return value


def address_of_server(text):
    """Check where a client connects to."""
    return _checked(text, False)


def address_to_bind(text):
    """Check where a server listens."""
    return _checked(text, True)


def _checked(text, wildcard):
    try:
        check_address('it', text, wildcard)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error))
    return text

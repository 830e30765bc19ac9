"""What the user names on the command line: ``module:name``."""
from __future__ import absolute_import, division, print_function

import importlib
import os
import sys

from fuel_prefetch.arguments import is_stream


class Mistake(Exception):
    """Something that the user got wrong, in a sentence."""


def find(path, kind='stream'):
    """Return what a module has under a name.

    The present folder is searched for the module, too.

    Parameters
    ----------
    path : str
        ``module:name``, where the name may have dots.
    kind : str, optional
        What it is to be, for the message. Defaults to 'stream'.

    Raises
    ------
    Mistake
        If there is no such thing.

    """
    module, _, name = path.partition(':')
    if not (module and name):
        raise Mistake('the {0} must be MODULE:{1}, got {2!r}'.format(
            kind, kind.upper(), path))
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever the module does
        raise Mistake('{!r} cannot be imported: {}'.format(
            module, one_line(error)))
    for part in name.split('.'):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Mistake('{!r} has no {!r}'.format(module, name))
    return found


def make_stream(path):
    """Return the stream that is meant by ``module:name``.

    Parameters
    ----------
    path : str
        As in :func:`find`: a stream, or a function that returns one.

    Returns
    -------
    stream : :class:`~fuel.streams.AbstractDataStream`
        The stream.
    again : callable
        Returns it for another time: the same one, or another one that the
        function returns.

    Raises
    ------
    Mistake
        If there is no such stream.
    Exception
        What the function raises.

    """
    found = find(path)
    if is_stream(found):
        return found, lambda: found
    if not callable(found):
        raise Mistake('{} is neither a stream nor a function that returns '
                      'one'.format(path))
    stream = found()
    if not is_stream(stream):
        raise Mistake('{} returned a {}, not a stream'.format(
            path, type(stream).__name__))
    return stream, found


def one_line(error):
    """Return an error's type and message in one line."""
    text = ' '.join(str(error).split())
    return type(error).__name__ + (': ' + text if text else '')

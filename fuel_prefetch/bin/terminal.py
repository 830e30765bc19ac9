"""What commands write while they are at work, and how they are interrupted."""
from __future__ import absolute_import, division, print_function

import contextlib
import os
import sys
import threading

from progressbar import (
    ETA, Bar, Counter, Percentage, ProgressBar, Timer, UnknownLength)


def say(text):
    """Print at once, also to a file or a pipe."""
    print(text)
    sys.stdout.flush()


def fail(command, message, code=1):
    """Report what is wrong in one line; return the exit code for it."""
    print('fuel-prefetch {}: error: {}'.format(command, in_words(message)),
          file=sys.stderr)
    return code


def in_words(error):
    """Return an error's message, without the number of the system's."""
    if isinstance(error, EnvironmentError) and error.strerror:
        return error.strerror + (
            ': ' + str(error.filename) if error.filename else '')
    return str(error)


def interrupt(number, frame):
    """Raise `KeyboardInterrupt`, as Ctrl-C does, where it isn't lost.

    Python only reports what is raised in the callback of a weak reference,
    and goes on; h5py has such a callback called for each of its objects.

    """
    if frame.f_globals.get('__name__') == 'weakref':
        threading.Timer(.01, os.kill, (os.getpid(), number)).start()
    else:
        raise KeyboardInterrupt


@contextlib.contextmanager
def progress(count):
    """Show a progress bar if there is a terminal to show it on.

    Parameters
    ----------
    count : int or None
        How many there are to be done, if that is known.

    Yields
    ------
    callable
        To be called with the number of those that are done.

    """
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    widgets = ([Percentage(), ' ', Bar(), ' ', ETA()] if count else
               [Counter(), ' ', Timer()])
    bar = ProgressBar(widgets=widgets, max_value=count or UnknownLength,
                      fd=sys.stderr).start()
    try:
        # There may be more than were expected.
        yield lambda done: bar.update(min(done, count) if count else done)
    finally:
        # The bar of a run that was interrupted stays where it was.
        bar.finish(dirty=True)

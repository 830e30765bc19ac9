"""What a thread of ours takes over from the thread that started it."""
from __future__ import absolute_import, division, print_function

import decimal

import numpy
try:
    import contextvars
except ImportError:  # before 3.7
    contextvars = None


def inherit(function):
    """Bind `function` to the settings in force where this is called.

    Settings kept per thread or per context would otherwise be at their
    defaults on a thread of ours, and an error that the caller switched on
    (``numpy.seterr(all='raise')``, say) would not be raised there.

    Parameters
    ----------
    function : callable
        Called later, in another thread.

    Returns
    -------
    bound : callable
        Calls `function` with a copy of the present context variables, of
        decimal's context and of NumPy's handling of floating-point errors.
        What the caller changes afterwards doesn't reach it.

    """
    # Decimal's context is a context variable from 3.7, NumPy's from 2.1.
    # Where they are, setting them again changes nothing.
    number_context = decimal.getcontext().copy()
    errors, errcall = numpy.geterr(), numpy.geterrcall()

    def run(*args):
        decimal.setcontext(number_context)
        numpy.seterr(**errors)
        numpy.seterrcall(errcall)
        return function(*args)

    if contextvars is None:
        return run
    context = contextvars.copy_context()
    return lambda *args: context.run(run, *args)

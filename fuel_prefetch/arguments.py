"""What arguments are checked for, and the words for what they must be."""
from __future__ import absolute_import, division, print_function

import inspect
import numbers

import numpy
import six


def check(name, value, expectation, holds):
    """Raise ValueError with name and value of an argument unless it holds."""
    if not holds:
        raise ValueError('{} must {}, got {!r}'.format(
            name, expectation, value))


def is_count(value):
    """Whether it is a positive integer, of Python's or of NumPy's."""
    return is_integer(value) and value >= 1


def bound_of(name, value):
    """Return a bound as a count, or ``None`` where it is -1 or ``None``."""
    if value is None or is_integer(value) and value == -1:
        return None
    check(name, value, 'be a positive integer, None or -1', is_count(value))
    return int(value)


def check_flag(name, value):
    """Raise ValueError unless it is ``True`` or ``False``."""
    check(name, value, 'be True or False',
          isinstance(value, (bool, numpy.bool_)))


def check_seconds(name, value, optional=True):
    """Raise ValueError unless it is a time to wait, above 0."""
    check(name, value, 'be a positive number of seconds' +
          ' or None' * optional,
          optional and value is None or is_seconds(value) and value > 0)


def check_patience(value):
    """Raise ValueError unless it is the `timeout` of a call that ends."""
    check('timeout', value, 'be a number of seconds from 0 on or None',
          value is None or is_seconds(value))


def is_seconds(value):
    """Whether it is a number of seconds that a thread can wait for."""
    return (isinstance(value, numbers.Real) and
            not isinstance(value, (bool, numpy.bool_)) and
            (0 <= value < 1e9 or value == float('inf')))


def is_stream(value):
    """Whether it is a stream, Fuel's or like one."""
    return not inspect.isclass(value) and callable(
        getattr(value, 'get_epoch_iterator', None))


def is_path(value):
    """Whether it names a file; a number would be taken for an open one."""
    return isinstance(value, six.string_types) or hasattr(value, '__fspath__')


def is_integer(value):
    """Whether it is an integer, of Python's or of NumPy's, and no bool."""
    return (isinstance(value, numbers.Integral) and
            not isinstance(value, (bool, numpy.bool_)))

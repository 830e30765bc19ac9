"""What arguments are checked for, and the words for what they must be."""
from __future__ import absolute_import, division, print_function

import numbers

import numpy


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


def is_integer(value):
    """Whether it is an integer, of Python's or of NumPy's, and no bool."""
    return (isinstance(value, numbers.Integral) and
            not isinstance(value, (bool, numpy.bool_)))

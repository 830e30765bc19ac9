"""Functions to be called in other processes, which have to import them."""
from __future__ import absolute_import, division, print_function

import os
import time


def where(number):
    """Return which process it was called in."""
    time.sleep(.01)
    return number, os.getpid()


def shift(data, rng):
    return data[0] + rng.randint(100),


def fail_at_three(number):
    if number == 3:
        raise KeyError('three')
    return number


def slow(number):
    time.sleep(1)
    return number

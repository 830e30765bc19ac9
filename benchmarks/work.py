"""Work for a mapping, and what it would be given to without this library."""
from __future__ import absolute_import, division, print_function

import time
from collections import deque

from concurrent.futures import ThreadPoolExecutor

from benchmarks.streams import compress


def calibrated_zlib(seconds):
    """Return a function that compresses for so long, whatever it is given."""
    work = compress(seconds)
    return lambda item: work()


def nap(item):
    time.sleep(.02)


def uneven(item):
    time.sleep(.04 if item % 10 == 0 else .004)


def count_up(item):
    """Do what needs the interpreter's lock."""
    total = 0
    for number in range(200000):
        total += number
    return total


def bounded_window(function, items, workers):
    """Map in the usual few lines: twice as many calls as threads."""
    with ThreadPoolExecutor(workers) as executor:
        window = deque()
        for item in items:
            if len(window) == 2 * workers:
                yield window.popleft().result()
            window.append(executor.submit(function, item))
        while window:
            yield window.popleft().result()

"""The arrays of a batch: their size, their memory, and copies of them."""
from __future__ import absolute_import, division, print_function

import sys
import weakref
from copy import copy

import numpy
from numpy import ndarray


def nbytes(value):
    """Return the size of a batch in bytes.

    Arrays count with their data, object arrays and the usual containers
    also with what they contain, and anything else with what
    :func:`sys.getsizeof` says of it.

    """
    if isinstance(value, ndarray):
        size = value.nbytes
        if value.dtype.hasobject and value.dtype == object:
            size += sum(nbytes(element) for element in value.flat)
        return size
    if isinstance(value, (tuple, list)):
        return sum(nbytes(element) for element in value)
    if isinstance(value, dict):
        return sum(nbytes(element) for element in value.values())
    try:
        return sys.getsizeof(value)
    except Exception:  # it is asked of objects that we know nothing about
        return 0


def copy_arrays(value):
    """Return `value` with each array in it replaced by a copy.

    Arrays keep type, dtype, shape and memory order. Tuples (named ones
    too), lists and dictionaries are rebuilt as what they are; anything else,
    tuples of other classes included, is handed on as it is.

    """
    if isinstance(value, ndarray):
        result = value.copy(order='K')
        if value.dtype == object:
            for index in numpy.ndindex(result.shape):
                result[index] = copy_arrays(result[index])
        return result
    kind = type(value)
    if isinstance(value, (tuple, list)):
        elements = [copy_arrays(element) for element in value]
        if hasattr(kind, '_make'):
            return kind._make(elements)
        if kind is tuple:
            return tuple(elements)
        if isinstance(value, list):
            result = copy(value)  # a subclass keeps what else it has
            result[:] = elements
            return result
        return value
    if isinstance(value, dict):
        result = value.copy()
        for key in value:
            result[key] = copy_arrays(value[key])
        return result
    return value


class Inspection(object):
    """What is done to each batch between its source and the store.

    It is counted, copied if that is asked for, and its memory looked up
    among that of the batches still held: a stream that fills the same
    memory again and again overwrites what was read ahead of it. That costs
    one look-up in a dictionary for each array that is a source.

    Parameters
    ----------
    counters : :class:`.Counters`
        Where to count.
    copy : bool, optional
        Whether to copy the arrays. Then no look-up is needed. Defaults to
        ``False``.
    count_all : bool, optional
        Whether to count the bytes of all that a batch contains, rather than
        of the arrays that are sources, which is faster. Defaults to
        ``False``.
    describe : callable or None, optional
        Returns the warning's text, given the number of the source. ``None``
        for batches that need no look-up.

    """
    # From here on, the places of batches long gone are swept out.
    most_places = 1000

    def __init__(self, counters, copy=False, count_all=False, describe=str):
        self.counters = counters
        self.copy = copy
        self.count_all = count_all
        self.describe = describe
        self._closer = copy or count_all
        self._warned = copy or describe is None
        self.restart()

    def restart(self):
        """Forget the memory of the batches so far."""
        self._places = {}  # place -> number of the last batch that lay there
        self._previous = ()  # references to the arrays of the last batch

    def __call__(self, batch, waiting):
        """Return the entry of a batch for :meth:`.Channel.put`.

        Parameters
        ----------
        batch : object
            The batch.
        waiting : sized
            The batches that wait for the reader, who may have the one
            before them in hand.

        Returns
        -------
        notice : str or None
            A warning, the first time that a source comes in writable memory
            in which such an earlier batch lies.
        batch : object
            The batch, or its copy.
        nbytes : int
            Its size.

        """
        counters = self.counters
        counters.batches_produced = number = counters.batches_produced + 1
        size = 0
        notice = None
        parts = batch
        if isinstance(batch, ndarray):
            parts = batch,  # a generator's item may well be one array
        if isinstance(parts, (tuple, list)):
            places = self._places
            held = len(waiting)
            oldest = number - (held or 1)
            for value in parts:
                if isinstance(value, ndarray):
                    size += value.nbytes
                    if self._warned:
                        continue
                    # Parts of one big array are common, so a part is known
                    # by its address, a whole array by its id.
                    place = (id(value) if value.base is None else
                             value.__array_interface__['data'][0])
                    if place in places and places[place] >= oldest:
                        notice = notice or self._suspect(parts, value, held)
                    places[place] = number
            if not self._warned and (
                    not held or len(places) > self.most_places):
                self._tidy(parts, oldest)
        if self._closer:
            if self.copy:
                batch = copy_arrays(batch)
            if self.count_all:
                size = nbytes(batch)
        counters.bytes_produced += size
        return notice, batch, size

    def _tidy(self, batch, oldest):
        # The reader may soon have this batch, and let go of it; then other
        # arrays take its memory, rightly. References tell those apart.
        self._previous = [
            weakref.ref(_owner(value)) for value in batch
            if isinstance(value, ndarray) and
            isinstance(_owner(value), ndarray)]
        if len(self._places) > self.most_places:
            self._places = {
                place: number for place, number in self._places.items()
                if number >= oldest}

    def _suspect(self, batch, value, held):
        # What waits in the store is alive, so its memory is its own.
        alive = held or any(reference() is _owner(value)
                            for reference in self._previous)
        if not alive or (
                not value.flags.writeable or not value.size):
            return None
        self._warned = True  # once is enough
        return self.describe([other is value for other in batch].index(True))


def _owner(array):
    return array if array.base is None else array.base

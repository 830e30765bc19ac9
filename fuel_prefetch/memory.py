"""Memory that one process fills with batches and another one reads.

The writer has an :class:`Arena`, of segments in which it looks for a free
region for each batch. The reader has :class:`Views` of the same segments. A
segment is a file without a name, whose descriptor is passed on once: nothing
is left behind, whichever way the processes end.

"""
from __future__ import absolute_import, division, print_function

import ctypes
import errno
import mmap
import os
import tempfile
import weakref
from collections import deque
from functools import partial

import numpy

# Regions begin at multiples of it, the longest that a processor asks for.
ALIGNMENT = 64

# Stands for the offset where a reader can't have a segment.
REFUSED = 2 ** 64 - 1

# Bytes up to which a new segment doubles what there is. Larger ones would
# only reserve what nobody may need.
LARGEST_STEP = 2 ** 26


def align(nbytes):
    """Return the next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _memory_file():
    if hasattr(os, 'memfd_create'):
        return os.memfd_create('fuel_prefetch')
    try:
        create = ctypes.CDLL(None, use_errno=True).memfd_create
    except (AttributeError, OSError):  # not Linux, or an old C library
        raise OSError(errno.ENOSYS, 'there is no memfd_create')
    descriptor = create(b'fuel_prefetch', 1)  # which is close-on-exec
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), 'memfd_create failed')
    return descriptor


def _temporary_file(directory):
    descriptor, path = tempfile.mkstemp(prefix='fuel_prefetch-', dir=directory)
    os.unlink(path)
    return descriptor


def _find_fallocate():
    """Return what reserves room for a file, ``None`` if nothing does."""
    if hasattr(os, 'posix_fallocate'):
        return os.posix_fallocate
    try:
        fallocate = ctypes.CDLL(None).posix_fallocate
    except (AttributeError, OSError, TypeError):  # macOS, or Windows
        return None

    def reserve(descriptor, offset, nbytes):
        code = fallocate(
            descriptor, ctypes.c_int64(offset), ctypes.c_int64(nbytes))
        if code:
            raise OSError(code, os.strerror(code))
    return reserve


_fallocate = _find_fallocate()


def _reserve(descriptor, nbytes):
    """Give a file its size, and make sure that there is room for it.

    Without that, the first write to a page that isn't to be had ends the
    process by a signal.

    """
    if _fallocate is not None:
        _fallocate(descriptor, 0, nbytes)
        return
    zeros = bytes(bytearray(2 ** 20))
    while nbytes:
        nbytes -= os.write(descriptor, zeros[:nbytes])


# Where segments may lie, best first: memory that no limit of a container's
# /dev/shm holds for, then that, then files on disk, which are kept in memory
# as long as there is enough of it.
PLACES = [_memory_file, partial(_temporary_file, '/dev/shm'),
          partial(_temporary_file, None)]


def open_segment(nbytes):
    """Return the descriptor of a file without a name that has `nbytes`.

    Raises
    ------
    MemoryError
        If there is no room for it anywhere.

    """
    reasons = []
    for place in PLACES:
        try:
            descriptor = place()
        except EnvironmentError as error:
            reasons.append(str(error))
            continue
        try:
            _reserve(descriptor, nbytes)
            return descriptor
        except EnvironmentError as error:
            reasons.append(str(error))
        os.close(descriptor)
    raise MemoryError('no {} bytes of memory to share are to be had: {}'
                      .format(nbytes, '; '.join(reasons)))


def map_segment(descriptor, nbytes):
    """Return a file's bytes as a writable buffer; the file is closed."""
    try:
        return mmap.mmap(descriptor, nbytes)
    finally:
        os.close(descriptor)


class Arena(object):
    """The writer's side: segments, and what is free in each.

    It never waits for a region: if none is large enough, it takes another
    segment. So there is no more of it than the batches that are held by
    somebody, and the next, need; twice that at most where they are small.

    """
    # Holes are lists of [offset, end], in order, no two of which touch.
    # Numbers count up and are never used again.
    def __init__(self):
        self._segments = {}  # number -> buffer
        self._holes = {}  # number -> holes
        self._sizes = {}  # (number, offset) -> size of a region in use
        self._dropped = []  # segments that the reader wasn't told of yet
        self._count = 0

    @property
    def nbytes(self):
        """Size of all segments."""
        return sum(len(segment) for segment in self._segments.values())

    def allocate(self, nbytes, announce):
        """Return number, offset and the array of a free region.

        Parameters
        ----------
        nbytes : int
            Its size.
        announce : callable
            Called with the number, descriptor and size of a new segment, if
            one is needed, and the numbers of those that are given up for it.

        """
        size = align(max(nbytes, 1))
        found = self._find(size)
        if found is None:
            self._grow(size, announce)
            found = self._find(size)
        number, offset = found
        self._sizes[found] = size
        return number, offset, numpy.ndarray(
            nbytes, numpy.uint8, self._segments[number], offset)

    def _find(self, size):
        for number, holes in self._holes.items():
            for index, hole in enumerate(holes):
                offset, end = hole
                if end - offset >= size:
                    if end - offset == size:
                        del holes[index]
                    else:
                        hole[0] = offset + size
                    return number, offset
        return None

    def _grow(self, size, announce):
        # One that nobody uses was too small for this batch, so it will be
        # for the next ones.
        unused = [number for number, segment in self._segments.items()
                  if self._holes[number] == [[0, len(segment)]]]
        for number in unused:
            del self._segments[number], self._holes[number]
        self._dropped += unused
        nbytes = max(size, min(max(2 * size, self.nbytes), LARGEST_STEP))
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        descriptor = open_segment(nbytes)
        number = self._count
        try:
            announce(number, descriptor, nbytes, self._dropped)
        except BaseException:
            os.close(descriptor)
            raise
        self._dropped = []
        self._count += 1
        self._segments[number] = map_segment(descriptor, nbytes)
        self._holes[number] = [[0, nbytes]]

    def free(self, number, offset):
        """Take back a region that the reader has no use for any more.

        With :data:`REFUSED` for an offset the whole segment is given up.

        """
        if offset == REFUSED:
            self._segments.pop(number, None)
            self._holes.pop(number, None)
            return
        end = offset + self._sizes.pop((number, offset))
        holes = self._holes.get(number)
        if holes is None:  # the segment was given up
            return
        index = 0
        while index < len(holes) and holes[index][0] < offset:
            index += 1
        if index < len(holes) and holes[index][0] == end:
            end = holes.pop(index)[1]
        if index and holes[index - 1][1] == offset:
            holes[index - 1][1] = end
        else:
            holes.insert(index, [offset, end])


class Views(object):
    """The reader's side: arrays in those segments, for as long as they live.

    Attributes
    ----------
    freed : deque
        Number and offset of each region whose arrays are all gone, to be
        told to the writer.

    """
    def __init__(self):
        self._segments = {}
        self._refused = {}  # number -> why it couldn't be mapped
        self._alive = {}  # (number, offset) -> weak reference
        self.freed = deque()

    def attach(self, number, descriptor, nbytes):
        """Map a segment that the writer announced."""
        self._segments[number] = map_segment(descriptor, nbytes)

    def refuse(self, number, reason):
        """Have the writer give up a segment that can't be had."""
        self._refused[number] = reason
        self.freed.append((number, REFUSED))

    def forget(self, numbers):
        """Forget segments that the writer has given up."""
        for number in numbers:
            self._segments.pop(number, None)
            self._refused.pop(number, None)

    def view(self, number, offset, nbytes, most):
        """Return a flat array that is the caller's own.

        It lies in the segment and has no copy, unless `most` such arrays
        are in use already. Then it is copied and its region freed, so that
        a reader who keeps all batches doesn't fill the shared memory.

        Raises
        ------
        MemoryError
            If the segment was refused.

        """
        if number in self._refused:
            self.freed.append((number, offset))
            raise MemoryError('the memory that a batch lies in is not to be '
                              'had: {}'.format(self._refused[number]))
        # No slice of an array: of each view NumPy keeps the first array that
        # it was made from alive, so that has to be this one.
        region = numpy.ndarray(
            nbytes, numpy.uint8, self._segments[number], offset)
        key = number, offset
        if len(self._alive) >= most:
            self.freed.append(key)
            return region.copy()
        # The callback may come in any thread and at any moment: it does
        # nothing that isn't atomic.
        self._alive[key] = weakref.ref(
            region, partial(_give_back, self._alive, self.freed, key))
        return region


def _give_back(alive, freed, key, _):
    del alive[key]
    freed.append(key)

"""A batch as a header and buffers, and back: arrays go without pickle.

The header says what the batch is made of, in JSON; the buffers are the data of
its arrays, one after the other as they are met in the header. Written for
whoever reads it in another language:

A header is ``[1, node]``, where 1 is the version. A node is one of

- ``null``, ``true``, ``false``, a string, an integer of up to 53 bits, or a
  number with a fraction or an exponent: the value itself;
- ``["int", hexadecimal]`` any other integer (``"long"`` on Python 2),
  ``["float", "nan"]`` (or ``"inf"``, ``"-inf"``),
  ``["complex", node, node]``, and ``["text", [code points]]`` for text with
  surrogates in it;
- ``["bytes", string]``, whose characters stand for the bytes, or ``["bytes"]``
  where they are the next buffer;
- ``["scalar", dtype, string]`` or ``["scalar", dtype]``: an array's element by
  itself, as bytes; a dtype ``"U"`` or ``"S"`` without a length: text or
  bytes of NumPy's, whose characters stand there;
- ``["tuple", node, ...]`` and ``["list", node, ...]``;
- ``["dict", key, node, key, node, ...]`` and ``["ordered", ...]``, which is
  the same, where the order counts;
- ``["array", dtype, shape]``: an array in C order, its data the next buffer;
  ``["array", dtype, shape, axes]``: the same, transposed by `axes`
  (``[1, 0]`` for a matrix in Fortran order);
- ``["objects", shape, axes or null, node, ...]``: an array of objects;
- ``["masked", array, mask or null, fill value or null, hard]``: a masked
  array, all its parts being arrays, but for `hard`, which is a boolean;
- ``["pickled"]``: any other object, its pickle the next buffer;
  ``["named", node, ...]``: a named tuple, its class pickled likewise. Neither
  is found where pickling is off;
- ``["same", n]``: an object that came before, ``tuple`` to ``named`` in this
  list being numbered from 0 as they begin (not the parts of ``masked``).

A dtype is NumPy's string for it, such as ``"<f4"`` or ``">M8[us]"``;
``["struct", size, aligned, [[name, title or null, offset, dtype], ...]]``;
or, in such a list only, ``["sub", dtype, shape]``. It says what the bytes
are, byte order included. From Python 2, ``unicode`` comes as a string and
``str`` as bytes.

"""
from __future__ import absolute_import, division, print_function

import six
from numpy import ndarray
from six.moves import zip

from fuel_prefetch.decoding import Decoder, flat
from fuel_prefetch.encoding import Encoder, Trouble, describe, one_line

MOST_CACHED = 256  # of the structures remembered in each direction

# Most streams give tuples of arrays, alike from batch to batch: what is known
# of such a batch by its types and shapes, and of its header. Each look-up and
# each change is a single operation, so that threads need no lock.
_headers = {}  # (container, dtype, shape, dtype, shape...) -> header
_plans = {}  # header -> (container, [(shape, dtype, nbytes), ...])


def _remember(cache, key, value):
    if len(cache) >= MOST_CACHED:
        cache.clear()
    cache[key] = value


def encode(batch, pickling=True):
    """Return a batch as a header and buffers.

    Parameters
    ----------
    batch : object
        The batch. It isn't changed.
    pickling : bool, optional
        Whether to pickle what is neither an array, nor one of the usual
        containers, nor a scalar. Defaults to ``True``.

    Returns
    -------
    header : bytes
        What the batch is made of.
    buffers : list of :class:`numpy.ndarray`
        Its data, which is the elements of each in C order. They are views of
        the batch's own arrays, and as those may be strided: see :func:`flat`
        and :func:`copy_into`.

    Raises
    ------
    TypeError
        If `pickling` is off and something would have to be pickled.

    """
    key = _key(batch)
    header = _headers.get(key)
    if header is not None:
        return header, list(batch)
    encoder = Encoder(pickling)
    try:
        node = encoder.node(batch, 0)
    except Trouble as trouble:
        if not (pickling and trouble.cyclic):
            trouble.reraise()
        # Only pickle can tie such a knot again.
        encoder = Encoder(pickling)
        try:
            node = encoder.pickled(batch)
        except Trouble as trouble:
            trouble.reraise()
    header = encoder.header(node)
    if key is not None and all(
            isinstance(describe(array.dtype), str) for array in batch):
        _remember(_headers, key, header)
    return header, encoder.buffers


def decode(header, buffers, pickling=True):
    """Return the batch that a header and buffers stand for.

    Parameters
    ----------
    header : bytes
        The header from :func:`encode`.
    buffers : sequence
        For each of its buffers a contiguous flat array of `uint8` with the
        same bytes, or another object with the buffer interface.
    pickling : bool, optional
        Whether to load pickles. If not, header and buffers may come from
        anyone: whatever they are, nothing of them is executed, no more memory
        is taken than is proportional to their size, and whatever is wrong
        with them raises :class:`ValueError`. Defaults to ``True``.

    Returns
    -------
    batch : object
        The batch. Its arrays are views of the buffers, which they keep alive.
        They are writable and aligned if the buffers are; so in a `bytes`
        object they are read-only.

    """
    plan = _plans.get(header)
    if plan is not None and len(plan[1]) == len(buffers):
        arrays = []
        for (shape, dtype, nbytes), buffer in zip(plan[1], buffers):
            if type(buffer) is not ndarray:
                buffer = flat(buffer)
            if buffer.nbytes != nbytes:
                raise ValueError('a buffer of {} bytes in place of {}'.format(
                    buffer.nbytes, nbytes))
            arrays.append(ndarray(shape, dtype, buffer))
        return arrays if plan[0] is list else tuple(arrays)
    decoder = Decoder(buffers, pickling)
    try:
        node = decoder.parse(header)
        batch = decoder.node(node, 0)
        decoder.finish()
    except Exception as error:
        if pickling:  # of one's own process; it may be what a pickle raised
            raise
        six.raise_from(ValueError('malformed batch: {}'.format(
            one_line(error)[:500])), None)
    # Several arrays in C order, and nothing else.
    if type(batch) in (tuple, list) and len(header) <= 4096 and (
            node[0] in ('tuple', 'list')) and all(
                type(part) is list and part[0] == 'array' and len(part) == 3
                for part in node[1:]):
        _remember(_plans, header, (type(batch), [
            (array.shape, array.dtype, array.nbytes) for array in batch]))
    return batch


def copy_into(buffer, memory):
    """Copy the bytes of a buffer to `memory`, once even if it is strided.

    Parameters
    ----------
    buffer : :class:`numpy.ndarray`
        One of the buffers from :func:`encode`.
    memory : :class:`numpy.ndarray`
        A contiguous flat array of `uint8` of its size.

    """
    if memory.nbytes != buffer.nbytes:
        raise ValueError('{} bytes do not fit {}'.format(
            buffer.nbytes, memory.nbytes))
    if buffer.nbytes:
        ndarray(buffer.shape, buffer.dtype, memory)[...] = buffer


def _key(batch):
    # Small tuples and lists of different arrays in C order have a key, by
    # which the header is found again. Equal dtypes may be different ones, but
    # not if NumPy has a string for them, and only then they are remembered.
    kind = type(batch)
    if (kind is tuple or kind is list) and len(batch) <= 16:
        key = [kind]
        for array in batch:
            if type(array) is not ndarray or not array.flags.c_contiguous:
                return None
            key.append(array.dtype)
            key.append(array.shape)
        if len(batch) < 2 or len(set(map(id, batch))) == len(batch):
            return tuple(key)

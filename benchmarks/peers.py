"""Other ways to read a stream in a process, in one form.

Each is a generator function that takes a stream without an end, the most
batches to hold ready, and the bytes of a batch. Closing the generator ends the
process. What isn't installed isn't among them.

"""
from __future__ import absolute_import, division, print_function

from fuel.transformers import MultiProcessing

from fuel_prefetch import BackgroundDataStream


def ours(backend):
    """Return the generator function for a backend of ours."""
    def batches(stream, depth, nbytes=None):
        with BackgroundDataStream(
                stream, max_store=depth, backend=backend) as wrapped:
            iterator = wrapped.get_epoch_iterator()
            while True:
                yield next(iterator)
    return batches


def fuels(stream, depth, nbytes=None):
    """Read through Fuel's transformer."""
    wrapped = MultiProcessing(stream, max_store=depth)
    try:
        while True:
            yield wrapped.get_data()
    finally:
        wrapped.proc.terminate()
        wrapped.proc.join()


def installed():
    """Return a list of names and generator functions, besides Fuel's."""
    found = []
    for name, make in [("PyTorch's DataLoader", _torchs),
                       ("SPDL's arena", _spdls)]:
        try:
            found.append((name, make()))
        except ImportError:
            pass
    return found


def generators():
    """Return names and functions that read in a thread, of those installed.

    Each takes a stream and the most batches to hold ready.

    """
    try:
        from prefetch_generator import BackgroundGenerator
    except ImportError:
        return []
    return [('prefetch_generator', lambda stream, depth: BackgroundGenerator(
        stream.get_epoch_iterator(), depth))]


def _torchs():
    from torch.utils.data import DataLoader, IterableDataset

    class Batches(IterableDataset):
        def __init__(self, stream):
            self.stream = stream

        def __iter__(self):
            for batch, in self.stream.get_epoch_iterator():
                yield batch

    def batches(stream, depth, nbytes):
        iterator = iter(DataLoader(
            Batches(stream), batch_size=None, num_workers=1,
            prefetch_factor=depth, multiprocessing_context='fork'))
        while True:
            yield (next(iterator).numpy(),)
    return batches


def _spdls():
    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    def batches(stream, depth, nbytes):
        # As many as are held ready, and those in the hands of either side.
        arena = SharedMemorySegmentPool(nbytes, depth + 3)
        iterator = iter(iterate_in_subprocess(
            stream.get_epoch_iterator, buffer_size=depth, mp_context='fork',
            arena=arena))
        while True:
            yield next(iterator)
    return batches

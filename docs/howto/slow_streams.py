"""Three streams that a training waits for, and the same ones cured.

The example of docs/howto/profile.rst. ``python slow_streams.py`` trains on
each as it is, read ahead, and cured, and prints the times.

"""
import time

import fuel_prefetch  # noqa: F401  (before anything of Fuel's)
import numpy
from concurrent.futures import ProcessPoolExecutor
from fuel.datasets import IndexableDataset
from fuel.schemes import SequentialScheme
from fuel.streams import DataStream
from fuel.transformers import Mapping

from fuel_prefetch import BackgroundDataStream, ParallelMapping

BATCHES = 120
STEP = .02  # seconds

# An image as pairs of bytes: how often which grey value comes.
ENCODED = bytearray([3, 0, 2, 255, 5, 7, 6, 128] * 220)


def examples():
    return DataStream(
        IndexableDataset(numpy.arange(32 * BATCHES)),
        iteration_scheme=SequentialScheme(32 * BATCHES, 32))


# 1. Decoding takes longer than the training.

def decode(batch):
    """Decode images, byte by byte."""
    images = []
    for index in batch[0]:
        image = []
        for i in range(0, len(ENCODED), 2):
            for _ in range(ENCODED[i]):
                image.append((ENCODED[i + 1] + index) % 256)
        images.append(image)
    return (numpy.array(images, dtype='uint8'),)


def slow_decode():
    return Mapping(examples(), decode)


def cured_decode():
    return BackgroundDataStream(ParallelMapping(
        examples(), decode, workers=2, executor=ProcessPoolExecutor(2)))


# 2. The disk is fast enough, but now and then it takes its time.

def load(batch):
    """Load images; with each 30th batch a new file has to be fetched."""
    number = batch[0][0] // 32
    time.sleep(.4 if number % 30 == 25 else .003)
    return (numpy.full((32, 640), number % 256, dtype='uint8'),)


def slow_disk():
    return Mapping(examples(), load)


def cured_disk():
    return BackgroundDataStream(slow_disk(), max_store=32)


# 3. The training itself takes the time.

def scale(batch):
    """Do a little, with NumPy."""
    images = numpy.outer(batch[0], numpy.arange(10000.)) % 256
    return (numpy.sqrt(images).astype('float32'),)


def slow_step():
    return Mapping(examples(), scale)


def cured_step():
    return BackgroundDataStream(slow_step())


def seconds(stream):
    """Train for an epoch; return how long it took."""
    start = time.time()
    for _ in stream.get_epoch_iterator():
        time.sleep(STEP)
    return time.time() - start


if __name__ == '__main__':
    for slow, cured in [(slow_decode, cured_decode), (slow_disk, cured_disk),
                        (slow_step, cured_step)]:
        bare = seconds(slow())
        with BackgroundDataStream(slow()) as stream:
            ahead = seconds(stream)
        with cured() as stream:
            # The first epoch starts processes.
            seconds(stream)
            best = seconds(stream)
        print('{:<12} {:5.2f} s, read ahead {:5.2f} s, cured {:5.2f} s: '
              '{:.2f} times as fast'.format(
                  slow.__name__, bare, ahead, best, bare / best))

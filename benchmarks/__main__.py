"""Prints the table of docs/benchmarks.rst; ``make bench`` runs it.

``python -m benchmarks`` is ``fuel-prefetch bench`` and has its options.

Every ratio compares what was measured side by side, in turns, in this one
run; the median over the rounds is printed. An absolute time says little: it
depends on the machine and on what else that does.

"""
from __future__ import absolute_import, division, print_function

import multiprocessing
import shutil
import sys
import tempfile
from functools import partial

import fuel_prefetch  # noqa: F401  (before anything of Fuel's)
import numpy
import zmq
from concurrent.futures import ProcessPoolExecutor

from fuel_prefetch import RemoteDataStream, parallel_map
from fuel_prefetch.bin.main import main
from benchmarks import peers
from benchmarks.measure import (
    ahead, in_turns, read, report, settled, side_by_side)
from benchmarks.processes import (
    process_bandwidth, process_loops, process_resident, process_starts,
    process_tiny)
from benchmarks.serving import Process, Reader, together
from benchmarks.streams import (
    CountedStream, compress, numpy_step, queue_thread, sleep, timed)
from benchmarks.work import (
    bounded_window, calibrated_zlib, count_up, nap, uneven)


def hand_over():
    """What handing over a tiny batch costs, beside a bare queue.Queue."""
    count = 20000
    for depth in (1, 10, 100):
        stream = CountedStream(count)
        generators = peers.generators()
        times = side_by_side(*[
            lambda: read(stream.get_epoch_iterator()),
            lambda: read(queue_thread(stream, depth)),
            lambda: ahead(stream, max_store=depth)] + [
            partial(lambda wrap: read(wrap(stream, depth)), wrap)
            for _, wrap in generators])
        bare, queued, ours = times[:3]
        name = 'hand-over at depth {}: '.format(depth)
        report(name + 'queue.Queue', (queued - bare) / count * 1e6, 'us')
        report(name + 'ours', (ours - bare) / count * 1e6, 'us')
        report(name + 'ours / queue.Queue',
               (ours - bare) / (queued - bare), '')
        for (peer, _), theirs in zip(generators, times[3:]):
            report(name + peer, (theirs - bare) / count * 1e6, 'us')


def size():
    """Whether anything is paid for each byte."""
    count = 2000
    small, large = CountedStream(count), CountedStream(count, nbytes=2 ** 20)
    times = side_by_side(lambda: ahead(small), lambda: ahead(large))
    report('1 MiB a batch / 24 bytes a batch', times[1] / times[0], '')


def overlap():
    """How much of the ideal overlap of two equal sides is reached."""
    count, seconds = 100, .005
    for name, work, step in [
            ('zlib beside a NumPy step', compress(seconds),
             numpy_step(seconds)),
            ('sleep beside sleep', sleep(seconds), sleep(seconds))]:
        stream = CountedStream(count, work)
        produce, train, ours, queued = side_by_side(
            lambda: read(stream.get_epoch_iterator()),
            lambda: read(range(count), step),
            lambda: ahead(stream, step=step),
            lambda: read(queue_thread(stream, 10), step))
        # The first batch can't be overlapped with anything.
        ideal = max(produce, train) + min(produce, train) / count
        report('5 ms of {}: ideal / ours'.format(name), ideal / ours, '')
        report('5 ms of {}: ideal / queue.Queue'.format(name),
               ideal / queued, '')


def epochs():
    """What an epoch's start costs, and what it stalls."""
    count = 200
    empty = CountedStream(0)
    bare, ours = side_by_side(
        lambda: [read(empty.get_epoch_iterator()) for _ in range(count)],
        lambda: ahead(empty, epochs=count))
    report('starting and ending an epoch', (ours - bare) / count * 1e3, 'ms')
    stream = CountedStream(5, sleep(.002))
    produce, train, resting, across = side_by_side(
        lambda: [read(stream.get_epoch_iterator()) for _ in range(20)],
        lambda: read(range(100), sleep(.002)),
        lambda: ahead(stream, 20, sleep(.002)),
        lambda: ahead(stream, 20, sleep(.002), across_epochs=True))
    ideal = max(produce, train) + min(produce, train) / 100
    report('5 batches of 2 ms an epoch: ideal / ours', ideal / resting, '')
    report('    with across_epochs: ideal / ours', ideal / across, '')


def mapping():
    """What several workers gain, of what their number and the cores allow."""
    cores = multiprocessing.cpu_count()
    compress_ = calibrated_zlib(.005)
    count = 200
    for workers in (2, 4):
        bare, ours, window = side_by_side(
            lambda: read(compress_(item) for item in range(count)),
            lambda: read(parallel_map(compress_, range(count), workers)),
            lambda: read(bounded_window(compress_, range(count), workers)))
        most = min(workers, cores)
        report('5 ms of zlib, {} workers: rate / ideal'.format(workers),
               bare / ours / most, '')
        report('    a window over ThreadPoolExecutor: rate / ideal',
               bare / window / most, '')
    for workers in (1, 2, 4):
        ours, = side_by_side(
            lambda: read(parallel_map(nap, range(50), workers)))
        report('20 ms of sleep, {} workers: rate / ideal'.format(workers),
               50 * .02 / ours / workers, '')
    # One item in ten takes ten times as long as the others.
    total = sum(.04 if number % 10 == 0 else .004 for number in range(200))
    ordered, unordered = side_by_side(
        lambda: read(parallel_map(uneven, range(200), 4)),
        lambda: read(parallel_map(uneven, range(200), 4, ordered=False)))
    report('uneven items, 4 workers: rate / ideal', total / ordered / 4, '')
    report('    ordered=False: rate / ideal', total / unordered / 4, '')
    with ProcessPoolExecutor(2) as executor:
        read(executor.map(count_up, range(4)))  # they start
        bare, ours, processes = side_by_side(
            lambda: read(count_up(item) for item in range(50)),
            lambda: read(parallel_map(count_up, range(50), 2)),
            lambda: read(parallel_map(count_up, range(50), 2,
                                      executor=executor)))
    report('pure Python, 2 threads: rate / bare', bare / ours, '')
    report('    2 processes: rate / bare', bare / processes, '')


def server():
    """A server in another process, beside bare pyzmq and Fuel's server."""
    folder = tempfile.mkdtemp()
    try:
        for nbytes, count in [(2 ** 10, 3000), (2 ** 20, 400), (2 ** 24, 40)]:
            for transport in ('tcp', 'ipc'):
                serve_and_read(transport, folder, nbytes, count)
    finally:
        shutil.rmtree(folder)


def serve_and_read(transport, folder, nbytes, count):
    addresses = {
        which: ('tcp://127.0.0.1:{}'.format(5800 + index)
                if transport == 'tcp' else
                'ipc://{}/{}-{}'.format(folder, which, nbytes))
        for index, which in enumerate(['ours', 'push', 'reply', 'fuels'])}
    warm = 30
    count += warm
    processes = [Process(which, address, nbytes, count)
                 for which, address in addresses.items()]
    clients = [Process('client', addresses['ours']) for _ in range(2)]
    pull, request, fuels = readers = [
        Reader(kind, addresses[which], count, nbytes)
        for which, kind in [('push', zmq.PULL), ('reply', zmq.DEALER),
                            ('fuels', zmq.PULL)]]
    # As deep as the requests, and as the queue of either end of PUSH/PULL.
    shallow, deep = streams = [
        RemoteDataStream(addresses['ours'], max_store=depth)
        for depth in (2, 10)]
    source, target = numpy.zeros((2, nbytes), 'uint8')
    for process in processes + clients:
        process.__enter__()
    try:
        together(clients)
        few, ours, pulled, requested, theirs, copied, one, two = in_turns(*[
            partial(settled, read, warm) for read in (
                shallow.get_epoch_iterator, deep.get_epoch_iterator,
                pull.pull, request.request, fuels.fuels)] + [
            partial(timed, call) for call in (
                lambda: [numpy.copyto(target, source)
                         for _ in range(count - warm)],
                lambda: together(clients[:1]), lambda: together(clients))])
        name = '{} bytes over {}: '.format(nbytes, transport)
        report(name + 'ours, 10 deep', nbytes * (count - warm) / ours / 1e6,
               'MB/s')
        report('    bare PUSH/PULL / ours, 10 deep', pulled / ours, '')
        report('    ours / bare requests, 3 deep', few / requested, '')
        report("    Fuel's server / ours, 10 deep", theirs / ours, '')
        report('    memcpy / ours, 10 deep', copied / ours, '')
        report('    two clients together / one', two / one, '')
    finally:
        for end in readers + streams:
            end.close()
        for process in processes + clients:
            process.__exit__()


PARTS = [hand_over, size, overlap, epochs, mapping, process_starts,
         process_tiny, process_loops, process_resident, process_bandwidth,
         server]


if __name__ == '__main__':
    sys.exit(main(['bench'] + sys.argv[1:]))

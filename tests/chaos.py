"""The processes of the chaos test: ``python -m tests.chaos ROLE ...``."""
from __future__ import absolute_import, division, print_function

import os
import sys
import time

from six.moves import range

from fuel_prefetch import PrefetchError, RemoteDataStream, serve
from tests import IteratorStream

BATCHES = 60  # in an epoch
AHEAD = 2


def serve_numbered(address):
    """Serve batches that tell their server, epoch and number."""
    epochs = []

    def begin():
        epochs.append(None)
        return iter([(os.getpid(), len(epochs), number)
                     for number in range(BATCHES)])
    serve(IteratorStream(begin), address, max_store=5, client_timeout=.5)


def train(address, path, seconds):
    """Write down each batch, each end and each error."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    stream = RemoteDataStream(address, max_store=AHEAD, timeout=5.)
    while True:
        try:
            last = None
            for last in stream.get_epoch_iterator():
                os.write(log, 'batch {} {} {}\n'.format(*last).encode('ascii'))
                time.sleep(seconds)
            if last is not None:
                os.write(log, 'end {} {} 0\n'.format(*last).encode('ascii'))
        except PrefetchError:
            os.write(log, b'error 0 0 0\n')


if __name__ == '__main__':
    if sys.argv[1] == 'serve':
        serve_numbered(sys.argv[2])
    else:
        train(sys.argv[2], sys.argv[3], float(sys.argv[4]))

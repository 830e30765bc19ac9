"""Reads ahead, so that training does not wait for its data."""
from __future__ import absolute_import, division, print_function

from fuel_prefetch import compat  # noqa: F401  (before anything of Fuel's)
from fuel_prefetch.client import RemoteDataStream
from fuel_prefetch.exceptions import (
    PrefetchError, PrefetchTimeout, PrefetchWarning, RemoteError, WorkerDied,
    WorkerError)
from fuel_prefetch.generators import BackgroundGenerator, background
from fuel_prefetch.mapping import parallel_map
from fuel_prefetch.server import StreamServer, serve
from fuel_prefetch.transformers import BackgroundDataStream, ParallelMapping
from fuel_prefetch.version import version as __version__

__all__ = ['BackgroundDataStream', 'BackgroundGenerator', 'ParallelMapping',
           'PrefetchError', 'PrefetchTimeout', 'PrefetchWarning',
           'RemoteDataStream', 'RemoteError', 'StreamServer', 'WorkerDied',
           'WorkerError', 'background', 'parallel_map', 'serve',
           '__version__']

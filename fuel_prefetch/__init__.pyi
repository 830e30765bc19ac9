from fuel_prefetch.client import RemoteDataStream as RemoteDataStream
from fuel_prefetch.exceptions import (
    PrefetchError as PrefetchError, PrefetchTimeout as PrefetchTimeout,
    PrefetchWarning as PrefetchWarning, RemoteError as RemoteError,
    WorkerDied as WorkerDied, WorkerError as WorkerError)
from fuel_prefetch.generators import (
    BackgroundGenerator as BackgroundGenerator, background as background)
from fuel_prefetch.mapping import parallel_map as parallel_map
from fuel_prefetch.server import StreamServer as StreamServer, serve as serve
from fuel_prefetch.transformers import (
    BackgroundDataStream as BackgroundDataStream,
    ParallelMapping as ParallelMapping)

__version__: str
__all__ = ['BackgroundDataStream', 'BackgroundGenerator', 'ParallelMapping',
           'PrefetchError', 'PrefetchTimeout', 'PrefetchWarning',
           'RemoteDataStream', 'RemoteError', 'StreamServer', 'WorkerDied',
           'WorkerError', 'background', 'parallel_map', 'serve',
           '__version__']

from concurrent.futures import Executor
from typing import Callable, Iterable, Optional, TypeVar

from fuel_prefetch.generators import BackgroundGenerator

_T = TypeVar('_T')
_R = TypeVar('_R')

def parallel_map(
    function: Callable[[_T], _R], iterable: Iterable[_T], workers: int = 2,
    max_prefetch: Optional[int] = None, ordered: bool = True,
    executor: Optional[Executor] = None,
) -> ParallelMap[_R]: ...

class ParallelMap(BackgroundGenerator[_R]):
    def __init__(
        self, function: Callable[[_T], _R], iterable: Iterable[_T],
        workers: int = 2, max_prefetch: Optional[int] = None,
        ordered: bool = True, executor: Optional[Executor] = None,
    ) -> None: ...

from abc import ABCMeta
from concurrent.futures import Executor
from typing import (
    Any, Callable, Dict, Iterator, Literal, Optional, Tuple, Type, TypeVar,
    Union, overload)

from fuel_prefetch.stats import Stats

# Fuel has no types of its own. What it makes of a source is anyone's guess:
# an array, a list, a number.
_Batch = Tuple[Any, ...]
_S = TypeVar('_S', bound='ReadAhead')
_T = TypeVar('_T')

class EpochIterator(Iterator[_T]):
    data_stream: ReadAhead
    as_dict: bool
    def __init__(self, data_stream: ReadAhead, channel: Any, number: int,
                 as_dict: bool) -> None: ...
    def __next__(self) -> _T: ...
    def next(self) -> _T: ...

class ReadAhead(metaclass=ABCMeta):
    data_stream: Any
    sources: Tuple[str, ...]
    iteration_scheme: Any
    produces_examples: bool
    axis_labels: Any
    is_finite: bool
    def __init__(self, data_stream: Any, **kwargs: Any) -> None: ...
    @property
    def stats(self) -> Stats: ...
    @overload
    def get_epoch_iterator(
        self, as_dict: Literal[False] = False) -> EpochIterator[_Batch]: ...
    @overload
    def get_epoch_iterator(
        self, as_dict: Literal[True]) -> EpochIterator[Dict[str, Any]]: ...
    @overload
    def get_epoch_iterator(
        self, as_dict: bool) -> EpochIterator[Any]: ...
    def get_data(self, request: None = None) -> _Batch: ...
    def reset(self) -> None: ...
    def next_epoch(self) -> None: ...
    def close(self, timeout: Optional[float] = 5.0) -> None: ...
    def __enter__(self: _S) -> _S: ...
    def __exit__(self, *exc_info: object) -> None: ...

class BackgroundDataStream(ReadAhead):
    max_store: Optional[int]
    max_bytes: Optional[int]
    across_epochs: bool
    copy: bool
    backend: str
    timeout: Optional[float]
    context: Any
    def __init__(
        self, data_stream: Any, max_store: Optional[int] = 10,
        max_bytes: Optional[int] = None, across_epochs: bool = False,
        copy: bool = False, backend: str = 'thread',
        timeout: Optional[float] = None, context: Any = None, **kwargs: Any,
    ) -> None: ...

class ParallelMapping(ReadAhead):
    mapping: Callable[..., Any]
    @property
    def sources(self) -> Tuple[str, ...]: ...  # type: ignore[override]
    workers: int
    max_store: Optional[int]
    ordered: bool
    executor: Optional[Executor]
    seed: Optional[int]
    add_sources: Optional[Tuple[str, ...]]
    mapping_accepts: Union[Type[list[Any]], Type[dict[Any, Any]]]
    def __init__(
        self, data_stream: Any, mapping: Callable[..., Any], workers: int = 2,
        max_store: Optional[int] = None, ordered: bool = True,
        executor: Optional[Executor] = None, seed: Optional[int] = None,
        add_sources: Optional[Tuple[str, ...]] = None,
        mapping_accepts: Union[Type[list[Any]], Type[dict[Any, Any]]] = ...,
        **kwargs: Any,
    ) -> None: ...

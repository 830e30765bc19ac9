"""What a user with types writes: mypy --strict passes, see `test_types`.

It is never run, so it may say what Python 2.7 wouldn't understand.

"""
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterator

from fuel_prefetch import (
    BackgroundDataStream, BackgroundGenerator, ParallelMapping, PrefetchError,
    PrefetchTimeout, background, parallel_map)
from fuel_prefetch.stats import Stats


def train(stream: Any) -> Stats:
    with BackgroundDataStream(stream, max_store=5, timeout=10) as ahead:
        try:
            for batch in ahead.get_epoch_iterator():
                print(batch[0])
            for named in ahead.get_epoch_iterator(as_dict=True):
                print(named['features'])
        except PrefetchTimeout as error:
            raise PrefetchError('too slow') from error
        before: Stats = ahead.stats
        advice: str | None = (ahead.stats - before).advice
        rate: float = before.batches_per_second + before.seconds_waiting
        print(advice, rate, before.batches_most_held + 1)
        return ahead.stats


def double(number: int) -> float:
    return 2. * number


def mapped(stream: Any) -> None:
    with ThreadPoolExecutor() as executor:
        mapping = ParallelMapping(stream, double, workers=4, seed=1,
                                  executor=executor, mapping_accepts=dict)
        print(next(mapping.get_epoch_iterator()), mapping.sources[0].upper())
        with parallel_map(double, range(10), executor=executor) as results:
            total: float = sum(results)
            print(total)


@background
def count() -> Iterator[int]:
    yield 1


@background(max_prefetch=5)
def words() -> Iterator[str]:
    yield 'one'


def read() -> tuple[int, str]:
    numbers: BackgroundGenerator[int] = count()
    number: int = next(numbers)
    numbers.close(timeout=None)
    return number, next(words()).upper()

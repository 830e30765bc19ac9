"""Maps on MPI processes, and prints what came of it: see `test_mpi`."""
from __future__ import absolute_import, division, print_function

import os
import time

from fuel_prefetch import ParallelMapping, parallel_map
from tests import numbers

from mpi4py.futures import MPIPoolExecutor


def where(number):
    time.sleep(.01)
    return number, os.getpid()


def shift(data, rng):
    return data[0] + rng.randint(100),


def fail(number):
    if number == 3:
        raise KeyError('three')
    return number


def main():
    with MPIPoolExecutor() as executor:
        results = list(parallel_map(where, range(30), executor=executor))
        print([number for number, _ in results] == list(range(30)),
              len({process for _, process in results}))
        results = parallel_map(fail, range(6), executor=executor)
        found = []
        while len(found) < 6:
            try:
                found.append(next(results))
            except KeyError as error:
                found.append(error.args[0])
        print(found)
        epochs = [list(ParallelMapping(
            numbers(20), shift, seed=5, executor=kind).get_epoch_iterator())
            for kind in (None, executor)]
        print(epochs[0] == epochs[1])


if __name__ == '__main__':
    main()

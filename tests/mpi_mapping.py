"""Maps on MPI processes, and prints what came of it: see `test_mpi`."""
from __future__ import absolute_import, division, print_function

from fuel_prefetch import ParallelMapping, parallel_map
from tests import numbers
from tests.mappings import fail_at_three, shift, where

from mpi4py.futures import MPIPoolExecutor


def main():
    with MPIPoolExecutor() as executor:
        results = list(parallel_map(where, range(30), executor=executor))
        print([number for number, _ in results] == list(range(30)),
              len({process for _, process in results}))
        results = parallel_map(fail_at_three, range(6), executor=executor)
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

"""Builds the wheel and the sdist, installs each, and tries it: `make dist`.

Run by itself, it imports nothing of the checkout. A virtual environment that
is empty at first gets the wheel with all that this requires, and then, in its
place, the sdist. The last line tells how many of the two worked.

"""
from __future__ import absolute_import, division, print_function

import glob
import os
import shutil
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DIST = os.path.join(TOP, 'dist')
VENV = os.path.join(DIST, 'venv')

# Run outside the checkout, so that what is imported is what was installed.
SMOKE = '''
import fuel_prefetch
import os
from fuel.datasets import IndexableDataset
from fuel.schemes import SequentialScheme
from fuel.streams import DataStream

where = os.path.dirname(fuel_prefetch.__file__)
assert where.startswith({venv!r}), where
for name in ('py.typed', '__init__.pyi', 'transformers.pyi'):
    assert os.path.exists(os.path.join(where, name)), name
stream = DataStream(IndexableDataset([1, 2, 3]),
                    iteration_scheme=SequentialScheme(3, 2))
with fuel_prefetch.BackgroundDataStream(stream) as ahead:
    assert list(ahead.get_epoch_iterator()) == [([1, 2],), ([3],)]
    assert ahead.stats.batches_taken == 2
assert list(fuel_prefetch.parallel_map(abs, [-1, 2])) == [1, 2]
'''


def run(*command):
    print('+ ' + ' '.join(arg.replace(TOP + os.sep, '') if '\n' not in arg
                          else '(a smoke test)' for arg in command))
    sys.stdout.flush()
    subprocess.check_call(command, cwd=DIST)


def main():
    shutil.rmtree(DIST, ignore_errors=True)
    os.mkdir(DIST)
    run(sys.executable, '-m', 'build', '--outdir', DIST, TOP)
    found = [glob.glob(os.path.join(DIST, 'fuel_prefetch-*' + kind))
             for kind in ('-py2.py3-none-any.whl', '.tar.gz')]
    run(sys.executable, '-m', 'venv', VENV)
    python = os.path.join(VENV, 'bin', 'python')
    passed = 0
    for paths in found:
        try:
            path, = paths
            run(python, '-m', 'pip', 'install', '-q', '--use-pep517',
                '-c', os.path.join(TOP, 'constraints', 'old-pythons.txt'),
                path)
            run(python, '-W', 'ignore', '-c', SMOKE.format(venv=VENV))
            run(os.path.join(VENV, 'bin', 'fuel-prefetch'), '--version')
            run(python, '-m', 'pip', 'uninstall', '-q', '-y', 'fuel-prefetch')
            passed += 1
        except (ValueError, subprocess.CalledProcessError) as error:
            print('FAILED: {}'.format(error))
    shutil.rmtree(VENV)
    print('{} passed, {} failed, 0 skipped'.format(passed, 2 - passed))
    return 0 if passed == 2 else 1


if __name__ == '__main__':
    sys.exit(main())

"""Runs the tests on every supported Python that this machine has.

``make test-all`` runs all of it, two Pythons at a time, and
``nox -s tests-3.8`` one. An environment is kept under ``.nox`` and used again
until the requirements change; the library in it is the checkout, so that what
is tested is what was just edited. A run ends with a line for each Python and,
last of all, the sum.

"""
import atexit
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import nox

PYTHONS = ['2.7', '3.6', '3.7', '3.8', '3.9', '3.10', '3.11', '3.12', '3.13']
CONSTRAINTS = os.path.join('constraints', 'old-pythons.txt')
TIME_LIMIT = 900  # seconds for the tests on one Python
AT_A_TIME = 2
TALLY = r'^(\d+) passed, (\d+) failed, (\d+) skipped$'  # see tests/tally.py
DESCRIBE = '''
import h5py, numpy, platform
print('{}, NumPy {}, h5py {}'.format(
    platform.python_version(), numpy.__version__, h5py.__version__))
'''

# What became of each Python: a verdict, details, and how many tests passed,
# failed and were skipped.
results = {}


def extend_path():
    """Put pyenv's Pythons first on the path, and the running one last.

    pyenv itself puts a stand-in for each Python on the path, which refuses
    to start one that isn't selected in the current folder.

    """
    pyenv = os.environ.get('PYENV_ROOT', os.path.expanduser('~/.pyenv'))
    found = [folder for version in PYTHONS for folder in
             glob.glob(os.path.join(pyenv, 'versions', version + '.*', 'bin'))]
    os.environ['PATH'] = os.pathsep.join(
        found + [os.environ['PATH'], os.path.dirname(sys.executable)])


def starts(interpreter):
    """Tell whether there is such an interpreter, and it works."""
    return shutil.which(interpreter) is not None and subprocess.call(
        [interpreter, '-c', ''], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


def install(session):
    """Install the library and what its tests need, if they changed."""
    marker = os.path.join(session.virtualenv.location, 'installed')
    if os.path.exists(marker) and os.path.getmtime(marker) > max(
            os.path.getmtime('setup.py'), os.path.getmtime(CONSTRAINTS)):
        return
    pip_install = ['python', '-m', 'pip', 'install', '-q', '-c', CONSTRAINTS]
    session.run(*pip_install, '--upgrade', 'pip')
    # The Makefile says why these settings.
    session.run(*pip_install, '--use-pep517', 'fuel==0.2.0', '-e', '.[test]',
                env={'CC': 'true', 'LDSHARED': 'true'})
    with open(marker, 'w'):
        pass


def run_tests(session, log):
    """Run nose2 into `log`, and return its exit code, None if it hangs.

    A run that takes too long is aborted, at which Python 3 writes where each
    thread is, and then killed with all the processes that it started.

    """
    # Long random sequences are shorter here, as nine Pythons play them:
    # `make test` plays them in full.
    env = dict(os.environ, PYTHONFAULTHANDLER='1',
               FUEL_PREFETCH_ROUNDS=os.environ.get(
                   'FUEL_PREFETCH_ROUNDS', '1'),
               PATH=session.bin + os.pathsep + os.environ['PATH'])
    process = subprocess.Popen(
        [os.path.join(session.bin, 'python'), '-m', 'nose2', '-v'] +
        session.posargs, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        env=env, start_new_session=True)
    try:
        return process.wait(TIME_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            pass
        log.write('Stopped after {} seconds.\n'.format(TIME_LIMIT))
        return None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def tests(session):
    """Run the tests on one Python."""
    version = session.python
    # What it stays at when the installation fails or the run is interrupted.
    results[version] = 'FAILED', 'did not get to its end', (0, 1, 0)
    install(session)
    details = session.run(
        'python', '-c', DESCRIBE, silent=True, log=False).strip()
    path = os.path.join(session.virtualenv.location, 'tests.log')
    start = time.time()
    with open(path, 'w') as log:
        code = run_tests(session, log)
    details += ', {:.0f} s'.format(time.time() - start)
    with open(path, encoding='utf-8', errors='replace') as log:
        output = log.read()
    tallies = re.findall(TALLY, output, re.MULTILINE)
    passed, failed, skipped = map(int, tallies[-1]) if tallies else (0, 0, 0)
    good = code == 0 and passed > 0 and failed == 0
    if not good:
        failed = failed or 1  # it crashed, hung, or found no test
        print(output)
    results[version] = (
        'ok' if good else 'FAILED', details, (passed, failed, skipped))
    if not good:
        session.error('the tests failed')


LINE = re.compile(
    r'^Python (\S+) +(\S+) +(?:(\d+) passed, (\d+) failed, (\d+) skipped  )?'
    r'\((.*)\)$', re.MULTILINE)


def run_session(version):
    """Run the tests on one Python in a process; return code and output."""
    done = subprocess.run(
        [sys.executable, '-m', 'nox', '-s', 'tests-' + version],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, encoding='utf-8', errors='replace')
    print(done.stdout if done.returncode else
          'The tests on Python {} are done.'.format(version), flush=True)
    return done.returncode, done.stdout


def matrix(session):
    """Run the tests on every Python, a few at a time."""
    # What they stay at when this is interrupted.
    for version in PYTHONS:
        results[version] = 'FAILED', 'did not get to its end', (0, 1, 0)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        runs = list(pool.map(run_session, PYTHONS))
    for version, (code, output) in zip(PYTHONS, runs):
        for found, verdict, *counts, details in LINE.findall(output):
            if found == version:
                results[version] = verdict, details, (
                    tuple(map(int, counts)) if counts[0] else None)
    if any(code for code, _ in runs):
        session.error('the tests failed')


def missing(session):
    """Say that a Python isn't here."""
    version = session.name[len('tests-'):]
    results[version] = 'MISSING', 'not on this machine, so not tested', None
    session.skip('Python {} is not on this machine'.format(version))


@atexit.register
def report():
    """Print what became of each Python and, on the last line, the sum."""
    if not results:  # nox was only asked for its list, say
        return
    print()
    for version, (verdict, details, counts) in results.items():
        line = 'Python {:<5} {:<8}'.format(version, verdict)
        if counts is not None:
            line += '{:>4} passed, {} failed, {} skipped  '.format(*counts)
        print('{}({})'.format(line, details))
    print('{} passed, {} failed, {} skipped'.format(*map(sum, zip(
        (0, 0, 0), *(counts for _, _, counts in results.values() if counts)))))


extend_path()
here = [version for version in PYTHONS if starts('python' + version)]
if not here:
    sys.exit('None of the supported Pythons is on this machine.')
nox.options.sessions = ['matrix']
nox.session(matrix, name='matrix', python=False)
for version in PYTHONS:
    name = 'tests-' + version
    if version in here:
        nox.session(tests, name=name, python=version, reuse_venv=True,
                    venv_backend='virtualenv' if version == '2.7' else 'venv')
    else:
        nox.session(missing, name=name, python=False)

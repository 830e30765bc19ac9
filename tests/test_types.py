"""The type stubs, where mypy is installed.

mypy looks at this package alone: what Fuel, NumPy and others give is of any
type to it, as it is to most users of Fuel, which has no types.

"""
from __future__ import absolute_import, division, print_function

import doctest
import glob
import importlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from tests.test_docs import TOP, documents, read

try:
    importlib.import_module('mypy.stubtest')
except ImportError:
    HAS_MYPY = False
else:
    HAS_MYPY = True

# The examples run on Python 2.7 as well, so their functions have no types.
UNTYPED = ['--allow-untyped-defs', '--allow-untyped-calls',
           '--allow-untyped-decorators',
           # One shows that there is no value.
           '--disable-error-code=func-returns-value']


@unittest.skipUnless(HAS_MYPY, 'mypy is not installed')
class TestTypes(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)

    def run_module(self, *args, **env):
        process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-m'] + list(args),
            cwd=self.directory, env=dict(dict(
                os.environ, MYPYPATH=TOP, PYTHONPATH=TOP), **env),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output = process.communicate()[0].decode()
        self.assertEqual(process.returncode, 0, output)

    def run_mypy(self, *args):
        self.run_module('mypy', '--strict', '--no-site-packages',
                        '--ignore-missing-imports', *args)

    def test_annotated_code(self):
        # Not as a part of the tests, which have no types.
        shutil.copy(os.path.join(TOP, 'tests', 'annotated.py'),
                    self.directory)
        self.run_mypy('annotated.py')

    def test_examples(self):
        """Those of each document, as one module."""
        paths = []
        for document in documents():
            examples = doctest.DocTestParser().get_examples(read(document))
            # Not what is meant to be an error.
            sources = [example.source for example in examples
                       if example.exc_msg is None]
            if sources:
                paths.append(os.path.join(
                    self.directory, 'example_{}.py'.format(len(paths))))
                with io.open(paths[-1], 'w', encoding='utf-8') as file_:
                    file_.write('# {}\n{}'.format(document, ''.join(sources)))
        self.assertGreater(len(paths), 10)
        self.run_mypy('--allow-redefinition', *(UNTYPED + paths))

    def test_stubs_agree_with_the_code(self):
        # By themselves, so that mypy doesn't look into modules without one.
        stubs = os.path.join(self.directory, 'fuel_prefetch')
        os.mkdir(stubs)
        for path in glob.glob(os.path.join(TOP, 'fuel_prefetch', '*.pyi')):
            shutil.copy(path, stubs)
        with open(os.path.join(self.directory, 'allowed'), 'w') as file_:
            file_.write('fuel_prefetch.extensions\n')  # which needs Blocks
        self.run_module(
            'mypy.stubtest', '--ignore-missing-stub', '--concise',
            '--ignore-unused-allowlist', '--allowlist', 'allowed',
            'fuel_prefetch', MYPYPATH=self.directory)

"""Every example in the documentation is run, and what it says is compared.

Where an example's output depends on the Python or the NumPy it is a bad
example, so there are no exceptions for any of them.

"""
from __future__ import absolute_import, division, print_function

import doctest
import glob
import importlib
import io
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

import numpy
import six

import fuel_prefetch
from fuel_prefetch.bin.main import make_parser
from tests import ConcurrentTestCase

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The examples are Python 3's; doctest finds these among their names.
FUTURE = {'print_function': print_function, 'division': division}


def read(path):
    with io.open(os.path.join(TOP, path), encoding='utf-8') as f:
        text = f.read()
    return text if six.PY3 else text.encode('utf-8')


def documents():
    """Return the paths of all documents, relative to the top folder."""
    found = glob.glob(os.path.join(TOP, '*.rst'))
    for folder, folders, files in os.walk(os.path.join(TOP, 'docs')):
        folders[:] = [name for name in folders if not name.startswith('_')]
        found += [os.path.join(folder, name) for name in files
                  if name.endswith('.rst')]
    return sorted(os.path.relpath(path, TOP) for path in found)


def modules():
    """Return all modules of the package."""
    found = [fuel_prefetch]
    for _, name, _ in pkgutil.walk_packages(
            fuel_prefetch.__path__, 'fuel_prefetch.'):
        try:
            found.append(importlib.import_module(name))
        except ImportError:
            if name != 'fuel_prefetch.extensions':  # which needs Blocks
                raise
    return found


class TestExamples(ConcurrentTestCase):
    """A test for each document, made below, and one for the docstrings."""
    def setUp(self):
        super(TestExamples, self).setUp()
        # The tutorial writes a file.
        directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, directory)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(directory)

    def run_examples(self, test):
        output = []
        runner = doctest.DocTestRunner(verbose=False)
        runner.run(test, out=output.append)
        self.assertEqual(runner.failures, 0, '\n' + ''.join(output))

    def run_document(self, path):
        text = read(path)
        if 'import sklearn' in text or 'from sklearn' in text:
            try:
                importlib.import_module('sklearn')
            except ImportError as error:
                self.skipTest('needs scikit-learn: {}'.format(error))
        self.run_examples(doctest.DocTestParser().get_doctest(
            text, dict(FUTURE), path, path, 0))

    def test_docstrings(self):
        finder = doctest.DocTestFinder(exclude_empty=True)
        for module in modules():
            for test in finder.find(module, module.__name__):
                test.globs.update(FUTURE)
                self.run_examples(test)


def add_tests():
    for path in documents():
        if '>>> ' in read(path):
            name = 'test_' + re.sub(r'\W', '_', os.path.splitext(path)[0])

            def test(self, path=path):
                self.run_document(path)
            test.__name__ = str(name)
            setattr(TestExamples, name, test)


add_tests()


class TestSlowStreams(ConcurrentTestCase):
    """The streams of docs/howto/profile.rst, but short ones."""
    def setUp(self):
        super(TestSlowStreams, self).setUp()
        # Under this name the processes of an executor find it again.
        self.addCleanup(setattr, sys, 'path', list(sys.path))
        sys.path.insert(0, os.path.join(TOP, 'docs', 'howto'))
        self.module = importlib.import_module('slow_streams')
        self.addCleanup(sys.modules.pop, 'slow_streams')
        self.module.BATCHES, self.module.STEP = 4, .001

    def test_cures_change_nothing(self):
        for name in ('decode', 'disk', 'step'):
            slow = getattr(self.module, 'slow_' + name)()
            with getattr(self.module, 'cured_' + name)() as cured:
                executor = getattr(cured.data_stream, 'executor', None)
                try:
                    pairs = list(six.moves.zip_longest(
                        slow.get_epoch_iterator(),
                        cured.get_epoch_iterator()))
                finally:
                    if executor is not None:
                        executor.shutdown()
            self.assertEqual(len(pairs), 4)
            for (one,), (other,) in pairs:
                self.assertEqual(one.dtype, other.dtype)
                numpy.testing.assert_array_equal(one, other)

    def test_training(self):
        self.assertGreater(self.module.seconds(self.module.slow_step()), 0)


class TestTexts(unittest.TestCase):
    def test_python_blocks_compile(self):
        """Code that can't be run here, for the lack of Blocks, compiles."""
        pattern = r'^( *)\.\. code-block:: python\n\n((?:\1 +.*\n|\n)+)'
        blocks = [(path, textwrap.dedent(block)) for path in documents()
                  for _, block in re.findall(pattern, read(path), re.M)]
        self.assertGreater(len(blocks), 1)
        for path, block in blocks:
            compile(block, path, 'exec')

    def test_plain_lines_are_those_of_the_makefile(self):
        """The README's lines are what each of the two commands runs."""
        readme = read('README.rst')
        for target in ('demo', 'test'):
            # '-B' is as if nothing were made yet, and '-n' runs nothing.
            env = {name: value for name, value in os.environ.items()
                   if name not in ('MAKEFLAGS', 'MAKELEVEL', 'MFLAGS')}
            try:
                printed = subprocess.check_output(
                    ['make', '-n', '-B', target], cwd=TOP, env=env)
            except OSError as error:
                self.skipTest('needs make: {}'.format(error))
            printed = ' '.join(
                printed.decode('ascii').replace('\\\n', '').split())
            block = re.search(r'    make {}\n\n[\s\S]*?stands for ::\n\n'
                              r'((?:    .*\n)+)'.format(target), readme)
            lines = block.group(1).strip().splitlines()
            self.assertGreater(len(lines), 3)
            at = 0
            for line in lines:
                self.assertIn(' '.join(line.split()), printed[at:])
                at = printed.index(' '.join(line.split()))

    def test_options_are_documented(self):
        """The reference has each option of the command, with its default."""
        reference = read(os.path.join('docs', 'reference.rst'))
        commands = make_parser()._subparsers._group_actions[0].choices
        for name, command in commands.items():
            part = reference[reference.index('program:: fuel-prefetch ' +
                                             name):]
            for action in command._actions:
                if action.dest == 'help' or not action.option_strings:
                    continue
                entry = re.search(
                    r'option:: {}\n\n((?: +.*\n)+)'.format(' '.join(
                        action.option_strings[-1:] +
                        ([action.metavar] if action.metavar else []))), part)
                self.assertIsNotNone(entry, action.option_strings)
                if action.default:
                    self.assertIn(
                        'Defaults to {}.'.format(action.default),
                        ' '.join(entry.group(1).split()))

    def test_links_of_the_readme_lead_somewhere(self):
        links = re.findall(r'<([^<>:]+)>`_', read('README.rst'))
        self.assertGreater(len(links), 5)
        for link in links:
            self.assertTrue(
                os.path.exists(os.path.join(TOP, link)), link)

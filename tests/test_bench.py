"""Tests of `fuel-prefetch bench`; what it measures is no test."""
from __future__ import absolute_import, division, print_function

import importlib
import json
import os
import sys

import fuel_prefetch
from fuel_prefetch.bin import bench
from tests.test_demo import ROOT
from tests.test_profile import CommandTestCase


class TestBench(CommandTestCase):
    command = 'bench'

    def setUp(self):
        super(TestBench, self).setUp()
        before = os.environ.get('PYTHONPATH')
        self.addCleanup(lambda: os.environ.pop('PYTHONPATH', None) if
                        before is None else
                        os.environ.__setitem__('PYTHONPATH', before))
        self.main = importlib.import_module('benchmarks.__main__')
        self.measure = importlib.import_module('benchmarks.measure')
        self.addCleanup(setattr, self.main, 'PARTS', self.main.PARTS)
        self.rounds = []

        def one_thing():
            """Whether one thing is fast."""
            self.rounds.append(self.measure.ROUNDS)
            self.measure.report('a thing', 2.5, 'us')

        def one_more():
            """Whether another is."""
            self.measure.report('another', self.measure.in_turns(
                lambda: 3.)[0], '')

        def other():
            """Whether the rest is."""
            raise AssertionError('not asked for')

        self.main.PARTS = [one_thing, one_more, other]

    def test_parts_by_their_first_word(self):
        code, output, errors = self.run_here(
            '--only', 'one', '--quick', '--json', 'results.json')
        self.assertEqual((code, errors), (0, ''))
        self.assertIn('Whether one thing is fast', output)
        self.assertIn('2.50 us', output)
        with open('results.json') as file_:
            results = json.load(file_)
        self.assertEqual(results['results'], {
            'one_thing': [{'what': 'a thing', 'value': 2.5, 'unit': 'us'}],
            'one_more': [{'what': 'another', 'value': 3., 'unit': ''}]})
        self.assertEqual(results['machine']['fuel_prefetch'],
                         fuel_prefetch.__version__)
        self.assertEqual(results['machine']['rounds'], 1)
        self.assertEqual(self.rounds, [1])
        self.assertGreater(self.measure.ROUNDS, 1)

    def test_several_parts(self):
        code, _, _ = self.run_here(
            '--only', 'one_more', '--only', 'one_thing')
        self.assertEqual(code, 0)
        self.assertEqual(self.rounds, [self.measure.ROUNDS])

    def test_list(self):
        code, output, _ = self.run_here('--list')
        self.assertEqual(code, 0)
        self.assertIn('other', output)
        self.assertEqual(self.rounds, [])

    def test_mistakes_are_told_in_one_line(self):
        for args, part in [(['--only', 'on'], "'on'"),
                           (['--json', os.path.join('nowhere', 'x')],
                            'nowhere')]:
            code, _, errors = self.run_here(*args)
            self.assertEqual(code, 2)
            self.assert_one_line(errors, 'fuel-prefetch bench: error:', part)

    def test_without_a_checkout(self):
        self.addCleanup(setattr, bench, 'TOP', bench.TOP)
        bench.TOP = self.folder
        code, _, errors = self.run_here()
        self.assertEqual(code, 2)
        self.assert_one_line(errors, 'checkout')

    def test_processes_find_it_too(self):
        bench.find_parts(None)
        self.assertEqual(os.environ['PYTHONPATH'].split(os.pathsep)[0], ROOT)
        self.assertIn(ROOT, sys.path)


class TestBenchmarks(CommandTestCase):
    command = 'bench'

    def test_a_real_part(self):
        """The quickest of them runs, in a process as `python -m` does it."""
        code, output, errors = self.call(
            '--only', 'size', '--quick', command=(
                'import runpy, sys; sys.argv[0] = "x"; '
                'runpy.run_module("benchmarks", run_name="__main__")'))
        self.assertEqual(code, 0, errors)
        self.assertIn('1 MiB a batch / 24 bytes a batch', output)

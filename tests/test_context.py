"""Tests of what a thread takes over from its caller."""
from __future__ import absolute_import, division, print_function

import decimal
import unittest

import numpy

from fuel_prefetch.context import inherit
from tests import ConcurrentTestCase


class TestInherit(ConcurrentTestCase):
    def test_decimal_precision(self):
        with decimal.localcontext() as context:
            context.prec = 5
            function = inherit(lambda: decimal.getcontext().prec)
            context.prec = 7  # too late
            thread = self.start(function)
            self.assertEqual(self.join(thread), 5)

    def test_floating_point_errors(self):
        def divide():
            return numpy.ones(2) / numpy.zeros(2)

        with numpy.errstate(divide='raise'):
            thread = self.start(inherit(divide))
        self.assertRaises(FloatingPointError, self.join, thread)
        with numpy.errstate(divide='ignore'):
            thread = self.start(inherit(divide))
        self.join(thread)

    def test_context_variables(self):
        try:
            from contextvars import ContextVar
        except ImportError:
            raise unittest.SkipTest('context variables came with 3.7')
        variable = ContextVar('variable', default='default')
        token = variable.set('ours')
        try:
            thread = self.start(inherit(
                lambda: (variable.get(), variable.set('theirs'))[0]))
        finally:
            variable.reset(token)
        self.assertEqual(self.join(thread), 'ours')
        self.assertEqual(variable.get(), 'default')

    def test_arguments_and_result(self):
        self.assertEqual(inherit(lambda *args: args)(1, 2), (1, 2))

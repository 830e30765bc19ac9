"""The thread that reads for a server."""
from __future__ import absolute_import, division, print_function

from fuel_prefetch.supply import Supply
from tests import ConcurrentTestCase, numbers, wait_until


class TestSupply(ConcurrentTestCase):
    def make(self):
        """Return a supply of ten numbers, and a list of how often it rang."""
        rings = []
        supply = Supply(numbers(10), lambda: rings.append(None))
        supply.start('supply')

        def stop():
            supply.stop()
            supply.gone.wait(10)
        self.addCleanup(stop)
        return supply, rings

    def results(self, supply, count):
        self.assertTrue(wait_until(lambda: len(supply.results) >= count))
        return [name for name, _ in supply.results]

    def test_no_more_than_permitted(self):
        supply, _ = self.make()
        supply.command('begin', 2)
        self.results(supply, 3)
        supply.permit(5)
        self.results(supply, 6)
        supply.command('save', False)
        self.assertEqual(self.results(supply, 7),
                         ['begin'] + 5 * ['item'] + ['save'])
        supply.permit(99)
        self.assertEqual(self.results(supply, 13)[7:], 5 * ['item'] + ['over'])

    def test_it_rings_for_an_item_only_if_that_is_awaited(self):
        supply, rings = self.make()
        supply.command('begin', 3)
        self.results(supply, 4)
        self.assertEqual(len(rings), 1)
        supply.awaited = True
        supply.permit(5)
        self.results(supply, 6)
        self.assertTrue(wait_until(lambda: len(rings) == 3))

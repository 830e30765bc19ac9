"""A nose2 plugin that closes a run with its counts on one plain line."""
from nose2.events import Plugin


class Tally(Plugin):
    """Prints 'N passed, N failed, N skipped' after nose2's own summary.

    nose2 words its summary for a person, and not quite alike in all its
    releases. This line is what adds up over the Pythons of the matrix. A
    test that errs counts as failed, one that fails as expected as passed.

    """
    configSection = 'tally'
    alwaysOn = True

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def testOutcome(self, event):
        """Count one test, or one failing part of it."""
        if event.outcome == 'skipped':
            self.skipped += 1
        elif event.expected:
            self.passed += 1
        elif event.outcome != 'subtest' or event.exc_info is not None:
            self.failed += 1

    def afterSummaryReport(self, event):
        """Print the line."""
        event.stream.writeln('{} passed, {} failed, {} skipped'.format(
            self.passed, self.failed, self.skipped))

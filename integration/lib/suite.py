"""Runs one Python suite and ends with the line `suite: N passed, M failed, K skipped`."""

import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


class Result(unittest.TextTestResult):
    passed = 0

    def startTest(self, test):
        super().startTest(test)
        self._began = time.monotonic()

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1

    def stopTest(self, test):
        super().stopTest(test)
        taken = time.monotonic() - self._began
        if taken > 10:
            self.stream.writeln(f"  ({taken:.1f} s)")


def cases(suite):
    for entry in suite:
        if isinstance(entry, unittest.TestSuite):
            yield from cases(entry)
        elif getattr(entry, "__test__", True) or "__test__" not in vars(type(entry)):
            yield entry


def main():
    path = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(path.parent))
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{p}*" for p in sys.argv[2:]] or None
    suite = unittest.TestSuite(cases(loader.loadTestsFromName(path.stem)))
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=Result).run(suite)
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    print(f"suite: {result.passed + len(result.expectedFailures)} passed, {failed} failed, {len(result.skipped)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

print(`suite: ${suite.passed} passed, ${suite.failed} failed, 0 skipped`);
quit(suite.failed ? 1 : 0);

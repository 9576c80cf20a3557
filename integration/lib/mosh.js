// Loaded before each mongosh suite. A suite calls test(name, body); end.js prints the sum.
// A first line `// cluster: shards=3 members=1 routers=1 catalog=replicaset` asks for another cluster than the default.

const suite = { passed: 0, failed: 0 };

function test(name, body) {
  const began = Date.now();
  try {
    body();
    suite.passed += 1;
    print(`ok   ${name} (${Date.now() - began} ms)`);
  } catch (e) {
    suite.failed += 1;
    print(`FAIL ${name}: ${e.message}\n${e.stack}`);
  }
}

function equal(actual, expected, what) {
  const [a, e] = [EJSON.stringify(actual), EJSON.stringify(expected)];
  if (a !== e) throw new Error(`${what || "value"}: expected ${e}, found ${a}`);
}

function ok(condition, what) {
  if (!condition) throw new Error(what || "not true");
}

// The body must throw; returns the error. code: number or codeName.
function fails(code, body) {
  let caught = null;
  try {
    body();
  } catch (e) {
    caught = e;
  }
  if (!caught) throw new Error(`expected the error ${code}, but there was none`);
  if (caught.code !== code && caught.codeName !== code) {
    throw new Error(`expected the error ${code}, found ${caught.code} ${caught.codeName}: ${caught.message}`);
  }
  return caught;
}

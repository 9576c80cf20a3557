//! Ports for the servers of live tests.

use std::sync::LazyLock;

/// The port `offset` above the first one: `MOSAIC_TEST_PORT`, or the first of a hundred that are free. The range is neither
/// the Python suites' nor that of outgoing connections, so that nobody else's server is taken for one of these.
pub fn port(offset: u16) -> u16 {
    static FIRST: LazyLock<u16> = LazyLock::new(|| {
        let free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
        let given = std::env::var("MOSAIC_TEST_PORT").ok().and_then(|p| p.parse().ok());
        given.or_else(|| (31_100..32_700).step_by(100).find(|base| (*base..base + 100).all(free))).expect("free ports")
    });
    *FIRST + offset
}

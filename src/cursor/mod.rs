//! The router's open cursors.

use std::sync::Arc;

/// All cursors clients hold open on this router.
#[derive(Debug)]
pub struct CursorRegistry {
    pub timeout_ms: u64,
}

impl CursorRegistry {
    pub fn new(timeout_ms: u64) -> Arc<Self> {
        Arc::new(CursorRegistry { timeout_ms })
    }
}

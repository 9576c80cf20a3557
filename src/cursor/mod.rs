//! The router's open cursors.

use std::sync::Arc;

/// All cursors clients hold open on this router.
#[derive(Debug, Default)]
pub struct CursorRegistry {}

impl CursorRegistry {
    pub fn new() -> Arc<Self> {
        Arc::new(CursorRegistry::default())
    }
}

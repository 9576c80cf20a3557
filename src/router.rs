//! The assembled router.

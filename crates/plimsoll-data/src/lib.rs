//! (crate root)

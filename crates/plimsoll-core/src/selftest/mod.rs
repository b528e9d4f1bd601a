//! The op table: every op, run against the reference on any device.

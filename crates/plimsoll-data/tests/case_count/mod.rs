//! How many cases are drawn.

use proptest::prelude::ProptestConfig;

/// So many, or as many as PROPTEST_CASES says.
pub fn cases(usual: u32) -> ProptestConfig {
    let said = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: said.unwrap_or(usual), ..ProptestConfig::default() }
}

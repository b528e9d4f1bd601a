//! Patterns that select layers by name.

/// Whether a layer, or a block that it is in, matches a pattern with `*`.
pub(crate) fn matches_layer(pattern: &str, mut name: &str) -> bool {
    loop {
        if matches(pattern, name) {
            return true;
        }
        match name.rsplit_once('/') {
            Some((block, _)) => name = block,
            None => return false,
        }
    }
}

/// Whether a name matches a pattern with `*`.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(part) = last.replace(part) {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
    }
    match last {
        None => rest.is_empty(),
        Some(end) => rest.ends_with(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_characters() {
        for (pattern, name) in [("*", "a"), ("conv5*", "conv5_block1"), ("*_bn", "a_bn"), ("a*c*e", "abcde"), ("a", "a"), ("*b*", "abc")] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("", "a"), ("conv5", "conv5_block1"), ("*_bn", "a_bnx"), ("a*c*e", "acd"), ("ab*ba", "aba")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}

//! The columns that pandas wrote as its index.

/// The texts in the list `index_columns` of a JSON object. An entry that is an object describes an index that is no
/// column, such as a range.
pub(in crate::source) fn index_columns(json: &str) -> Vec<String> {
    let list = json.split_once("\"index_columns\"").and_then(|(_, rest)| rest.trim_start().strip_prefix(':'));
    let Some(mut rest) = list.and_then(|rest| rest.trim_start().strip_prefix('[')) else { return Vec::new() };
    let (mut names, mut depth) = (Vec::new(), 0usize);
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        match first {
            '"' => {
                let mut name = String::new();
                let mut letters = rest.char_indices();
                let end = loop {
                    match letters.next() {
                        Some((at, '"')) => break at + 1,
                        Some((_, '\\')) => name.extend(letters.next().map(|(_, letter)| letter)),
                        Some((_, letter)) => name.push(letter),
                        None => break rest.len(),
                    }
                };
                rest = &rest[end..];
                if depth == 0 {
                    names.push(name);
                }
            }
            '{' | '[' => depth += 1,
            ']' if depth == 0 => break,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pandas_names_its_index() {
        for (json, names) in [
            (r#"{"index_columns": ["__index_level_0__"], "columns": []}"#, vec!["__index_level_0__"]),
            (r#"{"columns": [], "index_columns":["id", "a \" b"] }"#, vec!["id", "a \" b"]),
            (r#"{"index_columns": [{"kind": "range", "name": null, "start": 0, "stop": 3}], "columns": []}"#, vec![]),
            (r#"{"index_columns": ["cut"#, vec!["cut"]),
            (r#"{"columns": []}"#, vec![]),
        ] {
            assert_eq!(index_columns(json), names, "{json}");
        }
    }
}

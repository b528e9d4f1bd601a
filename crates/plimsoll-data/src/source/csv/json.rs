//! Objects of JSON lines: numbers, texts, Booleans and lists of numbers. Everything else is skipped.

use crate::table::{Cell, LargeInteger};

/// Reads one object and calls `sink` with each key and its cell. Texts are unescaped in place; `lists` has space for
/// the numbers of the longest list.
pub(super) fn object(line: &mut [u8], lists: &mut [[u8; 8]], sink: &mut dyn FnMut(&[u8], Cell<'_>)) -> Result<(), String> {
    let mut json = Json { line, at: 0 };
    if json.peek() == Some(b'[') {
        return Err("it begins a JSON array; write an object per line, as to_json(orient=\"records\", lines=True) of pandas".into());
    }
    json.expect(b'{')?;
    if json.peek() != Some(b'}') {
        loop {
            let key = json.text()?;
            json.expect(b':')?;
            let value = json.value(lists, 0)?;
            let key = &json.line[key.0..key.1];
            match value {
                JsonValue::Null => sink(key, Cell::Missing),
                JsonValue::Number(number) => sink(key, Cell::Number(number)),
                JsonValue::Integer(integer) => sink(key, Cell::Integer(integer)),
                JsonValue::Boolean(truth) => sink(key, Cell::Boolean(truth)),
                JsonValue::Text((start, end)) => sink(key, Cell::Text(&json.line[start..end])),
                JsonValue::List(count) => sink(key, lists.get(..count).map_or(Cell::TooLong(lists.len()), Cell::List)),
                JsonValue::Other => {}
            }
            match json.next() {
                Some(b',') => {}
                Some(b'}') => break,
                _ => return Err(json.broken()),
            }
        }
    } else {
        json.at += 1;
    }
    match json.peek() {
        None => Ok(()),
        Some(_) => Err(json.broken()),
    }
}

struct Json<'l> {
    line: &'l mut [u8],
    at: usize,
}

enum JsonValue {
    Null,
    Number(f64),
    Integer(LargeInteger),
    Boolean(bool),
    Text((usize, usize)),
    /// So many numbers.
    List(usize),
    Other,
}

/// Nesting of skipped values.
const DEEPEST: usize = 64;

impl Json<'_> {
    fn broken(&self) -> String {
        format!("its JSON is invalid at byte {}; each line has one object, such as {{\"a\": 1}}", self.at)
    }

    /// The next byte that is no white space.
    fn peek(&mut self) -> Option<u8> {
        while self.line.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.line.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        if self.next() == Some(byte) { Ok(()) } else { Err(self.broken()) }
    }

    fn value(&mut self, lists: &mut [[u8; 8]], depth: usize) -> Result<JsonValue, String> {
        match self.peek().ok_or_else(|| self.broken())? {
            b'"' => Ok(JsonValue::Text(self.text()?)),
            b'[' => self.list(lists, depth),
            b'{' => {
                self.skip_object(depth)?;
                Ok(JsonValue::Other)
            }
            _ => {
                let start = self.at;
                while self.line.get(self.at).is_some_and(|byte| !matches!(byte, b',' | b'}' | b']') && !byte.is_ascii_whitespace()) {
                    self.at += 1;
                }
                match &self.line[start..self.at] {
                    b"null" => Ok(JsonValue::Null),
                    b"true" => Ok(JsonValue::Boolean(true)),
                    b"false" => Ok(JsonValue::Boolean(false)),
                    b"NaN" => Ok(JsonValue::Number(f64::NAN)),
                    b"Infinity" => Ok(JsonValue::Number(f64::INFINITY)),
                    b"-Infinity" => Ok(JsonValue::Number(f64::NEG_INFINITY)),
                    text => match Cell::large_integer(text) {
                        Some(integer) => Ok(JsonValue::Integer(integer)),
                        None => crate::table::parse::number(text).map(JsonValue::Number).ok_or_else(|| self.broken()),
                    },
                }
            }
        }
    }

    fn list(&mut self, lists: &mut [[u8; 8]], depth: usize) -> Result<JsonValue, String> {
        if depth > DEEPEST {
            return Err(self.broken());
        }
        self.expect(b'[')?;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(JsonValue::List(0));
        }
        let (mut count, mut only_numbers) = (0, true);
        loop {
            let number = match self.value(&mut [], depth + 1)? {
                JsonValue::Number(number) => Some(number),
                JsonValue::Integer(integer) => Some(integer.rounded()),
                JsonValue::Boolean(truth) => Some(f64::from(u8::from(truth))),
                _ => None,
            };
            match number {
                Some(number) => {
                    if let Some(place) = lists.get_mut(count) {
                        *place = number.to_ne_bytes();
                    }
                    count += 1;
                }
                None => only_numbers = false,
            }
            match self.next() {
                Some(b',') => {}
                Some(b']') => break,
                _ => return Err(self.broken()),
            }
        }
        Ok(if only_numbers { JsonValue::List(count) } else { JsonValue::Other })
    }

    fn skip_object(&mut self, depth: usize) -> Result<(), String> {
        if depth > DEEPEST {
            return Err(self.broken());
        }
        self.expect(b'{')?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.text()?;
            self.expect(b':')?;
            self.value(&mut [], depth + 1)?;
            match self.next() {
                Some(b',') => {}
                Some(b'}') => return Ok(()),
                _ => return Err(self.broken()),
            }
        }
    }

    /// A text, unescaped in place: its range in the line.
    fn text(&mut self) -> Result<(usize, usize), String> {
        self.expect(b'"')?;
        let start = self.at;
        let mut to = start;
        loop {
            let byte = *self.line.get(self.at).ok_or_else(|| self.broken())?;
            self.at += 1;
            match byte {
                b'"' => return Ok((start, to)),
                b'\\' => {
                    let escaped = *self.line.get(self.at).ok_or_else(|| self.broken())?;
                    self.at += 1;
                    let byte = match escaped {
                        b'n' => b'\n',
                        b't' => b'\t',
                        b'r' => b'\r',
                        b'b' => 8,
                        b'f' => 12,
                        b'u' => {
                            let char = self.unicode()?;
                            let mut buffer = [0; 4];
                            let bytes = char.encode_utf8(&mut buffer).as_bytes();
                            self.line[to..to + bytes.len()].copy_from_slice(bytes);
                            to += bytes.len();
                            continue;
                        }
                        b'"' | b'\\' | b'/' => escaped,
                        _ => return Err(self.broken()),
                    };
                    self.line[to] = byte;
                    to += 1;
                }
                byte => {
                    self.line[to] = byte;
                    to += 1;
                }
            }
        }
    }

    /// The character after `\u`, of two escapes if it is a surrogate pair.
    fn unicode(&mut self) -> Result<char, String> {
        let mut half = || {
            let digits = self.line.get(self.at..self.at + 4).and_then(|digits| str::from_utf8(digits).ok());
            let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok()).ok_or_else(|| self.broken())?;
            self.at += 4;
            Ok::<u16, String>(unit)
        };
        let first = half()?;
        let mut units = [first, 0];
        let mut count = 1;
        if (0xD800..0xDC00).contains(&first) && self.line.get(self.at..self.at + 2) == Some(b"\\u") {
            self.at += 2;
            let digits = self.line.get(self.at..self.at + 4).and_then(|digits| str::from_utf8(digits).ok());
            units[1] = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok()).ok_or_else(|| self.broken())?;
            self.at += 4;
            count = 2;
        }
        Ok(char::decode_utf16(units[..count].iter().copied()).next().and_then(Result::ok).unwrap_or(char::REPLACEMENT_CHARACTER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(line: &str) -> Result<Vec<String>, String> {
        let (mut found, mut lists) = (Vec::new(), [[0; 8]; 3]);
        object(line.to_string().as_bytes().to_vec().as_mut_slice(), &mut lists, &mut |key, cell| {
            let cell = match cell {
                Cell::Text(text) => format!("{:?}", String::from_utf8_lossy(text)),
                Cell::List(list) => format!("{:?}", list.iter().map(|bytes| f64::from_ne_bytes(*bytes)).collect::<Vec<_>>()),
                other => format!("{other:?}"),
            };
            found.push(format!("{}={cell}", String::from_utf8_lossy(key)));
        })?;
        Ok(found)
    }

    #[test]
    fn objects_are_read_and_what_is_nested_is_skipped() {
        let line = r#" {"a": -1.5e2, "b\n": "x\"é\ud83d\ude00", "c": null, "d": true, "D": [true, 2], "e": {"f": [1, {"g": "}"}]}, "h": [1, 2.5], "i": ["x"], "j": []} "#;
        let expected = ["a=Number(-150.0)", "b\n=\"x\\\"é😀\"", "c=Missing", "d=Boolean(true)", "D=[1.0, 2.0]", "h=[1.0, 2.5]", "j=[]"];
        assert_eq!(cells(line).unwrap(), expected);
        assert_eq!(cells("{}").unwrap(), Vec::<String>::new());
        assert_eq!(cells("{\"a\": [1,2,3,4]}").unwrap(), ["a=TooLong(3)"]);
        for broken in ["", "{\"a\"}", "{\"a\": 1", "{\"a\": 1} x", "{\"a\": tru}", "{\"a\": \"x}", "{\"a\": \"\\u12\"}", "{\"a\": 1,}"] {
            assert!(cells(broken).unwrap_err().starts_with("its JSON is invalid at byte "), "{broken}");
        }
    }
}

//! Parses cells of text: numbers, Booleans and dates.

/// Powers of ten that f64 represents exactly.
const POWERS: [f64; 23] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22];

/// A number, exactly as `str::parse` gives it. The usual case, up to 15 significant digits and a small exponent, is one
/// exact multiplication or division of exact operands; everything else is left to the standard library.
pub(crate) fn number(text: &[u8]) -> Option<f64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        all => (false, all),
    };
    // Words are rejected at once; only `inf` and `nan` are numbers.
    if !matches!(digits.first(), Some(b'0'..=b'9' | b'.' | b'i' | b'I' | b'n' | b'N')) {
        return None;
    }
    let (mut mantissa, mut count, mut at, mut fraction) = (0u64, 0usize, 0usize, 0usize);
    while let Some(digit) = digits.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
        mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit));
        (count, at) = (count + 1, at + 1);
    }
    if digits.get(at) == Some(&b'.') {
        at += 1;
        let start = at;
        while let Some(digit) = digits.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
            mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit));
            at += 1;
        }
        fraction = at - start;
        count += fraction;
    }
    if at != digits.len() || count == 0 || count > 18 || mantissa > 1 << 53 {
        return str::from_utf8(text).ok()?.parse().ok();
    }
    let value = mantissa as f64 / POWERS[fraction];
    Some(if negative { -value } else { value })
}

/// A number with another decimal mark than a point.
pub(crate) fn number_with(text: &[u8], decimal: u8) -> Option<f64> {
    if decimal == b'.' {
        return number(text);
    }
    let mut buffer = [0u8; 64];
    let copy = buffer.get_mut(..text.len())?;
    copy.copy_from_slice(text);
    // A point would be a separator of thousands, which is ambiguous.
    if copy.contains(&b'.') {
        return None;
    }
    copy.iter_mut().filter(|byte| **byte == decimal).for_each(|byte| *byte = b'.');
    number(copy)
}

/// `true` or `false` in any case; the only words that are taken for Booleans without being declared so.
pub(crate) fn truth(text: &[u8]) -> Option<bool> {
    if text.eq_ignore_ascii_case(b"true") {
        return Some(true);
    }
    text.eq_ignore_ascii_case(b"false").then_some(false)
}

/// A declared Boolean.
pub(crate) fn declared_truth(text: &[u8]) -> Option<bool> {
    const TRUE: [&[u8]; 6] = [b"true", b"t", b"yes", b"y", b"1", b"on"];
    const FALSE: [&[u8]; 6] = [b"false", b"f", b"no", b"n", b"0", b"off"];
    let is = |words: &[&[u8]]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is(&TRUE) { Some(true) } else { is(&FALSE).then_some(false) }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
pub(crate) fn days(year: i64, month: u32, day: u32) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let longest = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=longest).contains(&day) || !(0..=9999).contains(&year) {
        return None;
    }
    // Years begin in March, so that the leap day is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = i64::from((153 * month + 2) / 5 + day - 1);
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

struct DigitReader<'t>(&'t [u8]);

impl DigitReader<'_> {
    /// A number of `least` to `most` digits.
    fn take(&mut self, least: usize, most: usize) -> Option<u32> {
        let count = self.0.iter().take(most).take_while(|byte| byte.is_ascii_digit()).count();
        if count < least {
            return None;
        }
        let (digits, rest) = self.0.split_at(count);
        self.0 = rest;
        Some(digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0')))
    }

    fn mark(&mut self, marks: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first().filter(|(first, _)| marks.contains(first))?;
        self.0 = rest;
        Some(*first)
    }
}

/// A date of ISO 8601 as days since 1970-01-01, such as `2024-02-29` or `2024-02-29T12:30:00.5Z`.
pub(crate) fn date(text: &[u8]) -> Option<f64> {
    let mut rest = DigitReader(text);
    let year = rest.take(4, 4)?;
    let mark = rest.mark(b"-/")?;
    let month = rest.take(1, 2)?;
    rest.mark(&[mark])?;
    let day = rest.take(1, 2)?;
    let days = days(i64::from(year), month, day)? as f64;
    if rest.0.is_empty() {
        return Some(days);
    }
    rest.mark(b"T t")?;
    Some(days + time(&mut rest)? / 86_400.0)
}

/// Seconds of the day.
fn time(rest: &mut DigitReader<'_>) -> Option<f64> {
    let hour = rest.take(1, 2)?;
    rest.mark(b":")?;
    let minute = rest.take(2, 2)?;
    let mut seconds = 0.0;
    if rest.mark(b":").is_some() {
        seconds = f64::from(rest.take(2, 2)?);
        if rest.mark(b".,").is_some() {
            let before = rest.0.len();
            let part = rest.take(1, 9)?;
            seconds += f64::from(part) / POWERS[before - rest.0.len()];
        }
    }
    let mut offset = 0.0;
    if rest.mark(b"Zz").is_none()
        && let Some(sign) = rest.mark(b"+-")
    {
        let hours = rest.take(2, 2)?;
        rest.mark(b":");
        let minutes = if rest.0.is_empty() { 0 } else { rest.take(2, 2)? };
        offset = f64::from(hours * 3600 + minutes * 60) * if sign == b'-' { -1.0 } else { 1.0 };
    }
    let valid = rest.0.is_empty() && hour < 24 && minute < 60 && seconds < 61.0;
    valid.then(|| f64::from(hour * 3600 + minute * 60) + seconds - offset)
}

/// A date in a format of `strptime`: `%Y`, `%y`, `%m`, `%d`, `%H`, `%M`, `%S`, `%b`, and other characters as they are.
pub(crate) fn formatted_date(text: &[u8], format: &str) -> Option<f64> {
    const MONTHS: &[u8] = b"janfebmaraprmayjunjulaugsepoctnovdec";
    let (mut rest, mut pattern) = (DigitReader(text), format.bytes());
    let (mut year, mut month, mut day, mut seconds) = (1970, 1, 1, 0);
    while let Some(byte) = pattern.next() {
        if byte != b'%' {
            rest.mark(&[byte])?;
            continue;
        }
        match pattern.next()? {
            b'Y' => year = rest.take(4, 4)?,
            b'y' => {
                let short = rest.take(2, 2)?;
                year = if short < 69 { 2000 + short } else { 1900 + short };
            }
            b'm' => month = rest.take(1, 2)?,
            b'd' => day = rest.take(1, 2)?,
            b'H' => seconds += 3600 * rest.take(1, 2).filter(|hour| *hour < 24)?,
            b'M' => seconds += 60 * rest.take(1, 2).filter(|minute| *minute < 60)?,
            b'S' => seconds += rest.take(1, 2).filter(|second| *second < 61)?,
            b'b' => {
                let (name, after) = rest.0.split_first_chunk::<3>()?;
                month = 1 + MONTHS.chunks(3).position(|known| name.eq_ignore_ascii_case(known))? as u32;
                rest.0 = after;
            }
            _ => return None,
        }
    }
    rest.0.is_empty().then_some(())?;
    Some(days(i64::from(year), month, day)? as f64 + f64::from(seconds) / 86_400.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_those_of_the_standard_library(text in "[-+]?[0-9]{0,20}(\\.[0-9]{0,20})?([eE][-+]?[0-9]{1,3})?|nan|-?inf|1_0|0x1") {
            let expected = text.parse::<f64>().ok().map(f64::to_bits);
            prop_assert_eq!(number(text.as_bytes()).map(f64::to_bits), expected, "{}", text);
        }
    }

    #[test]
    fn a_comma_may_be_the_decimal_mark() {
        assert_eq!(number_with(b"-3,25", b','), Some(-3.25));
        assert_eq!((number_with(b"1.000,5", b','), number_with(b"1,2,3", b','), number_with(b"7", b',')), (None, None, Some(7.0)));
    }

    #[test]
    fn dates_are_days_since_1970() {
        for (text, expected) in [
            ("1970-01-01", Some(0.0)),
            ("2024-02-29", Some(19_782.0)),
            ("2023-02-29", None),
            ("1969-12-31", Some(-1.0)),
            ("2000/3/1", Some(11_017.0)),
            ("2024-02-29T12:00", Some(19_782.5)),
            ("2024-02-29 06:00:00.000000", Some(19_782.25)),
            ("2024-02-29T00:00:00+06:00", Some(19_781.75)),
            ("2024-02-29T12:00:00Z", Some(19_782.5)),
            ("12:30", None),
            ("2024-02", None),
            ("2024-02-29x", None),
        ] {
            assert_eq!(date(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(formatted_date(b"29.02.2024", "%d.%m.%Y"), Some(19_782.0));
        assert_eq!(formatted_date(b"Feb 29 24, 12:00", "%b %d %y, %H:%M"), Some(19_782.5));
        assert_eq!(formatted_date(b"29.02.2024 ", "%d.%m.%Y"), None);
    }

    #[test]
    fn booleans_are_words() {
        assert_eq!([truth(b"TRUE"), truth(b"False"), truth(b"yes")], [Some(true), Some(false), None]);
        assert_eq!([declared_truth(b"Yes"), declared_truth(b"0"), declared_truth(b"maybe")], [Some(true), Some(false), None]);
    }
}

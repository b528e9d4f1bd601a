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

/// The directives of date formats.
const DIRECTIVES: &str = "%Y, %y, %m, %b, %B, %d, %j, %H, %I, %p, %M, %S, %f and %%";

/// What is wrong with a date format.
pub(crate) fn format_problem(format: &str) -> Option<String> {
    let mut letters = format.chars();
    while letters.by_ref().any(|letter| letter == '%') {
        let directive = letters.next();
        if !directive.is_some_and(|letter| "YymbBdjHIpMSf%".contains(letter)) {
            let unknown: String = directive.into_iter().collect();
            return Some(format!("has the date format {format:?} with %{unknown}; the directives are {DIRECTIVES}"));
        }
    }
    None
}

/// A date in a format of `strptime`, with [`DIRECTIVES`], and other characters as they are.
pub(crate) fn formatted_date(text: &[u8], format: &str) -> Option<f64> {
    const MONTHS: [&[u8]; 12] = [
        b"January",
        b"February",
        b"March",
        b"April",
        b"May",
        b"June",
        b"July",
        b"August",
        b"September",
        b"October",
        b"November",
        b"December",
    ];
    let (mut rest, mut pattern) = (DigitReader(text), format.bytes());
    let (mut year, mut month, mut day, mut seconds, mut fraction) = (1970, 1, 1, 0, 0.0);
    let (mut hour, mut afternoon, mut of_year) = (None, None, None);
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
            b'j' => of_year = Some(rest.take(1, 3)?),
            b'H' => seconds += 3600 * rest.take(1, 2).filter(|hour| *hour < 24)?,
            b'I' => hour = Some(rest.take(1, 2).filter(|hour| (1..=12).contains(hour))?),
            b'M' => seconds += 60 * rest.take(1, 2).filter(|minute| *minute < 60)?,
            b'S' => seconds += rest.take(1, 2).filter(|second| *second < 61)?,
            b'f' => {
                let digits = rest.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
                let (digits, after) = rest.0.split_at(digits);
                fraction = str::from_utf8(digits).ok().filter(|_| (1..=9).contains(&digits.len()))?.parse::<u32>().ok()? as f64
                    / 10f64.powi(digits.len() as i32);
                rest.0 = after;
            }
            b'p' => {
                let (word, after) = rest.0.split_first_chunk::<2>()?;
                afternoon = Some(match word.to_ascii_lowercase()[..] {
                    [b'a', b'm'] => false,
                    [b'p', b'm'] => true,
                    _ => return None,
                });
                rest.0 = after;
            }
            directive @ (b'b' | b'B') => {
                let starts = |month: &&[u8]| {
                    let name = if directive == b'b' { &month[..3] } else { month };
                    rest.0.get(..name.len()).filter(|start| start.eq_ignore_ascii_case(name)).map(|start| start.len())
                };
                let (at, length) = MONTHS.iter().enumerate().find_map(|(at, month)| Some((at, starts(month)?)))?;
                (month, rest.0) = (1 + at as u32, &rest.0[length..]);
            }
            b'%' => _ = rest.mark(b"%")?,
            _ => return None,
        }
    }
    rest.0.is_empty().then_some(())?;
    if let Some(hour) = hour {
        seconds += 3600 * (hour % 12 + if afternoon == Some(true) { 12 } else { 0 });
    }
    let date = match of_year {
        Some(of_year) => {
            let length = if days(i64::from(year), 2, 29).is_some() { 366 } else { 365 };
            days(i64::from(year), 1, 1)? + i64::from(of_year).checked_sub(1).filter(|day| (0..length).contains(day))?
        }
        None => days(i64::from(year), month, day)?,
    };
    Some(date as f64 + (f64::from(seconds) + fraction) / 86_400.0)
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
        for (text, format, expected) in [
            ("29.02.2024 ", "%d.%m.%Y", None),
            ("February 29, 2024", "%B %d, %Y", Some(19_782.0)),
            ("may 1, 2024", "%B %d, %Y", Some(19_844.0)),
            ("Febr 29, 2024", "%B %d, %Y", None),
            ("02/29/2024 06:00:00 PM", "%m/%d/%Y %I:%M:%S %p", Some(19_782.75)),
            ("02/29/2024 12:00 am", "%m/%d/%Y %I:%M %p", Some(19_782.0)),
            ("02/29/2024 13:00 am", "%m/%d/%Y %I:%M %p", None),
            ("2024-060 12:00:00.500", "%Y-%j %H:%M:%S.%f", Some(19_782.5 + 0.5 / 86_400.0)),
            ("2023-366", "%Y-%j", None),
            ("2024 100%", "%Y 100%%", Some(19_723.0)),
        ] {
            assert_eq!(formatted_date(text.as_bytes(), format), expected, "{text}");
        }
        assert_eq!(format_problem("%d. %B %Y, 100%%"), None);
        let problem = format_problem("%d.%Q").unwrap();
        assert!(problem.starts_with("has the date format \"%d.%Q\" with %Q; the directives are %Y, "), "{problem}");
    }

    #[test]
    fn booleans_are_words() {
        assert_eq!([truth(b"TRUE"), truth(b"False"), truth(b"yes")], [Some(true), Some(false), None]);
        assert_eq!([declared_truth(b"Yes"), declared_truth(b"0"), declared_truth(b"maybe")], [Some(true), Some(false), None]);
    }
}

//! A number of bytes, so that a count is never mistaken for a size.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub, SubAssign};
use std::str::FromStr;

/// A number of bytes. Displays human-readable sizes (`1.5 GiB`) and parses them (`256MiB`, `2GB`, `1048576`).
///
/// ```
/// use plimsoll_core::Bytes;
/// let line: Bytes = "1.5GiB".parse().unwrap();
/// assert_eq!(line, Bytes(1_610_612_736));
/// assert_eq!(line.to_string(), "1.50 GiB");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 9] = [
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// Whole kibibytes.
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n << 10)
    }

    /// Whole mebibytes.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    /// Whole gibibytes.
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }

    /// The next multiple of `alignment` (a power of two) at or above this size.
    pub const fn align_up(self, alignment: u64) -> Bytes {
        Bytes(self.0.saturating_add(alignment - 1) & !(alignment - 1))
    }

    /// `self - other`, or zero.
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// Whether it is zero.
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// As a `usize`, for addressing memory.
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        let (unit, name) = match n {
            0..1024 => return f.pad(&format!("{n} B")),
            1024..0x10_0000 => (1u64 << 10, "KiB"),
            0x10_0000..0x4000_0000 => (1 << 20, "MiB"),
            0x4000_0000..0x100_0000_0000 => (1 << 30, "GiB"),
            _ => (1 << 40, "TiB"),
        };
        let value = n as f64 / unit as f64;
        let digits = match value {
            v if v < 9.995 => 2,
            v if v < 99.95 => 1,
            _ => 0,
        };
        f.pad(&format!("{value:.digits$} {name}"))
    }
}

/// A size that could not be parsed; the message states the accepted forms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size; write a number and a unit, such as 256MiB, 2GB or 1048576 (units: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)")]
pub struct ParseBytesError(pub String);

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Bytes, ParseBytesError> {
        let error = || ParseBytesError(text.to_string());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let unit = unit.trim().to_ascii_lowercase();
        let factor = match unit.as_str() {
            "" => 1,
            unit => UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(error)?.1,
        };
        let number = number.replace('_', "");
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Bytes).ok_or_else(error);
        }
        let value = number.parse::<f64>().map_err(|_| error())? * factor as f64;
        if value.is_finite() && value < u64::MAX as f64 { Ok(Bytes(value.round() as u64)) } else { Err(error()) }
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0 - other.0)
    }
}

impl Mul<u64> for Bytes {
    type Output = Bytes;
    fn mul(self, n: u64) -> Bytes {
        Bytes(self.0.saturating_mul(n))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 = self.0.saturating_add(other.0);
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Bytes) {
        self.0 -= other.0;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(iter: I) -> Bytes {
        iter.fold(Bytes::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("256MiB", 256 << 20),
            ("2GB", 2_000_000_000),
            ("1.5 GiB", 3 << 29),
            ("8kb", 8_000),
            ("1_000 B", 1_000),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_size() {
        for text in ["", "12XB", "MiB", "-1MiB", "1e400GB", "99999999999999TiB", "1.2.3MB", "nan"] {
            assert_eq!(text.parse::<Bytes>(), Err(ParseBytesError(text.to_string())), "{text}");
        }
    }

    #[test]
    fn prints_three_digits_and_a_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10_240, "10.0 KiB"),
            (96 << 20, "96.0 MiB"),
            (3 << 29, "1.50 GiB"),
            (452 << 20, "452 MiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}

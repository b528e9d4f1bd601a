//! Characters and their token IDs.

use crate::DataError;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// The characters of a text, sorted; the ID of a character is its index. A clone shares them.
///
/// ```
/// use plimsoll_data::Vocabulary;
/// let letters = Vocabulary::new("to be".chars());
/// assert_eq!(letters.chars(), [' ', 'b', 'e', 'o', 't']);
/// assert_eq!(letters.encode("bet")?, [1, 2, 4]);
/// assert_eq!(letters.decode(&[4, 3])?, "to");
/// assert!(letters.encode("bat").unwrap_err().to_string().starts_with("'a' (character 1) is not in the vocabulary"));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Vocabulary {
    tables: Arc<CharTables>,
}

#[derive(PartialEq, Eq)]
struct CharTables {
    chars: Vec<char>,
    /// The ID of each ASCII character, or [`NONE`].
    ascii: [i32; 128],
}

const NONE: i32 = -1;

impl Vocabulary {
    /// The distinct characters of an iterator.
    pub fn new(chars: impl IntoIterator<Item = char>) -> Vocabulary {
        let chars: Vec<char> = chars.into_iter().collect::<BTreeSet<char>>().into_iter().collect();
        let mut ascii = [NONE; 128];
        for (number, &char) in chars.iter().enumerate().take_while(|(_, char)| char.is_ascii()) {
            ascii[char as usize] = number as i32;
        }
        Vocabulary { tables: Arc::new(CharTables { chars, ascii }) }
    }

    /// Number of characters.
    pub fn len(&self) -> usize {
        self.tables.chars.len()
    }

    /// Whether there are no characters.
    pub fn is_empty(&self) -> bool {
        self.tables.chars.is_empty()
    }

    /// All characters, by ID.
    pub fn chars(&self) -> &[char] {
        &self.tables.chars
    }

    /// The ID of a character.
    pub fn number(&self, char: char) -> Option<i32> {
        if char.is_ascii() {
            let number = self.tables.ascii[char as usize];
            return (number != NONE).then_some(number);
        }
        self.tables.chars.binary_search(&char).ok().map(|number| number as i32)
    }

    /// The character with an ID.
    pub fn char(&self, number: i32) -> Option<char> {
        self.tables.chars.get(usize::try_from(number).ok()?).copied()
    }

    /// Encodes a text as IDs.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, DataError> {
        let number = |(place, char)| {
            let problem = || DataError::Stage(format!("{char:?} (character {place}) is not in the vocabulary ({self}); leave it out"));
            self.number(char).ok_or_else(problem)
        };
        text.chars().enumerate().map(number).collect()
    }

    /// Decodes IDs to a text.
    pub fn decode(&self, numbers: &[i32]) -> Result<String, DataError> {
        let char = |&number| {
            let problem = || DataError::Stage(format!("{number} is no character: the vocabulary has {} of them, from 0", self.len()));
            self.char(number).ok_or_else(problem)
        };
        numbers.iter().map(char).collect()
    }
}

impl fmt::Display for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.chars().iter().take(100).collect();
        write!(f, "{} characters: {shown:?}{}", self.len(), if self.len() > 100 { "…" } else { "" })
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vocabulary({self})")
    }
}

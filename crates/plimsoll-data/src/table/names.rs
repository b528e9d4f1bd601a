//! Compact storage for the names of very many columns: one buffer with offsets.

/// The names of the columns of a file, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct ColumnNames {
    text: String,
    /// One past the last byte of each name.
    ends: Vec<u32>,
}

impl ColumnNames {
    /// Adds a name; an error if the names take more than 4 GiB.
    pub fn push(&mut self, name: &str) -> Result<(), &'static str> {
        self.text.push_str(name);
        let end = u32::try_from(self.text.len()).map_err(|_| "the names of its columns take more than 4 GiB")?;
        self.ends.push(end);
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn get(&self, index: usize) -> &str {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.text[start..self.ends[index] as usize]
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Shrinks the capacity to the length.
    pub fn settle(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Bytes allocated.
    pub fn held(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<u32>()
    }

    /// The positions of all names, sorted by name, for look-ups in logarithmic time.
    pub fn sorted(&self) -> SortedNames<'_> {
        let mut order: Vec<u32> = (0..self.ends.len() as u32).collect();
        order.sort_unstable_by(|a, b| self.get(*a as usize).cmp(self.get(*b as usize)).then(a.cmp(b)));
        SortedNames { names: self, order }
    }

    /// All names in a line of limited length, for errors.
    pub fn listed(&self) -> String {
        const LISTED: usize = 64;
        let names = self.iter().take(LISTED).collect::<Vec<_>>().join(", ");
        match self.len().saturating_sub(LISTED) {
            0 => names,
            more => format!("{names} and {more} more"),
        }
    }
}

/// The positions of names, sorted by name.
pub(crate) struct SortedNames<'n> {
    names: &'n ColumnNames,
    order: Vec<u32>,
}

impl SortedNames<'_> {
    /// The positions of all columns of this name.
    pub fn of(&self, name: &str) -> &[u32] {
        let first = self.order.partition_point(|at| self.names.get(*at as usize) < name);
        let count = self.order[first..].iter().take_while(|at| self.names.get(**at as usize) == name).count();
        &self.order[first..first + count]
    }

    /// The position of the only column of this name.
    pub fn only(&self, name: &str) -> Result<u32, String> {
        match self.of(name) {
            [at] => Ok(*at),
            [] if self.names.len() == 1
                && self.names.get(0).contains(|letter: char| letter.is_ascii_punctuation() && letter != '_' || letter == ' ') =>
            {
                let only = self.names.listed();
                Err(format!("there is no column `{name}`; the only column is {only}; if that is several, set `delimiter`"))
            }
            [] => Err(format!("there is no column `{name}`; the columns are {}", self.names.listed())),
            _ => Err(format!("there is more than one column `{name}`; give each its own name")),
        }
    }

    /// Whether a column is the only one of its name.
    pub fn is_unique(&self, column: u32) -> bool {
        self.of(self.names.get(column as usize)).len() == 1
    }
}

/// Whether pandas wrote a column of this name as its index.
pub(crate) fn is_index_name(name: &str) -> bool {
    let numbered = |prefix: &str, suffix: &str| {
        let number = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    numbered("Unnamed: ", "") || numbered("__index_level_", "__")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pandas_names_of_an_index() {
        for (name, index) in
            [("Unnamed: 0", true), ("Unnamed: ", false), ("__index_level_0__", true), ("index", false), ("__index_level_x__", false)]
        {
            assert_eq!(is_index_name(name), index, "{name}");
        }
    }

    #[test]
    fn names_are_found_by_position_and_by_name() {
        let mut names = ColumnNames::default();
        for name in ["b", "", "a", "b", "long name"] {
            names.push(name).unwrap();
        }
        names.settle();
        assert_eq!(names.iter().collect::<Vec<_>>(), ["b", "", "a", "b", "long name"]);
        let sorted = names.sorted();
        assert_eq!(["b", "", "a", "long name", "c"].map(|name| sorted.of(name).to_vec()), [vec![0, 3], vec![1], vec![2], vec![4], vec![]]);
        assert!(sorted.is_unique(2) && !sorted.is_unique(3));
        assert_eq!((names.held(), names.listed()), (12 + 5 * 4, "b, , a, b, long name".to_string()));
    }
}

//! Compact storage for the names of very many columns: one buffer with offsets.

use crate::DataError;
use std::path::Path;

/// The names of the columns of a file, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct ColumnNames {
    text: String,
    /// One past the last byte of each name.
    ends: Vec<u32>,
}

impl ColumnNames {
    pub fn push(&mut self, name: &str, path: &Path) -> Result<(), DataError> {
        self.text.push_str(name);
        let end = u32::try_from(self.text.len()).map_err(|_| DataError::csv(path, 1, "the names of its columns take more than 4 GiB"))?;
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
pub(super) struct SortedNames<'n> {
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

    /// Whether a column is the only one of its name.
    pub fn is_unique(&self, column: u32) -> bool {
        self.of(self.names.get(column as usize)).len() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_position_and_by_name() {
        let mut names = ColumnNames::default();
        for name in ["b", "", "a", "b", "long name"] {
            names.push(name, Path::new("t.csv")).unwrap();
        }
        names.settle();
        assert_eq!(names.iter().collect::<Vec<_>>(), ["b", "", "a", "b", "long name"]);
        let sorted = names.sorted();
        assert_eq!(["b", "", "a", "long name", "c"].map(|name| sorted.of(name).to_vec()), [vec![0, 3], vec![1], vec![2], vec![4], vec![]]);
        assert!(sorted.is_unique(2) && !sorted.is_unique(3));
        assert_eq!((names.held(), names.listed()), (12 + 5 * 4, "b, , a, b, long name".to_string()));
    }
}

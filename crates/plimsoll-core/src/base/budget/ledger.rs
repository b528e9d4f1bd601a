//! The ledger: one per memory space, in which every byte has a named owner.

use super::{Bytes, Owner};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

/// The account of one memory space. Bytes are reserved for an owner *before* they are allocated, and released when the
/// [`Reservation`] is dropped. Clones share the same account.
///
/// ```
/// use plimsoll_core::{Bytes, Ledger, budget::Owner};
/// let ledger = Ledger::new("host", Some(Bytes::mib(64)));
/// let weights = ledger.reserve(Owner::Weights, Bytes::mib(40)).unwrap();
/// let refused = ledger.reserve(Owner::Stage("shuffle".into()), Bytes::mib(30)).unwrap_err();
/// assert!(refused.to_string().contains("weights 40.0 MiB"));
/// drop(weights);
/// assert!(ledger.reserve(Owner::Stage("shuffle".into()), Bytes::mib(30)).is_ok());
/// ```
#[derive(Clone)]
pub struct Ledger {
    books: Arc<Mutex<Books>>,
}

struct Books {
    space: String,
    limit: Option<Bytes>,
    used: Bytes,
    peak: Bytes,
    owners: Vec<OwnerUsage>,
}

/// Current and peak bytes of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerUsage {
    /// The owner.
    pub owner: Owner,
    /// Currently reserved bytes.
    pub held: Bytes,
    /// Peak of this owner's reserved bytes.
    pub peak: Bytes,
}

/// Bytes reserved for an owner; released on drop.
pub struct Reservation {
    books: Arc<Mutex<Books>>,
    owner: usize,
    size: Bytes,
}

/// A reservation that would exceed the budget. Names the largest owners.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{owner} asked for {asked} of {space} memory, but {used} of the {limit} budget is in use; the largest owners are {}", top_owners(.holders))]
pub struct LedgerError {
    /// The memory space.
    pub space: String,
    /// The owner of the failed reservation.
    pub owner: Owner,
    /// Requested bytes.
    pub asked: Bytes,
    /// Reserved bytes at that moment.
    pub used: Bytes,
    /// The budget.
    pub limit: Bytes,
    /// The largest owners, largest first.
    pub holders: Vec<OwnerUsage>,
}

fn top_owners(owners: &[OwnerUsage]) -> String {
    if owners.is_empty() {
        return "nobody".to_string();
    }
    owners.iter().map(|usage| format!("{} {}", usage.owner, usage.held)).collect::<Vec<_>>().join(", ")
}

impl Ledger {
    /// An empty ledger for the memory space `space`; without a limit it only records.
    pub fn new(space: impl Into<String>, limit: Option<Bytes>) -> Ledger {
        let books = Books { space: space.into(), limit, used: Bytes::ZERO, peak: Bytes::ZERO, owners: Vec::new() };
        Ledger { books: Arc::new(Mutex::new(books)) }
    }

    /// Reserves `size` bytes for `owner`, or fails and names the largest owners.
    pub fn reserve(&self, owner: Owner, size: Bytes) -> Result<Reservation, LedgerError> {
        let mut books = lock(&self.books);
        let index = books.owner(owner);
        books.take(index, size)?;
        Ok(Reservation { books: Arc::clone(&self.books), owner: index, size })
    }

    /// The budget, if there is one.
    pub fn limit(&self) -> Option<Bytes> {
        lock(&self.books).limit
    }

    /// Currently reserved bytes.
    pub fn used(&self) -> Bytes {
        lock(&self.books).used
    }

    /// Peak of reserved bytes.
    pub fn peak(&self) -> Bytes {
        lock(&self.books).peak
    }

    /// Bytes that could still be reserved; `None` without a limit.
    pub fn available(&self) -> Option<Bytes> {
        let books = lock(&self.books);
        books.limit.map(|limit| limit.saturating_sub(books.used))
    }

    /// All owners in the order they first appeared.
    pub fn owners(&self) -> Vec<OwnerUsage> {
        lock(&self.books).owners.clone()
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let books = lock(&self.books);
        f.debug_struct("Ledger")
            .field("space", &books.space)
            .field("limit", &books.limit)
            .field("used", &books.used)
            .finish_non_exhaustive()
    }
}

impl Reservation {
    /// Bytes held by this reservation.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// Reserves `more` additional bytes, or changes nothing and names the largest owners.
    pub fn try_grow(&mut self, more: Bytes) -> Result<(), LedgerError> {
        lock(&self.books).take(self.owner, more)?;
        self.size += more;
        Ok(())
    }

    /// Releases `less` bytes (at most its size).
    pub fn shrink(&mut self, less: Bytes) {
        let less = less.min(self.size);
        lock(&self.books).give(self.owner, less);
        self.size -= less;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        lock(&self.books).give(self.owner, self.size);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("size", &self.size).finish_non_exhaustive()
    }
}

/// The ledger is consistent between method calls even if a holder panicked, so a poisoned lock is ignored.
fn lock(books: &Mutex<Books>) -> MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Books {
    fn owner(&mut self, owner: Owner) -> usize {
        if let Some(index) = self.owners.iter().position(|known| known.owner == owner) {
            return index;
        }
        self.owners.push(OwnerUsage { owner, held: Bytes::ZERO, peak: Bytes::ZERO });
        self.owners.len() - 1
    }

    fn take(&mut self, owner: usize, size: Bytes) -> Result<(), LedgerError> {
        let wanted = Bytes(self.used.0.saturating_add(size.0));
        if let Some(limit) = self.limit
            && wanted > limit
        {
            return Err(self.refuse(owner, size, limit));
        }
        self.used = wanted;
        self.peak = self.peak.max(wanted);
        let owner = &mut self.owners[owner];
        owner.held += size;
        owner.peak = owner.peak.max(owner.held);
        Ok(())
    }

    fn give(&mut self, owner: usize, size: Bytes) {
        self.used -= size;
        self.owners[owner].held -= size;
    }

    fn refuse(&self, owner: usize, asked: Bytes, limit: Bytes) -> LedgerError {
        let mut holders: Vec<OwnerUsage> = self.owners.iter().filter(|owner| owner.held > Bytes::ZERO).cloned().collect();
        holders.sort_by(|a, b| b.held.cmp(&a.held).then_with(|| a.owner.to_string().cmp(&b.owner.to_string())));
        holders.truncate(3);
        LedgerError { space: self.space.clone(), owner: self.owners[owner].owner.clone(), asked, used: self.used, limit, holders }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_come_and_go_and_the_peak_stays() {
        let ledger = Ledger::new("host", Some(Bytes(100)));
        let mut a = ledger.reserve(Owner::Stage("a".into()), Bytes(30)).unwrap();
        let b = ledger.reserve(Owner::Stage("b".into()), Bytes(50)).unwrap();
        a.try_grow(Bytes(20)).unwrap();
        assert_eq!((ledger.used(), ledger.available()), (Bytes(100), Some(Bytes::ZERO)));
        drop(b);
        a.shrink(Bytes(10));
        assert_eq!((ledger.used(), ledger.peak(), a.size()), (Bytes(40), Bytes(100), Bytes(40)));
        drop(a);
        assert_eq!(ledger.used(), Bytes::ZERO);
        assert_eq!(ledger.owners()[1], OwnerUsage { owner: Owner::Stage("b".into()), held: Bytes::ZERO, peak: Bytes(50) });
    }

    #[test]
    fn a_refusal_changes_nothing_and_names_the_holders() {
        let ledger = Ledger::new("host", Some(Bytes::mib(10)));
        let mut held = ledger.reserve(Owner::Arena, Bytes::mib(6)).unwrap();
        let _cache = ledger.reserve(Owner::Stage("cache".into()), Bytes::mib(3)).unwrap();
        let error = held.try_grow(Bytes::mib(2)).unwrap_err();
        insta::assert_snapshot!(error, @"arena asked for 2.00 MiB of host memory, but 9.00 MiB of the 10.0 MiB budget is in use; the largest owners are arena 6.00 MiB, cache 3.00 MiB");
        assert_eq!((held.size(), ledger.used()), (Bytes::mib(6), Bytes::mib(9)));
    }

    #[test]
    fn an_absurd_request_is_refused_not_wrapped() {
        let ledger = Ledger::new("host", Some(Bytes(10)));
        let _one = ledger.reserve(Owner::Stage("a".into()), Bytes(1)).unwrap();
        assert!(ledger.reserve(Owner::Stage("b".into()), Bytes(u64::MAX)).is_err());
    }
}

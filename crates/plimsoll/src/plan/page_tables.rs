//! Page tables: memory of the kernel, one entry for each page of the process. It is not part of the resident memory
//! that the system reports for a process, but counts for the limit of its control group: 2 MiB for a run of 1 GiB.

use plimsoll_core::Bytes;
use plimsoll_core::budget::Owner;

/// The smallest pages, and bytes of an entry. Larger pages have fewer entries.
const PAGE: u64 = 4096;
const ENTRY: u64 = 8;

/// Page tables of this much memory. Those of two parts together are no larger than those of each.
pub(super) fn page_tables(memory: Bytes) -> Bytes {
    Bytes(memory.0.div_ceil(PAGE) * ENTRY)
}

/// What spare memory can hold beside its page tables.
pub(super) fn beside_page_tables(spare: Bytes) -> Bytes {
    spare.saturating_sub(page_tables(spare))
}

/// Makes the page tables those of all owners. Planning ends before the run allocates, and has its own.
pub(super) fn state_page_tables(owners: &mut Vec<(Owner, Bytes)>) {
    owners.retain(|(owner, _)| *owner != Owner::PageTables);
    let held: Bytes = owners.iter().filter(|(owner, _)| *owner != Owner::Planning).map(|(_, size)| *size).sum();
    owners.push((Owner::PageTables, page_tables(held)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_memory_with_its_page_tables_stays_within_what_is_left() {
        for (held, spare) in [(0, 0), (1, 1), (4096, 7), (10 << 20, 1 << 30), (5000, 5000), (1 << 32, 4097)] {
            let (held, spare) = (Bytes(held), Bytes(spare));
            let used = beside_page_tables(spare);
            assert!(held + used + page_tables(held + used) <= held + page_tables(held) + spare, "{held} and {spare}");
        }
        assert_eq!(page_tables(Bytes::gib(1)), Bytes::mib(2));
    }

    #[test]
    fn page_tables_are_those_of_all_owners_but_planning() {
        let mut owners = vec![(Owner::PageTables, Bytes(1)), (Owner::Planning, Bytes::gib(2)), (Owner::Weights, Bytes::gib(1))];
        state_page_tables(&mut owners);
        assert_eq!(owners[2], (Owner::PageTables, Bytes::mib(2)));
        assert_eq!(owners.len(), 3);
    }
}

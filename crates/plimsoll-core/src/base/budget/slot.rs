//! Host memory of one slot of the staging ring.

/// The memory of one slot of the staging ring, which the input pipeline fills with batches. A device that copies from
/// pinned memory provides its own implementation.
///
/// # Safety
/// Several threads write disjoint rows of a slot through the address that [`bytes_mut`](SlotMemory::bytes_mut)
/// returned, so for as long as the value lives, wherever the value itself is moved:
/// - both methods return the same initialized bytes: the same address, a multiple of 64, and the same length, at least
///   as long as was asked for;
/// - nothing else writes to these bytes, and nothing frees them.
pub unsafe trait SlotMemory: Send {
    /// All bytes.
    fn bytes(&self) -> &[u8];

    /// The same bytes, mutable.
    fn bytes_mut(&mut self) -> &mut [u8];
}

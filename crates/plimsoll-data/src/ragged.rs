//! Rows that vary in length: each takes the bytes of the longest, followed by its length. So the size of every buffer
//! is known before anything runs.

/// Bytes of the length after a row.
pub(crate) const LENGTH_BYTES: usize = size_of::<u32>();

/// The length stored after a row.
pub(crate) fn length_of(row: &[u8]) -> u32 {
    row.last_chunk().map_or(0, |length| u32::from_ne_bytes(*length))
}

/// Writes the length after a row.
pub(crate) fn write_length(row: &mut [u8], length: u32) {
    if let Some(place) = row.last_chunk_mut() {
        *place = length.to_ne_bytes();
    }
}

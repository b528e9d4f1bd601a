//! Counter-based random numbers: each is a function of a seed, an epoch and a row, so results do not depend on thread
//! scheduling.

/// SplitMix64's finalizer: every input bit reaches every output bit.
pub(crate) const fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// 64 random bits for a row of an epoch.
pub(crate) fn random_bits(seed: u64, epoch: u64, row: u64) -> u64 {
    mix64(seed ^ mix64(epoch ^ mix64(row ^ 0x706C_696D_736F_6C6C)))
}

/// Separates the random numbers of operations that have the same seed.
#[derive(Clone, Copy)]
pub(crate) enum Salt {
    Crop = 1,
    Rot90,
    Rotate,
    Brightness,
    Contrast,
    Saturation,
    Hue,
    Mix,
}

/// 64 random bits for a row of an epoch and one kind of operation.
pub(crate) fn salted_bits(seed: u64, salt: Salt, epoch: u64, row: u64) -> u64 {
    random_bits(seed ^ mix64(salt as u64), epoch, row)
}

/// The leading 53 of 64 random bits as a number in `[0, 1)`.
pub(crate) fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// A uniform number in `[0, 1)` for a row of an epoch and one kind of operation.
pub(crate) fn uniform(seed: u64, salt: Salt, epoch: u64, row: u64) -> f64 {
    unit(salted_bits(seed, salt, epoch, row))
}

//! Hash functions with fixed results: those of TensorFlow's `to_hash_bucket_fast` (FarmHash's 64-bit fingerprint) and
//! `to_hash_bucket_strong` (SipHash-2-4).

const K0: u64 = 0xc3a5_c85c_97cb_3127;
const K1: u64 = 0xb492_b66f_be98_f273;
const K2: u64 = 0x9ae1_6a3b_2f90_404f;

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")))
}

fn shift_mix(value: u64) -> u64 {
    value ^ (value >> 47)
}

fn combine(u: u64, v: u64, multiplier: u64) -> u64 {
    let a = shift_mix((u ^ v).wrapping_mul(multiplier));
    shift_mix((v ^ a).wrapping_mul(multiplier)).wrapping_mul(multiplier)
}

/// FarmHash's `Fingerprint64`.
pub(crate) fn fingerprint(bytes: &[u8]) -> u64 {
    let length = bytes.len();
    let multiplier = K2.wrapping_add(length as u64 * 2);
    match length {
        0 => K2,
        1..=3 => {
            let (a, b, c) = (u32::from(bytes[0]), u32::from(bytes[length >> 1]), u32::from(bytes[length - 1]));
            let (y, z) = (a.wrapping_add(b << 8), (length as u32).wrapping_add(c << 2));
            shift_mix(u64::from(y).wrapping_mul(K2) ^ u64::from(z).wrapping_mul(K0)).wrapping_mul(K2)
        }
        4..=7 => combine((length as u64).wrapping_add(half(bytes, 0) << 3), half(bytes, length - 4), multiplier),
        8..=16 => {
            let (a, b) = (word(bytes, 0).wrapping_add(K2), word(bytes, length - 8));
            let c = b.rotate_right(37).wrapping_mul(multiplier).wrapping_add(a);
            let d = a.rotate_right(25).wrapping_add(b).wrapping_mul(multiplier);
            combine(c, d, multiplier)
        }
        17..=32 => {
            let (a, b) = (word(bytes, 0).wrapping_mul(K1), word(bytes, 8));
            let (c, d) = (word(bytes, length - 8).wrapping_mul(multiplier), word(bytes, length - 16).wrapping_mul(K2));
            combine(
                a.wrapping_add(b).rotate_right(43).wrapping_add(c.rotate_right(30)).wrapping_add(d),
                a.wrapping_add(b.wrapping_add(K2).rotate_right(18)).wrapping_add(c),
                multiplier,
            )
        }
        33..=64 => medium(bytes, multiplier),
        _ => long(bytes),
    }
}

fn medium(bytes: &[u8], multiplier: u64) -> u64 {
    let length = bytes.len();
    let a = word(bytes, 0).wrapping_mul(K2);
    let b = word(bytes, 8);
    let c = word(bytes, length - 8).wrapping_mul(multiplier);
    let d = word(bytes, length - 16).wrapping_mul(K2);
    let y = a.wrapping_add(b).rotate_right(43).wrapping_add(c.rotate_right(30)).wrapping_add(d);
    let z = combine(y, a.wrapping_add(b.wrapping_add(K2).rotate_right(18)).wrapping_add(c), multiplier);
    let e = word(bytes, 16).wrapping_mul(multiplier);
    let f = word(bytes, 24);
    let g = y.wrapping_add(word(bytes, length - 32)).wrapping_mul(multiplier);
    let h = z.wrapping_add(word(bytes, length - 24)).wrapping_mul(multiplier);
    combine(
        e.wrapping_add(f).rotate_right(43).wrapping_add(g.rotate_right(30)).wrapping_add(h),
        e.wrapping_add(f.wrapping_add(a).rotate_right(18)).wrapping_add(g),
        multiplier,
    )
}

/// 32 bytes with two seeds.
fn weak(bytes: &[u8], at: usize, a: u64, b: u64) -> (u64, u64) {
    let (w, x, y, z) = (word(bytes, at), word(bytes, at + 8), word(bytes, at + 16), word(bytes, at + 24));
    let a = a.wrapping_add(w);
    let b = b.wrapping_add(a).wrapping_add(z).rotate_right(21);
    let c = a;
    let a = a.wrapping_add(x).wrapping_add(y);
    let b = b.wrapping_add(a.rotate_right(44));
    (a.wrapping_add(z), b.wrapping_add(c))
}

fn long(bytes: &[u8]) -> u64 {
    const SEED: u64 = 81;
    let (mut x, mut y) = (SEED, SEED.wrapping_mul(K1).wrapping_add(113));
    let mut z = shift_mix(y.wrapping_mul(K2).wrapping_add(113)).wrapping_mul(K2);
    let (mut v, mut w) = ((0u64, 0u64), (0u64, 0u64));
    x = x.wrapping_mul(K2).wrapping_add(word(bytes, 0));
    let end = (bytes.len() - 1) / 64 * 64;
    let last = end + ((bytes.len() - 1) & 63) - 63;
    for at in (0..end).step_by(64) {
        x = x.wrapping_add(y).wrapping_add(v.0).wrapping_add(word(bytes, at + 8)).rotate_right(37).wrapping_mul(K1);
        y = y.wrapping_add(v.1).wrapping_add(word(bytes, at + 48)).rotate_right(42).wrapping_mul(K1);
        x ^= w.1;
        y = y.wrapping_add(v.0).wrapping_add(word(bytes, at + 40));
        z = z.wrapping_add(w.0).rotate_right(33).wrapping_mul(K1);
        v = weak(bytes, at, v.1.wrapping_mul(K1), x.wrapping_add(w.0));
        w = weak(bytes, at + 32, z.wrapping_add(w.1), y.wrapping_add(word(bytes, at + 16)));
        std::mem::swap(&mut z, &mut x);
    }
    // The last 64 bytes, with a multiplier that depends on what was read.
    let multiplier = K1.wrapping_add((z & 0xff) << 1);
    w.0 = w.0.wrapping_add(((bytes.len() - 1) & 63) as u64);
    v.0 = v.0.wrapping_add(w.0);
    w.0 = w.0.wrapping_add(v.0);
    x = x.wrapping_add(y).wrapping_add(v.0).wrapping_add(word(bytes, last + 8)).rotate_right(37).wrapping_mul(multiplier);
    y = y.wrapping_add(v.1).wrapping_add(word(bytes, last + 48)).rotate_right(42).wrapping_mul(multiplier);
    x ^= w.1.wrapping_mul(9);
    y = y.wrapping_add(v.0.wrapping_mul(9)).wrapping_add(word(bytes, last + 40));
    z = z.wrapping_add(w.0).rotate_right(33).wrapping_mul(multiplier);
    v = weak(bytes, last, v.1.wrapping_mul(multiplier), x.wrapping_add(w.0));
    w = weak(bytes, last + 32, z.wrapping_add(w.1), y.wrapping_add(word(bytes, last + 16)));
    std::mem::swap(&mut z, &mut x);
    combine(
        combine(v.0, w.0, multiplier).wrapping_add(shift_mix(y).wrapping_mul(K0)).wrapping_add(z),
        combine(v.1, w.1, multiplier).wrapping_add(x),
        multiplier,
    )
}

/// SipHash-2-4 with a key of two words.
pub(crate) fn siphash(key: [u64; 2], bytes: &[u8]) -> u64 {
    let [k0, k1] = key;
    let mut state = [k0 ^ 0x736f_6d65_7073_6575, k1 ^ 0x646f_7261_6e64_6f6d, k0 ^ 0x6c79_6765_6e65_7261, k1 ^ 0x7465_6462_7974_6573];
    fn rounds(state: &mut [u64; 4], count: usize) {
        let [a, b, c, d] = state;
        for _ in 0..count {
            *a = a.wrapping_add(*b);
            *b = b.rotate_left(13) ^ *a;
            *a = a.rotate_left(32);
            *c = c.wrapping_add(*d);
            *d = d.rotate_left(16) ^ *c;
            *a = a.wrapping_add(*d);
            *d = d.rotate_left(21) ^ *a;
            *c = c.wrapping_add(*b);
            *b = b.rotate_left(17) ^ *c;
            *c = c.rotate_left(32);
        }
    }
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let message = word(chunk, 0);
        state[3] ^= message;
        rounds(&mut state, 2);
        state[0] ^= message;
    }
    let rest = chunks.remainder().iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let message = rest | (bytes.len() as u64) << 56;
    state[3] ^= message;
    rounds(&mut state, 2);
    state[0] ^= message;
    state[2] ^= 0xff;
    rounds(&mut state, 4);
    state.into_iter().fold(0, |hash, word| hash ^ word)
}

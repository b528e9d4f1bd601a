//! The micro-kernel: up to eight rows by three vectors of C, accumulated in registers over a whole range of k.
//!
//! Accumulation starts from C. Each element is therefore one chain of fused multiply-adds in the order of k, however k
//! is blocked: the same bits for any blocking, and a sum may stop and resume anywhere.
//!
//! Rows are given by pointers, so the same kernel serves a matrix of any stride, a convolution (a row is a patch: one
//! pointer per run of contiguous taps) and its gradients (rows of C are scattered pixels). Eight rows fit all pointers
//! in general registers, and use at most the eight ways of an L1 set if the row stride is a power of two.

use crate::simd::{Isa, PortableVector, Vector};

/// Maximum vectors per tile row; with the rows of [`Shape`] this fills the register file.
pub(crate) const VECTORS: usize = 3;

/// Maximum rows of a tile, over all instruction sets.
pub(crate) const MAX_ROWS: usize = 8;

/// Maximum columns of a tile, over all instruction sets.
pub(crate) const MAX_COLUMNS: usize = VECTORS * 16;

/// The tile extents of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub rows: usize,
    pub columns: usize,
    pub lanes: usize,
}

impl Shape {
    pub fn of(isa: Isa) -> Shape {
        let rows = if isa == Isa::Avx512 { 8 } else { 4 };
        Shape { rows, columns: VECTORS * isa.lanes(), lanes: isa.lanes() }
    }
}

/// One product `C[rows, columns] (=|+=) A[rows, k] · B[k, columns]` with `k = segments · length`.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Row pointers of A: row `i` of segment `s` starts at `a[s · a_table + i] + a_offset`.
    pub a: *const *const f32,
    pub a_table: usize,
    pub a_offset: usize,
    /// Stride of k within a row of a segment.
    pub a_step: isize,
    pub segments: usize,
    pub length: usize,
    /// B has unit column stride and is contiguous across segments.
    pub b: *const f32,
    pub b_step: isize,
    /// Row pointers of C, and the first column of the tile.
    pub c: *const *mut f32,
    pub c_offset: usize,
    /// Offset of the first column in every row of C.
    pub c_base: usize,
    pub rows: usize,
    pub columns: usize,
    /// Starts from C instead of zero.
    pub accumulate: bool,
}

impl Tile {
    /// Computes the tile.
    ///
    /// # Safety
    ///
    /// The processor supports `isa`; `rows` and `columns` are at least one and at most those of [`Shape::of`]; every
    /// pointer in the fields is valid for the elements described there, and no C element is also read through A or B.
    #[inline]
    pub unsafe fn run(&self, isa: Isa) {
        let vectors = self.columns.div_ceil(isa.lanes()) - 1;
        // SAFETY: same contract as this function; the tables hold a kernel for each row and vector count it may name.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => AVX512[self.rows - 1][vectors](self),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => AVX2[self.rows - 1][vectors](self),
                _ => PORTABLE[self.rows - 1][vectors](self),
            }
        }
    }
}

type MicroKernel = unsafe fn(&Tile);

macro_rules! table {
    ($kernel:ident: $($rows:literal)*) => { [$([$kernel::<$rows, 1>, $kernel::<$rows, 2>, $kernel::<$rows, 3>]),*] };
}

static PORTABLE: [[MicroKernel; VECTORS]; 4] = table!(portable: 1 2 3 4);
#[cfg(target_arch = "x86_64")]
static AVX2: [[MicroKernel; VECTORS]; 4] = table!(avx2: 1 2 3 4);
#[cfg(target_arch = "x86_64")]
static AVX512: [[MicroKernel; VECTORS]; 8] = table!(avx512: 1 2 3 4 5 6 7 8);

unsafe fn portable<const M: usize, const N: usize>(tile: &Tile) {
    // SAFETY: the contract of `Tile::run`.
    unsafe { multiply::<PortableVector, M, N>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const M: usize, const N: usize>(tile: &Tile) {
    // SAFETY: the contract of `Tile::run`.
    unsafe { multiply::<crate::simd::Ymm, M, N>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512<const M: usize, const N: usize>(tile: &Tile) {
    // SAFETY: the contract of `Tile::run`.
    unsafe { multiply::<crate::simd::Zmm, M, N>(tile) }
}

/// # Safety
/// The contract of [`Tile::run`], for `M` rows and `N` vectors of which the last may be partial.
#[inline(always)]
unsafe fn multiply<V: Vector, const M: usize, const N: usize>(tile: &Tile) {
    // SAFETY: all accesses are covered by the caller's contract: rows below `M`, columns below `columns`, k below
    // `segments · length`.
    unsafe {
        let mask = V::mask(tile.columns - (N - 1) * V::LANES);
        let mut sums = [[V::splat(0.0); N]; M];
        for (i, sums) in sums.iter_mut().enumerate() {
            let row = (*tile.c.add(i)).add(tile.c_base + tile.c_offset);
            if tile.accumulate {
                for (j, sum) in sums.iter_mut().enumerate() {
                    let from = row.add(j * V::LANES);
                    *sum = if j + 1 < N { V::load(from) } else { V::load_masked(from, mask) };
                }
            }
            // A result is needed only after the whole range of k; a sum to accumulate onto already at the start of the
            // next tile, which is often to the right.
            let ahead = if tile.accumulate { N } else { 0 };
            (0..N).for_each(|j| prefetch(row.wrapping_add((ahead + j) * V::LANES)));
        }
        let mut b = tile.b;
        for segment in 0..tile.segments {
            let table = tile.a.add(segment * tile.a_table);
            let rows: [*const f32; M] = std::array::from_fn(|i| (*table.add(i)).add(tile.a_offset));
            let mut at = 0;
            for _ in 0..tile.length {
                let right: [V; N] = std::array::from_fn(|j| {
                    let from = b.add(j * V::LANES);
                    if j + 1 < N { V::load(from) } else { V::load_masked(from, mask) }
                });
                for i in 0..M {
                    let left = V::splat(*rows[i].offset(at));
                    for j in 0..N {
                        sums[i][j] = sums[i][j].add_product(left, right[j]);
                    }
                }
                at += tile.a_step;
                b = b.offset(tile.b_step);
            }
        }
        for (i, sums) in sums.into_iter().enumerate() {
            let row = (*tile.c.add(i)).add(tile.c_base + tile.c_offset);
            for (j, sum) in sums.into_iter().enumerate() {
                let to = row.add(j * V::LANES);
                if j + 1 < N { sum.store(to) } else { sum.store_masked(to, mask) }
            }
        }
    }
}

/// Prefetches a cache line.
#[inline(always)]
fn prefetch(line: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that reads nothing; every x86-64 processor has the instruction.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

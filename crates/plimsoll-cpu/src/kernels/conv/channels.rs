//! The inner loops of a depthwise convolution along a run of pixels: sums over taps, and sums over pixels.

use crate::simd::{Isa, PortableVector, Vector};

/// Taps accumulated in one pass over a run.
const TAPS: usize = 32;

/// Taps of a filter row whose gradients are accumulated in one pass over a run.
pub(super) const SUMS: usize = 4;

/// A tap: the source of a run's first pixel, and its weights.
#[derive(Clone, Copy)]
pub(super) struct Tap {
    pub from: *const f32,
    pub filter: *const f32,
}

/// Output pixels that the same taps cover. Steps are floats between pixels.
pub(super) struct PixelRun {
    pub pixels: usize,
    pub from_step: usize,
    pub to: *mut f32,
    pub to_step: usize,
    pub channels: usize,
}

impl PixelRun {
    /// Sets every pixel of the run to the sum over taps of source times weight, per channel; zero without taps.
    ///
    /// # Safety
    ///
    /// The processor supports `isa`; sources are readable at every pixel of the run, weights and results are valid for
    /// all channels, and results do not alias sources.
    #[inline]
    pub unsafe fn sum(&self, isa: Isa, taps: impl Iterator<Item = Tap>) {
        let mut some = [Tap { from: std::ptr::null(), filter: std::ptr::null() }; TAPS];
        let (mut count, mut add) = (0, false);
        for tap in taps {
            if count == TAPS {
                // SAFETY: guaranteed by the caller, for some of the taps.
                unsafe { self.pass(isa, &some, add) };
                (count, add) = (0, true);
            }
            some[count] = tap;
            count += 1;
        }
        // SAFETY: as above.
        unsafe { self.pass(isa, &some[..count], add) };
    }

    /// # Safety
    /// Same as [`PixelRun::sum`].
    unsafe fn pass(&self, isa: Isa, taps: &[Tap], add: bool) {
        // SAFETY: same contract as this function.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => sum_avx512(self, taps, add),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => sum_avx2(self, taps, add),
                _ => sum::<PortableVector>(self, taps, add),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn sum_avx2(run: &PixelRun, taps: &[Tap], add: bool) {
    // SAFETY: the contract of `PixelRun::sum`.
    unsafe { sum::<crate::simd::Ymm>(run, taps, add) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn sum_avx512(run: &PixelRun, taps: &[Tap], add: bool) {
    // SAFETY: the contract of `PixelRun::sum`.
    unsafe { sum::<crate::simd::Zmm>(run, taps, add) }
}

/// # Safety
/// The contract of [`PixelRun::sum`].
#[inline(always)]
unsafe fn sum<V: Vector>(run: &PixelRun, taps: &[Tap], add: bool) {
    let mut pixel = 0;
    // SAFETY: guaranteed by the caller; the three loops cover every pixel once.
    unsafe {
        while pixel + 8 <= run.pixels {
            pixels::<V, 8>(run, taps, add, pixel);
            pixel += 8;
        }
        while pixel + 4 <= run.pixels {
            pixels::<V, 4>(run, taps, add, pixel);
            pixel += 4;
        }
        while pixel < run.pixels {
            pixels::<V, 1>(run, taps, add, pixel);
            pixel += 1;
        }
    }
}

/// `N` pixels from `pixel` on.
///
/// # Safety
/// The contract of [`PixelRun::sum`].
#[inline(always)]
unsafe fn pixels<V: Vector, const N: usize>(run: &PixelRun, taps: &[Tap], add: bool, pixel: usize) {
    // SAFETY: guaranteed by the caller; the last vector of a pixel is masked.
    unsafe {
        let to = run.to.add(pixel * run.to_step);
        let whole = run.channels / V::LANES * V::LANES;
        let mut channel = 0;
        while channel < whole {
            let mut sums: [V; N] = std::array::from_fn(|i| if add { V::load(to.add(i * run.to_step + channel)) } else { V::splat(0.0) });
            for tap in taps {
                let (filter, from) = (V::load(tap.filter.add(channel)), tap.from.add(pixel * run.from_step + channel));
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add_product(V::load(from.add(i * run.from_step)), filter);
                }
            }
            for (i, sum) in sums.into_iter().enumerate() {
                sum.store(to.add(i * run.to_step + channel));
            }
            channel += V::LANES;
        }
        if whole < run.channels {
            let mask = V::mask(run.channels - whole);
            let mut sums: [V; N] =
                std::array::from_fn(|i| if add { V::load_masked(to.add(i * run.to_step + whole), mask) } else { V::splat(0.0) });
            for tap in taps {
                let filter = V::load_masked(tap.filter.add(whole), mask);
                let from = tap.from.add(pixel * run.from_step + whole);
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add_product(V::load_masked(from.add(i * run.from_step), mask), filter);
                }
            }
            for (i, sum) in sums.into_iter().enumerate() {
                sum.store_masked(to.add(i * run.to_step + whole), mask);
            }
        }
    }
}

/// A run of output-gradient pixels and the input pixels that adjacent taps of a filter row read for them.
pub(super) struct Meeting {
    pub pixels: usize,
    /// The input of the first tap for the first pixel, and the floats to the next pixel's and to the next tap's.
    pub from: *const f32,
    pub from_step: usize,
    pub tap: usize,
    /// The output's gradient.
    pub with: *const f32,
    /// The gradient of the first tap.
    pub to: *mut f32,
    /// All channels, and the number of those to add.
    pub stride: usize,
    pub channels: usize,
}

impl Meeting {
    /// Adds the sums over the run to the gradients of `taps` taps, from one to [`SUMS`].
    ///
    /// # Safety
    ///
    /// The processor supports `isa`; all pointers are valid for all pixels, taps and channels.
    pub unsafe fn add(&self, isa: Isa, taps: usize) {
        // SAFETY: same contract as this function.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => meet_avx512(self, taps),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => meet_avx2(self, taps),
                _ => meet::<PortableVector>(self, taps),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn meet_avx2(meeting: &Meeting, taps: usize) {
    // SAFETY: the contract of `Meeting::add`.
    unsafe { meet::<crate::simd::Ymm>(meeting, taps) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn meet_avx512(meeting: &Meeting, taps: usize) {
    // SAFETY: the contract of `Meeting::add`.
    unsafe { meet::<crate::simd::Zmm>(meeting, taps) }
}

/// # Safety
/// The contract of [`Meeting::add`].
#[inline(always)]
unsafe fn meet<V: Vector>(meeting: &Meeting, taps: usize) {
    // SAFETY: same contract as this function.
    unsafe {
        match taps {
            1 => meet_taps::<V, 1>(meeting),
            2 => meet_taps::<V, 2>(meeting),
            3 => meet_taps::<V, 3>(meeting),
            _ => meet_taps::<V, SUMS>(meeting),
        }
    }
}

/// # Safety
/// The contract of [`Meeting::add`], for `N` taps.
#[inline(always)]
unsafe fn meet_taps<V: Vector, const N: usize>(meeting: &Meeting) {
    let mut channel = 0;
    // SAFETY: guaranteed by the caller; two vectors of channels at once break the dependency chain of additions.
    unsafe {
        while channel + 2 * V::LANES <= meeting.channels {
            meet_channels::<V, N, 2>(meeting, channel, V::mask(V::LANES));
            channel += 2 * V::LANES;
        }
        while channel < meeting.channels {
            meet_channels::<V, N, 1>(meeting, channel, V::mask(V::LANES.min(meeting.channels - channel)));
            channel += V::LANES;
        }
    }
}

/// `C` vectors of channels from `channel` on, the last of them masked.
///
/// # Safety
/// The contract of [`Meeting::add`].
#[inline(always)]
unsafe fn meet_channels<V: Vector, const N: usize, const C: usize>(meeting: &Meeting, channel: usize, mask: V::Mask) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let load = |from: *const f32, c: usize| {
            let from = from.add(c * V::LANES);
            if c + 1 < C { V::load(from) } else { V::load_masked(from, mask) }
        };
        let to = meeting.to.add(channel);
        let mut sums: [[V; C]; N] = std::array::from_fn(|k| std::array::from_fn(|c| load(to.add(k * meeting.stride), c)));
        let (mut from, mut with) = (meeting.from.add(channel), meeting.with.add(channel));
        for _ in 0..meeting.pixels {
            let gradient: [V; C] = std::array::from_fn(|c| load(with, c));
            for (k, sums) in sums.iter_mut().enumerate() {
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add_product(load(from.add(k * meeting.tap), c), gradient[c]);
                }
            }
            from = from.wrapping_add(meeting.from_step);
            with = with.wrapping_add(meeting.stride);
        }
        for (k, sums) in sums.into_iter().enumerate() {
            for (c, sum) in sums.into_iter().enumerate() {
                let to = to.add(k * meeting.stride + c * V::LANES);
                if c + 1 < C { sum.store(to) } else { sum.store_masked(to, mask) }
            }
        }
    }
}

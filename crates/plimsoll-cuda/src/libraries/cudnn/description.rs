//! cuDNN's descriptions: values with attributes that are set one by one and then fixed.

use super::library::{Functions, Raw};
use super::numbers::ty;
use std::ffi::c_void;

/// The types of attributes that are enumerations.
const ENUMERATIONS: [i32; 5] = [ty::DATA_TYPE, ty::MODE, ty::HEURISTICS_MODE, ty::NUMERICAL_NOTE, ty::BEHAVIOUR_NOTE];

/// A description, given back when it goes.
pub(super) struct Description {
    pub raw: Raw,
    pub functions: &'static Functions,
}

// SAFETY: plain data behind a pointer that only this value refers to.
unsafe impl Send for Description {}

impl Description {
    pub fn new(functions: &'static Functions, kind: i32) -> Result<Description, String> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a place to write the new description to.
        functions.check(unsafe { (functions.make)(kind, &mut raw) }, "making a description")?;
        Ok(Description { raw, functions })
    }

    /// # Safety
    /// The library's values of type `ty` have the size of `T`.
    unsafe fn set<T>(self, attribute: i32, ty: i32, values: &[T]) -> Result<Description, String> {
        // SAFETY: the descriptor is held by this value, and the values are as many as stated. The library refuses an attribute of another type.
        let status = unsafe { (self.functions.set)(self.raw, attribute, ty, values.len() as i64, values.as_ptr().cast()) };
        self.functions.check(status, &format!("setting attribute {attribute}"))?;
        Ok(self)
    }

    pub fn numbers(self, attribute: i32, values: &[i64]) -> Result<Description, String> {
        // SAFETY: 64-bit integers.
        unsafe { self.set(attribute, ty::INT64, values) }
    }

    /// One of the library's enumerations.
    pub fn choice(self, attribute: i32, ty: i32, value: i32) -> Result<Description, String> {
        assert!(ENUMERATIONS.contains(&ty), "{ty} is no enumeration");
        // SAFETY: enumerations are 32-bit integers in C.
        unsafe { self.set(attribute, ty, &[value]) }
    }

    pub fn factor(self, attribute: i32, value: f32) -> Result<Description, String> {
        // SAFETY: single precision.
        unsafe { self.set(attribute, ty::FLOAT, &[value]) }
    }

    #[cfg(test)]
    pub fn text(self, attribute: i32, text: &str) -> Result<Description, String> {
        // SAFETY: bytes.
        unsafe { self.set(attribute, ty::CHARACTER, text.as_bytes()) }
    }

    pub fn handle(self, attribute: i32, handle: Raw) -> Result<Description, String> {
        // SAFETY: a handle is a pointer.
        unsafe { self.set(attribute, ty::HANDLE, &[handle]) }
    }

    pub fn addresses(self, attribute: i32, addresses: &[u64]) -> Result<Description, String> {
        // SAFETY: device addresses are 64 bits, as pointers are.
        unsafe { self.set(attribute, ty::ADDRESS, addresses) }
    }

    /// Other descriptions, which have to be kept as long as this one.
    pub fn part(self, attribute: i32, other: &Description) -> Result<Description, String> {
        // SAFETY: a descriptor is a pointer.
        unsafe { self.set(attribute, ty::DESCRIPTION, &[other.raw]) }
    }

    /// Fixes what was set; says whether the library takes it.
    pub fn fixed(self, what: &str) -> Result<Description, String> {
        // SAFETY: the description is held by this value.
        self.functions.check(unsafe { (self.functions.finalize)(self.raw) }, what)?;
        Ok(self)
    }

    /// Up to `most` integers; an unknown attribute is read as an empty one.
    pub fn read_integers(&self, attribute: i32, most: usize) -> Vec<i64> {
        // SAFETY: the library writes 64-bit integers under this type.
        unsafe { self.read(attribute, ty::INT64, most) }
    }

    /// Up to `most` values of one of the library's enumerations; an unknown attribute is read as an empty one.
    pub fn read_choices(&self, attribute: i32, ty: i32, most: usize) -> Vec<i32> {
        assert!(ENUMERATIONS.contains(&ty), "{ty} is no enumeration");
        // SAFETY: enumerations are 32-bit integers in C.
        unsafe { self.read(attribute, ty, most) }
    }

    /// # Safety
    /// The library's values of type `ty` have the size of `T`, and every bit pattern is one of `T`.
    unsafe fn read<T: Copy + Default>(&self, attribute: i32, ty: i32, most: usize) -> Vec<T> {
        let (mut values, mut count) = (vec![T::default(); most], 0);
        let into: *mut c_void = values.as_mut_ptr().cast();
        // SAFETY: the descriptor is held by this value, and there is space for `most` values of the type. The library refuses an attribute of another type.
        let status = unsafe { (self.functions.get)(self.raw, attribute, ty, most as i64, &mut count, into) };
        values.truncate(if status == 0 { count.clamp(0, most as i64) as usize } else { 0 });
        values
    }

    /// The one description that stands under an attribute, of this kind.
    pub fn only_part(&self, attribute: i32, kind: i32) -> Result<Description, String> {
        let part = Description::new(self.functions, kind)?;
        let (mut raw, mut filled) = (part.raw, 0);
        // SAFETY: one description of this kind, which the library fills.
        let status = unsafe { (self.functions.get)(self.raw, attribute, ty::DESCRIPTION, 1, &mut filled, (&raw mut raw).cast()) };
        self.functions.check(status, "looking at a part")?;
        Ok(part)
    }

    /// The descriptions that stand under an attribute, of this kind.
    pub fn parts(&self, attribute: i32, kind: i32) -> Result<Vec<Description>, String> {
        let mut count = 0;
        // SAFETY: asks for their number only.
        let status = unsafe { (self.functions.get)(self.raw, attribute, ty::DESCRIPTION, 0, &mut count, std::ptr::null_mut()) };
        self.functions.check(status, "counting")?;
        let mut parts = (0..count.max(0)).map(|_| Description::new(self.functions, kind)).collect::<Result<Vec<_>, _>>()?;
        let mut raws: Vec<Raw> = parts.iter().map(|part| part.raw).collect();
        let mut filled = 0;
        // SAFETY: as many descriptions of this kind as said, which the library fills.
        let status =
            unsafe { (self.functions.get)(self.raw, attribute, ty::DESCRIPTION, raws.len() as i64, &mut filled, raws.as_mut_ptr().cast()) };
        self.functions.check(status, "listing")?;
        parts.truncate(filled.clamp(0, count) as usize);
        Ok(parts)
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made in `new` and given back once.
        let _ = unsafe { (self.functions.forget)(self.raw) };
    }
}

//! cuDNN backend descriptors: attributes are set one by one and then finalized.

use super::constants::ty;
use super::library::{Functions, Raw};
use std::ffi::c_void;

/// The types of attributes that are enumerations.
const ENUMERATIONS: [i32; 6] = [ty::DATA_TYPE, ty::MODE, ty::HEURISTICS_MODE, ty::KNOB, ty::NUMERICAL_NOTE, ty::BEHAVIOUR_NOTE];

/// A descriptor, destroyed on drop.
pub(super) struct Descriptor {
    pub raw: Raw,
    pub functions: &'static Functions,
}

// SAFETY: plain data behind a pointer that only this value refers to.
unsafe impl Send for Descriptor {}

impl Descriptor {
    pub fn new(functions: &'static Functions, kind: i32) -> Result<Descriptor, String> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid for writing the new descriptor.
        functions.check(unsafe { (functions.create_descriptor)(kind, &mut raw) }, "making a description")?;
        Ok(Descriptor { raw, functions })
    }

    /// # Safety
    /// The library's values of type `ty` have the size of `T`.
    unsafe fn set<T>(self, attribute: i32, ty: i32, values: &[T]) -> Result<Descriptor, String> {
        // SAFETY: this value owns the descriptor, and the count matches the slice. The library rejects an attribute of
        // another type.
        let status = unsafe { (self.functions.set)(self.raw, attribute, ty, values.len() as i64, values.as_ptr().cast()) };
        self.functions.check(status, &format!("setting attribute {attribute}"))?;
        Ok(self)
    }

    pub fn set_integers(self, attribute: i32, values: &[i64]) -> Result<Descriptor, String> {
        // SAFETY: 64-bit integers.
        unsafe { self.set(attribute, ty::INT64, values) }
    }

    /// One of the library's enumerations.
    pub fn set_enum(self, attribute: i32, ty: i32, value: i32) -> Result<Descriptor, String> {
        assert!(ENUMERATIONS.contains(&ty), "{ty} is no enumeration");
        // SAFETY: enumerations are 32-bit integers in C.
        unsafe { self.set(attribute, ty, &[value]) }
    }

    pub fn set_float(self, attribute: i32, value: f32) -> Result<Descriptor, String> {
        // SAFETY: single precision.
        unsafe { self.set(attribute, ty::FLOAT, &[value]) }
    }

    #[cfg(test)]
    pub fn set_text(self, attribute: i32, text: &str) -> Result<Descriptor, String> {
        // SAFETY: bytes.
        unsafe { self.set(attribute, ty::CHARACTER, text.as_bytes()) }
    }

    pub fn set_handle(self, attribute: i32, handle: Raw) -> Result<Descriptor, String> {
        // SAFETY: a handle is a pointer.
        unsafe { self.set(attribute, ty::HANDLE, &[handle]) }
    }

    pub fn set_addresses(self, attribute: i32, addresses: &[u64]) -> Result<Descriptor, String> {
        // SAFETY: device addresses are 64 bits, as pointers are.
        unsafe { self.set(attribute, ty::ADDRESS, addresses) }
    }

    /// Sets another descriptor, which must outlive this one.
    pub fn set_descriptor(self, attribute: i32, other: &Descriptor) -> Result<Descriptor, String> {
        // SAFETY: a descriptor is a pointer.
        unsafe { self.set(attribute, ty::DESCRIPTOR, &[other.raw]) }
    }

    /// Finalizes the descriptor; fails if the library does not support it.
    pub fn finalize(self, what: &str) -> Result<Descriptor, String> {
        // SAFETY: this value owns the descriptor.
        self.functions.check(unsafe { (self.functions.finalize)(self.raw) }, what)?;
        Ok(self)
    }

    /// Up to `most` integers; an unknown attribute reads as empty.
    pub fn get_integers(&self, attribute: i32, most: usize) -> Vec<i64> {
        // SAFETY: the library writes 64-bit integers under this type.
        unsafe { self.get(attribute, ty::INT64, most) }
    }

    /// Up to `most` values of an enumeration; an unknown attribute reads as empty.
    pub fn get_enums(&self, attribute: i32, ty: i32, most: usize) -> Vec<i32> {
        assert!(ENUMERATIONS.contains(&ty), "{ty} is no enumeration");
        // SAFETY: enumerations are 32-bit integers in C.
        unsafe { self.get(attribute, ty, most) }
    }

    /// # Safety
    /// The library's values of type `ty` have the size of `T`, and every bit pattern is one of `T`.
    unsafe fn get<T: Copy + Default>(&self, attribute: i32, ty: i32, most: usize) -> Vec<T> {
        let (mut values, mut count) = (vec![T::default(); most], 0);
        let into: *mut c_void = values.as_mut_ptr().cast();
        // SAFETY: this value owns the descriptor, and the buffer has space for `most` values of the type. The library
        // rejects an attribute of another type.
        let status = unsafe { (self.functions.get)(self.raw, attribute, ty, most as i64, &mut count, into) };
        values.truncate(if status == 0 { count.clamp(0, most as i64) as usize } else { 0 });
        values
    }

    /// The single descriptor of this type in an attribute.
    pub fn get_descriptor(&self, attribute: i32, kind: i32) -> Result<Descriptor, String> {
        let part = Descriptor::new(self.functions, kind)?;
        let (mut raw, mut filled) = (part.raw, 0);
        // SAFETY: the pointer refers to one descriptor of this type, which the library fills.
        let status = unsafe { (self.functions.get)(self.raw, attribute, ty::DESCRIPTOR, 1, &mut filled, (&raw mut raw).cast()) };
        self.functions.check(status, "looking at a part")?;
        Ok(part)
    }

    /// The descriptors of this type in an attribute.
    pub fn get_descriptors(&self, attribute: i32, kind: i32) -> Result<Vec<Descriptor>, String> {
        let mut count = 0;
        // SAFETY: a null buffer queries the count only.
        let status = unsafe { (self.functions.get)(self.raw, attribute, ty::DESCRIPTOR, 0, &mut count, std::ptr::null_mut()) };
        self.functions.check(status, "counting")?;
        let mut parts = (0..count.max(0)).map(|_| Descriptor::new(self.functions, kind)).collect::<Result<Vec<_>, _>>()?;
        let mut raws: Vec<Raw> = parts.iter().map(|part| part.raw).collect();
        let mut filled = 0;
        // SAFETY: the buffer has the stated number of descriptors of this type, which the library fills.
        let status =
            unsafe { (self.functions.get)(self.raw, attribute, ty::DESCRIPTOR, raws.len() as i64, &mut filled, raws.as_mut_ptr().cast()) };
        self.functions.check(status, "listing")?;
        parts.truncate(filled.clamp(0, count) as usize);
        Ok(parts)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed once.
        let _ = unsafe { (self.functions.destroy_descriptor)(self.raw) };
    }
}

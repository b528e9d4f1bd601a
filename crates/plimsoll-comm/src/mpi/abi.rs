//! The constants of MPI libraries. Three families differ in them: the standard ABI of MPI 5, Open MPI and MPICH.

use super::functions::{Functions, Handle, Pointer};
use crate::error::{CommError, Result};
use crate::numbers::{NumberType, Reduction};
use libloading::os::unix::Library;
use std::ffi::{c_int, c_void};

/// Values that a library gives names to in its header.
#[derive(Clone, Copy)]
pub(super) struct Constants<H: Handle> {
    pub world: H,
    pub errors_return: H,
    pub no_request: H,
    pub sum: H,
    pub max: H,
    pub min: H,
    pub f32: H,
    pub f64: H,
    pub u64: H,
    pub u8: H,
    /// As addresses.
    pub in_place: isize,
    pub status_ignore: isize,
    pub undefined: c_int,
    pub thread_serialized: c_int,
    /// The size of the buffer for error messages.
    pub max_text: usize,
}

impl<H: Handle> Constants<H> {
    pub fn type_of(&self, numbers: NumberType) -> H {
        match numbers {
            NumberType::F32 => self.f32,
            NumberType::F64 => self.f64,
            NumberType::U64 => self.u64,
            NumberType::U8 => self.u8,
        }
    }

    pub fn operation(&self, reduction: Reduction) -> H {
        match reduction {
            Reduction::Sum => self.sum,
            Reduction::Max => self.max,
            Reduction::Min => self.min,
        }
    }
}

/// What a loaded library is.
pub(super) enum Family {
    /// The standard ABI, and Open MPI: handles are pointers.
    Pointers(Functions<Pointer>, Constants<Pointer>),
    /// MPICH: handles are integers.
    Integers(Functions<c_int>, Constants<c_int>),
}

impl Family {
    /// Recognizes a library by what it exports.
    ///
    /// # Safety
    /// If it exports MPI's functions, it is an MPI library.
    ///
    /// # Errors
    /// If it is not an MPI library, or not of a family that is known.
    pub unsafe fn of(library: &Library, name: &str) -> Result<Family> {
        // SAFETY: the function has this type in MPI's standard, and may be called at any time.
        let standard = unsafe {
            match library.get::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>("MPI_Abi_get_version") {
                Ok(version) => {
                    let (mut major, mut minor) = (-1, -1);
                    // A library of MPI 5 may have the function, but handles of its own: its version is then -1.
                    (version(&mut major, &mut minor) == 0 && major > 0).then_some(major)
                }
                Err(_) => None,
            }
        };
        // SAFETY: handles of the standard ABI and of Open MPI are pointers, those of MPICH integers; see each of them.
        unsafe {
            match standard {
                Some(1) => return Ok(Family::Pointers(Functions::load(library, name)?, standard_abi())),
                Some(major) => return Err(unsupported(name, format!("it has version {major} of the standard ABI, but 1 is known"))),
                None => {}
            }
            if library.get::<*mut c_void>("ompi_mpi_comm_world").is_ok() {
                return Ok(Family::Pointers(Functions::load(library, name)?, open_mpi(library, name)?));
            }
            let functions: Functions<c_int> = Functions::load(library, name)?;
            let version = library_version(&functions);
            // Relatives of MPICH have its ABI since 2014.
            if ["MPICH", "Intel(R) MPI", "MVAPICH"].iter().any(|known| version.contains(known)) {
                return Ok(Family::Integers(functions, mpich()));
            }
            let first = version.lines().next().unwrap_or_default();
            Err(unsupported(name, format!("it says `{first}`, which is neither Open MPI nor MPICH nor has the standard ABI of MPI 5")))
        }
    }
}

/// How a library describes itself.
pub(super) fn library_version<H: Handle>(functions: &Functions<H>) -> String {
    // The largest buffer that any family asks for.
    let (mut text, mut length) = (vec![0u8; 8192], 0);
    // SAFETY: the function may be called at any time, and the buffer has the size that the standard asks for.
    let code = unsafe { (functions.library_version)(text.as_mut_ptr().cast(), &mut length) };
    text.truncate(if code == 0 { usize::try_from(length).unwrap_or(0) } else { 0 });
    String::from_utf8_lossy(&text).trim_end_matches(['\0', '\n', ' ']).to_string()
}

/// MPI 5, chapter 21: handles are pointers with these values.
fn standard_abi() -> Constants<Pointer> {
    let handle = |value: usize| Pointer(std::ptr::without_provenance_mut(value));
    Constants {
        world: handle(0x101),
        errors_return: handle(0x143),
        no_request: handle(0x180),
        sum: handle(0x21),
        max: handle(0x23),
        min: handle(0x22),
        f32: handle(0x210),
        f64: handle(0x214),
        u64: handle(0x259),
        u8: handle(0x241),
        in_place: 1,
        status_ignore: 0,
        undefined: -32766,
        thread_serialized: 2048,
        max_text: 512,
    }
}

/// Open MPI: handles are addresses of objects that it exports.
///
/// # Safety
/// The library is Open MPI.
unsafe fn open_mpi(library: &Library, name: &str) -> Result<Constants<Pointer>> {
    let object = |symbol: &str| {
        // SAFETY: the type of a symbol that is used as an address only.
        match unsafe { library.get::<*mut c_void>(symbol) } {
            Ok(found) => Ok(Pointer(found.into_raw())),
            Err(_) => Err(unsupported(name, format!("it does not export `{symbol}`, as Open MPI does"))),
        }
    };
    Ok(Constants {
        world: object("ompi_mpi_comm_world")?,
        errors_return: object("ompi_mpi_errors_return")?,
        no_request: object("ompi_request_null")?,
        sum: object("ompi_mpi_op_sum")?,
        max: object("ompi_mpi_op_max")?,
        min: object("ompi_mpi_op_min")?,
        f32: object("ompi_mpi_float")?,
        f64: object("ompi_mpi_double")?,
        u64: object("ompi_mpi_uint64_t")?,
        u8: object("ompi_mpi_uint8_t")?,
        in_place: 1,
        status_ignore: 0,
        undefined: -32766,
        thread_serialized: 2,
        max_text: 256,
    })
}

/// MPICH and its relatives: handles are integers with these values.
fn mpich() -> Constants<c_int> {
    Constants {
        world: 0x4400_0000,
        errors_return: 0x5400_0001,
        no_request: 0x2c00_0000,
        sum: 0x5800_0003,
        max: 0x5800_0001,
        min: 0x5800_0002,
        f32: 0x4c00_040a,
        f64: 0x4c00_080b,
        u64: 0x4c00_083e,
        u8: 0x4c00_013b,
        in_place: -1,
        status_ignore: 1,
        undefined: -32766,
        thread_serialized: 2,
        max_text: 512,
    }
}

fn unsupported(library: &str, what: String) -> CommError {
    CommError::Unsupported { library: library.to_string(), what }
}

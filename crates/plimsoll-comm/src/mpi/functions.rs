//! The functions of an MPI library, loaded at run time. They are the same in all libraries but for the type of handles.

use crate::error::{CommError, Result};
use libloading::os::unix::Library;
use std::ffi::{c_char, c_int, c_void};

/// What a library uses to name a communicator, a datatype, an operation or a request.
///
/// # Safety
/// The type is passed to C as a pointer or as an `int`, whichever the library has.
pub(super) unsafe trait Handle: Copy + Send + Sync + 'static {}

/// A handle of Open MPI and of the standard ABI.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Pointer(pub *mut c_void);

// SAFETY: transparent over a pointer.
unsafe impl Handle for Pointer {}

// SAFETY: a handle is a name for the library, never dereferenced here.
unsafe impl Send for Pointer {}

// SAFETY: as above.
unsafe impl Sync for Pointer {}

// SAFETY: an `int`, as handles of MPICH are.
unsafe impl Handle for c_int {}

macro_rules! functions {
    ($($name:ident: $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions that this crate calls. Each returns an error code.
        #[derive(Clone, Copy)]
        pub(super) struct Functions<H: Handle> {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl<H: Handle> Functions<H> {
            /// Loads them.
            ///
            /// # Safety
            /// The library is an MPI library whose handles are of the type `H`.
            ///
            /// # Errors
            /// If one is missing.
            pub unsafe fn load(library: &Library, name: &str) -> Result<Functions<H>> {
                // SAFETY: the symbols have these types in MPI's standard, and the caller vouches for `H`.
                unsafe { Ok(Functions { $($name: symbol(library, name, $symbol)?,)* }) }
            }
        }
    };
}

functions! {
    init_thread: "MPI_Init_thread" (*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    finalize: "MPI_Finalize" ();
    error_string: "MPI_Error_string" (c_int, *mut c_char, *mut c_int);
    library_version: "MPI_Get_library_version" (*mut c_char, *mut c_int);
    comm_rank: "MPI_Comm_rank" (H, *mut c_int);
    comm_size: "MPI_Comm_size" (H, *mut c_int);
    comm_set_errhandler: "MPI_Comm_set_errhandler" (H, H);
    comm_dup: "MPI_Comm_dup" (H, *mut H);
    comm_split: "MPI_Comm_split" (H, c_int, c_int, *mut H);
    comm_free: "MPI_Comm_free" (*mut H);
    iallreduce: "MPI_Iallreduce" (*const c_void, *mut c_void, c_int, H, H, H, *mut H);
    ireduce_scatter_block: "MPI_Ireduce_scatter_block" (*const c_void, *mut c_void, c_int, H, H, H, *mut H);
    iallgather: "MPI_Iallgather" (*const c_void, c_int, H, *mut c_void, c_int, H, H, *mut H);
    ibcast: "MPI_Ibcast" (*mut c_void, c_int, H, c_int, H, *mut H);
    ibarrier: "MPI_Ibarrier" (H, *mut H);
    isend: "MPI_Isend" (*const c_void, c_int, H, c_int, c_int, H, *mut H);
    irecv: "MPI_Irecv" (*mut c_void, c_int, H, c_int, c_int, H, *mut H);
    test: "MPI_Test" (*mut H, *mut c_int, *mut c_void);
    get_count: "MPI_Get_count" (*const c_void, H, *mut c_int);
    iprobe: "MPI_Iprobe" (c_int, c_int, H, *mut c_int, *mut c_void);
}

/// A function of a library.
///
/// # Safety
/// `T` is the type of a function pointer to the symbol.
unsafe fn symbol<T: Copy>(library: &Library, name: &str, symbol: &str) -> Result<T> {
    // SAFETY: the caller vouches for the type. The library is never unloaded.
    match unsafe { library.get::<T>(symbol) } {
        Ok(found) => Ok(*found),
        Err(_) => Err(CommError::Unsupported {
            library: name.to_string(),
            what: format!("it has no function {symbol} (MPI 3 or later is needed)"),
        }),
    }
}

//! Groups over MPI, whose library is loaded at run time.

mod abi;
mod communicator;
mod functions;
mod wait;

use crate::error::{CommError, Result};
use crate::group::Group;
use crate::launch::{Launch, Launcher};
use crate::numbers::{Numbers, NumbersMut, Reduction};
use abi::{Constants, Family, library_version};
use communicator::{Communicator, Library};
use functions::{Functions, Handle};
use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// How long a rank waits for others.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The buffer through which numbers pass. It bounds what a call takes, whatever the size of its operands.
const STAGING: usize = 1 << 20;

/// How MPI is started.
#[derive(Clone, Debug)]
pub struct MpiOptions {
    /// The name or path of the library; the usual names of the launcher's if there is none.
    pub library: Option<OsString>,
    /// How long a rank waits for others, in a collective or a message. Starting MPI is not limited by it.
    pub timeout: Duration,
    /// What the launcher's variables say, which must be what MPI says.
    pub launch: Option<Launch>,
}

impl Default for MpiOptions {
    /// The usual libraries, and a timeout of ten minutes.
    fn default() -> MpiOptions {
        MpiOptions { library: None, timeout: TIMEOUT, launch: None }
    }
}

/// All ranks that `mpirun`, `srun` or another launcher started, over MPI.
///
/// Dropping the last group of a process ends MPI, for which it waits until all ranks have done so. After an error, and
/// while a thread panics, it does not: the launcher then ends the other ranks when this process ends.
///
/// ```no_run
/// use plimsoll_comm::{Group, Mpi, MpiOptions, Reduction};
///
/// let mpi = Mpi::open(&MpiOptions { library: std::env::var_os("PLIMSOLL_MPI"), ..MpiOptions::default() })?;
/// let mut ranks = [1.0f32];
/// mpi.all_reduce((&mut ranks[..]).into(), Reduction::Sum)?;
/// assert_eq!(ranks[0] as usize, mpi.size());
/// # Ok::<(), plimsoll_comm::CommError>(())
/// ```
pub struct Mpi {
    world: Box<dyn Group>,
    version: String,
}

impl Mpi {
    /// Loads the library and starts MPI. That is possible once per process; the thread that calls this should be the
    /// one that drops the last group.
    ///
    /// # Errors
    /// If there is no library, it cannot be used, or it is not that of the launcher.
    pub fn open(options: &MpiOptions) -> Result<Mpi> {
        static OPENED: AtomicBool = AtomicBool::new(false);
        if OPENED.swap(true, Ordering::SeqCst) {
            let what = "MPI is started once per process; keep the group that was opened first".to_string();
            return Err(CommError::Usage { rank: 0, size: 1, what });
        }
        let before = resident();
        let (library, name) = load(options)?;
        // Its functions are called until the process ends.
        let library = Box::leak(Box::new(library));
        // SAFETY: an MPI library, if it exports MPI's functions.
        match unsafe { Family::of(library, &name)? } {
            Family::Pointers(functions, constants) => start(functions, constants, name, options, before),
            Family::Integers(functions, constants) => start(functions, constants, name, options, before),
        }
    }

    /// How the library describes itself.
    pub fn version(&self) -> &str {
        &self.version
    }
}

/// Starts a loaded library.
fn start<H: Handle>(functions: Functions<H>, constants: Constants<H>, name: String, options: &MpiOptions, before: u64) -> Result<Mpi> {
    let unsupported = |what: String| CommError::Unsupported { library: name.clone(), what };
    let mut provided = 0;
    let none = std::ptr::null_mut();
    // SAFETY: called once, which `Mpi::open` makes sure of; arguments may be null since MPI 2.
    let code = unsafe { (functions.init_thread)(none, none.cast(), constants.thread_serialized, &mut provided) };
    if code != 0 {
        return Err(unsupported(format!("MPI_Init_thread failed with code {code}")));
    }
    if provided < constants.thread_serialized {
        return Err(unsupported("it does not allow calls from more than one thread in turn (MPI_THREAD_SERIALIZED)".to_string()));
    }
    let version = library_version(&functions).lines().next().unwrap_or_default().to_string();
    let staging = Mutex::new(communicator::State::new(STAGING, constants.no_request));
    let library = Arc::new(Library { functions, constants, timeout: options.timeout, state: staging, owned: OnceLock::new() });
    let world = Communicator::world(&library)?;
    if let Some(launch) = &options.launch {
        let Launch { launcher, rank, size, size_variable, .. } = launch;
        if (*rank, *size) != (world.rank(), world.size()) {
            return Err(unsupported(format!(
                "{launcher} started rank {rank} of {size} ({size_variable} = {size}), but with this library ({version}) it is rank {} of {}",
                world.rank(),
                world.size()
            )));
        }
    }
    // What a library allocates for the first messages belongs to it too, and what it allocates in every call.
    world.warm_up()?;
    let owned = resident().saturating_sub(before).max(STAGING as u64) + 2 * communicator::PART as u64;
    library.owned.set(owned).expect("set once, here");
    Ok(Mpi { world: Box::new(world), version })
}

/// Loads the library that is named, or the first of the usual names.
fn load(options: &MpiOptions) -> Result<(Loaded, String)> {
    let usual: &[&str] = match options.launch.as_ref().map(|launch| launch.launcher) {
        Some(Launcher::OpenMpi) => &["libmpi.so.40", "libmpi.so"],
        Some(Launcher::Pmi) => &["libmpi_abi.so.1", "libmpi.so.12", "libmpich.so.12", "libmpi.so"],
        _ => &["libmpi.so.40", "libmpi_abi.so.1", "libmpi.so.12", "libmpich.so.12", "libmpi.so"],
    };
    let named = options.library.as_ref().map(|name| vec![name.clone()]);
    let names = named.unwrap_or_else(|| usual.iter().map(OsString::from).collect());
    let mut tried = Vec::new();
    for name in names {
        // SAFETY: loading a library runs its initializers, which the user who names it or installs it trusts. Plugins
        // of Open MPI need its symbols to be global.
        match unsafe { Loaded::open(Some(&*name), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => return Ok((library, name.to_string_lossy().into_owned())),
            Err(error) => {
                let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                tried.push(format!("{} ({reason})", name.to_string_lossy()));
            }
        }
    }
    Err(CommError::NoLibrary { tried: tried.join(", ") })
}

/// Resident memory of this process; 0 where the system does not say.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(0, |kib| kib * 1024)
}

impl Group for Mpi {
    fn rank(&self) -> usize {
        self.world.rank()
    }

    fn size(&self) -> usize {
        self.world.size()
    }

    fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn Group>>> {
        self.world.split(color, key)
    }

    fn all_reduce(&self, numbers: NumbersMut<'_>, reduction: Reduction) -> Result<()> {
        self.world.all_reduce(numbers, reduction)
    }

    fn reduce_scatter(&self, send: Numbers<'_>, receive: NumbersMut<'_>, reduction: Reduction) -> Result<()> {
        self.world.reduce_scatter(send, receive, reduction)
    }

    fn all_gather(&self, send: Numbers<'_>, receive: NumbersMut<'_>) -> Result<()> {
        self.world.all_gather(send, receive)
    }

    fn broadcast(&self, numbers: NumbersMut<'_>, root: usize) -> Result<()> {
        self.world.broadcast(numbers, root)
    }

    fn send(&self, numbers: Numbers<'_>, to: usize) -> Result<()> {
        self.world.send(numbers, to)
    }

    fn receive(&self, numbers: NumbersMut<'_>, from: usize) -> Result<()> {
        self.world.receive(numbers, from)
    }

    fn barrier(&self) -> Result<()> {
        self.world.barrier()
    }

    fn owned_bytes(&self) -> u64 {
        self.world.owned_bytes()
    }
}

//! Communication between the processes of a run, one per device: a [`Group`] of ranks and its collectives.
//!
//! MPI is loaded at run time: no build needs it, and a run on one process does not either. The crate knows neither
//! graphs nor devices.
//!
//! | module | is, from the bottom up |
//! |---|---|
//! | `error` | what can go wrong, in words |
//! | `numbers` | slices of numbers that ranks exchange |
//! | `group` | the trait [`Group`] |
//! | `ordered` | sums over ranks in a stated order |
//! | `alone`, [`threads`] | a group of one; a group of threads, for tests |
//! | `launch` | the rank and the number of ranks, from the variables that launchers set |
//! | `mpi` | groups over MPI |

mod alone;
mod error;
mod group;
mod launch;
mod mpi;
mod numbers;
mod ordered;
pub mod threads;

pub use alone::Alone;
pub use error::{CommError, Result};
pub use group::Group;
pub use launch::{Launch, LaunchError, Launcher};
pub use mpi::{Mpi, MpiOptions};
pub use numbers::{Numbers, NumbersMut, Reduction};
pub use ordered::sum_in_order;

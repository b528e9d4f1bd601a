//! What the planner may do to a run to make it fit.

use crate::suggest::nearest;
use std::fmt;
use std::str::FromStr;

/// One thing the planner may be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Permission {
    /// Compute values again instead of keeping them. Changes nothing about the result.
    Recompute,
    /// Run single operations in slices. Changes nothing about the result.
    Split,
    /// Cut batches into pieces and sum their gradients. Changes nothing about the result, unless the model has batch statistics.
    Microbatch,
    /// Keep tensors of a device in the host's memory for a while, or in a file on a device that shares that. Changes nothing about the result.
    Offload,
    /// Keep activations in 16 bits. Changes the result slightly.
    MixedPrecision,
    /// Keep what the optimiser knows about parameters in 8 bits, if it is Adam or AdamW. Changes the result slightly.
    State8bit,
    /// Cut batches even if the model normalises by the statistics of a batch, which are then those of a piece.
    MicrobatchBatchnorm,
}

impl Permission {
    /// All of them by their names.
    pub const NAMES: [(&'static str, Permission); 7] = [
        ("recompute", Permission::Recompute),
        ("split", Permission::Split),
        ("microbatch", Permission::Microbatch),
        ("offload", Permission::Offload),
        ("mixed_precision", Permission::MixedPrecision),
        ("state_8bit", Permission::State8bit),
        ("microbatch_batchnorm", Permission::MicrobatchBatchnorm),
    ];

    /// Whether making use of it changes what is learnt.
    pub fn changes_results(self) -> bool {
        matches!(self, Permission::MixedPrecision | Permission::State8bit | Permission::MicrobatchBatchnorm)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Permission::NAMES.iter().find(|(_, permission)| *permission == self).map_or("", |(name, _)| name)
    }
}

/// What the planner may do to make a run fit. By default, everything that leaves the result as it is.
///
/// ```
/// use plimsoll::{Allow, Permission};
/// let allow: Allow = "recompute,microbatch".parse()?;
/// assert!(allow.has(Permission::Recompute) && !allow.has(Permission::Offload));
/// assert_eq!("recompute,mikrobatch".parse::<Allow>().unwrap_err().to_string(),
///     "there is no permission `mikrobatch`; did you mean `microbatch`?");
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allow(u8);

impl Default for Allow {
    fn default() -> Allow {
        Allow::of([Permission::Recompute, Permission::Split, Permission::Microbatch, Permission::Offload])
    }
}

impl Allow {
    /// Nothing: the run as it is written, or none.
    pub const NOTHING: Allow = Allow(0);

    /// These and nothing else.
    pub fn of(permissions: impl IntoIterator<Item = Permission>) -> Allow {
        permissions.into_iter().fold(Allow::NOTHING, Allow::with)
    }

    /// One more.
    pub fn with(self, permission: Permission) -> Allow {
        Allow(self.0 | 1 << permission as u8)
    }

    /// Whether something is allowed.
    pub fn has(self, permission: Permission) -> bool {
        self.0 & 1 << permission as u8 != 0
    }
}

/// A name in a list of permissions that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPermission {
    /// The name.
    pub name: String,
}

impl std::error::Error for UnknownPermission {}

impl fmt::Display for UnknownPermission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Permission::NAMES.map(|(name, _)| name);
        let hint = match nearest(&self.name, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("permissions are {}", known.join(", ")),
        };
        write!(f, "there is no permission `{}`; {hint}", self.name)
    }
}

impl FromStr for Allow {
    type Err = UnknownPermission;

    /// Names separated by commas; `none` for nothing.
    fn from_str(text: &str) -> Result<Allow, UnknownPermission> {
        let mut allow = Allow::NOTHING;
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty() && *name != "none") {
            let Some((_, permission)) = Permission::NAMES.iter().find(|(known, _)| *known == name) else {
                return Err(UnknownPermission { name: name.to_string() });
            };
            allow = allow.with(*permission);
        }
        Ok(allow)
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Permission::NAMES.iter().filter(|(_, permission)| self.has(*permission)).map(|(name, _)| *name).collect();
        f.pad(&if names.is_empty() { "none".to_string() } else { names.join(",") })
    }
}

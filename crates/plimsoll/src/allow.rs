//! Permissions: the strategies the planner may use to make a run fit.

use crate::suggest::nearest;
use std::fmt;
use std::str::FromStr;

/// One strategy that the planner may be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Permission {
    /// Recompute activations instead of storing them (gradient checkpointing). Results are unchanged.
    Recompute,
    /// Compute single layers in slices of their rows. Results are unchanged.
    Split,
    /// Split batches into micro-batches and accumulate gradients. Results are unchanged on the CPU, and equal up to the
    /// order of sums on GPUs. Models with batch normalization need [`Permission::MicrobatchBatchnorm`] too.
    Microbatch,
    /// Offload tensors to host memory, or to a file on a device that shares host memory. Results are unchanged.
    Offload,
    /// Store activations in 16 bits. Changes results slightly.
    MixedPrecision,
    /// Store the optimizer state of Adam or AdamW in 8 bits. Changes results slightly.
    State8bit,
    /// Use micro-batches even with batch normalization, which then uses the statistics of each micro-batch.
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

    /// Whether using it changes results by more than the order of sums.
    pub fn changes_results(self) -> bool {
        matches!(self, Permission::MixedPrecision | Permission::State8bit | Permission::MicrobatchBatchnorm)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Permission::NAMES.iter().find(|(_, permission)| *permission == self).map_or("", |(name, _)| name)
    }
}

/// The strategies the planner may use. By default, all that leave results unchanged, up to the order of
/// sums on GPUs.
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
    /// Nothing: the run as specified, or an error.
    pub const NOTHING: Allow = Allow(0);

    /// These and nothing else.
    pub fn of(permissions: impl IntoIterator<Item = Permission>) -> Allow {
        permissions.into_iter().fold(Allow::NOTHING, Allow::with)
    }

    /// With one more.
    pub fn with(self, permission: Permission) -> Allow {
        Allow(self.0 | 1 << permission as u8)
    }

    /// Whether something is allowed.
    pub fn has(self, permission: Permission) -> bool {
        self.0 & 1 << permission as u8 != 0
    }
}

/// An unknown name in a list of permissions.
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

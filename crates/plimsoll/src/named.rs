//! Names of enum variants, as configurations and reports write them.

/// Gives an enum `NAMES`, all its values by name, and `name()`. Adding a variant without a name does not compile.
/// Fields have their defaults in `NAMES`; aliases follow the name they stand for.
macro_rules! named {
    ($type:ident { $($variant:ident => $name:literal $(| $alias:literal)*),+ $(,)? }) => {
        impl $type {
            /// All values by name.
            pub const NAMES: &'static [(&'static str, $type)] =
                &[$(($name, $type::$variant), $(($alias, $type::$variant),)*)+];

            /// The name in configurations and reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name),+
                }
            }
        }
    };
    ($type:ident { $($name:literal => $variant:ident $(($($value:expr),+))? $({ $($field:ident: $number:expr),+ })?),+ $(,)? }) => {
        impl $type {
            /// All values by name, with their default numbers.
            pub const NAMES: &'static [(&'static str, $type)] =
                &[$(($name, $type::$variant $(($($value),+))? $({ $($field: $number),+ })?)),+];

            /// The name in configurations and reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant { .. } => $name),+
                }
            }
        }
    };
    // With a variant that code supplies, whose name is its own.
    ($type:ident, $custom:ident {
        $($name:literal => $variant:ident $(($($value:expr),+))? $({ $($field:ident: $number:expr),+ })?),+ $(,)?
    }) => {
        impl $type {
            /// All built-in values by name, with their default numbers.
            pub const NAMES: &'static [(&'static str, $type)] =
                &[$(($name, $type::$variant $(($($value),+))? $({ $($field: $number),+ })?)),+];

            /// The name in configurations and reports.
            pub fn name(&self) -> &'static str {
                match self {
                    $($type::$variant { .. } => $name,)+
                    $type::$custom(own) => own.name(),
                }
            }
        }
    };
}

pub(crate) use named;

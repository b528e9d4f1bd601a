//! The name of a layer in a graph, shared by its nodes.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The layer that a node came from, such as `encoder/block3/conv1`. Clones share the text: the nodes of a layer, in all
/// graphs of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(Arc<str>);

impl Deref for Scope {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl From<&Scope> for Scope {
    fn from(scope: &Scope) -> Scope {
        scope.clone()
    }
}

impl From<&str> for Scope {
    fn from(name: &str) -> Scope {
        Scope(name.into())
    }
}

impl From<&String> for Scope {
    fn from(name: &String) -> Scope {
        Scope(name.as_str().into())
    }
}

impl From<String> for Scope {
    fn from(name: String) -> Scope {
        Scope(name.into())
    }
}

impl PartialEq<str> for Scope {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for Scope {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl PartialEq<String> for Scope {
    fn eq(&self, other: &String) -> bool {
        **self == **other
    }
}

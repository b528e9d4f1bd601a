//! Files of other tools, read and written; damaged ones too.

#[path = "../entries/mod.rs"]
mod entries;
mod models;
mod mutations;
mod onnx;
mod read_back;

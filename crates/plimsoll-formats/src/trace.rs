//! Traces in the JSON form that Chrome and Perfetto read: slices on threads, and counters, on one time axis.

use crate::json::{write_number, write_string};
use std::io::{self, Write};

/// Writes a trace. Holds nothing but its place in the list of events.
///
/// ```
/// use plimsoll_formats::trace::TraceWriter;
/// let mut trace = TraceWriter::new(Vec::new())?;
/// trace.name_thread(1, 2, "compute")?;
/// trace.slice("conv2d", (1, 2), 10.0, 5.0, &[("bytes", 4096.0)])?;
/// trace.counter("arena", 1, 10.0, &[("conv2d", 4096.0)])?;
/// let text = String::from_utf8(trace.finish()?).expect("JSON is text");
/// assert!(text.starts_with("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n") && text.ends_with("\n]}\n"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TraceWriter<W> {
    writer: W,
    begun: bool,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace.
    pub fn new(mut writer: W) -> io::Result<TraceWriter<W>> {
        writer.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
        Ok(TraceWriter { writer, begun: false })
    }

    /// The name of a process: a group of threads and counters.
    pub fn name_process(&mut self, process: u32, name: &str) -> io::Result<()> {
        self.metadata("process_name", process, 0, name)
    }

    /// The name of a thread of a process.
    pub fn name_thread(&mut self, process: u32, thread: u32, name: &str) -> io::Result<()> {
        self.metadata("thread_name", process, thread, name)
    }

    /// Work on a thread `(process, thread)` that begins at `start_us` microseconds and takes `duration_us`.
    pub fn slice(
        &mut self,
        name: &str,
        (process, thread): (u32, u32),
        start_us: f64,
        duration_us: f64,
        arguments: &[(&str, f64)],
    ) -> io::Result<()> {
        self.begin("X", name, process)?;
        write!(self.writer, ",\"tid\":{thread},\"ts\":")?;
        write_number(&mut self.writer, start_us)?;
        self.writer.write_all(b",\"dur\":")?;
        write_number(&mut self.writer, duration_us)?;
        self.arguments(arguments)
    }

    /// The values of a counter from `time_us` microseconds on. Several values are stacked.
    pub fn counter(&mut self, name: &str, process: u32, time_us: f64, values: &[(&str, f64)]) -> io::Result<()> {
        self.begin("C", name, process)?;
        self.writer.write_all(b",\"ts\":")?;
        write_number(&mut self.writer, time_us)?;
        self.arguments(values)
    }

    /// Ends the trace, and gives back what it was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.writer.write_all(b"\n]}\n")?;
        self.writer.flush()?;
        Ok(self.writer)
    }

    fn metadata(&mut self, kind: &str, process: u32, thread: u32, name: &str) -> io::Result<()> {
        self.begin("M", kind, process)?;
        write!(self.writer, ",\"tid\":{thread},\"args\":{{\"name\":")?;
        write_string(&mut self.writer, name)?;
        self.writer.write_all(b"}}")
    }

    fn begin(&mut self, phase: &str, name: &str, process: u32) -> io::Result<()> {
        self.writer.write_all(if self.begun { b",\n{\"ph\":\"" } else { b"{\"ph\":\"" })?;
        self.begun = true;
        write!(self.writer, "{phase}\",\"pid\":{process},\"name\":")?;
        write_string(&mut self.writer, name)
    }

    fn arguments(&mut self, values: &[(&str, f64)]) -> io::Result<()> {
        self.writer.write_all(b",\"args\":{")?;
        for (i, (name, value)) in values.iter().enumerate() {
            if i > 0 {
                self.writer.write_all(b",")?;
            }
            write_string(&mut self.writer, name)?;
            self.writer.write_all(b":")?;
            write_number(&mut self.writer, *value)?;
        }
        self.writer.write_all(b"}}")
    }
}

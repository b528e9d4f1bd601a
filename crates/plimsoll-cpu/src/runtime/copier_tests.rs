//! The copier under the system's scheduler.

use super::*;
use plimsoll_core::device::MemoryStore;

#[test]
fn copies_execute_in_order_and_are_waited_for() {
    let backing: Arc<dyn BackingStore> = Arc::new(MemoryStore::new(Bytes(8)));
    let mut memory = [1u8, 2, 3, 4, 0, 0, 0, 0];
    let start = memory.as_mut_ptr();
    let job = |offset, at: usize, out| CopyJob {
        backing: Arc::clone(&backing),
        offset: Bytes(offset),
        address: start.wrapping_add(at),
        size: 4,
        out,
    };
    let jobs = [job(4, 0, true), job(4, 4, false)];
    let copier = Copier::new().unwrap();
    for _ in 0..100 {
        // SAFETY: the bytes live on this stack and are not accessed before the run is dropped.
        let run = unsafe { copier.run(&jobs) };
        run.start(1);
        run.wait(1).unwrap();
        run.start(2);
        drop(run);
    }
    assert_eq!(memory, [1, 2, 3, 4, 1, 2, 3, 4]);
}

/// A store that refuses every write.
struct Full;

impl BackingStore for Full {
    fn size(&self) -> Bytes {
        Bytes(4)
    }

    fn read(&self, _: Bytes, _: &mut [u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn write(&self, _: Bytes, _: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::Failed { device: "cpu".to_string(), what: "the disk is full".to_string() })
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[test]
fn a_failed_copy_is_returned_by_wait() {
    let mut memory = [0u8; 4];
    let jobs: Vec<CopyJob> =
        (0..3).map(|_| CopyJob { backing: Arc::new(Full), offset: Bytes(0), address: memory.as_mut_ptr(), size: 4, out: true }).collect();
    let copier = Copier::new().unwrap();
    for _ in 0..10 {
        // SAFETY: the bytes live on this stack and are not accessed before the run is dropped.
        let run = unsafe { copier.run(&jobs) };
        run.start(3);
        assert_eq!(run.wait(2).unwrap_err().to_string(), "cpu: the disk is full");
    }
}

/// A store whose implementation panics: a message, a formatted message, or neither.
struct Panics(u8);

impl BackingStore for Panics {
    fn size(&self) -> Bytes {
        Bytes(4)
    }

    fn read(&self, _: Bytes, _: &mut [u8]) -> Result<(), DeviceError> {
        match self.0 {
            0 => panic!("index out of range"),
            1 => panic!("lock of file {} poisoned", 7),
            _ => std::panic::resume_unwind(Box::new(7)),
        }
    }

    fn write(&self, offset: Bytes, _: &[u8]) -> Result<(), DeviceError> {
        self.read(offset, &mut [])
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn a_panic_of_the_backing_store_is_an_error_of_the_step() {
    let mut memory = [0u8; 4];
    let copier = Copier::new().unwrap();
    for (kind, message) in [(0, "index out of range"), (1, "lock of file 7 poisoned"), (2, "no message")] {
        for (out, access) in [(true, "writing"), (false, "reading")] {
            let jobs: Vec<CopyJob> = (0..3)
                .map(|_| CopyJob { backing: Arc::new(Panics(kind)), offset: Bytes(8), address: memory.as_mut_ptr(), size: 4, out })
                .collect();
            // SAFETY: the bytes live on this stack and are not accessed before the run is dropped.
            let run = unsafe { copier.run(&jobs) };
            run.start(3);
            let error = run.wait(1).unwrap_err().to_string();
            let what = "fix its `BackingStore` implementation, or plan without offloading";
            assert_eq!(error, format!("cpu: the backing store panicked while {access} 4 B at byte 8: {message}; {what}"));
        }
    }
}

#[test]
fn a_thread_that_cannot_be_started_is_an_error_that_says_what_to_do() {
    let refuse = &mut |_: ThreadSpec| Err(std::io::Error::from_raw_os_error(11));
    let error = Copier::start(refuse).err().expect("the thread was refused").to_string();
    assert!(error.starts_with("cpu: the thread that copies tensors to the backing store could not be started: "), "{error}");
    assert!(error.ends_with("set a smaller `threads`, or raise the limit on processes (`ulimit -u`)"), "{error}");
}

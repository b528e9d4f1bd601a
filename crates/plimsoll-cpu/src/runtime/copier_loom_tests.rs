//! The copier under every interleaving that loom finds; `tools/loom.sh` runs these models.

use super::*;
use plimsoll_core::device::MemoryStore;

/// What was written before a copy starts is copied, and what a copy writes is there once it was waited for, or once the
/// run is dropped.
#[test]
fn loom_copies_finish_before_they_are_waited_for() {
    loom::model(|| {
        let backing: Arc<dyn BackingStore> = Arc::new(MemoryStore::new(Bytes(1)));
        let mut memory = [1u8, 0];
        let start = memory.as_mut_ptr();
        let job =
            |at: usize, out| CopyJob { backing: Arc::clone(&backing), offset: Bytes(0), address: start.wrapping_add(at), size: 1, out };
        let jobs = [job(0, true), job(1, false)];
        let copier = Copier::new().unwrap();
        // SAFETY: the bytes live on this stack and are not accessed before their copies have finished.
        let run = unsafe { copier.run(&jobs) };
        run.start(1);
        run.wait(1).unwrap();
        run.start(2);
        drop(run);
        assert_eq!(memory, [1, 1]);
    });
}

/// A store whose implementation panics.
struct Panics;

impl BackingStore for Panics {
    fn size(&self) -> Bytes {
        Bytes(1)
    }

    fn read(&self, _: Bytes, _: &mut [u8]) -> Result<(), DeviceError> {
        std::panic::resume_unwind(Box::new("broken"))
    }

    fn write(&self, offset: Bytes, _: &[u8]) -> Result<(), DeviceError> {
        self.read(offset, &mut [])
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A panic of the backing store never leaves the step waiting, and the next run starts from scratch.
#[test]
fn loom_a_panic_of_the_backing_store_ends_the_wait() {
    loom::model(|| {
        let mut memory = [0u8];
        let jobs = [CopyJob { backing: Arc::new(Panics), offset: Bytes(0), address: memory.as_mut_ptr(), size: 1, out: false }];
        let copier = Copier::new().unwrap();
        for _ in 0..2 {
            // SAFETY: the byte lives on this stack and is not accessed before the run is dropped.
            let run = unsafe { copier.run(&jobs) };
            run.start(1);
            assert!(run.wait(1).unwrap_err().to_string().contains("panicked while reading 1 B at byte 0: broken"));
        }
    });
}

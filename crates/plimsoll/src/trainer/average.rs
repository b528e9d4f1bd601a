//! The averaged weights in place of the last step's.

use super::Trainer;
use crate::error::{Error, Result};
use crate::optim::EMA_NAME;
use plimsoll_core::Bytes;
use plimsoll_core::graph::{StateId, StateKind};

impl Trainer {
    /// Runs `body` with the averaged weights in place of the last step's, for example to evaluate or save them, and
    /// restores the weights.
    pub fn averaged<T>(&mut self, body: impl FnOnce(&mut Trainer) -> Result<T>) -> Result<T> {
        if self.spec.optimization.average.is_none() {
            return Err(Error::Config(
                "the run keeps no average of its weights; ask for one with `.average(…)` or `train.ema`".to_string(),
            ));
        }
        self.opened()?;
        self.swap_average()?;
        let result = body(self);
        self.swap_average()?;
        result
    }

    /// Exchanges parameters and their averages in chunks: a second copy is not planned for.
    fn swap_average(&mut self) -> Result<()> {
        let session = self.session_mut();
        if session.applied()? == 0 {
            // Without any averaging step, the average equals the weights.
            return Ok(());
        }
        let states = session.executor.plan().states.clone();
        let place = |name: &str| states.iter().position(|state| state.name == name);
        let (mut a, mut b) = ([0; 4096], [0; 4096]);
        for (i, parameter) in states.iter().enumerate().filter(|(_, state)| state.kind == StateKind::Parameter) {
            let Some(average) = place(&format!("{}/{EMA_NAME}", parameter.name)) else { continue };
            let mut done = Bytes::ZERO;
            while done < parameter.size {
                let length = (parameter.size - done).get().min(a.len());
                let pair = [(StateId(i as u32), &mut a[..length]), (StateId(average as u32), &mut b[..length])];
                for (state, bytes) in pair {
                    session.executor.read_state_part(state, done, bytes)?;
                }
                session.executor.write_state_part(StateId(i as u32), done, &b[..length])?;
                session.executor.write_state_part(StateId(average as u32), done, &a[..length])?;
                done += Bytes(length as u64);
            }
        }
        Ok(())
    }
}

//! Training: epochs of steps, validation after each, checkpoints, and events.

mod event;
mod over_ranks;
mod position;
mod progress;
mod tensorboard;
mod training;
mod validation;

use crate::callbacks::{Callback, CsvLog, EpochCallback, TrainingControl};
use crate::checkpoint::Checkpoints;
use crate::history::Epoch;
use crate::spec::{FitSpec, InitialWeights};
use crate::stop::StopHandle;
use plimsoll_data::Dataset;

pub use event::{Event, FirstBatch};
pub(crate) use training::train;
pub(crate) use validation::Validation;

/// How long to train, and what to do meanwhile: a [`FitSpec`] with the callbacks that only code can supply.
///
/// ```
/// use plimsoll::Fit;
/// let fit = Fit::epochs(10).on_event(|event| drop(event));
/// ```
pub struct Fit<'a> {
    pub(crate) spec: FitSpec,
    pub(crate) observer: Option<Observer<'a>>,
    pub(crate) callbacks: Vec<Box<dyn Callback + 'a>>,
    pub(crate) stop: StopHandle,
}

/// A function that sees every event.
pub(crate) type Observer<'a> = Box<dyn FnMut(&Event<'_>) + 'a>;

impl From<FitSpec> for Fit<'_> {
    fn from(spec: FitSpec) -> Self {
        Fit { spec, observer: None, callbacks: vec![], stop: StopHandle::new() }
    }
}

impl<'a> Fit<'a> {
    /// This many passes over the data.
    pub fn epochs(epochs: u64) -> Fit<'a> {
        FitSpec { epochs, ..FitSpec::default() }.into()
    }

    /// Measures loss and metrics on this data after every epoch.
    pub fn validate(mut self, data: &Dataset) -> Fit<'a> {
        self.spec.validation = Some(data.clone());
        self
    }

    /// Calls a function with every event.
    pub fn on_event(mut self, observer: impl FnMut(&Event<'_>) + 'a) -> Fit<'a> {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Adds a callback, such as [`EarlyStopping`](crate::EarlyStopping).
    pub fn callback(mut self, callback: impl Callback + 'a) -> Fit<'a> {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Calls a function after every epoch, which decides whether to continue.
    pub fn on_epoch(self, decide: impl FnMut(&Epoch) -> TrainingControl + 'a) -> Fit<'a> {
        self.callback(EpochCallback(decide))
    }

    /// Ends training once this handle is stopped: after the running step, with a checkpoint.
    pub fn stop_handle(mut self, stop: &StopHandle) -> Fit<'a> {
        self.stop = stop.clone();
        self
    }

    /// Writes checkpoints.
    pub fn checkpoints(mut self, checkpoints: Checkpoints) -> Fit<'a> {
        self.spec.checkpoints = Some(checkpoints);
        self
    }

    /// Continues from the newest checkpoint, if there is one, bit-identical to a run without interruption. The epochs
    /// are then those of the whole run, including those before the checkpoint.
    pub fn resume(mut self, resume: bool) -> Fit<'a> {
        self.spec.resume = resume;
        self
    }

    /// Starts from these weights instead of random ones. A resumed run has its own.
    pub fn initial_weights(mut self, weights: InitialWeights) -> Fit<'a> {
        self.spec.initial_weights = Some(weights);
        self
    }

    /// Ends with the weights of the best epoch instead of the last; needs checkpoints with a
    /// [best score](Checkpoints::best).
    pub fn restore_best(mut self, restore: bool) -> Fit<'a> {
        self.spec.restore_best = restore;
        self
    }

    /// Adds the callbacks that the description names; `writes`: also those that write files.
    pub(crate) fn with_described_callbacks(mut self, writes: bool) -> Fit<'a> {
        let described: [Option<Box<dyn Callback + 'a>>; 2] = [
            self.spec.early_stopping.clone().map(|stopping| Box::new(stopping) as _),
            self.spec.csv_log.clone().filter(|_| writes).map(|path| Box::new(CsvLog::new(path)) as _),
        ];
        self.callbacks.splice(0..0, described.into_iter().flatten());
        self
    }

    pub(crate) fn report(&mut self, event: &Event<'_>) {
        if let Some(observer) = &mut self.observer {
            observer(event);
        }
    }
}

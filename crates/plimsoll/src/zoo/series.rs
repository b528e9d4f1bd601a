//! Forecasters of series: they read some steps and say the numbers that follow.

use super::known;
use super::options::Setup;
use crate::nn::{Dense, Gru, Lstm, Model, Sequential};

/// Two LSTM layers of 64 and a dense one, for this many numbers to forecast.
pub fn lstm(numbers: usize) -> Model {
    known("lstm", numbers)
}

/// Two GRU layers of 64 and a dense one, for this many numbers to forecast.
pub fn gru(numbers: usize) -> Model {
    known("gru", numbers)
}

pub(super) fn make_lstm(setup: &Setup) -> Model {
    let units = setup.wide(64);
    Sequential::new().add(Lstm::new(units).sequence()).add(Lstm::new(units)).add(Dense::new(setup.classes)).into()
}

pub(super) fn make_gru(setup: &Setup) -> Model {
    let units = setup.wide(64);
    Sequential::new().add(Gru::new(units).sequence()).add(Gru::new(units)).add(Dense::new(setup.classes)).into()
}

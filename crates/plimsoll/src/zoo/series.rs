//! Time-series forecasters.

use super::entry::Entry;
use super::options::Setup;
use crate::nn::{Dense, Gru, Lstm, Model, Sequential};

pub(super) const LSTM: Entry = Entry::forecaster("lstm", "time-series forecaster with two LSTM layers of 64", make_lstm);

/// Two LSTM layers of 64 and a dense layer that forecasts this many values.
pub fn lstm(numbers: usize) -> Model {
    LSTM.for_classes(numbers)
}

pub(super) const GRU: Entry = Entry::forecaster("gru", "time-series forecaster with two GRU layers of 64", make_gru);

/// Two GRU layers of 64 and a dense layer that forecasts this many values.
pub fn gru(numbers: usize) -> Model {
    GRU.for_classes(numbers)
}

fn make_lstm(setup: &Setup) -> Model {
    let units = setup.wide(64);
    Sequential::new().add(Lstm::new(units).sequence()).add(Lstm::new(units)).add(Dense::new(setup.classes)).into()
}

fn make_gru(setup: &Setup) -> Model {
    let units = setup.wide(64);
    Sequential::new().add(Gru::new(units).sequence()).add(Gru::new(units)).add(Dense::new(setup.classes)).into()
}

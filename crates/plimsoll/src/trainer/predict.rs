//! Predictions, a piece at a time, so that they never all have to be in memory.

use super::Trainer;
use super::fit::HeldOut;
use super::session::Tally;
use super::variants::Variants;
use crate::error::Result;
use plimsoll_core::Bytes;
use plimsoll_core::step::Role;
use plimsoll_data::Dataset;

/// The predictions for some rows, in the order of the data.
pub struct Prediction<'a> {
    /// The first row.
    pub first_row: u64,
    /// How many rows.
    pub rows: usize,
    /// The shape of one row's prediction.
    pub shape: &'a [usize],
    /// The numbers, row after row.
    pub values: &'a [f32],
}

impl Trainer {
    /// Hands the predictions for all rows to `sink`, piece by piece. Memory does not grow with the number of rows.
    pub fn predict_with(&mut self, data: &Dataset, mut sink: impl FnMut(&Prediction<'_>)) -> Result<()> {
        self.open_planned()?;
        let (Some(session), Some(programs)) = (&mut self.session, self.variants.as_ref().map(Variants::asked)) else {
            unreachable!("opened above")
        };
        let per_row: usize = programs.prediction.iter().product();
        let size = Bytes((session.micro_batch * per_row * 4) as u64);
        let _reservation = session.ledger.reserve("predictions", size)?;
        let mut values = vec![0.0; session.micro_batch * per_row];
        let pipeline = data.clone().rebatch(session.feed_rows).plan(session.ledger.available())?;
        let mut rows_before = 0;
        let mut pieces = HeldOut::start(Role::Predict, data, &pipeline, session, 1)?;
        pieces.each_piece(session, Role::Predict, &mut Tally::default(), |session, rows| {
            let values = &mut values[..rows * per_row];
            session.read_predictions(values)?;
            sink(&Prediction { first_row: rows_before, rows, shape: &programs.prediction, values });
            rows_before += rows as u64;
            Ok(())
        })
    }

    /// Plans for predictions only: nothing is held for learning.
    pub fn for_prediction(mut self) -> Trainer {
        self.only_predicts = true;
        self
    }

    /// The shape of one row's prediction.
    pub fn prediction_shape(&mut self) -> Result<&[usize]> {
        self.prepare()?;
        Ok(&self.variants.as_ref().expect("prepared above").asked().prediction)
    }

    /// The prediction for one row of a model with one input, given as the bytes of its column.
    pub fn predict_row(&mut self, row: &[u8], prediction: &mut [f32]) -> Result<()> {
        self.open_planned()?;
        let Some(session) = &mut self.session else { unreachable!("opened above") };
        session.predict_row(row)?;
        session.read_predictions(prediction)
    }

    /// The predictions for all rows, row after row, in one vector.
    pub fn predict(&mut self, data: &Dataset) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        self.predict_with(data, |piece| all.extend_from_slice(piece.values))?;
        Ok(all)
    }
}

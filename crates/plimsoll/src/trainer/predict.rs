//! Predictions, one micro-batch at a time, so that they need not all be in memory.

use super::Trainer;
use crate::class_report::ClassReport;
use crate::error::{Error, Result};
use crate::fit::Validation;
use crate::graphs::ValueKind;
use crate::image_scan::scan_images;
use crate::output_columns::{ModelColumns, OutputColumns};
use crate::output_kind::OutputKind;
use crate::plan::prediction_bytes;
use crate::report::{Classes, PredictedRows, rows_to_count};
use crate::session::{Piece, Session, Tally};
use crate::stop::StopHandle;
use plimsoll_core::Reservation;
use plimsoll_core::budget::Owner;
use plimsoll_core::step::Role;
use plimsoll_data::Dataset;
use std::sync::Arc;

/// The predictions for some rows, in the order of the data.
pub struct Prediction<'a> {
    /// The first row.
    pub first_row: u64,
    /// How many rows.
    pub rows: usize,
    /// The shape of one row of the model's first output.
    pub shape: &'a [usize],
    /// The values of the model's first output, row after row.
    pub values: &'a [f32],
    /// All outputs of the model, in order, including the first.
    pub outputs: &'a [Predicted],
}

impl<'a> Prediction<'a> {
    /// The values of the output of this name, row after row.
    pub fn output(&self, name: &str) -> Option<&'a [f32]> {
        self.outputs.iter().find(|output| output.name == name).map(|output| &output.values[..])
    }
}

/// One output of a model for some rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    /// Its name.
    pub name: String,
    /// The shape of one row.
    pub shape: Vec<usize>,
    /// The numbers, row after row.
    pub values: Vec<f32>,
}

/// Buffers for the outputs of a number of rows, reserved before they are allocated.
pub(super) struct Results {
    outputs: Vec<Predicted>,
    /// The units of each output, if predictions are mapped to them.
    columns: Vec<OutputColumns>,
    _reservation: Reservation,
}

impl Results {
    pub fn new(session: &Session, rows: usize) -> Result<Results> {
        let outputs = &session.plan.interface.outputs;
        let reservation = session.ledger.reserve(Owner::Predictions, prediction_bytes(&session.plan.interface, rows))?;
        let make = |(name, shape): &(String, Vec<usize>)| Predicted {
            name: name.clone(),
            shape: shape.clone(),
            values: Vec::with_capacity(rows * shape.iter().product::<usize>()),
        };
        Ok(Results { outputs: outputs.iter().map(make).collect(), columns: Vec::new(), _reservation: reservation })
    }

    pub fn clear(&mut self) {
        self.outputs.iter_mut().for_each(|output| output.values.clear());
    }

    /// Adds the outputs of the last run.
    pub fn take(&mut self, session: &Session, rows: usize) -> Result<()> {
        for (at, output) in self.outputs.iter_mut().enumerate() {
            let known = output.values.len();
            output.values.resize(known + rows * output.shape.iter().product::<usize>(), 0.0);
            session.read_predictions(&output.name, &mut output.values[known..])?;
            if let Some(columns) = self.columns.get(at) {
                columns.rescale(&mut output.values[known..]);
            }
        }
        Ok(())
    }

    pub fn outputs(&self) -> &[Predicted] {
        &self.outputs
    }
}

impl Trainer {
    /// Passes the predictions for all rows to `sink`, one micro-batch at a time. Memory does not grow with the number
    /// of rows.
    pub fn predict_with(&mut self, data: &Dataset, mut sink: impl FnMut(&Prediction<'_>)) -> Result<()> {
        self.predict_pieces(data, None, &StopHandle::new(), |prediction, _| sink(prediction))
    }

    /// Like [`predict_with`](Trainer::predict_with), in the units of the columns that outputs predict.
    pub(crate) fn predict_rescaled(&mut self, data: &Dataset, columns: &ModelColumns, mut sink: impl FnMut(&Prediction<'_>)) -> Result<()> {
        self.predict_pieces(data, Some(columns), &StopHandle::new(), |prediction, _| sink(prediction))
    }

    /// Passes predictions on with the rows they are for.
    fn predict_pieces(
        &mut self,
        data: &Dataset,
        columns: Option<&ModelColumns>,
        stop: &StopHandle,
        mut sink: impl FnMut(&Prediction<'_>, &Piece<'_>),
    ) -> Result<()> {
        scan_images(data)?;
        let session = self.opened()?;
        session.check_predicts()?;
        let mut results = Results::new(session, session.plan.micro_batch)?;
        if let Some(columns) = columns {
            results.columns = results.outputs.iter().map(|output| columns.of(&output.name)).collect();
        }
        let pipeline = data.clone().rebatch(session.plan.feed_rows).plan(session.ledger.available())?;
        let mut rows_before = 0;
        let mut pieces = Validation::start(Role::Predict, data, &pipeline, session, 1)?;
        pieces.each_piece(session, Role::Predict, &mut Tally::default(), stop, |session, piece| {
            let rows = piece.rows;
            results.clear();
            results.take(session, rows)?;
            let outputs = results.outputs();
            let (shape, values) = (&outputs[0].shape[..], &outputs[0].values[..]);
            sink(&Prediction { first_row: rows_before, rows, shape, values, outputs }, piece);
            rows_before += rows as u64;
            Ok(())
        })?;
        Ok(())
    }

    /// Counts predictions by class over rows of a dataset, in the memory of the session: all rows, or where that takes
    /// long, every nth, since data may be sorted by class. None if the model is no classifier with one output, or the
    /// memory does not suffice.
    pub(crate) fn count_classes(&mut self, data: &Dataset) -> Result<Option<Classes>> {
        let session = self.opened()?;
        if !session.predicts() {
            return Ok(None);
        }
        let interface = Arc::clone(&session.plan.interface);
        let labels = interface.ranges.iter().find(|range| matches!(range.kind, ValueKind::Labels(_)));
        let (Some(labels), [(_, shape)]) = (labels, &interface.outputs[..]) else { return Ok(None) };
        let schema = data.output_schema()?;
        let Some(mut classes) = Classes::new(&schema, data.class_names(), labels.column, shape) else { return Ok(None) };
        let Ok(_reserved) = session.ledger.reserve(Owner::Predictions, classes.footprint()) else { return Ok(None) };
        let (stop, rows) = (StopHandle::new(), rows_to_count(session.plan.predicted_s / session.plan.batch as f64));
        let every = data.size().map_or(1, |all| all.div_ceil(rows));
        // A stream is counted from its first row.
        let sample = data.every_nth(every).filter(|_| every > 1);
        classes.every = if sample.is_some() { every } else { 1 };
        let data = sample.as_ref().unwrap_or(data);
        let sizes: Vec<usize> = schema.columns().iter().map(|column| column.row_bytes().get()).collect();
        let counted = self.predict_pieces(data, None, &stop, |prediction, piece| {
            let predicted = PredictedRows { first_row: prediction.first_row, rows: prediction.rows, values: prediction.values };
            classes.add(&schema, &predicted, |index| &piece.batch.column(index)[piece.at * sizes[index]..]);
            if prediction.first_row + prediction.rows as u64 >= rows {
                stop.stop();
            }
        });
        match counted {
            Ok(()) => Ok(Some(classes)),
            // A report without a confusion matrix is better than none.
            Err(_) => Ok(None),
        }
    }

    /// Counts labels and predictions of all rows by class; none if the model has several outputs or is no classifier,
    /// or the memory does not suffice.
    pub(crate) fn class_report(&mut self, data: &Dataset) -> Result<Option<ClassReport>> {
        let kinds = self.output_kinds()?;
        let losses = self.spec.losses.clone();
        let session = self.opened()?;
        let interface = Arc::clone(&session.plan.interface);
        let ([kind], [(name, shape)]) = (&kinds[..], &interface.outputs[..]) else { return Ok(None) };
        let schema = data.output_schema()?;
        let named = losses.of(&[name])?[0].labels.clone();
        let labels = named.and_then(|name| schema.index_of(&name)).or_else(|| schema.index_of("y")).unwrap_or(1);
        let Some(column) = schema.columns().get(labels) else { return Ok(None) };
        let Some(mut report) = ClassReport::new(data.class_names(), *kind, shape, column) else { return Ok(None) };
        let Ok(_reserved) = session.ledger.reserve(Owner::Predictions, report.footprint()) else { return Ok(None) };
        let bytes = column.row_bytes().get();
        let counted = self.predict_pieces(data, None, &StopHandle::new(), |prediction, piece| {
            report.add(prediction.rows, prediction.values, &piece.batch.column(labels)[piece.at * bytes..]);
        });
        // Scores without a report are better than none.
        Ok(counted.ok().map(|()| report))
    }

    /// What the outputs of the model mean.
    pub(crate) fn output_kinds(&mut self) -> Result<Vec<OutputKind>> {
        let interface = Arc::clone(&self.opened()?.plan.interface);
        OutputKind::of(&self.spec, &interface)
    }

    /// The shape of one row's prediction, of a model with one result.
    pub fn prediction_shape(&mut self) -> Result<&[usize]> {
        self.only_output()?;
        Ok(&self.opened()?.plan.interface.outputs[0].1)
    }

    /// The prediction for one row of a model with one input and one result, given as the bytes of its column.
    pub fn predict_row(&mut self, row: &[u8], prediction: &mut [f32]) -> Result<()> {
        let name = self.only_output()?;
        let session = self.opened()?;
        session.predict_row(row)?;
        session.read_predictions(&name, prediction)
    }

    /// The predictions of a model with one result for all rows, row after row, in one vector.
    pub fn predict(&mut self, data: &Dataset) -> Result<Vec<f32>> {
        self.only_output()?;
        let mut all = Vec::new();
        self.predict_with(data, |piece| all.extend_from_slice(piece.values))?;
        Ok(all)
    }

    /// All results of the model for all rows.
    pub fn predict_all(&mut self, data: &Dataset) -> Result<Vec<Predicted>> {
        let mut all: Vec<Predicted> = Vec::new();
        self.predict_with(data, |piece| {
            if all.is_empty() {
                all.extend_from_slice(piece.outputs);
                return;
            }
            all.iter_mut().zip(piece.outputs).for_each(|(all, piece)| all.values.extend_from_slice(&piece.values));
        })?;
        Ok(all)
    }

    /// The name of the model's output, if it has one only.
    fn only_output(&self) -> Result<String> {
        match &self.spec.model.outputs().collect::<Vec<_>>()[..] {
            [name] => Ok(name.to_string()),
            several => Err(Error::Config(format!(
                "the model has the outputs {}; use `predict_all` or `predict_with` to get all of them",
                several.join(", ")
            ))),
        }
    }
}

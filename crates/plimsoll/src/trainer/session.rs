//! A run's memory and its position: the executor with its ledger, and how one piece of a batch is run.

use super::plan::RunPlan;
use super::programs::{Programs, ROW_SHARE};
use crate::error::{Error, Result};
use crate::optim::Optimizer;
use plimsoll_core::device::{Device, DeviceError, StepInputs};
use plimsoll_core::graph::StateId;
use plimsoll_core::plan::Place;
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, DType, Executor, Graph, Ledger, Reservation};
use plimsoll_data::{Batch, Schema};
use std::sync::Arc;

/// Columns a step reads: features and labels.
const COLUMNS: usize = 2;

pub(super) struct Session {
    pub executor: Executor,
    pub ledger: Ledger,
    pub micro_batch: usize,
    pub feed_rows: usize,
    /// Optimiser steps done.
    pub step: u64,
    /// Epochs done.
    pub epochs: u64,
    roles: Vec<Prepared>,
    classes: Option<(usize, usize)>,
    answers: usize,
    seed: u64,
    /// The training data's columns.
    schema: Schema,
    optimizer: Arc<dyn Optimizer>,
    /// The optimiser's numbers for the current step.
    rates: Vec<f32>,
    /// What the process itself takes, so that the ledger is about all of it.
    _process: Vec<Reservation>,
}

/// What the host must know to run one of the programs, found once.
struct Prepared {
    role: Role,
    scalars: Vec<Scalar>,
    numbers: Vec<f32>,
    columns: Vec<usize>,
    loss: Option<Place>,
    right: Option<Place>,
}

#[derive(Clone, Copy)]
enum Scalar {
    RowShare,
    /// An index into the optimiser's numbers.
    Optimizer(usize),
}

/// Some rows of a batch, as one program sees them.
pub(super) struct Piece<'a> {
    pub batch: &'a Batch<'a>,
    /// The first row within what the feed delivered.
    pub at: usize,
    pub rows: usize,
    /// The place of the first row within the batch the optimiser sees.
    pub first_row: u64,
    /// Rows of the batch the optimiser sees.
    pub batch_rows: u64,
}

/// Sums over rows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub loss: f64,
    pub right: f64,
    pub rows: u64,
}

impl Session {
    pub fn new(
        device: Arc<dyn Device>,
        plan: &RunPlan,
        programs: &Programs,
        optimizer: Arc<dyn Optimizer>,
        seed: u64,
        schema: Schema,
    ) -> Result<Session> {
        let ledger = Ledger::new("host", Some(plan.line));
        let own = |name: &&(String, _)| matches!(name.0.as_str(), "process" | "thread stacks");
        let process = plan.owners.iter().filter(own).map(|(name, size)| ledger.reserve(name, *size)).collect::<Result<Vec<_>, _>>()?;
        let mut executor = Executor::new(device, Arc::clone(&plan.memory), &ledger)?;
        executor.initialize(seed)?;
        let roles = plan.memory.programs.iter().map(|program| prepare(&executor, program.role, &program.graph, programs, &*optimizer));
        let roles = roles.collect();
        let rates = vec![0.0; optimizer.scalar_names().len()];
        Ok(Session {
            executor,
            ledger,
            micro_batch: plan.micro_batch,
            feed_rows: plan.feed_rows,
            step: 0,
            epochs: 0,
            roles,
            classes: programs.classes,
            answers: programs.answers,
            seed,
            schema,
            optimizer,
            rates,
            _process: process,
        })
    }

    /// That rows of this kind can be fed to a program: the columns it reads stand where they stood in training and are of the same kind.
    pub fn check_schema(&self, role: Role, schema: &Schema) -> Result<()> {
        let prepared = self.roles.iter().find(|prepared| prepared.role == role).expect("every role is planned");
        for index in &prepared.columns {
            let wanted = &self.schema.columns()[*index];
            match schema.columns().get(*index) {
                Some(column) if column == wanted => {}
                Some(column) => {
                    return Err(Error::Config(format!(
                        "the model was trained on the column {wanted}, but this data has {column} in its place"
                    )));
                }
                None => {
                    return Err(Error::Config(format!("the model was trained on the column {wanted}, but this data has only {schema}")));
                }
            }
        }
        Ok(())
    }

    /// Runs one piece and adds its loss and right answers to the tally.
    pub fn run(&mut self, role: Role, piece: &Piece<'_>, schema: &Schema, tally: &mut Tally) -> Result<()> {
        if role != Role::Predict {
            self.check_labels(piece)?;
        }
        if piece.first_row == 0 && matches!(role, Role::Step | Role::First) {
            self.optimizer.scalars(self.step + 1, &mut self.rates);
        }
        let prepared = self.roles.iter_mut().find(|prepared| prepared.role == role).expect("every role is planned");
        for (number, scalar) in prepared.numbers.iter_mut().zip(&prepared.scalars) {
            *number = match scalar {
                Scalar::RowShare => 1.0 / piece.batch_rows as f32,
                Scalar::Optimizer(i) => self.rates[*i],
            };
        }
        let mut columns: [&[u8]; COLUMNS] = [&[]; COLUMNS];
        for (column, index) in columns.iter_mut().zip(&prepared.columns) {
            let bytes = schema.columns()[*index].row_bytes().get();
            *column = &piece.batch.column(*index)[piece.at * bytes..(piece.at + piece.rows) * bytes];
        }
        let random = StepRandom { seed: self.seed, step: self.step as u32, first_row: piece.first_row };
        let inputs = StepInputs { columns: &columns[..prepared.columns.len()], scalars: &prepared.numbers, random };
        let (loss, right) = (prepared.loss, prepared.right);
        match self.executor.run(role, piece.rows, &inputs) {
            Err(DeviceError::NonFinite) => {
                let tensor = first_non_finite(&mut self.executor, role, piece.rows, &inputs, schema, &prepared.columns);
                let loss = loss.map(|place| self.number(place)).transpose()?.unwrap_or(f64::NAN);
                let loss = if loss.is_nan() { "not a number (NaN)" } else { "infinite" }.to_string();
                return Err(Error::NonFinite { loss, step: self.step + 1, epoch: self.epochs + 1, tensor });
            }
            result => result?,
        }
        if let Some(place) = loss {
            tally.loss += self.number(place)? * piece.batch_rows as f64;
        }
        if let Some(place) = right {
            tally.right += self.number(place)? / self.answers as f64;
        }
        tally.rows += piece.rows as u64;
        Ok(())
    }

    /// Reads the predictions the last run left.
    pub fn read_predictions(&self, numbers: &mut [f32]) -> Result<()> {
        let place = self.executor.output(Role::Predict, "prediction").expect("the predicting program has predictions");
        // In pieces, through a fixed buffer: bytes and numbers are different types, and a second copy is not planned for.
        let mut bytes = [0u8; 4096];
        for (i, numbers) in numbers.chunks_mut(bytes.len() / 4).enumerate() {
            let bytes = &mut bytes[..numbers.len() * 4];
            self.executor.read(place.offset_by(i as u64 * 4096), bytes)?;
            numbers.iter_mut().zip(bytes.chunks_exact(4)).for_each(|(number, b)| *number = f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        }
        Ok(())
    }

    fn number(&self, place: Place) -> Result<f64> {
        let mut bytes = [0; 4];
        self.executor.read(place, &mut bytes)?;
        Ok(f64::from(f32::from_ne_bytes(bytes)))
    }

    fn check_labels(&self, piece: &Piece<'_>) -> Result<()> {
        let Some((column, classes)) = self.classes else { return Ok(()) };
        let labels = &piece.batch.column(column)[piece.at * 4..(piece.at + piece.rows) * 4];
        for (i, bytes) in labels.chunks_exact(4).enumerate() {
            let value = i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            if value < 0 || value as usize >= classes {
                let row = piece.batch.first_row + (piece.at + i) as u64;
                return Err(Error::Label { row, epoch: self.epochs + 1, value, classes });
            }
        }
        Ok(())
    }
}

fn prepare(executor: &Executor, role: Role, graph: &Graph, programs: &Programs, optimizer: &dyn Optimizer) -> Prepared {
    let scalars: Vec<Scalar> = graph
        .scalars()
        .iter()
        .map(|name| match optimizer.scalar_names().iter().position(|own| own == name) {
            Some(index) => Scalar::Optimizer(index),
            None => {
                assert_eq!(name, ROW_SHARE, "every scalar is the optimiser's or the trainer's");
                Scalar::RowShare
            }
        })
        .collect();
    let columns = programs.columns[..graph.inputs().len()].to_vec();
    let numbers = vec![0.0; scalars.len()];
    Prepared { role, scalars, numbers, columns, loss: executor.output(role, "loss"), right: executor.output(role, "right") }
}

/// Names the first tensor that is not finite: a column of the batch, a weight, or the result of a layer.
fn first_non_finite(
    executor: &mut Executor,
    role: Role,
    rows: usize,
    inputs: &StepInputs<'_>,
    schema: &Schema,
    columns: &[usize],
) -> String {
    for (bytes, index) in inputs.columns.iter().zip(columns) {
        let column = &schema.columns()[*index];
        if column.dtype == DType::F32
            && let Some(at) = not_finite(bytes)
        {
            return format!("the data, column `{}`, row {} of the batch", column.name, at / column.elements().max(1));
        }
    }
    if let Some(name) = broken_state(executor) {
        return format!("`{name}`, changed by the step before");
    }
    match executor.find_non_finite(role, rows, inputs) {
        Ok(Some(node)) => {
            let node = executor.plan().program(role).map(|program| program.graph.node(node).clone());
            node.map_or(String::new(), |node| format!("the {} of layer `{}`", node.op.define().name(), node.scope))
        }
        _ => "the loss itself".to_string(),
    }
}

/// The first state that holds something that is not finite. Read in pieces: a run that fails stays under its line too.
fn broken_state(executor: &Executor) -> Option<String> {
    let mut piece = [0; 4096];
    for (i, state) in executor.plan().states.iter().enumerate() {
        let mut done = Bytes::ZERO;
        while done < state.size {
            let piece = &mut piece[..(state.size - done).get().min(4096)];
            executor.read_state_part(StateId(i as u32), done, piece).ok()?;
            if not_finite(piece).is_some() {
                return Some(state.name.clone());
            }
            done += Bytes(piece.len() as u64);
        }
    }
    None
}

/// The place of the first number that is not finite.
fn not_finite(bytes: &[u8]) -> Option<usize> {
    bytes.chunks_exact(4).position(|b| !f32::from_ne_bytes([b[0], b[1], b[2], b[3]]).is_finite())
}

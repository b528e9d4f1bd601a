//! The alternatives that a search compares: micro-batch sizes, variants of fewer bits, and the graphs of each.

use super::Request;
use crate::allow::{Allow, Permission};
use crate::error::Result;
use crate::graphs::Variant;
use plimsoll_core::Graph;
use plimsoll_core::step::Role;

/// The micro-batches to try, largest first. They divide the batch, so that the pipeline can deliver them one by one.
pub(super) fn ways(request: &Request<'_>, allow: Allow) -> Vec<usize> {
    let cut = allow.has(Permission::Microbatch)
        && !request.programs.synchronized
        && (!request.programs.batch_statistics || allow.has(Permission::MicrobatchBatchnorm))
        && request.programs.worth_dividing(request.batch);
    match request.micro_batch {
        Some(rows) => vec![rows.clamp(1, request.batch)],
        None if cut => divisors(request.batch),
        None => vec![request.batch],
    }
}

/// The divisors of a number, largest first.
fn divisors(number: usize) -> Vec<usize> {
    let small: Vec<usize> = (1..).take_while(|n| n * n <= number).filter(|n| number.is_multiple_of(*n)).collect();
    let mut all: Vec<usize> = small.iter().map(|n| number / n).chain(small.iter().rev().copied()).collect();
    all.dedup();
    all
}

/// The variants that some permissions allow; the one of a resumed run.
pub(super) fn variants(request: &Request<'_>, allow: Allow) -> Vec<Variant> {
    match &request.spec.numerics {
        Some(fixed) => {
            let activations = fixed.precision != request.spec.optimization.precision;
            vec![Variant { activations, state: fixed.eight_bit_state }]
        }
        None => request.variants.allowed(allow).collect(),
    }
}

/// The same run in another variant.
pub(super) fn varied<'a>(request: &Request<'a>, variant: Variant) -> Result<Request<'a>> {
    Ok(Request { programs: request.variants.programs(variant)?, variant, ..request.clone() })
}

/// The graphs of a micro-batch size: those of whole batches, or those that accumulate gradients.
pub(super) fn graphs<'a>(request: &'a Request<'_>, micro_batch: usize) -> Result<&'a [(Role, Graph)]> {
    if micro_batch == request.batch { Ok(&request.programs.whole) } else { Ok(request.programs.accumulating()?) }
}

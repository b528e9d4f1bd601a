//! From pieces of work to steps with addresses: libraries are asked for their ways, and the texts of kernels collected.

use super::lower::{Address, Addresses, Convolving, Work};
use super::{Step, resolve};
use crate::kernels::{Argument, Kernel, PRELUDE};
use crate::libraries::cublaslt::Product;
use crate::libraries::cudnn::Convolution;
use crate::libraries::driver::Module;
use crate::libraries::nvrtc::AT_ONCE;
use crate::runtime::staging::Stage;
use crate::runtime::state::{DeviceState, lock};
use plimsoll_core::{Bytes, ValueId};
use std::collections::HashMap;
use std::sync::Mutex;

/// Collects the text of all kernels of a program, equal ones once.
pub(super) struct Assembly<'a> {
    pub shared: &'a DeviceState,
    pub addresses: &'a Addresses<'a>,
    pub stage: &'a Mutex<Stage>,
    pub names: HashMap<String, usize>,
    /// The texts to compile, each with [`AT_ONCE`] kernels.
    pub sources: Vec<String>,
}

/// A step whose kernel has a name, but no address yet.
pub(super) enum Unlinked {
    Launch { number: usize, blocks: [u32; 3], threads: u32, arguments: Vec<Address> },
    Ready(Step),
}

/// Who computes a convolution that has become these steps.
pub(super) fn way_of(steps: &[Unlinked]) -> &'static str {
    let any = |is: fn(&Step) -> bool| steps.iter().any(|step| matches!(step, Unlinked::Ready(step) if is(step)));
    match () {
        () if any(|step| matches!(step, Step::Convolution { .. })) => "cuDNN",
        () if any(|step| matches!(step, Step::Product { .. })) => "cuBLASLt",
        () => "generated",
    }
}

impl Assembly<'_> {
    pub fn resolve(
        &mut self,
        work: Work,
        inputs: &[ValueId],
        outputs: &[ValueId],
        offset: Bytes,
        workspace: Bytes,
    ) -> Result<Vec<Unlinked>, String> {
        match work {
            Work::Kernel(kernel, inputs) => Ok(vec![self.launch(&kernel, &inputs, outputs, offset)?]),
            Work::Product { extents, transpose: (a, b), operands, types, narrowed, fallback } => {
                let library = self.shared.products.as_ref().expect("products are only made where the library is");
                let taken = narrowed.map_or(0, |(_, bytes)| bytes);
                let scratch = self.addresses.arena.0 + offset.0;
                match Product::new(library, extents, types, a, b, workspace.get() - taken as usize) {
                    None => self.launch_all(&fallback, inputs, outputs, offset),
                    Some(product) => Ok(vec![Unlinked::Ready(Step::Product {
                        product: Box::new(product),
                        a: self.operand(operands[0], narrowed, inputs, scratch)?,
                        b: self.operand(operands[1], narrowed, inputs, scratch)?,
                        c: self.addresses.value(outputs[0])?,
                        workspace: Address::Fixed(scratch + taken),
                    })]),
                }
            }
            Work::Convolution(work) => {
                let Convolving { request, tensors, filter, before, after, fallback } = *work;
                let dnn = self.shared.dnn().expect("convolutions go to cuDNN only where it is");
                let [image, kernel, result] = tensors;
                let behind = Argument::WorkspaceBehind(filter as usize);
                let mut addresses = [Address::Answer; 4];
                for (address, argument) in addresses.iter_mut().zip([image, kernel, result, behind]) {
                    *address = self.addresses.argument(argument, inputs, outputs, offset)?;
                }
                let now = {
                    let stage = lock(self.stage);
                    addresses.map(|address| resolve(address, &stage, 0))
                };
                // SAFETY: the places are the plan's, inside of memories that this program keeps. Nothing but steps writes into the arena, and what one step left
                // there is lost when the next begins.
                match unsafe { Convolution::find(dnn, &request, workspace.get() - filter as usize, now) } {
                    Err(refusal) => {
                        self.shared.took(&format!("generated because cuDNN {refusal}"));
                        self.launch_all(&fallback, inputs, outputs, offset)
                    }
                    Ok(convolution) => {
                        let mut steps = Vec::new();
                        if let Some(kernel) = before {
                            steps.push(self.launch(&kernel, inputs, outputs, offset)?);
                        }
                        steps.push(Unlinked::Ready(Step::Convolution { convolution: Box::new(convolution), addresses }));
                        for (kernel, seen) in &after {
                            steps.push(self.launch(kernel, seen, outputs, offset)?);
                        }
                        Ok(steps)
                    }
                }
            }
        }
    }

    fn launch_all(&mut self, kernels: &[Kernel], inputs: &[ValueId], outputs: &[ValueId], offset: Bytes) -> Result<Vec<Unlinked>, String> {
        kernels.iter().map(|kernel| self.launch(kernel, inputs, outputs, offset)).collect()
    }

    /// Where an operand of a product is: in the scratch, if it was narrowed.
    fn operand(&self, i: usize, narrowed: Option<(usize, u64)>, inputs: &[ValueId], scratch: u64) -> Result<Address, String> {
        match narrowed {
            Some((operand, _)) if operand == i => Ok(Address::Fixed(scratch)),
            _ => self.addresses.value(inputs[i]),
        }
    }

    fn launch(&mut self, kernel: &Kernel, inputs: &[ValueId], outputs: &[ValueId], offset: Bytes) -> Result<Unlinked, String> {
        let arguments = kernel.parameters.iter().map(|(_, argument)| self.addresses.argument(*argument, inputs, outputs, offset));
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        let next = self.names.len();
        let text = kernel.source("");
        let number = match self.names.get(&text) {
            Some(number) => *number,
            None => {
                if next.is_multiple_of(AT_ONCE) {
                    self.sources.push(PRELUDE.to_string());
                }
                let source = self.sources.last_mut().expect("the first kernel begins a text");
                *source += &format!("\n{}", kernel.source(&kernel_name(next)));
                self.names.insert(text, next);
                next
            }
        };
        Ok(Unlinked::Launch { number, blocks: kernel.blocks, threads: kernel.threads, arguments })
    }
}

fn kernel_name(number: usize) -> String {
    format!("k{}", number % AT_ONCE)
}

impl Unlinked {
    pub fn link(self, modules: &[Module]) -> Result<Step, cudarc::driver::DriverError> {
        match self {
            Unlinked::Launch { number, blocks, threads, arguments } => {
                let function = modules[number / AT_ONCE].function(&kernel_name(number))?;
                Ok(Step::Launch { function, blocks, threads, arguments })
            }
            Unlinked::Ready(step) => Ok(step),
        }
    }
}

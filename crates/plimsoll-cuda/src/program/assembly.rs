//! Turns lowered ops into stream operations with addresses: libraries select their algorithms, and kernel sources are
//! grouped into modules.

use super::StreamOp;
use super::address::{Address, Addresses, resolve};
use super::lower::{CudnnConvOp, LoweredOp, MatmulStep};
use super::tuning::Tuner;
use crate::kernels::{Argument, Kernel};
use crate::libraries::cublaslt::MatmulRequest;
use crate::libraries::cudnn::ConvRequest;
use crate::libraries::driver::Module;
use crate::libraries::kernel_cache::Compiled;
use crate::libraries::nvrtc::{Compilation, KERNELS_PER_MODULE, LONG_KERNEL, ModuleSource};
use crate::runtime::memory::DeviceBuffer;
use crate::runtime::staging::StagingRing;
use crate::runtime::state::{DeviceState, lock};
use plimsoll_core::{Bytes, ValueId};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

/// Collects the sources of all kernels of a program; equal kernels are shared.
pub(super) struct Assembly<'a> {
    shared: &'a Arc<DeviceState>,
    addresses: &'a Addresses<'a>,
    /// None if the memory is given for every run.
    staging_ring: Option<&'a Mutex<StagingRing>>,
    /// The scope of the current node, for kernel names.
    pub scope: &'a str,
    /// The kernels so far, by their source without a name: their module and their place in it.
    kernels: HashMap<String, (usize, usize)>,
    /// Their names.
    names: HashSet<String>,
    /// The module that is being assembled, and its number; complete ones are being compiled.
    source: ModuleSource,
    number: usize,
    /// Number of modules.
    modules: usize,
    compilation: Compilation,
    /// Selects the algorithms of libraries.
    pub tuner: Tuner<'a>,
    /// Where convolutions are tried, if the memory is given for every run.
    scratch: Option<DeviceBuffer>,
}

/// An address with the alignment of all planned ones, for requests that no run reads.
const ALIGNED: u64 = 256;

/// A stream operation whose kernel is not compiled yet.
pub(super) enum UnlinkedOp {
    Launch { place: (usize, usize), grid: [u32; 3], threads: u32, arguments: Vec<Address> },
    Ready(StreamOp),
}

/// The implementation of a convolution that was lowered to these operations.
pub(super) fn algorithm_of(steps: &[UnlinkedOp]) -> &'static str {
    let any = |is: fn(&StreamOp) -> bool| steps.iter().any(|step| matches!(step, UnlinkedOp::Ready(step) if is(step)));
    match () {
        () if any(|step| matches!(step, StreamOp::Convolution { .. })) => "cuDNN",
        () if any(|step| matches!(step, StreamOp::Matmul { .. })) => "cuBLASLt",
        () => "generated",
    }
}

impl<'a> Assembly<'a> {
    /// An empty one. Without a staging ring, the memory is given for every run.
    pub fn new(
        shared: &'a Arc<DeviceState>,
        addresses: &'a Addresses<'a>,
        staging_ring: Option<&'a Mutex<StagingRing>>,
        tuner: Tuner<'a>,
    ) -> Assembly<'a> {
        Assembly {
            shared,
            addresses,
            staging_ring,
            scope: "",
            kernels: HashMap::new(),
            names: HashSet::new(),
            source: ModuleSource::default(),
            number: 0,
            modules: 0,
            compilation: Compilation::new(&shared.compiler),
            tuner,
            scratch: None,
        }
    }

    /// The address of an argument while the program is loaded; some aligned one if that is not known.
    fn now(&self, address: Address) -> u64 {
        self.staging_ring.map_or(ALIGNED, |staging_ring| resolve(address, &lock(staging_ring), 0))
    }

    /// Addresses in memory of its own at which a convolution can be tried.
    fn scratch(&mut self, request: &ConvRequest, workspace: usize) -> Result<[u64; 4], String> {
        let sizes = [request.tensors()[0], request.tensors()[1], request.tensors()[2], workspace];
        let mut offset = 0;
        let offsets = sizes.map(|size| {
            offset += size.next_multiple_of(ALIGNED as usize) as u64;
            offset - size.next_multiple_of(ALIGNED as usize) as u64
        });
        if self.scratch.as_ref().is_none_or(|scratch| scratch.size < offset) {
            self.scratch = None;
            let memory = DeviceBuffer::new(self.shared, Bytes(offset)).map_err(|error| format!("could not be tried: {error}"))?;
            self.scratch = Some(memory);
        }
        let start = self.scratch.as_ref().map_or(0, |scratch| scratch.start);
        Ok(offsets.map(|offset| start + offset))
    }

    pub fn resolve(
        &mut self,
        work: LoweredOp,
        inputs: &[ValueId],
        outputs: &[ValueId],
        offset: Bytes,
        workspace: Bytes,
    ) -> Result<Vec<UnlinkedOp>, String> {
        match work {
            LoweredOp::Kernel(kernel, inputs) => Ok(vec![self.launch(&kernel, &inputs, outputs, offset)?]),
            LoweredOp::Kernels(kernels, inputs, outputs) => self.launch_all(&kernels, &inputs, &outputs, offset),
            LoweredOp::Matmul { steps, bias_at, taken, fallback } => {
                let library = self.shared.products.as_ref().expect("products are only made where the library is");
                // A bias is always a copy in the workspace.
                let bias_address = self.addresses.argument(Argument::WorkspaceAt(bias_at as usize), inputs, outputs, offset)?;
                let bias_now = self.now(bias_address);
                let bias = |request: &MatmulRequest| request.bias.then_some(bias_now);
                let mut make = |step: &MatmulStep| match step {
                    MatmulStep::Kernel(_) => Some(None),
                    MatmulStep::Product(request, ..) => {
                        let new = || self.tuner.product(library, request, bias(request), workspace.get() - taken as usize);
                        self.shared.start_times.time("cublaslt_algorithms", new).map(Some)
                    }
                };
                let Some(products) = steps.iter().map(&mut make).collect::<Option<Vec<_>>>() else {
                    return self.launch_all(&fallback, inputs, outputs, offset);
                };
                let at = |argument: Argument| self.addresses.argument(argument, inputs, outputs, offset);
                let scratch = at(Argument::WorkspaceAt(taken as usize))?;
                let addresses = steps.iter().map(|step| match step {
                    MatmulStep::Kernel(_) => Ok(None),
                    MatmulStep::Product(_, [a, b, c], onto) => {
                        let onto = onto.map(at).transpose()?;
                        Ok(Some(([at(*a)?, at(*b)?, at(*c)?], onto)))
                    }
                });
                let addresses = addresses.collect::<Result<Vec<_>, String>>()?;
                let mut ops = Vec::new();
                for ((step, product), addresses) in steps.iter().zip(products).zip(addresses) {
                    ops.push(match (step, product, addresses) {
                        (MatmulStep::Product(request, ..), Some(mut product), Some(([a, b, c], onto))) => {
                            let now = [a, b, c, scratch].map(|address| self.now(address));
                            let added = onto.map(|onto| self.now(onto));
                            let text = request.text(onto.is_some(), workspace.get() - taken as usize);
                            let (stream, [a_now, b_now, c_now, scratch_now]) = (&self.shared.compute, now);
                            self.tuner.matmul(&mut product, &text, c_now, |product| {
                                // SAFETY: the locations are the plan's, inside of memory that this program keeps alive.
                                // The tuner runs it only if the results are in the arena, whose contents are dead
                                // between steps. A program whose memory is given has an empty one here.
                                unsafe { product.run([a_now, b_now, c_now], added, scratch_now, stream) }
                            });
                            let bias = (request.bias && self.staging_ring.is_none()).then_some(bias_address);
                            UnlinkedOp::Ready(StreamOp::Matmul { product: Box::new(product), a, b, c, bias, onto, workspace: scratch })
                        }
                        (MatmulStep::Kernel(kernel), ..) => self.launch(kernel, inputs, outputs, offset)?,
                        _ => unreachable!("every product has addresses"),
                    });
                }
                Ok(ops)
            }
            LoweredOp::AllReduce(work) => {
                let (work, alarm) = work.kernels();
                let call = work.resolve(self.addresses, (inputs, outputs), offset, alarm.is_some())?;
                let [before, after] = alarm.map_or([None, None], |kernels| kernels.map(Some));
                let mut launch = |kernel: Kernel| self.launch(&kernel, inputs, outputs, offset);
                let (before, after) = (before.map(&mut launch).transpose()?, after.map(&mut launch).transpose()?);
                Ok(before.into_iter().chain([UnlinkedOp::Ready(call.into())]).chain(after).collect())
            }
            LoweredOp::Shards(work) => {
                let (before, after) = work.kernels();
                let call = work.resolve(self.addresses, (inputs, outputs), offset)?;
                let before = self.launch_all(&before, inputs, outputs, offset)?;
                let after = self.launch_all(&after, inputs, outputs, offset)?;
                Ok(before.into_iter().chain([UnlinkedOp::Ready(call.into())]).chain(after).collect())
            }
            LoweredOp::Convolution(work) => {
                let CudnnConvOp { request, tensors, taken, before, after, fallback } = *work;
                let dnn = self.shared.cudnn().expect("convolutions go to cuDNN only where it is");
                let [image, kernel, result] = tensors;
                let behind = Argument::WorkspaceAt(taken as usize);
                let mut addresses = [Address::Results; 4];
                for (address, argument) in addresses.iter_mut().zip([image, kernel, result, behind]) {
                    *address = self.addresses.argument(argument, inputs, outputs, offset)?;
                }
                let left = workspace.get() - taken as usize;
                let now = match self.staging_ring {
                    Some(_) => Ok(addresses.map(|address| self.now(address))),
                    None => self.scratch(&request, left),
                };
                // SAFETY: the locations are the plan's, inside of memory that this program keeps alive, or scratch
                // memory of these sizes, which is freed after all work. Only steps write to the arena, and its contents
                // are dead between steps.
                let find = || now.and_then(|now| unsafe { self.tuner.convolution(dnn, &request, left, now) });
                match self.shared.start_times.time("cudnn_algorithms", find) {
                    Err(refusal) => {
                        self.shared.took(&format!("generated because cuDNN {refusal}"));
                        self.launch_all(&fallback, inputs, outputs, offset)
                    }
                    Ok(convolution) => {
                        let mut steps = Vec::new();
                        for kernel in &before {
                            steps.push(self.launch(kernel, inputs, outputs, offset)?);
                        }
                        steps.push(UnlinkedOp::Ready(StreamOp::Convolution { convolution, addresses }));
                        for (kernel, seen) in &after {
                            steps.push(self.launch(kernel, seen, outputs, offset)?);
                        }
                        Ok(steps)
                    }
                }
            }
        }
    }

    /// Waits for all modules, or returns the compiler's log of the first error.
    pub fn compile(mut self) -> Result<Vec<Compiled>, String> {
        if !self.source.names.is_empty() {
            self.compilation.submit(self.number, self.source);
        }
        self.compilation.finish()
    }

    fn launch_all(
        &mut self,
        kernels: &[Kernel],
        inputs: &[ValueId],
        outputs: &[ValueId],
        offset: Bytes,
    ) -> Result<Vec<UnlinkedOp>, String> {
        kernels.iter().map(|kernel| self.launch(kernel, inputs, outputs, offset)).collect()
    }

    fn launch(&mut self, kernel: &Kernel, inputs: &[ValueId], outputs: &[ValueId], offset: Bytes) -> Result<UnlinkedOp, String> {
        let arguments = kernel.parameters.iter().map(|(_, argument)| self.addresses.argument(*argument, inputs, outputs, offset));
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        let text = kernel.source("");
        let place = match self.kernels.get(&text) {
            Some(place) => *place,
            None => {
                let place = self.add(kernel, &text);
                self.kernels.insert(text, place);
                place
            }
        };
        Ok(UnlinkedOp::Launch { place, grid: kernel.grid, threads: kernel.threads, arguments })
    }

    /// Adds a new kernel to a module.
    fn add(&mut self, kernel: &Kernel, text: &str) -> (usize, usize) {
        let name = unique(kernel_name(kernel.name, self.scope), &mut self.names);
        if text.len() > LONG_KERNEL {
            let mut source = ModuleSource::new();
            source.add(kernel, name, text);
            self.modules += 1;
            self.compilation.submit(self.modules - 1, source);
            return (self.modules - 1, 0);
        }
        if self.source.names.len() == KERNELS_PER_MODULE {
            let complete = std::mem::take(&mut self.source);
            self.compilation.submit(self.number, complete);
        }
        if self.source.names.is_empty() {
            (self.source, self.number) = (ModuleSource::new(), self.modules);
            self.modules += 1;
        }
        self.source.add(kernel, name, text);
        (self.number, self.source.names.len() - 1)
    }
}

/// Maximum length of a name, so that profilers show it in full.
const LONGEST: usize = 64;

/// The name of a kernel for op `op` of a node in this scope, as shown by profilers: `conv2d__encoder_block3_conv1`. A
/// long scope is truncated to its innermost part, which differs between layers.
pub(super) fn kernel_name(op: &str, scope: &str) -> String {
    let scope: Vec<char> = scope.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let length = scope.len().min(LONGEST.saturating_sub(op.len() + 2));
    if length == 0 { op.to_string() } else { format!("{op}__{}", scope[scope.len() - length..].iter().collect::<String>()) }
}

/// The name, with a numeric suffix if it is taken.
pub(super) fn unique(name: String, taken: &mut HashSet<String>) -> String {
    let numbered = (2..).map(|number| format!("{name}_{number}"));
    let free =
        std::iter::once(name.clone()).chain(numbered).find(|name| !taken.contains(name)).expect("there are more numbers than kernels");
    taken.insert(free.clone());
    free
}

impl UnlinkedOp {
    /// `modules` were loaded from `compiled`.
    pub fn link(self, modules: &[Module], compiled: &[Compiled]) -> Result<StreamOp, cudarc::driver::DriverError> {
        match self {
            UnlinkedOp::Launch { place: (module, kernel), grid, threads, arguments } => {
                let function = modules[module].function(&compiled[module].names[kernel])?;
                Ok(StreamOp::Launch { function, grid, threads, arguments })
            }
            UnlinkedOp::Ready(step) => Ok(step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_named_after_what_they_compute_and_the_scope() {
        assert_eq!(kernel_name("conv2d", "encoder/block3/conv1"), "conv2d__encoder_block3_conv1");
        assert_eq!(kernel_name("pointwise", ""), "pointwise");
        assert_eq!(kernel_name("matmul", "Überschrift.0"), "matmul___berschrift_0");
        let long = kernel_name("attention_grad_key_value", &"transformer/layers/".repeat(20));
        assert_eq!((long.len(), long.starts_with("attention_grad_key_value__"), long.ends_with("_layers_")), (64, true, true));
    }

    #[test]
    fn names_are_unique() {
        let mut taken = HashSet::new();
        let names = ["cast__a", "cast__a", "cast__a_2", "cast__a"].map(|name| unique(name.to_string(), &mut taken));
        assert_eq!(names, ["cast__a", "cast__a_2", "cast__a_2_2", "cast__a_3"]);
    }
}

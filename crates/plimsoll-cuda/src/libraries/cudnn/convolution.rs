//! One convolution with its cuDNN execution plan, selected once when a program is loaded.
//!
//! The graph API reads images in place and supports asymmetric padding. Only the filter has a different layout: output
//! channels outermost (`[out, kh, kw, in]`), which generated kernels convert.

use super::constants::{CORRELATION, HEURISTICS, attribute, kind, note, ty};
use super::descriptor::Descriptor;
use super::library::{Cudnn, Functions, Raw};
use crate::algorithms::ComputeType;
use crate::algorithms::convolution::ConvPass;
use crate::kernels::ConvShape;
use plimsoll_core::DType;
use std::rc::Rc;
use std::sync::Arc;

/// Required alignment of all addresses.
pub(crate) const ALIGNMENT: u64 = 16;
/// Tensor ids: the image, the filter, the result, or the gradients of these.
const IDS: [i64; 3] = [1, 2, 3];
/// Upper bound on the notes of an engine.
const NOTES: usize = 32;

/// A request: image, filter and result have one type, and accumulation is in single precision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvRequest {
    pub kind: ConvPass,
    pub conv: ConvShape,
    pub ty: ComputeType,
}

impl ConvRequest {
    /// The request as text, under which measured algorithms are recorded.
    pub fn text(&self, workspace: usize) -> String {
        let ConvRequest { kind, conv: ConvShape { window, groups, image: [n, h, w, c], result }, ty } = *self;
        let pass = match kind {
            ConvPass::Forward => "conv2d",
            ConvPass::GradInput => "conv2d_grad_input",
            ConvPass::GradFilter => "conv2d_grad_filter",
        };
        let ((kh, kw), (sh, sw), (dh, dw)) = (window.size, window.stride, window.dilation);
        let ((top, bottom), (left, right)) = (window.pad_rows, window.pad_columns);
        format!(
            "{pass} {n}x{h}x{w}x{c} to {} window {kh}x{kw} stride {sh}x{sw} dilation {dh}x{dw} pad {top},{bottom},{left},{right} \
             groups {groups} {} in {workspace}",
            result[3],
            ty.text()
        )
    }
}

impl ConvRequest {
    /// Bytes of the image, the filter and the result.
    pub fn tensors(&self) -> [usize; 3] {
        let ConvShape { window, groups, image, result } = self.conv;
        let filter = [window.size.0, window.size.1, image[3] / groups, result[3]];
        [image, filter, result].map(|extents| extents.iter().product::<usize>() * self.ty.dtype.size())
    }
}

/// A convolution with its execution plan.
pub(crate) struct Convolution {
    handle: Arc<Cudnn>,
    way: ExecutionPlan,
    /// The engine and its knobs, as they are recorded.
    pub engine: String,
    /// The query that the plan refers to. Shared only with other plans of one search, which stay on the thread that
    /// loads a program.
    _asked: Rc<EngineQuery>,
}

/// An execution plan of the library.
struct ExecutionPlan {
    plan: Descriptor,
    _engine: Descriptor,
}

/// The target of plans: an open GPU, or a described one, so that heuristics can be queried without a GPU.
#[derive(Clone, Copy)]
struct Target<'a> {
    handle: Raw,
    described: Option<&'a Descriptor>,
}

impl Target<'_> {
    fn open(handle: Raw) -> Target<'static> {
        Target { handle, described: None }
    }
}

impl Convolution {
    /// The fastest plan, by the library's ranking, that is deterministic, preserves the requested precision and needs
    /// at most `workspace` bytes; otherwise the reason why there is none. It is executed once, because a plan may still
    /// fail at execution.
    ///
    /// # Safety
    ///
    /// Same as [`run`](Convolution::run). The tensors' contents do not matter, and outputs are overwritten.
    pub unsafe fn find(dnn: &Arc<Cudnn>, request: &ConvRequest, workspace: usize, addresses: [u64; 4]) -> Result<Convolution, String> {
        // SAFETY: guaranteed by the caller.
        let mut found = unsafe { Convolution::search(dnn, request, workspace, addresses, 1, None) }?;
        Ok(found.remove(0))
    }

    /// Up to `most` plans as [`find`](Convolution::find) returns them, fastest first by the library's ranking; at least
    /// one. With a recorded `engine`, only plans with that one.
    ///
    /// # Safety
    ///
    /// Same as [`find`](Convolution::find).
    pub unsafe fn search(
        dnn: &Arc<Cudnn>,
        request: &ConvRequest,
        workspace: usize,
        addresses: [u64; 4],
        most: usize,
        engine: Option<&str>,
    ) -> Result<Vec<Convolution>, String> {
        if !Convolution::is_aligned(addresses) {
            return Err("wants addresses of another alignment".to_string());
        }
        let (mut found, mut refusal) = (Vec::<Convolution>::new(), "knows no way that fits".to_string());
        for heuristics in HEURISTICS {
            let asked = Rc::new(dnn.with(|handle| EngineQuery::new(dnn.functions, request, heuristics, Target::open(handle)))?);
            for config in &asked.configs {
                if found.len() == most {
                    return Ok(found);
                }
                let own = name_of(config);
                if engine.is_some_and(|engine| engine != own) || found.iter().any(|known| known.engine == own) {
                    continue;
                }
                let Some(way) = dnn.with(|handle| ExecutionPlan::new(config, request.ty, workspace, Target::open(handle))) else {
                    continue;
                };
                // SAFETY: guaranteed by the caller.
                match unsafe { way.execute(dnn, addresses) } {
                    Ok(()) => found.push(Convolution { handle: Arc::clone(dnn), way, engine: own, _asked: Rc::clone(&asked) }),
                    Err(error) => refusal = error,
                }
            }
        }
        if found.is_empty() { Err(refusal) } else { Ok(found) }
    }

    /// Queries the ranking of one request, because the first query of a process loads much.
    pub fn warm_up(dnn: &Cudnn, request: &ConvRequest) {
        let _ = dnn.with(|handle| EngineQuery::new(dnn.functions, request, HEURISTICS[0], Target::open(handle)));
    }

    /// Whether all addresses have the alignment that plans are made for.
    pub fn is_aligned(addresses: [u64; 4]) -> bool {
        addresses.iter().all(|address| address.is_multiple_of(ALIGNMENT))
    }

    /// Enqueues it. The addresses are those of image, filter, result and workspace.
    ///
    /// # Safety
    ///
    /// The addresses are tensors of the requested extents and workspace of the requested size, valid until the stream
    /// has executed it.
    pub unsafe fn run(&self, addresses: [u64; 4]) -> Result<(), String> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.way.execute(&self.handle, addresses) }
    }
}

impl ExecutionPlan {
    /// The execution plan of an engine, if it is deterministic, precise and small enough.
    fn new(config: &Descriptor, ty: ComputeType, workspace: usize, target: Target<'_>) -> Option<ExecutionPlan> {
        let engine = config.get_descriptor(attribute::CONFIG_ENGINE, kind::ENGINE).ok()?;
        let numerical = engine.get_enums(attribute::ENGINE_NUMERICAL_NOTES, ty::NUMERICAL_NOTE, NOTES);
        let behaviour = engine.get_enums(attribute::ENGINE_BEHAVIOUR_NOTES, ty::BEHAVIOUR_NOTE, NOTES);
        if !is_wanted(ty, &numerical, &behaviour) {
            return None;
        }
        let plan = Descriptor::new(config.functions, kind::PLAN).ok()?.set_descriptor(attribute::PLAN_CONFIG, config).ok()?;
        let plan = match target.described {
            None => plan.set_handle(attribute::PLAN_HANDLE, target.handle),
            Some(device) => plan.set_descriptor(attribute::PLAN_DEVICE, device),
        };
        let plan = plan.ok()?.finalize("planning").ok()?;
        let needed = *plan.get_integers(attribute::PLAN_WORKSPACE, 1).first()?;
        (usize::try_from(needed).ok()? <= workspace).then_some(ExecutionPlan { plan, _engine: engine })
    }

    /// # Safety
    /// Same as [`Convolution::run`].
    unsafe fn execute(&self, dnn: &Cudnn, [image, filter, result, workspace]: [u64; 4]) -> Result<(), String> {
        let functions = dnn.functions;
        let addresses = Descriptor::new(functions, kind::ADDRESSES)?
            .set_integers(attribute::ADDRESSES_IDS, &IDS)?
            .set_addresses(attribute::ADDRESSES_DATA, &[image, filter, result])?
            .set_addresses(attribute::ADDRESSES_WORKSPACE, &[workspace])?
            .finalize("naming addresses")?;
        // SAFETY: guaranteed by the caller; the plan was created for this handle.
        let status = dnn.with(|handle| unsafe { (functions.execute)(handle, self.plan.raw, addresses.raw) });
        functions.check(status, "a convolution by cuDNN failed")
    }
}

/// The text in which the engine of a configuration is recorded: its index and its knobs, in the library's order.
fn name_of(config: &Descriptor) -> String {
    let engine = config.get_descriptor(attribute::CONFIG_ENGINE, kind::ENGINE);
    let index = engine.ok().and_then(|engine| engine.get_integers(attribute::ENGINE_INDEX, 1).first().copied());
    let knobs = config.get_descriptors(attribute::CONFIG_KNOBS, kind::KNOB_CHOICE).unwrap_or_default();
    let knob = |knob: &Descriptor| {
        let (kind, value) = (knob.get_enums(attribute::KNOB_TYPE, ty::KNOB, 1), knob.get_integers(attribute::KNOB_VALUE, 1));
        format!(" {}={}", kind.first().unwrap_or(&-1), value.first().unwrap_or(&-1))
    };
    format!("engine {}{}", index.unwrap_or(-1), knobs.iter().map(knob).collect::<String>())
}

/// Whether an engine with these notes is deterministic and preserves the requested precision: single precision without
/// tensor cores, which would round to TF32, unless that is allowed; 16 bits with them.
fn is_wanted(ty: ComputeType, numerical: &[i32], behaviour: &[i32]) -> bool {
    let tensor_cores = numerical.contains(&note::TENSOR_CORES);
    numerical.iter().all(|note| *note == note::TENSOR_CORES)
        && tensor_cores == ty.on_tensor_cores()
        && !behaviour.contains(&note::COMPILED_LATER)
}

/// A convolution as an operation graph, and the library's engines for it, fastest first.
struct EngineQuery {
    configs: Vec<Descriptor>,
    /// The descriptors that the configurations refer to.
    _parts: Vec<Descriptor>,
}

impl EngineQuery {
    fn new(functions: &'static Functions, request: &ConvRequest, heuristics: i32, target: Target<'_>) -> Result<EngineQuery, String> {
        let ConvRequest { kind, conv, ty: ComputeType { dtype, .. } } = *request;
        let number = |n: usize| n as i64;
        let (window, [n, h, w, c], [_, oh, ow, out]) = (conv.window, conv.image.map(number), conv.result.map(number));
        let (inner, kh, kw) = (c / number(conv.groups), number(window.size.0), number(window.size.1));
        let image = tensor(functions, IDS[0], [n, c, h, w], dtype)?;
        let filter = tensor(functions, IDS[1], [out, inner, kh, kw], dtype)?;
        let result = tensor(functions, IDS[2], [n, out, oh, ow], dtype)?;
        let pair = |(rows, columns): (usize, usize)| [number(rows), number(columns)];
        let walk = Descriptor::new(functions, kind::CONVOLUTION)?
            .set_enum(attribute::CONVOLUTION_SUMS, ty::DATA_TYPE, data_type(DType::F32))?
            .set_enum(attribute::CONVOLUTION_MODE, ty::MODE, CORRELATION)?
            .set_integers(attribute::CONVOLUTION_AXES, &[2])?
            .set_integers(attribute::CONVOLUTION_PADS_BEFORE, &pair((window.pad_rows.0, window.pad_columns.0)))?
            .set_integers(attribute::CONVOLUTION_PADS_AFTER, &pair((window.pad_rows.1, window.pad_columns.1)))?
            .set_integers(attribute::CONVOLUTION_DILATIONS, &pair(window.dilation))?
            .set_integers(attribute::CONVOLUTION_STRIDES, &pair(window.stride))?
            .finalize("describing the window")?;
        let Operation { kind, first } = operation(kind);
        // The attributes of each operation are in the same order; only the order of the tensors differs.
        let [factor, old, walking, tensors @ ..] = first;
        let mut operation =
            Descriptor::new(functions, kind)?.set_float(factor, 1.0)?.set_float(old, 0.0)?.set_descriptor(walking, &walk)?;
        for (attribute, tensor) in tensors.into_iter().zip([&image, &filter, &result]) {
            operation = operation.set_descriptor(attribute, tensor)?;
        }
        let operation = operation.finalize("describing the convolution")?;
        let graph = Descriptor::new(functions, kind::GRAPH)?.set_descriptor(attribute::GRAPH_OPERATIONS, &operation)?;
        let graph = match target.described {
            None => graph.set_handle(attribute::GRAPH_HANDLE, target.handle)?,
            Some(_) => graph,
        };
        let graph = graph.finalize("describing the graph")?;
        let ordered = Descriptor::new(functions, kind::HEURISTICS)?.set_descriptor(attribute::HEURISTICS_GRAPH, &graph)?.set_enum(
            attribute::HEURISTICS_MODE,
            ty::HEURISTICS_MODE,
            heuristics,
        )?;
        let ordered = match target.described {
            None => ordered,
            Some(device) => ordered.set_descriptor(attribute::HEURISTICS_DEVICE, device)?,
        };
        let ordered = ordered.finalize("asking for engines")?;
        let configs = ordered.get_descriptors(attribute::HEURISTICS_RESULTS, kind::ENGINE_CONFIG)?;
        Ok(EngineQuery { configs, _parts: vec![image, filter, result, walk, operation, graph, ordered] })
    }
}

/// The description of an operation: its type, and the attributes for alpha, beta, the window, image, filter and result.
struct Operation {
    kind: i32,
    first: [i32; 6],
}

fn operation(kind: ConvPass) -> Operation {
    match kind {
        ConvPass::Forward => Operation { kind: kind::FORWARD, first: [700, 701, 702, 704, 703, 705] },
        ConvPass::GradInput => Operation { kind: kind::GRAD_INPUT, first: [706, 707, 708, 710, 709, 711] },
        ConvPass::GradFilter => Operation { kind: kind::GRAD_FILTER, first: [712, 713, 714, 716, 715, 717] },
    }
}

/// A channels-last tensor. `extents` are in the library's order: images or filters, channels, rows, columns.
fn tensor(functions: &'static Functions, id: i64, extents: [i64; 4], dtype: DType) -> Result<Descriptor, String> {
    let [_, c, h, w] = extents;
    Descriptor::new(functions, kind::TENSOR)?
        .set_enum(attribute::TENSOR_TYPE, ty::DATA_TYPE, data_type(dtype))?
        .set_integers(attribute::TENSOR_EXTENTS, &extents)?
        .set_integers(attribute::TENSOR_STRIDES, &[h * w * c, 1, w * c, c])?
        .set_integers(attribute::TENSOR_ID, &[id])?
        .set_integers(attribute::TENSOR_ALIGNMENT, &[ALIGNMENT as i64])?
        .finalize("describing a tensor")
}

fn data_type(dtype: DType) -> i32 {
    match dtype {
        DType::F16 => 2,
        DType::BF16 => 9,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::library;
    use super::*;
    use crate::algorithms::convolution::{self, Convolutions};
    use plimsoll_core::ops::Window;
    use plimsoll_core::selftest;

    #[test]
    fn engines_that_round_more_or_differ_from_run_to_run_are_not_wanted() {
        let cases = [
            (DType::F32, vec![], true),
            // Tensor cores would round single precision.
            (DType::F32, vec![note::TENSOR_CORES], false),
            (DType::BF16, vec![note::TENSOR_CORES], true),
            (DType::F16, vec![], false),
            // 2 is 16-bit accumulation, 4 nondeterminism, 5 Winograd, 9 direct loops, 77 unknown.
            (DType::F16, vec![note::TENSOR_CORES, 2], false),
            (DType::F32, vec![4], false),
            (DType::F32, vec![5], false),
            (DType::F32, vec![9], false),
            (DType::F32, vec![77], false),
        ];
        for (dtype, numerical, wanted) in cases {
            assert_eq!(is_wanted(ComputeType::new(dtype, false), &numerical, &[]), wanted, "{dtype} {numerical:?}");
        }
        assert!(!is_wanted(ComputeType::new(DType::F32, false), &[], &[note::COMPILED_LATER]));
        let tf32 = ComputeType::new(DType::F32, true);
        assert!(
            is_wanted(tf32, &[note::TENSOR_CORES], &[]) && !is_wanted(tf32, &[], &[]) && !is_wanted(tf32, &[note::TENSOR_CORES, 4], &[])
        );
    }

    /// An H200 as cuDNN describes it.
    const H200: &str = r#"{"deviceVer":900,"driverVer":13000,"cudaDeviceId":0,"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],
        "regsPerBlock":65536,"multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,
        "reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,
        "isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,"memClockRateKHz":3201000,"l2CacheSize":62914560,"deviceName":"NVIDIA H200",
        "totalGlobalMem":150110011392,"smVersion":900}"#;

    fn conv(side: usize, channels: usize, filters: usize, window: Window) -> ConvShape {
        let (h, w) = window.output((side, side)).unwrap();
        ConvShape { window, groups: 1, image: [32, side, side, channels], result: [32, h, w, filters] }
    }

    /// An H200 described to the library, if the library is installed and supports that.
    fn described() -> Option<(&'static Functions, Descriptor)> {
        let functions = library::functions()?;
        let device =
            Descriptor::new(functions, kind::DEVICE).and_then(|device| device.set_text(attribute::DEVICE_JSON, H200)?.finalize("a GPU"));
        device.ok().map(|device| (functions, device))
    }

    /// Whether the library has a plan within this workspace.
    fn has_way(functions: &'static Functions, device: &Descriptor, request: &ConvRequest, scratch: u64) -> bool {
        let target = Target { handle: std::ptr::null_mut(), described: Some(device) };
        HEURISTICS.into_iter().any(|heuristics| {
            let configs = EngineQuery::new(functions, request, heuristics, target);
            configs.is_ok_and(|asked| {
                asked.configs.iter().any(|config| ExecutionPlan::new(config, request.ty, scratch as usize, target).is_some())
            })
        })
    }

    #[test]
    fn a_request_is_recorded_with_all_that_selects_an_engine() {
        let window = Window { pad_rows: (0, 1), pad_columns: (0, 1), ..Window::valid((3, 3), (2, 2)) };
        let request = ConvRequest { kind: ConvPass::GradFilter, conv: conv(56, 64, 128, window), ty: ComputeType::new(DType::F32, true) };
        assert_eq!(
            request.text(4096),
            "conv2d_grad_filter 32x56x56x64 to 128 window 3x3 stride 2x2 dilation 1x1 pad 0,1,0,1 groups 1 tf32 in 4096"
        );
    }

    /// If cuDNN is installed, its heuristics for an H200 are queried without a GPU: the layers of a residual network
    /// must have a plan within the workspace of our rule.
    #[test]
    fn layers_of_a_residual_network_find_a_way_in_their_scratch() {
        let Some((functions, device)) = described() else { return println!("not asked: there is no cuDNN that answers without a GPU") };
        let same = |side: usize, size: usize, stride: usize| Window::same((size, size), (stride, stride), (1, 1), (side, side));
        let layers = [
            ("7×7 by 2", conv(224, 3, 64, Window { pad_rows: (3, 3), pad_columns: (3, 3), ..Window::valid((7, 7), (2, 2)) })),
            ("3×3 on 56", conv(56, 64, 64, same(56, 3, 1))),
            ("3×3 by 2, padded on one side", conv(56, 128, 128, same(56, 3, 2))),
            ("1×1 by 2", conv(56, 256, 512, Window::valid((1, 1), (2, 2)))),
            ("3×3 on 14", conv(14, 256, 256, same(14, 3, 1))),
            ("3×3 on 7", conv(7, 512, 512, same(7, 3, 1))),
        ];
        for (name, conv) in layers {
            for (dtype, tf32) in [(DType::F32, false), (DType::F32, true), (DType::F16, false), (DType::BF16, false)] {
                for kind in [ConvPass::Forward, ConvPass::GradInput, ConvPass::GradFilter] {
                    let types = [dtype, DType::F32, dtype];
                    let convolution::ConvAlgorithm::Cudnn(ty) = convolution::select(kind, &conv, types, tf32, Convolutions::Auto) else {
                        assert!(dtype == DType::F32 && !tf32, "{name}: on tensor cores all of them are worth it");
                        continue;
                    };
                    assert_eq!(ty, ComputeType::new(dtype, tf32), "{name}");
                    let scratch = convolution::workspace(kind, &conv, types, tf32, Convolutions::Auto);
                    let (conv, taken) = convolution::copies(kind, &conv, ty);
                    let found = has_way(functions, &device, &ConvRequest { kind, conv, ty }, scratch - taken);
                    assert!(found, "{name}, {ty:?}, {kind:?}: in {scratch} bytes");
                }
            }
        }
    }
    /// The op table has convolutions of every kind and type that cuDNN supports, with strides, dilation, groups and
    /// asymmetric padding.
    #[test]
    fn the_op_table_reaches_cudnn() {
        let Some((functions, device)) = described() else { return println!("not asked: there is no cuDNN that answers without a GPU") };
        let mut reached = std::collections::BTreeMap::<String, [usize; 2]>::new();
        for case in selftest::cases(0).iter().filter(|case| case.op.starts_with("conv2d")) {
            let tf32 = case.graph.tf32();
            for (_, node) in case.graph.nodes().filter(|(_, node)| selftest::name_in_table(&node.op).starts_with("conv2d")) {
                let (kind, conv, types) = convolution::of_node(&case.graph, node, case.rows);
                let convolution::ConvAlgorithm::Cudnn(ty) = convolution::select(kind, &conv, types, tf32, Convolutions::Libraries) else {
                    continue;
                };
                let scratch = convolution::workspace(kind, &conv, types, tf32, Convolutions::Libraries);
                let window = conv.window;
                let (conv, taken) = convolution::copies(kind, &conv, ty);
                let scratch = scratch - taken;
                let found = has_way(functions, &device, &ConvRequest { kind, conv, ty }, scratch);
                let traits = [
                    ("", true),
                    (" strided", window.stride != (1, 1)),
                    (" dilated", window.dilation != (1, 1)),
                    (" in groups", conv.groups > 1),
                    (" padded on one side", window.pad_rows.0 != window.pad_rows.1 || window.pad_columns.0 != window.pad_columns.1),
                ];
                for (name, _) in traits.into_iter().filter(|(_, has)| *has) {
                    reached
                        .entry(format!("{kind:?} {}{name}", if ty.tf32 { "tf32".to_string() } else { ty.dtype.to_string() }))
                        .or_default()[usize::from(found)] += 1;
                }
            }
        }
        println!("refused and taken: {reached:#?}");
        assert_eq!(reached.len(), 3 * 4 * 5, "{:?}", reached.keys());
        assert!(reached.iter().all(|(_, [_, taken])| *taken > 0), "{reached:#?}");
    }
}

//! One convolution, with the way cuDNN computes it: asked for once when a program is loaded, and the same every time.
//!
//! The library's graph interface takes images as they lie and padding that differs from side to side. Only the filter has another order there: output channels
//! outermost (`[out, kh, kw, in]`), which kernels of ours write and read.

use super::description::Description;
use super::library::{Dnn, Functions, Raw};
use super::numbers::{CORRELATION, HEURISTICS, attribute, kind, note, ty};
use crate::algorithms::convolution::Kind;
use crate::kernels::Conv;
use plimsoll_core::DType;
use std::sync::Arc;

/// What every address has to be a multiple of.
pub(crate) const ALIGNMENT: u64 = 16;
/// What the tensors are called: the image, the filter, the result, or the gradients of these.
const IDS: [i64; 3] = [1, 2, 3];
/// More notes than an engine has.
const NOTES: usize = 32;

/// What is asked of the library: image, filter and result are all of one type, and sums are single precision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub kind: Kind,
    pub conv: Conv,
    pub dtype: DType,
}

/// A convolution and how it is computed.
pub(crate) struct Convolution {
    dnn: Arc<Dnn>,
    way: Way,
    _asked: Asked,
}

/// A way that the library knows.
struct Way {
    plan: Description,
    _engine: Description,
}

/// Who the ways are for: a GPU that is open, or one that is only described, so that what the library would do can be asked without a GPU.
#[derive(Clone, Copy)]
struct Target<'a> {
    handle: Raw,
    described: Option<&'a Description>,
}

impl Target<'_> {
    fn open(handle: Raw) -> Target<'static> {
        Target { handle, described: None }
    }
}

impl Convolution {
    /// The first way in the library's order of speed that is deterministic, keeps the precision that was asked for and needs at most `workspace` bytes of
    /// scratch; else why there is none. It is put into the stream once, because a way that looked good may still be refused then.
    ///
    /// # Safety
    /// As for [`run`](Convolution::run). What the tensors hold does not matter, and what is written to is lost.
    pub unsafe fn find(dnn: &Arc<Dnn>, request: &Request, workspace: usize, addresses: [u64; 4]) -> Result<Convolution, String> {
        if addresses.iter().any(|address| !address.is_multiple_of(ALIGNMENT)) {
            return Err("wants addresses of another alignment".to_string());
        }
        let mut refusal = "knows no way that fits".to_string();
        for heuristics in HEURISTICS {
            let asked = dnn.with(|handle| Asked::new(dnn.functions, request, heuristics, Target::open(handle)))?;
            for config in &asked.configs {
                let Some(way) = dnn.with(|handle| Way::new(config, request.dtype, workspace, Target::open(handle))) else { continue };
                // SAFETY: the caller's promise.
                match unsafe { way.execute(dnn, addresses) } {
                    Ok(()) => return Ok(Convolution { dnn: Arc::clone(dnn), way, _asked: asked }),
                    Err(error) => refusal = error,
                }
            }
        }
        Err(refusal)
    }

    /// Puts it into the stream. The addresses are those of image, filter, result and scratch.
    ///
    /// # Safety
    /// The addresses are tensors of the extents and scratch of the size it was made for, until the stream has run it.
    pub unsafe fn run(&self, addresses: [u64; 4]) -> Result<(), String> {
        // SAFETY: the caller's promise.
        unsafe { self.way.execute(&self.dnn, addresses) }
    }
}

impl Way {
    /// How an engine would compute it, if that is deterministic, precise and small enough.
    fn new(config: &Description, dtype: DType, workspace: usize, target: Target<'_>) -> Option<Way> {
        let engine = config.only_part(attribute::CONFIG_ENGINE, kind::ENGINE).ok()?;
        let numerical = engine.read_choices(attribute::ENGINE_NUMERICAL_NOTES, ty::NUMERICAL_NOTE, NOTES);
        let behaviour = engine.read_choices(attribute::ENGINE_BEHAVIOUR_NOTES, ty::BEHAVIOUR_NOTE, NOTES);
        if !is_wanted(dtype, &numerical, &behaviour) {
            return None;
        }
        let plan = Description::new(config.functions, kind::PLAN).ok()?.part(attribute::PLAN_CONFIG, config).ok()?;
        let plan = match target.described {
            None => plan.handle(attribute::PLAN_HANDLE, target.handle),
            Some(device) => plan.part(attribute::PLAN_DEVICE, device),
        };
        let plan = plan.ok()?.fixed("planning").ok()?;
        let needed = *plan.read_integers(attribute::PLAN_WORKSPACE, 1).first()?;
        (usize::try_from(needed).ok()? <= workspace).then_some(Way { plan, _engine: engine })
    }

    /// # Safety
    /// As for [`Convolution::run`].
    unsafe fn execute(&self, dnn: &Dnn, [image, filter, result, workspace]: [u64; 4]) -> Result<(), String> {
        let functions = dnn.functions;
        let addresses = Description::new(functions, kind::ADDRESSES)?
            .numbers(attribute::ADDRESSES_IDS, &IDS)?
            .addresses(attribute::ADDRESSES_DATA, &[image, filter, result])?
            .addresses(attribute::ADDRESSES_WORKSPACE, &[workspace])?
            .fixed("naming addresses")?;
        // SAFETY: the caller's promise; the plan was made for this handle.
        let status = dnn.with(|handle| unsafe { (functions.execute)(handle, self.plan.raw, addresses.raw) });
        functions.check(status, "a convolution by cuDNN failed")
    }
}

/// Whether an engine with these notes gives the same bits every time, in the precision that was asked for: single precision without tensor cores, which would
/// round it to nineteen bits, and two bytes with them.
fn is_wanted(dtype: DType, numerical: &[i32], behaviour: &[i32]) -> bool {
    let tensor_cores = numerical.contains(&note::TENSOR_CORES);
    numerical.iter().all(|note| *note == note::TENSOR_CORES)
        && tensor_cores == dtype.is_half()
        && !behaviour.contains(&note::COMPILED_LATER)
}

/// A convolution as the library sees it, and the engines that it would use, the fastest first.
struct Asked {
    configs: Vec<Description>,
    /// What the configurations were made from.
    _parts: Vec<Description>,
}

impl Asked {
    fn new(functions: &'static Functions, request: &Request, heuristics: i32, target: Target<'_>) -> Result<Asked, String> {
        let Request { kind, conv, dtype } = *request;
        let number = |n: usize| n as i64;
        let (window, [n, h, w, c], [_, oh, ow, out]) = (conv.window, conv.image.map(number), conv.result.map(number));
        let (inner, kh, kw) = (c / number(conv.groups), number(window.size.0), number(window.size.1));
        let image = tensor(functions, IDS[0], [n, c, h, w], dtype)?;
        let filter = tensor(functions, IDS[1], [out, inner, kh, kw], dtype)?;
        let result = tensor(functions, IDS[2], [n, out, oh, ow], dtype)?;
        let pair = |(rows, columns): (usize, usize)| [number(rows), number(columns)];
        let walk = Description::new(functions, kind::CONVOLUTION)?
            .choice(attribute::CONVOLUTION_SUMS, ty::DATA_TYPE, data_type(DType::F32))?
            .choice(attribute::CONVOLUTION_MODE, ty::MODE, CORRELATION)?
            .numbers(attribute::CONVOLUTION_AXES, &[2])?
            .numbers(attribute::CONVOLUTION_PADS_BEFORE, &pair((window.pad_rows.0, window.pad_columns.0)))?
            .numbers(attribute::CONVOLUTION_PADS_AFTER, &pair((window.pad_rows.1, window.pad_columns.1)))?
            .numbers(attribute::CONVOLUTION_DILATIONS, &pair(window.dilation))?
            .numbers(attribute::CONVOLUTION_STRIDES, &pair(window.stride))?
            .fixed("describing the window")?;
        let Operation { kind, first } = operation(kind);
        // The attributes of each operation stand in the same order; only which tensors are named first differs.
        let [factor, old, walking, tensors @ ..] = first;
        let mut operation = Description::new(functions, kind)?.factor(factor, 1.0)?.factor(old, 0.0)?.part(walking, &walk)?;
        for (attribute, tensor) in tensors.into_iter().zip([&image, &filter, &result]) {
            operation = operation.part(attribute, tensor)?;
        }
        let operation = operation.fixed("describing the convolution")?;
        let graph = Description::new(functions, kind::GRAPH)?.part(attribute::GRAPH_OPERATIONS, &operation)?;
        let graph = match target.described {
            None => graph.handle(attribute::GRAPH_HANDLE, target.handle)?,
            Some(_) => graph,
        };
        let graph = graph.fixed("describing the graph")?;
        let ordered = Description::new(functions, kind::HEURISTICS)?.part(attribute::HEURISTICS_GRAPH, &graph)?.choice(
            attribute::HEURISTICS_MODE,
            ty::HEURISTICS_MODE,
            heuristics,
        )?;
        let ordered = match target.described {
            None => ordered,
            Some(device) => ordered.part(attribute::HEURISTICS_DEVICE, device)?,
        };
        let ordered = ordered.fixed("asking for engines")?;
        let configs = ordered.parts(attribute::HEURISTICS_RESULTS, kind::ENGINE_CONFIG)?;
        Ok(Asked { configs, _parts: vec![image, filter, result, walk, operation, graph, ordered] })
    }
}

/// How an operation is described: its kind, and the attributes for the factor of the result, the factor of what was there before, the window, image, filter and
/// result.
struct Operation {
    kind: i32,
    first: [i32; 6],
}

fn operation(kind: Kind) -> Operation {
    match kind {
        Kind::Forward => Operation { kind: kind::FORWARD, first: [700, 701, 702, 704, 703, 705] },
        Kind::GradInput => Operation { kind: kind::GRAD_INPUT, first: [706, 707, 708, 710, 709, 711] },
        Kind::GradFilter => Operation { kind: kind::GRAD_FILTER, first: [712, 713, 714, 716, 715, 717] },
    }
}

/// A tensor whose channels lie side by side. `extents` are in the library's order: images or filters, channels, rows, columns.
fn tensor(functions: &'static Functions, id: i64, extents: [i64; 4], dtype: DType) -> Result<Description, String> {
    let [_, c, h, w] = extents;
    Description::new(functions, kind::TENSOR)?
        .choice(attribute::TENSOR_TYPE, ty::DATA_TYPE, data_type(dtype))?
        .numbers(attribute::TENSOR_EXTENTS, &extents)?
        .numbers(attribute::TENSOR_STRIDES, &[h * w * c, 1, w * c, c])?
        .numbers(attribute::TENSOR_ID, &[id])?
        .numbers(attribute::TENSOR_ALIGNMENT, &[ALIGNMENT as i64])?
        .fixed("describing a tensor")
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
            // 2 is sums in two bytes, 4 results that differ, 5 Winograd's transform, 9 plain loops, 77 nobody knows.
            (DType::F16, vec![note::TENSOR_CORES, 2], false),
            (DType::F32, vec![4], false),
            (DType::F32, vec![5], false),
            (DType::F32, vec![9], false),
            (DType::F32, vec![77], false),
        ];
        for (dtype, numerical, wanted) in cases {
            assert_eq!(is_wanted(dtype, &numerical, &[]), wanted, "{dtype} {numerical:?}");
        }
        assert!(!is_wanted(DType::F32, &[], &[note::COMPILED_LATER]));
    }

    /// An H200 as cuDNN describes it.
    const H200: &str = r#"{"deviceVer":900,"driverVer":13000,"cudaDeviceId":0,"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],
        "regsPerBlock":65536,"multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,
        "reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,
        "isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,"memClockRateKHz":3201000,"l2CacheSize":62914560,"deviceName":"NVIDIA H200",
        "totalGlobalMem":150110011392,"smVersion":900}"#;

    fn conv(side: usize, channels: usize, filters: usize, window: Window) -> Conv {
        let (h, w) = window.output((side, side)).unwrap();
        Conv { window, groups: 1, image: [32, side, side, channels], result: [32, h, w, filters] }
    }

    /// An H200 that is described to the library, if that is installed and can be asked so.
    fn described() -> Option<(&'static Functions, Description)> {
        let functions = library::functions()?;
        let device = Description::new(functions, kind::DEVICE).and_then(|device| device.text(attribute::DEVICE_JSON, H200)?.fixed("a GPU"));
        device.ok().map(|device| (functions, device))
    }

    /// Whether the library has a way in this much scratch.
    fn has_way(functions: &'static Functions, device: &Description, request: &Request, scratch: u64) -> bool {
        let target = Target { handle: std::ptr::null_mut(), described: Some(device) };
        HEURISTICS.into_iter().any(|heuristics| {
            let configs = Asked::new(functions, request, heuristics, target);
            configs
                .is_ok_and(|asked| asked.configs.iter().any(|config| Way::new(config, request.dtype, scratch as usize, target).is_some()))
        })
    }

    /// Where cuDNN is installed it is asked, without a GPU, what it would do on an H200: the layers of a residual network have to find a way in the scratch that
    /// the rule gives them.
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
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                for kind in [Kind::Forward, Kind::GradInput, Kind::GradFilter] {
                    let types = [dtype, DType::F32, dtype];
                    let convolution::Way::Cudnn(way) = convolution::way(kind, &conv, types, Convolutions::Auto) else {
                        assert!(dtype == DType::F32, "{name}: in two bytes all of them are worth it");
                        continue;
                    };
                    assert_eq!(way, dtype, "{name}");
                    let scratch = convolution::workspace(kind, &conv, types, Convolutions::Auto) - convolution::filter_bytes(&conv, dtype);
                    let found = has_way(functions, &device, &Request { kind, conv, dtype }, scratch);
                    assert!(found, "{name}, {dtype}, {kind:?}: in {scratch} bytes");
                }
            }
        }
    }
    /// The op table has convolutions of every kind and type that cuDNN takes, with strides, dilation, groups and padding on one side.
    #[test]
    fn the_op_table_reaches_cudnn() {
        let Some((functions, device)) = described() else { return println!("not asked: there is no cuDNN that answers without a GPU") };
        let mut reached = std::collections::BTreeMap::<String, [usize; 2]>::new();
        for case in selftest::cases(0).iter().filter(|case| case.op.starts_with("conv2d")) {
            for (_, node) in case.graph.nodes().filter(|(_, node)| selftest::name_in_table(&node.op).starts_with("conv2d")) {
                let (kind, conv, types) = convolution::of_node(&case.graph, node, case.rows);
                let convolution::Way::Cudnn(dtype) = convolution::way(kind, &conv, types, Convolutions::Libraries) else { continue };
                let scratch = convolution::workspace(kind, &conv, types, Convolutions::Libraries) - convolution::filter_bytes(&conv, dtype);
                let found = has_way(functions, &device, &Request { kind, conv, dtype }, scratch);
                let window = conv.window;
                let traits = [
                    ("", true),
                    (" strided", window.stride != (1, 1)),
                    (" dilated", window.dilation != (1, 1)),
                    (" in groups", conv.groups > 1),
                    (" padded on one side", window.pad_rows.0 != window.pad_rows.1 || window.pad_columns.0 != window.pad_columns.1),
                ];
                for (name, _) in traits.into_iter().filter(|(_, has)| *has) {
                    reached.entry(format!("{kind:?} {dtype}{name}")).or_default()[usize::from(found)] += 1;
                }
            }
        }
        println!("refused and taken: {reached:#?}");
        assert_eq!(reached.len(), 3 * 3 * 5, "{:?}", reached.keys());
        assert!(reached.iter().all(|(_, [_, taken])| *taken > 0), "{reached:#?}");
    }
}

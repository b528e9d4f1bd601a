//! The constants of cuDNN's graph API that are used, from its header `cudnn_graph.h`.

/// Descriptor types.
pub(super) mod kind {
    pub const CONVOLUTION: i32 = 1;
    pub const ENGINE: i32 = 2;
    pub const ENGINE_CONFIG: i32 = 3;
    pub const HEURISTICS: i32 = 4;
    pub const PLAN: i32 = 5;
    pub const KNOB_CHOICE: i32 = 7;
    pub const FORWARD: i32 = 10;
    pub const GRAD_FILTER: i32 = 11;
    pub const GRAD_INPUT: i32 = 12;
    pub const GRAPH: i32 = 15;
    pub const ADDRESSES: i32 = 16;
    pub const TENSOR: i32 = 17;
    #[cfg(test)]
    pub const DEVICE: i32 = 38;
}

/// Attribute types.
pub(super) mod ty {
    pub const HANDLE: i32 = 0;
    pub const DATA_TYPE: i32 = 1;
    pub const INT64: i32 = 3;
    pub const FLOAT: i32 = 4;
    pub const ADDRESS: i32 = 6;
    pub const MODE: i32 = 7;
    pub const HEURISTICS_MODE: i32 = 8;
    pub const KNOB: i32 = 9;
    pub const NUMERICAL_NOTE: i32 = 11;
    pub const DESCRIPTOR: i32 = 15;
    pub const BEHAVIOUR_NOTE: i32 = 19;
    #[cfg(test)]
    pub const CHARACTER: i32 = 24;
}

/// Attribute names.
pub(super) mod attribute {
    pub const CONVOLUTION_SUMS: i32 = 100;
    pub const CONVOLUTION_MODE: i32 = 101;
    pub const CONVOLUTION_DILATIONS: i32 = 102;
    pub const CONVOLUTION_STRIDES: i32 = 103;
    pub const CONVOLUTION_PADS_AFTER: i32 = 104;
    pub const CONVOLUTION_PADS_BEFORE: i32 = 105;
    pub const CONVOLUTION_AXES: i32 = 106;
    pub const HEURISTICS_MODE: i32 = 200;
    pub const HEURISTICS_GRAPH: i32 = 201;
    pub const HEURISTICS_RESULTS: i32 = 202;
    pub const HEURISTICS_DEVICE: i32 = 204;
    pub const CONFIG_ENGINE: i32 = 300;
    pub const CONFIG_KNOBS: i32 = 302;
    pub const PLAN_HANDLE: i32 = 400;
    pub const PLAN_CONFIG: i32 = 401;
    pub const PLAN_WORKSPACE: i32 = 402;
    pub const PLAN_DEVICE: i32 = 407;
    pub const KNOB_TYPE: i32 = 600;
    pub const KNOB_VALUE: i32 = 601;
    pub const GRAPH_HANDLE: i32 = 800;
    pub const GRAPH_OPERATIONS: i32 = 801;
    pub const TENSOR_ALIGNMENT: i32 = 900;
    pub const TENSOR_TYPE: i32 = 901;
    pub const TENSOR_EXTENTS: i32 = 902;
    pub const TENSOR_STRIDES: i32 = 903;
    pub const TENSOR_ID: i32 = 906;
    pub const ADDRESSES_IDS: i32 = 1000;
    pub const ADDRESSES_DATA: i32 = 1001;
    pub const ADDRESSES_WORKSPACE: i32 = 1003;
    pub const ENGINE_INDEX: i32 = 1301;
    pub const ENGINE_NUMERICAL_NOTES: i32 = 1303;
    pub const ENGINE_BEHAVIOUR_NOTES: i32 = 1305;
    #[cfg(test)]
    pub const DEVICE_JSON: i32 = 2702;
}

/// Numerical and behavior notes of an engine.
pub(super) mod note {
    /// The only accepted numerical note. Others are rounded inputs, 16-bit accumulation, FFT and Winograd transforms,
    /// nondeterminism, slow direct loops, and notes of later versions.
    pub const TENSOR_CORES: i32 = 0;
    /// Runtime compilation: the engine is compiled when its plan is created, which takes seconds and memory.
    pub const COMPILED_LATER: i32 = 0;
}

/// Cross-correlation, not convolution with a flipped filter.
pub(super) const CORRELATION: i32 = 1;
/// The most accurate heuristics, then the fallback.
pub(super) const HEURISTICS: [i32; 2] = [3, 2];

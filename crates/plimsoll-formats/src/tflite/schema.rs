//! The operators that are written and read: codes, options and their field numbers in the schema of TFLite.

/// The value of an option.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    /// A 32-bit integer.
    Int(i32),
    /// An enumeration or a flag.
    Byte(u8),
    /// A number.
    Float(f32),
    /// Integers.
    Ints(Vec<i32>),
}

/// The kind of an option, with its default.
#[derive(Clone, Copy, Debug)]
pub(super) enum OptionKind {
    Int(i32),
    Byte(u8),
    Float,
    Ints,
}

/// An option: its name and field number.
pub(super) type OptionField = (&'static str, u16, OptionKind);

/// The activation at the end of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FusedActivation {
    /// None.
    None = 0,
    /// `max(x, 0)`.
    Relu = 1,
    /// `min(max(x, 0), 6)`.
    Relu6 = 3,
    /// Hyperbolic tangent, of recurrent layers.
    Tanh = 4,
}

/// How a window is padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowPadding {
    /// As much as makes the output as large as the input divided by the stride, rounded up.
    Same = 0,
    /// Not at all.
    Valid = 1,
}

use OptionKind::{Byte, Float, Int, Ints};

macro_rules! operators {
    ($($(#[$doc:meta])* $op:ident $name:literal $code:literal $options:literal [$($field:expr),*];)*) => {
        /// An operator of the schema.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the names of the schema")]
        pub enum BuiltinOp { $($(#[$doc])* $op,)* }

        impl BuiltinOp {
            /// All operators.
            pub const ALL: &'static [BuiltinOp] = &[$(BuiltinOp::$op,)*];

            /// Its name in the schema.
            pub fn name(self) -> &'static str {
                match self { $(BuiltinOp::$op => $name,)* }
            }

            /// Its code in the schema.
            pub fn code(self) -> i32 {
                match self { $(BuiltinOp::$op => $code,)* }
            }

            /// The code of its table of options; 0 is none.
            pub(super) fn options_type(self) -> u8 {
                match self { $(BuiltinOp::$op => $options,)* }
            }

            /// The fields of its options.
            pub(super) fn fields(self) -> &'static [OptionField] {
                match self { $(BuiltinOp::$op => &[$($field),*],)* }
            }
        }
    };
}

operators! {
    Add "ADD" 0 11 [("fused_activation_function", 0, Byte(0)), ("pot_scale_int16", 1, Byte(1))];
    AveragePool2d "AVERAGE_POOL_2D" 1 5 [("padding", 0, Byte(0)), ("stride_w", 1, Int(0)), ("stride_h", 2, Int(0)), ("filter_width", 3, Int(0)), ("filter_height", 4, Int(0)), ("fused_activation_function", 5, Byte(0))];
    Concatenation "CONCATENATION" 2 10 [("axis", 0, Int(0)), ("fused_activation_function", 1, Byte(0))];
    Conv2d "CONV_2D" 3 1 [("padding", 0, Byte(0)), ("stride_w", 1, Int(0)), ("stride_h", 2, Int(0)), ("fused_activation_function", 3, Byte(0)), ("dilation_w_factor", 4, Int(1)), ("dilation_h_factor", 5, Int(1))];
    DepthwiseConv2d "DEPTHWISE_CONV_2D" 4 2 [("padding", 0, Byte(0)), ("stride_w", 1, Int(0)), ("stride_h", 2, Int(0)), ("depth_multiplier", 3, Int(0)), ("fused_activation_function", 4, Byte(0)), ("dilation_w_factor", 5, Int(1)), ("dilation_h_factor", 6, Int(1))];
    Dequantize "DEQUANTIZE" 6 38 [];
    Floor "FLOOR" 8 0 [];
    FullyConnected "FULLY_CONNECTED" 9 8 [("fused_activation_function", 0, Byte(0)), ("weights_format", 1, Byte(0)), ("keep_num_dims", 2, Byte(0)), ("asymmetric_quantize_inputs", 3, Byte(0))];
    Logistic "LOGISTIC" 14 0 [];
    MaxPool2d "MAX_POOL_2D" 17 5 [("padding", 0, Byte(0)), ("stride_w", 1, Int(0)), ("stride_h", 2, Int(0)), ("filter_width", 3, Int(0)), ("filter_height", 4, Int(0)), ("fused_activation_function", 5, Byte(0))];
    Mul "MUL" 18 21 [("fused_activation_function", 0, Byte(0))];
    Relu "RELU" 19 0 [];
    Relu6 "RELU6" 21 0 [];
    Reshape "RESHAPE" 22 17 [("new_shape", 0, Ints)];
    ResizeBilinear "RESIZE_BILINEAR" 23 15 [("align_corners", 2, Byte(0)), ("half_pixel_centers", 3, Byte(0))];
    Softmax "SOFTMAX" 25 9 [("beta", 0, Float)];
    Tanh "TANH" 28 0 [];
    Pad "PAD" 34 22 [];
    Gather "GATHER" 36 23 [("axis", 0, Int(0)), ("batch_dims", 1, Int(0))];
    Transpose "TRANSPOSE" 39 26 [];
    Mean "MEAN" 40 27 [("keep_dims", 0, Byte(0))];
    Sub "SUB" 41 28 [("fused_activation_function", 0, Byte(0)), ("pot_scale_int16", 1, Byte(1))];
    Div "DIV" 42 29 [("fused_activation_function", 0, Byte(0))];
    UnidirectionalSequenceLstm "UNIDIRECTIONAL_SEQUENCE_LSTM" 44 71 [("fused_activation_function", 0, Byte(0)), ("cell_clip", 1, Float), ("proj_clip", 2, Float), ("time_major", 3, Byte(0)), ("asymmetric_quantize_inputs", 4, Byte(0))];
    StridedSlice "STRIDED_SLICE" 45 32 [("begin_mask", 0, Int(0)), ("end_mask", 1, Int(0)), ("ellipsis_mask", 2, Int(0)), ("new_axis_mask", 3, Int(0)), ("shrink_axis_mask", 4, Int(0))];
    Exp "EXP" 47 33 [];
    Split "SPLIT" 49 35 [("num_splits", 0, Int(0))];
    LogSoftmax "LOG_SOFTMAX" 50 36 [];
    Cast "CAST" 53 37 [("in_data_type", 0, Byte(0)), ("out_data_type", 1, Byte(0))];
    Prelu "PRELU" 54 0 [];
    Maximum "MAXIMUM" 55 39 [];
    ArgMax "ARG_MAX" 56 40 [("output_type", 0, Byte(0))];
    Minimum "MINIMUM" 57 39 [];
    Less "LESS" 58 41 [];
    Neg "NEG" 59 42 [];
    LessEqual "LESS_EQUAL" 63 46 [];
    PadV2 "PADV2" 60 43 [];
    Slice "SLICE" 65 48 [];
    TransposeConv "TRANSPOSE_CONV" 67 49 [("padding", 0, Byte(0)), ("stride_w", 1, Int(0)), ("stride_h", 2, Int(0)), ("fused_activation_function", 3, Byte(0))];
    Equal "EQUAL" 71 53 [];
    Log "LOG" 73 0 [];
    Sum "SUM" 74 27 [("keep_dims", 0, Byte(0))];
    Sqrt "SQRT" 75 0 [];
    Rsqrt "RSQRT" 76 0 [];
    Shape "SHAPE" 77 55 [("out_type", 0, Byte(0))];
    Pow "POW" 78 56 [];
    ReduceMax "REDUCE_MAX" 82 27 [("keep_dims", 0, Byte(0))];
    Pack "PACK" 83 59 [("values_count", 0, Int(0)), ("axis", 1, Int(0))];
    LogicalAnd "LOGICAL_AND" 86 62 [];
    Unpack "UNPACK" 88 64 [("num", 0, Int(0)), ("axis", 1, Int(0))];
    Square "SQUARE" 92 66 [];
    ResizeNearestNeighbor "RESIZE_NEAREST_NEIGHBOR" 97 74 [("align_corners", 0, Byte(0)), ("half_pixel_centers", 1, Byte(0))];
    LeakyRelu "LEAKY_RELU" 98 75 [("alpha", 0, Float)];
    SquaredDifference "SQUARED_DIFFERENCE" 99 76 [];
    Abs "ABS" 101 78 [];
    ReverseV2 "REVERSE_V2" 105 81 [];
    Elu "ELU" 111 0 [];
    Quantize "QUANTIZE" 114 89 [];
    HardSwish "HARD_SWISH" 117 91 [];
    SelectV2 "SELECT_V2" 123 98 [];
    BatchMatmul "BATCH_MATMUL" 126 101 [("adj_x", 0, Byte(0)), ("adj_y", 1, Byte(0)), ("asymmetric_quantize_inputs", 2, Byte(0))];
    BroadcastTo "BROADCAST_TO" 130 104 [];
    Gelu "GELU" 150 116 [("approximate", 0, Byte(0))];
    Sign "SIGN" 158 123 [];
}

impl BuiltinOp {
    /// The operator of a code.
    pub fn of(code: i32) -> Option<BuiltinOp> {
        BuiltinOp::ALL.iter().find(|op| op.code() == code).copied()
    }

    /// The default of an option.
    pub(super) fn default_of(self, name: &str) -> Option<OptionValue> {
        self.fields().iter().find(|field| field.0 == name).and_then(|field| match field.2 {
            Int(value) => Some(OptionValue::Int(value)),
            Byte(value) => Some(OptionValue::Byte(value)),
            Float | Ints => None,
        })
    }
}

//! Copies between matrices whose rows follow each other and matrices whose rows begin at multiples of 16 bytes, which
//! tensor-core products need. Elements have 16 bits.

use super::{Argument, Kernel, THREADS, block_count};
use std::fmt::Write;

/// Part of a matrix with rows of `width` elements without padding. It begins at a multiple of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub width: usize,
    pub rows: usize,
    pub columns: usize,
}

impl Part {
    /// Elements between the rows of the padded copy.
    pub fn pitch(&self) -> usize {
        self.columns.next_multiple_of(8)
    }
}

/// Shifts eight elements out of two vectors, from element `shift` on.
const SHIFT: &str = "\
unsigned w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
if (shift & 4) for (int i = 0; i < 6; i++) w[i] = w[i + 2];
if (shift & 2) for (int i = 0; i < 5; i++) w[i] = w[i + 1];
if (shift & 1) for (int i = 0; i < 4; i++) w[i] = __funnelshift_r(w[i], w[i + 1], 16);
";

/// Copies a part into padded rows, with zeros behind the last column.
pub(crate) fn pad_rows(part: &Part, from: Argument, to: Argument) -> Kernel {
    let Part { width, rows, columns } = *part;
    let vectors = part.pitch() / 8;
    let mut body = String::new();
    let _ = writeln!(body, "const unsigned thread = blockIdx.x * {THREADS} + threadIdx.x;\nif (thread >= {}u) return;", rows * vectors);
    let _ = writeln!(body, "const unsigned row = thread / {vectors}, vector = thread % {vectors};");
    let _ = writeln!(body, "const unsigned long long start = row * {width}ull, e = start + vector * 8;\nconst unsigned shift = e % 8;");
    let _ = writeln!(body, "const bool more = shift > 0 && e / 8 * 8 + 8 < start + {columns};");
    body += "const uint4 low = from[e / 8], high = more ? from[e / 8 + 1] : uint4();\n";
    body += SHIFT;
    if !columns.is_multiple_of(8) {
        let _ = writeln!(body, "const int last = {columns} - (int)vector * 8;");
        body += "for (int i = 0; i < 4; i++) w[i] = last >= 2 * i + 2 ? w[i] : last == 2 * i + 1 ? w[i] & 0xffffu : 0u;\n";
    }
    body += "to[thread] = make_uint4(w[0], w[1], w[2], w[3]);\n";
    copy("pad_rows", part, body, ("const uint4* from", from), ("uint4* to", to), rows * vectors)
}

/// Copies padded rows into whole rows of a matrix.
pub(crate) fn unpad_rows(part: &Part, from: Argument, to: Argument) -> Kernel {
    let Part { width, rows, .. } = *part;
    let (pitch, elements) = (part.pitch(), rows * width);
    let mut body = String::new();
    let _ = writeln!(
        body,
        "const unsigned thread = blockIdx.x * {THREADS} + threadIdx.x;\nconst unsigned e = thread * 8;\nif (e >= {elements}u) return;"
    );
    let _ = writeln!(body, "const unsigned row = e / {width}, column = e % {width};");
    body += "unsigned short* const out = to + e;\n";
    let _ = writeln!(body, "if (column + 8 > {width} || e + 8 > {elements}u) {{");
    let _ = writeln!(
        body,
        "    for (unsigned i = e; i < min(e + 8, {elements}u); i++) out[i - e] = ((const unsigned short*)from)[(i / {width}) * {pitch}ull + i % {width}];"
    );
    body += "    return;\n}\n";
    let _ = writeln!(body, "const unsigned long long at = row * {}ull + column / 8;\nconst unsigned shift = column % 8;", pitch / 8);
    body += "const uint4 low = from[at], high = shift > 0 ? from[at + 1] : uint4();\n";
    body += SHIFT;
    body += "*(uint4*)out = make_uint4(w[0], w[1], w[2], w[3]);\n";
    copy("unpad_rows", part, body, ("const uint4* from", from), ("unsigned short* to", to), elements.div_ceil(8))
}

fn copy(name: &'static str, part: &Part, body: String, from: (&str, Argument), to: (&str, Argument), threads: usize) -> Kernel {
    Kernel {
        name,
        what: format!("{part:?} with {} elements between rows", part.pitch()),
        parameters: [from, to].map(|(text, argument)| (text.to_string(), argument)).into(),
        body,
        grid: [block_count(threads, THREADS), 1, 1],
        threads: THREADS as u32,
    }
}

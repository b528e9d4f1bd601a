//! The interpolation methods of `tf.image.resize`.

use std::fmt;

/// How a pixel between pixels is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The pixel whose centre is nearest.
    Nearest,
    /// The four pixels around it, weighted by distance.
    Bilinear,
    /// The sixteen pixels around it, by Keys' cubic; sharper than bilinear, and may go beyond the darkest and brightest pixel.
    Bicubic,
    /// All pixels it covers, by how much of each: the best way to make images much smaller.
    Area,
    /// Bilinear over all pixels it covers where images become smaller: `antialias=True`.
    BilinearAntialias,
    /// Bicubic over all pixels it covers where images become smaller: `antialias=True`.
    BicubicAntialias,
}

impl Method {
    /// All of them.
    pub const ALL: [Method; 6] =
        [Method::Nearest, Method::Bilinear, Method::Bicubic, Method::Area, Method::BilinearAntialias, Method::BicubicAntialias];

    /// As configurations write it.
    pub const fn name(self) -> &'static str {
        match self {
            Method::Nearest => "nearest",
            Method::Bilinear => "bilinear",
            Method::Bicubic => "bicubic",
            Method::Area => "area",
            Method::BilinearAntialias => "bilinear_antialias",
            Method::BicubicAntialias => "bicubic_antialias",
        }
    }

    /// Whether pixels have weights over a span that depends on the image.
    pub(crate) fn is_filter(self) -> bool {
        !matches!(self, Method::Nearest | Method::Bilinear)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

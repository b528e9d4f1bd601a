//! The interpolation methods of `tf.image.resize`.

use std::fmt;

/// An interpolation method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The pixel with the nearest center.
    Nearest,
    /// The four nearest pixels, weighted by distance.
    Bilinear,
    /// The sixteen nearest pixels, by Keys' cubic; sharper than bilinear, and may overshoot.
    Bicubic,
    /// All covered pixels, weighted by area: the best choice for strong downsampling.
    Area,
    /// Bilinear with `antialias=True`: the kernel is scaled when downsampling.
    BilinearAntialias,
    /// Bicubic with `antialias=True`: the kernel is scaled when downsampling.
    BicubicAntialias,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 6] =
        [Method::Nearest, Method::Bilinear, Method::Bicubic, Method::Area, Method::BilinearAntialias, Method::BicubicAntialias];

    /// Its name in configurations.
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

    /// Whether it uses a weight table whose size depends on the image.
    pub(crate) fn is_filter(self) -> bool {
        !matches!(self, Method::Nearest | Method::Bilinear)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

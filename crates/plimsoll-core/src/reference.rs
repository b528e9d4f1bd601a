//! The float64 reference: every op as the plainest loop that could be right.

//! Every rival alone, on a Gaussian prior, against what its own equations give in closed form.
//!
//! Prior and operator are diagonal, so each coordinate is a scalar recursion x ← a x + b + √c z, whose mean and variance are
//! known exactly. Where a paper writes its method in variance-preserving form, the recursion here is in that form, which
//! tests the translation as well.

mod classical;
mod cost;
mod descent;
mod law;
mod particles;
mod reverse;
mod split;

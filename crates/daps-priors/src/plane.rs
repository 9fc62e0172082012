//! The plane through a mixture's means. Where all components share one scalar covariance, they differ in this plane only, so
//! responsibilities and the spread between components live in as many numbers as the plane has dimensions.

use daps_core::linalg::eigen;
use daps_core::mixture::Mixture;
use faer::Mat;

use crate::algebra::{axpy, dot, minus, normalize, squared_distance};

/// Directions whose length is below this share of the largest mean's are rounding.
const RANK_TOLERANCE: f64 = 1e-13;

/// m_k = origin + Eᵀ c_k with orthonormal rows in E.
#[derive(Clone, Debug)]
pub(crate) struct Plane {
    origin: Vec<f64>,
    /// E, `rank x d`.
    basis: Vec<f64>,
    /// c_k, `k x rank`.
    points: Vec<f64>,
    rank: usize,
    log_weights: Vec<f64>,
}

impl Plane {
    /// Finds the plane by Gram–Schmidt with pivoting.
    pub(crate) fn new(mixture: &Mixture) -> Self {
        let (k, d) = (mixture.len(), mixture.dim());
        let mut origin = vec![0.0; d];
        (0..k).for_each(|i| axpy(&mut origin, 1.0 / k as f64, &mixture.mean_of(i)));
        let mut left: Vec<Vec<f64>> = (0..k).map(|i| minus(&mixture.mean_of(i), &origin)).collect();
        let norms = |rows: &[Vec<f64>]| rows.iter().map(|r| dot(r, r).sqrt()).collect::<Vec<_>>();
        let scale = norms(&left).iter().chain(&[dot(&origin, &origin).sqrt()]).fold(0.0f64, |m, n| m.max(*n));
        let mut basis: Vec<f64> = Vec::new();
        while basis.len() / d < k.min(d) {
            let norms = norms(&left);
            let pivot = (0..k).max_by(|a, b| norms[*a].total_cmp(&norms[*b])).unwrap_or(0);
            if norms[pivot] <= RANK_TOLERANCE * scale {
                break;
            }
            let mut e: Vec<f64> = left[pivot].iter().map(|v| v / norms[pivot]).collect();
            // A second pass against the basis keeps it orthonormal to rounding.
            for b in basis.chunks(d) {
                let along = dot(b, &e);
                axpy(&mut e, -along, b);
            }
            let norm = dot(&e, &e).sqrt();
            e.iter_mut().for_each(|v| *v /= norm);
            for row in &mut left {
                let along = dot(&e, row);
                axpy(row, -along, &e);
            }
            basis.extend(e);
        }
        let rank = basis.len() / d;
        let mut plane =
            Self { origin, basis, points: vec![], rank, log_weights: mixture.log_weights.clone() };
        plane.points = (0..k).flat_map(|i| plane.project(&mixture.mean_of(i))).collect();
        plane
    }

    /// E (x - origin).
    fn project(&self, x: &[f64]) -> Vec<f64> {
        self.along(&minus(x, &self.origin))
    }

    /// E v.
    fn along(&self, v: &[f64]) -> Vec<f64> {
        self.basis.chunks(v.len()).map(|e| dot(e, v)).collect()
    }

    /// out += scale · Eᵀ c.
    fn add_vector(&self, out: &mut [f64], scale: f64, c: &[f64]) {
        self.basis.chunks(out.len()).zip(c).for_each(|(e, c)| axpy(out, scale * c, e));
    }

    /// Component indices, weights and points, without those of no weight.
    fn weighed<'a>(&'a self, log_weights: &'a [f64]) -> impl Iterator<Item = (f64, &'a [f64])> {
        let all = log_weights.iter().enumerate().map(|(k, w)| (w.exp(), self.point(k)));
        all.filter(|(w, _)| *w != 0.0)
    }

    fn point(&self, k: usize) -> &[f64] {
        &self.points[k * self.rank..(k + 1) * self.rank]
    }

    /// ln p(k | x_t), normalised: the distance from the plane is common to all components.
    pub(crate) fn log_weights(&self, x: &[f64], precision: f64) -> Vec<f64> {
        let u = self.project(x);
        let each = self.log_weights.iter().enumerate();
        let mut logs: Vec<f64> =
            each.map(|(k, w)| w - 0.5 * precision * squared_distance(&u, self.point(k))).collect();
        normalize(&mut logs);
        logs
    }

    /// Σ r_k c_k.
    fn center(&self, log_weights: &[f64]) -> Vec<f64> {
        let mut center = vec![0.0; self.rank];
        self.weighed(log_weights).for_each(|(w, c)| axpy(&mut center, w, c));
        center
    }

    /// pull · (Σ r_k m_k - x).
    pub(crate) fn shift(&self, x: &[f64], log_weights: &[f64], pull: f64) -> Vec<f64> {
        let mut to_mean = minus(&self.origin, x);
        self.add_vector(&mut to_mean, 1.0, &self.center(log_weights));
        to_mean.iter_mut().for_each(|v| *v *= pull);
        to_mean
    }

    /// out += scale · Cov_r[m_k] v, the spread between the means.
    pub(crate) fn add_between(&self, out: &mut [f64], scale: f64, log_weights: &[f64], v: &[f64]) {
        let (center, along) = (self.center(log_weights), self.along(v));
        let mut c = vec![0.0; self.rank];
        for (w, point) in self.weighed(log_weights) {
            let deviation = minus(point, &center);
            axpy(&mut c, w * dot(&deviation, &along), &deviation);
        }
        self.add_vector(out, scale, &c);
    }

    /// Dimensions of the plane.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// F with FᵀF = Cov_r[m_k], one row for every eigenvalue above `negligible`; none where r is not a number.
    pub(crate) fn factor(&self, log_weights: &[f64], negligible: f64) -> Vec<f64> {
        let (center, q, d) = (self.center(log_weights), self.rank, self.origin.len());
        if q == 0 {
            return vec![];
        }
        let mut s = Mat::<f64>::zeros(q, q);
        for (w, point) in self.weighed(log_weights) {
            let deviation = minus(point, &center);
            (0..q).for_each(|j| axpy(s.col_as_slice_mut(j), w * deviation[j], &deviation));
        }
        let Some((values, vectors)) = eigen(&s) else { return vec![] };
        let mut factor = Vec::new();
        for j in (0..q).filter(|j| values[*j] > negligible) {
            let mut row = vec![0.0; d];
            let c: Vec<f64> = (0..q).map(|i| vectors[(i, j)]).collect();
            self.add_vector(&mut row, values[j].sqrt(), &c);
            factor.extend(row);
        }
        factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daps_core::RowCovariance;
    use std::sync::Arc;

    fn mixture(means: Vec<f64>, k: usize) -> Mixture {
        Mixture::new(vec![0.0; k], means, Arc::new(vec![RowCovariance::Scalar(1.0)])).unwrap()
    }

    #[test]
    fn the_plane_holds_the_means_and_has_their_rank() {
        // Four means in a two-dimensional plane of a five-dimensional space, far from the origin.
        let (a, b) = ([1.0, 2.0, 0.0, -1.0, 0.5], [0.3, 0.0, 1.0, 2.0, -2.0]);
        let mean = |s: f64, t: f64| (0..5).map(move |i| 100.0 + s * a[i] + t * b[i]);
        let means = [(0.0, 0.0), (1.0, -1.0), (3.0, 0.5), (-2.0, 7.0)].map(|(s, t)| mean(s, t));
        let m = mixture(means.into_iter().flatten().collect(), 4);
        let plane = Plane::new(&m);
        assert_eq!(plane.rank(), 2);
        for k in 0..4 {
            let mut back = plane.origin.clone();
            plane.add_vector(&mut back, 1.0, plane.point(k));
            assert!(squared_distance(&back, &m.mean_of(k)) < 1e-20);
        }
        assert_eq!(Plane::new(&mixture(vec![3.0; 8], 4)).rank(), 0);
    }
}

//! A dense matrix as an operator, with its singular value decomposition: for small problems, and as the judge of fast paths.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::Tensor;
use daps_core::linalg::product;
use daps_core::tensors::map_rows;
use daps_core::{Error, Linear, Operator, Result, Spectral, with_real};
use faer::{Mat, MatMut, MatRef};
use serde::{Deserialize, Serialize};

use crate::example::{Example, ROWS, normal, with_input};
use crate::files::{read, with_rank};
use crate::kronecker::Svd;
use crate::num::{Num, Values};
use crate::params::{Params, required};
use crate::registry::{self, FileParameter};
use crate::rows::{PerRow, check_batch, finite_values};

/// y = A x for one matrix, or one per row, applied to the flattened input.
#[derive(Debug)]
pub struct Dense {
    input: Vec<usize>,
    output: Vec<usize>,
    modes: Vec<usize>,
    matrices: PerRow<(Values, Svd)>,
    singular: Vec<Vec<f64>>,
}

impl Dense {
    /// From a matrix `[1 or rows, outputs, inputs]`; `inputs` is the number of values of an input of the given shape.
    pub fn new(shape: &[usize], matrix: &Tensor) -> Result<Self> {
        let n: usize = shape.iter().product();
        let (rows, m) = match *matrix.dims() {
            [rows, m, k] if rows > 0 && m > 0 && k == n && n > 0 => (rows, m),
            ref other => {
                let expected = format!("shape [1 or rows, outputs, {n}]");
                return Err(Error::invalid("matrix of dense", expected, format!("{other:?}")));
            }
        };
        let values = finite_values("matrix of dense", matrix)?;
        let each = |a: &[f64]| -> Result<_> {
            let svd = Svd::new(&Mat::from_fn(m, n, |i, j| a[i * n + j]))?;
            Ok((Values::new(a.to_vec()), svd))
        };
        let matrices = values.chunks(m * n).map(each).collect::<Result<Vec<_>>>()?;
        debug_assert_eq!(matrices.len(), rows);
        Ok(Self::from_parts(shape.to_vec(), m, PerRow::new(matrices)))
    }

    fn from_parts(input: Vec<usize>, outputs: usize, matrices: PerRow<(Values, Svd)>) -> Self {
        let singular = matrices.iter().map(|(_, svd)| svd.singular.clone()).collect();
        let modes = vec![outputs.min(input.iter().product())];
        Self { input, output: vec![outputs], modes, matrices, singular }
    }

    fn product(
        &self,
        x: &Tensor,
        input: &[usize],
        output: &[usize],
        factor: impl Factor + Sync,
    ) -> Result<Tensor> {
        check_batch(self.name(), x, input, self.matrices.rows())?;
        with_real!(x.dtype(), T => map_rows::<T>(self.name(), x, input, output, |row, x, out| {
            let (matrix, svd) = self.matrices.get(row);
            let a = MatRef::from_row_major_slice(T::values(matrix), self.output[0], self.modes_and_inputs().1);
            let factor = factor.of(a, svd);
            let x = MatRef::from_column_major_slice(x, x.len(), 1);
            let rows = out.len();
            let out = MatMut::from_column_major_slice_mut(out, rows, 1);
            product(out, factor, x);
        }))
    }

    fn modes_and_inputs(&self) -> (usize, usize) {
        (self.modes[0], self.input.iter().product())
    }
}

/// Which matrix of A = U S Vᵀ a product takes; a trait because a closure cannot be generic over the number type.
trait Factor {
    fn of<'a, T: Num>(&self, a: MatRef<'a, T>, svd: &'a Svd) -> MatRef<'a, T>;
}

macro_rules! factor {
    ($name:ident, |$a:ident, $svd:ident| $body:expr) => {
        struct $name;
        impl Factor for $name {
            fn of<'a, T: Num>(&self, $a: MatRef<'a, T>, $svd: &'a Svd) -> MatRef<'a, T> {
                $body
            }
        }
    };
}
factor!(Matrix, |a, _svd| a);
factor!(MatrixT, |a, _svd| a.transpose());
factor!(U, |_a, svd| svd.u_mat());
factor!(UT, |_a, svd| svd.u_mat().transpose());
factor!(V, |_a, svd| svd.v_mat());
factor!(VT, |_a, svd| svd.v_mat().transpose());

impl Operator for Dense {
    fn name(&self) -> &str {
        "dense"
    }

    fn title(&self) -> Cow<'_, str> {
        registry::title(self.name())
    }

    fn input_shape(&self) -> &[usize] {
        &self.input
    }

    fn output_shape(&self) -> &[usize] {
        &self.output
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        self.product(x, &self.input, &self.output, Matrix)
    }

    fn rows(&self) -> Option<usize> {
        self.matrices.rows()
    }

    fn select(self: Arc<Self>, rows: &[usize]) -> Result<Arc<dyn Operator>> {
        let matrices = self.matrices.select(rows)?;
        Ok(Arc::new(Self::from_parts(self.input.clone(), self.output[0], matrices)))
    }

    fn as_linear(&self) -> Option<&dyn Linear> {
        Some(self)
    }

    fn as_spectral(&self) -> Option<&dyn Spectral> {
        Some(self)
    }
}

impl Linear for Dense {
    fn adjoint(&self, r: &Tensor) -> Result<Tensor> {
        self.product(r, &self.output, &self.input, MatrixT)
    }

    fn norm_squared(&self) -> Option<Vec<f64>> {
        Some(self.singular.iter().map(|s| s.first().map_or(0.0, |s| s * s)).collect())
    }
}

impl Spectral for Dense {
    fn singular(&self) -> &[Vec<f64>] {
        &self.singular
    }

    fn v_t(&self, x: &Tensor) -> Result<Tensor> {
        self.product(x, &self.input, &self.modes, VT)
    }

    fn v(&self, c: &Tensor) -> Result<Tensor> {
        self.product(c, &self.modes, &self.input, V)
    }

    fn u_t(&self, y: &Tensor) -> Result<Tensor> {
        self.product(y, &self.output, &self.modes, UT)
    }

    fn u(&self, c: &Tensor) -> Result<Tensor> {
        self.product(c, &self.modes, &self.output, U)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DenseParams {
    /// A `.npy` or `.safetensors` matrix `[outputs, inputs]` or `[rows, outputs, inputs]`.
    matrix: PathBuf,
}

impl Params for DenseParams {
    const FILES: &'static [FileParameter] = &[required(
        "matrix",
        "--set matrix=FILE",
        "an array [outputs, inputs], inputs in the order of the flattened sample",
    )];

    fn operator(self, _: &'static str, shape: &[usize], _: u64) -> Result<Arc<dyn Operator>> {
        let matrix = with_rank(&read(&self.matrix, "matrix")?, 3)?;
        Ok(Arc::new(Dense::new(shape, &matrix)?))
    }
}

/// A wide or tall matrix per row, of images of two rows: a matrix takes samples of any shape.
pub(crate) fn example([_, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    let matrix = normal(seed + 1, ROWS, &[h, 2 * w])?;
    with_input(Arc::new(Dense::new(&[1, 2, w], &matrix)?), seed)
}

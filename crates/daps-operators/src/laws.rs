//! What every operator must obey, whatever it measures: checks that take an operator and inputs that it accepts.
//!
//! Each function gives `Ok(())` or says which law is broken and by how much. Differences are relative, in the maximum norm.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use daps_core::tensors::{combine, pick, to_f64};
use daps_core::{Address, Differentiable, Linear, Noise, Operator, Purpose, Spectral};

/// A law that does not hold.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A comparison failed.
    #[error("{operator}: {law}: off by {by:.3e}, allowed {allowed:.1e}")]
    Off {
        /// The operator's name.
        operator: String,
        /// The law.
        law: &'static str,
        /// The relative difference.
        by: f64,
        /// The tolerance.
        allowed: f64,
    },
    /// A property that has no size.
    #[error("{operator}: {law}")]
    Broken {
        /// The operator's name.
        operator: String,
        /// The law.
        law: &'static str,
    },
    /// The operator refused a call that it must accept.
    #[error(transparent)]
    Refused(#[from] daps_core::Error),
    /// The tensor library refused.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// The outcome of a law.
pub type Outcome = Result<(), Violation>;

/// Relative error that f64 arithmetic may leave.
const DOUBLE: f64 = 1e-11;
/// Relative error that f32 arithmetic may leave.
const SINGLE: f64 = 1e-5;

/// All laws.
pub fn all(operator: &Arc<dyn Operator>, x: &Tensor, seed: u64) -> Outcome {
    shapes(&**operator, x)?;
    adjoint(&**operator, x, seed)?;
    derivative(&**operator, x, seed)?;
    spectral(&**operator, x, seed)?;
    norm(&**operator, x, seed)?;
    preconditioner(&**operator, x, seed)?;
    precision(&**operator, x, seed)?;
    rows(operator, x, seed)?;
    diagonal(&**operator, x)?;
    visible(&**operator, x, seed)?;
    factors(&**operator, x)?;
    local(&**operator, x)?;
    threads(&**operator, x, seed)
}

/// Standard normal numbers, `[rows of x, shape…]`, in f64.
fn normal(x: &Tensor, shape: &[usize], seed: u64, index: usize) -> Result<Tensor, Violation> {
    let rows = x.dims()[0];
    Ok(Noise::chains(seed, rows).normal(Address::new(0, Purpose::Reference, index), shape, DType::F64)?)
}

fn check(operator: &dyn Operator, law: &'static str, by: f64, allowed: f64) -> Outcome {
    if by <= allowed {
        Ok(())
    } else {
        Err(Violation::Off { operator: operator.name().to_owned(), law, by, allowed })
    }
}

fn require(operator: &dyn Operator, law: &'static str, holds: bool) -> Outcome {
    if holds { Ok(()) } else { Err(Violation::Broken { operator: operator.name().to_owned(), law }) }
}

/// max |a - b| / max |b|.
pub fn relative_difference(a: &Tensor, b: &Tensor) -> daps_core::Result<f64> {
    if a.dims() != b.dims() {
        return Err(daps_core::Error::shape("tensors to compare", b.dims(), a.dims()));
    }
    let (a, b) = (to_f64(a)?, to_f64(b)?);
    let most = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(0.0, |m: f64, v| if v.is_nan() || m.is_nan() { f64::NAN } else { m.max(v) })
    };
    let scale = most(&mut b.iter().map(|v| v.abs()));
    let difference = most(&mut a.iter().zip(&b).map(|(a, b)| (a - b).abs()));
    Ok(if difference == 0.0 { 0.0 } else { difference / scale })
}

fn same(operator: &dyn Operator, law: &'static str, a: &Tensor, b: &Tensor, allowed: f64) -> Outcome {
    check(operator, law, relative_difference(a, b)?, allowed)
}

fn dot(a: &Tensor, b: &Tensor) -> Result<f64, Violation> {
    Ok(to_f64(a)?.iter().zip(to_f64(b)?).map(|(a, b)| a * b).sum())
}

fn length(a: &Tensor) -> Result<f64, Violation> {
    Ok(dot(a, a)?.sqrt())
}

/// Inputs and residuals of another shape are refused, and outputs have the shape and type that is promised.
pub fn shapes(operator: &dyn Operator, x: &Tensor) -> Outcome {
    let y = operator.apply(x)?;
    let shaped = |t: &Tensor, shape: &[usize]| t.dims()[0] == x.dims()[0] && &t.dims()[1..] == shape;
    require(operator, "outputs have the promised shape", shaped(&y, operator.output_shape()))?;
    require(operator, "outputs have the input's type", y.dtype() == x.dtype())?;
    let longer = |t: &Tensor| Tensor::cat(&[t, t], t.rank() - 1);
    let flat = x.flatten_all()?;
    require(operator, "an input of another shape is refused", operator.apply(&longer(x)?).is_err())?;
    require(operator, "an input without a batch is refused", operator.apply(&flat).is_err())?;
    let integers = x.to_dtype(DType::U32)?;
    require(operator, "an input of integers is refused", operator.apply(&integers).is_err())?;
    if operator.rows().is_some() {
        let more = Tensor::cat(&[x, x], 0)?;
        require(operator, "a batch of another size is refused", operator.apply(&more).is_err())?;
    }
    if let Some(map) = operator.as_differentiable() {
        let pulled = map.vjp(x, &y)?;
        require(operator, "gradients have the input's shape", shaped(&pulled, operator.input_shape()))?;
        require(operator, "a residual of another shape is refused", map.vjp(x, &longer(&y)?).is_err())?;
        require(operator, "a point of another shape is refused", map.vjp(&longer(x)?, &y).is_err())?;
    }
    if let Some(map) = operator.as_linear() {
        require(operator, "a residual of another shape is refused", map.adjoint(&longer(&y)?).is_err())?;
    }
    if let Some(map) = operator.as_spectral() {
        let c = map.v_t(x)?;
        require(operator, "an input of another shape has no modes", map.v_t(&longer(x)?).is_err())?;
        require(operator, "modes of another number are refused", map.v(&longer(&c)?).is_err())?;
        require(operator, "modes of another number are refused", map.u(&longer(&c)?).is_err())?;
        require(operator, "an output of another shape has no modes", map.u_t(&longer(&y)?).is_err())?;
    }
    Ok(())
}

/// ⟨A x, r⟩ = ⟨x, Aᵀ r⟩, A 0 = 0, and the vjp is the adjoint.
pub fn adjoint(operator: &dyn Operator, x: &Tensor, seed: u64) -> Outcome {
    let Some(map) = operator.as_linear() else { return Ok(()) };
    let r = normal(x, operator.output_shape(), seed, 0)?;
    for (dtype, allowed) in [(DType::F64, DOUBLE), (DType::F32, SINGLE)] {
        let (x, r) = (x.to_dtype(dtype)?, r.to_dtype(dtype)?);
        let (forward, back) = (operator.apply(&x)?, map.adjoint(&r)?);
        let by = (dot(&forward, &r)? - dot(&x, &back)?).abs() / (length(&forward)? * length(&r)?).max(1e-300);
        check(operator, "the adjoint is the transpose", by, allowed)?;
        same(operator, "AᵀA is A, then Aᵀ", &map.gram(&x)?, &map.adjoint(&forward)?, allowed)?;
        if let Some(smooth) = operator.as_differentiable() {
            same(operator, "the vjp of a linear map is its adjoint", &smooth.vjp(&x, &r)?, &back, 0.0)?;
        }
    }
    let nothing = to_f64(&operator.apply(&x.zeros_like()?)?)?;
    require(operator, "a linear map takes zero to zero", nothing.iter().all(|v| *v == 0.0))?;
    require(operator, "a linear map is differentiable", operator.as_differentiable().is_some())
}

/// What is not visible is zero for all x, and what is visible is not.
pub fn visible(operator: &dyn Operator, x: &Tensor, seed: u64) -> Outcome {
    let Some(visible) = operator.visible() else { return Ok(()) };
    let y = operator.apply(&normal(x, operator.input_shape(), seed, 20)?)?;
    let (values, n) = (to_f64(&y)?, y.elem_count() / y.dims()[0]);
    let one = |k: usize| visible[if visible.len() == 1 { 0 } else { k / n }][k % n];
    require(operator, "what is not visible is zero", (0..values.len()).all(|k| one(k) || values[k] == 0.0))?;
    require(operator, "what is visible is not zero", (0..values.len()).all(|k| !one(k) || values[k] != 0.0))
}

/// A diagonal map multiplies every value by its entry.
pub fn diagonal(operator: &dyn Operator, x: &Tensor) -> Outcome {
    let Some(entries) = operator.as_linear().and_then(Linear::diagonal) else { return Ok(()) };
    let (values, n) = (to_f64(x)?, x.elem_count() / x.dims()[0]);
    let entry = |k: usize| entries[if entries.len() == 1 { 0 } else { k / n }][k % n];
    let expected: Vec<f64> = values.iter().enumerate().map(|(k, v)| entry(k) * v).collect();
    let got = to_f64(&operator.apply(x)?)?;
    require(operator, "a diagonal map multiplies by its entries", got == expected)
}

/// A change of one leading slice of the input changes no other slice of the output.
pub fn factors(operator: &dyn Operator, x: &Tensor) -> Outcome {
    let parts = operator.factors();
    let sizes =
        (operator.input_shape().iter().product::<usize>(), operator.output_shape().iter().product::<usize>());
    let fits = parts > 0 && sizes.0.is_multiple_of(parts) && sizes.1.is_multiple_of(parts);
    require(operator, "factors divide inputs and outputs evenly", fits)?;
    if parts == 1 {
        return Ok(());
    }
    let (before, values) = (to_f64(&operator.apply(x)?)?, to_f64(x)?);
    for part in 0..parts {
        let (n, m) = (sizes.0 / parts, sizes.1 / parts);
        let changed =
            values.iter().enumerate().map(|(k, v)| if (k / n) % parts == part { -0.5 * v } else { *v });
        let changed = Tensor::from_vec(changed.collect(), x.dims(), x.device())?;
        let after = to_f64(&operator.apply(&changed)?)?;
        let kept = (0..before.len()).filter(|k| (k / m) % parts != part).all(|k| before[k] == after[k]);
        require(operator, "a slice of the input reaches only its own slice of the output", kept)?;
    }
    Ok(())
}

/// Each measured token is what `apply` gives, and depends on the tokens that are named and on no other.
pub fn local(operator: &dyn Operator, x: &Tensor) -> Outcome {
    let Some(local) = operator.as_local() else { return Ok(()) };
    let tokens = x.gt(0.0)?;
    let y: Vec<u8> = operator.apply(&tokens)?.flatten_all()?.to_vec1()?;
    let outputs: usize = operator.output_shape().iter().product();
    for (row, x) in tokens.flatten_from(1)?.to_vec2::<u8>()?.iter().enumerate() {
        for k in 0..outputs {
            let same = local.value(row, k, x) == y[row * outputs + k];
            require(operator, "a measured token by itself is the one among all", same)?;
            let sites = local.sites_of(row, k);
            let mut others: Vec<u8> = x.iter().map(|t| 1 - t).collect();
            sites.iter().for_each(|&i| others[i as usize] = x[i as usize]);
            let same = local.value(row, k, &others) == y[row * outputs + k];
            require(operator, "a measured token depends on the tokens that are named", same)?;
        }
    }
    Ok(())
}

/// ⟨vjp(x, r), d⟩ is the derivative of ⟨A(x), r⟩ along d, by central differences in f64.
pub fn derivative(operator: &dyn Operator, x: &Tensor, seed: u64) -> Outcome {
    let Some(map) = operator.as_differentiable() else { return Ok(()) };
    let r = normal(x, operator.output_shape(), seed, 1)?;
    let pulled = map.vjp(x, &r)?;
    let y = operator.apply(x)?;
    let mut seen = None;
    let together = map.vjp_of(x, &mut |y| {
        seen = Some(y.clone());
        Ok(r.clone())
    })?;
    same(operator, "both halves of a gradient together are the two apart", &together, &pulled, 0.0)?;
    let law = "a residual is made from the measurement";
    seen.map_or_else(|| require(operator, law, false), |seen| same(operator, law, &seen, &y, 0.0))?;
    let step = 1e-6;
    for index in 0..4 {
        let d = normal(x, operator.input_shape(), seed, 2 + index)?;
        let ahead = operator.apply(&combine(&[(&[1.0], x), (&[step], &d)])?)?;
        let behind = operator.apply(&combine(&[(&[1.0], x), (&[-step], &d)])?)?;
        let slope = combine(&[(&[0.5 / step], &ahead), (&[-0.5 / step], &behind)])?;
        let by = (dot(&slope, &r)? - dot(&pulled, &d)?).abs() / (length(&slope)? * length(&r)?).max(1e-300);
        check(operator, "the vjp is the derivative", by, 1e-7)?;
    }
    Ok(())
}

/// A = U S Vᵀ, Aᵀ = V S Uᵀ, and the columns of V, and of U where s > 0, are orthonormal.
pub fn spectral(operator: &dyn Operator, x: &Tensor, seed: u64) -> Outcome {
    let Some(map) = operator.as_spectral() else { return Ok(()) };
    let rows = x.dims()[0];
    let modes = map.singular()[0].len();
    let served = map.singular().len();
    require(operator, "one set of singular values serves all rows or each has one", {
        served == operator.rows().unwrap_or(1)
    })?;
    let values: Vec<f64> =
        (0..rows).flat_map(|row| map.singular()[if served == 1 { 0 } else { row }].clone()).collect();
    require(operator, "singular values are not negative", values.iter().all(|s| *s >= 0.0))?;
    let largest = values.iter().copied().fold(0.0, f64::max);
    let seen = values.iter().map(|s| f64::from(u8::from(*s > 0.0))).collect();
    let (s, seen) = (spread(values, rows, modes)?, spread(seen, rows, modes)?);

    let r = normal(x, operator.output_shape(), seed, 6)?;
    let forward = map.u(&map.v_t(x)?.mul(&s)?)?;
    let by = relative_to(&forward, &operator.apply(x)?, largest * max_abs(x)?)?;
    check(operator, "A = U S Vᵀ", by, DOUBLE)?;
    let back = map.v(&map.u_t(&r)?.mul(&s)?)?;
    let by = relative_to(&back, &map.adjoint(&r)?, largest * max_abs(&r)?)?;
    check(operator, "Aᵀ = V S Uᵀ", by, DOUBLE)?;

    let c = normal(x, &[modes], seed, 7)?;
    same(operator, "the columns of V are orthonormal", &map.v_t(&map.v(&c)?)?, &c, DOUBLE)?;
    let (c, turned) = (c.mul(&seen)?, map.u_t(&map.u(&c.mul(&seen)?)?)?.mul(&seen)?);
    same(operator, "the columns of U are orthonormal", &turned, &c, DOUBLE)?;
    // V and Vᵀ, U and Uᵀ are transposes of each other.
    let by = (dot(&map.v(&c)?, x)? - dot(&c, &map.v_t(x)?)?).abs() / (length(&c)? * length(x)?).max(1e-300);
    check(operator, "v_t is the transpose of v", by, DOUBLE)?;
    let by =
        (dot(&map.u(&c)?, &r)? - dot(&c, &map.u_t(&r)?)?).abs() / (length(&c)? * length(&r)?).max(1e-300);
    check(operator, "u_t is the transpose of u", by, DOUBLE)?;
    for (row, values) in map.singular().iter().enumerate() {
        let Some(norms) = map.norm_squared() else { break };
        let square = values.iter().copied().fold(0.0, f64::max).powi(2);
        let by = (square - pick(&norms, row)).abs() / square.max(1e-300);
        check(operator, "the norm is the largest singular value", by, if square > 0.0 { 1e-9 } else { 1.0 })?;
    }
    Ok(())
}

fn spread(values: Vec<f64>, rows: usize, modes: usize) -> Result<Tensor, Violation> {
    Ok(Tensor::from_vec(values, (rows, modes), &candle_core::Device::Cpu)?)
}

fn max_abs(x: &Tensor) -> Result<f64, Violation> {
    Ok(to_f64(x)?.iter().fold(0.0, |m: f64, v| m.max(v.abs())))
}

fn relative_to(a: &Tensor, b: &Tensor, scale: f64) -> Result<f64, Violation> {
    Ok(max_abs(&combine(&[(&[1.0], a), (&[-1.0], b)])?)? / scale.max(1e-300))
}

/// The bound of ‖J‖² holds, where one is given (power iteration per row, with J by finite differences where A is not linear);
/// for a linear map it is within a factor of two.
pub fn norm(operator: &dyn Operator, x: &Tensor, seed: u64) -> Outcome {
    let Some(map) = operator.as_differentiable() else { return Ok(()) };
    let Some(bound) = map.lipschitz_squared() else { return Ok(()) };
    let rows = x.dims()[0];
    let served = bound.len() == 1 || bound.len() == rows;
    require(operator, "one norm bound serves all rows or each has one", served)?;
    let mut v = normal(x, operator.input_shape(), seed, 8)?;
    let mut largest = vec![0.0f64; rows];
    for _ in 0..200 {
        let lengths = daps_core::tensors::squared_distance(&v, &v.zeros_like()?)?;
        let unit: Vec<f64> = lengths.iter().map(|l| 1.0 / l.sqrt().max(1e-300)).collect();
        v = combine(&[(&unit, &v)])?;
        let pushed = match operator.as_linear() {
            Some(_) => operator.apply(&v)?,
            None => {
                let ahead = operator.apply(&combine(&[(&[1.0], x), (&[1e-6], &v)])?)?;
                combine(&[(&[1e6], &ahead), (&[-1e6], &operator.apply(x)?)])?
            }
        };
        let squares = daps_core::tensors::squared_distance(&pushed, &pushed.zeros_like()?)?;
        largest.iter_mut().zip(squares).for_each(|(largest, square)| *largest = largest.max(square));
        v = map.vjp(x, &pushed)?;
    }
    let slack = if operator.as_linear().is_some() { 1e-10 } else { 1e-4 };
    for (row, largest) in largest.iter().enumerate() {
        let bound = pick(&bound, row);
        check(operator, "the norm bound holds", largest / bound.max(1e-300) - 1.0, slack)?;
        if operator.as_linear().is_some() {
            check(operator, "the norm bound is within a factor of two", bound, 2.0 * largest + 1e-300)?;
        }
    }
    let agree = operator.as_linear().is_none_or(|linear| linear.norm_squared() == Some(bound));
    require(operator, "norm and slope bound agree", agree)
}

/// The approximation of f(AᵀA) is symmetric, positive, and linear in its argument.
pub fn preconditioner(operator: &dyn Operator, x: &Tensor, seed: u64) -> Outcome {
    let Some(map) = operator.as_linear() else { return Ok(()) };
    let f = |_: usize, eigenvalue: f64| 1.0 / (0.1 + eigenvalue);
    let (a, b) = (normal(x, operator.input_shape(), seed, 9)?, normal(x, operator.input_shape(), seed, 10)?);
    let (Some(mapped_a), Some(mapped_b)) = (map.approx_spectral_map(&f, &a), map.approx_spectral_map(&f, &b))
    else {
        return Ok(());
    };
    let (mapped_a, mapped_b) = (mapped_a?, mapped_b?);
    let by = (dot(&mapped_a, &b)? - dot(&a, &mapped_b)?).abs() / (length(&mapped_a)? * length(&b)?);
    check(operator, "the preconditioner is symmetric", by, DOUBLE)?;
    // Eigenvalues lie between f at the largest eigenvalue and f(0).
    let least = map.norm_squared().map_or(0.0, |norms| f(0, 2.0 * norms.into_iter().fold(0.0, f64::max)));
    for (v, mapped) in [(&a, &mapped_a), (&b, &mapped_b)] {
        let quotient = dot(v, mapped)? / dot(v, v)?;
        require(operator, "the preconditioner is positive", quotient >= least && quotient <= 10.0 + 1e-9)?;
    }
    let law = "an f that is one number a row multiplies the row by it";
    let scale = |row: usize| 1.0 + row as f64;
    let scales: Vec<f64> = (0..a.dims()[0]).map(scale).collect();
    match map.approx_spectral_map(&|row, _| scale(row), &a) {
        Some(scaled) => same(operator, law, &scaled?, &combine(&[(&scales, &a)])?, DOUBLE),
        None => require(operator, "a preconditioner exists for every f", false),
    }
}

/// What f32 gives is what f64 gives, rounded.
pub fn precision(operator: &dyn Operator, x: &Tensor, seed: u64) -> Outcome {
    let single = |t: &Tensor| t.to_dtype(DType::F32);
    // Start from values that f32 holds exactly, so that kinks lie at the same place.
    let x = single(x)?.to_dtype(DType::F64)?;
    let r = normal(&x, operator.output_shape(), seed, 11)?;
    let (y, y32) = (operator.apply(&x)?, operator.apply(&single(&x)?)?);
    require(operator, "f32 in gives f32 out", y32.dtype() == DType::F32)?;
    same(operator, "A in f32 agrees with f64", &y32, &y, SINGLE)?;
    if let Some(map) = operator.as_differentiable() {
        let (g, g32) = (map.vjp(&x, &r)?, map.vjp(&single(&x)?, &single(&r)?)?);
        // A magnitude's direction is lost where it is small; compare with the size of r instead.
        let by = relative_to(&g32.to_dtype(DType::F64)?, &g, max_abs(&g)?.max(max_abs(&r)? * 0.1))?;
        check(operator, "vjp in f32 agrees with f64", by, 10.0 * SINGLE)?;
    }
    if let Some(map) = operator.as_spectral() {
        let (c, c32) = (map.v_t(&x)?, map.v_t(&single(&x)?)?);
        same(operator, "Vᵀ in f32 agrees with f64", &c32, &c, SINGLE)?;
        same(operator, "V in f32 agrees with f64", &map.v(&single(&c)?)?, &map.v(&c)?, SINGLE)?;
        same(operator, "U in f32 agrees with f64", &map.u(&single(&c)?)?, &map.u(&c)?, SINGLE)?;
        same(operator, "Uᵀ in f32 agrees with f64", &map.u_t(&single(&r)?)?, &map.u_t(&r)?, SINGLE)?;
    }
    Ok(())
}

/// Everything that an operator computes, for comparisons to the bit.
fn outputs(operator: &dyn Operator, x: &Tensor, r: &Tensor) -> Result<Vec<Tensor>, Violation> {
    let mut all = vec![operator.apply(x)?];
    if let Some(map) = operator.as_differentiable() {
        all.push(map.vjp(x, r)?);
    }
    if let Some(map) = operator.as_linear() {
        all.extend(linear_outputs(map, x, r)?);
    }
    if let Some(map) = operator.as_spectral() {
        all.extend(spectral_outputs(map, x, r)?);
    }
    Ok(all)
}

fn linear_outputs(map: &dyn Linear, x: &Tensor, r: &Tensor) -> Result<Vec<Tensor>, Violation> {
    let mut all = vec![map.adjoint(r)?, map.gram(x)?];
    if let Some(mapped) = map.approx_spectral_map(&|_, e| 1.0 / (1.0 + e), x) {
        all.push(mapped?);
    }
    Ok(all)
}

fn spectral_outputs(map: &dyn Spectral, x: &Tensor, r: &Tensor) -> Result<Vec<Tensor>, Violation> {
    let c = map.v_t(x)?;
    Ok(vec![map.v(&c)?, map.u(&c)?, map.u_t(r)?, c])
}

fn same_bits(a: &Tensor, b: &Tensor) -> Result<bool, Violation> {
    let (a, b) = (to_f64(a)?, to_f64(b)?);
    Ok(a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()))
}

/// The norm bound of every row, in bits.
fn bounds(operator: &dyn Operator, rows: usize) -> Vec<u64> {
    let bound = operator.as_differentiable().and_then(Differentiable::lipschitz_squared);
    let Some(bound) = bound else { return vec![] };
    (0..rows).map(|row| pick(&bound, row).to_bits()).collect()
}

/// A row alone, in any order and repeated, gives the same bits as within its batch, and has the same norm and powers.
pub fn rows(operator: &Arc<dyn Operator>, x: &Tensor, seed: u64) -> Outcome {
    let batch = x.dims()[0];
    let order: Vec<usize> = (0..batch).rev().chain([0]).collect();
    for dtype in [DType::F32, DType::F64] {
        let r = normal(x, operator.output_shape(), seed, 12)?.to_dtype(dtype)?;
        let x = x.to_dtype(dtype)?;
        let whole = outputs(&**operator, &x, &r)?;
        let singles = (0..batch).map(|row| vec![row]);
        for picked in singles.chain([order.clone()]) {
            let index: Vec<u32> = picked.iter().map(|&row| row as u32).collect();
            let index = Tensor::new(index, &candle_core::Device::Cpu)?;
            let part = Arc::clone(operator).select(&picked)?;
            let alone = outputs(&*part, &x.index_select(&index, 0)?, &r.index_select(&index, 0)?)?;
            for (alone, whole) in alone.iter().zip(&whole) {
                let same = same_bits(alone, &whole.index_select(&index, 0)?)?;
                require(&**operator, "a row gives the same bits in any batch", same)?;
            }
            let (here, there) = (bounds(&*part, picked.len()), bounds(&**operator, batch));
            let same = here.iter().zip(&picked).all(|(bits, row)| *bits == there[*row]);
            require(&**operator, "a row has the same norm bound in any batch", same)?;
            let same = part.as_spectral().is_some() == operator.as_spectral().is_some();
            require(&**operator, "a batch has a decomposition if the whole has one", same)?;
            if let Some(map) = part.as_spectral() {
                let rows = map.singular().len();
                require(&**operator, "selected rows keep their modes", rows == 1 || rows == picked.len())?;
            }
        }
    }
    if operator.rows().is_some() {
        let beyond = Arc::clone(operator).select(&[batch]).is_err();
        require(&**operator, "a row that does not exist is refused", beyond)?;
    }
    Ok(())
}

/// The number of threads changes no bit.
pub fn threads(operator: &dyn Operator, x: &Tensor, seed: u64) -> Outcome {
    let r = normal(x, operator.output_shape(), seed, 13)?;
    for dtype in [DType::F32, DType::F64] {
        let (x, r) = (x.to_dtype(dtype)?, r.to_dtype(dtype)?);
        let here = outputs(operator, &x, &r)?;
        for threads in [1, 3] {
            let Ok(pool) = rayon::ThreadPoolBuilder::new().num_threads(threads).build() else { continue };
            let there = pool.install(|| outputs(operator, &x, &r))?;
            for (a, b) in here.iter().zip(&there) {
                require(operator, "the thread count changes no bit", same_bits(a, b)?)?;
            }
        }
    }
    Ok(())
}

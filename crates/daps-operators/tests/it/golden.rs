//! Outputs and gradients of the official implementation, number by number (`tests/golden/operators.safetensors`).

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use daps_core::tensors::{combine, to_f64};
use daps_core::{Operator, Result};
use daps_operators::laws::relative_difference;
use daps_operators::{
    Blur, BlurKernel, Border, Hdr, Inpainting, PhaseRetrieval, Strategy, SuperResolution, gaussian_kernel,
};

const SHAPE: [usize; 3] = [3, 128, 128];
const TOLERANCE: f64 = 1e-5;

struct Golden(HashMap<String, Tensor>);

impl Golden {
    fn read() -> Self {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/operators.safetensors");
        Self(candle_core::safetensors::load(path, &Device::Cpu).unwrap())
    }

    fn tensor(&self, name: &str) -> &Tensor {
        &self.0[name]
    }

    fn mask(&self, name: &str) -> Tensor {
        self.tensor(&format!("{name}.mask")).reshape((1, 1, 128, 128)).unwrap()
    }

    fn kernel(&self, name: &str) -> BlurKernel {
        let kernel = self.tensor(&format!("{name}.kernel"));
        let (h, w) = kernel.dims2().unwrap();
        BlurKernel::new(&to_f64(kernel).unwrap(), h, w).unwrap()
    }

    /// Compares y = A(x) and J(0.9 x)ᵀ (A(0.9 x) - y), in f32 and in f64.
    fn compare(&self, name: &str, operator: &dyn Operator) {
        let check = |dtype: DType| -> Result<[f64; 2]> {
            let x = self.tensor("x").to_dtype(dtype)?;
            let y = self.tensor(&format!("{name}.y"));
            let output = operator.apply(&x)?;
            let near = combine(&[(&[0.9], &x)])?;
            let residual = combine(&[(&[1.0], &operator.apply(&near)?), (&[-1.0], y)])?;
            let gradient = operator.as_differentiable().unwrap().vjp(&near, &residual)?;
            let expected = self.tensor(&format!("{name}.half_grad_at_0.9x"));
            Ok([relative_difference(&output, y)?, relative_difference(&gradient, expected)?])
        };
        for dtype in [DType::F32, DType::F64] {
            let differences = check(dtype).unwrap();
            assert!(differences.iter().all(|d| *d < TOLERANCE), "{name} in {dtype:?}: {differences:?}");
            println!("{name} {dtype:?}: {differences:?}");
        }
    }
}

#[test]
fn super_resolution() {
    Golden::read().compare("super_resolution", &SuperResolution::new(&SHAPE, 4).unwrap());
}

#[test]
fn inpainting() {
    let golden = Golden::read();
    for name in ["inpaint_box", "inpaint_random"] {
        golden.compare(name, &Inpainting::new(&SHAPE, &golden.mask(name)).unwrap());
    }
}

#[test]
fn blur_in_every_way() {
    let golden = Golden::read();
    let ways = [Strategy::Separable, Strategy::Sparse, Strategy::Fourier];
    for (name, ways) in [("gaussian_blur", &ways[..]), ("motion_blur", &ways[1..])] {
        let kernel = [golden.kernel(name)];
        golden.compare(name, &Blur::new(&SHAPE, &kernel, Border::Reflect).unwrap());
        for way in ways {
            golden.compare(name, &Blur::with_strategy(&SHAPE, &kernel, Border::Reflect, *way).unwrap());
        }
    }
}

#[test]
fn our_gaussian_kernel_is_the_official_one() {
    let golden = Golden::read();
    let ours = Blur::new(&SHAPE, &[gaussian_kernel(61, 3.0).unwrap()], Border::Reflect).unwrap();
    golden.compare("gaussian_blur", &ours);
}

#[test]
fn phase_retrieval() {
    Golden::read().compare("phase_retrieval", &PhaseRetrieval::new(&SHAPE, 2.0).unwrap());
}

#[test]
fn hdr() {
    Golden::read().compare("hdr", &Hdr::new(&SHAPE, 2.0).unwrap());
}

//! Every operator by name: what it is, how it is built from parameters, and a small example for the laws.

use std::borrow::Cow;
use std::sync::Arc;

use daps_core::{Error, Operator, Result};
use toml::Table;

use crate::example::Example;
use crate::params::Params;
use crate::{
    blur, dense, hdr, inpainting, mri, nonlinear_blur, pairs, phase_retrieval, super_resolution, toy2d,
};

/// Builds an operator from its parameters, the shape of one image, and a seed for random masks and kernels.
pub type Build = fn(params: &Table, shape: &[usize], seed: u64) -> Result<Arc<dyn Operator>>;

/// The shape of an image from that of its measurement; none where it does not follow.
pub type ImageShape = fn(params: &Table, measured: &[usize]) -> Result<Option<Vec<usize>>>;

/// An operator that can be built by name.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name in configurations.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// What it does, in one sentence.
    pub summary: &'static str,
    /// Builds it.
    pub build: Build,
    /// Parameters that are files.
    pub files: &'static [FileParameter],
    /// What it draws from the seed with these parameters, such as its mask: nothing but the same seed explains a measurement of it.
    pub drawn: fn(params: &Table) -> Result<Option<&'static str>>,
    /// The options of `daps solve` that give what it would draw.
    pub supply: &'static str,
    /// The operator that takes what this one draws or makes from a file.
    pub from_file: Option<FromFile>,
    /// The operator that draws what this one needs a file for.
    pub without_file: Option<&'static str>,
    /// Its parameters with their defaults for images of a shape; none where some parameter is required.
    pub defaults: fn(shape: &[usize]) -> Table,
    /// Parameters that are not the defaults above where images hold tokens.
    pub over_tokens: fn() -> Table,
    /// Given parameters with every default for images of a shape spelled out; one may follow from another.
    pub complete: fn(params: &Table, shape: &[usize]) -> Result<Table>,
    /// The shape of the image behind a measurement of a shape, which may have rows in front, with these parameters; none where it does
    /// not follow from it.
    pub image_shape: ImageShape,
    /// A small instance near the wished number of channels, height and width.
    pub example: fn(size: [usize; 3], seed: u64) -> Result<Example>,
}

/// An operator that takes a file in the place of what another one draws or makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FromFile {
    /// The operator.
    pub operator: &'static str,
    /// Its parameter that is the file.
    pub parameter: &'static str,
}

impl Entry {
    /// Whether a file can be given for this parameter, to this operator or to the one that stands in for it then.
    #[must_use]
    pub fn takes_file(&self, parameter: &str) -> bool {
        self.files.iter().any(|f| f.name == parameter)
            || self.from_file.is_some_and(|f| f.parameter == parameter)
    }

    /// A small instance, to ask what holds at any size: its powers, how its measurements are shown.
    pub fn small(&self) -> Result<Arc<dyn Operator>> {
        Ok((self.example)([3, 16, 16], 0)?.operator)
    }
}

/// A parameter of an operator that is a file.
#[derive(Clone, Copy, Debug)]
pub struct FileParameter {
    /// Its name.
    pub name: &'static str,
    /// The option of `daps solve` that gives it.
    pub option: &'static str,
    /// What the file holds.
    pub holds: &'static str,
    /// Whether it must be given.
    pub required: bool,
}

macro_rules! entry {
    ($name:literal, $title:literal, $params:ty, $example:path, $summary:literal) => {
        Entry {
            name: $name,
            title: $title,
            summary: $summary,
            build: |params, shape, seed| <$params>::read($name, params, shape)?.operator($name, shape, seed),
            files: <$params>::FILES,
            drawn: |params| Ok(<$params>::read($name, params, &[])?.drawn()),
            supply: <$params>::SUPPLY,
            from_file: <$params>::FROM_FILE,
            without_file: <$params>::WITHOUT_FILE,
            over_tokens: <$params>::over_tokens,
            defaults: |shape| <$params>::default_table(shape),
            complete: |params, shape| <$params>::completed($name, params, shape),
            image_shape: |params, measured| <$params>::read($name, params, &[])?.image_shape(measured),
            example: $example,
        }
    };
}

/// All operators.
pub static OPERATORS: &[Entry] = &[
    entry!(
        "super_resolution",
        "super-resolution",
        super_resolution::SuperResolutionParams,
        super_resolution::example,
        "antialiased bicubic downsampling by an integer factor"
    ),
    entry!(
        "inpaint_box",
        "inpainting, box",
        inpainting::tasks::BoxParams,
        inpainting::tasks::box_example,
        "a square at a random place is hidden"
    ),
    entry!(
        "inpaint_random",
        "inpainting, random",
        inpainting::tasks::RandomParams,
        inpainting::tasks::random_example,
        "a fraction of the pixels is hidden at random"
    ),
    entry!(
        "inpaint",
        "inpainting, given mask",
        inpainting::tasks::MaskParams,
        inpainting::tasks::example,
        "the pixels outside a given mask are hidden"
    ),
    entry!(
        "gaussian_blur",
        "Gaussian deblurring",
        blur::tasks::GaussianParams,
        blur::tasks::gaussian_example,
        "blur by a Gaussian kernel"
    ),
    entry!(
        "motion_blur",
        "motion deblurring",
        blur::tasks::MotionParams,
        blur::tasks::motion_example,
        "blur by a random camera shake"
    ),
    entry!(
        "blur",
        "deblurring, given kernel",
        blur::tasks::BlurParams,
        blur::tasks::example,
        "blur by a given kernel"
    ),
    entry!(
        "phase_retrieval",
        "phase retrieval",
        phase_retrieval::PhaseParams,
        phase_retrieval::example,
        "magnitudes of the Fourier transform of the padded image"
    ),
    entry!(
        "nonlinear_blur",
        "nonlinear deblurring",
        nonlinear_blur::NonlinearParams,
        nonlinear_blur::example,
        "blur by a random camera shake, of light behind a smooth tone curve (our own model)"
    ),
    entry!(
        "hdr",
        "high dynamic range",
        hdr::HdrParams,
        hdr::example,
        "an exposure that clips bright and dark values"
    ),
    entry!(
        "mri",
        "MRI",
        mri::task::MriParams,
        mri::task::example,
        "undersampled spectra of a complex image seen by several coils"
    ),
    entry!(
        "xor",
        "XOR of pixel pairs",
        pairs::PairParams,
        pairs::xor_example,
        "exclusive or of random pixel pairs of a binary image"
    ),
    entry!(
        "and",
        "AND of pixel pairs",
        pairs::PairParams,
        pairs::and_example,
        "logical and of random pixel pairs of a binary image"
    ),
    entry!("toy2d", "two bumps over the plane", toy2d::ToyParams, toy2d::example, "two bumps over the plane"),
    entry!("dense", "dense matrix", dense::DenseParams, dense::example, "multiplication by a given matrix"),
];

/// The entry of a name.
pub fn entry(name: &str) -> Result<&'static Entry> {
    OPERATORS
        .iter()
        .find(|entry| entry.name == name)
        .ok_or_else(|| Error::unknown("operator", name, OPERATORS.iter().map(|entry| entry.name)))
}

/// What a registered operator is called for people; any other name stands for itself.
pub(crate) fn title(name: &str) -> Cow<'_, str> {
    Cow::Borrowed(OPERATORS.iter().find(|entry| entry.name == name).map_or(name, |entry| entry.title))
}

/// Builds an operator by name.
pub fn build(name: &str, params: &Table, shape: &[usize], seed: u64) -> Result<Arc<dyn Operator>> {
    (entry(name)?.build)(params, shape, seed)
}

#[cfg(test)]
mod tests {
    use daps_core::Shown;

    use super::*;

    /// A shape that an operator works on.
    fn shape_of(entry: &Entry) -> &'static [usize] {
        match entry.name {
            "toy2d" => &[2],
            "mri" => &[2, 32, 48],
            "xor" | "and" => &[1, 32, 32],
            _ => &[3, 32, 48],
        }
    }

    #[test]
    fn unknown_names_and_parameters_are_refused_with_what_is_known() {
        let error = build("gausian_blur", &Table::new(), &[3, 64, 64], 0).err().unwrap().to_string();
        assert!(
            error.contains("unknown operator 'gausian_blur'") && error.contains("gaussian_blur, motion_blur")
        );
        let params = "fctor = 4".parse().unwrap();
        let error = build("super_resolution", &params, &[3, 64, 64], 0).err().unwrap().to_string();
        let says = "parameters of super_resolution: unknown field `fctor`, expected `factor`";
        assert!(error.starts_with(says) && error.ends_with("; did you mean 'factor'?"), "{error}");
        let params = "factor = 'four'".parse().unwrap();
        let error = build("super_resolution", &params, &[3, 64, 64], 0).err().unwrap().to_string();
        assert!(error.contains("factor") && !error.contains('\n'), "{error}");
        let error = build("inpaint", &Table::new(), &[3, 64, 64], 0).err().unwrap().to_string();
        assert!(error.contains("expected mask = FILE, an image"), "{error}");
    }

    #[test]
    fn names_are_unique_and_defaults_build() {
        for (i, entry) in OPERATORS.iter().enumerate() {
            assert!(OPERATORS[..i].iter().all(|other| other.name != entry.name));
            assert!(!entry.summary.is_empty());
            let shape = shape_of(entry);
            let defaults = (entry.defaults)(shape);
            match (entry.build)(&defaults, shape, 1) {
                Ok(operator) => {
                    assert_eq!(operator.name(), entry.name);
                    assert_eq!(operator.input_shape(), shape);
                }
                Err(error) => {
                    assert!(["inpaint", "blur", "dense"].contains(&entry.name), "{}: {error}", entry.name);
                }
            }
        }
    }

    /// What is said of an operator before it is built is what it says itself, and what stands in for it exists.
    #[test]
    fn entries_agree_with_their_operators() {
        for entry in OPERATORS {
            assert_eq!(entry.small().unwrap().title(), entry.title);
            if let Some(from_file) = entry.from_file {
                let other = super::entry(from_file.operator).unwrap();
                assert!(other.files.iter().any(|f| f.required && f.name == from_file.parameter));
            }
            let drawn = (entry.drawn)(&Table::new()).ok().flatten();
            assert_eq!(drawn.is_some(), !entry.supply.is_empty(), "{}", entry.name);
            if let Some(other) = entry.without_file {
                assert_eq!(super::entry(other).unwrap().from_file.map(|f| f.operator), Some(entry.name));
            }
            let tokens = (entry.over_tokens)();
            assert!(tokens.is_empty() || (entry.complete)(&tokens, &[1, 8, 8]).is_ok());
        }
        let small = |name: &str| entry(name).unwrap().small().unwrap();
        assert!(small("phase_retrieval").is_ambiguous() && !small("gaussian_blur").is_ambiguous());
        assert_eq!(small("mri").shown(), Shown::CoilSpectra);
        assert_eq!(small("xor").shown(), Shown::AtSites);
        assert_eq!(small("dense").shown(), Shown::Hidden);
        assert!(entry("gaussian_blur").unwrap().takes_file("kernel"));
        assert!(!entry("hdr").unwrap().takes_file("kernel"));
    }

    #[test]
    fn what_is_required_is_all_that_is() {
        for entry in OPERATORS {
            let mut given = Table::new();
            for file in entry.files.iter().filter(|f| f.required) {
                let error = (entry.complete)(&given, &[1, 8, 8]).unwrap_err().to_string();
                assert!(error.contains(&format!("expected {} = FILE", file.name)), "{}: {error}", entry.name);
                given.insert(file.name.to_owned(), "file.npy".into());
            }
            assert!((entry.complete)(&given, &[1, 8, 8]).is_ok(), "{}", entry.name);
            for file in entry.files {
                given.insert(file.name.to_owned(), "file.npy".into());
            }
            assert!((entry.complete)(&given, &[1, 8, 8]).is_ok(), "{}", entry.name);
        }
    }

    /// Whoever depends on the seed says so: two seeds give two operators exactly where something is drawn.
    #[test]
    fn what_is_drawn_from_the_seed_is_said() {
        use daps_core::tensors::to_f64;
        for entry in OPERATORS.iter().filter(|e| e.files.iter().all(|f| !f.required)) {
            let shape = shape_of(entry);
            let n: usize = shape.iter().product();
            let x: Vec<f64> = (0..n).map(|i| ((i * 7919 % 13) % 2) as f64).collect();
            let x =
                daps_core::tensors::from_f64(x, &[&[1], shape].concat(), candle_core::DType::F64).unwrap();
            let measured = |seed| {
                let operator = (entry.build)(&Table::new(), shape, seed).unwrap();
                to_f64(&operator.apply(&x).unwrap()).unwrap()
            };
            let drawn = (entry.drawn)(&Table::new()).unwrap();
            assert_eq!(drawn.is_some(), measured(1) != measured(2), "{}", entry.name);
        }
        let drawn =
            |name: &str, params: &str| (entry(name).unwrap().drawn)(&params.parse().unwrap()).unwrap();
        assert_eq!(drawn("mri", "maps = 'm.npy'"), Some("its mask"));
        assert_eq!(drawn("mri", "maps = 'm.npy'\nmask = 'k.npy'"), None);
        assert_eq!(drawn("nonlinear_blur", "kernel = 'k.npy'"), None);
        assert_eq!(drawn("xor", "pairs = [[0, 1]]"), None);
    }

    #[test]
    fn what_a_file_says_is_not_said_twice() {
        for (name, params) in [
            ("mri", "maps = 'm.npy'\ncoils = 3"),
            ("mri", "mask = 'm.npy'\nacceleration = 8.0"),
            ("nonlinear_blur", "kernel = 'k.npy'\nsize = 9"),
        ] {
            let error = build(name, &params.parse().unwrap(), &[2, 32, 32], 0).err().unwrap().to_string();
            assert!(error.contains("either"), "{name}: {error}");
        }
    }

    #[test]
    fn defaults_are_the_papers_at_256_and_scale_with_the_side() {
        let at = |name: &str, side: usize| (entry(name).unwrap().defaults)(&[3, side, side]);
        let number = |table: &Table, key: &str| {
            table[key].as_float().or(table[key].as_integer().map(|v| v as f64)).unwrap()
        };
        for (name, key, large, small) in [
            ("super_resolution", "factor", 4.0, 4.0),
            ("inpaint_box", "size", 128.0, 32.0),
            ("inpaint_box", "margin", 32.0, 8.0),
            ("inpaint_random", "fraction", 0.7, 0.7),
            ("gaussian_blur", "size", 61.0, 15.0),
            ("gaussian_blur", "std", 3.0, 1.5),
            ("motion_blur", "size", 61.0, 15.0),
            ("motion_blur", "intensity", 0.5, 0.5),
            ("phase_retrieval", "oversample", 2.0, 2.0),
            ("nonlinear_blur", "size", 61.0, 15.0),
            ("hdr", "scale", 2.0, 2.0),
        ] {
            assert_eq!(number(&at(name, 256), key), large, "{name}.{key}");
            assert_eq!(number(&at(name, 64), key), small, "{name}.{key}");
        }
    }
}

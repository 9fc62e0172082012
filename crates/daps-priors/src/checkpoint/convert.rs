//! What is in a checkpoint, and the same as safetensors in another type.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::{DType, Tensor};
use serde::Serialize;

use super::{CONFIG_KEY, Checkpoint, KEY_PREFIX, Opened, safe};
use crate::network::NetworkConfig;
use crate::{Error, Result};

/// The type of written weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// Four bytes.
    F32,
    /// Two bytes, small range.
    F16,
    /// Two bytes, few digits.
    BF16,
}

impl WeightType {
    fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::BF16 => DType::BF16,
        }
    }
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: &'static str,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// What a file holds.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// safetensors or PyTorch.
    pub format: &'static str,
    /// All tensors in the order of their names.
    pub tensors: Vec<TensorInfo>,
    /// Numbers in all tensors.
    pub parameters: usize,
    /// Their bytes.
    pub bytes: usize,
    /// SHA-256 of the tensors.
    pub sha256: String,
    /// The network configuration in or beside the file, as TOML.
    pub config: Option<String>,
}

/// Lists the tensors of a file.
pub fn inspect(path: &Path) -> Result<Inspection> {
    let opened = Opened::file(path)?;
    let config = opened.config()?.map(|c| c.to_toml()).transpose()?;
    let checkpoint = opened.read()?;
    let tensors = &checkpoint.tensors;
    let info = |(name, t): (&String, &Tensor)| TensorInfo {
        name: name.clone(),
        dtype: t.dtype().as_str(),
        shape: t.dims().to_vec(),
    };
    Ok(Inspection {
        format: checkpoint.format,
        parameters: tensors.values().map(Tensor::elem_count).sum(),
        bytes: tensors.values().map(|t| t.elem_count() * t.dtype().size_in_bytes()).sum(),
        sha256: safe::checksum(tensors),
        tensors: tensors.iter().map(info).collect(),
        config,
    })
}

/// Writes the tensors of `input` as safetensors. The metadata hold the configuration (given, or in or beside the input), a
/// checksum, and what else the input says of its weights: r(σ), the images that they have seen. A configuration that the
/// tensors do not fit is refused; so is a number that a smaller type cannot hold. Whole numbers keep their type.
pub fn convert(input: &Path, output: &Path, dtype: WeightType, config: Option<&NetworkConfig>) -> Result<()> {
    let opened = Opened::file(input)?;
    let config = match config {
        Some(config) => Some(config.clone()),
        None => opened.config()?,
    };
    let Checkpoint { tensors, metadata, .. } = opened.read()?;
    if let Some(config) = &config {
        config.network(tensors.clone()).map_err(|e| e.within(input))?;
    }
    let written = cast_all(tensors, dtype).map_err(|reason| Error::file(input, reason))?;
    // The old checksum goes along, and is replaced when the file is written.
    let mut metadata: HashMap<String, String> =
        metadata.into_iter().filter(|(key, _)| key.starts_with(KEY_PREFIX)).collect();
    if let Some(config) = &config {
        metadata.insert(CONFIG_KEY.to_owned(), config.to_toml()?);
    }
    safe::write(output, &written, metadata)
}

/// All tensors in another type, or which of them does not fit into it.
pub(crate) fn cast_all(
    tensors: BTreeMap<String, Tensor>,
    dtype: WeightType,
) -> std::result::Result<BTreeMap<String, Tensor>, String> {
    let each = |(name, tensor): (String, Tensor)| match cast(&tensor, dtype.dtype()) {
        Ok(Some(cast)) => Ok((name, cast)),
        Ok(None) => {
            Err(format!("tensor '{name}' holds a number beyond the range of {}", dtype.dtype().as_str()))
        }
        Err(e) => Err(e.to_string()),
    };
    tensors.into_iter().map(each).collect()
}

/// The tensor in another type, or nothing where a finite number would become infinite.
fn cast(tensor: &Tensor, dtype: DType) -> candle_core::Result<Option<Tensor>> {
    if !tensor.dtype().is_float() {
        return Ok(Some(tensor.clone()));
    }
    let cast = tensor.to_dtype(dtype)?;
    let finite = |t: &Tensor| -> candle_core::Result<usize> {
        let values = t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
        Ok(values.iter().filter(|v| v.is_finite()).count())
    };
    Ok((finite(tensor)? == finite(&cast)?).then_some(cast))
}

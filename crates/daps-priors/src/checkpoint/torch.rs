//! PyTorch's zip archives: one pickle that describes tensors, and their numbers in files of their own.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use zip::{CompressionMethod, ZipArchive};

use super::pickle::{self, Element, Refused, View};
use super::state_dict;

type Result<T> = std::result::Result<T, Refused>;

fn refuse<T>(reason: impl Into<String>) -> Result<T> {
    Err(Refused(reason.into()))
}

/// A pickle larger than this describes no state dictionary.
const LARGEST_PICKLE: u64 = 1 << 28;

/// All tensors of the state dictionary in an archive.
pub fn read_archive(mut reader: impl Read + Seek) -> Result<BTreeMap<String, Tensor>> {
    let length = reader.seek(SeekFrom::End(0)).or_else(|e| refuse(e.to_string()))?;
    let archive = ZipArchive::new(reader)
        .or_else(|e| refuse(format!("is not a complete zip archive ({e}); the file may be cut off")))?;
    let mut names = (0..archive.len()).filter_map(|i| archive.name_for_index(i)?.ok().map(Cow::into_owned));
    let Some(name) = names.find(|n| n == "data.pkl" || n.ends_with("/data.pkl")) else {
        return refuse("holds no data.pkl; it is not a PyTorch checkpoint");
    };
    drop(names);
    let prefix = name.trim_end_matches("data.pkl").to_owned();
    let mut entries = Entries { archive, length, prefix, uses: HashMap::new(), storages: HashMap::new() };
    let mut budget = Budget(length.saturating_mul(MOST_SHARING));
    if entries.archive.index_for_name(&format!("{}byteorder", entries.prefix)).is_some()
        && entries.bytes("byteorder", 16)? != b"little"
    {
        return refuse("was written on a big-endian machine, which is not supported");
    }
    let pickle = pickle::read(&entries.bytes("data.pkl", LARGEST_PICKLE)?)?;
    let views = state_dict::tensors(&pickle)?;
    for view in views.values().collect::<HashSet<_>>() {
        *entries.uses.entry(view.storage.key.clone()).or_default() += 1;
    }
    let mut tensors = BTreeMap::new();
    let mut read: HashMap<View, Tensor> = HashMap::new();
    for (name, view) in views {
        let tensor = match read.get(&view) {
            // Weights that are tied have two names, and are there once.
            Some(tensor) => tensor.clone(),
            None => entries
                .tensor(&view, &mut budget)
                .map_err(|e| Refused(format!("tensor '{}' {e}", name.escape_debug())))?,
        };
        read.insert(view, tensor.clone());
        tensors.insert(name, tensor);
    }
    Ok(state_dict::without_prefixes(tensors))
}

/// How many times over the tensors of a file may hold its bytes: views of one storage may overlap, but a small file does not fill
/// the memory.
const MOST_SHARING: u64 = 4;

/// The bytes that may still be copied out of a file.
struct Budget(u64);

impl Budget {
    fn spend(&mut self, bytes: usize) -> Result<()> {
        match self.0.checked_sub(bytes as u64) {
            Some(left) => self.0 = left,
            None => return refuse("and those before it hold the file's numbers many times over"),
        }
        Ok(())
    }
}

struct Entries<R> {
    archive: ZipArchive<R>,
    length: u64,
    prefix: String,
    /// How many tensors are still to be read from a storage; it is let go after the last one.
    uses: HashMap<String, usize>,
    storages: HashMap<String, Arc<Vec<u8>>>,
}

impl<R: Read + Seek> Entries<R> {
    /// An entry as a whole; the archive's checksum is compared at its end.
    fn bytes(&mut self, name: &str, most: u64) -> Result<Vec<u8>> {
        let full = format!("{}{name}", self.prefix);
        let mut entry = match self.archive.by_name(&full) {
            Ok(entry) => entry,
            Err(e) => return refuse(format!("lacks its file {full} in the archive ({e})")),
        };
        if entry.compression() != CompressionMethod::Stored {
            return refuse(format!("has the compressed file {full}; PyTorch stores files as they are"));
        }
        let size = entry.size();
        if size > self.length || size > most {
            return refuse(format!(
                "has the file {full} of declared size {size}, beyond the {} that it may have",
                self.length.min(most)
            ));
        }
        let mut bytes = Vec::with_capacity(size as usize);
        entry
            .by_ref()
            .take(size + 1)
            .read_to_end(&mut bytes)
            .or_else(|e| refuse(format!("has the damaged file {full} ({e})")))?;
        if bytes.len() as u64 != size {
            return refuse(format!("has the file {full} with {} of {size} bytes", bytes.len()));
        }
        Ok(bytes)
    }

    fn storage(&mut self, key: &str) -> Result<Arc<Vec<u8>>> {
        let bytes = match self.storages.remove(key) {
            Some(bytes) => bytes,
            None => Arc::new(self.bytes(&format!("data/{key}"), self.length)?),
        };
        if let Some(left) = self.uses.get_mut(key) {
            *left = left.saturating_sub(1);
            if *left > 0 {
                self.storages.insert(key.to_owned(), bytes.clone());
            }
        }
        Ok(bytes)
    }

    fn tensor(&mut self, view: &View, budget: &mut Budget) -> Result<Tensor> {
        let elements = checked_len(view)?;
        budget.spend(elements.saturating_mul(view.storage.element.size()))?;
        let bytes = self.storage(&view.storage.key)?;
        let size = view.storage.element.size();
        if view.storage.count.checked_mul(size).is_none_or(|n| n > bytes.len()) {
            let (count, held) = (view.storage.count, bytes.len());
            return refuse(format!(
                "declares a storage of {count} elements of {size} bytes, but the file holds {held} bytes"
            ));
        }
        let gathered = gather(view, elements, &bytes, size);
        numbers(&gathered, view.storage.element, &view.shape)
    }
}

/// The number of elements, after checking that all of them lie in the storage and none is declared twice over.
fn checked_len(view: &View) -> Result<usize> {
    let count = view.storage.count;
    let elements = view.shape.iter().try_fold(1usize, |n, s| n.checked_mul(*s));
    let Some(elements) = elements.filter(|n| *n <= count) else {
        return refuse(format!(
            "declares the shape {:?}, but its storage holds {count} elements",
            view.shape
        ));
    };
    if elements == 0 {
        return Ok(0);
    }
    let last = view
        .shape
        .iter()
        .zip(&view.strides)
        .try_fold(view.offset, |at, (size, stride)| at.checked_add((size - 1).checked_mul(*stride)?));
    match last {
        Some(last) if last < count => Ok(elements),
        _ => refuse(format!("reaches beyond its storage of {count} elements")),
    }
}

/// The elements of a view, one after the other.
fn gather(view: &View, elements: usize, bytes: &[u8], size: usize) -> Vec<u8> {
    // Of an empty tensor, neither the offset nor the strides were checked: they may point anywhere.
    if elements == 0 {
        return Vec::new();
    }
    let mut expected = 1;
    let contiguous = view.shape.iter().zip(&view.strides).rev().all(|(n, stride)| {
        let fits = *n == 1 || *stride == expected;
        expected *= n;
        fits
    });
    if contiguous {
        return bytes[view.offset * size..][..elements * size].to_vec();
    }
    let mut out = Vec::with_capacity(elements * size);
    let (mut index, mut at) = (vec![0usize; view.shape.len()], view.offset);
    for _ in 0..elements {
        out.extend_from_slice(&bytes[at * size..][..size]);
        for d in (0..index.len()).rev() {
            index[d] += 1;
            at += view.strides[d];
            if index[d] < view.shape[d] {
                break;
            }
            at -= view.strides[d] * view.shape[d];
            index[d] = 0;
        }
    }
    out
}

/// All numpy arrays of a plain pickle of nested dictionaries, their names joined by dots.
pub fn read_numpy(bytes: &[u8]) -> Result<BTreeMap<String, Tensor>> {
    let pickle = pickle::read(bytes)?;
    let arrays = state_dict::leaves(&pickle, &|node| match node {
        pickle::Node::Array(array) => array.clone(),
        _ => None,
    })?;
    if arrays.is_empty() {
        return refuse("holds no numpy arrays");
    }
    let mut budget = Budget((bytes.len() as u64).saturating_mul(MOST_SHARING));
    let tensor = |(name, a): (String, pickle::Array)| {
        budget.spend(a.bytes.len()).map_err(|e| Refused(format!("array '{}' {e}", name.escape_debug())))?;
        let tensor = numbers(&bytes[a.bytes], a.element, &a.shape)?;
        Ok((name, tensor))
    };
    arrays.into_iter().map(tensor).collect()
}

fn numbers(bytes: &[u8], element: Element, shape: &[usize]) -> Result<Tensor> {
    // A tensor's strides are products of its sizes, even where another size is zero.
    if shape.iter().try_fold(1usize, |n, s| n.checked_mul((*s).max(1))).is_none() {
        return refuse(format!("declares the shape {shape:?}, which no memory holds"));
    }
    let raw = |dtype| Tensor::from_raw_buffer(bytes, dtype, shape, &Device::Cpu);
    let tensor = match element {
        Element::F64 => raw(DType::F64),
        Element::F32 => raw(DType::F32),
        Element::F16 => raw(DType::F16),
        Element::BF16 => raw(DType::BF16),
        Element::I64 => raw(DType::I64),
        Element::U8 | Element::Bool => raw(DType::U8),
        Element::I32 | Element::I16 | Element::I8 => {
            let size = element.size();
            let value = |b: &[u8]| {
                let start = if b[size - 1] & 0x80 == 0 { 0 } else { -1i64 };
                b.iter().rev().fold(start, |v, b| v << 8 | i64::from(*b))
            };
            Tensor::from_vec(bytes.chunks_exact(size).map(value).collect::<Vec<i64>>(), shape, &Device::Cpu)
        }
    };
    tensor.or_else(|e| refuse(e.to_string()))
}

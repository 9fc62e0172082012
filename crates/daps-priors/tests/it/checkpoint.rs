//! Checkpoints: both formats, conversions, and every kind of damage or malice, each refused with one sentence.

use std::io::{Cursor, Write};
use std::path::Path;

use crate::common::golden::{adm_tiny, golden};
use candle_core::{DType, Tensor};
use daps_priors::checkpoint::{self, WeightType, convert, inspect, pickle, read, read_archive, read_numpy};
use daps_priors::network::{AdmConfig, Architecture, NetworkPrior};
use daps_priors::{Error, NetworkConfig};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

fn flat(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Builds pickles by hand: the operations of a state dictionary, in the order in which PyTorch writes them.
#[derive(Clone)]
struct Pickle(Vec<u8>);

impl Pickle {
    fn new() -> Self {
        Self(vec![0x80, 2])
    }
    fn op(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    fn text(self, text: &str) -> Self {
        let length = (text.len() as u32).to_le_bytes();
        self.op(b"X").op(&length).op(text.as_bytes())
    }
    fn int(self, value: i32) -> Self {
        self.op(b"J").op(&value.to_le_bytes())
    }
    fn global(self, module: &str, name: &str) -> Self {
        self.op(format!("c{module}\n{name}\n").as_bytes())
    }
    fn ints(self, values: &[i32]) -> Self {
        values.iter().fold(self.op(b"("), |p, v| p.int(*v)).op(b"t")
    }
    /// A tensor over the storage "0" of `count` elements.
    fn tensor(self, class: &str, count: i32, offset: i32, shape: &[i32], strides: &[i32]) -> Self {
        self.global("torch._utils", "_rebuild_tensor_v2")
            .op(b"((")
            .text("storage")
            .global("torch", class)
            .text("0")
            .text("cpu")
            .int(count)
            .op(b"tQ")
            .int(offset)
            .ints(shape)
            .ints(strides)
            .op(b"\x89")
            .global("collections", "OrderedDict")
            .op(b")RtR")
    }
    fn end(self) -> Vec<u8> {
        self.op(b".").0
    }
}

/// {"w": tensor}
fn one_tensor(class: &str, count: i32, offset: i32, shape: &[i32], strides: &[i32]) -> Vec<u8> {
    Pickle::new().op(b"}").text("w").tensor(class, count, offset, shape, strides).op(b"s").end()
}

fn archive(pickle: &[u8], storage: &[u8]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in [("m/data.pkl", pickle), ("m/data/0", storage)] {
        writer.start_file(name, stored).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn refused(pickle: &[u8], storage: &[u8]) -> String {
    let message = read_archive(Cursor::new(archive(pickle, storage))).unwrap_err().to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

fn floats(n: usize) -> Vec<u8> {
    (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect()
}

#[test]
fn both_formats_hold_the_same_tensors() {
    let (a, b) =
        (read(&golden("adm_tiny.pt")).unwrap(), read(&golden("adm_tiny.weights.safetensors")).unwrap());
    assert_eq!(a.tensors.keys().collect::<Vec<_>>(), b.tensors.keys().collect::<Vec<_>>());
    for (name, t) in &a.tensors {
        assert_eq!(flat(t), flat(&b.tensors[name]), "{name}");
    }
    let (a, b) =
        (inspect(&golden("adm_tiny.pt")).unwrap(), inspect(&golden("adm_tiny.weights.safetensors")).unwrap());
    assert_eq!((a.format, b.format), ("PyTorch", "safetensors"));
    assert_eq!((a.sha256, a.parameters), (b.sha256, b.parameters));
    assert_eq!(a.tensors[0].name, "input_blocks.0.0.bias");
}

#[test]
fn views_keep_their_offset_and_strides() {
    let pickle = one_tensor("FloatStorage", 12, 1, &[2, 3], &[1, 4]);
    let tensors = read_archive(Cursor::new(archive(&pickle, &floats(12)))).unwrap();
    assert_eq!(flat(&tensors["w"]), [1.0, 5.0, 9.0, 2.0, 6.0, 10.0]);
    for (class, bytes, expected) in [
        ("HalfStorage", vec![0x00, 0x3c, 0x00, 0xc0], [1.0, -2.0]),
        ("BFloat16Storage", vec![0x80, 0x3f, 0x00, 0xc0], [1.0, -2.0]),
        ("ShortStorage", vec![0x01, 0x00, 0xfe, 0xff], [1.0, -2.0]),
        ("BoolStorage", vec![1, 0], [1.0, 0.0]),
    ] {
        let pickle = one_tensor(class, 2, 0, &[2], &[1]);
        assert_eq!(
            flat(&read_archive(Cursor::new(archive(&pickle, &bytes))).unwrap()["w"]),
            expected,
            "{class}"
        );
    }
}

#[test]
fn nested_dictionaries_and_prefixes_are_seen_through() {
    let tensor = |p: Pickle, name: &str| p.text(name).tensor("FloatStorage", 2, 0, &[2], &[1]).op(b"s");
    let inner = |p: Pickle, name: &str| tensor(p.op(b"}"), name).op(b"s");
    let nested = Pickle::new().op(b"}").text("step").int(7).op(b"s").text("optimizer").op(b"}s");
    let nested = inner(nested.text("model"), "module.a");
    let nested = inner(nested.text("ema"), "module.b").end();
    let tensors = read_archive(Cursor::new(archive(&nested, &floats(2)))).unwrap();
    assert_eq!(tensors.keys().collect::<Vec<_>>(), ["b"]);
    let none = Pickle::new().op(b"}").text("epoch").int(1).op(b"s").end();
    assert!(refused(&none, &[]).contains("holds no state dictionary; its keys are: epoch"));
}

#[test]
fn code_is_refused_by_name() {
    let call = Pickle::new().global("os", "system").op(b"(").text("touch /tmp/x").op(b"tR").end();
    let expected = "the pickle wants to call os.system; only tensors and plain containers are accepted";
    assert_eq!(refused(&call, &[]), expected);
    let modern = Pickle::new().text("builtins").text("eval").op(b"\x93").op(b"(").text("1").op(b"tR").end();
    assert!(refused(&modern, &[]).contains("wants to call builtins.eval"));
    for op in [b'i', b'o', 0x92, 0x82, 0x97] {
        assert!(refused(&Pickle::new().op(&[op]).op(b"a\nb\n").end(), &[]).contains("has the operation"));
    }
    let state = Pickle::new().global("collections", "OrderedDict").op(b"}b").end();
    assert!(refused(&state, &[]).contains("sets the state of an object"));
}

/// A module of a TorchScript archive is its attributes: {"conv": {"weight": tensor, "stride": [1]}}.
#[test]
fn torchscript_modules_are_plain_attributes() {
    let object = |p: Pickle, class: &str| p.global("__torch__.net", class).op(b")\x81}(");
    let pickle = object(Pickle::new(), "Net").text("training").op(b"\x89").text("conv");
    let pickle = object(pickle, "Conv").text("weight").tensor("FloatStorage", 2, 0, &[2], &[1]);
    let pickle =
        pickle.text("stride").global("torch.jit._pickle", "build_intlist").op(b"]").int(1).op(b"a\x85R");
    let tensors = read_archive(Cursor::new(archive(&pickle.op(b"ubub").end(), &floats(2)))).unwrap();
    assert_eq!(tensors.keys().collect::<Vec<_>>(), ["conv.weight"]);
    assert_eq!(flat(&tensors["conv.weight"]), [0.0, 1.0]);
    // A module that holds itself has no end.
    let endless = Pickle::new().global("__torch__", "M").op(b")\x81q\x00}").text("me").op(b"h\x00sb").end();
    assert!(refused(&endless, &[]).contains("too deeply"));
    let call = Pickle::new().global("__torch__", "M").op(b"(").text("x").op(b"tR").end();
    assert!(refused(&call, &[]).contains("arguments that do not belong there"));
}

/// Dictionaries that hold each other three times over: 31 of them have 3^31 ways through.
#[test]
fn shared_dictionaries_are_not_walked_for_ever() {
    let recall = |p: Pickle, n: u8| p.op(&[b'h', n]);
    let mut pickle = Pickle::new().op(b"}q\x00");
    for k in 1..32u8 {
        pickle = pickle.op(b"}");
        for name in ["a", "b", "c"] {
            pickle = recall(pickle.text(name), k - 1).op(b"s");
        }
        pickle = pickle.op(&[b'q', k]);
    }
    let plain = pickle.clone().end();
    assert!(read_numpy(&plain).unwrap_err().to_string().contains("too deeply"));
    let module = recall(pickle.global("__torch__", "M").op(b")\x81}").text("r"), 31).op(b"sb").end();
    assert!(refused(&module, &[]).contains("too deeply"));
    // A long name before many values is copied for each of them.
    let mut long = Pickle::new().op(b"}").text(&"x".repeat(5000)).op(b"q\x000");
    for _ in 0..2000 {
        long = long.op(b"h\x00Ns");
    }
    assert!(read_numpy(&long.end()).unwrap_err().to_string().contains("too long"));
}

/// What a short file recalls again and again must not add up to more than memory holds.
#[test]
fn small_files_do_not_become_large_ones() {
    // A list of pairs, made into a dictionary over and over.
    let mut pickle = Pickle::new().global("collections", "OrderedDict").op(b"q\x00](");
    pickle = (0..5000).fold(pickle, |p, _| p.op(b"NN\x86"));
    pickle = pickle.op(b"e\x85q\x01");
    pickle = (0..5000).fold(pickle, |p, _| p.op(b"h\x00h\x01R"));
    assert!(refused(&pickle.end(), &[]).contains("repeats what it holds"));
    // One tensor under many names is there once; many views of one storage are not.
    let tied = |shift: i32| {
        let mut pickle = Pickle::new().op(b"}");
        for i in 0..40 {
            pickle = pickle
                .text(&format!("w{i}"))
                .tensor("FloatStorage", 10_000, i * shift, &[9000], &[1])
                .op(b"s");
        }
        pickle.end()
    };
    let tensors = read_archive(Cursor::new(archive(&tied(0), &floats(10_000)))).unwrap();
    assert_eq!((tensors.len(), flat(&tensors["w39"])[8999]), (40, 8999.0));
    assert!(refused(&tied(1), &floats(10_000)).contains("many times over"));
    // The same long name over and over, before the same tensor.
    let mut named = Pickle::new().text(&"x".repeat(5000)).op(b"q\x000");
    named = named.tensor("FloatStorage", 2, 0, &[2], &[1]).op(b"q\x010}");
    named = (0..1000).fold(named, |p, _| p.op(b"h\x00h\x01s"));
    assert!(refused(&named.end(), &floats(2)).contains("too long"));
    let flat_forever = vec![1; 65];
    let pickle = one_tensor("FloatStorage", 4, 0, &flat_forever, &flat_forever);
    assert!(refused(&pickle, &floats(4)).contains("more dimensions than any library knows"));
}

/// What `pickle.dumps({'Net_0': {'Conv_0': {'kernel': array([[1.5, -2, 0.25]], '<f4')}}}, 3)` writes.
const NUMPY: &[u8] = b"\x80\x03}q\x00X\x05\x00\x00\x00Net_0q\x01}q\x02X\x06\x00\x00\x00Conv_0q\x03}q\x04\
X\x06\x00\x00\x00kernelq\x05cnumpy.core.multiarray\n_reconstruct\nq\x06cnumpy\nndarray\nq\x07K\x00\x85q\x08C\x01bq\t\
\x87q\nRq\x0b(K\x01K\x01K\x03\x86q\x0ccnumpy\ndtype\nq\rX\x02\x00\x00\x00f4q\x0e\x89\x88\x87q\x0fRq\x10(K\x03X\x01\x00\x00\x00<q\x11\
NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x12b\x89C\x0c\x00\x00\xc0?\x00\x00\x00\xc0\x00\x00\x80>q\x13tq\x14bsss.";

#[test]
fn numpy_arrays_are_read_from_plain_pickles() {
    let arrays = read_numpy(NUMPY).unwrap();
    assert_eq!(arrays.keys().collect::<Vec<_>>(), ["Net_0.Conv_0.kernel"]);
    let array = &arrays["Net_0.Conv_0.kernel"];
    assert_eq!((array.dims(), flat(array)), (&[1, 3][..], vec![1.5, -2.0, 0.25]));
    let damaged = |from: &[u8], to: &[u8]| {
        let at = NUMPY.windows(from.len()).position(|w| w == from).unwrap();
        let mut bytes = NUMPY.to_vec();
        bytes[at..at + from.len()].copy_from_slice(to);
        read_numpy(&bytes).unwrap_err().to_string()
    };
    assert!(damaged(b"K\x01K\x03\x86", b"K\x02K\x03\x86").contains("not understood"));
    assert!(damaged(b"<q\x11", b">q\x11").contains("big-endian"));
    assert!(damaged(b"f4", b"O8").contains("not supported"));
    assert!(damaged(b"ndarray", b"ndarraz").contains("wants to call numpy.ndarraz"));
    for end in 0..NUMPY.len() {
        assert!(read_numpy(&NUMPY[..end]).is_err(), "{end}");
    }
}

#[test]
fn sizes_beyond_the_file_are_refused() {
    for (pickle, part) in [
        (one_tensor("FloatStorage", 1_000_000, 0, &[2], &[1]), "declares a storage of 1000000 elements"),
        (one_tensor("FloatStorage", 4, 0, &[5], &[1]), "declares the shape [5], but its storage holds 4"),
        (one_tensor("FloatStorage", 4, 3, &[2], &[1]), "reaches beyond its storage of 4 elements"),
        (one_tensor("FloatStorage", 4, 0, &[2], &[i32::MAX]), "reaches beyond its storage"),
        (one_tensor("FloatStorage", 4, 0, &[i32::MAX, i32::MAX, i32::MAX], &[0, 0, 0]), "declares the shape"),
        (one_tensor("FloatStorage", 4, 0, &[-1], &[1]), "a size below zero"),
        (one_tensor("FloatStorage", 4, 0, &[2], &[1, 1]), "more dimensions than strides"),
    ] {
        let message = refused(&pickle, &floats(4));
        assert!(message.contains(part), "{message}");
    }
}

/// Nothing of an empty tensor is read, so its offset and strides are not judged; its sizes are.
#[test]
fn an_empty_tensor_may_point_anywhere() {
    for (offset, shape, strides) in [(i32::MAX, vec![0], vec![1]), (5, vec![2, 0, 3], vec![7, i32::MAX, 1])] {
        let pickle = one_tensor("FloatStorage", 4, offset, &shape, &strides);
        let tensors = read_archive(Cursor::new(archive(&pickle, &floats(4)))).unwrap();
        let dims: Vec<usize> = shape.iter().map(|n| *n as usize).collect();
        assert_eq!((tensors["w"].dims(), tensors["w"].elem_count()), (&dims[..], 0));
    }
    let vast = one_tensor("FloatStorage", 4, 0, &[0, i32::MAX, i32::MAX, i32::MAX], &[1; 4]);
    assert!(refused(&vast, &floats(4)).ends_with("which no memory holds"));
}

#[test]
fn damage_is_refused_and_nothing_panics() {
    let dir = tempfile::tempdir().unwrap();
    let valid = archive(&one_tensor("FloatStorage", 12, 1, &[2, 3], &[1, 4]), &floats(12));
    let original = read_archive(Cursor::new(valid.clone())).unwrap();
    for n in 0..valid.len() {
        assert!(read_archive(Cursor::new(valid[..n].to_vec())).is_err(), "cut at {n}");
    }
    for at in 0..valid.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = valid.clone();
            bytes[at] ^= flip;
            // Dates and the like may change unseen; the numbers may not.
            if let Ok(tensors) = read_archive(Cursor::new(bytes)) {
                assert_eq!(flat(&tensors["w"]), flat(&original["w"]), "byte {at}");
            }
        }
    }
    // The pickle alone, without the archive's checksum: anything but a panic.
    let pickle = one_tensor("FloatStorage", 12, 1, &[2, 3], &[1, 4]);
    for at in 0..pickle.len() {
        for value in 0..=255 {
            let mut bytes = pickle.clone();
            bytes[at] = value;
            let _ = pickle::read(&bytes);
            let _ = read_archive(Cursor::new(archive(&bytes, &floats(12))));
        }
    }
    let path = dir.path().join("cut.pt");
    let whole = std::fs::read(golden("adm_tiny.pt")).unwrap();
    for keep in [3, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..keep]).unwrap();
        one_sentence(&read(&path).unwrap_err(), &path);
    }
    let mut flipped = whole;
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0x10;
    std::fs::write(&path, &flipped).unwrap();
    let message = read(&path).unwrap_err().to_string();
    assert!(message.contains("damaged file"), "{message}");
}

fn one_sentence(error: &Error, path: &Path) {
    let message = error.to_string();
    assert!(message.starts_with(&path.display().to_string()), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn deep_nesting_does_not_exhaust_the_stack() {
    let mut bytes = vec![0x80, 2, b')'];
    bytes.extend(std::iter::repeat_n(0x85, 1_000_000));
    bytes.push(b'.');
    assert!(pickle::read(&bytes).is_ok());
    assert_eq!(refused(&bytes, &[]), "holds no dictionary of tensors");
}

#[test]
fn other_files_are_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pt");
    let refusal = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = read(&path).unwrap_err();
        one_sentence(&error, &path);
        error.to_string()
    };
    assert!(refusal(&[0x80, 2, 0x8a, 10, 1, 2, 3, 4]).contains("format before 1.6"));
    assert!(refusal(b"hello, this is text").contains("is not a weights file; safetensors and"));
    assert!(refusal(b"\x40\0\0\0\0\0\0\0{\"cut").contains("is not a complete safetensors file"));
    assert!(refusal(b"PK").contains("too short"));
    assert!(read(&dir.path().join("none.pt")).unwrap_err().to_string().ends_with("no such file"));
}

#[test]
fn conversion_keeps_configuration_and_checksum() {
    let dir = tempfile::tempdir().unwrap();
    let x = Tensor::ones((1, 3, 32, 32), DType::F32, &candle_core::Device::Cpu).unwrap();
    let denoise = |prior: &NetworkPrior| flat(&daps_core::Denoiser::denoise(prior, &x, &0.5.into()).unwrap());
    let expected = denoise(&NetworkPrior::load(&golden("adm_tiny.pt"), Some(&adm_tiny())).unwrap());
    let scale = expected.iter().fold(0f64, |m, v| m.max(v.abs()));
    for (dtype, tolerance) in [(WeightType::F32, 0.0), (WeightType::F16, 5e-3), (WeightType::BF16, 5e-2)] {
        let path = dir.path().join("w.safetensors");
        convert(&golden("adm_tiny.pt"), &path, dtype, Some(&adm_tiny())).unwrap();
        let got = denoise(&NetworkPrior::load(&path, None).unwrap());
        let worst = daps_nn::testing::largest(got.iter().zip(&expected).map(|(a, b)| (a - b).abs())) / scale;
        assert!(worst <= tolerance, "{dtype:?}: {worst}");
        assert_eq!(checkpoint::config_of(&path).unwrap(), adm_tiny());
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 9;
        bytes[last] ^= 4;
        std::fs::write(&path, &bytes).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("do not have the checksum"));
        std::fs::write(&path, &bytes[..last]).unwrap();
        one_sentence(&read(&path).unwrap_err(), &path);
    }
    let other = NetworkConfig { network: Architecture::Adm(AdmConfig::ffhq256()), ..adm_tiny() };
    let error =
        convert(&golden("adm_tiny.pt"), &dir.path().join("v.safetensors"), WeightType::F32, Some(&other));
    assert!(error.unwrap_err().to_string().contains("missing"));
    assert!(!dir.path().join("v.safetensors").exists());
    std::fs::copy(golden("adm_tiny.pt"), dir.path().join("a.pt")).unwrap();
    std::fs::write(dir.path().join("a.toml"), adm_tiny().to_toml().unwrap()).unwrap();
    assert!(NetworkPrior::load(&dir.path().join("a.pt"), None).is_ok());
    std::fs::write(dir.path().join("a.toml"), "colour = 3").unwrap();
    one_sentence(&checkpoint::config_of(&dir.path().join("a.pt")).unwrap_err(), &dir.path().join("a.toml"));
}

#[test]
fn types_and_shapes_that_cannot_be_read_are_refused_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("odd.safetensors");
    for (kind, part) in [
        (r#""F8_E8M0","shape":[4],"data_offsets":[0,4]"#, "is not supported"),
        (r#""F32","shape":[0,9223372036854775808,4],"data_offsets":[0,0]"#, "no memory holds"),
    ] {
        let header = format!(r#"{{"w":{{"dtype":{kind}}}}}"#).into_bytes();
        let numbers: &[u8] = if kind.contains("[0,4]") { &[0; 4] } else { &[] };
        std::fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], &header, numbers].concat()).unwrap();
        let error = inspect(&path).unwrap_err();
        one_sentence(&error, &path);
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// The low byte of the length is that of a pickle's first operation and the next one a pickle's version, or they are the first
/// letters of an archive.
#[test]
fn a_header_whose_length_looks_like_another_format_is_safetensors_all_the_same() {
    let mut tried = 0;
    for length in (0..6).map(|version| version << 8 | 0x80).chain([u16::from_le_bytes(*b"PK").into()]) {
        let directory = tempfile::tempdir().unwrap();
        let config = NetworkConfig::parse(&adm_tiny().to_toml().unwrap()).unwrap();
        let quoted = serde_json::to_string(&config.to_toml().unwrap()).unwrap();
        let tensor = r#""w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
        let mut header = format!(r#"{{"__metadata__":{{"daps.config":{quoted}}},{tensor}}}"#).into_bytes();
        if length < header.len() {
            continue;
        }
        tried += 1;
        header.resize(length, b' ');
        let path = directory.path().join("pickled.safetensors");
        let bytes = [&(length as u64).to_le_bytes()[..], &header, &1.5f32.to_le_bytes()].concat();
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(flat(&read(&path).unwrap().tensors["w"]), [1.5]);
        assert_eq!(checkpoint::config_of(&path).unwrap().to_toml().unwrap(), config.to_toml().unwrap());
    }
    assert!(tried > 1);
}

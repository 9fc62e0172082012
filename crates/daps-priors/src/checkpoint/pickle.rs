//! A reader of pickles that builds tensors' descriptions and plain containers, and calls nothing.

mod calls;
mod machine;

use std::ops::Range;

/// Why a pickle was refused, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

type Result<T> = std::result::Result<T, Refused>;

fn refuse<T>(reason: impl Into<String>) -> Result<T> {
    Err(Refused(reason.into()))
}

/// The place of a value in its pickle. Values live side by side, so that no nesting can exhaust the stack.
pub type Id = usize;

/// A value of a pickle.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// A whole number; those beyond 64 bits are cut.
    Int(i64),
    /// A number.
    Float(f64),
    /// Text.
    Text(String),
    /// Raw bytes: their place in the pickle.
    Bytes(Range<usize>),
    /// A tuple.
    Tuple(Vec<Id>),
    /// A list or a set.
    List(Vec<Id>),
    /// A dictionary in its order.
    Dict(Vec<(Id, Id)>),
    /// One of the accepted names of Python code.
    Global(Global),
    /// Numbers in a file of their own.
    Storage(Storage),
    /// A tensor over a storage.
    Tensor(View),
    /// The attributes of a TorchScript module; its class is not looked at.
    Object(Vec<(Id, Id)>),
    /// A numpy element type.
    NumpyType(Element),
    /// A numpy array; `None` until its state is set.
    Array(Option<Array>),
}

/// A numpy array in C order whose numbers lie in the pickle itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// The type of its elements.
    pub element: Element,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Where its little-endian numbers lie.
    pub bytes: Range<usize>,
}

/// The names that a pickle may mention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Global {
    /// `collections.OrderedDict`.
    OrderedDict,
    /// `torch._utils._rebuild_tensor_v2`.
    RebuildTensor,
    /// `torch._utils._rebuild_parameter`.
    RebuildParameter,
    /// `torch.Size`.
    Size,
    /// A storage class.
    Storage(Element),
    /// A dtype such as `torch.float32`, which may stand among settings.
    DType,
    /// A class of a TorchScript archive: only its attributes are kept, its code is never read.
    Script,
    /// `torch.jit._pickle.build_intlist`, a list of whole numbers.
    IntList,
    /// `numpy.core.multiarray._reconstruct`.
    NumpyReconstruct,
    /// `numpy.ndarray`.
    NumpyArray,
    /// `numpy.dtype`.
    NumpyType,
}

/// Element types of storages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// f64
    F64,
    /// f32
    F32,
    /// f16
    F16,
    /// bfloat16
    BF16,
    /// i64
    I64,
    /// i32
    I32,
    /// i16
    I16,
    /// i8
    I8,
    /// u8
    U8,
    /// one byte, 0 or 1
    Bool,
}

impl Element {
    /// Bytes of an element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 | Self::I16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }
}

/// A storage: the name of its file in the archive, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Storage {
    /// The file's name.
    pub key: String,
    /// The type of its elements.
    pub element: Element,
    /// How many there are.
    pub count: usize,
}

/// A tensor as a strided view of a storage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The storage.
    pub storage: Storage,
    /// Its first element.
    pub offset: usize,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Elements between neighbours in each dimension.
    pub strides: Vec<usize>,
}

/// A pickle that was read.
#[derive(Debug)]
pub struct Pickle {
    nodes: Vec<Node>,
    root: Id,
}

impl Pickle {
    /// The value at a place.
    #[must_use]
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id]
    }

    /// The place of the whole.
    #[must_use]
    pub fn root(&self) -> Id {
        self.root
    }
}

/// Reads a pickle of any protocol up to 5.
pub fn read(bytes: &[u8]) -> Result<Pickle> {
    let mut machine = machine::Machine::new(bytes);
    let root = machine.run()?;
    Ok(Pickle { nodes: machine.nodes, root })
}

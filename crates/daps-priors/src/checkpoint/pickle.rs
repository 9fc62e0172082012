//! A reader of pickles that builds tensors' descriptions and plain containers, and calls nothing.

use std::collections::HashMap;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The file's name.
    pub key: String,
    /// The type of its elements.
    pub element: Element,
    /// How many there are.
    pub count: usize,
}

/// A tensor as a strided view of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
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

fn global(module: &str, name: &str) -> Result<Global> {
    let element = match name {
        "DoubleStorage" => Some(Element::F64),
        "FloatStorage" => Some(Element::F32),
        "HalfStorage" => Some(Element::F16),
        "BFloat16Storage" => Some(Element::BF16),
        "LongStorage" => Some(Element::I64),
        "IntStorage" => Some(Element::I32),
        "ShortStorage" => Some(Element::I16),
        "CharStorage" => Some(Element::I8),
        "ByteStorage" => Some(Element::U8),
        "BoolStorage" => Some(Element::Bool),
        _ => None,
    };
    match (module, name, element) {
        ("torch" | "torch.storage" | "torch.cuda", _, Some(element)) => Ok(Global::Storage(element)),
        ("collections", "OrderedDict", _) => Ok(Global::OrderedDict),
        ("torch._utils", "_rebuild_tensor_v2", _) => Ok(Global::RebuildTensor),
        ("torch._utils", "_rebuild_parameter", _) => Ok(Global::RebuildParameter),
        ("torch", "Size", _) => Ok(Global::Size),
        ("torch.jit._pickle", "build_intlist", _) => Ok(Global::IntList),
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct", _) => {
            Ok(Global::NumpyReconstruct)
        }
        ("numpy", "ndarray", _) => Ok(Global::NumpyArray),
        ("numpy", "dtype", _) => Ok(Global::NumpyType),
        (module, ..) if module == "__torch__" || module.starts_with("__torch__.") => Ok(Global::Script),
        (
            "torch",
            "float16" | "bfloat16" | "float32" | "float64" | "uint8" | "int32" | "int64" | "bool",
            _,
        ) => Ok(Global::DType),
        _ => {
            // Names come from the file: keep them short and printable.
            let name: String =
                format!("{module}.{name}").chars().filter(|c| !c.is_control()).take(80).collect();
            refuse(format!("the pickle wants to call {name}; only tensors and plain containers are accepted"))
        }
    }
}

/// Reads a pickle of any protocol up to 5.
pub fn read(bytes: &[u8]) -> Result<Pickle> {
    let mut machine = Machine {
        bytes,
        at: 0,
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    let root = machine.run()?;
    Ok(Pickle { nodes: machine.nodes, root })
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

impl<'a> Machine<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else { return refuse("the pickle ends too early") };
        let slice = &self.bytes[self.at..end];
        self.at = end;
        Ok(slice)
    }

    /// A little-endian number of up to eight bytes.
    fn number(&mut self, n: usize) -> Result<u64> {
        Ok(self.take(n)?.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)))
    }

    fn sized(&mut self, n: usize) -> Result<&'a [u8]> {
        let length = self.number(n)?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn line(&mut self) -> Result<&'a str> {
        let rest = &self.bytes[self.at..];
        let Some(n) = rest.iter().position(|b| *b == b'\n') else {
            return refuse("the pickle ends too early");
        };
        self.at += n + 1;
        std::str::from_utf8(&rest[..n]).or_else(|_| refuse("the pickle holds a name that is not text"))
    }

    fn push(&mut self, node: Node) {
        self.nodes.push(node);
        self.stack.push(self.nodes.len() - 1);
    }

    fn push_text(&mut self, bytes: &[u8]) -> Result<()> {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return refuse("the pickle holds a string that is not text");
        };
        self.push(Node::Text(text.to_owned()));
        Ok(())
    }

    fn pop(&mut self) -> Result<Id> {
        // Values below a mark belong to an unfinished container.
        if self.marks.last().is_some_and(|m| self.stack.len() <= *m) {
            return refuse("the pickle takes a value where there is a mark");
        }
        self.stack.pop().map_or_else(|| refuse("the pickle takes a value from an empty stack"), Ok)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>> {
        let Some(mark) = self.marks.pop() else {
            return refuse("the pickle closes a container it never opened");
        };
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn top(&self) -> Result<Id> {
        self.stack.last().copied().map_or_else(|| refuse("the pickle looks at an empty stack"), Ok)
    }

    fn tuple(&mut self, n: usize) -> Result<()> {
        let mut items = (0..n).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
        items.reverse();
        self.push(Node::Tuple(items));
        Ok(())
    }

    fn run(&mut self) -> Result<Id> {
        loop {
            let op = self.take(1)?[0];
            match op {
                b'.' => return self.pop(),
                0x80 => {
                    let version = self.number(1)?;
                    if version > 5 {
                        return refuse(format!("the pickle has protocol {version}; at most 5 is known"));
                    }
                }
                0x95 => {
                    self.take(8)?;
                }
                b'(' => self.marks.push(self.stack.len()),
                b'0' => {
                    self.pop()?;
                }
                b'1' => {
                    self.pop_to_mark()?;
                }
                b'2' => {
                    let top = self.top()?;
                    self.stack.push(top);
                }
                b'R' | 0x81 => self.reduce()?,
                b'b' => self.build()?,
                b'Q' => self.persistent()?,
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.push(Node::Global(global(module, name)?));
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let (Node::Text(module), Node::Text(name)) = (&self.nodes[module], &self.nodes[name])
                    else {
                        return refuse("the pickle names code with something that is not text");
                    };
                    let found = global(module, name)?;
                    self.push(Node::Global(found));
                }
                _ => {
                    if !self.scalar(op)? && !self.container(op)? && !self.remember(op)? {
                        return refuse(format!(
                            "the pickle has the operation 0x{op:02x}; only tensors and plain containers are accepted"
                        ));
                    }
                }
            }
        }
    }

    /// Keeping and recalling of values; whether the operation was one of these.
    fn remember(&mut self, op: u8) -> Result<bool> {
        let slot = match op {
            b'p' | b'g' => self.decimal()? as u64,
            b'q' | b'h' => self.number(1)?,
            b'r' | b'j' => self.number(4)?,
            0x94 => self.memo.len() as u64,
            _ => return Ok(false),
        };
        if matches!(op, b'g' | b'h' | b'j') {
            let Some(id) = self.memo.get(&slot) else {
                return refuse("the pickle recalls what it never kept");
            };
            self.stack.push(*id);
        } else {
            let top = self.top()?;
            self.memo.insert(slot, top);
        }
        Ok(true)
    }

    fn decimal(&mut self) -> Result<i64> {
        let line = self.line()?;
        line.trim_end_matches('L').parse().or_else(|_| refuse("the pickle holds a number that is none"))
    }

    /// Numbers, texts and bytes; whether the operation was one of these.
    fn scalar(&mut self, op: u8) -> Result<bool> {
        match op {
            b'N' => self.push(Node::None),
            0x88 => self.push(Node::Bool(true)),
            0x89 => self.push(Node::Bool(false)),
            b'J' => {
                let value = self.number(4)? as u32 as i32;
                self.push(Node::Int(value.into()));
            }
            b'K' | b'M' => {
                let value = self.number(if op == b'K' { 1 } else { 2 })?;
                self.push(Node::Int(value as i64));
            }
            0x8a | 0x8b => {
                let bytes = self.sized(if op == 0x8a { 1 } else { 4 })?;
                let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
                let start = if negative { -1i64 } else { 0 };
                let value = bytes.iter().take(8).rev().fold(start, |v, b| v << 8 | i64::from(*b));
                self.push(Node::Int(value));
            }
            b'I' | b'L' => {
                let value = self.decimal()?;
                self.push(Node::Int(value));
            }
            b'G' => {
                let bits = self.number(8)?.swap_bytes();
                self.push(Node::Float(f64::from_bits(bits)));
            }
            b'F' => {
                let value =
                    self.line()?.parse().or_else(|_| refuse("the pickle holds a number that is none"))?;
                self.push(Node::Float(value));
            }
            b'X' | b'T' => {
                let bytes = self.sized(4)?;
                self.push_text(bytes)?;
            }
            0x8c | b'U' => {
                let bytes = self.sized(1)?;
                self.push_text(bytes)?;
            }
            0x8d => {
                let bytes = self.sized(8)?;
                self.push_text(bytes)?;
            }
            b'V' => {
                let line = self.line()?;
                self.push_text(line.as_bytes())?;
            }
            b'B' | b'C' | 0x8e | 0x96 => {
                let length = self
                    .sized(match op {
                        b'C' => 1,
                        b'B' => 4,
                        _ => 8,
                    })?
                    .len();
                self.push(Node::Bytes(self.at - length..self.at));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Tuples, lists, sets and dictionaries; whether the operation was one of these.
    fn container(&mut self, op: u8) -> Result<bool> {
        match op {
            b')' => self.push(Node::Tuple(vec![])),
            0x85..=0x87 => self.tuple(usize::from(op - 0x84))?,
            b']' | 0x8f => self.push(Node::List(vec![])),
            b'}' => self.push(Node::Dict(vec![])),
            b't' => {
                let items = self.pop_to_mark()?;
                self.push(Node::Tuple(items));
            }
            b'l' | 0x91 => {
                let items = self.pop_to_mark()?;
                self.push(Node::List(items));
            }
            b'd' => {
                let items = self.pop_to_mark()?;
                self.push(Node::Dict(vec![]));
                self.set_items(&items)?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            b'e' | 0x90 => {
                let items = self.pop_to_mark()?;
                self.append(&items)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set_items(&[key, value])?;
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                self.set_items(&items)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn append(&mut self, items: &[Id]) -> Result<()> {
        let top = self.top()?;
        let Node::List(list) = &mut self.nodes[top] else {
            return refuse("the pickle appends to what is no list");
        };
        list.extend_from_slice(items);
        Ok(())
    }

    fn set_items(&mut self, items: &[Id]) -> Result<()> {
        let top = self.top()?;
        let Node::Dict(dict) = &mut self.nodes[top] else {
            return refuse("the pickle sets an item of what is no dictionary");
        };
        if !items.len().is_multiple_of(2) {
            return refuse("the pickle has a key without a value");
        }
        dict.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        Ok(())
    }

    /// The few calls that are understood, none of which is made.
    fn reduce(&mut self) -> Result<()> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let Node::Tuple(arguments) = self.nodes[arguments].clone() else {
            return refuse("the pickle calls with arguments that are no tuple");
        };
        let Node::Global(callee) = self.nodes[callee] else {
            return refuse(
                "the pickle calls what is no name; only tensors and plain containers are accepted",
            );
        };
        match (callee, arguments.as_slice()) {
            (Global::OrderedDict, []) => self.push(Node::Dict(vec![])),
            (Global::OrderedDict, [items]) => {
                let dict = self.pairs(*items)?;
                self.push(Node::Dict(dict));
            }
            (Global::Size, [sizes]) => self.stack.push(*sizes),
            (Global::RebuildParameter, [tensor, ..]) => self.stack.push(*tensor),
            (Global::RebuildTensor, [storage, offset, shape, strides, ..]) => {
                let Node::Storage(storage) = self.nodes[*storage].clone() else {
                    return refuse("the pickle has a tensor without a storage");
                };
                let view = View {
                    storage,
                    offset: self.count(*offset)?,
                    shape: self.counts(*shape)?,
                    strides: self.counts(*strides)?,
                };
                if view.shape.len() != view.strides.len() {
                    return refuse("the pickle has a tensor with more dimensions than strides, or fewer");
                }
                self.push(Node::Tensor(view));
            }
            (Global::Script, []) => self.push(Node::Object(vec![])),
            (Global::IntList, [items]) => self.stack.push(*items),
            (Global::NumpyReconstruct, [class, ..])
                if self.nodes[*class] == Node::Global(Global::NumpyArray) =>
            {
                self.push(Node::Array(None));
            }
            (Global::NumpyType, [code, ..]) => {
                let element = self.numpy_element(*code)?;
                self.push(Node::NumpyType(element));
            }
            _ => return refuse("the pickle calls with arguments that do not belong there"),
        }
        Ok(())
    }

    fn numpy_element(&self, code: Id) -> Result<Element> {
        let Node::Text(code) = &self.nodes[code] else {
            return refuse("the pickle has a numpy type that is no text");
        };
        Ok(match code.trim_start_matches(['<', '|', '=']) {
            "f8" => Element::F64,
            "f4" => Element::F32,
            "f2" => Element::F16,
            "i8" => Element::I64,
            "i4" => Element::I32,
            "u1" => Element::U8,
            _ => return refuse("the pickle has a numpy array of a type that is not supported"),
        })
    }

    /// (version, shape, type, Fortran order, bytes).
    fn numpy_array(&self, state: Id) -> Result<Array> {
        let bad = "the pickle has a numpy array that is not understood";
        let Node::Tuple(parts) = &self.nodes[state] else { return refuse(bad) };
        let &[_, shape, element, fortran, bytes] = parts.as_slice() else { return refuse(bad) };
        let (Node::NumpyType(element), Node::Bool(false), Node::Bytes(bytes)) =
            (&self.nodes[element], &self.nodes[fortran], &self.nodes[bytes])
        else {
            return refuse(bad);
        };
        let array = Array { element: *element, shape: self.counts(shape)?, bytes: bytes.clone() };
        let declared = array.shape.iter().try_fold(element.size(), |n, s| n.checked_mul(*s));
        if declared == Some(array.bytes.len()) { Ok(array) } else { refuse(bad) }
    }

    fn pairs(&self, items: Id) -> Result<Vec<(Id, Id)>> {
        let (Node::List(items) | Node::Tuple(items)) = &self.nodes[items] else {
            return refuse("the pickle has a dictionary of what is no list");
        };
        let pair = |id: &Id| match &self.nodes[*id] {
            Node::Tuple(pair) | Node::List(pair) if pair.len() == 2 => Ok((pair[0], pair[1])),
            _ => refuse("the pickle has a key without a value"),
        };
        items.iter().map(pair).collect()
    }

    /// Sets the state of what was made: attributes of a TorchScript module, the content of a numpy array. A state
    /// dictionary carries version numbers as an attribute; they say nothing about the tensors.
    fn build(&mut self) -> Result<()> {
        let (state, top) = (self.pop()?, self.top()?);
        let bad = "the pickle sets the state of an object; only tensors and plain containers are accepted";
        let done = match (&self.nodes[top], &self.nodes[state]) {
            (Node::Dict(_), _) => return Ok(()),
            (Node::Object(_), Node::Dict(attributes)) => Node::Object(attributes.clone()),
            (Node::Array(None), _) => Node::Array(Some(self.numpy_array(state)?)),
            (Node::NumpyType(_), Node::Tuple(parts)) => {
                let big = |id: &Id| matches!(&self.nodes[*id], Node::Text(order) if order == ">");
                if parts.get(1).is_some_and(big) {
                    return refuse("the pickle has a big-endian numpy array, which is not supported");
                }
                return Ok(());
            }
            _ => return refuse(bad),
        };
        self.nodes[top] = done;
        Ok(())
    }

    /// ('storage', class, key, device, count).
    fn persistent(&mut self) -> Result<()> {
        let id = self.pop()?;
        let bad = "the pickle refers to something outside that is no tensor storage";
        let Node::Tuple(parts) = &self.nodes[id] else { return refuse(bad) };
        let &[kind, class, key, _, count] = parts.as_slice() else { return refuse(bad) };
        let (Node::Text(kind), Node::Global(Global::Storage(element)), Node::Text(key)) =
            (&self.nodes[kind], &self.nodes[class], &self.nodes[key])
        else {
            return refuse(bad);
        };
        if kind != "storage" {
            return refuse(bad);
        }
        let storage = Storage { key: key.clone(), element: *element, count: self.count(count)? };
        self.push(Node::Storage(storage));
        Ok(())
    }

    fn count(&self, id: Id) -> Result<usize> {
        match self.nodes[id] {
            Node::Int(value) => {
                usize::try_from(value).or_else(|_| refuse("the pickle has a size below zero"))
            }
            _ => refuse("the pickle has a size that is no whole number"),
        }
    }

    fn counts(&self, id: Id) -> Result<Vec<usize>> {
        match &self.nodes[id] {
            Node::Tuple(items) | Node::List(items) => items.iter().map(|i| self.count(*i)).collect(),
            _ => refuse("the pickle has a shape that is no tuple"),
        }
    }
}

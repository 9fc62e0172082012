//! Names, calls and states that a pickle may mention: each is understood, and none is carried out.

use super::machine::Machine;
use super::{Array, Element, Global, Id, Node, Result, Storage, View, refuse};

/// Dimensions of a tensor, at most: as many as PyTorch and numpy know.
const MOST_DIMENSIONS: usize = 64;

pub(super) fn global(module: &str, name: &str) -> Result<Global> {
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

impl Machine<'_> {
    /// The few calls that are understood, none of which is made.
    pub(super) fn reduce(&mut self) -> Result<()> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let Node::Tuple(arguments) = &self.nodes[arguments] else {
            return refuse("the pickle calls with arguments that are no tuple");
        };
        self.copy(arguments.len())?;
        let arguments = arguments.clone();
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
                let Node::Storage(storage) = &self.nodes[*storage] else {
                    return refuse("the pickle has a tensor without a storage");
                };
                self.copy(storage.key.len())?;
                let storage = storage.clone();
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
        self.copy(items.len())?;
        let pair = |id: &Id| match &self.nodes[*id] {
            Node::Tuple(pair) | Node::List(pair) if pair.len() == 2 => Ok((pair[0], pair[1])),
            _ => refuse("the pickle has a key without a value"),
        };
        items.iter().map(pair).collect()
    }

    /// Sets the state of what was made: attributes of a TorchScript module, the content of a numpy array. A state
    /// dictionary carries version numbers as an attribute; they say nothing about the tensors.
    pub(super) fn build(&mut self) -> Result<()> {
        let (state, top) = (self.pop()?, self.top()?);
        let bad = "the pickle sets the state of an object; only tensors and plain containers are accepted";
        let done = match (&self.nodes[top], &self.nodes[state]) {
            (Node::Dict(_), _) => return Ok(()),
            (Node::Object(_), Node::Dict(attributes)) => {
                self.copy(attributes.len())?;
                Node::Object(attributes.clone())
            }
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
    pub(super) fn persistent(&mut self) -> Result<()> {
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
        self.copy(key.len())?;
        let storage = Storage { key: key.clone(), element: *element, count: self.count(count)? };
        self.push(Node::Storage(storage));
        Ok(())
    }

    fn count(&self, id: Id) -> Result<usize> {
        match self.nodes[id] {
            Node::Int(value) => {
                usize::try_from(value).or_else(|_| refuse("the pickle has a size below zero"))
            }
            _ => refuse("the pickle has a size that is not a whole number"),
        }
    }

    fn counts(&self, id: Id) -> Result<Vec<usize>> {
        match &self.nodes[id] {
            Node::Tuple(items) | Node::List(items) => {
                if items.len() > MOST_DIMENSIONS {
                    return refuse("the pickle has a tensor of more dimensions than any library knows");
                }
                self.copy(items.len())?;
                items.iter().map(|i| self.count(*i)).collect()
            }
            _ => refuse("the pickle has a shape that is no tuple"),
        }
    }
}

//! The stack machine of a pickle: opcodes, stack, marks and memo.

use std::cell::Cell;
use std::collections::HashMap;

use super::calls::global;
use super::{Id, Node, Result, refuse};

pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    pub(super) nodes: Vec<Node>,
    pub(super) stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
    /// Numbers that were copied out of values which can be recalled, and copied, any number of times.
    copied: Cell<usize>,
}

/// How many times over a pickle may copy its own bytes. Those of PyTorch and numpy copy each list and each shape once.
const MOST_COPIES: usize = 4;

impl<'a> Machine<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            nodes: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            copied: Cell::new(0),
        }
    }

    /// Counts what is copied out of a value, so that a short pickle cannot make a vast thing.
    pub(super) fn copy(&self, n: usize) -> Result<()> {
        self.copied.set(self.copied.get().saturating_add(n));
        if self.copied.get() > self.bytes.len().saturating_mul(MOST_COPIES) {
            return refuse("the pickle repeats what it holds many times over");
        }
        Ok(())
    }

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

    pub(super) fn push(&mut self, node: Node) {
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

    pub(super) fn pop(&mut self) -> Result<Id> {
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

    pub(super) fn top(&self) -> Result<Id> {
        self.stack.last().copied().map_or_else(|| refuse("the pickle looks at an empty stack"), Ok)
    }

    fn tuple(&mut self, n: usize) -> Result<()> {
        let mut items = (0..n).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
        items.reverse();
        self.push(Node::Tuple(items));
        Ok(())
    }

    pub(super) fn run(&mut self) -> Result<Id> {
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
}

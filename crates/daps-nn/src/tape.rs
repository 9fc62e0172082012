//! Gradients: operations with any number of inputs on candle's tape, with our own gradient buffers.
//!
//! candle's custom operations take at most three arguments and candle adds every gradient into a fresh tensor of
//! zeros. Here a feature map's gradient lives in a [`GradCell`] of its own, and candle's tape sees only a tensor
//! of one element per operation, its *handle*, which puts the backward calls in the right order. Parameters stay
//! ordinary candle tensors and get ordinary gradients; through [`backward`] those of variables skip candle's sums too.

use crate::buffer::Buffer;
use crate::error::Result;
use crate::kernels::elementwise;
use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, CustomOp3, Device, Layout, Shape, Tensor, TensorId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the consumers of a feature map add up its gradient.
#[derive(Default)]
pub(crate) struct GradCell(Mutex<Option<Buffer>>);

impl GradCell {
    pub(crate) fn add(&self, gradient: Buffer) {
        let mut cell = lock(&self.0);
        match cell.as_mut() {
            None => *cell = Some(gradient),
            Some(sum) => elementwise::add_assign(sum, &gradient),
        }
    }

    /// Takes the sum, zeros if nobody added anything.
    pub(crate) fn take(&self, len: usize) -> Buffer {
        lock(&self.0).take().unwrap_or_else(|| Buffer::zeroed(len))
    }
}

/// The tape's side of a feature map.
#[derive(Clone)]
pub(crate) struct Track {
    pub(crate) handle: Tensor,
    pub(crate) cell: Arc<GradCell>,
}

/// Which gradients a backward call has to give.
pub(crate) struct Wants {
    pub(crate) inputs: Vec<bool>,
    pub(crate) params: Vec<bool>,
}

/// The gradients of the inputs (feature maps) and of the parameters; `None` where not wanted.
#[derive(Default)]
pub(crate) struct Grads {
    pub(crate) inputs: Vec<Option<Buffer>>,
    pub(crate) params: Vec<Option<Vec<f32>>>,
}

type Backward = Box<dyn Fn(Buffer, &Wants) -> Result<Grads> + Send + Sync>;

struct Node {
    cell: Arc<GradCell>,
    len: usize,
    inputs: Vec<Option<Arc<GradCell>>>,
    wants: Wants,
    backward: Backward,
    /// Gradients of the parameters between this node's backward and its links'.
    params: Mutex<Vec<Option<Vec<f32>>>>,
}

impl Node {
    fn run(&self) -> candle_core::Result<()> {
        // While this thread waits for others, it may be lent to a backward pass that is not ours.
        let _ours = Restore(COLLECTED.take());
        let gradient = self.cell.take(self.len);
        let grads = (self.backward)(gradient, &self.wants)?;
        for (cell, gradient) in self.inputs.iter().zip(grads.inputs) {
            if let (Some(cell), Some(gradient)) = (cell, gradient) {
                cell.add(gradient);
            }
        }
        *lock(&self.params) = grads.params;
        Ok(())
    }
}

/// Variables with their gradients.
type Collected = HashMap<TensorId, (Tensor, Vec<f32>)>;

thread_local! {
    /// What the backward pass on this thread has met so far, if it is one of [`backward`].
    static COLLECTED: RefCell<Option<Collected>> = const { RefCell::new(None) };
}

/// Puts back what this thread has collected, whatever happens in between.
struct Restore(Option<Collected>);

impl Drop for Restore {
    fn drop(&mut self) {
        COLLECTED.set(self.0.take());
    }
}

/// The gradients of everything that led to `loss`, as [`Tensor::backward`] gives them, without a tensor of zeros and
/// a sum for each variable.
pub fn backward(loss: &Tensor) -> Result<GradStore> {
    let outer = Restore(COLLECTED.replace(Some(HashMap::new())));
    let mut store = loss.backward()?;
    let collected = COLLECTED.take().unwrap_or_default();
    drop(outer);
    for (variable, values) in collected.into_values() {
        let mut gradient = Tensor::from_vec(values, variable.shape(), &Device::Cpu)?;
        if let Some(other) = store.get(&variable) {
            gradient = (gradient + other)?;
        }
        store.insert(&variable, gradient);
    }
    Ok(store)
}

/// Puts a variable's gradient aside, or gives it back if nobody collects.
fn collect(variable: &Tensor, values: Vec<f32>) -> Option<Vec<f32>> {
    let Some(mut collected) = COLLECTED.take() else { return Some(values) };
    match collected.get_mut(&variable.id()) {
        None => drop(collected.insert(variable.id(), (variable.clone(), values))),
        Some((_, sum)) => elementwise::add_assign(sum, &values),
    }
    COLLECTED.set(Some(collected));
    None
}

/// One argument of a link: another handle, or parameter `i` of the node.
#[derive(Clone, Copy)]
enum Arg {
    Handle,
    Param(usize),
}

/// A tape operation that leads from a node's handle to up to three of its arguments.
struct Link {
    node: Arc<Node>,
    args: Vec<Arg>,
    /// The last link of a node is the first that backward meets: it runs the node.
    runs_node: bool,
}

fn one_element() -> (CpuStorage, Shape) {
    (CpuStorage::F32(vec![0.0]), Shape::from(1))
}

impl Link {
    fn start(&self) -> candle_core::Result<()> {
        if self.runs_node { self.node.run() } else { Ok(()) }
    }

    fn gradient(&self, i: usize, arg: &Tensor) -> candle_core::Result<Option<Tensor>> {
        match self.args[i] {
            Arg::Handle => Ok(Some(Tensor::zeros(1, candle_core::DType::F32, &Device::Cpu)?)),
            Arg::Param(p) => {
                let Some(mut values) = lock(&self.node.params).get_mut(p).and_then(Option::take) else {
                    return Ok(Some(arg.zeros_like()?));
                };
                if arg.is_variable() {
                    match collect(arg, values) {
                        None => return Ok(None),
                        Some(back) => values = back,
                    }
                }
                Ok(Some(Tensor::from_vec(values, arg.shape(), &Device::Cpu)?))
            }
        }
    }
}

impl CustomOp1 for Link {
    fn name(&self) -> &'static str {
        "daps-nn"
    }
    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok(one_element())
    }
    fn bwd(&self, a: &Tensor, _: &Tensor, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        self.start()?;
        self.gradient(0, a)
    }
}

impl CustomOp2 for Link {
    fn name(&self) -> &'static str {
        "daps-nn"
    }
    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok(one_element())
    }
    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        self.start()?;
        Ok((self.gradient(0, a)?, self.gradient(1, b)?))
    }
}

impl CustomOp3 for Link {
    fn name(&self) -> &'static str {
        "daps-nn"
    }
    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok(one_element())
    }
    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        c: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        self.start()?;
        Ok((self.gradient(0, a)?, self.gradient(1, b)?, self.gradient(2, c)?))
    }
}

/// Puts an operation on the tape: `inputs` and `params` lead to a feature map of `len` floats whose gradient
/// `backward` pulls back. Gives `None` when nothing asks for a gradient; `backward` and what it holds are dropped.
pub(crate) fn record(
    inputs: &[Option<&Track>],
    params: &[&Tensor],
    len: usize,
    backward: impl Fn(Buffer, &Wants) -> Result<Grads> + Send + Sync + 'static,
) -> Result<Option<Track>> {
    let wants = Wants {
        inputs: inputs.iter().map(Option::is_some).collect(),
        params: params.iter().map(|p| p.track_op()).collect(),
    };
    let mut args: Vec<(Arg, &Tensor)> = Vec::new();
    args.extend(inputs.iter().flatten().map(|track| (Arg::Handle, &track.handle)));
    args.extend(params.iter().enumerate().filter(|(_, p)| p.track_op()).map(|(i, p)| (Arg::Param(i), *p)));
    if args.is_empty() {
        return Ok(None);
    }
    let cell = Arc::new(GradCell::default());
    let node = Arc::new(Node {
        cell: cell.clone(),
        len,
        inputs: inputs.iter().map(|track| track.map(|t| t.cell.clone())).collect(),
        wants,
        backward: Box::new(backward),
        params: Mutex::new(Vec::new()),
    });
    // A chain of links: the first takes three arguments, the others the link before and two more.
    let mut rest = args.as_slice();
    let mut handle: Option<Tensor> = None;
    while !rest.is_empty() {
        let room = if handle.is_some() { 2 } else { 3 };
        let (now, later) = rest.split_at(room.min(rest.len()));
        rest = later;
        let mut kinds: Vec<Arg> = Vec::new();
        let mut tensors: Vec<Tensor> = Vec::new();
        if let Some(previous) = handle.take() {
            kinds.push(Arg::Handle);
            tensors.push(previous);
        }
        for (kind, tensor) in now {
            kinds.push(*kind);
            tensors.push((*tensor).clone());
        }
        let link = Link { node: node.clone(), args: kinds, runs_node: rest.is_empty() };
        handle = Some(match tensors.as_slice() {
            [a] => a.apply_op1(link)?,
            [a, b] => a.apply_op2(b, link)?,
            [a, b, c] => a.apply_op3(b, c, link)?,
            _ => unreachable!("a link has one to three arguments"),
        });
    }
    Ok(handle.map(|handle| Track { handle, cell }))
}

/// Calls `f` with the values of a contiguous f32 tensor on the CPU.
pub(crate) fn with_values<T>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> T) -> Result<T> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        candle_core::Storage::Cpu(cpu) => {
            let start = layout.start_offset();
            Ok(f(&cpu.as_slice::<f32>()?[start..start + layout.shape().elem_count()]))
        }
        _ => Err(crate::Error::Device { what: "kernel on the CPU" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A backward pass that panics leaves nothing behind that would swallow the gradients of the next one.
    #[test]
    fn a_panic_ends_collecting() {
        let panicked = std::panic::catch_unwind(|| {
            let _outer = Restore(COLLECTED.replace(Some(HashMap::new())));
            panic!("within a backward pass");
        });
        assert!(panicked.is_err() && COLLECTED.take().is_none());
    }
}

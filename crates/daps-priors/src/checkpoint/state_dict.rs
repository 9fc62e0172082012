//! Which of a checkpoint's dictionaries holds the weights, and under which names.

use std::collections::BTreeMap;

use super::pickle::{Id, Node, Pickle, Refused, View};

/// Dictionaries that hold weights in training checkpoints, the averaged ones first.
const WRAPPERS: [&str; 13] = [
    "ema",
    "ema_state_dict",
    "model_ema",
    "params_ema",
    "ema_model",
    "state_dict",
    "model_state_dict",
    "model",
    "network",
    "net",
    "params",
    "module",
    "unet",
];

/// Prefixes that wrappers put before every name.
const PREFIXES: [&str; 7] = ["module.", "_orig_mod.", "ema_model.", "model.", "net.", "network.", "ema."];

/// Wrappers within wrappers, at most.
const DEEPEST: usize = 8;

/// Objects within objects of a TorchScript module or a nested dictionary, at most.
const DEEPEST_OBJECT: usize = 32;

/// Leaves that `pick` finds in nested dictionaries and TorchScript modules, their names joined by dots.
pub(super) fn leaves<T>(
    pickle: &Pickle,
    pick: &impl Fn(&Node) -> Option<T>,
) -> Result<BTreeMap<String, T>, Refused> {
    let mut found = BTreeMap::new();
    let mut todo = vec![(String::new(), pickle.root(), 0)];
    let mut visited = 0;
    while let Some((prefix, at, depth)) = todo.pop() {
        let (Node::Dict(items) | Node::Object(items)) = pickle.node(at) else { continue };
        for (key, value) in items {
            visited += 1;
            if depth > DEEPEST_OBJECT || visited > MOST_ITEMS {
                return Err(Refused("nests its dictionaries too deeply".to_owned()));
            }
            let Node::Text(name) = pickle.node(*key) else { continue };
            let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            if name.len() > LONGEST_NAME {
                return Err(Refused(TOO_LONG.to_owned()));
            }
            match pick(pickle.node(*value)) {
                Some(leaf) => _ = found.insert(name, leaf),
                None => todo.push((name, *value, depth + 1)),
            }
        }
    }
    Ok(found)
}

/// More items than this on all ways to the leaves are no network: a container that holds itself has no end, and one that holds
/// another twice, which holds a third twice, has more ways than anyone can go.
const MOST_ITEMS: usize = 200_000;

/// Bytes of a leaf's whole name, at most.
const LONGEST_NAME: usize = 1024;
const TOO_LONG: &str = "holds a name that is too long for a tensor's";

/// The tensors of the state dictionary, or of a TorchScript module.
pub(super) fn tensors(pickle: &Pickle) -> Result<BTreeMap<String, View>, Refused> {
    let mut at = pickle.root();
    if let Node::Object(_) = pickle.node(at) {
        return leaves(pickle, &|node| match node {
            Node::Tensor(view) => Some(view.clone()),
            _ => None,
        });
    }
    for _ in 0..DEEPEST {
        let Node::Dict(items) = pickle.node(at) else {
            return Err(Refused("holds no dictionary of tensors".to_owned()));
        };
        let named = |(key, value): &(Id, Id)| match pickle.node(*key) {
            Node::Text(name) => Some((name.as_str(), *value)),
            _ => None,
        };
        let items: Vec<(&str, Id)> = items.iter().filter_map(named).collect();
        if items.len() > MOST_ITEMS {
            return Err(Refused(format!("holds a dictionary of {} items, not a network", items.len())));
        }
        let mut found = BTreeMap::new();
        for (name, id) in &items {
            if let Node::Tensor(view) = pickle.node(*id) {
                if name.len() > LONGEST_NAME {
                    return Err(Refused(TOO_LONG.to_owned()));
                }
                found.insert((*name).to_owned(), view.clone());
            }
        }
        let is_dict = |id: Id| matches!(pickle.node(id), Node::Dict(items) if !items.is_empty());
        let wrapped = WRAPPERS.iter().find_map(|w| items.iter().find(|(n, id)| n == w && is_dict(*id)));
        match wrapped {
            Some((_, inner)) => at = *inner,
            None if !found.is_empty() => return Ok(found),
            None => {
                let keys: Vec<&str> = items.iter().map(|(n, _)| *n).take(20).collect();
                return Err(Refused(format!(
                    "holds no state dictionary; its keys are: {}",
                    keys.join(", ").escape_debug()
                )));
            }
        }
    }
    Err(Refused("nests its dictionaries too deeply".to_owned()))
}

/// Drops prefixes that all names share, and everything but the averaged weights where a file holds both.
pub(super) fn without_prefixes<T>(mut tensors: BTreeMap<String, T>) -> BTreeMap<String, T> {
    if tensors.keys().any(|k| k.starts_with("ema_model.")) {
        tensors.retain(|k, _| k.starts_with("ema_model."));
    }
    loop {
        let shared = |p: &&&str| {
            !tensors.is_empty() && tensors.keys().all(|k| k.len() > p.len() && k.starts_with(**p))
        };
        let Some(prefix) = PREFIXES.iter().find(shared) else { return tensors };
        tensors = tensors.into_iter().map(|(k, v)| (k[prefix.len()..].to_owned(), v)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_prefixes_go_and_averaged_weights_win() {
        let names = |list: &[&str]| -> Vec<String> {
            let map = list.iter().map(|n| ((*n).to_owned(), ())).collect();
            without_prefixes(map).into_keys().collect()
        };
        assert_eq!(names(&["module.model.a", "module.model.b.c"]), ["a", "b.c"]);
        assert_eq!(names(&["model.a", "b"]), ["b", "model.a"]);
        assert_eq!(names(&["ema_model.a", "online_model.a", "step"]), ["a"]);
        assert!(names(&[]).is_empty());
    }
}

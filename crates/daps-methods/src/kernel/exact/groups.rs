//! Tokens: where the measurement ties only few of them together, each group is drawn at once from all its values.

use daps_core::candle::Tensor;
use daps_core::mixture::choose;
use daps_core::{
    Address, ChainInfo, Error, Likelihood, LocalLikelihood, Noise, Purpose, Result, Step, map_tokens, open01,
};

/// Values of a group that are worth listing.
const MOST: usize = 1 << 12;

/// Tokens that measured ones tie together, and those measured ones.
struct Group {
    sites: Vec<u32>,
    outputs: Vec<usize>,
}

pub(super) fn draw(
    start: &Tensor,
    log_probs: &[f64],
    symbols: usize,
    likelihood: &dyn Likelihood,
    noise: &Noise,
    step: &Step,
) -> Result<(Tensor, ChainInfo)> {
    let rows = start.dims()[0];
    let sites = start.elem_count() / rows.max(1);
    let local = local(likelihood)?;
    let groups: Vec<Vec<Group>> = (0..rows).map(|row| groups(local, row, sites)).collect();
    groups.iter().try_for_each(|groups| check(groups, symbols, likelihood.name()))?;
    let at = Address::new(step.index, Purpose::Kernel, 0);
    let x = map_tokens(start, noise, at, |row, rng, x| {
        let log_probs = &log_probs[row * sites * symbols..];
        let mut weights = Vec::new();
        for group in &groups[row] {
            weights.clear();
            for k in 0..symbols.pow(group.sites.len() as u32) {
                set(x, &group.sites, symbols, k);
                let prior: f64 = group
                    .sites
                    .iter()
                    .map(|&i| log_probs[i as usize * symbols + usize::from(x[i as usize])])
                    .sum();
                weights.push(prior + group.outputs.iter().map(|&k| local.term(row, k, x)).sum::<f64>());
            }
            set(x, &group.sites, symbols, choose(&weights, open01(rng)));
        }
    })?;
    Ok((x, super::info(rows, 1)))
}

fn local(likelihood: &dyn Likelihood) -> Result<&dyn LocalLikelihood> {
    let missing = || Error::missing("exact", "a measurement of few tokens at a time", likelihood.name());
    likelihood.as_local().ok_or_else(missing)
}

fn check(groups: &[Group], symbols: usize, name: &str) -> Result<()> {
    let large = groups.iter().map(|g| g.sites.len()).max().unwrap_or(0);
    match symbols.checked_pow(large as u32).is_some_and(|count| count <= MOST) {
        true => Ok(()),
        false => Err(Error::missing("exact", "groups of few tokens (the kernel flips does not)", name)),
    }
}

/// Refuses a measurement that ties so many tokens together that their values cannot be listed; looks at its first row.
pub(crate) fn check_groups(likelihood: &dyn Likelihood, sites: usize, symbols: usize) -> Result<()> {
    check(&groups(local(likelihood)?, 0, sites), symbols, likelihood.name())
}

/// Gives the sites the digits of `k`.
fn set(x: &mut [u8], sites: &[u32], symbols: usize, mut k: usize) {
    for &site in sites {
        x[site as usize] = (k % symbols) as u8;
        k /= symbols;
    }
}

/// The connected components of the graph in which a measured token joins its sites.
fn groups(local: &dyn LocalLikelihood, row: usize, sites: usize) -> Vec<Group> {
    let mut parent: Vec<usize> = (0..sites).collect();
    fn root(parent: &mut [usize], mut i: usize) -> usize {
        while parent[i] != i {
            parent[i] = parent[parent[i]];
            i = parent[i];
        }
        i
    }
    for k in 0..local.outputs() {
        for pair in local.sites_of(row, k).windows(2) {
            let (a, b) = (root(&mut parent, pair[0] as usize), root(&mut parent, pair[1] as usize));
            parent[a.max(b)] = a.min(b);
        }
    }
    let mut place = vec![usize::MAX; sites];
    let mut groups: Vec<Group> = Vec::new();
    for site in 0..sites {
        let top = root(&mut parent, site);
        if place[top] == usize::MAX {
            place[top] = groups.len();
            groups.push(Group { sites: vec![], outputs: vec![] });
        }
        groups[place[top]].sites.push(site as u32);
    }
    for k in 0..local.outputs() {
        if let Some(&site) = local.sites_of(row, k).first() {
            groups[place[root(&mut parent, site as usize)]].outputs.push(k);
        }
    }
    groups
}

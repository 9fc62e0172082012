//! Optimal assignment by shortest augmenting paths with dual prices, after Jonker and Volgenant (Computing 38, 1987).

use daps_core::{Error, Result};

const FREE: usize = usize::MAX;

/// For a dense `n x n` cost matrix (row-major), the column of every row in an assignment of least total cost.
pub fn assign(cost: &[f64], n: usize) -> Result<Vec<usize>> {
    assign_from(cost, n, None)
}

/// [`assign`] from a guess of the dual prices of the columns: any guess gives the optimum, a good one gives it faster.
pub fn assign_from(cost: &[f64], n: usize, prices: Option<Vec<f64>>) -> Result<Vec<usize>> {
    if cost.len() != n * n {
        return Err(Error::invalid("cost matrix", format!("{n} x {n} numbers"), cost.len()));
    }
    crate::finite("cost matrix", cost)?;
    if n == 0 {
        return Ok(vec![]);
    }
    let mut solver = Solver { cost, n, price: vec![0.0; n], column: vec![FREE; n], row: vec![FREE; n] };
    match prices {
        Some(price) if price.len() == n && price.iter().all(|p| p.is_finite()) => solver.price = price,
        Some(price) => {
            return Err(Error::invalid("prices", format!("{n} finite numbers"), format!("{price:?}")));
        }
        None => solver.reduce_columns(),
    }
    for _ in 0..2 {
        solver.reduce_rows();
    }
    let free: Vec<usize> = (0..n).filter(|&i| solver.column[i] == FREE).collect();
    let mut search = Search::new(n);
    free.into_iter().for_each(|i| solver.augment(i, &mut search));
    Ok(solver.column)
}

/// A partial assignment with prices such that every assigned row has its column at least reduced cost.
struct Solver<'a> {
    cost: &'a [f64],
    n: usize,
    /// Dual price of every column.
    price: Vec<f64>,
    /// Column of every row.
    column: Vec<usize>,
    /// Row of every column.
    row: Vec<usize>,
}

/// Scratch space of a shortest-path search.
struct Search {
    distance: Vec<f64>,
    before: Vec<usize>,
    /// Columns: those whose distance is final, then those at the current minimum, then the rest.
    order: Vec<usize>,
}

impl Search {
    fn new(n: usize) -> Self {
        Self { distance: vec![0.0; n], before: vec![0; n], order: (0..n).collect() }
    }
}

impl Solver<'_> {
    fn costs(&self, i: usize) -> &[f64] {
        &self.cost[i * self.n..(i + 1) * self.n]
    }

    /// Prices every column at its least cost, and assigns the row of that cost if it is free.
    fn reduce_columns(&mut self) {
        for j in (0..self.n).rev() {
            let (mut best, mut least) = (0, f64::INFINITY);
            for i in 0..self.n {
                let c = self.cost[i * self.n + j];
                if c < least {
                    (best, least) = (i, c);
                }
            }
            self.price[j] = least;
            if self.column[best] == FREE {
                self.column[best] = j;
                self.row[j] = best;
            }
        }
    }

    /// Lets every free row take its best column, lowering that column's price to the row's second choice; the row that
    /// held the column becomes free. Bounded, because with equal or nearly equal costs rows can displace each other
    /// for long; what is left goes to the path search.
    fn reduce_rows(&mut self) {
        let mut free: Vec<usize> = (0..self.n).filter(|&i| self.column[i] == FREE).rev().collect();
        let mut moves = 8 * self.n;
        while let Some(i) = free.pop() {
            if moves == 0 {
                return;
            }
            moves -= 1;
            let (mut first, mut second) = ((FREE, f64::INFINITY), (FREE, f64::INFINITY));
            for (j, (c, p)) in self.costs(i).iter().zip(&self.price).enumerate() {
                let reduced = c - p;
                if reduced < second.1 {
                    if reduced < first.1 {
                        second = first;
                        first = (j, reduced);
                    } else {
                        second = (j, reduced);
                    }
                }
            }
            let mut j = first.0;
            if first.1 < second.1 && second.0 != FREE {
                self.price[j] -= second.1 - first.1;
            } else if self.row[j] != FREE && second.0 != FREE {
                j = second.0;
            }
            let displaced = std::mem::replace(&mut self.row[j], i);
            self.column[i] = j;
            if displaced != FREE {
                self.column[displaced] = FREE;
                // Displacing at no gain can go in circles; the path search takes such rows.
                if first.1 < second.1 {
                    free.push(displaced);
                }
            }
        }
    }

    /// Extends the assignment by the free row `start` along a shortest path of reduced costs.
    fn augment(&mut self, start: usize, search: &mut Search) {
        let Search { distance, before, order } = search;
        for j in 0..self.n {
            distance[j] = self.cost[start * self.n + j] - self.price[j];
            before[j] = start;
        }
        // order[..done]: final; order[done..edge]: at the minimum, to be scanned; order[edge..]: not reached yet.
        let (mut done, mut edge, mut least) = (0, 0, 0.0);
        let end = 'search: loop {
            if done == edge {
                least = order[edge..].iter().map(|&j| distance[j]).fold(f64::INFINITY, f64::min);
                let unreached = edge..self.n;
                for k in unreached {
                    if distance[order[k]] <= least {
                        order.swap(k, edge);
                        edge += 1;
                    }
                }
                if let Some(&j) = order[done..edge].iter().find(|&&j| self.row[j] == FREE) {
                    break 'search j;
                }
            }
            let scanned = order[done];
            done += 1;
            let i = self.row[scanned];
            let costs = &self.cost[i * self.n..(i + 1) * self.n];
            let base = costs[scanned] - self.price[scanned] - least;
            let mut k = edge;
            while k < self.n {
                let j = order[k];
                let reached = costs[j] - self.price[j] - base;
                if reached < distance[j] {
                    distance[j] = reached;
                    before[j] = i;
                    if reached <= least {
                        if self.row[j] == FREE {
                            break 'search j;
                        }
                        order.swap(k, edge);
                        edge += 1;
                    }
                }
                k += 1;
            }
        };
        for &j in &order[..done] {
            self.price[j] += distance[j] - least;
        }
        let mut j = end;
        loop {
            let i = before[j];
            self.row[j] = i;
            std::mem::swap(&mut self.column[i], &mut j);
            if i == start {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daps_core::{Address, Noise, Purpose, open01};

    fn least_by_enumeration(cost: &[f64], n: usize, row: usize, used: &mut Vec<bool>) -> f64 {
        if row == n {
            return 0.0;
        }
        let mut best = f64::INFINITY;
        for j in 0..n {
            if !used[j] {
                used[j] = true;
                best = best.min(cost[row * n + j] + least_by_enumeration(cost, n, row + 1, used));
                used[j] = false;
            }
        }
        best
    }

    fn check(cost: &[f64], n: usize) {
        let columns = assign(cost, n).unwrap();
        let mut seen = columns.clone();
        seen.sort_unstable();
        assert_eq!(seen, (0..n).collect::<Vec<_>>());
        let total: f64 = columns.iter().enumerate().map(|(i, &j)| cost[i * n + j]).sum();
        let best = least_by_enumeration(cost, n, 0, &mut vec![false; n]);
        assert!((total - best).abs() < 1e-9, "{total} vs {best}");
    }

    /// All sizes to 7, with continuous costs and with small integers that tie often.
    #[test]
    fn agrees_with_enumeration() {
        let noise = Noise::chains(11, 400);
        for trial in 0..400 {
            let mut rng = noise.stream(trial, Address::new(0, Purpose::Reference, 0));
            let n = 1 + trial % 7;
            let cost: Vec<f64> = (0..n * n).map(|_| 10.0 * open01(&mut rng) - 3.0).collect();
            check(&cost, n);
            check(&cost.iter().map(|c| (c / 3.0).floor()).collect::<Vec<_>>(), n);
        }
        check(&[1.0; 49], 7);
    }

    #[test]
    fn refuses_what_is_no_matrix() {
        assert!(assign(&[1.0; 3], 2).is_err());
        assert!(assign(&[f64::NAN], 1).is_err());
        assert!(assign(&[], 0).unwrap().is_empty());
    }
}

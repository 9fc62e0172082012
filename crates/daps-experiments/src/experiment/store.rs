//! The finished cells of an experiment on disk: lines that are only ever appended, so that a kill loses none of them.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use daps::directory::{self, Entry};
use daps::{Error, Result};

use super::cell::Cell;

/// The file of the cells, a line each.
pub(super) const CELLS: &str = "cells.jsonl";

/// How many bytes are whole lines.
fn whole_lines(text: &[u8]) -> usize {
    text.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1)
}

/// Adds a cell. One that ran before has the later numbers and the first cost: it runs again for what it lacked, perhaps on a busier
/// machine, and a timing that was published must not change for that.
fn add(cells: &mut Cells, mut cell: Cell) {
    if let Some(first) = cells.get(&cell.key).filter(|first| first.failure.is_none()) {
        (cell.seconds, cell.operator_calls) = (first.seconds, first.operator_calls);
    }
    cells.insert(cell.key.clone(), cell);
}

/// Cells by key; of two lines the later counts, but for its cost.
fn parsed(path: &Path, text: &[u8]) -> Result<Cells> {
    let mut cells = Cells::new();
    for (i, line) in String::from_utf8_lossy(text).lines().enumerate() {
        let cell = serde_json::from_str(line)
            .map_err(|e| Error::content(path, format!("line {} is damaged: {e}", i + 1)))?;
        add(&mut cells, cell);
    }
    Ok(cells)
}

/// The cells of a directory by key; another process may be at work there.
pub(super) fn read(directory: &Path) -> Result<Cells> {
    let path = directory.join(CELLS);
    let text = std::fs::read(&path).map_err(Error::file(&path, "cannot read"))?;
    parsed(&path, &text[..whole_lines(&text)])
}

/// Finished cells by key.
pub(super) type Cells = HashMap<String, Cell>;

/// Finished cells, to be added to.
pub(crate) struct Store {
    path: PathBuf,
    file: File,
    cells: Cells,
    _lock: directory::Lock,
}

impl Store {
    /// Opens the cells of a directory, alone: a second process is refused. A line that a kill cut off is dropped.
    pub fn open(directory: &Path) -> Result<Self> {
        let lock = directory::enter(directory, Entry::Resume { work: "table", first: CELLS })?;
        let path = directory.join(CELLS);
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path);
        let mut file = file.map_err(Error::file(&path, "cannot open"))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(Error::file(&path, "cannot read"))?;
        let whole = whole_lines(&text);
        if whole < text.len() {
            file.set_len(whole as u64).map_err(Error::file(&path, "cannot mend"))?;
            file.seek(SeekFrom::End(0)).map_err(Error::file(&path, "cannot mend"))?;
        }
        let cells = parsed(&path, &text[..whole])?;
        Ok(Self { path, file, cells, _lock: lock })
    }

    /// All cells.
    pub(super) fn cells(&self) -> &Cells {
        &self.cells
    }

    /// The cell of a key.
    pub fn get(&self, key: &str) -> Option<&Cell> {
        self.cells.get(key)
    }

    /// Writes finished cells down, in one go.
    pub fn append(&mut self, cells: Vec<Cell>) -> Result<()> {
        let mut text = String::new();
        for cell in &cells {
            text += &serde_json::to_string(cell).map_err(|e| Error::content(&self.path, e))?;
            text.push('\n');
        }
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(Error::file(&self.path, "cannot write"))?;
        cells.into_iter().for_each(|cell| add(&mut self.cells, cell));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(key: &str) -> Cell {
        Cell { key: key.into(), psnr: Some(0.1 + 0.2), seconds: 1.5, ..Cell::default() }
    }

    #[test]
    fn a_directory_of_other_files_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.toml"), "of a training").unwrap();
        let error = Store::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains("holds no table to resume"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_cell_that_ran_again_has_its_new_numbers_and_its_first_timing() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path()).unwrap();
        store.append(vec![cell("a"), Cell { seconds: 9.0, ..cell("b").failed("it diverged") }]).unwrap();
        let again = |key| Cell { lpips: Some(0.25), seconds: 7.0, ..cell(key) };
        store.append(vec![again("a"), again("b")]).unwrap();
        let expected = [Cell { seconds: 1.5, ..again("a") }, again("b")];
        let found = |store: &Store| ["a", "b"].map(|key| store.get(key).unwrap().clone());
        assert_eq!(found(&store), expected);
        drop(store);
        assert_eq!(found(&Store::open(dir.path()).unwrap()), expected, "in the next process too");
    }

    #[test]
    fn cells_come_back_and_a_torn_line_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path()).unwrap();
        store.append(vec![cell("a"), cell("b")]).unwrap();
        assert!(Store::open(dir.path()).err().unwrap().to_string().contains("another process"));
        drop(store);
        let path = dir.path().join("cells.jsonl");
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], b"{\"key\": \"c\", \"me"].concat()).unwrap();
        let mut store = Store::open(dir.path()).unwrap();
        assert_eq!((store.get("a"), store.get("c")), (Some(&cell("a")), None));
        store.append(vec![cell("d")]).unwrap();
        drop(store);
        assert_eq!(Store::open(dir.path()).unwrap().cells.len(), 3);
        std::fs::write(&path, "nonsense\n").unwrap();
        assert!(Store::open(dir.path()).err().unwrap().to_string().contains("line 1 is damaged"));
    }
}

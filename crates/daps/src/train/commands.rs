//! The commands that trained a run, in a file of its directory: a model card shows what ran, not what could have.

use std::path::Path;

use crate::{Result, files};

const COMMANDS: &str = "commands.txt";

/// What stands in the place of commands that were not kept.
const UNRECORDED: &str = "# how this training began was not recorded";

/// The commands of a directory with a run, one a line; a remark where there are none.
pub(super) fn read(directory: &Path) -> Result<Vec<String>> {
    let path = directory.join(COMMANDS);
    if !path.exists() {
        return Ok(vec![UNRECORDED.to_owned()]);
    }
    Ok(files::read_text(&path)?.lines().map(str::to_owned).collect())
}

/// Adds a command, once where it is repeated, and writes them all.
pub(super) fn add(directory: &Path, commands: &mut Vec<String>, command: &str) -> Result<()> {
    if commands.last().is_none_or(|last| last != command) {
        commands.push(command.to_owned());
    }
    let text: String = commands.iter().map(|line| format!("{line}\n")).collect();
    files::write(&directory.join(COMMANDS), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_back_in_their_order_and_a_repeated_one_once() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), [UNRECORDED]);
        let mut commands = vec!["daps train --config earlier.toml".to_owned()];
        for command in ["daps train --config a.toml", "daps train --resume", "daps train --resume"] {
            add(dir.path(), &mut commands, command).unwrap();
        }
        let all = ["daps train --config earlier.toml", "daps train --config a.toml", "daps train --resume"];
        assert_eq!(read(dir.path()).unwrap(), all);
        assert_eq!(commands, all);
    }
}
